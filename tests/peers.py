"""The published simulators of tensor cores, where they are installed: import, or skip and say what is missing."""

import importlib
import warnings
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from machine_inputs import Codes


def peer(name: str) -> ModuleType:
    """Import a simulator or skip; torch's import warns, and mmasim's compiles."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            importlib.import_module("torch").set_num_threads(1)  # more threads make small tiles 40 times slower
            return importlib.import_module(name)
        except Exception as problem:  # a missing compiler is not an ImportError
            pytest.skip(f"needs {name} (pip install '.[peers]' ninja, and a C++ compiler): {problem!r}")


def tensor(codes: Codes, name: str) -> Any:
    """Codes as mmasim takes them."""
    import torch

    wide = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[codes.dtype.itemsize]
    bits = torch.from_numpy(np.array(codes).view(f"int{8 * codes.dtype.itemsize}" if wide != torch.uint8 else "uint8"))
    if name in ("e3m2fn", "e2m3fn", "e2m1fn"):
        return bits << 2 if name == "e2m1fn" else bits  # FP4 lies in bits 2 to 5 of its byte
    types = {"e4m3fn": "float8_e4m3fn", "e5m2": "float8_e5m2", "e4m3fnuz": "float8_e4m3fnuz",
             "e5m2fnuz": "float8_e5m2fnuz", "e8m0fnu": "float8_e8m0fnu"}  # fmt: skip
    return bits.view(getattr(torch, types.get(name, name)))


def bits_of(result: Any) -> Codes:
    array = result.numpy()
    return array.view(f"uint{8 * array.dtype.itemsize}")
