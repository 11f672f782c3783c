"""Block quantizers in exact arithmetic, each defined separately.

They are written from the published arithmetic, independently of the package's catalogue: the scale, the scaling of
values, and the scales of blocks of zeros and of blocks with Inf or NaN.
"""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .block_scales import (
    E4M3_MAX,
    NAN,
    ONE,
    Pair,
    Rule,
    Scaled,
    Tensor,
    after_rounding,
    by_division,
    by_product,
    ceil_log2,
    divide,
    e4m3_alone,
    exponent,
    f32,
    gemm,
    modelopt_nvfp4,
    multiply,
    r32,
    round_up,
    six_or_four,
    size_of,
    te,
    te_nvfp4,
    te_power,
    tile,
    torchao_nvfp4,
    torchao_one_level,
    v3,
    v32,
)
from .values import (
    BFLOAT16,
    E2M1FN,
    E2M3FN,
    E3M2FN,
    E4M3FN,
    E5M2,
    FLOAT32,
    MXINT8,
    Exact,
    Fields,
    decode,
    encode,
    exact,
    floor_log2,
    is_negative_zero,
    max_code,
    two_to,
)


class Quantizer(NamedTuple):
    """A quantizer: element, block, rule for amax > 0, floor of amax, and scales for zeros (None: by rule), Inf, NaN."""

    element: Fields
    block: tuple[int | None, int | None]
    rule: Rule
    floor: Fraction = Fraction(0)
    zeros: Pair | None = (ONE, ONE)
    inf: Pair = NAN
    nan: Pair = NAN
    bound: Fraction | None = None  # largest block scale for which a tensor's scale is chosen
    choice: str | None = None
    ties_toward_zero: bool = False  # and -0 is not produced
    folded: bool = True  # whether a tensor's scale is the inverse of bound * max / amax instead of a quotient
    by_row: bool = False  # whether each row, or each column for column blocks, is treated as a tensor


_TINY: Pair = (two_to(-127), two_to(127))
_HUGE: Pair = (two_to(127), two_to(-127))
_SAME: Pair = (ONE, ONE)
_FLOOR = Fraction(float(np.float32(1e-4)))
_FLOOR_AO = Fraction(1e-12)
_TILE, _TENSOR, _MX, _NV = (1, 128), (None, None), (1, 32), (1, 16)


def _torchao_fp8(amax: Fraction, top: Fraction, tensor: Tensor) -> Scaled:
    quotient = Fraction(float(top) / float(amax))  # float64, as in torchao
    m = r32(quotient)
    return Scaled(r32(1 / m), m)


