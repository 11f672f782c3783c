"""Causes in the quantizer: scales by another rule, over other blocks, for another format."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..._arrays import spread
from ...cast.casts import encode, round_to
from ...format.catalogue import formats
from ...scaling.constants import bound_of, rule_of, tensor_scale
from ...scaling.granularity import Granularity
from ...scaling.quantizer import Quantizer, quantizers
from ...scaling.rules import FLOAT32, SPECIALS, are_powers, scale_calculations
from .causes import add
from .expected import F32, Expected, Observed, amax_of, quotient_of, scales_of

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
    """Yield what the same quantizer makes with fields changed; what no quantizer may have is left out."""
    for form, fields in changes.items():
        try:
            q = made.q.with_(**fields)
            yield form, Expected.of(made.x, q)
        except ValueError:
            continue


def _has_mantissa(q: Quantizer) -> bool:
    """Tell whether scales have mantissa bits: not powers of two, nor float32."""
    return q.scale_format != FLOAT32 and not are_powers(q.scale_format)


@add("scale from another arithmetic", "making", "compute the scale with the quantizer's formula")
def _arithmetic(made: Expected, found: Observed) -> Forms:
    q = made.q
    own = rule_of(q).scale_calculation
    others = [name for name in scale_calculations(q.scale_format) if name not in (own, "block_scale_only")]
    yield from _changed(made, {f"{name} instead of {own}": {"scale_calculation": name, "four_over_six": None}
                               for name in others})  # fmt: skip


@add(
    "no scale of the tensor used",
    "making",
    "divide by the tensor's scale as well, or compare with a one-level quantizer",
)
def _one_level(made: Expected, found: Observed) -> Forms:
    if made.q.has_tensor_scale:
        yield from _changed(made, {"": {"scale_calculation": "block_scale_only", "four_over_six": None}})


@add("values divided otherwise", "making", "divide by the scale as the quantizer does: a reciprocal adds a rounding")
def _divided(made: Expected, found: Observed) -> Forms:
    own = quotient_of(made.q)
    g = {"x / s / g", "x / (s * g)", "x * (1 / (s * g))", "x * (1 / g / s)"}
    for how in sorted(g if made.q.has_tensor_scale else {"x / s", "x * (1 / s)", "x * (max / amax)"}):
        if how != own and rule_of(made.q).four_over_six is None:
            yield f"{how} instead of {own}", made.with_scale(made.scale, how=how)


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
    """Return bounds that the smallest scale found would be of; of a single scale, which may be of any, round ones."""
    if found.scale.shape != made.scale.shape or not found.scale.size:
        return set()
    least = float(np.nanmin(np.where(found.scale > 0, found.scale, np.inf))) * float(made.format.max)
    if not 0 < least < 1e30:
        return set()
    bounds = {float(f"{least:.{digits}g}") for digits in (2, 3)}
    if found.scale.size > 1:  # of a single scale by chance fewer than one in 10,000 would be that of a round bound
        bounds |= {float(f"{least:.6g}"), float(np.float32(least))}
    return bounds


@add("epsilon added", "making", "omit the epsilon: a lower bound on amax handles zeros without changing other scales")
def _epsilon(made: Expected, found: Observed) -> Forms:
    if made.q.hadamard_size is not None or rule_of(made.q).four_over_six is not None:
        return
    floored = made.floored
    for epsilon in map(np.float32, _EPSILONS):
        amax = floored + epsilon
        if not np.array_equal(amax, floored, equal_nan=True):
            yield f"amax + {epsilon:g}", made.with_scale(*_from(made, made.q, amax), largest=amax)
            if made.q.has_tensor_scale:
                both = _from(made, made.q, amax, _top(made) + epsilon)
                yield f"amax + {epsilon:g}, of the tensor too", made.with_scale(*both)
        if made.q.scale_format == FLOAT32:
            scale = made.own + epsilon
            if not np.array_equal(scale, made.own, equal_nan=True):
                yield f"scale + {epsilon:g}", made.with_scale(scale)


@add("amax of a part of the block", "making", "take the largest magnitude of all elements of the block, signs dropped")
def _partial(made: Expected, found: Observed) -> Forms:
    if made.q.hadamard_size is not None or rule_of(made.q).four_over_six is not None:
        return
    (rows, columns), x = made.block, made.rotated
    i, j = np.ogrid[: x.shape[0], : x.shape[1]]
    place, n = (i % rows) * columns + j % columns, min(rows, x.shape[0]) * min(columns, x.shape[1])
    parts = {
        "the largest value": np.maximum(x, 0), "the least value, negated": np.maximum(-x, 0),
        "the first half": np.where(place < n // 2, x, 0), "the second half": np.where(place >= n // 2, x, 0),
        "the first quarter": np.where(place < n // 4, x, 0), "even places": np.where(place % 2 == 0, x, 0),
        "odd places": np.where(place % 2, x, 0), "all but the last element": np.where(place < n - 1, x, 0),
        "all but the first element": np.where(place, x, 0),
    }  # fmt: skip
    for form, part in parts.items():
        amax = np.maximum(amax_of(part, made.block), np.float32(rule_of(made.q).amax_floor))
        yield form, made.with_scale(*_from(made, made.q, amax), largest=amax)
        if made.q.has_tensor_scale:
            top = np.float32(np.max(np.abs(part), initial=0, where=np.isfinite(part)))
            both = _from(made, made.q, amax, top)
            yield f"{form}, of the tensor too", made.with_scale(*both, largest=amax)


@add("scale rounded in another direction", "making", "round scales to nearest, as the quantizer does")
def _directed(made: Expected, found: Observed) -> Forms:
    q, rule = made.q, rule_of(made.q)
    if (
        q.hadamard_size is not None
        or rule.four_over_six is not None
        or are_powers(q.scale_format)
        or not made.scale.size
    ):
        return
    unit = float(made.format.max) * float(1 if made.tensor is None else made.tensor)
    exact = made.floored.astype(np.float64) / unit
    rounded = exact.astype(np.float32)
    for mode in ("up", "down"):
        if q.scale_format == FLOAT32:
            beyond = rounded < exact if mode == "up" else rounded > exact
            toward = np.float32(np.inf if mode == "up" else 0)
            scale = np.where(beyond, np.nextafter(rounded, toward), rounded)
        else:
            scale = round_to(rounded, q.scale_format, rounding=mode, overflow="saturate")
            if found.scale.shape == scale.shape:  # numbers that float32 puts on either side
                other = round_to(np.nextafter(rounded, np.float32(0 if mode == "up" else np.inf)), q.scale_format,
                                 rounding=mode, overflow="saturate")  # fmt: skip
                scale = np.where(found.scale == other, other, scale)
        yield mode, made.with_scale(scale)


def _top(made: Expected) -> np.float32:
    """Return the tensor's largest magnitude, NaN and Inf left out."""
    return np.float32(np.max(made.amax, initial=0, where=np.isfinite(made.amax)))


