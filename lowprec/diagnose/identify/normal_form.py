"""Normal forms of candidates: two candidates with the same form give the same outputs for all operands.

A form is the tree of a candidate's operations on K products (`Accumulator.chain`) without steps that have no effect:
rounding of exact values, alignment without lost bits, zeros that do not affect the alignment, handling of subnormals
that do not occur, saturation that is not reached, and signs of zeros that are added to +0. The formats' values, K and
the presence of C determine which steps have an effect. NaN and Inf give the same class of output in any order.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...format.catalogue import Format, formats
from ...order.summation_tree import AlignedAddition, KindSpecific, ProductLeaf, SingleRounding, SumNode
from ...tensorcore.accumulator import FLOAT64, Accumulator
from ...tensorcore.library import GemmLibrary
from ..deadline import Deadline
from .candidate import Candidate
from .dump import GemmDump
from .number_range import (
    ALIGNED,
    BITS,
    FINITE,
    LARGEST,
    LEAST,
    NumberRange,
    cut_is_invisible,
    exponent_of,
    holds_all,
    is_lossless,
)
from .search import plain_fields_of

_TABLE_BITS = 16  # formats with a table of all values
_ONE = ProductLeaf((0,))


@dataclass(frozen=True)
class _Operands:
    """Bounds of one operand's values."""

    table: bytes
    unit: int  # exponent of the last bit of the least significand, in the alignment
    least: int  # exponents of the least and the largest number in the alignment
    most: int
    bound: float
    bits: int  # number of significant bits


class NormalForms:
    """Normal forms of candidates for the formats, the K and the C of a dump; each form is a number.

    Parameters
    ----------
    dump : GemmDump
    deadline : Deadline, optional
        Time after which nothing is proven: every further candidate has a unique form.

    Examples
    --------
    >>> import numpy as np, lowprec as lp
    >>> from lowprec.diagnose.identify.candidate import MmaCandidate
    >>> ones = np.full((1, 64), 0x38, np.uint8)
    >>> one = np.ones((1, 1), np.float32)
    >>> found = lp.identify(ones, ones, None, 64 * one, a_format="e4m3fn", b_format="e4m3fn")
    >>> forms = NormalForms(found.dumps[0])
    >>> groups = MmaCandidate(lp.accumulators["cdna1_bf16"].with_(input_formats=(), group_size=2, promote_every=2))
    >>> forms.same(groups, MmaCandidate(lp.accumulators["arm_bf16_ebf"].with_(input_formats=())))
    True
    """

    def __init__(self, dump: GemmDump, deadline: Deadline | None = None) -> None:
        self.dump, self._deadline = dump, deadline
        self._numbers: dict[Hashable, int] = {}
        self._known: dict[Any, int] = {}

    def same(self, one: Candidate, other: Candidate) -> bool:
        """Return whether two candidates provably give the same outputs for all operands."""
        return self.of(one) == self.of(other)

    def of(self, candidate: Candidate) -> int:
        """Return the number of a candidate's form."""
        key = candidate.key()
        if key not in self._known:
            late = self._deadline is not None and self._deadline.passed
            self._known[key] = self._number(("not proven", key)) if late else self._form(candidate)
        return self._known[key]

    def classes(self, candidates: Iterable[Candidate]) -> tuple[tuple[Candidate, ...], ...]:
        """Return candidates in sets of those with the same form, in the order of the first of each."""
        found: dict[int, list[Candidate]] = {}
        for candidate in candidates:
            found.setdefault(self.of(candidate), []).append(candidate)
        return tuple(map(tuple, found.values()))

    def _number(self, key: Hashable) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    # Candidates

    def _form(self, candidate: Candidate) -> int:
        m, library, dump = candidate.accumulator, candidate.library, self.dump
        sides = None if dump.scales is not None else _sides(m, dump)
        has_form = library is None or (library.has_usual_parts and not dump.scaled)  # as `within` adds them
        if sides is None or not dump.k or not has_form:
            return self._as_it_is(candidate)
        chain = _Chain(self, m, *sides)
        addend = chain.zero if dump.c is None else chain.addend(dump.c.dtype.name)
        if library is not None:
            total = chain.within(library, dump, addend)
        elif m.promote_every is None:
            total = chain.of(range(dump.k), addend)
        else:
            total = chain.sum(
                SingleRounding(m.stored_format.name), (chain.promoted(range(dump.k), m.promote_every, addend),)
            )
        # Products and promoted sums have the canonical NaN, whichever an instruction returns.
        has_payload = not m.has_canonical_nan and library is None and m.promote_every is None
        return self._number((sides[0].table, sides[1].table, total.form, has_payload))

    def _as_it_is(self, candidate: Candidate) -> int:
        m, library = candidate.accumulator, candidate.library
        around = None if library is None else replace(library, promote_every=None)
        fields = tuple(plain_fields_of(candidate, self.dump).items())
        return self._number(("as it is", type(m), m.accepts(formats["tf32"]), around, fields))


