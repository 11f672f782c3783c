"""Recordings by `lowprec.torch.recorder`: the operations of a run, with hashes of rows and samples of values."""

from __future__ import annotations

import functools
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._checks import check_choice, check_int
from ..cast.casts import decode
from ..format.catalogue import formats

VERSION = 1
FILES = ("manifest.json", "operations.jsonl", "tensors.bin")
INTEGERS = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "bool")
BITS = {"float64": 64, "float32": 32, "float16": 16, "bfloat16": 16}
_NUMPY = (*INTEGERS, "float32", "float64")


class Tensor:
    """Recorded tensor: hashes of its rows, and the values of some of them.

    Parameters
    ----------
    row : mapping
        Entry of the tensor in the recording.
    data : uint8 array
        Bytes of the recording.

    Attributes
    ----------
    dtype : str
        PyTorch's name of the dtype.
    shape : tuple of int
        Shape of the tensor.
    hash : str
        Hash of dtype, shape and all bits.
    """

    def __init__(self, row: Mapping[str, Any], data: NDArray[np.uint8]) -> None:
        self.dtype, self.hash = str(row["dtype"]), str(row["hash"])
        self.shape = tuple(check_int("diverge", "shape", n, 0) for n in row["shape"])
        self._row, self._data = row, data
        # damaged ones are an error before any comparison
        self.row_hashes, self.words, self.values if self.dtype in _NUMPY else None  # noqa: B018

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"

    @functools.cached_property
    def row_hashes(self) -> NDArray[np.int64]:
        """Hashes of the rows, one for each index of all axes but the last; empty if nothing was stored."""
        if "row_hashes" not in self._row:
            return np.zeros(0, np.int64)
        return read(self._data, self._row["row_hashes"], 8).view(np.int64).reshape(self.shape[:-1])

    @property
    def rows(self) -> list[int]:
        """Indices of the stored rows, with all axes but the last flattened."""
        return list(self._row.get("rows", []))

    @functools.cached_property
    def words(self) -> NDArray[Any]:
        """Bits of the stored rows, shape (rows, last axis)."""
        if "values" not in self._row:
            return np.zeros((0, 0), np.uint8)
        return read(self._data, self._row["values"], self._row["itemsize"]).reshape(len(self.rows), -1)

    @property
    def values(self) -> NDArray[Any]:
        """Values of the stored rows, decoded."""
        return to_numbers(self.words, self.dtype)


