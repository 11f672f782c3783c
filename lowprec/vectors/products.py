"""Vector sets of products: one dot product on an accumulator, or one output element of a library's GEMM."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ..oracle.accumulators import ACCUMULATORS, FORMATS, Accumulator, ExactSum, Sequential
from ..oracle.libraries import ORDERS, Order
from ..oracle.machines.amd import FlooredSum
from ..oracle.machines.base import Chained, DotRule, Scales
from ..oracle.machines.cpu import Lanes
from ..oracle.machines.fused import Rule as FusedRule
from ..oracle.machines.halves import Halves
from ..oracle.mutants import FP22_MUTANTS, wrong_rules
from ..oracle.values import E4M3FN, FLOAT32, Fields
from .family import Choice, Family, Rule, SetSpec, Stream, one_of
from .operands import FAMILIES, code_of, product_points
from .vectors import Answer, Field, Words, describe


def _length(rule: DotRule) -> int:
    """Return K: at least two groups, so that the chain between them is tested."""
    match rule:
        case FusedRule(group=group) | FlooredSum(group=group) | Lanes(group=group):
            return 2 * group
        case Halves():
            return 64
        case Sequential() | ExactSum():
            return 16
        case Chained(group=group):
            return 4 * group
    raise AssertionError(f"{type(rule).__name__} needs a length of its vectors here")


def dot(machine: Accumulator, rule: DotRule, pair: tuple[Fields, Fields], k: int) -> Answer:
    """Return the function from the words of a, b, c (and scales) to those of d."""

    def answer(words: Words) -> Words:
        scales = None
        if machine.scales is not None:
            fmt, block = machine.scales
            own = words[2 * k + 1 :]
            scales = Scales(own[: k // block], own[k // block :], fmt, block)
        return (rule.dot(words[:k], words[k : 2 * k], words[2 * k], *pair, scales),)

    return answer


def _input(part: str, before: tuple[str, ...]) -> str:
    """Return the name of an input format; ValueError if the accumulator does not take it."""
    inputs = ACCUMULATORS[before[0]].inputs
    return one_of(inputs, f"{before[0]} multiplies")(part, before)


class MmaFamily(Family):
    """Dot products of raw codes plus an addend c."""

    name = "mma"
    choices = (
        Choice("ACCUMULATOR", one_of(ACCUMULATORS, "the oracle has the accumulators")),
        Choice("A_FORMAT", _input, lambda found: ACCUMULATORS[found[0]].inputs[0]),
        Choice("B_FORMAT", _input, lambda found: found[1]),
    )
    about = "mma: one output, the products of K codes of a and b and c, summed as the accumulator does, k from 0 up"
    sets = tuple(f"{name}/{f}/{f}" for name, machine in ACCUMULATORS.items() for f in machine.inputs)

    def _parts(self, parts: Sequence[str]) -> tuple[Accumulator, tuple[Fields, Fields], int]:
        machine = ACCUMULATORS[parts[0]]
        return machine, (FORMATS[parts[1]], FORMATS[parts[2]]), _length(machine.rule)

    def prepare(self, parts: Sequence[str], level: int, seed: int) -> SetSpec:
        """Return the fields, inputs and rule of a set, without its answers."""
        machine, pair, k = self._parts(parts)
        c = machine.rule.c_format
        inputs = [Field.of("a", pair[0], k), Field.of("b", pair[1], k), Field.of("c", c)]
        definition: dict[str, Any] = {
            "K": k, "kind": type(machine.rule).__name__, "rule": plain(machine.rule), "a": describe(pair[0]),
            "b": describe(pair[1]), "c and d": describe(c), "order": "increasing k, a group's sum is the next one's c",
        }  # fmt: skip
        if machine.scales is not None:
            fmt, block = machine.scales
            inputs += [Field.of("a_scale", fmt, k // block), Field.of("b_scale", fmt, k // block)]
            inputs[-2:] = [dataclasses.replace(field, bits=8) for field in inputs[-2:]]
            definition |= {"scales": describe(fmt), "scale block": block}
            definition["bit 7 of a scale"] = "ignored where not a bit of it"
        points = product_points(machine, pair, k, level, Stream(seed, "/".join(("mma", *parts))))
        return SetSpec(definition, tuple(inputs), (Field.of("d", c),), points, dot(machine, machine.rule, pair, k))

    def rules(self, parts: Sequence[str], theirs: Mapping[Words, Words]) -> Iterator[Rule]:
        """Yield the other accumulators of the catalogue, then wrong rules near this one."""
        machine, pair, k = self._parts(parts)
        seen = [machine.rule]
        for name, other in ACCUMULATORS.items():
            rule = other.rule
            fits = rule.c_format == machine.rule.c_format and rule not in seen
            if fits and (machine.scales is None or isinstance(rule, FusedRule)):
                seen.append(rule)
                yield Rule(f"as {name}", dot(machine, rule, pair, k))
        wrong = wrong_rules(machine.rule)
        if isinstance(machine.rule, FusedRule) and machine.rule.output == "fp22":
            wrong |= {words: change(machine.rule) for words, change in FP22_MUTANTS.items()}
        for words, rule in wrong.items():
            if (machine.scales is None or isinstance(rule, FusedRule)) and not _same(machine.rule, rule, pair):
                yield Rule(words, dot(machine, rule, pair, k), True)


def _same(rule: DotRule, wrong: DotRule, pair: tuple[Fields, Fields]) -> bool:
    """Return whether rules that differ in the exponents of zeros agree because no term has bits that they would cut."""
    if not (isinstance(rule, FusedRule) and isinstance(wrong, FusedRule)):
        return False
    if dataclasses.replace(wrong, zero_exponent=rule.zero_exponent) != rule or wrong.zero_exponent is None:
        return False
    least = [1 - f.bias - f.mantissa_bits for f in (*pair, rule.c_format)]
    return min(least[0] + least[1], least[2]) >= wrong.zero_exponent - wrong.fraction_bits


def plain(rule: Any) -> dict[str, Any]:
    """Return a rule's fields as a dictionary, with formats as their fields."""
    return {
        field.name: describe(value) if isinstance(value, Fields) else value
        for field in dataclasses.fields(rule)
        for value in [getattr(rule, field.name)]
    }


