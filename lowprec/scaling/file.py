"""Quantized matrices in files: an .npz of packed codes, scales as they are stored, and a JSON header.

The header says what everything means (format and quantizer with all their fields, granularity, kind of scale) and
holds a SHA-256 of the rest, so that a file damaged on its way is refused, as are other files and versions that this
one does not know.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
import zipfile
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._files import write_npz
from ..cast.casts import decode, encode
from ..cast.packing import pack, unpack
from ..format.catalogue import Format, formats
from ..format.rounding import Rounding
from .granularity import Granularity
from .quantizer import SCALES, Quantizer, ScaleKind

KIND, VERSION = "lowprec.Quantized", 2
_SCALE_FORMATS = {"ue8m0": "e8m0fnu", "e4m3": "e4m3fn"}


class Content(NamedTuple):
    """What is kept of a quantized matrix: the fields of `lowprec.Quantized`, in their order."""

    codes: NDArray[Any]
    scale: NDArray[np.float32]
    format: Format
    granularity: Granularity
    scale_kind: ScaleKind
    tensor_scale: np.float32 | None
    quantizer: Quantizer | None


def write(path: str | os.PathLike[str], q: Content) -> None:
    """Write a quantized matrix; the file appears whole or not at all.

    Parameters
    ----------
    path : path-like
        Where to; the name is taken as it is.
    q : Content
        Its scales must be exact in the way they are said to be stored.

    Raises
    ------
    ValueError
        If a scale is not exact as a power of two or E4M3 number.
    OSError
        If the file cannot be written.
    """
    arrays = {"codes": pack(q.codes, q.format.bits), "scales": _stored_scales(q)}
    fmt = formats.get(q.format)
    header = {
        "kind": KIND,
        "version": VERSION,
        "shape": list(q.codes.shape),
        "format": dataclasses.asdict(fmt),
        "granularity": str(q.granularity),
        "scale_kind": q.scale_kind,
        "scale_shape": list(q.scale.shape),
        "tensor_scale": None if q.tensor_scale is None else float(q.tensor_scale).hex(),
        "quantizer": None if q.quantizer is None else _fields(q.quantizer),
        "sha256": _digest(arrays),
    }
    write_npz(path, {"header": np.frombuffer(json.dumps(header, default=float).encode(), np.uint8), **arrays})


def read(path: str | os.PathLike[str]) -> Content:
    """Read a quantized matrix.

    Parameters
    ----------
    path : path-like
        A file of `write`.

    Returns
    -------
    Content

    Raises
    ------
    ValueError
        If the file is damaged, something else, or of an unknown version.
    OSError
        If it cannot be read.
    """
    content = io.BytesIO(Path(path).read_bytes())  # NumPy leaves a file open that turns out to be damaged
    try:
        opened = np.load(content, allow_pickle=False)
        if not isinstance(opened, np.lib.npyio.NpzFile):
            raise ValueError("a single array")
        with opened as file:
            if "header" not in file.files:
                raise ValueError("it has no header")
            arrays = {name: file[name] for name in ("header", "codes", "scales")}
            if others := [name for name, part in arrays.items() if not isinstance(part, np.ndarray)]:
                raise ValueError(f"{', '.join(others)} in it: no array")
            header = json.loads(arrays.pop("header").tobytes())
    # RuntimeError is zipfile's answer to a part that says it is encrypted, and NotImplementedError, which is one, to a
    # compression or an encryption that it does not know.
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, RuntimeError, ValueError) as error:
        # NumPy takes what it does not know for a pickle and advises to load it unsafely.
        why = "neither .npz nor .npy" if "pickle" in str(error) else error
        raise ValueError(f"{path}: not a file of a quantized matrix, or damaged: {why}") from None
    if not isinstance(header, dict) or header.get("kind") != KIND:
        raise ValueError(f"{path}: not a file of a quantized matrix")
    if header.get("version") != VERSION:
        raise ValueError(f"{path}: version {header.get('version')!r} of the file; this program reads version {VERSION}")
    if header.get("sha256") != _digest(arrays):
        raise ValueError(f"{path}: damaged: codes or scales are not those of its header")
    return _content(header, arrays, path)


def _content(header: dict[str, Any], arrays: dict[str, NDArray[Any]], path: Any) -> Content:
    try:
        fmt = Format(**header["format"])
        shape, scale_shape = tuple(header["shape"]), tuple(header["scale_shape"])
        codes = unpack(arrays["codes"], fmt.bits, int(np.prod(shape))).astype(fmt.code_dtype).reshape(shape)
        kind = header["scale_kind"]
        if kind not in SCALES:
            raise ValueError(f"scale_kind {kind!r}")
        scales = arrays["scales"] if kind == "fp32" else decode(arrays["scales"], _SCALE_FORMATS[kind])
        tensor = header["tensor_scale"]
        return Content(
            codes, scales.reshape(scale_shape), fmt, Granularity.parse(header["granularity"]), kind,
            None if tensor is None else np.float32(float.fromhex(tensor)), _quantizer(header["quantizer"]),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: damaged header: {error}") from None


def _fields(q: Quantizer) -> dict[str, Any]:
    """Return a quantizer as plain data, its format with all fields."""
    return {**dataclasses.asdict(q), "format": dataclasses.asdict(formats.get(q.format))}


def _quantizer(fields: dict[str, Any] | None) -> Quantizer | None:
    """Undo `_fields`; a format that the catalogue has under its name stays a name."""
    if fields is None:
        return None
    fmt = Format(**fields["format"])
    known = fmt.name in formats and formats[fmt.name] == fmt
    own = {"rounding": Rounding(**fields["rounding"])} if isinstance(fields.get("rounding"), dict) else {}
    return Quantizer(**{**fields, "format": fmt.name if known else fmt, **own})


def _stored_scales(q: Content) -> NDArray[Any]:
    if q.scale_kind == "fp32":
        return q.scale
    fmt = _SCALE_FORMATS[q.scale_kind]
    codes = encode(q.scale, fmt)
    if not np.array_equal(decode(codes, fmt), q.scale, equal_nan=True):
        raise ValueError(f"save: scales of kind {q.scale_kind!r} are not all {fmt} numbers")
    return codes


def _digest(arrays: dict[str, NDArray[Any]]) -> str:
    digest = hashlib.sha256()
    for name in ("codes", "scales"):
        digest.update(f"{name} {arrays[name].dtype.str} {arrays[name].shape}\n".encode())
        digest.update(np.ascontiguousarray(arrays[name]).tobytes())
    return digest.hexdigest()
