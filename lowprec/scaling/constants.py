"""Constants that `kernels.scaling.scales` takes for the scales of a quantizer."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from ..cast.constants import decode_constants, encode_constants
from ..format.catalogue import Format
from ..format.rounding import policies
from ..kernels.scaling import scales as block_scale
from .quantizer import Quantizer
from .rules import E4M3, FLOAT32, AmaxRule, are_powers, special

_OF_FLOAT32 = {
    "amax/max": block_scale.QUOTIENT, "amax*(1/max)": block_scale.PRODUCT, "max/amax": block_scale.MULTIPLIER,
}  # fmt: skip
_OF_POWERS = {
    "floor": block_scale.EXPONENT,
    "ceil": block_scale.EXPONENT,
    "even": block_scale.EXPONENT,
    "even_1bit": block_scale.EXPONENT,
    "amax/max": block_scale.POWER_QUOTIENT,
    "amax*(1/max)": block_scale.POWER_PRODUCT,
    "max/amax": block_scale.POWER_MULTIPLIER,
}
_OF_OTHERS = {
    "te_folded": block_scale.E4M3_FOLDED,
    "direct": block_scale.E4M3_PLAIN,
    "two_quotients": block_scale.E4M3_QUOTIENTS,
    "one_quotient": block_scale.E4M3_JOINT,
    "block_scale_only": block_scale.E4M3_ALONE,
}
_LARGEST = np.finfo(np.float32).max
_ONE = np.float32(1)
_SATURATE = policies["ocp_sat"]


def bounded_constants(f: Format) -> tuple[np.uint32, ...]:
    """Return the constants that `kernels.cast.bounded` takes for a format."""
    top = int(np.float32(f.max).view(np.uint32))
    words = ((127 + f.emin) << 23, (23 - f.mantissa_bits) << 23, 23 - f.mantissa_bits, top, 0, f.sign_mask)
    return tuple(np.uint32(word) for word in words)


class TensorScale(NamedTuple):
    """A tensor scale, its inverse, and the constant from which block scales are computed."""

    scale: np.float32
    inverse: np.float32
    folded: np.float32


NO_TENSOR = TensorScale(_ONE, _ONE, _ONE)


def rule_of(q: Quantizer) -> AmaxRule:
    """Return the rule of a quantizer that computes scales from amax."""
    assert isinstance(q.rule, AmaxRule)
    return q.rule


def bound_of(q: Quantizer) -> float:
    """Return the block scale to which the tensor scale maps the block with the largest amax."""
    bound = rule_of(q).max_block_scale
    return float(q.scale_format.max) if bound is None else bound


def tensor_scale(q: Quantizer, f: Format, amax: np.float32) -> TensorScale:
    """Return the tensor scale, its inverse, and the constant from which block scales are computed."""
    largest = np.float32(f.max)
    bound = np.float32(np.float32(bound_of(q)) * largest)
    with np.errstate(all="ignore"):
        if rule_of(q).scale_calculation in ("te_folded", "direct"):
            inverse = np.minimum(np.float32(bound / amax), _LARGEST)
            inverse = _ONE if amax == 0 or inverse == 0 else inverse
            scale = np.minimum(np.float32(_ONE / inverse), _LARGEST)
            return TensorScale(scale, inverse, np.float32(inverse * np.float32(_ONE / largest)))
        g = np.float32(amax / bound)
        if 0 < amax < np.inf:
            g = np.clip(g, np.float32(2.0**-149), _LARGEST)
        return TensorScale(g, np.minimum(np.float32(_ONE / g), _LARGEST), np.float32(largest * g))


def scale_rule(q: Quantizer, f: Format, tensor: TensorScale, multiplier: np.float32 | None = None) -> tuple[Any, ...]:
    """Return the arguments of `kernels.scaling.scales.block_scales`; a multiplier, if given, applies to every block."""
    head, numbers, words, specials, use_special_zero = _fixed_rule(q, f)
    if (
        head == (block_scale.E4M3_JOINT, block_scale.DIVIDE) and not q.has_tensor_scale
    ):  # the same without a tensor's scale
        tensor = NO_TENSOR._replace(folded=numbers[0])
    if multiplier is not None:
        with np.errstate(all="ignore"):
            own = (np.minimum(np.float32(_ONE / multiplier), _LARGEST), multiplier)
        numbers = (*numbers[:3], multiplier, numbers[4])
        return (block_scale.FIXED, block_scale.RECIPROCAL, (*numbers[:4], *tensor, numbers[4]), words, own * 3, True)
    return (*head, (*numbers[:4], *tensor, numbers[4]), words, specials, use_special_zero)


@functools.lru_cache(256)
def _fixed_rule(q: Quantizer, f: Format) -> tuple[Any, ...]:
    rule, largest = rule_of(q), np.float32(f.max)
    cap = _LARGEST if rule.amax_floor == 0 else np.float32(min(float(_LARGEST), float(f.max) / rule.amax_floor))
    numbers = (
        largest, np.float32(_ONE / largest), np.float32(rule.amax_floor), np.float32(cap),
        np.float32(rule.min_scale),
    )  # fmt: skip
    multiplied = rule.scale_application == "max/amax"  # and then by the float32 floor, as it is computed
    if multiplied and rule.amax_floor:
        with np.errstate(over="ignore"):
            cap = np.minimum(largest / np.float32(rule.amax_floor), _LARGEST)
    mantissa = {"even": f.mantissa_bits, "even_1bit": 1}.get(rule.scale_calculation, 0)
    add = {"floor": 0, "ceil": 0x7FFFFF}.get(rule.scale_calculation, 1 << (22 - mantissa))
    s = E4M3 if q.scale_format == FLOAT32 or are_powers(q.scale_format) else q.scale_format
    words = (
        np.uint32(add), np.int32(f.emax), np.uint32(rule.min_scale_exponent + 127),
        encode_constants(E4M3, _SATURATE.codes(E4M3)), decode_constants(E4M3), bounded_constants(s),
    )  # fmt: skip  # the kernel reads the last of them only
    cases = [special(case, q.scale_format) for case in (rule.zero_block, rule.inf_block, rule.nan_block)]
    specials = tuple(np.float32(number) for pair in cases for number in pair)
    alone = rule.scale_calculation == "block_scale_only"
    asked = rule.scale_application == "divide" and (
        alone or (q.scale_format == FLOAT32 and rule.scale_calculation != "max/amax")
    )
    divides = asked or rule.scale_calculation == "one_quotient"
    division = block_scale.DIVIDE if divides else block_scale.RECIPROCAL
    use_special_zero = rule.zero_block != "rule" and rule.amax_floor == 0
    named = _OF_FLOAT32 if q.scale_format == FLOAT32 else _OF_POWERS if are_powers(q.scale_format) else _OF_OTHERS
    how = block_scale.E4M3_JOINT if alone and divides else named[rule.scale_calculation]
    how = block_scale.MULTIPLIER if multiplied else how
    return (how, division), numbers, words, specials, use_special_zero