_K = 320  # two full tiles of 128 and half a tile


def _unscaled(part: str, before: tuple[str, ...]) -> str:
    """Return the name of an accumulator that the oracle's libraries run on; ValueError for others."""
    found = ACCUMULATORS.get(part)
    if found is None or found.scales is not None or found.rule.c_format != FLOAT32 or "e4m3fn" not in found.inputs:
        raise ValueError(f"accumulator must take e4m3fn, return float32 and take no scales, got {part!r}")
    return part


class GemmFamily(Family):
    """Outputs of scaled products in the order of a GEMM library."""

    name = "gemm"
    choices = (
        Choice("LIBRARY", one_of(ORDERS, "the oracle has the libraries")),
        Choice("ACCUMULATOR", _unscaled, "hopper_fp8"),
    )
    about = "gemm: one float32 output D = A B^T of codes with float32 scales, no C, alpha 1, in the library's order"
    sets = tuple(f"{name}/{machine}" for name in ORDERS for machine in ("hopper_fp8", "ada_fp8"))

    def prepare(self, parts: Sequence[str], level: int, seed: int) -> SetSpec:
        """Return the fields, inputs and rule of a set, without its answers."""
        order, machine = ORDERS[parts[0]], ACCUMULATORS[parts[1]]
        count = -(-_K // 128) if order.scales == "promotion" else 1
        inputs = (
            Field.of("a", E4M3FN, _K), Field.of("b", E4M3FN, _K), Field.of("a_scale", FLOAT32, count),
            Field.of("b_scale", FLOAT32, count),
        )  # fmt: skip
        definition = {
            "K": _K, "order": plain(order), "accumulator": type(machine.rule).__name__, "rule": plain(machine.rule),
            "a and b": describe(E4M3FN), "scales": "float32, multiply codes; one for each 128 of k, or one",
            "steps": "each chain from +0; promotion: D = fma(fl(a_scale * b_scale), chain, D) from +0; "
            "end: T = fl(T + chain) from +0, D = fl(fl(a_scale * b_scale) * T)"
            + "; one_by_one: D = fma(b_scale, fl(a_scale * chain), D)" * order.one_by_one,
        }  # fmt: skip
        stream = Stream(seed, "/".join(("gemm", *parts)))
        answer = _ordered(order, machine.rule, count)
        return SetSpec(definition, inputs, (Field.of("d", FLOAT32),), _gemm_points(count, level, stream), answer, "any")

    def rules(self, parts: Sequence[str], theirs: Mapping[Words, Words]) -> Iterator[Rule]:
        """Yield other libraries and accumulators, then wrong orders near this one."""
        order, machine = ORDERS[parts[0]], ACCUMULATORS[parts[1]]
        count = -(-_K // 128) if order.scales == "promotion" else 1
        seen = [(order, machine.rule)]
        for name, other in ORDERS.items():
            for unit in ("hopper_fp8", "ada_fp8", "blackwell_fp8", "float32"):
                pair = (other, ACCUMULATORS[unit].rule)
                if pair not in seen:
                    seen.append(pair)
                    yield Rule(f"as {name} on {unit}", _ordered(*pair, count), False, 1 + (other != order))
        every = None if order.promote_every else 128
        wrong: dict[str, dict[str, Any]] = {
            "chains of 64": {"promote_every": 64},
            "one chain" if order.promote_every else "chains of 128": {"promote_every": every},
        }  # fmt: skip
        if order.one_by_one:
            wrong["product of the scales"] = {"one_by_one": False}
        else:
            wrong |= {"product of the scales not rounded": {"rounded_scale": False},
                      "scales one by one": {"one_by_one": True}}  # fmt: skip
        if order.scales == "promotion":
            wrong |= {"separate multiply and add": {"fused": False}, "scales at the end": {"scales": "end"}}
        if order.promote_every:
            wrong["last chain first"] = {"backwards": True}
        for words, change in wrong.items():
            yield Rule(words, _ordered(dataclasses.replace(order, **change), machine.rule, count), True)
        if order.one_by_one:
            yield Rule("b's scale first", _ordered(order, machine.rule, count, exchanged=True), True)


def _ordered(order: Order, rule: DotRule, count: int, *, exchanged: bool = False) -> Answer:
    """Return the answer of an order; if `exchanged`, the scale of b takes the place of that of a."""

    def answer(words: Words) -> Words:
        scales = words[2 * _K :]
        own, other = (scales[count:], scales[:count]) if exchanged else (scales[:count], scales[count:])
        pairs = list(zip(own, other, strict=True))
        pairs += pairs[-1:] * (-(-_K // 128) - count)
        return (order.dot(words[:_K], words[_K : 2 * _K], pairs, rule, E4M3FN, E4M3FN, 128),)

    return answer


def _gemm_points(count: int, level: int, s: Stream) -> Iterator[tuple[Words, str]]:
    """Yield operands of some families with scales: random significands, powers of two, and extremes."""
    families = [
        "any finite codes", "exponents within a few binades", "cancellation", "every shift of the alignment",
        "subnormal operands", "mostly zeros", "the largest binades", "what cancels within 32 of 64", "NaN or Inf in a",
    ]  # fmt: skip
    kinds: dict[str, Callable[[], int]] = {
        "scales of any significand": lambda: code_of(s, FLOAT32, 127 - s.below(12)) % 2**31 | 1,
        "scales that are powers of two": lambda: (127 - s.below(12)) << 23,
        "a scale one ulp below a power of two": lambda: ((127 - s.below(12)) << 23) - 1,
        "tiny scales": lambda: code_of(s, FLOAT32, s.between(50, 70)) % 2**31,
        "huge scales": lambda: code_of(s, FLOAT32, s.between(180, 190)) % 2**31,
        "scales of 1": lambda: 127 << 23,
    }
    for _ in range(20 if level == 1 else 200):  # the sum of two such chains depends on which comes first
        own: list[int] = []
        for fall in ((8, -2, -6), (2, -2, 0)):
            for i in range(_K):
                code = code_of(s, E4M3FN, E4M3FN.bias + fall[i // 128])
                own.append(code % 0x80 | (0x80 if i >= 256 and fall[0] > 2 else 0))
        yield (*own, *(127 << 23 for _ in range(2 * count))), "chains of different size"
    for _ in range(5 if level == 1 else 50):
        for name in families:
            make_a, make_b = FAMILIES[name]
            for kind, make in kinds.items():
                words = (*make_a(s, _K, E4M3FN), *make_b(s, _K, E4M3FN), *(make() for _ in range(2 * count)))
                yield words, f"{name}, {kind}"