def _sides(m: Accumulator, dump: GemmDump) -> tuple[_Operands, _Operands] | None:
    """Return bounds of both operands; None if products are not float32 numbers, or cannot be separated."""
    if FLOAT64 in (dump.fa, dump.fb):
        return None
    found = [_operands(m, fmt) for fmt in (dump.fa, dump.fb)]
    if any(side is None for side in found):
        return None
    a, b = (side for side in found if side is not None)
    plain = a.bits + b.bits <= 24 and a.unit + b.unit >= -126 and a.bound * b.bound < 2.0**127
    return (a, b) if plain else None


def _operands(m: Accumulator, fmt: Format) -> _Operands | None:
    if fmt.bits > _TABLE_BITS or fmt.is_integer:
        return None
    values = m.values(np.arange(1 << fmt.bits).astype(fmt.code_dtype), fmt)
    table = np.where(np.isnan(values), np.nan, values)
    unit = fmt.emin - fmt.mantissa_bits
    bound = float(np.abs(table[np.isfinite(table)]).max())
    return _Operands(table.tobytes(), unit, fmt.emin, fmt.emax, bound, fmt.mantissa_bits + 1)


def _interleaved(k: int, step: int) -> list[int]:
    """Return K in interleaved order: in every two steps, indices with k % 4 in {0, 1} come first; -1 is padding."""
    places = (
        start + i for start in range(0, k, 2 * step) for half in (0, 1) for i in range(2 * step) if i % 4 // 2 == half
    )
    return [place if place < k else -1 for place in places]