QUANTIZERS: dict[str, Quantizer] = {
    "dsv3_inference": Quantizer(E4M3FN, _TILE, v3, _FLOOR),
    "dsv3_inference_ue8m0": Quantizer(E4M3FN, _TILE, round_up(by_division, -126), _FLOOR),
    "dsv32_inference": Quantizer(E4M3FN, _TILE, v32, _FLOOR),
    "dsv32_inference_ue8m0": Quantizer(E4M3FN, _TILE, round_up(by_product, -126), _FLOOR),
    "dsv4_kv": Quantizer(E4M3FN, (1, 64), round_up(by_product, -126), _FLOOR),
    "dsv4_fp4": Quantizer(E2M1FN, _MX, round_up(by_product, -126), 6 * two_to(-126)),
    "deepgemm_fp4": Quantizer(E2M1FN, _MX, round_up(by_division, -126), _FLOOR, ties_toward_zero=True),
    "dsv41_kv_fp4": Quantizer(E2M1FN, _NV, e4m3_alone, 6 * two_to(-9)),
    "deepgemm": Quantizer(E4M3FN, _TILE, gemm, _FLOOR),
    "deepgemm_ue8m0": Quantizer(E4M3FN, _TILE, round_up(by_division, -126), _FLOOR),
    "tilekernels": Quantizer(E4M3FN, _TILE, tile, _FLOOR),
    "tilekernels_fp4": Quantizer(E2M1FN, _MX, tile, 6 * two_to(-126)),
    "te_current": Quantizer(E4M3FN, _TENSOR, te, inf=_SAME, nan=_SAME),
    "te_block_fp32": Quantizer(E4M3FN, _TILE, te, inf=_SAME, nan=_SAME),
    "te_block": Quantizer(E4M3FN, _TILE, te_power, inf=_SAME, nan=_SAME),
    "torchao_fp8": Quantizer(E4M3FN, _TENSOR, _torchao_fp8, _FLOOR_AO),
    "mxint8": Quantizer(MXINT8, _MX, exponent(floor_log2), zeros=_TINY),
    "nvfp4_te": Quantizer(E2M1FN, _NV, te_nvfp4, zeros=None, inf=(E4M3_MAX, r32(1 / E4M3_MAX)), bound=E4M3_MAX),
    "nvfp4_torchao": Quantizer(E2M1FN, _NV, torchao_nvfp4, zeros=(two_to(-6), ONE), bound=E4M3_MAX, folded=False),
    "nvfp4_torchao_one_level": Quantizer(E2M1FN, _NV, torchao_one_level, zeros=(two_to(-6), ONE)),
    "nvfp4_modelopt": Quantizer(E2M1FN, _NV, modelopt_nvfp4, bound=E4M3_MAX, folded=False),
}
# TransformerEngine d0067d0, quantize_transpose_nvfp4.cuh, ROW_SCALED_NVFP4: S_enc = 448 * 6 / amax_rowwise[row], or
# FLT_MAX if larger, 1 for an amax of 0 or Inf; amax by fmaxf, which ignores NaN; then as for a tensor's S_enc.
QUANTIZERS["nvfp4_te_row_scaled"] = QUANTIZERS["nvfp4_te"]._replace(by_row=True)
QUANTIZERS["nvfp4_te_2d"] = QUANTIZERS["nvfp4_te"]._replace(block=(16, 16))
for _choice, _suffix in (("mae", ""), ("mse", "_mse")):
    QUANTIZERS[f"nvfp4_4over6{_suffix}"] = QUANTIZERS["nvfp4_te"]._replace(bound=Fraction(256), choice=_choice)
for _name, _element in (("mxfp8", E4M3FN), ("mxfp8_e5m2", E5M2)):
    for _flavour, _rule in {
        "floor": exponent(floor_log2),
        "ceil": exponent(ceil_log2),
        "even": exponent(after_rounding(_element.mantissa_bits)),
        "even_1bit": exponent(after_rounding(1)),
    }.items():
        QUANTIZERS[f"{_name}_{_flavour}"] = Quantizer(_element, _MX, _rule, zeros=_TINY)
    QUANTIZERS[f"{_name}_rceil"] = Quantizer(_element, _MX, round_up(by_product, -127), zeros=_TINY, inf=_HUGE)
for _name, _element in (("mxfp6_e2m3", E2M3FN), ("mxfp6_e3m2", E3M2FN), ("mxfp4", E2M1FN)):
    QUANTIZERS[f"{_name}_floor"] = Quantizer(_element, _MX, exponent(floor_log2), zeros=_TINY)
    QUANTIZERS[f"{_name}_ceil"] = Quantizer(_element, _MX, exponent(ceil_log2), zeros=_TINY)
    _even = exponent(after_rounding(_element.mantissa_bits))
    QUANTIZERS[f"{_name}_even"] = Quantizer(_element, _MX, _even, zeros=_TINY)
    QUANTIZERS[f"{_name}_rceil"] = Quantizer(_element, _MX, round_up(by_product, -127), zeros=_TINY, inf=_HUGE)
QUANTIZERS["mxfp8_mlx"] = QUANTIZERS["mxfp8_rceil"]._replace(zeros=_SAME)
QUANTIZERS["mxfp4_mlx"] = QUANTIZERS["mxfp4_rceil"]._replace(zeros=_SAME, ties_toward_zero=True)
QUANTIZERS["mxfp4_gguf"] = QUANTIZERS["mxfp4_floor"]._replace(ties_toward_zero=True)
QUANTIZERS["mxfp4_modelopt"] = QUANTIZERS["mxfp4_rceil"]._replace(
    rule=round_up(by_division, -127), ties_toward_zero=True
)


#: Quantizers of transformed values: rule, and signs of the transform, which is rounded to bfloat16.
TRANSFORMED: dict[str, tuple[str, list[int]]] = {
    "nvfp4_te_rht": ("nvfp4_te", [1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1]),
    "nvfp4_te_rht_unsigned": ("nvfp4_te", [1] * 16),
}


