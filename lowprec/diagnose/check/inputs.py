"""Arguments of `check`: files, arrays of other packages and `Quantized`, converted to one form."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..._arrays import as_float32, as_matrix, matrix_shape, to_numpy
from ..._checks import check_float32
from ..._files.npy import Archive, read_npy
from ...cast.arrays import format_from_dtype
from ...scaling.quantized import Quantized
from ...scaling.quantizer import Quantizer
from ...scaling.rules import AmaxRule, scale_calculations
from .expected import F32, Observed

_NEEDED = "an .npz with the arrays codes and scale, as lowprec quantize --out or Quantized.save writes it"


@dataclass(frozen=True, eq=False)
class ParsedInput:
    """A dump and the quantizers that may have made it.

    Attributes
    ----------
    dump : Observed
        Codes as a matrix, scales in any shape.
    quantizer : Quantizer, optional
        Quantizer stored with the dump.
    like : tuple of Quantizer
        All quantizers with the dump's format and blocks, if the dump has these but no quantizer.
    format : str, optional
        Format that the dtype of the codes implies.
    """

    dump: Observed
    quantizer: Quantizer | None = None
    like: tuple[Quantizer, ...] = ()
    format: str | None = None


def read(
    q: Quantized | ArrayLike | str | os.PathLike[str], scale: ArrayLike | None, tensor_scale: float | None
) -> ParsedInput:
    """Convert codes and scales to a `ParsedInput`.

    Raises
    ------
    ValueError
        If a file is not a dump, or scales are missing or given twice.
    TypeError
        If codes are not unsigned integers of 8 or 16 bits, or scales are not numbers.
    """
    if isinstance(q, (str, os.PathLike, Quantized)):
        if scale is not None or tensor_scale is not None:
            what = "Quantized" if isinstance(q, Quantized) else os.fspath(q)
            raise ValueError(
                f"check: scale and tensor_scale must be None, got them with {what}, which holds its scales"
            )
        return _from_quantized(q) if isinstance(q, Quantized) else _from_file(q)
    if scale is None:
        raise ValueError("check: scale must be given with an array of codes, got None; or pass a Quantized, or a file")
    tensor = None if tensor_scale is None else check_float32("check", "tensor_scale", tensor_scale)
    return _from_arrays("check", np.asarray(to_numpy(q)), np.asarray(to_numpy(scale)), tensor)


def _from_quantized(q: Quantized) -> ParsedInput:
    if isinstance(q.tensor_scale, np.ndarray):
        raise ValueError(
            f"check: tensor_scale must be a number of the tensor, got an array of shape {q.tensor_scale.shape}; rows "
            "can be checked one by one"
        )
    dump = Observed(as_matrix(np.ascontiguousarray(q.codes)), q.scale, q.tensor_scale)
    if q.quantizer is not None:
        return ParsedInput(dump, q.quantizer)
    blocks = f"{q.format.name} {q.granularity} {q.scale_format}"
    like = (
        Quantizer(f"{blocks}, {a}", q.format, q.granularity, q.scale_format, AmaxRule(a))
        for a in scale_calculations(q.scale_format)
    )
    return ParsedInput(dump, None, tuple(like))


def _from_arrays(caller: str, codes: NDArray[Any], scale: NDArray[Any], tensor: np.float32 | None) -> ParsedInput:
    implied = format_from_dtype(codes)
    if implied is not None:
        codes = np.ascontiguousarray(codes).view(f"u{codes.dtype.itemsize}")
    if codes.dtype not in (np.uint8, np.uint16):
        raise TypeError(
            f"{caller}: codes must be uint8 (uint16 beyond 8 bits) or a type of ml_dtypes or torch, got {codes.dtype}"
        )
    if scale.dtype.kind not in "fiu" and format_from_dtype(scale) is None:
        raise TypeError(f"{caller}: scale must be an array of numbers, got {scale.dtype}")
    if codes.ndim == 0 or not codes.size:
        raise ValueError(f"{caller}: codes must have elements, got shape {codes.shape}")
    with np.errstate(over="ignore"):
        numbers = np.ascontiguousarray(scale, dtype=np.float32).reshape(scale.shape)
    return ParsedInput(Observed(np.ascontiguousarray(codes), numbers, tensor), format=implied)


def _from_file(path: str | os.PathLike[str]) -> ParsedInput:
    where = os.fspath(path)
    with Archive(path, _NEEDED) as held:
        if "header" in held.names:
            return _from_quantized(Quantized.load(path))
        if not {"codes", "scale"} <= set(held.names):
            raise ValueError(f"{where} must be {_NEEDED}, got {', '.join(held.names)[:200] or 'no array'}")
        arrays = {name: held[name] for name in ("codes", "scale", "tensor_scale") if name in held.names}
    tensor = arrays.get("tensor_scale")
    if tensor is not None and (tensor.size != 1 or tensor.dtype.kind not in "fiu"):
        raise ValueError(f"{where}: tensor_scale must be a single number, got {tensor.dtype} of shape {tensor.shape}")
    number = None if tensor is None else check_float32(where, "tensor_scale", tensor.reshape(-1)[0].item())
    return _from_arrays(where, arrays["codes"], arrays["scale"], number)


def read_values(values: ArrayLike | str | os.PathLike[str]) -> F32:
    """Return values as a matrix of float32.

    Raises
    ------
    ValueError
        If `values` is empty, or the file does not hold numbers.
    """
    array: Any = values
    if isinstance(values, (str, os.PathLike)):
        array = read_npy(values, "a .npy file of numbers")
    x = as_float32("check: values", array)
    if not x.size:
        raise ValueError(f"check: values must have elements, got shape {x.shape}")
    return x


def match_codes(given: ParsedInput, shape: tuple[int, ...]) -> ParsedInput:
    """Return a dump whose codes have the shape of the values; pairs of 4-bit codes in a byte are unpacked.

    Raises
    ------
    ValueError
        If the numbers of codes and values differ.
    """
    codes, wanted = given.dump.codes, matrix_shape(shape)
    if codes.size == wanted[0] * wanted[1] and matrix_shape(codes.shape) == wanted:
        return replace(given, dump=replace(given.dump, codes=codes.reshape(wanted)))
    halves = matrix_shape(codes.shape)
    if codes.dtype == np.uint8 and (halves[0], 2 * halves[1]) == wanted:
        pairs = np.stack([codes & 15, codes >> 4], axis=-1)
        return replace(given, dump=replace(given.dump, codes=pairs.reshape(wanted)))
    raise ValueError(
        f"check: codes must have one code per value, or one byte per two codes of 4 bits along the last axis, got "
        f"{codes.shape} for values {shape}"
    )


def match_scales(scale: F32, wanted: tuple[int, int]) -> F32:
    """Return scales in a quantizer's shape, if it differs only by axes of length 1 or by merged leading axes."""

    def long(shape: tuple[int, ...]) -> list[int]:
        return [n for n in shape if n != 1]

    if scale.shape != wanted and (long(scale.shape) == long(wanted) or
                                  (scale.ndim > 2 and matrix_shape(scale.shape) == wanted)):  # fmt: skip
        if scale.ndim == 2 and scale.size > 1:  # [n, 1] for [1, n] is transposed
            return scale
        return scale.reshape(wanted)
    return scale
