"""AMD's matrix units, CDNA and RDNA.

`ExactGroupSum` is CDNA1, `PairwiseSum` CDNA2, `TruncateFloorSum` CDNA3, `OnesComplementSum` RDNA3 and `FlooredPairSum`
RDNA4.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ...format.catalogue import Format
from ...kernels.tensorcore.bounds.chains import FLOORED, BlockError
from ...kernels.tensorcore.dots.tile import ExactPairs, ExactQuads, Form, Pairs, PairsOfPairs
from ...kernels.tensorcore.reference import amd, rdna
from ...order.summation_tree import KindSpecific, ProductLeaf, SingleRounding, SumNode
from ..accumulator import BFLOAT16, FLOAT16, FLOAT32, Accumulator, StepError
from ..engines.columns import ColumnEngine
from ..engines.dots import DotSum
from ..engines.reference import decompose, from_bits, parallel_over_rows, result_layout, to_bits
from ..problem import Float32Matrix, GemmProblem, Matrix, canonical_nan

_EXACT_FORMS: dict[int, type[Form]] = {2: ExactPairs, 4: ExactQuads}  # by group size


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class ExactGroupSum(DotSum):
    """Exact sums of a group and C, each rounded once: CDNA1."""

    group_size: int = 4

    summary = "exact sum of a group and C, one rounding to nearest even"
    oracle_class = "ExactGroups"

    def instruction(self, state: SumNode | str, start: int) -> SumNode:
        """Return an exact sum of a group and C."""
        products = ProductLeaf(tuple(range(start, start + self.group_size)))
        return SumNode(("exact sum", "rounded to nearest even, float32"), (state, products), SingleRounding(zeros="+0"))

    def step_error(self) -> StepError:
        """Return the bound for a single rounding, half an ulp."""
        return StepError(2.0**-24, 2.0**-149)

    def reference(self, p: GemmProblem) -> Matrix:
        """Return one chain: exact sums of a group and C, each rounded to nearest even."""
        x, y, state = self.values(p.a, p.fa), self.values(p.b, p.fb), np.array(p.start)
        parallel_over_rows(lambda start, stop: amd.exact_group_dot(x, y, self.group_size, state, start, stop), p)
        return canonical_nan(state)

    def dots_form(self) -> type[Form] | None:
        """Return the form of `DotEngine` for groups of two or four, else None."""
        return _EXACT_FORMS.get(self.group_size)


_PAIR_FORMS: dict[int, type[Form]] = {2: Pairs, 4: PairsOfPairs}  # by group size
_ADD = SingleRounding(flushes="cdna2")


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class PairwiseSum(DotSum):
    """Float32 additions of neighbours, with subnormals flushed: CDNA2."""

    group_size: int = 4

    summary = "float32 additions of adjacent products, subnormals flushed to zero"
    oracle_class = "FlushedPairs"
    zero_c_is_positive = True

    def instruction(self, state: SumNode | str, start: int) -> SumNode:
        """Return a pairwise sum of the group, then the addition of C."""
        items: list[SumNode | ProductLeaf] = [ProductLeaf((k,)) for k in range(start, start + self.group_size)]
        while len(items) > 1:
            pairs = [tuple(items[i : i + 2]) for i in range(0, len(items), 2)]
            items = [SumNode(("+ in float32",), pair, _ADD) if len(pair) > 1 else pair[0] for pair in pairs]
        return SumNode(("+ in float32",), (state, items[0]), _ADD)

    def step_error(self) -> StepError:
        """Return the bound for a product's roundings: the depth of the tree plus two, with a flush for each."""
        roundings = 2 + (self.group_size - 1).bit_length()
        flushes = 2 * self.group_size + 1
        return StepError((1 + 2.0**-24) ** roundings - 1, 2 * flushes * 2.0**-126, 2.0**-24)

    def values(self, codes: Matrix, fmt: Format) -> Float32Matrix:
        """Return the decoded values, with +0 for subnormals."""
        x = super().values(codes, fmt)
        x[np.abs(x) < fmt.smallest_normal] = 0
        return x

    def reference(self, p: GemmProblem) -> Matrix:
        """Return one chain; subnormals in operands and C become +0, and those in results zeros of their sign."""
        x, y, state = self.values(p.a, p.fa), self.values(p.b, p.fb), np.array(p.start)
        parallel_over_rows(lambda start, stop: amd.pairwise_dot(x, y, self.group_size, state, start, stop), p)
        return canonical_nan(state)

    def dots_form(self) -> type[Form] | None:
        """Return the form of `DotEngine` for groups of two or four, else None."""
        return _PAIR_FORMS.get(self.group_size)


