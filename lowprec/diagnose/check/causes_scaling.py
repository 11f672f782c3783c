"""Causes of differences in the quantizer: another scale rule, other blocks, another format."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..._arrays import repeat_tiles
from ...cast.casts import encode, round_to
from ...format.catalogue import formats
from ...scaling.constants import bound_of, rule_of, tensor_scale
from ...scaling.granularity import Granularity
from ...scaling.quantizer import Quantizer, quantizers
from ...scaling.rules import FLOAT32, SPECIALS, are_powers, scale_calculations
from .causes import add, of_neighbours, typical_ratio
from .expected import F32, Expected, Observed, quotient_of

_EPSILONS = (
    1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9, 1e-10, 1e-12, 1e-15, 1e-20, 1e-30,
    2.0**-7, 2.0**-10, 2.0**-23, 2.0**-24,
)  # fmt: skip
_BOUNDS = (1.0, 1e-1, *_EPSILONS, 2.0**-6, 2.0**-9, 2.0**-14)
_BLOCKS = (
    "1x16", "1x32", "1x64", "1x128", "1x256", "16x1", "32x1", "64x1", "128x1", "16x16", "32x32", "64x64", "128x128",
    "row", "column", "tensor",
)  # fmt: skip
_TOPS = ("e4m3fn", "e4m3", "e5m2", "e4m3b11fnuz", "e3m4", "e2m1fn", "e3m2fn", "e2m3fn", "int8", "int4", "mxint8")
Forms = Iterator[tuple[str, Expected]]


def _changed(made: Expected, changes: dict[str, dict[str, Any]]) -> Forms:
    """Yield the results of the quantizer with some fields changed, without invalid combinations."""
    for form, fields in changes.items():
        with contextlib.suppress(ValueError):
            yield form, made.changed(q=made.q.with_(**fields))


def _has_mantissa(q: Quantizer) -> bool:
    """Return whether scales have mantissa bits but are not float32."""
    return q.scale_format != FLOAT32 and not are_powers(q.scale_format)


def _is_plain(q: Quantizer) -> bool:
    """Return whether scales depend on amax alone, without a Hadamard transform or a choice between scales."""
    return q.hadamard_size is None and rule_of(q).four_over_six is None


@add("scale from another arithmetic", "making", "compute the scale with the quantizer's formula")
def _arithmetic(made: Expected, found: Observed) -> Forms:
    q = made.q
    own = rule_of(q).scale_calculation
    others = [name for name in scale_calculations(q.scale_format) if name not in (own, "block_scale_only")]
    yield from _changed(made, {f"{name} instead of {own}": {"scale_calculation": name, "four_over_six": None}
                               for name in others})  # fmt: skip


add("no scale of the tensor used", "making",
    "divide by the tensor's scale as well, or compare with a one-level quantizer")(
    lambda m, f: _changed(m, {"": {"scale_calculation": "block_scale_only", "four_over_six": None}})
    if m.q.has_tensor_scale else ()
)  # fmt: skip


@add("values divided otherwise", "making", "divide by the scale as the quantizer does: a reciprocal adds a rounding")
def _divided(made: Expected, found: Observed) -> Forms:
    own = quotient_of(made.q)
    g = {"x / s / g", "x / (s * g)", "x * (1 / (s * g))", "x * (1 / g / s)"}
    for how in sorted(g if made.q.has_tensor_scale else {"x / s", "x * (1 / s)", "x * (max / amax)"}):
        if how != own and rule_of(made.q).four_over_six is None:
            yield f"{how} instead of {own}", made.changed(how=how)


@add("another lower bound on amax", "making", "use the quantizer's lower bound on amax, if it has one")
def _bound(made: Expected, found: Observed) -> Forms:
    own = rule_of(made.q).amax_floor
    if not _has_mantissa(made.q):
        bounds = {0.0, *_BOUNDS, *_read_bounds(made, found)} - {own}
        low = float(np.nanmin(made.amax, initial=np.inf))
        bounds = {b for b in bounds if b > low or own > low}
        yield from _changed(made, {f"{b:g} instead of {own:g}": {"amax_floor": b}
                                   for b in sorted(bounds)})  # fmt: skip


def _read_bounds(made: Expected, found: Observed) -> set[float]:
    """Return lower limits of amax that give the smallest scale found; for a single scale, only round numbers."""
    if found.scale.shape != made.scale.shape or not found.scale.size:
        return set()
    least = float(np.nanmin(np.where(found.scale > 0, found.scale, np.inf))) * float(made.format.max)
    if not 0 < least < 1e30:
        return set()
    bounds = {float(f"{least:.{digits}g}") for digits in (2, 3)}
    if found.scale.size > 1:  # fewer than one random scale in 10,000 is that of a round bound
        bounds |= {float(f"{least:.6g}"), float(np.float32(least))}
    return bounds


@add("epsilon added", "making", "omit the epsilon: a lower bound on amax handles zeros without changing other scales")
def _epsilon(made: Expected, found: Observed) -> Forms:
    for epsilon in map(np.float32, _EPSILONS if _is_plain(made.q) else ()):
        if not np.array_equal(made.floored + epsilon, made.floored, equal_nan=True):
            after = *made.after, functools.partial(np.add, epsilon)
            yield f"amax + {epsilon:g}", made.changed(after=after)
            if made.q.has_tensor_scale:
                yield f"amax + {epsilon:g}, of the tensor too", made.changed(after=after, whole=True)
        if made.q.scale_format == FLOAT32:
            scale = made.own + epsilon
            if not np.array_equal(scale, made.own, equal_nan=True):
                yield f"scale + {epsilon:g}", made.with_scale(scale)


def _at(fits: Callable[[NDArray[np.intp], int], Any]) -> Callable[[F32, tuple[int, int]], F32]:
    """Return a function that zeroes all values of a block except at the indices, from 0, for which `fits` is true."""

    def part(x: F32, block: tuple[int, int]) -> F32:
        rows, columns = (min(b, n) for b, n in zip(block, x.shape, strict=True))
        i, j = np.ogrid[: x.shape[0], : x.shape[1]]
        kept: F32 = np.where(fits((i % rows) * columns + j % columns, rows * columns), x, np.float32(0))
        return kept

    return part


_PARTS: dict[str, Callable[[F32, tuple[int, int]], F32]] = {
    "the largest value": lambda x, block: np.maximum(x, 0),
    "the least value, negated": lambda x, block: np.maximum(-x, 0),
    "the first half": _at(lambda place, n: place < n // 2), "the second half": _at(lambda place, n: place >= n // 2),
    "the first quarter": _at(lambda place, n: place < n // 4), "even places": _at(lambda place, n: place % 2 == 0),
    "odd places": _at(lambda place, n: place % 2), "all but the last element": _at(lambda place, n: place < n - 1),
    "all but the first element": _at(lambda place, n: place),
}  # fmt: skip


@add("amax of a part of the block", "making", "take the largest magnitude of all elements of the block, signs dropped")
def _partial(made: Expected, found: Observed) -> Forms:
    for form, part in _PARTS.items() if _is_plain(made.q) else ():
        yield form, made.changed(part=part)
        if made.q.has_tensor_scale:
            yield f"{form}, of the tensor too", made.changed(part=part, whole=True)


@add("amax of a neighbouring block", "making", "compute amax for every block before its scale is used", 1.4)
def _neighbours(made: Expected, found: Observed) -> Forms:
    if found.scale.shape == made.scale.shape:
        for form, scale in of_neighbours(made.scale, found.scale, typical_ratio(found.scale, made.scale)):
            yield form, made.with_scale(scale)


@add("scale rounded in another direction", "making", "round scales to nearest, as the quantizer does")
def _directed(made: Expected, found: Observed) -> Forms:
    if not _is_plain(made.q) or are_powers(made.q.scale_format) or not made.scale.size:
        return
    for mode in ("up", "down"):
        yield mode, made.changed(directed=functools.partial(_scales_rounded, mode, found.scale))


def _scales_rounded(mode: str, found: F32, made: Expected) -> F32:
    """Return scales rounded up or down; where float32 rounding could decide either way, the scales found."""
    unit = float((made.top or made.format).max) * float(1 if made.tensor is None else made.tensor)
    exact = made.floored.astype(np.float64) / unit
    rounded, toward = exact.astype(np.float32), np.float32(np.inf if mode == "up" else 0)
    if made.q.scale_format == FLOAT32:
        beyond = rounded < exact if mode == "up" else rounded > exact
        return np.where(beyond, np.nextafter(rounded, toward), rounded)
    scale = round_to(rounded, made.q.scale_format, rounding=mode, overflow="saturate")
    if found.shape == scale.shape:
        away = np.nextafter(rounded, np.float32(0 if mode == "up" else np.inf))
        other = round_to(away, made.q.scale_format, rounding=mode, overflow="saturate")
        scale = np.where(found == other, other, scale)
    return scale


@add("scale for the maximum of another format", "making", "divide amax by the largest number of the element format")
def _maximum(made: Expected, found: Observed) -> Forms:
    own = made.format
    for name in _TOPS:
        other = formats[name]
        if other.max == own.max or made.q.hadamard_size is not None:
            continue
        with contextlib.suppress(ValueError):
            yield f"{other.max:g} instead of {own.max:g}", made.changed(top=other)


@add("amax multiplied", "making", "divide by the largest number of the element format, not by a multiple of it", 1.1)
def _factor(made: Expected, found: Observed) -> Forms:
    if _is_plain(made.q) and not made.q.has_tensor_scale:
        for factor in (2.0, 0.5, 4.0, 0.25):
            after = *made.after, functools.partial(np.multiply, np.float32(factor))
            yield f"by {factor:g}", made.changed(after=after)


@add("codes of another format", "making", "convert the codes, or decode them in their format")
def _format(made: Expected, found: Observed) -> Forms:
    own = made.format
    for name in formats:
        other = formats[name]
        if other.bits != own.bits or other.same_codes(own) or name == "e8m0fnu":
            continue
        try:
            of_other = made.changed(q=made.q.with_(format=other))
            codes = encode(made.v, other)
        except ValueError:
            continue
        yield name, of_other
        if not np.array_equal(of_other.own, made.own, equal_nan=True):
            kept = Expected(codes, made.scale, made.tensor, made.x, made.q, made.own)
            yield f"{name}, with scales for {own.name}", kept


@add("other blocks", "making", "use the quantizer's blocks: rows x columns of the matrix as stored")
def _blocks(made: Expected, found: Observed) -> Forms:
    own = made.q.granularity
    shape = (made.x.shape[0], made.x.shape[1])
    seen = {own.block(shape)}
    for text in (str(own.T), *_BLOCKS):
        block = Granularity.parse(text).block(shape)
        if block in seen:
            continue
        seen.add(block)
        for form, other in _changed(made, {f"{text} instead of {own}": {"granularity": text}}):
            yield form, other
            rows, columns = own.block(shape)
            if other.scale.shape != made.scale.shape and not (block[0] % rows or block[1] % columns):
                wide = repeat_tiles(repeat_tiles(other.scale, block[0] // rows, made.scale.shape[0], 0),
                              block[1] // columns, made.scale.shape[1])  # fmt: skip
                yield (
                    f"{form}, each scale repeated",
                    Expected(other.codes, wide, other.tensor, made.x, made.q, made.own),
                )


@add("amax of another tensor", "making", "compute the tensor's amax from this tensor, after its last change", 1.1)
def _calibrated(made: Expected, found: Observed) -> Forms:
    if not made.q.has_tensor_scale or made.tensor is None or made.q.hadamard_size is not None:
        return
    own = np.float32(np.max(made.amax, initial=0, where=np.isfinite(made.amax)))
    for amax in _amaxes(made, found):
        if amax != own:
            yield f"{amax:g} instead of {own:g}", made.changed(tensor_amax=amax)


def _amaxes(made: Expected, found: Observed) -> list[np.float32]:
    """Return at most nine values of amax that give the tensor's scale found."""
    if found.tensor is None or not (np.isfinite(found.tensor) and found.tensor > 0):
        return []
    bound = float(np.float32(bound_of(made.q)) * np.float32(made.format.max))
    at = np.float32(min(float(found.tensor) * bound, 3e38))
    near = [at]
    for _ in range(4):
        near = [np.nextafter(near[0], np.float32(0)), *near, np.nextafter(near[-1], np.float32(np.inf))]
    return [amax for amax in near if tensor_scale(made.q, made.format, amax).scale == found.tensor]


