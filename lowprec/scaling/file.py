"""Quantized matrices in files: an .npz of packed codes, scales as they are stored, and a JSON header.

Row or column scales on top of the block scales are one more float32 array. The header specifies the format, the scale
format and the quantizer with all their fields, and the granularity. It holds a SHA-256 of itself and the arrays: a file
damaged in transit is refused, as are other files and unknown versions. A matrix that `read` could not restore is
refused when it is written.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import types
import typing
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from .._arrays import matrix_shape
from .._files.npy import Archive, write_npz
from .._values import bitwise_equal
from ..cast.casts import decode, encode
from ..cast.packing import pack, packed_size, unpack
from ..format.catalogue import Format
from ..format.rounding import Rounding
from ..format.table import TableFormat
from .granularity import Granularity
from .quantizer import Quantizer
from .rules import FLOAT32, AmaxRule, PythonRule

KIND, VERSION = "lowprec.Quantized", 4
#: Arrays stored next to the header; the last only with row or column scales on top of the block scales.
_ARRAYS = "codes", "scales", "tensor_scales"
#: Classes of formats, by their names in the header.
_FORMATS: dict[str, type[Format]] = {"fields": Format, "table": TableFormat}
_RULES: dict[str, type[AmaxRule | PythonRule]] = {"amax": AmaxRule, "function": PythonRule}

T = TypeVar("T")


class Content(NamedTuple):
    """Stored data of a quantized matrix: the fields of `lowprec.Quantized`, in their order."""

    codes: NDArray[Any]
    scale: NDArray[np.float32]
    format: Format
    granularity: Granularity
    scale_format: Format
    tensor_scale: np.float32 | NDArray[np.float32] | None
    quantizer: Quantizer | None


def write(path: str | os.PathLike[str], q: Content) -> None:
    """Write a quantized matrix atomically.

    Parameters
    ----------
    path : path-like
        File to write; the name is used unchanged.
    q : Content
        Matrix that `read` returns, bit for bit.

    Raises
    ------
    ValueError
        If `read` could not restore the matrix bit for bit: because of a scale that the scale format does not represent,
        a negative or NaN tensor scale, a format of more than 16 bits, or a subclass of Format.
    OSError
        If the file cannot be written.
    """
    if q.format.bits > 16:
        raise ValueError(f"save: codes must have at most 16 bits, got {q.format.bits} of {q.format.name}")
    arrays = {"codes": pack(q.codes, q.format.bits), "scales": _stored_scales(q)}
    if isinstance(q.tensor_scale, np.ndarray):
        arrays["tensor_scales"] = np.ascontiguousarray(q.tensor_scale).reshape(-1)
    header: dict[str, Any] = {
        "kind": KIND,
        "version": VERSION,
        "shape": list(q.codes.shape),
        "format": _format_data(q.format),
        "granularity": str(q.granularity),
        "scale_format": _format_data(q.scale_format),
        "tensor_scale": _tensor_scale_data(q.tensor_scale, matrix_shape(q.codes.shape)),
        "quantizer": None if q.quantizer is None else _quantizer_data(q.quantizer),
    }
    header["sha256"] = _digest(header, arrays)
    text = json.dumps(header, default=_no_json).encode()
    back = _content(json.loads(text), arrays)
    if different := [name for name in Content._fields if not bitwise_equal(getattr(back, name), getattr(q, name))]:
        raise ValueError(
            f"save: {', '.join(different)} would not be read back as it is, got {getattr(q, different[0])!r}"
        )
    write_npz(path, {"header": np.frombuffer(text, np.uint8), **arrays})


def read(path: str | os.PathLike[str]) -> Content:
    """Read a quantized matrix.

    Parameters
    ----------
    path : path-like
        File that `write` wrote.

    Returns
    -------
    Content

    Raises
    ------
    ValueError
        If the file is damaged, has another content, or is of an unknown version.
    OSError
        If it cannot be read.
    """
    name = os.fspath(path)
    with Archive(path, "a file of a quantized matrix, or damaged") as file:
        more = [name for name in _ARRAYS[2:] if name in file.names]
        arrays = {part: file[part] for part in ("header", *_ARRAYS[:2], *more)}
    try:
        header = json.loads(arrays.pop("header").tobytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name}: not a file of a quantized matrix, or damaged: header: {error}") from None
    if not isinstance(header, dict) or header.get("kind") != KIND:
        raise ValueError(f"{name}: file must hold a quantized matrix, got another kind")
    if header.get("version") != VERSION:
        raise ValueError(f"{name}: version of the file must be {VERSION}, got {str(header.get('version'))[:20]}")
    if header.pop("sha256", None) != _digest(header, arrays):
        raise ValueError(f"{name} is damaged: header, codes or scales do not match their SHA-256")
    try:
        return _content(header, arrays)
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"{name} has a damaged header: {' '.join(str(error).split())[:300]}") from None


def _content(header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> Content:
    """Return the content that a header and arrays define; every number in the header is checked before it is used."""
    fmt, granularity = _format(header["format"]), Granularity.parse(header["granularity"])
    shape, stored = header["shape"], _format(header["scale_format"])
    if not (isinstance(shape, list) and all(type(n) is int and n >= 0 for n in shape)):
        raise ValueError(f"shape must be a list of integers >= 0, got {shape!r}")
    if stored != FLOAT32 and stored.bits > 8:
        raise ValueError(f"scale_format must be float32 or of up to 8 bits, got {stored}")
    packed, scales = arrays["codes"], arrays["scales"]
    count, scale_shape = math.prod(shape), granularity.scale_shape(matrix_shape(tuple(shape)))
    _check_array("codes", packed, np.uint8, packed_size(count, fmt.bits))
    _check_array("scales", scales, np.float32 if stored == FLOAT32 else np.uint8, math.prod(scale_shape))
    codes = unpack(packed, fmt.bits, count).astype(fmt.code_dtype, copy=False).reshape(shape)
    values = scales if stored == FLOAT32 else decode(scales, stored)
    tensor, quantizer = _tensor_scale(header["tensor_scale"], arrays, matrix_shape(tuple(shape))), header["quantizer"]
    return Content(
        codes, values.reshape(scale_shape), fmt, granularity, stored, tensor,
        None if quantizer is None else _quantizer(quantizer),
    )  # fmt: skip


def _check_array(name: str, array: NDArray[Any], dtype: type[np.generic], size: int) -> None:
    if array.dtype != dtype or array.size != size:
        raise ValueError(f"{name} must be {size} numbers of {np.dtype(dtype)}, got {array.dtype} {array.shape}")


def _tensor_scale_data(scale: np.float32 | NDArray[np.float32] | None, shape: tuple[int, int]) -> str | None:
    """Return the header's entry for tensor scales: None, a number, or "rows" or "columns" for an array of them."""
    if isinstance(scale, np.ndarray):
        return "rows" if scale.shape == (shape[0], 1) else "columns"
    return None if scale is None else float(scale).hex()


