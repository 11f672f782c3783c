"""File of a capture: a compressed npz of raw words, with their origin as JSON.

`meta` (a string array of no dimension) holds ``source`` ("gpu" or "emulator"), ``gpu``, ``capability``, ``driver``,
``driver_package``, ``runtime``, ``nvcc``, ``numpy``, ``seed``, ``program`` (sha256 of capture.cu), ``check`` (result of
the self-check) and ``groups``: for each group its instruction, its cases in order and the sha256 of its operands.
A group ``NAME`` is four arrays ``NAME/a`` [tiles, 64, K], ``NAME/b`` [tiles, 64, K], ``NAME/c`` and ``NAME/d``
[tiles, 64, 64]; for the promoted GEMM a and b are [M, K] and [N, K], d is [M, N], and ``NAME/sa`` and ``NAME/sb``
[rows, K / 128] replace c. Words of float results are their bits, as unsigned integers.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

LAYOUT = 1


class CaptureError(RuntimeError):
    """Error for a capture that cannot be made or read; the message gives the reason."""


@dataclass
class Group:
    """Tiles of one instruction and one K; `arrays` holds a, b, c (or sa, sb) and d."""

    name: str
    instruction: str
    cases: list[str]
    arrays: dict[str, NDArray[Any]]

    def sha256(self) -> str:
        """Return the hash of everything but the result."""
        digest = hashlib.sha256()
        for key in sorted(set(self.arrays) - {"d"}):
            array = self.arrays[key]
            digest.update(f"{key}{array.dtype.str}{array.shape}".encode() + np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()


@dataclass
class Capture:
    """Operands of the products and the outputs of the GPU."""

    meta: dict[str, Any]
    groups: list[Group] = field(default_factory=list)

    def save(self, path: Path) -> None:
        """Write the file; an existing one is replaced when the new one is complete."""
        listing = [
            {"name": g.name, "instruction": g.instruction, "cases": g.cases, "sha256": g.sha256()} for g in self.groups
        ]
        meta = json.dumps({"layout": LAYOUT, **self.meta, "groups": listing}, indent=1)
        arrays = {f"{g.name}/{key}": array for g in self.groups for key, array in g.arrays.items()}
        part = path.with_name(f".{path.name}.part")
        save: Any = np.savez_compressed  # NumPy's type hints reject keys that are not identifiers
        with open(part, "wb") as file:
            save(file, meta=np.array(meta), **arrays)
        part.replace(path)


def load(path: Path) -> Capture:
    """Read a capture and check the hashes of its operands.

    Raises
    ------
    CaptureError
        If the file is not a capture, or was changed.
    """
    try:
        with np.load(path, allow_pickle=False) as data:
            meta = json.loads(str(data["meta"]))
            if meta.get("layout") != LAYOUT:
                raise CaptureError(f"{path}: layout {meta.get('layout')!r}, this program reads {LAYOUT}")
            groups, keys = [], dict[str, list[str]]()
            for file in data.files:
                keys.setdefault(file.rpartition("/")[0], []).append(file)
            for item in meta.pop("groups"):
                arrays = {file.rpartition("/")[2]: data[file] for file in keys[item["name"]]}
                group = Group(item["name"], item["instruction"], list(item["cases"]), arrays)
                if "d" not in arrays or group.sha256() != item["sha256"]:
                    raise CaptureError(f"{path}: operands of {group.name} are not those that were recorded")
                groups.append(group)
    except (KeyError, TypeError, ValueError, zipfile.BadZipFile) as error:
        raise CaptureError(f"{path}: no capture, or damaged ({error})") from None
    return Capture(meta, groups)
