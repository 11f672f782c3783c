"""Catalogue of faults of matrix products: errors that have occurred in kernels."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..cast.casts import decode, encode, round_to
from ..format.catalogue import formats
from ..registry import Registry
from ..scaling.quantize import quantize
from ..scaling.quantized import Quantized
from ..tensorcore.accumulator import AlignedSum
from ..tensorcore.matmul import matmul_f32
from ..tensorcore.operands import slice_k
from .product import Product

Result = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Fault:
    """Fault of a kernel.

    Parameters
    ----------
    name : str
        Name in tables and messages.
    summary : str
        Description of the error.
    product : callable, optional
        Function of a `Product` that returns the wrong result, or None if the fault does not apply.
    output : callable, optional
        Function of the correct result that returns the wrong one, for arrays of NumPy and of torch; `lowprec mutate`
        applies it to both.
    operand : callable, optional
        Function of an operand's values [..., K] that returns the wrong values, for `lowprec mutate`.
    vacuous : bool
        Whether a test that accepts this fault is useless.
    """

    name: str
    summary: str
    product: Callable[[Product], Result | None] | None = field(default=None, repr=False)
    output: Callable[[Any], Any] | None = field(default=None, repr=False)
    operand: Callable[[Any], Any] | None = field(default=None, repr=False)
    vacuous: bool = False

    def __post_init__(self) -> None:
        if self.product is None and self.output is None:
            raise ValueError(f"Fault {self.name}: product or output must be given, got neither")

    def apply(self, product: Product, right: Result | None = None) -> Result | None:
        """Return the wrong result of a product in its format, or None if the fault does not apply to the product."""
        if self.product is not None:
            found = self.product(product)
        else:
            assert self.output is not None
            found = self.output((product.result() if right is None else right).copy())
        return None if found is None else round_to(found, product.options.get("out_format", "float32"))


faults: Registry[Fault] = Registry("fault", Fault)
"""Catalogue of faults."""


def _add(name: str, summary: str, **how: Any) -> None:
    faults.register(name, Fault(name, summary, **how))


# --- faults of the result, for arrays of any package -----------------------------------------------------------------


def _copy(d: Any) -> Any:
    return d.clone() if hasattr(d, "clone") else d.copy()


def _garbage(d: Any) -> Any:
    """Return the elements in another order, so that their magnitudes and distribution are correct."""
    flat = _copy(d).reshape(-1)
    step = next(s for s in range(flat.shape[0] // 2 + 1, 2 * flat.shape[0] + 3) if math.gcd(s, flat.shape[0]) == 1)
    places = [(i * step) % flat.shape[0] for i in range(flat.shape[0])]
    return flat[places].reshape(d.shape)


def _row(d: Any) -> Any:
    d = _copy(d)
    d[d.shape[0] // 2] = 0
    return d


def _one(d: Any) -> Any:
    d = _copy(d)
    at = tuple(n // 2 for n in d.shape)
    d[at] = -d[at] + 1
    return d


def _neighbour_row(d: Any) -> Any:
    found = _copy(d)
    found[1:], found[:1] = d[:-1], d[-1:]
    return found


def _swallowed(d: Any) -> Any:
    found = _copy(d)
    found[found != found] = 0  # NaN, in any package
    return found


_add("zeros", "returns zeros", output=lambda d: d * 0, vacuous=True)
_add("garbage", "returns the right numbers in wrong places", output=_garbage, vacuous=True)
_add("sign", "returns the result with its sign inverted", output=lambda d: -d)
_add("0.72x", "multiplies the result by 0.72", output=lambda d: d * 0.72)
_add("1.01x", "multiplies the result by 1.01", output=lambda d: d * 1.01)
_add("row dropped", "leaves a row of zeros", output=_row)
_add("row neighbour", "stores every row one place below", output=_neighbour_row)
_add("one output", "stores one wrong output", output=_one)
_add("through e5m2", "rounds the result to e5m2 on its way", output=lambda d: round_to(d, "e5m2", like=d))
_add("NaN swallowed", "returns 0 for NaN", output=_swallowed)

# --- faults of operands, scales and arithmetic -----------------------------------------------------------------------


def _copied(p: Product) -> Result:
    return np.resize(p.a.dequantize(), (p.a.shape[0], p.b.shape[0]))


def _bias(p: Product) -> Result | None:
    if p.c is None or p.options.get("beta", 1.0) == 0:
        return None
    return np.asarray(p.c, np.float32) * np.float32(p.options.get("beta", 1.0))


def _without(count: int) -> Callable[[Any], Any]:
    """Return a function that sets `count` consecutive columns in the middle of an operand [R, K] to zero."""

    def operand(x: Any) -> Any:
        x, k = _copy(x), x.shape[-1]
        start = k // 2 // count * count
        x[..., start : start + count] = 0
        return x

    return operand


def _dropped(count: int) -> dict[str, Any]:
    def product(p: Product) -> Result | None:
        return p.result(a=replace(p.a, codes=_without(count)(p.a.codes))) if p.a.shape[1] > count else None

    return {"product": product, "operand": _without(count)}


def _scales(change: Callable[[NDArray[np.float32]], NDArray[np.float32] | None]) -> Callable[[Product], Result | None]:
    """Return a fault that changes A's scales, for a product with any accumulator."""

    def product(p: Product) -> Result | None:
        found = change(p.a.scale.copy()) if p.a.scale.size else None
        if found is None or np.array_equal(found, p.a.scale):
            return None
        return _with_a(p, replace(p.a, scale=found, quantizer=None))

    return product


