"""Arguments of `identify`: arrays of other packages, formats and scales, validated and converted to a `GemmDump`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..._arrays import as_real, check_matmul, check_shape, to_numpy
from ...cast.arrays import as_codes, format_from_dtype
from ...cast.casts import decode, encode
from ...format.catalogue import Format, formats
from ...scaling.granularity import Granularity
from ...scaling.quantized import Quantized
from ...tensorcore.accumulator import FLOAT16, FLOAT32, FLOAT64
from .dump import Array, BlockScales, GemmDump, canonical, word_of

_OWN = {"float16": FLOAT16, "float32": FLOAT32, "float64": FLOAT64}  # formats of NumPy's dtypes
_WORDS = {2: FLOAT16, 4: FLOAT32, 8: FLOAT64}  # default formats of words, by their bytes
_GRIDS = ("float32", "float16", "bfloat16", "e4m3fn", "e5m2")  # formats of outputs, the finest first


def dump_of(
    a: Any, b: Any, c: ArrayLike | None, d: ArrayLike, *, a_format: str | Format | None, b_format: str | Format | None,
    d_format: str | Format | None, a_scale: ArrayLike | None, b_scale: ArrayLike | None,
) -> GemmDump:  # fmt: skip
    """Return the arguments as a dump; raise ValueError or TypeError if they are invalid."""
    sides = {"a": (a, a_format, a_scale), "b": (b, b_format, b_scale)}
    found: dict[str, Any] = {}
    for name, (given, fmt, scale) in sides.items():
        if isinstance(given, Quantized):
            if scale is not None:
                raise ValueError(f"identify: {name}_scale must be None for a Quantized {name}, got {np.shape(scale)}")
            if given.tensor_scale is not None:
                raise ValueError(
                    f"identify: {name} must have no tensor_scale, got {given.tensor_scale}; divide d by it"
                )
            found[name] = given.codes, given.format, given
        else:
            found[name] = *_codes(name, given, fmt), scale
    (x, fa, scale_a), (y, fb, scale_b) = found["a"], found["b"]
    check_matmul("identify", x.shape, y.shape)
    if 0 in (*x.shape, len(y)):
        raise ValueError(f"identify: a and b must have elements, got shapes {x.shape} and {y.shape}")
    if (fa == FLOAT64) != (fb == FLOAT64):
        raise ValueError(f"identify: a and b must both be float64 or both be codes, got {fa.name} and {fb.name}")
    if d_format is None and fa != FLOAT64 and np.asarray(to_numpy(d)).dtype == np.float64:
        d_format = FLOAT32  # numbers that a list or another package has widened
    bits, out = _outputs(d, d_format)
    shapes = [(len(x), len(y)), (len(x),)][: 1 + (len(x) == len(y))]
    if bits.shape not in shapes:
        raise ValueError(
            f"identify: d must be {' or '.join(map(str, shapes))} for a {x.shape} and b {y.shape}, got {bits.shape}"
        )
    addend = _addend(c, bits.shape, out)
    if addend is not None and not addend.view(f"u{addend.itemsize}").any():
        addend = None  # +0 everywhere: what a sum starts from
    inside, pair, blocks = _scales((scale_a, scale_b), (x, y), (fa, fb))
    return GemmDump(x, y, fa, fb, addend, inside, pair, blocks, out, canonical(bits, out))


def _codes(name: str, given: Any, fmt: str | Format | None) -> tuple[Array, Format]:
    array = np.asarray(to_numpy(given))
    implied = _own_format(array)
    f = implied if fmt is None else _format(fmt)
    if f is None:
        raise ValueError(f"identify: {name}_format must be given, such as 'e4m3fn', for codes, got {array.dtype}")
    if implied is not None and array.dtype.name in _OWN:
        read = implied.same_codes(f) or (implied == FLOAT32 and f.same_codes(formats["tf32"]))
        if implied != f and (FLOAT64 in (implied, f) or not read):
            raise TypeError(
                f"identify: {name} must be codes of {f} (unsigned integers, see lowprec.encode), got {array.dtype}"
            )
        array = np.ascontiguousarray(array)
        return array if implied == FLOAT64 else array.view(implied.code_dtype), implied
    return (np.ascontiguousarray(array, np.uint64).view(np.float64) if f == FLOAT64 else as_codes(array, f)), f


def _own_format(array: Array) -> Format | None:
    """Return the format that an array's dtype implies, or None."""
    implied = format_from_dtype(array)
    return _OWN.get(array.dtype.name) if implied is None else formats[implied]