@dataclass(frozen=True, eq=False)
class Product:
    """Samples of a matrix product d = a b^T + c, as words: some of its rows and columns, over all of K.

    Attributes
    ----------
    words : mapping from str to array
        Words of "a" (M, K), "b" (N, K), "d" (M, N) and, if recorded, "c" (M, N), "a_scale" and "b_scale".
    dtypes : mapping from str to str
        Dtypes of the same arrays.
    rows, columns : list of int
        Indices of the rows of a and of the columns of d.
    factors : tuple of str
        Factors that are not in d = a b^T + c, such as "alpha 2".
    """

    words: Mapping[str, NDArray[Any]]
    dtypes: Mapping[str, str]
    rows: list[int]
    columns: list[int]
    factors: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Operation:
    """Recorded operation, or call of a module.

    Attributes
    ----------
    name : str
        Module, operation and number of the call: ``"layers.0.mlp/aten.mm.default#0"``.
    module, kind : str
        Name of the module; name of the operation, or "module".
    numbers : tuple of str
        Arguments that are not tensors; for a module, the name of its class.
    inputs, outputs : tuple of Tensor
        Tensors among the arguments and results.
    product : Product or None
        Samples, if the operation is a matrix product.
    """

    name: str
    module: str
    kind: str
    numbers: tuple[str, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    product: Product | None


@dataclass(frozen=True, eq=False)
class Recording:
    """Recorded run of a model.

    Attributes
    ----------
    folder : str
        Folder of the recording.
    about : mapping
        Versions, device, and settings of the run.
    parameters : mapping from str to Tensor
        Parameters and buffers of the model.
    operations : mapping from str to Operation
        Operations by name, in the order in which they finished.
    """

    folder: str
    about: Mapping[str, Any]
    parameters: Mapping[str, Tensor]
    operations: Mapping[str, Operation]


def load_recording(folder: str | os.PathLike[str], rename: Mapping[str, str] | None = None) -> Recording:
    """Read a folder that the recorder wrote.

    Parameters
    ----------
    folder : path
        Folder of the recording.
    rename : mapping from str to str, optional
        Replacements of prefixes in the names of modules and parameters.

    Returns
    -------
    Recording
        Recorded run.

    Raises
    ------
    ValueError
        If the folder is not a recording, is incomplete, or was written by another version of the recorder.
    """
    path = Path(folder)
    if not path.is_dir():
        raise ValueError(f"diverge: folder must be a recording, got {str(folder)!r}, which is not a folder")
    if missing := [name for name in FILES if not (path / name).is_file()]:
        raise ValueError(
            f"diverge: folder must be a whole recording, got {str(folder)!r} without {' and '.join(missing)}: the "
            "recorder writes manifest.json last, when the run ends"
        )
    about = _json(path / FILES[0], (path / FILES[0]).read_text(errors="replace"))
    if about.get("recorder") != VERSION:
        raise ValueError(
            f"diverge: recorder must be version {VERSION}, got {about.get('recorder')!r} in {str(folder)!r}"
        )
    data = np.fromfile(path / FILES[2], np.uint8)
    lines = (path / FILES[1]).read_text(errors="replace").splitlines()
    if len(lines) != about.get("operations"):
        raise ValueError(
            f"diverge: operations.jsonl must have {about.get('operations')} lines, got {len(lines)} in {str(folder)!r}"
        )
    try:
        made = [_operation(_json(path / FILES[1], line), data, rename or {}) for line in lines]
        rows = about.pop("parameters").items()
        parameters = [(_renamed(name, rename or {}), Tensor(row, data)) for name, row in rows]
    except (KeyError, TypeError, AttributeError, OverflowError, ValueError) as error:
        found = str(error).removeprefix("diverge: ")
        if found == str(error):
            found = f"folder must have the recorder's entries, got {type(error).__name__}: {error}"
        raise ValueError(f"diverge: folder must be a whole recording, got {str(folder)!r}: {found}") from None
    for names in ([operation.name for operation in made], [name for name, _ in parameters]):
        twice = [name for name, count in Counter(names).items() if count > 1]
        if twice:
            raise ValueError(
                f"diverge: rename must give other names to other operations and parameters, got {twice[0]!r} twice in "
                f"{str(folder)!r}"
            )
    return Recording(str(folder), about, dict(parameters), {operation.name: operation for operation in made})


def _json(path: Path, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ValueError(f"diverge: {path} must hold JSON, got {text[:40]!r}: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"diverge: {path} must hold a JSON object, got {text[:40]!r}")
    return found


def _renamed(name: str, rename: Mapping[str, str]) -> str:
    for old, new in rename.items():
        if name.startswith(old):
            return new + name[len(old) :]
    return name


def _operation(row: Mapping[str, Any], data: NDArray[np.uint8], rename: Mapping[str, str]) -> Operation:
    inputs, outputs = (tuple(Tensor(each, data) for each in row[side]) for side in ("inputs", "outputs"))
    samples = _product(row["product"], data) if "product" in row else None
    if odd := [v for v in (row["name"], row["module"], row["kind"], *row["numbers"]) if not isinstance(v, str)]:
        raise ValueError(f"diverge: names must be strings, got {odd[0]!r}")
    return Operation(
        _renamed(row["name"], rename), _renamed(row["module"], rename), row["kind"], tuple(row["numbers"]), inputs,
        outputs, samples,
    )  # fmt: skip


def _product(row: Mapping[str, Any], data: NDArray[np.uint8]) -> Product:
    found = {name: row[name] for name in ("a", "b", "c", "d", "a_scale", "b_scale") if name in row}
    words = {name: read(data, x["at"], x["itemsize"]).reshape(x["shape"]) for name, x in found.items()}
    dtypes = {name: x["dtype"] for name, x in found.items()}
    return Product(words, dtypes, row["rows"], row["columns"], tuple(row["factors"]))


def read(data: NDArray[np.uint8], place: Sequence[int], itemsize: int) -> NDArray[Any]:
    """Return the unsigned words at `place`, an offset and a length in bytes."""
    start, length = (check_int("diverge", "place", n, 0) for n in place)
    check_choice("diverge", "itemsize", itemsize, (1, 2, 4, 8))
    if start + length > len(data):
        raise ValueError(f"diverge: tensors.bin must have {start + length} bytes, got {len(data)}")
    return data[start : start + length].view(f"u{itemsize}")


def to_numbers(words: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Decode words: integers stay unchanged, other values become float32 or float64."""
    if dtype in _NUMPY:
        return words.view(dtype)
    return np.asarray(decode(words, formats[dtype]), np.float32)


def to_ordered(words: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Map words to integers in the order of the values that they encode; adjacent values differ by 1."""
    sign = 1 << (BITS[dtype] - 1)
    size = np.asarray(words & words.dtype.type(sign - 1)).astype(object if dtype == "float64" else np.int64)
    return np.where(words >= sign, -size, size)