def _with_a(p: Product, a: Quantized) -> Result:
    """Return the product of another A, whose scales an instruction with scales may not accept."""
    if p.options["accumulator"].scale_format is None:
        return p.result(a=a)
    return _by_values(p, a.dequantize(), p.b.dequantize())


def _by_values(p: Product, x: ArrayLike, y: ArrayLike) -> Result:
    """Return a product computed in float32 from values, for operands that the instruction does not accept."""
    d = matmul_f32(x, y) * np.float32(p.options.get("alpha", 1.0))
    added = _bias(p)
    return d if added is None else d + added


def _tile_of(factor: float) -> Callable[[NDArray[np.float32]], NDArray[np.float32]]:
    def change(scale: NDArray[np.float32]) -> NDArray[np.float32]:
        scale[:, scale.shape[1] // 2] *= np.float32(factor)
        return scale

    return change


def _transposed(scale: NDArray[np.float32]) -> NDArray[np.float32] | None:
    return np.ascontiguousarray(scale.T) if scale.shape[0] == scale.shape[1] > 1 else None


def _as_fnuz(p: Product) -> Result | None:
    other = {"e4m3fn": "e4m3fnuz", "e5m2": "e5m2fnuz"}.get(p.a.format.name)
    if other is None:
        return None
    scaled = p.a.dequantize() / np.where((own := decode(p.a.codes, p.a.format)) == 0, np.nan, own)
    return _by_values(p, np.nan_to_num(scaled) * decode(p.a.codes, other), p.b.dequantize())


def _raw(p: Product) -> Result | None:
    return None if p.sources is None else _by_values(p, p.sources[0], p.b.dequantize())


def _unpromoted(p: Product) -> Result | None:
    rule = p.options["accumulator"]
    if rule.scale_format is not None or not rule.has_running_sum or rule.dtype == np.float16:
        return None
    try:
        return p.result(promote_every=None)
    except ValueError:  # scales that change within an instruction
        return None


def _one_bit_less(p: Product) -> Result | None:
    rule = p.options["accumulator"]
    if not isinstance(rule, AlignedSum):
        return None
    return p.result(accumulator=rule.with_(fraction_bits=rule.fraction_bits - 1))


def _requantized(p: Product) -> Result | None:
    if p.a.format.bits > 8:
        return None
    again = quantize(p.a.dequantize(), f"{p.a.format.name} tensor")
    changed = not np.array_equal(again.dequantize(), p.a.dequantize(), equal_nan=True)
    return _with_a(p, again) if changed else None


def _tiles(p: Product) -> list[dict[str, Quantized]]:
    """Return the operands of each tile of K: 128 products, or more where blocks of scales are longer."""
    k, spans = p.a.shape[1], [q.granularity.columns or 1 for q in (p.a, p.b)]
    step = math.lcm(128, *(span for span in spans if span < k))
    ends = [(start, min(start + step, k)) for start in range(0, k, step)]
    return [{"a": slice_k(p.a, *each), "b": slice_k(p.b, *each)} for each in ends]


def _counted_twice(p: Product) -> Result | None:
    *others, last = _tiles(p) or [{}]
    return p.result(out_format="float32") + p.result(c=None, out_format="float32", **last) if others else None


def _bfloat16_sums(p: Product) -> Result | None:
    total = np.zeros((p.a.shape[0], p.b.shape[0]), np.float32)
    if len(tiles := _tiles(p)) < 2:
        return None
    for tile in tiles:
        total = round_to(total + p.result(c=None, **tile), formats["bfloat16"])
    added = _bias(p)
    return total if added is None else total + added


def _swapped(p: Product) -> Result | None:
    return np.ascontiguousarray(p.result(c=None).T) if p.a.shape[0] == p.b.shape[0] else None


def _other(name: str, value: float) -> Callable[[Product], Result | None]:
    def product(p: Product) -> Result | None:
        changed = p.options.get(name, 1.0) != value and (name != "beta" or p.c is not None)
        return p.result(**{name: value}) if changed else None

    return product


def _cut(p: Product) -> Result | None:
    target = formats.get(p.options.get("out_format", "float32"))
    wide = p.result(out_format="float32")
    return None if target.same_codes(formats["float32"]) else round_to(wide, target, rounding="toward_zero")


def _overflowing(p: Product) -> Result | None:
    """Return the product that results if values of A above the format's maximum become Inf or NaN."""
    if p.sources is None or p.a.format.bits > 8:
        return None
    ones = replace(p.a, codes=np.full_like(p.a.codes, encode(1.0, p.a.format)), quantizer=None).dequantize()
    with np.errstate(all="ignore"):
        codes = encode(p.sources[0] / ones, p.a.format, overflow="nonsaturate")
    beyond = ~np.isfinite(decode(codes, p.a.format)) & np.isfinite(decode(p.a.codes, p.a.format))
    return p.result(a=replace(p.a, codes=np.where(beyond, codes, p.a.codes), quantizer=None)) if beyond.any() else None


def _no_nan(p: Product) -> Result | None:
    lost, scale = np.isnan(decode(p.a.codes, p.a.format)), np.nan_to_num(p.a.scale, nan=1.0)
    if not lost.any() and np.array_equal(scale, p.a.scale):
        return None
    codes = np.where(lost, encode(0.0, p.a.format), p.a.codes)
    return p.result(a=replace(p.a, codes=codes, scale=scale, quantizer=None))


def _next_row(scale: Any) -> Any:
    return np.roll(scale, 1, axis=0) if np.ndim(scale) and scale.shape[0] > 1 else None


def _tensor_scale(change: Callable[[Any], Any]) -> Callable[[Product], Result | None]:
    def product(p: Product) -> Result | None:
        found = None if p.a.tensor_scale is None else change(p.a.tensor_scale)
        return None if found is None else p.result(a=replace(p.a, tensor_scale=found, quantizer=None))

    return product


_add("inputs copied", "returns A", product=_copied, vacuous=True)
_add("bias only", "returns C without the product", product=_bias, vacuous=True)
_add("product dropped", "leaves out one k", **_dropped(1))
_add("instruction dropped", "leaves out 32 products", **_dropped(32))
_add("K tile dropped", "leaves out 128 products", **_dropped(128))
_add("K tile counted twice", "adds the last 128 products twice", product=_counted_twice)
_add("scale 1 ulp off", "uses scales of A that are one float32 too large",
     product=_scales(lambda s: np.nextafter(s, np.float32(np.inf))))  # fmt: skip
_add("scale 6 % off", "uses a scale 6 % too large in one tile of K", product=_scales(_tile_of(1.06)))
_add("scale doubled", "uses twice the scale in one tile of K", product=_scales(_tile_of(2.0)))
_add("scale of the neighbour", "uses A's scale of the next tile of K",
     product=_scales(lambda s: np.roll(s, 1, axis=1)))  # fmt: skip
_add("scale of another row", "uses A's scales of the next row", product=_scales(lambda s: np.roll(s, 1, axis=0)))
_add("scales transposed", "reads A's scales in the other order", product=_scales(_transposed))
_add("scales inverted", "divides by A's scales", product=_scales(lambda s: np.float32(1) / s))
_add("scales missing", "multiplies codes without A's scales", product=_scales(np.ones_like))
_add("global scale stale", "uses a scale of A's tensor that is 25 % too large",
     product=_tensor_scale(lambda s: s * np.float32(1.25)))  # fmt: skip
_add("global scale inverted", "divides by the scale of A's tensor", product=_tensor_scale(lambda s: np.float32(1) / s))
_add("global scale of another row", "uses the next row's scale of A, where every row has one",
     product=_tensor_scale(_next_row))  # fmt: skip
_add("saturation missing", "lets A's largest values overflow to Inf or NaN", product=_overflowing)
_add("NaN read as zero", "reads NaN in A as 0", product=_no_nan, operand=_swallowed)
_add("A not quantized", "multiplies A's own values", product=_raw)
_add("A quantized twice", "quantizes A again, with one scale for the tensor", product=_requantized)
_add("FN read as FNUZ", "decodes A with the other bias", product=_as_fnuz)
_add("never promoted", "keeps the sum in the tensor core", product=_unpromoted)
_add("one bit less", "keeps one fraction bit less in the alignment", product=_one_bit_less)
_add("bfloat16 sums", "rounds the sum to bfloat16 after every 128 products", product=_bfloat16_sums)
_add("rounded toward zero", "truncates to the result's format", product=_cut)
_add("A and B swapped", "returns the transposed product", product=_swapped)
_add("alpha dropped", "leaves out alpha", product=_other("alpha", 1.0))
_add("beta dropped", "leaves out beta", product=_other("beta", 1.0))
_add("C dropped", "leaves out the addend", product=_other("beta", 0.0))
