"""Vector sets of products: one dot product on an accumulator, and one output of a library's GEMM."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..oracle.accumulators import ACCUMULATORS, FORMATS, Accumulator, AnyRule, ExactSum, Sequential
from ..oracle.amd import FlooredSum
from ..oracle.fused import Rule as FusedRule
from ..oracle.fused import Scales
from ..oracle.halves import Halves
from ..oracle.mutants import FP22_MUTANTS, wrong_rules
from ..oracle.values import Fields
from .drawing import Stream
from .family import Family, Made, Rule, checked
from .operands import product_points
from .vectors import Answer, Field, Words, describe


def _length(rule: AnyRule) -> int:
    """Return K: two groups at least, so that the chain between them shows."""
    match rule:
        case FusedRule(group=group) | FlooredSum(group=group):
            return 2 * group
        case Halves():
            return 64
        case Sequential() | ExactSum():
            return 16
    return 4 * rule.group


def dot(machine: Accumulator, rule: AnyRule, pair: tuple[Fields, Fields], k: int) -> Answer:
    """Return what takes the words of a, b, c (and scales) and gives those of d."""

    def answer(words: Words) -> Words:
        scales = None
        if machine.scales is not None:
            fmt, block = machine.scales
            own = words[2 * k + 1 :]
            scales = Scales(own[: k // block], own[k // block :], fmt, block)
        return (rule.dot(words[:k], words[k : 2 * k], words[2 * k], *pair, scales),)

    return answer


class MmaFamily(Family):
    """Dot products of raw codes plus c."""

    name = "mma"
    pattern = "ACCUMULATOR[/A_FORMAT[/B_FORMAT]]"
    about = "mma: one output, the products of K codes of a and b and c, summed as the accumulator does, k from 0 up"

    def listed(self) -> list[str]:
        """Return every accumulator with each of its input formats on both sides."""
        return [f"mma/{name}/{f}/{f}" for name, machine in ACCUMULATORS.items() for f in machine.inputs]

    def full(self, parts: Sequence[str]) -> tuple[str, ...]:
        """Return accumulator and formats."""
        checked(self.name, parts, 3, self.pattern)
        if parts[0] not in ACCUMULATORS:
            raise ValueError(f"mma/{parts[0]}: the oracle has no accumulator of that name; see lowprec accumulators")
        inputs = ACCUMULATORS[parts[0]].inputs
        a = parts[1] if len(parts) > 1 else inputs[0]
        b = parts[2] if len(parts) > 2 else a
        for fmt in (a, b):
            if fmt not in inputs:
                raise ValueError(f"mma/{'/'.join(parts)}: {parts[0]} multiplies {', '.join(inputs)}, not {fmt}")
        return parts[0], a, b

    def _parts(self, parts: Sequence[str]) -> tuple[Accumulator, tuple[Fields, Fields], int]:
        machine = ACCUMULATORS[parts[0]]
        return machine, (FORMATS[parts[1]], FORMATS[parts[2]]), _length(machine.rule)

    def prepare(self, parts: Sequence[str], level: int, seed: int) -> Made:
        """Return a set before its answers."""
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
            definition |= {
                "scales": describe(fmt),
                "scale block": block,
                "bit 7 of a scale": "ignored where not a bit of it",
            }
        points = product_points(machine, pair, k, level, Stream(seed, "/".join(("mma", *parts))))
        return Made(definition, tuple(inputs), (Field.of("d", c),), points, dot(machine, machine.rule, pair, k))

    def rules(self, parts: Sequence[str], theirs: Mapping[Words, Words]) -> Iterator[Rule]:
        """Yield the catalogue's other accumulators, and wrong rules next to this one."""
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


def _same(rule: AnyRule, wrong: AnyRule, pair: tuple[Fields, Fields]) -> bool:
    """Tell whether rules that differ in the exponent of zeros alone agree, since no term has bits that it would cut."""
    if not (isinstance(rule, FusedRule) and isinstance(wrong, FusedRule)):
        return False
    if dataclasses.replace(wrong, zero_exponent=rule.zero_exponent) != rule or wrong.zero_exponent is None:
        return False
    least = [1 - f.bias - f.mantissa_bits for f in (*pair, rule.c_format)]
    return min(least[0] + least[1], least[2]) >= wrong.zero_exponent - wrong.fraction_bits


def plain(rule: Any) -> dict[str, Any]:
    """Return a rule's fields, formats as theirs."""
    return {
        field.name: describe(value) if isinstance(value, Fields) else value
        for field in dataclasses.fields(rule)
        for value in [getattr(rule, field.name)]
    }