def _tensor_scale(
    axis: str | None, arrays: dict[str, NDArray[Any]], shape: tuple[int, int]
) -> np.float32 | NDArray[np.float32] | None:
    """Read the scales on top of the block scales: None, a number, or one for each row or column."""
    if axis not in ("rows", "columns"):
        if "tensor_scales" in arrays:
            raise ValueError(f"tensor_scale must be 'rows' or 'columns' with an array of them, got {axis!r}")
        return None if axis is None else _number(axis)
    of_shape = (shape[0], 1) if axis == "rows" else (1, shape[1])
    scales = arrays["tensor_scales"]
    _check_array("tensor_scales", scales, np.float32, math.prod(of_shape))
    if not (scales >= 0).all() or np.signbit(scales).any():
        raise ValueError(f"tensor_scales must be >= 0, got {scales.min()}")
    return scales.reshape(of_shape)


def _number(text: str) -> np.float32:
    """Parse a tensor scale, which is 0 for a tensor of zeros and infinite for one with Inf."""
    exact = float.fromhex(text)
    with np.errstate(over="ignore"):
        scale = np.float32(exact)
    if not scale >= 0 or math.copysign(1, exact) < 0 or float(scale) != exact:
        raise ValueError(f"tensor_scale must be a float32 number >= 0, got {text!r}")
    return scale


# --- formats, roundings and quantizers as plain data -----------------------------------------------------------------


def _format_data(fmt: Format) -> dict[str, Any]:
    kinds = [kind for kind, of in _FORMATS.items() if type(fmt) is of]
    if not kinds:
        raise ValueError(f"save: format must be a Format or a TableFormat, got {type(fmt).__name__} {fmt.name!r}")
    data = _fields(fmt)
    if "table" in data:  # JSON cannot represent NaN and Inf
        data["table"] = [value.hex() for value in data["table"]]
    return {"kind": kinds[0], **data}


