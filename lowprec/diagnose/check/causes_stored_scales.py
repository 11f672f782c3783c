"""Causes of differences in stored scales: moved, reordered, multiplied by a factor, converted to another type."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...cast.casts import encode
from ...format.catalogue import formats
from ...scaling.constants import bound_of
from ...scaling.rules import FLOAT32, are_powers
from .causes import MEMORY, add, describe_flips, describe_order, exact_order, of_neighbours, typical_ratio, unwritten
from .expected import F32, Expected, Observed, in_16_bits

Forms = Iterator[tuple[str, F32]]
_NO_FACTOR = 1e-3  # relative difference below which scales are neighbours, or computed by another arithmetic
_FEW = 3
_ROUND, _ROUNDING = 64, 5e-7  # largest denominator of a round factor; its relative error
_MANY, _MANY_POWERS = 5, 32  # 1 / the share of scales that counts as many, for any scales and for powers of two
_STEPS = 8  # largest error of a scale in steps, and largest number of different errors
_SAID = {formats["e8m0fnu"]: "E8M0", formats["e4m3fn"]: "E4M3"}


def _where_near(found: F32, meant: F32) -> F32:
    """Return the predicted scales, replaced by those found if the difference is at most one rounding."""
    if found.shape != meant.shape:
        return meant
    near: F32 = np.where(np.abs(found - meant) <= np.spacing(np.abs(meant)), found, meant)
    return near


@add("scales inverted", "scale", "store the factor from codes to values; TransformerEngine calls it scale_inv")
def _inverted(made: Expected, found: Observed) -> Forms:
    yield "", _where_near(found.scale, np.float32(1) / made.scale)
    if made.tensor is not None:
        yield "with the tensor's", _where_near(found.scale, np.float32(1) / (made.scale * made.tensor))


add("scales missing", "scale", "store the scales; all found are 1")(lambda m, f: {"": np.ones_like(m.scale)})


@add(
    "scales stored as raw bytes", "scale", "decode the bytes first: lp.decode(scale, 'e8m0fnu'), or 'e4m3fn' for NVFP4"
)
def _raw(made: Expected, found: Observed) -> Forms:
    stored = made.q.scale_format
    if stored != FLOAT32:
        yield f"{_SAID.get(stored, stored)} codes as numbers", encode(made.scale, stored).astype(np.float32)
    if are_powers(stored):
        yield "exponents as numbers", np.frexp(made.scale)[1].astype(np.float32) - 1
    if stored == FLOAT32:
        yield "bits of float32 as numbers", made.scale.view(np.uint32).astype(np.float32)


@add("scales rounded", "scale", "store scales in their format, or cast with the rounded scales")
def _rounded(made: Expected, found: Observed) -> Forms:
    yield from ((f"to {name}", scale) for name, scale in in_16_bits(made.scale).items())
    if made.q.scale_format == FLOAT32:
        power = (made.scale.view(np.uint32) & np.uint32(0xFF800000)).view(np.float32)
        yield "up to powers of two", np.where(power < made.scale, 2 * power, power)
        yield "down to powers of two", power


add("scales of the tensor multiplied in", "scale",
    "store the two levels separately: block scales exclude the tensor's scale")(
    lambda m, f: {} if m.tensor is None else {
        "": m.scale * m.tensor, "divided": _where_near(f.scale, m.scale / m.tensor),
    }
)  # fmt: skip


_FACTOR = "find the factor: amax doubled, a wrong maximum, an exponent bias off by one"


def _multiplied(made: Expected, found: Observed, rounded: bool) -> Forms:
    """Yield scales times a factor inferred from the dump; with `rounded`, some may differ by a rounding."""
    differing = found.scale != made.scale
    factor = typical_ratio(found.scale[differing], made.scale[differing])
    if not abs(factor - 1) > _NO_FACTOR:
        return
    near = [np.nextafter(factor, np.float32(to)) for to in (0, np.inf)]
    products = [made.scale * f for f in (factor, *near)] + [made.scale / (1 / f) for f in (factor, *near)]
    exact = max(products, key=lambda scale: int((scale == found.scale).sum()))
    meant = _where_near(found.scale, made.scale * factor)
    if np.array_equal(meant, exact) == rounded:
        return
    meant = meant if rounded else exact
    if 2 * (meant == found.scale).sum() > meant.size and (meant.size > 1 or _is_round(float(factor))):
        yield f"by {_plain(float(factor))}", meant


add("scales multiplied", "scale", _FACTOR, 1.2, same_shape=True)(functools.partial(_multiplied, rounded=False))
add("scales multiplied and rounded otherwise", "scale", _FACTOR, 2.2, same_shape=True)(
    functools.partial(_multiplied, rounded=True)
)


def _is_round(factor: float) -> bool:
    """Return whether a factor is a ratio of small integers."""
    if factor <= 0:
        return factor == -1
    large = Fraction(max(factor, 1 / factor))
    near = large.limit_denominator(max(min(_ROUND, int(_ROUND**2 / large)), 1))
    return bool(abs(near / large - 1) < _ROUNDING)


add("another scale", "scale", "compare amax and the formula: any factor explains a single scale", 2.5)(
    lambda m, f: {f"{f.scale.item():g} instead of {m.scale.item():g}": f.scale}
    if m.scale.size == f.scale.size == 1 else {}
)  # fmt: skip


def _plain(factor: float) -> str:
    return f"{factor:.6g}" if not 0 < factor < 0.01 else f"1/{1 / factor:.6g}"


@add("scales transposed", "scale", "store scales like the matrix: one row of scales per row of blocks")
def _transposed(made: Expected, found: Observed) -> Forms:
    turned = np.ascontiguousarray(made.scale.T)
    yield "", turned
    if turned.shape != made.scale.shape:
        yield "and read in the other shape", turned.reshape(made.scale.shape)


@add("scales in another shape", "scale", "pass a matrix with one scale per block", 1.1)
def _shaped(made: Expected, found: Observed) -> Forms:
    if found.scale.shape == made.scale.shape:
        return
    if found.scale.size == made.scale.size:
        yield f"{_by(found.scale.shape)}", made.scale.reshape(found.scale.shape)
    each = made.each(made.scale)
    if found.scale.shape == each.shape:
        yield "one for each element", each


@add("scales padded", "scale", "remove the padding: scale[:rows, :columns]")
def _padded(made: Expected, found: Observed) -> Forms:
    s = made.scale
    shape: tuple[int, ...] = found.scale.shape
    if len(shape) == 2 and shape != s.shape and all(a >= b for a, b in zip(shape, s.shape, strict=True)):
        filled = found.scale.copy()
        filled[: s.shape[0], : s.shape[1]] = s
        yield f"to {_by(shape)}", filled


@add("scales in tiles of 128 x 4", "scale", "undo the layout of block scales of cuBLAS and TransformerEngine")
def _tiled(made: Expected, found: Observed) -> Forms:
    """Yield tiles of 128 x 4 scales: row i, column j is stored at 16 (i % 32) + 4 (i // 32) + j."""
    s = made.scale
    rows, columns = -(-s.shape[0] // 128) * 128, -(-s.shape[1] // 4) * 4
    if found.scale.size != rows * columns:
        return
    # The content of padding is arbitrary: it is copied from the scales found.
    places: NDArray[Any] = np.full((rows, columns), -1)
    numbers: NDArray[Any] = np.arange(s.size).reshape(s.shape)
    places[: s.shape[0], : s.shape[1]] = numbers
    layouts = {"": places}
    if (s.shape[1] % 128, s.shape[0] % 4) == (0, 0):
        layouts["of the transposed"] = numbers.T
    for form, wide in layouts.items():
        tiles = wide.reshape(wide.shape[0] // 128, 4, 32, wide.shape[1] // 4, 4)
        order = tiles.transpose(0, 3, 2, 1, 4).ravel()
        filled = np.where(order < 0, found.scale.ravel(), s.ravel()[order])
        yield form, filled.reshape(found.scale.shape)


@add("scales shifted by blocks", "scale", "fix the index of the block, or the pointer to the scales", same_shape=True)
def _shifted(made: Expected, found: Observed) -> Forms:
    s, flat = made.scale, made.scale.ravel()
    for by in (1, -1, 2, -2, 4, -4):
        for axis, lines in ((0, "rows"), (1, "columns")):
            if s.shape[axis] > abs(by):
                yield f"by {by} along {lines}", np.roll(s, by, axis)
                if s.shape[axis] >= 4 * abs(by):
                    yield f"by {by} along {lines}, with others at the edge", _slid(s, by, axis, found.scale)
        if min(s.shape) > 1 and flat.size > abs(by):
            yield f"by {by} in memory", np.roll(flat, by).reshape(s.shape)


def _slid(s: F32, by: int, axis: int, found: F32) -> F32:
    moved = np.roll(s, by, axis)
    edge: list[Any] = [slice(None), slice(None)]
    edge[axis] = slice(0, by) if by > 0 else slice(by, None)
    moved[tuple(edge)] = found[tuple(edge)]
    return moved


@add("rows of scales in another order", "scale", "fix the index of the row: the codes are in place", 1.5)
def _rows(made: Expected, found: Observed) -> Forms:
    for axis, lines in ((0, "rows"), (1, "columns")):
        if found.scale.ndim == 2:
            expected, rows = (np.moveaxis(scale, axis, 0) for scale in (made.scale, found.scale))
            order = exact_order(expected, rows, least=2)  # a single row may resemble another by coincidence
            if order is not None:
                yield f"{lines} {describe_order(order)}", np.take(made.scale, order, axis)


add("scales of a neighbouring block", "scale", "store every scale after it is computed", 1.4, same_shape=True)(
    lambda m, f: of_neighbours(m.scale, f.scale)
)


def _steps(made: Expected, found: Observed, many: bool) -> Forms:
    off = np.subtract(*(stored.astype(np.int64) for stored in _stored(made, found)))
    steps, share = np.unique(off[off != 0]), _MANY_POWERS if are_powers(made.q.scale_format) else _MANY
    for k in steps if steps.size <= _STEPS else ():
        if abs(int(k)) <= _STEPS and (share * (off == k).sum() > off.size) == many:
            yield f"by {int(k):+d} in {int((off == k).sum())} blocks", np.where(off == k, found.scale, made.scale)


_ROUNDING_FIX = "compute scales as the quantizer does, with one rounding"
add("scales off by steps of their format", "scale", _ROUNDING_FIX, 1.5, same_shape=True)(
    functools.partial(_steps, many=False)
)
add("many scales off by steps of their format", "scale", _ROUNDING_FIX, 2.5, same_shape=True)(
    functools.partial(_steps, many=True)
)


@add(
    "scales not written", "scale", "write all scales: check the grid and the bounds of the kernel", 1.3, same_shape=True
)
def _unwritten(made: Expected, found: Observed) -> Forms:
    yield from unwritten(made.scale, found.scale, (), 2)


def _stored(made: Expected, found: Observed) -> list[NDArray[Any]]:
    """Return the scales found and the expected ones as bit patterns of their format."""
    stored = made.q.scale_format
    return [s.view(np.uint32) if stored == FLOAT32 else encode(s, stored) for s in (found.scale, made.scale)]


def _flips(made: Expected, found: Observed, several: bool) -> dict[str, F32]:
    """Return the found scales, by description, if one bit is flipped in the stored form of each differing scale.

    One scale must differ or, with `several`, two to `_FEW`; otherwise the result is empty.
    """
    same = (found.scale == made.scale) | (np.isnan(found.scale) & np.isnan(made.scale))
    words = np.where(same, 0, np.bitwise_xor(*_stored(made, found)))
    where = describe_flips(words, _FEW, several)
    return {} if where is None else {where: np.where(words == 0, made.scale, found.scale)}


add("bit flipped in a scale", "scale", MEMORY, 1.3, False, same_shape=True)(lambda m, f: _flips(m, f, False))
add("bits flipped in scales", "scale", MEMORY, 1.6, False, same_shape=True)(lambda m, f: _flips(m, f, True))


def _by(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "a single number"


# --- the tensor's scale ----------------------------------------------------------------------------------------------

_TENSOR = "store the tensor's scale: code x block scale x tensor's scale is the value"


Tensor = dict[str, np.float32 | None]


def _as_found(found: Observed, meant: np.float32) -> np.float32:
    return np.float32(_where_near(np.asarray(found.tensor, np.float32), np.asarray(meant, np.float32)))


def _is_scale(tensor: np.float32 | None) -> bool:
    return tensor is not None and bool(np.isfinite(tensor) and tensor > 0)


add("scale of the tensor missing", "tensor scale", _TENSOR)(
    lambda m, f: {} if m.tensor is None else {"": None, "1 in its place": np.float32(1)}
)
add("scale of the tensor inverted", "tensor scale", _TENSOR)(
    lambda m, f: {} if m.tensor is None or f.tensor is None else {"": _as_found(f, np.float32(1) / m.tensor)}
)


@add("the tensor's amax in place of its scale", "tensor scale", _TENSOR)
def _tensor_amax(made: Expected, found: Observed) -> Tensor:
    if made.tensor is None or found.tensor is None:
        return {}
    top, aim = np.float32(made.format.max), np.float32(bound_of(made.q))
    tensor = made.tensor
    amaxes = {"amax": tensor * top * aim, f"amax / {aim:g}": tensor * top, f"amax / {top:g}": tensor * aim}
    return {form: _as_found(found, amax) for form, amax in amaxes.items()}


@add("scale of the tensor multiplied", "tensor scale", "find the factor in the tensor's scale", 1.1)
def _tensor_multiplied(made: Expected, found: Observed) -> Tensor:
    if made.tensor is None or found.tensor is None or not _is_scale(found.tensor) or not made.tensor:
        return {}
    factor = float(found.tensor) / float(made.tensor)
    if not np.isfinite(factor) or factor == 1:
        return {}
    near = f"{'higher' if factor > 1 else 'lower'} by {abs(factor - 1):.2g}"
    return {f"by {_plain(factor)}" if abs(factor - 1) > _NO_FACTOR else near: found.tensor}


add("scale of the tensor is not a positive number", "tensor scale", _TENSOR)(
    lambda m, f: {f"{f.tensor:g}": f.tensor}
    if m.tensor is not None and f.tensor is not None and not _is_scale(f.tensor) else {}
)  # fmt: skip
add("scale of a tensor where there is none", "tensor scale",
    "remove the tensor's scale: the quantizer has one level")(
    lambda m, f: {f"{f.tensor:g}": f.tensor} if m.tensor is None and f.tensor is not None else {}
)  # fmt: skip