def _from(made: Expected, q: Quantizer, amax: F32, top: np.float32 | None = None) -> tuple[F32, np.float32 | None]:
    """Return scales of blocks, and of the tensor, that a quantizer computes from largest magnitudes."""
    if not q.has_tensor_scale:
        return scales_of(q, amax), None
    top = _top(made) if top is None else top
    return scales_of(q, amax, float(top)), tensor_scale(q, q.format, top).scale


@add(
    "scale for the maximum of another format",
    "making",
    "divide amax by the largest number of the element format",
)
def _maximum(made: Expected, found: Observed) -> Forms:
    own = made.format
    for name in _TOPS:
        other = formats[name]
        if other.max == own.max or made.q.hadamard_size is not None:
            continue
        try:
            scales = _from(made, made.q.with_(format=other, four_over_six=None), made.floored)
        except ValueError:
            continue
        yield f"{other.max:g} instead of {own.max:g}", made.with_scale(*scales)


@add("amax multiplied", "making", "divide by the largest number of the element format, not by a multiple of it", 1.1)
def _factor(made: Expected, found: Observed) -> Forms:
    if made.q.hadamard_size is None and rule_of(made.q).four_over_six is None and not made.q.has_tensor_scale:
        for factor in (2.0, 0.5, 4.0, 0.25):
            amax = made.floored * np.float32(factor)
            yield f"by {factor:g}", made.with_scale(*_from(made, made.q, amax), largest=amax)


@add("codes of another format", "making", "convert the codes, or decode them in their format")
def _format(made: Expected, found: Observed) -> Forms:
    own = made.format
    for name in formats:
        other = formats[name]
        if other.bits != own.bits or other.same_codes(own) or name == "e8m0fnu":
            continue
        try:
            of_other = Expected.of(made.x, made.q.with_(format=other))
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
                wide = spread(spread(other.scale, block[0] // rows, made.scale.shape[0], 0),
                              block[1] // columns, made.scale.shape[1])  # fmt: skip
                yield (
                    f"{form}, each scale repeated",
                    Expected(other.codes, wide, other.tensor, made.x, made.q, made.own),
                )


@add(
    "amax of another tensor",
    "making",
    "compute the tensor's amax from this tensor, after the last change of its values",
    1.1,
)
def _calibrated(made: Expected, found: Observed) -> Forms:
    if not made.q.has_tensor_scale or made.tensor is None or made.q.hadamard_size is not None:
        return
    own = _top(made)
    for amax in _amaxes(made, found):
        if amax != own:
            yield f"{amax:g} instead of {own:g}", Expected.of(made.x, made.q, tensor_amax=float(amax))


def _amaxes(made: Expected, found: Observed) -> list[np.float32]:
    """Return largest magnitudes that the tensor's scale found would be of, at most nine of them."""
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
                yield name, Expected.of(made.x, other)
            except ValueError:
                continue
