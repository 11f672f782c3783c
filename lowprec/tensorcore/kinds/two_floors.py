"""``two_floors``: CDNA3's matrix cores."""

from __future__ import annotations

from ...kernels.tensorcore import amd_dot
from ..accumulator import Accumulator, Kind, StepError
from ..integers import bits_of, by_rows, result_layout, take_apart, values_of
from ..order import Particular, Products, Sum
from ..product import Matrix, Product

_WIDE_BITS = 31  # fraction bits of the sum before it is rounded


class TwoFloors(Kind):
    """`run` interleaved partial sums, joined with C by cutting downwards."""

    name = "two_floors"
    words = "products cut toward zero, then joined with C by cutting downwards, one rounding"
    oracle = "FlooredSum"
    has_fraction_bits = True
    own_fields = frozenset({"run"})

    def instruction(self, accumulator: Accumulator, state: Sum | str, start: int) -> Sum:
        """Sum products that were cut, and join the sum with C."""
        bits, run = accumulator.fraction_bits, accumulator.run
        words = "aligned to the largest exponent", f"cut toward zero, {bits} fraction bits kept", "added exactly"
        lanes = [Products(tuple(range(start + i, start + accumulator.group, run))) for i in range(run)]
        parts = [Sum(words, (lane,), Particular("cut", (bits,))) for lane in lanes]
        join = Particular("joined", (bits, run))
        joined = parts[0] if run == 1 else Sum(("aligned, cut downwards, added",), tuple(parts), join)
        last = f"aligned, cut downwards: C to {bits} bits", "added, cut to 31 bits, rounded to float32"
        return Sum(last, (state, joined), Particular("joined with C", (bits, run)))

    def step_error(self, accumulator: Accumulator) -> StepError:
        """Return that of products cut once, of two joints and C cut downwards, and of two roundings of the sum.

        A zero C takes part with float32's smallest exponent; one that is dropped is worth less than a cut.
        """
        lost = (accumulator.group + 4) * 2.0**-accumulator.fraction_bits + 2.0**-_WIDE_BITS
        last = 2.0**-24 + 2.0**-_WIDE_BITS
        return StepError(lost + last * (1 + lost), 2 * lost * 2.0**-126 + 2.0**-149)

    def reference(self, accumulator: Accumulator, product: Product) -> Matrix:
        """Return one chain over all K; with two partial sums a C far below the others is dropped."""
        p, group = product, accumulator.group
        left, right = take_apart(p.a, p.fa, group), take_apart(p.b, p.fb, group)
        state, layout = bits_of(p.start), result_layout(accumulator, nearest=True)
        low_bits = p.fa.mantissa_bits + p.fb.mantissa_bits
        window = accumulator.fraction_bits + 1 if accumulator.run > 1 else 1 << 20

        rule = amd_dot.Floors(low_bits, group, accumulator.run, accumulator.fraction_bits, _WIDE_BITS, window)

        def piece(start: int, stop: int) -> None:
            amd_dot.floored_dot(left, right, rule, layout, state, start, stop)

        by_rows(piece, p)
        return values_of(state, accumulator)
