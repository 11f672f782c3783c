"""Memory of tensors: copies with the same strides and alignment, and PyTorch's loop over elements."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

Floats = NDArray[np.float32]
ALIGNMENT = 64  # bytes; the orders of MKL's products depend on addresses modulo 16 float32 elements


def values(t: torch.Tensor) -> Floats:
    """Return the elements of a tensor as float32."""
    return t.detach().float().numpy()


def like(t: torch.Tensor) -> torch.Tensor:
    """Return a tensor of zeros with a tensor's shape, strides and alignment."""
    size = 1 + sum((n - 1) * stride for n, stride in zip(t.shape, t.stride(), strict=True))
    base = torch.zeros(size + 2 * ALIGNMENT, dtype=t.dtype)
    start = (t.data_ptr() - base.data_ptr()) % ALIGNMENT // t.element_size()
    return base.as_strided(t.shape, t.stride(), start)


def copied(t: torch.Tensor) -> torch.Tensor:
    """Return a copy of a tensor with its strides and alignment."""
    if not t.numel():
        return t
    copy = like(t)
    size = 1 + sum((n - 1) * stride for n, stride in zip(t.shape, t.stride(), strict=True))
    copy.as_strided((size,), (1,)).copy_(t.as_strided((size,), (1,)))
    return copy


def fill(buffer: torch.Tensor, x: torch.Tensor) -> None:
    """Copy an array to a buffer; axes on which the buffer repeats its memory are written once."""
    buffer[tuple(slice(1) if stride == 0 else slice(None) for stride in buffer.stride())].copy_(x)


def loop_of(operands: list[torch.Tensor], out: torch.Tensor) -> tuple[list[int], int]:
    """Return axes from outermost to innermost in PyTorch's loop, and the number of elements in a run.

    A run covers the inner axes on which the output is contiguous, and each operand is contiguous or one repeated value.
    """
    axes = sorted(range(out.dim()), key=lambda axis: -out.stride(axis))
    inner = [axis for axis in axes if out.shape[axis] > 1][::-1]
    expanded = [a.expand(out.shape) for a in operands]
    units = [min(a.stride(inner[0]), 1) if inner else 1 for a in expanded]
    run = 1
    for axis in inner:
        if out.stride(axis) != run or any(a.stride(axis) != u * run for a, u in zip(expanded, units, strict=True)):
            break
        run *= out.shape[axis]
    return axes, run
