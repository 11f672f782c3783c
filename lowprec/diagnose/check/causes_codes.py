"""Causes of differences in codes: another rounding, moved or damaged memory, and changed values before the cast."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator

import numpy as np

from ...format.rounding import roundings
from .causes import MEMORY, add, describe_flips, describe_order, exact_order, order_of_rows, unwritten
from .expected import F32, Codes, Expected, Observed, in_16_bits, values_of

Forms = dict[str, Codes]
_FEW = 3  # largest number of flipped bits with that name
_REGION, _DENSE = 16, 0.7  # smallest number of codes in a damaged region, and smallest share of them that differ
_SCALES = 8  # smallest number of scales in a row by which rows are matched
_SURE = 4.5  # standard deviations that count as evidence
_SMALLEST = np.finfo(np.float32).smallest_normal
_NEAREST = "round to nearest, ties to even"


def _sign_of(made: Expected) -> int:
    """Return the mask of the sign bit; 0 for unsigned formats."""
    return 0 if made.format.is_table else made.format.sign_mask


def _zeroed(made: Expected, at: Codes, zeros: Codes | int = 0) -> Codes:
    return np.where(at, zeros, made.codes).astype(made.codes.dtype)


add("sign of zero dropped", "codes", "keep the sign of values that round to zero", needs_majority=False)(
    lambda m, f: {"": _zeroed(m, m.codes == sign)} if (sign := _sign_of(m)) else {}
)
add("overflow not saturated", "codes", "saturate: convert with satfinite", needs_majority=False)(
    lambda m, f: {
        "": np.where(m.cast(m.v) == m.cast(m.v, policy="ocp_nonsat"), m.codes, m.cast(m.v, policy="ocp_nonsat"))
    }
)


@add("tie rounded otherwise", "codes", _NEAREST, needs_majority=False)
def _ties(made: Expected, found: Observed) -> Forms:
    low, high = (values_of(made.cast(made.v, mode), made.format).astype(np.float64) for mode in ("down", "up"))
    ties = (low != high) & (low + high == 2.0 * made.v)  # float64 holds the sum of two neighbours
    modes = {"away from zero": "nearest_away", "toward zero": "toward_zero", "up": "up"}
    return {form: np.where(ties, made.cast(made.v, mode), made.codes) for form, mode in modes.items()}


@add("rounded in another direction", "codes", _NEAREST)
def _directions(made: Expected, found: Observed) -> Iterator[tuple[str, Codes]]:
    for name in roundings.names():
        if name not in ("nearest_even", "nearest_away") and not roundings[name].is_stochastic:
            yield name, made.cast(made.v, name)


@add("rounded twice", "making", "cast the float32 quotient in one step", penalty=4)
def _twice(made: Expected, found: Observed) -> Iterator[tuple[str, Expected]]:
    for name in ("bfloat16", "float16"):
        yield f"through {name}", made.changed(through=name)


@add("subnormals flushed to zero", "codes", "keep subnormal elements", needs_majority=False)
def _flushed(made: Expected, found: Observed) -> Iterator[tuple[str, Codes]]:
    if made.format.is_table:  # which has no normal numbers
        return
    for form, values in (("after rounding", values_of(made.codes, made.format)), ("before rounding", made.v)):
        small = np.abs(values) < made.format.smallest_normal
        yield form, _zeroed(made, small, made.codes & _sign_of(made))
        yield f"{form}, signs too", _zeroed(made, small)


@add(
    "stochastic rounding",
    "codes",
    "round to nearest, or compare expectations: bits cannot be compared",
    1.2,
    same_shape=True,
)
def _stochastic(made: Expected, found: Observed) -> Forms:
    low, high = made.cast(made.v, "down"), made.cast(made.v, "up")
    a, b = (values_of(c, made.format).astype(np.float64) for c in (low, high))
    share = (made.v - a) / (b - a)
    free = (a < b) & np.isfinite(share) & (share >= 0) & (share <= 1)
    fits = free & ((found.codes == low) | (found.codes == high))
    if not free.any() or fits.sum() < 0.98 * free.sum() or (made.codes != found.codes)[fits].sum() < 3:
        return {}
    up = (found.codes == high)[fits]
    # Elements nearer to one neighbour: both halves must be rounded the other way as often as their probability is.
    for half in (share[fits] < 0.5, share[fits] >= 0.5):
        p, taken = share[fits][half], up[half]
        spread = float(np.sqrt(np.sum(p * (1 - p))))
        # The few random bits of hardware shift the probabilities by a little.
        if spread == 0 or abs(float(taken.sum() - p.sum())) > _SURE * spread + 0.02 * len(p):
            return {}
    return {"": np.where(fits, found.codes, made.codes)}


def _flips(made: Expected, found: Observed, several: bool) -> Forms:
    """Return the found codes if each differing code has one flipped bit."""
    where = describe_flips(found.codes ^ made.codes, max(_FEW, found.codes.size // 10_000), several)
    return {} if where is None else {where: found.codes}


add("bit flipped", "codes", MEMORY, 1.3, False, same_shape=True)(lambda m, f: _flips(m, f, False))
add("bits flipped", "codes", MEMORY, 1.6, False, same_shape=True)(lambda m, f: _flips(m, f, True))


def _in_reverse(codes: Codes, word: int) -> Codes:
    return codes.reshape(len(codes), -1, word)[:, :, ::-1].reshape(codes.shape)


add("nibbles swapped", "codes", "store the first of two codes in the low four bits of a byte")(
    lambda m, f: {"": _in_reverse(m.codes, 2)} if m.format.bits == 4 and m.codes.shape[1] % 2 == 0 else {}
)
add("code in the wrong half of the byte", "codes", "shift the codes: bit 0 of a code is bit 0 of its byte")(
    lambda m, f: {"": (m.codes << (8 - m.format.bits)).astype(m.codes.dtype)} if m.format.bits < 8 else {}
)
add("bytes of a word in reverse", "codes", "store words little-endian, or view bytes as bytes")(
    lambda m, f: {
        f"of {word}": _in_reverse(m.codes, word)
        for word in (2, 4, 8, 16)
        if m.codes.shape[1] % word == 0 and (word > 2 or m.format.bits > 4)  # of two: two nibbles
    }
)
add("codes transposed", "codes", "store codes row by row, K contiguous")(
    lambda m, f: {"": np.ascontiguousarray(m.codes.T).reshape(m.codes.shape)}
)


def _permuted(made: Expected, found: Observed, axis: int) -> Forms:
    expected, rows = (np.moveaxis(codes, axis, 0) for codes in (made.codes, found.codes))
    order = exact_order(expected, rows, 2 + len(rows) // 50)
    return {} if order is None else {describe_order(order): np.take(made.codes, order, axis)}


for _axis, _name in enumerate(("row", "column")):
    add(f"{_name}s of the codes in another order", "codes",
        f"fix the index of the {_name}: the scales are in place", 1.5)(
        functools.partial(_permuted, axis=_axis)
    )  # fmt: skip
add("signs inverted", "codes", "set the sign bit of negative values only")(
    lambda m, f: {
        "": (m.codes ^ sign).astype(m.codes.dtype), "dropped": (m.codes & (sign - 1)).astype(m.codes.dtype),
    } if (sign := _sign_of(m)) else {}
)  # fmt: skip


@add("codes not written", "codes", "write all codes: check the grid and the bounds of the kernel", 1.3, same_shape=True)
def _unwritten(made: Expected, found: Observed) -> Iterator[tuple[str, Codes]]:
    rows, columns = (min(b, n) for b, n in zip(made.block, made.codes.shape, strict=True))
    tiles = ((128, 128), (64, 64), (32, 32), (16, 16), (rows, columns))
    yield from unwritten(made.codes, found.codes, [t for t in tiles if t < made.codes.shape], 4)


@add("region overwritten", "codes", "find what else writes there: its codes are not a rounding of the values", 1.8,
     same_shape=True)  # fmt: skip
def _overwritten(made: Expected, found: Observed) -> Forms:
    differing = found.codes != made.codes
    rows, columns = (np.flatnonzero(differing.any(axis)) for axis in (1, 0))
    if not rows.size:
        return {}
    box = slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1)
    inside = differing[box]
    if inside.size < _REGION or 2 * inside.size > differing.size or inside.mean() < _DENSE:
        return {}
    words = f"rows {rows[0]} to {rows[-1]}, columns {columns[0]} to {columns[-1]}"
    return {words: np.where(differing, found.codes, made.codes)}


# --- other input values -----------------------------------------------------------------------------------------------


def _of(made: Expected, forms: dict[str, F32]) -> Iterator[tuple[str, Expected]]:
    """Yield the quantizer's results for changed values, skipping those that are unchanged."""
    for form, x in forms.items():
        if x.tobytes() != made.x.tobytes():
            yield form, made.changed(x=np.ascontiguousarray(x))