_WIDE_BITS = 31  # fraction bits of the sum before it is rounded
# If the smaller of two products of 8-bit formats has bits below those that are kept, it is less than half an ulp of the
# larger, which has no bits there; a test checks all pairs.
_ROUNDS_PAIRS = 31
#: Bits of the result for a NaN operand, and the mask of a result's bits, by format of the results.
SPECIAL = {
    "float32": (0xFFC00A3D, 0xFFFFFFFF), "float16": (0xFE3D, 0xFFFF), "bfloat16": (0xFFFD0000, 0xFFFF0000),
}  # fmt: skip
_C_BITS = 23  # fraction bits of float32: C is not truncated if its exponent is the largest


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class TruncateFloorSum(Accumulator):
    """Products truncated toward zero, then added to C by rounding toward minus infinity: CDNA3.

    Parameters
    ----------
    group_size : int
        Products per sum, 1 to 1024.
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
    engines = (ColumnEngine,)

    def instruction(self, state: SumNode | str, start: int) -> SumNode:
        """Return a sum of truncated products, then its addition to C."""
        bits, run = self.fraction_bits, min(self.lanes, self.group_size)  # more lanes would be empty
        words = "aligned to the largest exponent", f"cut toward zero, {bits} fraction bits kept", "added exactly"
        lanes = [ProductLeaf(tuple(range(start + i, start + self.group_size, run))) for i in range(run)]
        parts = [SumNode(words, (lane,), KindSpecific("cut", (bits,), kept=bits)) for lane in lanes]
        join = KindSpecific("joined", (bits, run), kept=bits)
        joined = parts[0] if run == 1 else SumNode(("aligned, cut downwards, added",), tuple(parts), join)
        last = f"aligned, cut downwards: C to {bits} bits", "added, cut to 31 bits, rounded to float32"
        pairs = bits >= _ROUNDS_PAIRS
        whole = KindSpecific("joined with C", (_WIDE_BITS,), rounds_pairs=pairs)
        kept = bits if bits >= _C_BITS else None  # all bits of C are kept, and the window drops none
        how = KindSpecific("joined with C", (bits, int(self.lanes > 1)), pairs, kept, whole, cuts_first=True)
        return SumNode(last, (state, joined), how)

    def step_error(self) -> StepError:
        """Return the bound for truncated products, for two sums and C rounded down, and for two roundings of the sum.

        A zero C takes part with float32's smallest exponent; a C that is dropped is smaller than one truncation.
        """
        lost = (self.group_size + 4) * 2.0**-self.fraction_bits + 2.0**-_WIDE_BITS
        last = 2.0**-24 + 2.0**-_WIDE_BITS
        return StepError(lost + last * (1 + lost), 2 * lost * 2.0**-126 + 2.0**-149)

    def block_length(self) -> int:
        """Return the number of products of one instruction."""
        return self.step()

    def block_error(self) -> BlockError:
        """Return the error bound of the alignment; products with no bits below those kept, and their sum, are exact."""
        return BlockError(
            FLOORED, unit=2.0**-self.fraction_bits, least=2.0**-126, cut=2.0**-_WIDE_BITS, last=2.0**-24,
            absolute=2.0**-149,
        )  # fmt: skip

    def reference(self, p: GemmProblem) -> Matrix:
        """Return one chain over all K; with two partial sums, a C far below them is dropped."""
        group = self.group_size
        left, right = decompose(p.a, p.fa, group), decompose(p.b, p.fb, group)
        state, layout = to_bits(p.start), result_layout(self, nearest=True)
        low_bits = p.fa.mantissa_bits + p.fb.mantissa_bits
        rule = amd.Floors(low_bits, group, self.lanes, self.fraction_bits, _WIDE_BITS, self.window)

        def piece(start: int, stop: int) -> None:
            amd.floored_dot(left, right, rule, layout, state, start, stop)

        parallel_over_rows(piece, p)
        return from_bits(state, self)

    @property
    def window(self) -> int:
        """Largest distance of C's exponent below the largest exponent at which C is not dropped."""
        return self.fraction_bits + 1 if self.lanes > 1 else 1 << 20