def _format(fmt: str | Format) -> Format:
    return FLOAT64 if fmt in ("float64", FLOAT64) else formats.get(fmt)


def _outputs(d: ArrayLike, fmt: str | Format | None) -> tuple[Array, Format]:
    """Return the bits of the outputs, and their format."""
    array, wanted = np.asarray(to_numpy(d)), None if fmt is None else _format(fmt)
    if wanted is not None and array.dtype == np.uint32 and wanted.bits < 32:
        array = array.view(np.float32)
    found = _own_format(array)
    if found is None and array.dtype.kind == "u":
        found = _WORDS.get(array.dtype.itemsize) if wanted is None else wanted
    if found is None:
        raise TypeError(
            "identify: d must be float32, float16, bfloat16, float64 or their bits (d_format names the format), got "
            f"{array.dtype}"
        )
    if wanted is not None and not wanted.same_codes(found):
        codes = _on_grid(array, wanted)
        if codes is None:
            raise TypeError(f"identify: d must hold values of {wanted} (d_format), got other values of {array.dtype}")
        return codes, wanted
    word = word_of(found)
    if array.dtype.itemsize != word.itemsize:
        raise TypeError(
            f"identify: d must hold words of {word.itemsize} bytes for {found.name}, got {array.dtype.itemsize}"
        )
    return np.ascontiguousarray(array).view(word).reshape(array.shape), found


def _on_grid(array: Array, fmt: Format) -> Array | None:
    """Return numbers as codes of a format; None if the format cannot represent all of them."""
    if fmt == FLOAT64:
        return None
    numbers = array.astype(np.float64)
    codes = encode(numbers, fmt, overflow="nonsaturate")
    return codes if np.array_equal(decode(codes, fmt).astype(np.float64), numbers, equal_nan=True) else None


def grids(d: ArrayLike) -> list[str]:
    """Return the formats to which outputs may have been rounded, the finest first: those that represent all of d."""
    array = np.asarray(to_numpy(d))
    array = array.view(np.float32) if array.dtype == np.uint32 else array
    if array.dtype.name not in ("float32", "float64"):
        return []
    return [name for name in _GRIDS if _on_grid(array, formats[name]) is not None]


def _addend(c: ArrayLike | None, shape: tuple[int, ...], out: Format) -> Array | None:
    if c is None:
        return None
    array = np.asarray(to_numpy(c))
    if array.dtype.kind == "u":  # bits, as those of d
        size = array.dtype.itemsize
        fmt = out if size == word_of(out).itemsize else _WORDS.get(size)
        if fmt is None:
            raise TypeError(f"identify: c must hold numbers, or words of 16, 32 or 64 bits, got {array.dtype}")
        bits = np.ascontiguousarray(array)
        array = bits.view(fmt.name) if fmt in _OWN.values() else decode(bits, fmt)
    array = as_real("identify: c", array)
    check_shape("identify", "c", array, shape)
    return np.ascontiguousarray(array)