def _format(data: dict[str, Any]) -> Format:
    kind, fields = data["kind"], {key: value for key, value in data.items() if key != "kind"}
    if not (isinstance(kind, str) and kind in _FORMATS):
        raise ValueError(f"kind of format must be one of {', '.join(_FORMATS)}, got {kind!r}")
    if "table" in fields:
        fields["table"] = tuple(float.fromhex(value) for value in fields["table"])
    return _made(_FORMATS[kind], fields)


def _quantizer_data(q: Quantizer) -> dict[str, Any]:
    """Return a quantizer as plain data, with all fields of its rule, formats and roundings."""
    if type(q) is not Quantizer:
        raise ValueError(f"save: quantizer must be a Quantizer, got {q!r}")
    rule = next(kind for kind, of in _RULES.items() if type(q.rule) is of)
    transform = None if q.transform_format is None else _format_data(q.transform_format)
    return {
        **_fields(q), "format": _format_data(q.format), "scale_format": _format_data(q.scale_format),
        "granularity": str(q.granularity), "rounding": _fields(q.rounding), "transform_format": transform,
        "rule": {"kind": rule, **_fields(q.rule)},
    }  # fmt: skip


def _quantizer(data: dict[str, Any]) -> Quantizer:
    rule, transform = dict(data["rule"]), data["transform_format"]
    if (kind := rule.pop("kind")) not in _RULES:
        raise ValueError(f"kind of scale rule must be one of {', '.join(_RULES)}, got {kind!r}")
    held = {
        "format": _format(data["format"]), "scale_format": _format(data["scale_format"]),
        "granularity": Granularity.parse(data["granularity"]), "rounding": _made(Rounding, data["rounding"]),
        "transform_format": None if transform is None else _format(transform), "rule": _made(_RULES[kind], rule),
    }  # fmt: skip
    return _made(Quantizer, {**data, **held})


def _fields(entry: Any) -> dict[str, Any]:
    """Return the fields that the constructor of a dataclass takes."""
    return {f.name: getattr(entry, f.name) for f in dataclasses.fields(entry) if f.init}


def _made(kind: type[T], data: Any) -> T:
    """Return an object of a dataclass; all fields must be known and of their declared types."""
    hints = typing.get_type_hints(kind)
    known = [f.name for f in dataclasses.fields(kind) if f.init]  # type: ignore[arg-type]
    for key, value in data.items():
        if key not in known:
            raise ValueError(f"unknown field {key!r} of {kind.__name__}: expected one of {', '.join(known)}")
        if not _is(value, hints[key]):
            raise ValueError(f"{key} of {kind.__name__} must be {hints[key]}, got {value!r}")
    return kind(**data)


def _is(value: Any, hint: Any) -> bool:
    """Return whether a value has the declared type; bool does not count as a number."""
    origin, of = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return isinstance(value, str) and value in of
    if origin in (typing.Union, types.UnionType):
        return any(_is(value, one) for one in of)
    if origin is tuple:
        return isinstance(value, tuple) and all(_is(item, of[0]) for item in value)
    if isinstance(value, bool) or hint is bool:
        return isinstance(value, bool) and hint is bool
    return isinstance(value, (int, float) if hint is float else hint)


def _no_json(value: Any) -> Any:
    raise ValueError(f"save: {value!r} of {type(value).__name__} cannot be written as JSON")


def _stored_scales(q: Content) -> NDArray[Any]:
    """Return scales as they are stored, as a flat array."""
    fmt = q.scale_format
    if fmt == FLOAT32:
        return np.ascontiguousarray(q.scale).reshape(-1)
    codes = encode(q.scale, fmt)
    if not bitwise_equal(decode(codes, fmt), q.scale):
        raise ValueError(f"save: scales must be values of {fmt}, to the bit, got others")
    return np.ascontiguousarray(codes).reshape(-1)


def _digest(header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> str:
    """Return the SHA-256 of the arrays and of the header without the digest."""
    digest = hashlib.sha256(json.dumps(header, sort_keys=True, default=_no_json).encode())
    for name in [name for name in _ARRAYS if name in arrays]:
        digest.update(f"\0{name}\0{arrays[name].dtype.str}\0{arrays[name].shape}\0".encode())
        digest.update(np.ascontiguousarray(arrays[name]).tobytes())
    return digest.hexdigest()
