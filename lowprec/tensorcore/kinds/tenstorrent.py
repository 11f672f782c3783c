"""`FidelityPhaseSum`: Tenstorrent's matrix units, which multiply slices of significands in up to four phases."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ... import _threads
from ..._checks import check_int
from ...cast.casts import decode
from ...format.catalogue import Format
from ...order.summation_tree import KindSpecific, ProductLeaf, SumNode
from ..accumulator import Accumulator, StepError
from ..problem import Float32Matrix, GemmProblem, Matrix

Ints = NDArray[np.int64]
_GROUPS = 2  # groups of products that an instruction adds to C
_FARTHEST = 31  # places of a right shift that leaves no bits
#: Error, relative to a product, if a phase is not computed; phases 1 to 3 have the lower bits of one or both operands.
_LOST = {0: 1.0, 1: 2.0**-4, 2: 2.0**-6, 3: 2.0**-10}
_WORK = 1 << 22  # products that justify a thread


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class FidelityPhaseSum(Accumulator):
    """Products of slices of significands, aligned in groups of eight; two groups and C are aligned, added and rounded.

    A phase multiplies 7 bits of the left operand by 5 bits of the right one: phase 0 the upper bits of both, phase 1
    the lower bits of the right operand, phase 2 the lower bits of the left one, phase 3 the lower bits of both. Inf and
    NaN are read as numbers with the exponent 128, and results of 2^128 or more are Inf: no result is NaN. Subnormals
    are read as zeros, and results below 2^-126 become zeros.

    Parameters
    ----------
    group_size : int
        Products that are aligned together; an instruction adds two groups to C.
    fraction_bits : int
        Fraction bits of a product that are kept below the largest sum of two exponents.
    phases : tuple of int
        Phases in the order of their computation: (0,) is LoFi, (0, 1, 2, 3) is HiFi4.
    phase_length : int
        Length of a tile along K; each phase is computed for a whole tile before the next phase.
    misplaces_minus_one : bool
        Whether a sum of minus one unit in its last place is returned 2^27 times too large.
    """

    group_size: int = 8
    fraction_bits: int = 10
    phases: tuple[int, ...] = (0,)
    phase_length: int = 32
    misplaces_minus_one: bool = False

    summary = "products of slices of significands, rounded and added in groups; two groups and C rounded and added"
    oracle_class = "FidelityPhases"
    has_canonical_nan = False
    reference_is_compiled = False

    def check(self) -> None:
        """Check the phases and the length of a tile."""
        caller = f"FidelityPhaseSum {self.name}"
        phases = tuple(check_int(caller, "phases", phase) for phase in self.phases)
        object.__setattr__(self, "phases", phases)
        if not phases or sorted(set(phases)) != sorted(phases) or not set(phases) <= set(_LOST):
            raise ValueError(f"{caller}: phases must be some of 0, 1, 2, 3, each once, got {phases}")
        if self.phase_length < 1 or self.phase_length % (_GROUPS * self.group_size):
            raise ValueError(
                f"{caller}: phase_length must be a multiple of {_GROUPS * self.group_size}, got {self.phase_length}"
            )
        if self.promote_every is not None and self.promote_every % self.step():
            raise ValueError(f"{caller}: promote_every must be a multiple of {self.step()}, got {self.promote_every}")

    def check_formats(self, fa: Format, fb: Format) -> None:
        """Raise ValueError unless operands have at most the 11 significant bits that are read, a sign and a zero."""
        if not all(f.mantissa_bits <= 10 and f.signed and f.has_zero for f in (fa, fb)):
            raise ValueError(f"{self.name}: operands must have at most 11 significant bits, got {fa} x {fb}")

    def step(self) -> int:
        """Return the number of products of a tile, for which all phases are computed."""
        return self.phase_length

    def steps(self, k: int) -> int:
        """Return the number of additions to C in a chain of k products."""
        return -(-k // self.step()) * self.step() // (_GROUPS * self.group_size) * len(self.phases)

    def instruction(self, state: SumNode | str, start: int) -> SumNode:
        """Return the sums of a tile: in each phase, all of its products are added, two groups at a time."""
        size, found = self.group_size, state
        for phase in self.phases:
            for first in range(start, start + self.step(), _GROUPS * size):
                groups = tuple(
                    ProductLeaf(tuple(range(k, k + size))) for k in range(first, first + _GROUPS * size, size)
                )
                words = f"phase {phase}: groups aligned, rounded, added", "aligned with C, added, rounded to float32"
                numbers = phase, self.fraction_bits, size, int(self.misplaces_minus_one)
                found = SumNode(words, (found, *groups), KindSpecific("fidelity phase", numbers))
        assert isinstance(found, SumNode)
        return found

    def step_error(self) -> StepError:
        """Return the bound for bits that no phase multiplies, and for the roundings of products and of sums with C."""
        lost = sum(bits for phase, bits in _LOST.items() if phase not in self.phases)
        sums = self.steps(self.step())
        last = sums * 2.0**-21 + (17.0 * sums if self.misplaces_minus_one else 0.0)
        # Factors of the phases, whose products have lower exponents
        shifts = sum(2.0 ** -(5 * (phase & 1) + 7 * (phase >> 1)) for phase in self.phases)
        groups = shifts * self.group_size * 2.0 ** -(self.fraction_bits + 1)
        return StepError(lost + groups + last, sums * 2.0**-118, last)

    def values(self, codes: Matrix, fmt: Format) -> Float32Matrix:
        """Return the decoded values, with zeros for subnormals; Inf and NaN remain, unlike in `reference`."""
        x = super().values(codes, fmt)
        x[np.abs(x) < 2.0**-126] = 0
        return x

    def reference(self, p: GemmProblem) -> Matrix:
        """Return one chain, computed in integers."""
        step, (m, n, k) = self.step(), p.shape
        whole = max(-(-k // step), 1) * step
        a, b = (_read(codes, fmt, whole) for codes, fmt in ((p.a, p.fa), (p.b, p.fb)))
        bits = np.ascontiguousarray(p.start).view(np.uint32).astype(np.int64)

        def piece(start: int, stop: int) -> None:
            d = bits[start:stop]
            for tile in range(0, whole, step):
                for phase in self.phases:
                    for first in range(tile, tile + step, _GROUPS * self.group_size):
                        d = self._add(a[start:stop], b, first, phase, d)
            bits[start:stop] = d

        _threads.run_chunks(piece, m, max(1, _WORK // max(_GROUPS * self.group_size * n, 1)))
        return bits.astype(np.uint32).view(np.float32)

    def _add(self, a: Ints, b: Ints, first: int, phase: int, c_bits: Ints) -> Ints:
        """Add the products of one instruction to C, given and returned as float32 bits."""
        terms = [
            self._group(a[:, at : at + self.group_size], b[:, at : at + self.group_size], phase)
            for at in range(first, first + _GROUPS * self.group_size, self.group_size)
        ]
        e_c, negative = c_bits >> 23 & 255, c_bits >> 31 != 0
        m_c = np.where(e_c > 0, c_bits & 0x7FFFFF | 0x800000, 0)
        top = np.maximum(e_c, np.maximum(terms[0][1], terms[1][1]))
        total = _aligned(m_c, top - e_c, np.zeros_like(negative))
        for minus, exponent, m in terms:
            aligned = _aligned(m, top - exponent, minus)
            total = np.where(minus == negative, total + aligned, total - aligned)
        negative = negative ^ (total < 0)
        m = np.abs(total)
        shift = 23 - _leading(m)
        if self.misplaces_minus_one:
            shift = np.where(negative & (m == 1), shift - 27, shift)
        e = top - shift
        right, left = np.maximum(-shift, 0), np.maximum(shift, 0)
        m = np.where(shift < 0, (m + (1 << np.maximum(right - 1, 0))) >> right, m << left)
        e += m >> 24 & 1
        found = np.where(e >= 255, 0x7F800000, (e << 23) | (m & 0x7FFFFF)) | np.where(negative, 1 << 31, 0)
        return np.where((top <= 0) | (total == 0) | (e <= 0), 0, found)

    def _group(self, a: Ints, b: Ints, phase: int) -> tuple[NDArray[np.bool_], Ints, Ints]:
        """Return sign, biased exponent and magnitude (23 fraction bits) of the sums of a group [M, 8] x [N, 8]."""
        left, right = a[:, None], b[None]
        zero = ((left & 0x3FC00) == 0) | ((right & 0x3FC00) == 0)
        e = (left >> 10 & 255) + (right >> 10 & 255) - 127 - 5 * (phase & 1) - 7 * (phase >> 1)
        wide = left & 0x3FF | 0x400
        wide = (wide & 15) << 3 if phase & 2 else wide >> 4
        short = right & 0x3FF | 0x400
        short = short >> 1 & 31 if phase & 1 else short >> 6
        m, e = np.where(zero, 0, wide * short), np.where(zero, 0, e)
        top = e.max(axis=-1)
        # One bit more than is kept, so that half a unit in the last place can be added.
        away = np.minimum(top[..., None] - e, 30)
        drop = 10 - self.fraction_bits
        m = (m << max(-drop, 0) << 1) + (1 << (away + max(drop, 0))) >> (away + 1 + max(drop, 0))
        total = np.where((left ^ right) >> 18 & 1 & ~zero, -m, m).sum(axis=-1)
        total = np.where(top > 0, total, 0)
        return total < 0, np.maximum(top, 0), np.abs(total) << (23 - self.fraction_bits)


def _read(codes: Matrix, fmt: Format, whole: int) -> Ints:
    """Return sign, 8 exponent bits and 10 mantissa bits of each code, zero-padded along K."""
    words = np.zeros((len(codes), whole), np.int64)
    if (fmt.exponent_bits, fmt.bias) == (8, 127):  # codes are the upper bits of float32, those of NaN too
        words[:, : codes.shape[1]] = codes.astype(np.int64) << (31 - 8 - fmt.mantissa_bits)
    else:
        words[:, : codes.shape[1]] = np.ascontiguousarray(decode(codes, fmt)).view(np.uint32)
    return words >> 13


def _aligned(m: Ints, places: Ints, minus: NDArray[np.bool_]) -> Ints:
    """Return m / 2^places rounded to nearest, with ties up, or down where `minus` is set."""
    near = np.minimum(places, _FARTHEST - 1)
    half = np.where(near > 0, (1 << np.maximum(near - 1, 0)) - minus, 0)
    return np.where(places < _FARTHEST, (m + half) >> near, 0)


def _leading(m: Ints) -> Ints:
    """Return the exponent of the leading bit of m > 0, below 2^53."""
    return np.frexp(m.astype(np.float64))[1].astype(np.int64) - 1
