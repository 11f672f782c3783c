"""GELU of PyTorch on CPUs: which functions compute the elements of a tensor, compared with PyTorch in probes."""

from __future__ import annotations

import functools
from typing import Any

import torch

from lowprec.parity.operations import Gelu, rounded
from lowprec.special.cpu import CpuGelu

from .comparison import DTYPES, differing
from .layout import values

#: Layouts of the probes: oneDNN takes contiguous operands, vector steps contiguous memory, and scalar code the others.
_LAYOUTS: dict[str, Any] = {
    "dense": lambda x: x, "vector": lambda x: x.view(2, -1).t(), "scalar": lambda x: x.repeat_interleave(2)[::2],
}  # fmt: skip


def gelu_for(rule: Gelu, approximate: str, x: torch.Tensor, out: torch.Tensor, run: int) -> Gelu:
    """Return the rule with the functions that compute a tensor in runs of `run` consecutive elements.

    Raises
    ------
    ValueError
        If PyTorch has other bits in a probe of a function, or the rests of vector steps are not known.
    """
    if rule.dense and torch.backends.mkldnn.enabled and x.is_contiguous() and x.numel() > 1:
        if not out.is_contiguous():
            raise ValueError(f"emulate: gelu of a contiguous operand must have a contiguous result, got {out.stride()}")
        function = _find(rule.dense, rule.probed, "dense", approximate, x.dtype)
        return rule.with_(vector=function, scalar=function)
    step = rule.step // x.element_size()
    if run >= step:
        _find((rule.vector,), rule.probed, "vector", approximate, x.dtype)
    if run % step or not run or out.numel() % run:
        _find((rule.scalar,), rule.probed, "scalar", approximate, x.dtype)
    return rule


@functools.lru_cache(32)
def _find(functions: tuple[CpuGelu, ...], probed: bool, layout: str, approximate: str, dtype: torch.dtype) -> CpuGelu:
    """Return the first function with PyTorch's bits for all values of bfloat16, or the first if it is not probed."""
    if not probed:
        return functions[0]
    every = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    x = _LAYOUTS[layout](every.to(dtype))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # several threads would begin their parts within a vector
    try:
        expected = torch.nn.functional.gelu(x, approximate=approximate)
    finally:
        torch.set_num_threads(threads)
    for function in functions:
        found = rounded(function(values(x)), DTYPES[dtype])
        if not differing(torch.from_numpy(found).to(dtype), expected):
            return function
    tried = " or ".join(map(str, functions))
    raise ValueError(f"emulate: gelu must have the bits of {tried} in {layout} code, got others from this PyTorch")
