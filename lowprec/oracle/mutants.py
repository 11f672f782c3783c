"""Wrong rules that are close to a correct one: vectors and tests must detect them, and `identify` reports them.

`wrong_rounding` returns them for casts, `wrong_rules` for every kind of accumulator; `FP22_MUTANTS` are those that have
been proposed for the FP8 units of Hopper and Ada.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any, TypeAlias

from .accumulators import ExactSum, Sequential
from .casts import Away
from .machines.amd import ExactGroups, FlooredSum, FlushedPairs
from .machines.base import Codes, DotRule
from .machines.cpu import FlushedFma, Lanes, Odd, RoundedGroups, ScaledGroups
from .machines.fused import Rule
from .machines.halves import Halves
from .machines.ibm import ChunkSums
from .machines.rdna import FlooredPairs, Rdna, SignFrame
from .machines.riscv import BulkSums, PartialSums
from .machines.tenstorrent import FidelityPhases
from .values import FLOAT32, Fields

_HALF = Fraction(1, 2)
_Cpu: TypeAlias = FlushedFma | Lanes | Odd | RoundedGroups | ScaledGroups


def _two_roundings(nu: Fraction, odd: bool, *_: Any) -> bool:
    cut = Fraction(round(nu * 4), 4)
    return cut > _HALF or (cut == _HALF and odd)


_NEAREST: dict[str, Away] = {
    "ties away": lambda nu, odd, negative, mode, r, n: nu >= _HALF,
    "ties to zero": lambda nu, odd, negative, mode, r, n: nu > _HALF,
    "ties to odd": lambda nu, odd, negative, mode, r, n: nu > _HALF or (nu == _HALF and not odd),
    "two roundings": _two_roundings,
}
_STOCHASTIC_A: Away = lambda nu, odd, negative, mode, r, n: int(nu * (1 << n)) + r >= 1 << n  # noqa: E731
_STOCHASTIC_C: Away = lambda nu, odd, negative, mode, r, n: round(nu * (1 << n)) + r >= 1 << n  # noqa: E731
_WRONG_ROUNDING: dict[str, dict[str, Away]] = {
    "nearest_even": _NEAREST,
    "nearest_away": {
        "ties to zero": _NEAREST["ties to zero"],
        "ties up": lambda nu, odd, negative, mode, r, n: nu > _HALF or (nu == _HALF and not negative),
    },
    "toward_zero": {
        "down": lambda nu, odd, negative, mode, r, n: nu > 0 and negative,
        "nearest": lambda nu, odd, negative, mode, r, n: nu > _HALF,
    },
    "up": {
        "nearest for negatives": lambda nu, odd, negative, mode, r, n: nu > _HALF if negative else nu > 0,
        "away": lambda nu, odd, negative, mode, r, n: nu > 0,
        "cut": lambda nu, odd, negative, mode, r, n: False,
    },
    "down": {
        "nearest for positives": lambda nu, odd, negative, mode, r, n: nu > 0 if negative else nu > _HALF,
        "away": lambda nu, odd, negative, mode, r, n: nu > 0,
        "cut": lambda nu, odd, negative, mode, r, n: False,
    },
    "to_odd": {
        "to even": lambda nu, odd, negative, mode, r, n: nu > 0 and odd,
        "only ties to odd": _NEAREST["ties to odd"],
    },
    "A": {
        "one too many": lambda nu, odd, negative, mode, r, n: int(nu * (1 << n)) + r + 1 >= 1 << n,
        "strict": lambda nu, odd, negative, mode, r, n: int(nu * (1 << n)) + r > 1 << n,
        "complement": lambda nu, odd, negative, mode, r, n: nu * (1 << n) > r,
        "C": _STOCHASTIC_C,
    },
    "B": {"A": _STOCHASTIC_A, "C": _STOCHASTIC_C},
    "C": {
        "half up": lambda nu, odd, negative, mode, r, n: int(nu * (1 << n) + _HALF) + r >= 1 << n,
        "A": _STOCHASTIC_A,
    },
}


def wrong_rounding(mode: str) -> Mapping[str, Away]:
    """Return the wrong rules similar to a rounding, each a replacement for `casts.away`."""
    if mode not in _WRONG_ROUNDING:
        raise ValueError(f"no wrong rules next to the rounding {mode!r} are written out in lowprec/oracle/mutants.py")
    return _WRONG_ROUNDING[mode]


#: name -> error, applied to the right rule of Hopper's or Ada's FP8 unit
FP22_MUTANTS: dict[str, Callable[[Rule], Rule]] = {
    "the other machine's group": lambda r: replace(r, group=48 - r.group),
    "interleaved groups of 16": lambda r: replace(r, group=16, interleaved=True),
    "12 fraction bits": lambda r: replace(r, fraction_bits=12),
    "14 fraction bits": lambda r: replace(r, fraction_bits=14),
    "25 fraction bits": lambda r: replace(r, fraction_bits=25),
    "result cut to 12": lambda r: replace(r, output_fraction=12),
    "result cut to 14": lambda r: replace(r, output_fraction=14),
    "result not cut": lambda r: replace(r, output="f32"),
    "alignment rounds down": lambda r: replace(r, align="floor"),
    "alignment to nearest": lambda r: replace(r, align="nearest"),
    "result to nearest": lambda r: replace(r, output_rounding="nearest"),
    "normalised exponents": lambda r: replace(r, normalise=True),
    "c added after": lambda r: replace(r, c_aligned=False),
    "groups in decreasing k": lambda r: replace(r, backwards=True),
    "subnormal operands normalised": lambda r: replace(r, normalised_subnormals=True),
    "-0 as a result": lambda r: replace(r, signed_zero=True),
    "NaN payload kept": lambda r: replace(r, nan_payload=True),
    "zeros take part at 2^0": lambda r: replace(r, zero_exponent=0),
    "zeros take part at the smallest product's exponent": lambda r: replace(r, zero_exponent=-28),
}


def wrong_fused(r: Rule) -> dict[str, Rule]:
    """Return the wrong rules similar to a fused sum; some are rules of related hardware."""
    result = {"fp22": 13, "f32": 23, "f16": 10}[r.output]
    rounded: dict[str, Any] = {}
    if r.fraction_bits >= result:  # else results are rarely truncated
        rounded["result cut to one bit less"] = {"output_fraction": result - 1}
        if r.output != "f16":
            rounded["result to nearest"] = {"output_rounding": "nearest"}
    changes: dict[str, dict[str, Any]] = {
        "half the group": {"group": r.group // 2},
        "twice the group": {"group": 2 * r.group},
        "one fraction bit less": {"fraction_bits": r.fraction_bits - 1},
        "one fraction bit more": {"fraction_bits": r.fraction_bits + 1},
        "Hopper's fraction bits": {"fraction_bits": 13 if r.fraction_bits != 13 else 25},
        "alignment rounds down": {"align": "floor"},
        "alignment to nearest": {"align": "nearest"},
        "c added after": {"c_aligned": False},
        "groups in decreasing k": {"backwards": True},
        "subnormal operands normalised": {"normalised_subnormals": True},
        "normalised exponents": {"normalise": True},
        "-0 as a result": {"signed_zero": True},
        "NaN payload kept": {"nan_payload": True},
        "zeros take part at 2^0": {"zero_exponent": 0},
        **rounded,
    }
    if r.exact_within > 1:
        changes["products aligned one by one"] = {"exact_within": 1}
        del changes["normalised exponents"], changes["subnormal operands normalised"]  # a run's exponent is its scales'
        changes["runs of 32"] = {"exact_within": 32}
    return {name: replace(r, **change) for name, change in changes.items()}


def wrong_rules(rule: DotRule) -> dict[str, DotRule]:
    """Return the wrong rules similar to any rule of an accumulator."""
    match rule:
        case Rule():
            return dict(wrong_fused(rule))
        case Halves(output="f16"):
            return {
                "halves swapped": replace(rule, swapped=True), "k < 16 and the rest": replace(rule, contiguous=True),
                "c first": replace(rule, c_first=True), "the FP22 path": Rule(output="f16"),
                "12 fraction bits": replace(rule, fraction_bits=12),
            }  # fmt: skip
        case Halves():  # sums of float32 halves are exact, so their order has no effect
            return {
                "c first": replace(rule, c_first=True), "the FP22 path": Rule(),
                "13 fraction bits": replace(rule, fraction_bits=13),
            }  # fmt: skip
        case ExactGroups(group=group):
            return {
                "half the group": ExactGroups(group // 2), "twice the group": ExactGroups(2 * group),
                "CDNA2": FlushedPairs(group), "CDNA3": FlooredSum(8), "NVIDIA": Rule(group, 24, output="f32"),
            }  # fmt: skip
        case FlushedPairs(group=group):
            mutants: dict[str, DotRule] = {
                "subnormals live": replace(rule, flush=False), "CDNA1": ExactGroups(group),
                "twice the group": replace(rule, group=2 * group), "CDNA3": FlooredSum(8),
            }  # fmt: skip
            if group > 2:
                mutants |= {
                    "products one by one": replace(rule, pairwise=False),
                    "half the group": replace(rule, group=group // 2),
                }
            return mutants
        case FlooredSum(group=group):
            return {
                "cut toward zero": replace(rule, floor=False), "half the group": replace(rule, group=group // 2),
                "twice the group": replace(rule, group=2 * group), "CDNA1": ExactGroups(group),
                "one fraction bit less": replace(rule, fraction_bits=23),
                "one fraction bit more": replace(rule, fraction_bits=25),
                "halves or none": replace(rule, halves=not rule.halves), "NVIDIA": Rule(group, 24, output="f32"),
            }  # fmt: skip
        case SignFrame() | FlooredPairs():
            return _wrong_of_rdna(rule)
        case PartialSums():
            return _wrong_of_riscv(rule)
        case FidelityPhases():
            return _wrong_of_tenstorrent(rule)
        case ChunkSums():
            return _wrong_of_ibm(rule)
        case ExactSum():
            return {
                "rounded in groups": ExactGroups(4), "rounded at every step": Sequential(),
                "NVIDIA": Rule(64, 40, output="f32"),
            }  # fmt: skip
        case Sequential():
            wrong: dict[str, DotRule] = {"last first": Backwards(rule.c_format)}
            return {**wrong, "an exact sum": ExactGroups(64)} if rule.c_format == FLOAT32 else wrong
        case FlushedFma() | Lanes() | Odd() | RoundedGroups() | ScaledGroups():
            return _wrong_of_cpus(rule)
    raise AssertionError(f"{type(rule).__name__} needs wrong neighbours here, which the compared inputs must refute")


def _wrong_of_rdna(rule: Rdna) -> dict[str, DotRule]:
    match rule:
        case SignFrame(group=group):
            return {
                "two's complement": replace(rule, complement=False), "a positive frame": replace(rule, framed=False),
                "twice the group": replace(rule, group=2 * group),
                "one fraction bit less": replace(rule, fraction_bits=23, leading_bits=25),
                "RDNA4": FlooredPairs(2, output=rule.output),
                **_wrong_results(rule),
            }  # fmt: skip
        case FlooredPairs(group=group, order=order):
            near_pairs: dict[str, DotRule] = {
                "cut toward zero": replace(rule, down=False),
                "one fraction bit less": replace(rule, fraction_bits=23), "RDNA3": SignFrame(2, output=rule.output),
                "another order": replace(rule, order=(1, 0) if not order else ()), **_wrong_results(rule),
            }  # fmt: skip
            return {**near_pairs, "all aligned together": replace(rule, in_pairs=False)} if group > 2 else near_pairs


def _wrong_results(rule: Rdna) -> dict[str, DotRule]:
    """Return the wrong rules that a format of results can show: those of the last bits only in float32."""
    if rule.output == "float16":
        return {}
    wrong: dict[str, DotRule] = (
        {"subnormals live": replace(rule, keep=True)}
        if isinstance(rule, SignFrame)
        else {"a small negative c counts": replace(rule, drops=False)}
    )
    if rule.output == "bfloat16":
        near, wide = replace(rule, nearest=True), replace(rule, output="float32")
        return {**wrong, "rounded to nearest": near, "kept in float32": wide}
    bits = replace(rule, leading_bits=27 if isinstance(rule, SignFrame) else 25)
    return {**wrong, "other leading bits": bits, "CDNA1": ExactGroups(rule.group)}


def _wrong_of_riscv(rule: PartialSums) -> dict[str, DotRule]:
    wrong: dict[str, DotRule] = {"twice the group": replace(rule, group=2 * rule.group), "CDNA1": ExactGroups(2)}
    wrong["half the group"] = replace(rule, group=rule.group // 2)
    if rule.partial != "exact":
        wrong["partial sums not rounded"] = replace(rule, partial="exact")
        wrong["partial sums otherwise"] = replace(rule, partial="nearest" if rule.partial == "odd" else "odd")
    wrong["last rounding otherwise"] = replace(rule, last="nearest" if rule.last == "odd" else "odd")
    if isinstance(rule, BulkSums):
        for words, bits in (("less", -1), ("more", 1)):
            wrong[f"one fraction bit {words}"] = replace(rule, fraction_bits=rule.fraction_bits + bits)
        wrong["lost bits forgotten"] = replace(rule, sticky=False)
        wrong["normalised exponents"] = replace(rule, normalised=True)
    return wrong


def _wrong_of_tenstorrent(rule: FidelityPhases) -> dict[str, DotRule]:
    wrong: dict[str, DotRule] = {
        "groups of 16": replace(rule, together=16), "groups of 4": replace(rule, together=4),
        "one fraction bit less": replace(rule, fraction_bits=9), "products truncated": replace(rule, truncated=True),
        "slices exchanged": replace(rule, swapped=True), "exact": ExactGroups(4),
    }  # fmt: skip
    return {**wrong, "one phase more": replace(rule, phases=(*rule.phases, len(rule.phases)))}


def _wrong_of_ibm(rule: ChunkSums) -> dict[str, DotRule]:
    return {
        "ties to even": replace(rule, to_even=True), "the running sum rounded": replace(rule, first=False),
        "twice the group": replace(rule, group=2 * rule.group), "half the group": replace(rule, group=rule.group // 2),
        "one fraction bit less": replace(rule, narrow=rule.narrow._replace(mantissa_bits=8)),
        "one fraction bit more": replace(rule, narrow=rule.narrow._replace(mantissa_bits=10)),
        "not rounded": PartialSums(rule.group, partial="nearest"),
    }  # fmt: skip


def _wrong_of_cpus(rule: _Cpu) -> dict[str, DotRule]:
    match rule:
        case FlushedFma():
            return {
                "the first product first": replace(rule, forwards=True), "subnormals live": replace(rule, keep=True),
                "Arm, EBF = 0": Odd(2), "Arm, EBF = 1": RoundedGroups(2),
            }  # fmt: skip
        case Lanes(group=group, together=together):
            others: dict[str, DotRule] = {
                "half the group": replace(rule, group=group // 2), "c first": replace(rule, c_first=True),
                "half as many together" if together > 1 else "two together": replace(rule, together=3 - together),
                "one lane": replace(rule, lanes=1),
            }  # fmt: skip
            return others
        case Odd():
            return {
                "to nearest": replace(rule, rounding="nearest"), "subnormals live": replace(rule, keep=True),
                "products one by one": replace(rule, one_by_one=True), "EBF = 1": RoundedGroups(2),
                "x86": FlushedFma(2),
            }  # fmt: skip
        case RoundedGroups(group=group):
            return {
                "EBF = 0": Odd(2), "one rounding": ExactGroups(group), "twice the group": RoundedGroups(2 * group),
                "one by one": Sequential(),
            }  # fmt: skip
        case ScaledGroups(group=group):
            near: dict[str, DotRule] = {
                "twice the group": replace(rule, group=2 * group), "half the products": replace(rule, exponent=-1),
            }  # fmt: skip
            if rule.output != FLOAT32:  # sums of FP8 products do not reach its limits
                near["what overflows is the largest"] = replace(rule, saturate=not rule.saturate)
            return near


class Backwards(Sequential):
    """Wrong rule that adds the last product first."""

    def sum_products(self, a: Codes, b: Codes, c_bits: int, fa: Fields, fb: Fields) -> int:
        """Add the products of two code vectors to c."""
        return super().sum_products(a[::-1], b[::-1], c_bits, fa, fb)
