"""What a quantizer says of scales, as the numbers that `kernels.scaling.scales` takes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..cast.constants import decode_constants, encode_constants
from ..format.catalogue import Format, formats
from ..format.rounding import policies
from ..kernels.scaling import scales as block_scale
from ..registry import cached
from .quantizer import SPECIALS, Quantizer

_HOW = {
    ("fp32", "amax/max"): block_scale.QUOTIENT,
    ("fp32", "amax*(1/max)"): block_scale.PRODUCT,
    ("fp32", "max/amax"): block_scale.MULTIPLIER,
    ("ue8m0", "floor"): block_scale.EXPONENT,
    ("ue8m0", "ceil"): block_scale.EXPONENT,
    ("ue8m0", "even"): block_scale.EXPONENT,
    ("ue8m0", "even_1bit"): block_scale.EXPONENT,
    ("ue8m0", "amax/max"): block_scale.POWER_QUOTIENT,
    ("ue8m0", "amax*(1/max)"): block_scale.POWER_PRODUCT,
    ("ue8m0", "max/amax"): block_scale.POWER_MULTIPLIER,
    ("e4m3", "folded"): block_scale.E4M3_FOLDED,
    ("e4m3", "plain"): block_scale.E4M3_PLAIN,
    ("e4m3", "quotients"): block_scale.E4M3_QUOTIENTS,
    ("e4m3", "joint"): block_scale.E4M3_JOINT,
    ("e4m3", "alone"): block_scale.E4M3_ALONE,
}
_LARGEST = np.finfo(np.float32).max
_ONE = np.float32(1)


def bounded_constants(f: Format) -> tuple[np.uint32, ...]:
    """Return what `kernels.cast.bounded` takes."""
    top = int(np.float32(f.max).view(np.uint32))
    words = ((127 + f.emin) << 23, (23 - f.mantissa_bits) << 23, 23 - f.mantissa_bits, top, 0, f.sign_mask)
    return tuple(np.uint32(word) for word in words)


class TensorScale(NamedTuple):
    """A tensor's scale, its inverse, and the constant that block scales are computed with."""

    scale: np.float32
    inverse: np.float32
    folded: np.float32


NO_TENSOR = TensorScale(_ONE, _ONE, _ONE)


def tensor_scale(q: Quantizer, f: Format, amax: np.float32) -> TensorScale:
    """Return the tensor's scale, its inverse and the constant that block scales are computed with."""
    largest = np.float32(f.max)
    bound = np.float32(np.float32(q.bound) * largest)
    with np.errstate(all="ignore"):
        if q.arithmetic in ("folded", "plain"):
            inverse = np.minimum(np.float32(bound / amax), _LARGEST)
            inverse = _ONE if amax == 0 or inverse == 0 else inverse
            scale = np.minimum(np.float32(_ONE / inverse), _LARGEST)
            return TensorScale(scale, inverse, np.float32(inverse * np.float32(_ONE / largest)))
        g = np.float32(amax / bound)
        if 0 < amax < np.inf:
            g = np.clip(g, np.float32(2.0**-149), _LARGEST)
        return TensorScale(g, np.minimum(np.float32(_ONE / g), _LARGEST), np.float32(largest * g))


def scale_rule(q: Quantizer, f: Format, tensor: TensorScale, multiplier: np.float32 | None = None) -> tuple[Any, ...]:
    """Return what `kernels.scaling.scales.block_scales` takes; with a multiplier, every block gets it."""
    head, numbers, words, special, use_special_zero = _fixed_rule(q, f)
    if head == (block_scale.E4M3_JOINT, block_scale.DIVIDE) and not q.two_level:  # the same without a tensor's scale
        tensor = NO_TENSOR._replace(folded=numbers[0])
    if multiplier is not None:
        with np.errstate(all="ignore"):
            own = (np.minimum(np.float32(_ONE / multiplier), _LARGEST), multiplier)
        numbers = (*numbers[:3], multiplier, numbers[4])
        return (block_scale.FIXED, block_scale.RECIPROCAL, (*numbers[:4], *tensor, numbers[4]), words, own * 3, True)
    return (*head, (*numbers[:4], *tensor, numbers[4]), words, special, use_special_zero)


@cached(256)
def _fixed_rule(q: Quantizer, f: Format) -> tuple[Any, ...]:
    largest = np.float32(f.max)
    cap = _LARGEST if q.amax_floor == 0 else np.float32(min(float(_LARGEST), float(f.max) / q.amax_floor))
    numbers = (
        largest, np.float32(_ONE / largest), np.float32(q.amax_floor), np.float32(cap), np.float32(q.smallest_scale)
    )  # fmt: skip
    multiplied = q.division == "max/amax"  # and then by the float32 floor, as it is computed
    if multiplied and q.amax_floor:
        with np.errstate(over="ignore"):
            cap = np.minimum(largest / np.float32(q.amax_floor), _LARGEST)
    mantissa = {"even": f.mantissa_bits, "even_1bit": 1}.get(q.arithmetic, 0)
    add = {"floor": 0, "ceil": 0x7FFFFF}.get(q.arithmetic, 1 << (22 - mantissa))
    e4m3 = formats["e4m3fn"]
    words = (
        np.uint32(add), np.int32(f.emax), np.uint32(q.smallest_exponent + 127),
        encode_constants(e4m3, policies["ocp_sat"].codes(e4m3)), decode_constants(e4m3), bounded_constants(e4m3),
    )  # fmt: skip
    cases = [SPECIALS.get(case, (1.0, 1.0)) for case in (q.zero, q.inf, q.nan)]
    special = tuple(np.float32(number) for pair in cases for number in pair)
    asked = q.division == "divide" and (q.arithmetic == "alone" or (q.scale == "fp32" and q.arithmetic != "max/amax"))
    divides = asked or q.arithmetic == "joint"
    division = block_scale.DIVIDE if divides else block_scale.RECIPROCAL
    use_special_zero = q.zero != "rule" and q.amax_floor == 0
    how = block_scale.E4M3_JOINT if q.arithmetic == "alone" and divides else _HOW[q.scale, q.arithmetic]
    how = block_scale.MULTIPLIER if multiplied else how
    return (how, division), numbers, words, special, use_special_zero