def _scales(
    given: tuple[Any, Any], codes: tuple[Array, Array], names: tuple[Format, Format]
) -> tuple[BlockScales | None, tuple[Quantized, Quantized] | None, tuple[str, str] | None]:
    """Return scales as codes for the instruction, or operands with scales as numbers and their blocks."""
    if (given[0] is None) != (given[1] is None):
        raise ValueError("identify: a_scale and b_scale must both be given, or neither, got one of them")
    if FLOAT64 in names:
        if given[0] is not None:
            raise ValueError(f"identify: a_scale must be None for float64 operands, got {np.shape(given[0])}")
        return None, None, None
    if given[0] is None:
        ones = [np.ones((len(x), 1), np.float32) for x in codes]
        return None, (_pair(codes[0], ones[0], names[0]), _pair(codes[1], ones[1], names[1])), None
    if all(isinstance(x, Quantized) for x in given):
        return None, (_by_row(given[0]), _by_row(given[1])), (str(given[0].granularity), str(given[1].granularity))
    arrays = []
    for name, scale, x in zip("ab", given, codes, strict=True):
        if isinstance(scale, Quantized):
            raise ValueError("identify: a and b must both be Quantized, or neither, got one of them")
        array = np.asarray(to_numpy(scale))
        if array.ndim != 2 or array.shape[0] > len(x) or array.shape[1] > x.shape[1] or 0 in array.shape:
            raise ValueError(f"identify: {name}_scale must be [rows, blocks] of {name} {x.shape}, got {array.shape}")
        arrays.append(array)
    if all(array.dtype.kind == "u" or format_from_dtype(array) is not None for array in arrays):
        for name, array, x in zip("ab", arrays, codes, strict=True):
            if len(array) != len(x) or x.shape[1] % array.shape[1]:
                raise ValueError(
                    f"identify: {name}_scale must be one row of codes per row of {name} {x.shape}, got {array.shape}"
                )
        return BlockScales(*(np.ascontiguousarray(array).view(np.uint8) for array in arrays)), None, None
    pair = [_with_scale(name, x, array, fmt) for name, x, array, fmt in zip("ab", codes, arrays, names, strict=True)]
    return None, (pair[0][0], pair[1][0]), (pair[0][1], pair[1][1])


def _pair(codes: Array, scale: Array, fmt: Format, columns: int | None = None) -> Quantized:
    return Quantized(codes, scale, fmt, Granularity(1, columns))


def _with_scale(name: str, codes: Array, scale: Array, fmt: Format) -> tuple[Quantized, str]:
    """Return codes with scales as numbers, and the rows and columns per scale, inferred from the shapes."""
    numbers = np.asarray(as_real(f"identify: {name}_scale", scale), np.float32)
    rows, columns = (
        _block(f"{name}_scale", count, length) for count, length in zip(scale.shape, codes.shape, strict=True)
    )
    spread = numbers[np.arange(len(codes)) // rows]
    sizes = [None if count == 1 else size for count, size in zip(scale.shape, (rows, columns), strict=True)]
    return _pair(codes, np.ascontiguousarray(spread), fmt, sizes[1]), str(Granularity(*sizes))


def _block(name: str, count: int, length: int) -> int:
    """Return the block length that gives `count` scales: a power of two if there is one, else the smallest number."""
    if count in (1, length):
        return length // count
    found = [size for size in range(1, length + 1) if -(-length // size) == count]
    powers = [size for size in found if size & (size - 1) == 0]
    if not found or not (powers or length % count == 0):
        raise ValueError(
            f"identify: {name} must have one value per block, got {count} for {length} rows or columns, which no block "
            "of equal size or of a power of two gives"
        )
    return powers[-1] if powers else found[0]


def _by_row(q: Quantized) -> Quantized:
    """Return the same values with one scale per row."""
    rows, _ = q.granularity.block((q.shape[0], q.shape[1]))
    scale = q.scale[np.arange(q.shape[0]) // max(rows, 1)]
    return Quantized(
        np.ascontiguousarray(q.codes), np.ascontiguousarray(scale), q.format, Granularity(1, q.granularity.columns),
        q.scale_format,
    )  # fmt: skip