class _Chain:
    """Summation trees of one accumulator, as `NumberRange` objects."""

    def __init__(self, forms: NormalForms, m: Accumulator, a: _Operands, b: _Operands) -> None:
        self._forms, self._m, self._a, self._b = forms, m, a, b
        number = forms._number("+0")
        self._products: set[int] = set()  # the forms of products alone
        self.zero = NumberRange(number, number, (), 0, 0.0, -10_000, "float16", True)

    def addend(self, dtype: str) -> NumberRange:
        """Return the range of C: any number of a dtype."""
        number = self._forms._number(("C", dtype))
        bound = float(np.finfo(dtype).max)
        least, bits = LEAST[dtype], BITS[dtype]
        return NumberRange(
            number, number, (number,), least, bound, exponent_of(bound), dtype, False, bits, least + bits - 1,
            ALIGNED[dtype],
        )  # fmt: skip

    def of(self, ks: Sequence[int], start: NumberRange) -> NumberRange:
        """Return the result of a chain over products in the given order, from a start."""
        state = start
        for tree in self._m.chain(len(ks)):
            state = self._tree(tree, ks, state)
        return state

    def promoted(self, ks: Sequence[int], every: int, start: NumberRange) -> NumberRange:
        """Return the float32 sum of a start and chains of `every` products, each from +0."""
        total = start
        for first in range(0, len(ks), every):
            total = self.sum(SingleRounding(), (total, self.of(ks[first : first + every], self.zero)))
        return total

    def within(self, library: GemmLibrary, dump: GemmDump, addend: NumberRange) -> NumberRange:
        """Return the result of `lowprec.gemm` for chains, with scales that are all 1."""
        m, ks, out = self._m, list(range(dump.k)), SingleRounding(dump.out.name)
        if library.k_order == "interleaved":
            ks = _interleaved(dump.k, m.step())
        every = m.promote_every or library.promote_every or len(ks)
        parts = [
            self.promoted(ks[start:stop], every, self.zero) for start, stop in library.parts(len(ks), library.split_k)
        ]
        rounds = library.split_k_reduction == "out" and len(parts) > 1
        total = parts[0]
        if rounds:
            total = self.sum(out, (self.sum(SingleRounding(), (total, addend)),))
        for part in parts[1:]:
            total = self.sum(SingleRounding(), (total, self.sum(out, (part,)) if rounds else part))
            total = self.sum(out, (total,)) if rounds else total
        return total if rounds else self.sum(out, (self.sum(SingleRounding(), (total, addend)),))

    def _tree(self, tree: SumNode, ks: Sequence[int], state: NumberRange) -> NumberRange:
        if (pair := self._rounded_pair(tree, ks, state)) is not None:
            return self.sum(SingleRounding(zeros="+0"), pair, True)
        inside: list[NumberRange] = []
        padded = False
        for item in tree.of:
            if isinstance(item, SumNode):
                inside.append(self._tree(item, ks, state))
            elif isinstance(item, str):
                inside.append(state if item == "C" else self.zero)
            else:
                some = [ks[place] if place < len(ks) else -1 for place in item.ks]
                padded |= -1 in some
                inside += [self._product(k, item) for k in some if k >= 0]
        return self.sum(tree.how, inside, padded)

    def _product(self, k: int, item: ProductLeaf) -> NumberRange:
        number = self._forms._number((k, item.exponent))
        self._products.add(number)
        bound = self._a.bound * self._b.bound * 2.0**item.exponent
        unit = self._a.unit + self._b.unit + item.exponent
        plain = unit >= -126 and bound < 2.0**127
        most = self._a.most + self._b.most + item.exponent
        unnormal = max(self._a.most + self._b.least, self._a.least + self._b.most) + item.exponent
        holds, width = "float32" if plain else "", self._a.bits + self._b.bits
        lowest = self._a.least + self._b.least + item.exponent
        return NumberRange(number, number, (number,), unit, bound, most, holds, False, width, unnormal, lowest)

    def _rounded_pair(self, tree: SumNode, ks: Sequence[int], state: NumberRange) -> list[NumberRange] | None:
        """Return the one or two products whose sum a tree rounds to nearest, as a tree of CDNA3 may; else None."""
        if not (isinstance(tree.how, KindSpecific) and tree.how.rounds_pairs and self._a.bits + self._b.bits <= 8):
            return None
        products = [
            self._product(ks[place], _ONE)
            for item in tree.products() for place in item.ks if place < len(ks) and ks[place] >= 0
        ]  # fmt: skip
        if state.unsigned in self._products:
            products.append(state)
        elif state != self.zero:
            return None
        return products if len(products) <= 2 else None

    def sum(
        self, how: SingleRounding | AlignedAddition | KindSpecific, items: Sequence[NumberRange], padded: bool = False
    ) -> NumberRange:
        """Return the sum of some values."""
        if isinstance(how, SingleRounding):
            return self._rounded(how, items, padded)
        if isinstance(how, AlignedAddition):
            return self._aligned(how, items, padded)
        return self._particular(how, items)

    def _width(self, how: AlignedAddition, items: Sequence[NumberRange]) -> int:
        """Return the largest width of a sum of aligned, truncated terms: a product is less than 4 times 2^e."""
        product = (2 - 2.0 ** (1 - self._a.bits)) * (2 - 2.0 ** (1 - self._b.bits))
        most = (
            sum(product if x.unsigned in self._products else 2.0 for x in items) + len(items) * 2.0**-how.fraction_bits
        )
        return how.fraction_bits + int(np.ceil(np.log2(max(most, 1.0))))

    def _particular(self, how: KindSpecific, items: Sequence[NumberRange]) -> NumberRange:
        """Return CDNA3's sum of some values; zeros have no effect on its alignment."""
        unit, most = min((x.unit for x in items), default=0), max((x.most for x in items), default=0)
        if how.kept is not None and how.cuts_first and items:
            first, others = items[0], max((x.most for x in items[1:]), default=items[0].unit)
            if not first.terms or (holds_all("float32", first.holds) and others - how.kept <= first.unit):
                how = how.uncut or how
        elif how.kept is not None and most - how.kept <= unit:
            terms = tuple(sorted(term for x in items for term in x.terms))
            number = self._forms._number(("exactly", terms))
            return NumberRange(number, number, terms, unit, sum(x.bound for x in items), most, "", True)
        number = self._forms._number((how, tuple(sorted(x.form for x in items))))
        bound = min(2 * sum(x.bound for x in items), FINITE["float32"])
        least = max(unit, LEAST["float32"])  # truncation only raises the unit
        most = max(most, exponent_of(bound))
        positive = unit >= LEAST["float32"]  # an exact zero is +0, and no other number becomes zero
        form = self._forms._number(("+0", number)) if positive else number
        return NumberRange(form, number, (number,), least, bound, most, "float32", positive, BITS["float32"], -126)

    def _rounded(self, how: SingleRounding, items: Sequence[NumberRange], padded: bool) -> NumberRange:
        unit, bound = min((x.unit for x in items), default=0), sum(x.bound for x in items)
        bits, least, largest = BITS[how.output], LEAST[how.output], LARGEST[how.output]
        if how.flushes and unit >= -126:
            how = replace(how, flushes="")
        if how.saturates and bound < largest * (1 - 2.0 ** -(bits + 1)):  # the sum cannot be rounded up to the limit
            how = replace(how, saturates=False)
        stays = unit >= (-126 if how.flushes else least)  # no bits are lost, so a zero result is an exact zero
        positive = how.zeros == "+0" or padded or any(x.positive_zero for x in items)  # exact zeros are +0
        positive_zero = stays and positive
        terms = tuple(sorted(term for x in items for term in x.terms))
        if positive_zero and not terms:
            return self.zero
        plain = not how.flushes and stays
        one = [x for x in items if x.terms]
        holds = how.output
        if plain and len(one) == 1 and holds_all(how.output, one[0].holds):  # the term is unchanged
            unsigned, terms, holds = one[0].unsigned, one[0].terms, one[0].holds
        elif plain and bound <= 2.0 ** (unit + bits) and bound < largest:  # exact
            unsigned = terms[0] if len(terms) == 1 else self._forms._number(("exactly", terms))
        else:
            unsigned = self._forms._number((replace(how, zeros=""), terms))
            terms = (unsigned,)
        signs = (how, padded, tuple(sorted(x.form for x in items)))
        sign = "+0" if positive_zero else "+0, but of what is lost" if positive else signs
        form = self._forms._number((sign, unsigned))
        if len(items) == 1 and unsigned == items[0].unsigned and how.zeros == "ieee" and not padded:
            form = items[0].form  # unchanged, including the sign of a zero
        larger = bound if how.rounding == "truncate" else bound * (1 + 2.0 ** (1 - bits))
        larger = min(larger, FINITE[how.output])
        width = min(bits, one[0].width) if len(one) == 1 else bits
        return NumberRange(
            form, unsigned, terms, max(unit, least), larger, exponent_of(larger), holds, positive_zero, width,
            least + bits - 1, ALIGNED[how.output],
        )  # fmt: skip

    def _aligned(self, how: AlignedAddition, items: Sequence[NumberRange], padded: bool) -> NumberRange:
        unit, bound = min((x.unit for x in items), default=0), sum(x.bound for x in items)
        most = max((x.most for x in items), default=unit)
        rounding = "nearest" if how.output == "float16" else "truncate"
        if how.operands and formats[how.operands].emin <= min(self._a.least, self._b.least):
            # With normalized subnormal operands, exponents are smaller: then no bit is cut with either rule.
            unnormal = max((x.unnormal for x in items if x.unsigned in self._products), default=unit)
            if unnormal - how.fraction_bits <= unit:
                how = replace(how, operands="")
        zero = how.zero_exponent
        lowest = {x: x.unit if how.operands else max(x.unit, x.lowest) for x in items}
        # Zeros have no effect on terms with at least their exponent, and cut no bits of the other terms.
        if zero is not None and all(zero <= lowest[x] or zero - how.fraction_bits <= x.unit for x in items):
            how = replace(how, zero_exponent=None)
        elif zero is not None and how.align == rounding == "truncate":
            # Zeros below every product only matter if all products are zeros: they then cut the running sum, which
            # is truncated at the same place or above in any case.
            products = self._a.unit + self._b.unit if how.operands else self._a.least + self._b.least
            if zero <= products and zero - how.fraction_bits <= LEAST[how.output]:
                how = replace(how, zero_exponent=None)
        exact = SingleRounding(how.output, rounding, zeros="+0")
        if max(most, unit if how.zero_exponent is None else how.zero_exponent) - how.fraction_bits <= unit:
            return self._rounded(exact, items, padded)  # no bits are cut
        if how.zero_exponent is None and (
            is_lossless(how, items) or (rounding == "nearest" and cut_is_invisible(how, items))
        ):
            return self._rounded(exact, items, padded)  # the cut does not change the rounded sum
        # If zeros take part in the alignment, every product, zero or not, limits how far down the cut may be.
        held = [] if zero is None else [min(lowest[x], zero) for x in items if x.unsigned in self._products]
        cuts = [max(x.unit, max([lowest[x], *held]) - how.fraction_bits) for x in items]
        cut_to, width = min(cuts, default=unit), self._width(how, items)
        if how.output == "fp22" and width <= BITS["fp22"] and cut_to >= LEAST["fp22"]:
            how = replace(how, output="float32")  # the sum is exact in both
        zeros = how.zero_exponent is not None  # then the number of zeros matters
        shorter = how.align == "truncate" and how.fraction_bits < BITS["fp22"]  # it also cuts the bits that FP22 cut
        entering = tuple(
            sorted(x.uncut if shorter and x.uncut is not None else x.unsigned for x in items if x.terms or zeros)
        )
        number = self._forms._number((how, entering, padded and zeros))
        uncut = self._forms._number((replace(how, output="float32"), entering, padded and zeros))
        cut = 0.0 if how.align == "truncate" else 2.0 ** (most - how.fraction_bits) * len(items)
        larger = min((bound + cut) * (1 + 2.0**-10), FINITE[how.output])
        form = self._forms._number(("+0", number))
        least, bits = LEAST[how.output], BITS[how.output]
        return NumberRange(
            form, number, (number,), max(cut_to, least), larger, exponent_of(larger), how.output, True, bits,
            least + bits - 1, ALIGNED[how.output], uncut if how.output == "fp22" else None,
        )  # fmt: skip