class RdnaSum(Accumulator):
    """Base class of RDNA's sums, whose last kept bit depends on the operands' exponents and on leading bits.

    A NaN operand gives 0xFFC00A3D (0xFE3D in float16, 0xFFFD in bfloat16), an invalid operation the default NaN with a
    sign, and a NaN in C is returned as a quiet NaN with its payload. Results in bfloat16, and C, are the upper halves
    of float32 words; the lower half of C is ignored.
    """

    fraction_bits: int
    leading_bits: int
    output_format: Format

    output_formats = (FLOAT32, FLOAT16, BFLOAT16)
    has_canonical_nan = False

    def step_error(self) -> StepError:
        """Return the bound for terms truncated once (in pairs twice), a rounded sum, and flushed subnormals."""
        unit = max(2.0**-self.fraction_bits, 2.0**-self.leading_bits)
        lost, last = 2 * (self.group_size + 1) * unit, 2.0**-24
        if self.output_format == FLOAT16:  # no result is flushed
            last = 2.0**-11
            return StepError(lost + last * (1 + lost), FLOAT16.smallest_subnormal + lost * FLOAT16.smallest_normal)
        if self.output_format == BFLOAT16:
            last += 2.0**-7 * (1 + last)  # rounded to float32, then truncated
        return StepError(lost + last * (1 + lost), 2.0**-125)

    def values(self, codes: Matrix, fmt: Format) -> Float32Matrix:
        """Return the decoded values, with zeros for subnormals of `daz_formats`."""
        x = super().values(codes, fmt)
        if self.is_daz(fmt):
            np.copysign(np.float32(0), x, out=x, where=np.abs(x) < fmt.smallest_normal)
        return x

    def last_rounding(self) -> str:
        """Return the description of a sum's rounding to the format of results."""
        return f"rounded to {self.stored_format}" + (
            ", truncated to bfloat16" if self.output_format == BFLOAT16 else ""
        )

    @abstractmethod
    def least_exponent(self) -> int:
        """Return the smallest exponent with which C takes part in the alignment, or `rdna.NOTHING`."""

    def run(self, dot: Callable[..., None], p: GemmProblem) -> Matrix:
        """Return one chain computed by a kernel of `reference.rdna`."""
        left, right = self._parts(p.a, p.fa), self._parts(p.b, p.fb)
        grids = rdna.Grids(
            p.fa.mantissa_bits + p.fb.mantissa_bits, self.group_size, self.fraction_bits, self.leading_bits,
            self.least_exponent(), *SPECIAL[self.output_format.name],
        )  # fmt: skip
        state, layout = to_bits(p.start) & np.uint32(grids.kept), result_layout(self, nearest=True)
        layout = layout._replace(keep=layout.fraction)  # bfloat16 is the upper half of a float32 result
        parallel_over_rows(lambda start, stop: dot(left, right, grids, layout, state, start, stop), p)
        return from_bits(state, self)

    def _parts(self, codes: Matrix, fmt: Format) -> rdna.SignedParts:
        parts = decompose(codes, fmt, self.group_size)
        if self.is_daz(fmt):
            parts.significand[(codes & fmt.code_dtype.type(fmt.sign_mask - 1)) < (1 << fmt.mantissa_bits)] = 0
        return rdna.SignedParts(*parts, (codes & fmt.sign_mask) != 0)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class OnesComplementSum(RdnaSum):
    """Sum of truncated terms, in which terms with the sign opposite to C's are ones' complements: RDNA3.

    A term with C's sign contributes its magnitude m, a term with the opposite sign -(m + 1), even if it is zero. The
    total is rounded to nearest even; subnormals of C and subnormal results become zeros.

    Parameters
    ----------
    group_size : int
        Products per sum, 1 to 1024.
    fraction_bits, leading_bits : int
        Bits kept below the largest sum of two operands' exponents, and below the largest leading bit of a term.
    daz_formats : sequence of Format or str
        Formats whose subnormal operands are read as zeros.
    output_format : Format or str
        Format of a result and of C: ``float32``; ``float16``, with subnormals and with -14 as C's least exponent; or
        ``bfloat16``, to which every float32 result is truncated.
    """

    group_size: int = 2
    fraction_bits: int = 24
    leading_bits: int = 26
    output_format: Format = FLOAT32
    daz_formats: tuple[Format, ...] = ()

    summary = "terms truncated toward zero; those of the other sign than C as ones' complements; one rounding"
    oracle_class = "SignFrame"

    def instruction(self, state: SumNode | str, start: int) -> SumNode:
        """Return one sum of the group and C."""
        words = "aligned, cut toward zero", "the other sign than C's: -(m + 1)", f"added, {self.last_rounding()}"
        # The number of products matters even where they are zeros, each of which may count -1.
        numbers = self.fraction_bits, self.leading_bits, len(self.daz_formats), self.group_size, self.output_bits
        how = KindSpecific("ones' complement", numbers)
        return SumNode(words, (state, ProductLeaf(tuple(range(start, start + self.group_size)))), how)

    def least_exponent(self) -> int:
        """Return float16's; without a limit, subnormals are flushed."""
        return FLOAT16.emin if self.output_format == FLOAT16 else rdna.NOTHING

    def reference(self, p: GemmProblem) -> Matrix:
        """Return one chain, computed in integers."""
        return self.run(rdna.framed_dot, p)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class FlooredPairSum(RdnaSum):
    """Pairs of products are rounded down and added, then rounded down with C, added and rounded to nearest: RDNA4.

    Parameters
    ----------
    group_size : int
        Products per sum, 1 to 1024: pairs of consecutive k.
    fraction_bits, leading_bits : int
        Bits kept below the largest exponent of a pair's products (the sum of the operands' exponents), and below C's
        leading bit.
    group_order : tuple of int
        Order in which the groups of an instruction are added; empty: increasing.
    output_format : Format or str
        Format of a result and of C: ``float32``, ``float16``, or ``bfloat16``, truncated from float32.
    """

    group_size: int = 4
    fraction_bits: int = 24
    leading_bits: int = 26
    output_format: Format = FLOAT32
    group_order: tuple[int, ...] = ()

    summary = "pairs of products, rounded down and added, then rounded down with C and added; one rounding"
    oracle_class = "FlooredPairs"

    def check(self) -> None:
        """Check that the order is a permutation, and that promotions occur between instructions."""
        caller = f"FlooredPairSum {self.name}"
        object.__setattr__(self, "group_order", tuple(int(i) for i in self.group_order))
        if sorted(self.group_order) != list(range(len(self.group_order))):
            raise ValueError(f"{caller}: group_order must be a permutation of 0, 1, ..., got {self.group_order}")
        if self.promote_every is not None and self.promote_every % self.step():
            raise ValueError(f"{caller}: promote_every must be a multiple of {self.step()}, got {self.promote_every}")

    def step(self) -> int:
        """Return the number of products of one instruction."""
        return self.group_size * max(len(self.group_order), 1)

    def steps(self, k: int) -> int:
        """Return the number of sums in a chain of k products."""
        return -(-k // self.step()) * max(len(self.group_order), 1)

    def instruction(self, state: SumNode | str, start: int) -> SumNode:
        """Return the sums of an instruction's groups: of pairs of products, then of the pairs and C."""
        bits, found = self.fraction_bits, state
        for group in self.group_order or (0,):
            first = start + group * self.group_size
            pairs = [ProductLeaf(tuple(range(k, min(k + 2, first + self.group_size))))
                     for k in range(first, first + self.group_size, 2)]  # fmt: skip
            cut = KindSpecific("floored pair", (bits,))
            sums = [SumNode(("aligned, rounded down, added",), (pair,), cut) for pair in pairs]
            words = "aligned to C or the largest product", "rounded down, added", self.last_rounding()
            numbers = bits, self.leading_bits, self.output_bits
            found = SumNode(words, (found, *sums), KindSpecific("floored with C", numbers))
        assert isinstance(found, SumNode)
        return found

    def least_exponent(self) -> int:
        """Return the exponent of the smallest normal number."""
        return self.stored_format.emin

    def reference(self, p: GemmProblem) -> Matrix:
        """Return one chain, computed in integers."""
        if self.group_order:
            p = p._replace(a=self._in_order(p.a), b=self._in_order(p.b))
        return self.run(rdna.floored_pair_dot, p)

    def _in_order(self, codes: Matrix) -> Matrix:
        """Return codes [R, K], zero-padded to whole instructions, with their groups in order of addition."""
        rows, k = codes.shape
        padded = np.zeros((rows, -(-k // self.step()), len(self.group_order), self.group_size), codes.dtype)
        padded.reshape(rows, -1)[:, :k] = codes
        return np.ascontiguousarray(padded[:, :, list(self.group_order)].reshape(rows, -1))