@add("another bound on block scales", "making", "scale so that the largest block's scale is the quantizer's bound")
def _bounds(made: Expected, found: Observed) -> Forms:
    q, rule, bound = made.q, rule_of(made.q), bound_of(made.q)
    if _has_mantissa(q):
        changes: dict[str, dict[str, Any]] = {
            f"{b:g} instead of {bound:g}": {"max_block_scale": b} for b in (448.0, 256.0, 240.0, 1.0) if b != bound
        }
        lows = {"0": 0.0, "2^-9": 2.0**-9, "2^-6": 2.0**-6}
        changes |= {f"at least {at}": {"min_scale": low} for at, low in lows.items() if low != rule.min_scale}
        if rule.four_over_six is not None:
            changes["one choice instead of four or six"] = {"four_over_six": None}
            changes |= {f"{c} decides": {"four_over_six": c} for c in ("mae", "mse") if c != rule.four_over_six}
        elif q.has_tensor_scale:
            changes |= {
                f"four over six, {c}": {"scale_calculation": "direct", "max_block_scale": 256.0, "four_over_six": c}
                for c in ("mae", "mse")
            }
        yield from _changed(made, changes)
    elif are_powers(q.scale_format):
        other = -253 - rule.min_scale_exponent
        yield from _changed(made, {f"2^{other} at least": {"min_scale_exponent": other}})