@add("input rounded first", "making", "quantize the float32 values themselves, or compare with the rounded ones")
def _input_rounded(made: Expected, found: Observed) -> Iterator[tuple[str, Expected]]:
    cut = (made.x.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    forms = {f"to {name}": x for name, x in in_16_bits(made.x).items()}
    yield from _of(made, {**forms, "toward zero to bfloat16": np.where(np.isfinite(made.x), cut, made.x)})


add("subnormal inputs flushed to zero", "making",
    "compile without flush-to-zero (-ftz=false), or flush the values too")(
    lambda m, f: _of(m, {"": np.where(np.abs(m.x) < _SMALLEST, np.copysign(np.float32(0), m.x), m.x)})
)  # fmt: skip
add("NaN or Inf replaced first", "making", "pass the original values; NaN and Inf affect the quantizer's scales")(
    lambda m, f: _of(m, {
        "by zero": np.where(np.isfinite(m.x), m.x, np.float32(0)), "as numpy.nan_to_num does": np.nan_to_num(m.x),
    })
)  # fmt: skip


def _reordered(made: Expected, found: Observed, axis: int) -> Iterator[tuple[str, Expected]]:
    """Yield the quantizer's results for values in reverse order, and in orders inferred from the values found."""
    if axis and made.q.hadamard_size is not None:
        return
    expected = np.moveaxis(made.x if axis else made.rotated, axis, 0)
    inferred = (
        order_of_rows(sign(expected), sign(np.moveaxis(meant, axis, 0)))
        for meant in _meant(made, found)
        for sign in (lambda a: a, np.abs)  # signs may be wrong
    )
    seen: set[bytes] = set()
    for order in itertools.chain([np.arange(len(expected))[::-1]], inferred):
        if order is not None and order.tobytes() not in seen:
            seen.add(order.tobytes())
            yield from _of(made, {describe_order(order): np.ascontiguousarray(np.take(made.x, order, axis))})


def _meant(made: Expected, found: Observed) -> Iterator[F32]:
    """Yield matrices to match with the values: codes times scales and scales, if the shape fits; codes alone."""
    values = values_of(found.codes, made.format)
    if found.scale.shape == made.scale.shape:
        yield made.each(found.scale) * values
        if found.scale.shape[1] >= _SCALES:
            yield made.each(found.scale)  # codes may be wrong in any way
    yield values


for _axis, _name in enumerate(("row", "column")):
    add(f"{_name}s in another order", "making",
        f"compare with the values in that order, or fix the index of the {_name}", 1.5)(
        functools.partial(_reordered, axis=_axis)
    )  # fmt: skip
add("values transposed", "making", "quantize the matrix, not its transpose")(
    lambda m, f: _of(m, {"": np.ascontiguousarray(m.x.T)}) if m.x.shape[0] == m.x.shape[1] else {}
)
