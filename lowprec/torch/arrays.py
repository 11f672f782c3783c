"""Conversion between tensors and float32 arrays, sharing memory where the dtype allows it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lowprec.cast.casts import decode, encode

Array = NDArray[Any]
_DTYPES = (torch.float32, torch.bfloat16)


def values(t: torch.Tensor) -> Array:
    """Return a tensor's values in float32; a float32 tensor shares its memory.

    This avoids ``t.numpy()``, which marks the storage as not resizable: sharding the parameter would fail later.
    """
    t = t.detach().contiguous()
    if t.dtype == torch.bfloat16:
        return decode(np.from_dlpack(t.view(torch.uint16)), "bfloat16")
    array: Array = np.from_dlpack(t)
    return array


def tensor(array: Array, dtype: torch.dtype) -> torch.Tensor:
    """Return an array as a tensor of `dtype`; narrower types round to nearest even."""
    if dtype == torch.bfloat16:
        return torch.from_numpy(encode(array, "bfloat16").view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(np.ascontiguousarray(array))


def check(name: str, t: torch.Tensor) -> None:
    """Raise an error unless lowprec can multiply the tensor.

    Raises
    ------
    TypeError
        If the dtype is not float32 or bfloat16.
    RuntimeError
        If the tensor is not on the CPU.
    """
    if t.dtype not in _DTYPES:
        raise TypeError(f"lowprec.torch: {name} must be float32 or bfloat16, got {t.dtype}")
    if t.device.type not in ("cpu", "meta"):
        raise RuntimeError(
            f"lowprec.torch: {name} must be on the CPU, which emulates the bits, got {t.device}; move the model there"
        )
