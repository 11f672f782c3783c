"""AMD's matrix cores: `ExactGroupSum` (CDNA1), `PairwiseSum` (CDNA2) and `TruncateFloorSum` (CDNA3)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...format.catalogue import Format
from ...kernels.tensorcore.dots.tile import ExactPairs, ExactQuads, Form, Pairs, PairsOfPairs
from ...kernels.tensorcore.reference import amd
from ..accumulator import Accumulator, StepError
from ..engines.columns import Columns
from ..engines.dots import DotSum
from ..engines.reference import bits_of, by_rows, result_layout, take_apart, values_of
from ..order import Particular, Products, Rounded, Sum
from ..problem import Float32Matrix, GemmProblem, Matrix, canonical_nan

_EXACT_FORMS: dict[int, type[Form]] = {2: ExactPairs, 4: ExactQuads}  # by group size


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class ExactGroupSum(DotSum):
    """Exact sums of a group and C, each rounded once: CDNA1."""

    group_size: int = 4

    summary = "exact sum of a group and C, one rounding to nearest even"
    oracle_class = "ExactGroups"

    def instruction(self, state: Sum | str, start: int) -> Sum:
        """Return an exact sum of a group and C."""
        products = Products(tuple(range(start, start + self.group_size)))
        return Sum(("exact sum", "rounded to nearest even, float32"), (state, products), Rounded(zeros="+0"))

    def step_error(self) -> StepError:
        """Return half an ulp."""
        return StepError(2.0**-24, 2.0**-149)

    def reference(self, p: GemmProblem) -> Matrix:
        """Return one chain: exact sums of a group and C, each rounded to nearest even."""
        x, y, state = self.values(p.a, p.fa), self.values(p.b, p.fb), np.array(p.start)
        by_rows(lambda start, stop: amd.exact_group_dot(x, y, self.group_size, state, start, stop), p)
        return canonical_nan(state)

    def dots_form(self) -> type[Form] | None:
        """Return the form for groups of two or four."""
        return _EXACT_FORMS.get(self.group_size)


_PAIR_FORMS: dict[int, type[Form]] = {2: Pairs, 4: PairsOfPairs}  # by group size
_ADD = Rounded(flushes="cdna2")


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class PairwiseSum(DotSum):
    """Float32 additions of neighbours, with subnormals flushed: CDNA2."""

    group_size: int = 4

    summary = "float32 additions of adjacent products, subnormals flushed to zero"
    oracle_class = "FlushedPairs"
    zero_c_is_positive = True

    def instruction(self, state: Sum | str, start: int) -> Sum:
        """Return a pairwise sum of the group, then the addition of C."""
        items: list[Sum | Products] = [Products((k,)) for k in range(start, start + self.group_size)]
        while len(items) > 1:
            pairs = [tuple(items[i : i + 2]) for i in range(0, len(items), 2)]
            items = [Sum(("+ in float32",), pair, _ADD) if len(pair) > 1 else pair[0] for pair in pairs]
        return Sum(("+ in float32",), (state, items[0]), _ADD)

    def step_error(self) -> StepError:
        """Return the bound for the roundings of a product: the depth of the tree plus two, each with a flush."""
        roundings = 2 + (self.group_size - 1).bit_length()
        flushes = 2 * self.group_size + 1
        return StepError((1 + 2.0**-24) ** roundings - 1, 2 * flushes * 2.0**-126)

    def values(self, codes: Matrix, fmt: Format) -> Float32Matrix:
        """Return the values, with +0 for subnormals."""
        x = super().values(codes, fmt)
        x[np.abs(x) < fmt.smallest_normal] = 0
        return x

    def reference(self, p: GemmProblem) -> Matrix:
        """Return one chain; subnormals in operands and C become +0, those in results keep their sign as zeros."""
        x, y, state = self.values(p.a, p.fa), self.values(p.b, p.fb), np.array(p.start)
        by_rows(lambda start, stop: amd.pairwise_dot(x, y, self.group_size, state, start, stop), p)
        return canonical_nan(state)

    def dots_form(self) -> type[Form] | None:
        """Return the form for groups of two or four."""
        return _PAIR_FORMS.get(self.group_size)


_WIDE_BITS = 31  # fraction bits of the sum before it is rounded
# If the smaller of two products of 8-bit formats has bits below those that are kept, it is less than half an ulp of the
# larger, which has no bits there; a test checks all pairs.
_ROUNDS_PAIRS = 31
_C_BITS = 23  # fraction bits of float32: C is not truncated if its exponent is the largest


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class TruncateFloorSum(Accumulator):
    """Products truncated toward zero, then added to C by rounding toward minus infinity: CDNA3.

    Parameters
    ----------
    group : int
        Products per sum, 1 to 256.
    fraction_bits : int
        Fraction bits kept below the largest exponent, 3 to 40.
    lanes : int
        Number of interleaved partial sums.
    """

    group_size: int = 8
    fraction_bits: int = 24
    lanes: int = 1

    summary = "products truncated toward zero and summed; sum and C truncated down and added; one rounding"
    oracle_class = "FlooredSum"
    engines = (Columns,)

    def instruction(self, state: Sum | str, start: int) -> Sum:
        """Return a sum of truncated products, then its addition to C."""
        bits, run = self.fraction_bits, min(self.lanes, self.group_size)  # further partial sums would be empty
        words = "aligned to the largest exponent", f"cut toward zero, {bits} fraction bits kept", "added exactly"
        lanes = [Products(tuple(range(start + i, start + self.group_size, run))) for i in range(run)]
        parts = [Sum(words, (lane,), Particular("cut", (bits,), kept=bits)) for lane in lanes]
        join = Particular("joined", (bits, run), kept=bits)
        joined = parts[0] if run == 1 else Sum(("aligned, cut downwards, added",), tuple(parts), join)
        last = f"aligned, cut downwards: C to {bits} bits", "added, cut to 31 bits, rounded to float32"
        pairs = bits >= _ROUNDS_PAIRS
        whole = Particular("joined with C", (_WIDE_BITS,), rounds_pairs=pairs)
        kept = bits if bits >= _C_BITS else None  # and C is not dropped for a window of one more
        how = Particular("joined with C", (bits, int(self.lanes > 1)), pairs, kept, whole, cuts_first=True)
        return Sum(last, (state, joined), how)

    def step_error(self) -> StepError:
        """Return the bound for truncated products, two additions and C rounded down, and two roundings of the sum.

        A zero C takes part with float32's smallest exponent; a C that is dropped is smaller than one truncation.
        """
        lost = (self.group_size + 4) * 2.0**-self.fraction_bits + 2.0**-_WIDE_BITS
        last = 2.0**-24 + 2.0**-_WIDE_BITS
        return StepError(lost + last * (1 + lost), 2 * lost * 2.0**-126 + 2.0**-149)

    def reference(self, p: GemmProblem) -> Matrix:
        """Return one chain over all K; with two partial sums, a C far below them is dropped."""
        group = self.group_size
        left, right = take_apart(p.a, p.fa, group), take_apart(p.b, p.fb, group)
        state, layout = bits_of(p.start), result_layout(self, nearest=True)
        low_bits = p.fa.mantissa_bits + p.fb.mantissa_bits
        rule = amd.Floors(low_bits, group, self.lanes, self.fraction_bits, _WIDE_BITS, self.window)

        def piece(start: int, stop: int) -> None:
            amd.floored_dot(left, right, rule, layout, state, start, stop)

        by_rows(piece, p)
        return values_of(state, self)

    @property
    def window(self) -> int:
        """Largest difference by which C's exponent may be below the largest without C being dropped."""
        return self.fraction_bits + 1 if self.lanes > 1 else 1 << 20