@add("blocks of zeros, Inf or NaN otherwise", "making", "give them the quantizer's scale", needs_majority=False)
def _special(made: Expected, found: Observed) -> Forms:
    changes: dict[str, dict[str, Any]] = {}
    tests: dict[str, Callable[[F32], Any]] = {
        "zero_block": lambda a: a == 0, "inf_block": np.isinf, "nan_block": np.isnan,
    }  # fmt: skip
    for case, test in tests.items():
        if test(made.amax).any():
            for name in (*SPECIALS, *(("rule",) if case == "zero_block" else ())):
                if name != (own := getattr(rule_of(made.q), case)):
                    changes[f"{case}: {name} instead of {own}"] = {case: name}
    yield from _changed(made, changes)


@add("Hadamard transform", "making", "transform both operands or neither, with the same size and signs")
def _transform(made: Expected, found: Observed) -> Forms:
    if made.q.hadamard_size is not None:
        yield from _changed(made, {"left out": {"hadamard_size": None}, "other signs": {
            "hadamard_signs": "none" if made.q.hadamard_signs == "te" else "te"}})  # fmt: skip
    elif _has_mantissa(made.q):
        signs = {"of 16 with TransformerEngine's signs": "te", "of 16 without signs": "none"}
        yield from _changed(made, {k: {"hadamard_size": 16, "hadamard_signs": each} for k, each in signs.items()})


@add("another quantizer", "making", "compare with the quantizer that was used", 1.4)
def _another(made: Expected, found: Observed) -> Forms:
    for name in quantizers.names():
        other = quantizers[name]
        if (
            other.amax_history_len is None
            and not other.has_row_scales
            and other.scale_format == made.q.scale_format
            and other != made.q
        ):
            try:
                yield name, made.changed(q=other)
            except ValueError:
                continue
