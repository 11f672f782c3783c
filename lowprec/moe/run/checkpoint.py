"""Checkpoint files: complete, versioned, checked, and never half-written.

A checkpoint is an npz archive: arrays, and a JSON header that names them. The header has a SHA-256 of itself and every
array, so a file that was damaged, truncated or edited is refused. The same state gives the same file, byte for byte.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lowprec._files.npy import Archive, write_npz

Array = npt.NDArray[Any]

KIND = "lowprec checkpoint"
#: Incremented when a reader of the old version would misread the new file; versions in READ can be read.
VERSION = 3
READ = (2, VERSION)

_HEADER = "header"


class CheckpointError(ValueError):
    """Error for a checkpoint that cannot be written, read or used; the message is one line with the reason."""


def write(path: str | os.PathLike[str], header: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
    """Write a checkpoint.

    Parameters
    ----------
    path : str or path
        File to write; an existing one is replaced atomically.
    header : mapping
        Data that JSON can represent; floats keep every bit.
    arrays : mapping of str to array
        Any number of arrays, none with dtype object.

    Raises
    ------
    CheckpointError
        If the file cannot be written; an existing file is then unchanged.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "state.npz")
    ...     write(path, {"step": 3}, {"w": np.zeros(2, np.float32)})
    ...     read(path)
    ({'step': 3}, {'w': array([0., 0.], dtype=float32)})
    """
    full = {"kind": KIND, "version": VERSION, "content": dict(header)}
    full["sha256"] = _digest(full, arrays)
    try:
        write_npz(path, {_HEADER: np.frombuffer(json.dumps(full).encode(), np.uint8), **arrays})
    except OSError as error:
        raise CheckpointError(f"checkpoint {os.fspath(path)!r} cannot be written: {error.strerror}") from None


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Array]]:
    """Read a checkpoint and verify its digest.

    Parameters
    ----------
    path : str or path
        File to read.

    Returns
    -------
    header : dict
        Header given to `write`.
    arrays : dict of str to array
        Arrays given to `write`.

    Raises
    ------
    CheckpointError
        If the file does not exist, is damaged, truncated, of another version, or not a checkpoint.
    """
    name = os.fspath(path)
    if not Path(path).is_file():
        raise CheckpointError(f"checkpoint {name!r} does not exist")
    try:
        with Archive(path) as archive:
            arrays = {member: archive[member] for member in archive.names}
        full = json.loads(arrays.pop(_HEADER).tobytes())
        kind, version = full["kind"], full["version"]
    except OSError as error:
        raise CheckpointError(f"checkpoint {name!r} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise CheckpointError(f"checkpoint {name!r} is damaged, cut off or not a {KIND}") from None
    if kind != KIND:
        raise CheckpointError(f"checkpoint {name!r} must be a {KIND}, got a {kind!r}")
    if version not in READ:
        known = " or ".join(map(str, READ))
        raise CheckpointError(f"checkpoint {name!r} must have version {known}, got {version!r}")
    if full.pop("sha256", None) != _digest(full, arrays):
        raise CheckpointError(f"checkpoint {name!r} is damaged: its content does not match its SHA-256")
    return full["content"], arrays


def _digest(header: Mapping[str, Any], arrays: Mapping[str, Array]) -> str:
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"\0{name}\0{array.dtype.str}\0{arrays[name].shape}\0".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
