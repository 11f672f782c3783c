"""Tensors as arrays and back: values in float32, the memory shared wherever the type allows."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lowprec.cast.casts import decode, encode

Array = NDArray[Any]
_DTYPES = (torch.float32, torch.bfloat16)


def values(t: torch.Tensor) -> Array:
    """Return a tensor's values in float32; a float32 tensor's own memory.

    Not by ``t.numpy()``, which marks the storage as one that cannot be resized: sharded parameters would fail later.
    """
    t = t.detach().contiguous()
    if t.dtype == torch.bfloat16:
        return decode(np.from_dlpack(t.view(torch.uint16)), "bfloat16")
    array: Array = np.from_dlpack(t)
    return array


def tensor(array: Array, dtype: torch.dtype) -> torch.Tensor:
    """Return values as a tensor, rounded to nearest even if it is narrower."""
    if dtype == torch.bfloat16:
        return torch.from_numpy(encode(array, "bfloat16").view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(np.ascontiguousarray(array))


def check(name: str, t: torch.Tensor) -> None:
    """Raise unless a tensor's numbers are ours to multiply.

    Raises
    ------
    TypeError
        For anything but float32 and bfloat16.
    RuntimeError
        For a tensor that is not on the CPU.
    """
    if t.dtype not in _DTYPES:
        raise TypeError(f"lowprec.torch: {name} is {t.dtype}; float32 or bfloat16 is needed")
    if t.device.type not in ("cpu", "meta"):
        raise RuntimeError(
            f"lowprec.torch: {name} is on {t.device}; bits are emulated on the CPU: move the model there"
        )