def quantize(
    x: ArrayLike, quantizer: str | Quantizer, block: tuple[int | None, int | None] | None = None
) -> tuple[NDArray[np.uint32], NDArray[np.float32], np.float32 | NDArray[np.float32] | None]:
    """Quantize a float32 matrix with the named quantizer, in its default block or another.

    Returns
    -------
    codes : ndarray of uint32, shape (R, C)
    scales : ndarray of float32, shape (ceil(R / rows), ceil(C / columns))
    tensor : float32, ndarray of float32, or None
        Scale of the tensor, if the quantizer has one; per row, shape (R, 1); or per column, shape (1, C).
    """
    matrix = np.asarray(x, dtype=np.float32)
    if isinstance(quantizer, str) and quantizer in TRANSFORMED:
        quantizer, signs = TRANSFORMED[quantizer]
        turned = transform(matrix, signs)
        matrix = np.array([[_as_float(_stored(exact(float(v)))) for v in row] for row in turned], np.float32)
    r = QUANTIZERS[quantizer] if isinstance(quantizer, str) else quantizer
    values = [[exact(float(v)) for v in row] for row in matrix]
    top = Fraction(decode(max_code(r.element), r.element))
    rows, columns = r.block if block is None else block
    down = columns == 1 and rows != 1
    rows, columns = rows or matrix.shape[0], columns or matrix.shape[1]
    lines = [[[v] for v in line] for line in (zip(*values, strict=True) if down else values)] if r.by_row else [values]
    tensors = [_tensor(line, r, top) for line in lines]
    codes = np.zeros(matrix.shape, np.uint32)
    scales = np.zeros((-(-matrix.shape[0] // rows), -(-matrix.shape[1] // columns)), np.float32)
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            part = (slice(i * rows, (i + 1) * rows), slice(j * columns, (j + 1) * columns))
            tile = [row[part[1]] for row in values[part[0]]]
            scaled = _block(tile, r, top, tensors[0 if not r.by_row else j if down else i])
            scales[i, j] = _as_float(scaled.scale)
            code = _code_toward_zero if r.ties_toward_zero else _code
            codes[part] = [[code(v, scaled, r.element) for v in row] for row in tile]
    if r.bound is None:
        return codes, scales, None
    scale = np.array([_as_float(tensor.scale) for tensor in tensors], np.float32)
    return codes, scales, scale.reshape((1, -1) if down else (-1, 1)) if r.by_row else scale[0]


def _tensor(values: list[list[Exact]], r: Quantizer, top: Fraction) -> Tensor:
    if r.bound is None:
        return Tensor(ONE, ONE, ONE)
    magnitudes: list[Exact] = [size_of(v) for row in values for v in row if v == v]
    amax: Exact = max(magnitudes, default=Fraction(0))
    if r.folded and amax in (0, math.inf):
        return Tensor(Fraction(0), ONE, ONE)
    if amax == math.inf:
        return Tensor(Fraction(0), Fraction(0), math.inf)
    bound = r32(r.bound * top)
    if r.folded:
        e = r32(bound / Fraction(amax))
        return Tensor(Fraction(amax), e, r32(1 / e))
    g = max(r32(Fraction(amax) / bound), two_to(-149)) if amax else Fraction(0)
    return Tensor(Fraction(amax), r32(1 / g) if g else ONE, g)


def _block(tile: list[list[Exact]], r: Quantizer, top: Fraction, tensor: Tensor) -> Scaled:
    flat = [v for row in tile for v in row]
    if any(math.isnan(v) for v in flat):
        return Scaled(*r.nan)
    if any(math.isinf(v) for v in flat):
        return Scaled(*r.inf)
    amax = max(Fraction(size_of(v)) for v in flat)
    if amax == 0 and r.floor == 0 and r.zeros is not None:
        return Scaled(*r.zeros)
    amax = max(amax, r.floor)
    if tensor.scale == math.inf:  # every block scale is the smallest one, and every value is divided by Inf
        return r.rule(Fraction(0), top, tensor._replace(scale=ONE))._replace(factor=Fraction(0), divides=False)
    if r.choice is None:
        return r.rule(amax, top, tensor)
    six, four = six_or_four(amax, top, tensor)
    return four if _error(tile, four, r, top, tensor) < _error(tile, six, r, top, tensor) else six


def _error(tile: list[list[Exact]], scaled: Scaled, r: Quantizer, top: Fraction, tensor: Tensor) -> Exact:
    """Return the sum of errors, along each row in order, then over rows as a binary tree; Inf if anything overflows."""
    sums: list[Fraction] = []
    assert r.bound is not None
    for row in tile:
        total = Fraction(0)
        for v in row:
            q = Fraction(decode(_code(v, scaled, r.element), r.element))
            product = f32(Fraction(f32(q * Fraction(scaled.scale))) * tensor.amax)
            if product in (math.inf, -math.inf):
                return math.inf
            back = f32(Fraction(product) / r32(r.bound * top))
            d = Fraction(f32(Fraction(back) - Fraction(v)))
            square = f32(d * d)
            if r.choice == "mse" and square == math.inf:
                return math.inf
            sum_ = f32(total + (Fraction(square) if r.choice == "mse" else abs(d)))
            if sum_ == math.inf:
                return math.inf
            total = Fraction(sum_)
        sums.append(total)
    while len(sums) & (len(sums) - 1):
        sums.append(Fraction(0))
    while len(sums) > 1:
        half = len(sums) // 2
        pairs = [f32(a + b) for a, b in zip(sums[:half], sums[half:], strict=True)]
        if math.inf in pairs:
            return math.inf
        sums = [Fraction(pair) for pair in pairs]
    return sums[0]


def _code(v: Exact, scaled: Scaled, element: Fields) -> int:
    y = divide(v, scaled.factor) if scaled.divides else multiply(v, scaled.factor)
    if element is not MXINT8:
        return encode(y, element, "saturate")
    magnitude = encode(size_of(y), element, "saturate")
    return -magnitude % 256 if y < 0 else magnitude


def _code_toward_zero(v: Exact, scaled: Scaled, element: Fields) -> int:
    """Return the code of a scaled value, the number of midpoints below its magnitude, with its sign; zeros are +0."""
    y = divide(v, scaled.factor) if scaled.divides else multiply(v, scaled.factor)
    if math.isnan(y):
        return encode(y, element, "saturate")
    values = [Fraction(decode(code, element)) for code in range(max_code(element) + 1)]
    size = size_of(y)
    code = sum((low + high) / 2 < size for low, high in itertools.pairwise(values))
    return code | (int(y < 0) << element.width if code else 0)


def _as_float(value: Exact) -> Any:
    return np.array([encode(value, FLOAT32, "nonsaturate")], np.uint32).view(np.float32)[0]


def _stored(value: Exact) -> Exact:
    """Round to bfloat16, to nearest even; NaN stays NaN."""
    return decode(encode(value, BFLOAT16, "nonsaturate"), BFLOAT16)


def transform(x: ArrayLike, signs: list[int]) -> NDArray[np.float32]:
    """Return the Hadamard transform of runs within rows: signs, butterflies of increasing distance, then the factor."""
    size = len(signs)
    factor = Fraction(float(np.float32(1 / math.sqrt(size))))
    matrix = np.asarray(x, dtype=np.float32)
    out = np.empty(matrix.shape, np.float32)
    for i, row in enumerate(matrix):
        for start in range(0, len(row), size):
            run = (exact(float(a)) for a in row[start : start + size])
            v = [a if s > 0 else _minus(a) for a, s in zip(run, signs, strict=True)]
            h = 1
            while h < size:
                pairs = {j: (v[j], v[j + h]) for j in range(size) if not j & h}
                for j, (a, b) in pairs.items():
                    v[j], v[j + h] = _plus(a, b), _plus(a, _minus(b))
                h *= 2
            out[i, start : start + size] = [_as_float(multiply(a, factor)) for a in v]
    return out


def _minus(a: Exact) -> Exact:
    if a == 0:
        return Fraction(0) if is_negative_zero(a) else -0.0
    return -a


def _plus(a: Exact, b: Exact) -> Exact:
    """Return fl32(a + b), with IEEE 754's sign of zero."""
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return f32(a + b)
    if math.isfinite(a) and math.isfinite(b):  # one of them is -0
        return -0.0 if a == b == 0 and is_negative_zero(a) and is_negative_zero(b) else f32(Fraction(a) + Fraction(b))
    return float(a) + float(b)
