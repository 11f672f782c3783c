"""Where the recordings of real GPUs are, and how to read them.

Those of tensor cores are 5,000 row-wise dot products a file, published with "Accurate Models of NVIDIA Tensor Cores"
(arXiv:2512.07004, BSD-2-Clause) and repackaged as raw bits. They are not part of this repository: `lowprec
import-recordings` makes them from a checkout of theirs, and an environment variable names the folder. The results of
PyTorch on an H200 are in `reference_data`.
"""

import functools
import importlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lowprec.oracle import E4M3FN, E5M2, Fields
from lowprec.vectors.recordings import HINT, VARIABLE

FOLDER = os.environ.get(VARIABLE, "")

needs_recordings = pytest.mark.skipif(not FOLDER, reason=f"needs recordings of real GPUs: {HINT}")


@dataclass(frozen=True)
class Recording:
    """``d[i] = dot(a[i], b[i]) + c[i]``: codes a, b [n, K], float32 bits c, d [n]."""

    name: str
    format: str
    fields: Fields
    a: NDArray[np.uint8]
    b: NDArray[np.uint8]
    c: NDArray[np.uint32]
    d: NDArray[np.uint32]


def path(gpu: str, name: str) -> Path:
    return Path(FOLDER) / f"hw_km_{gpu}_{name}_f32.npz"


@functools.cache
def recording(gpu: str, name: str) -> Recording:
    """Read the float32-output recording of a GPU ("H100") for a format ("e4m3")."""
    fmt, fields = {"e4m3": ("e4m3fn", E4M3FN), "e5m2": ("e5m2", E5M2)}[name]
    with np.load(path(gpu, name)) as data:
        return Recording(path(gpu, name).name, fmt, fields, *(data[k] for k in "ABCD"))


H200 = Path(__file__).parents[1] / "reference_data" / "units" / "h200_torch.npz"


@functools.cache
def inputs_of_h200() -> Any:
    """Return the program that recorded an H200, whose functions make the inputs."""
    folder = str(H200.parents[1] / "capture")
    sys.path.insert(0, folder)
    try:
        return importlib.import_module("capture_torch")
    finally:
        sys.path.remove(folder)


@functools.cache
def h200() -> dict[str, NDArray[Any]]:
    """Return the words that PyTorch and Triton computed on an H200, by name."""
    with np.load(H200) as data:
        return {name: data[name] for name in data.files}
