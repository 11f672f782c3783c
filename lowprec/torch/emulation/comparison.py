"""Comparison of a stack's outputs with PyTorch's: counts by operation, and error bounds."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from lowprec.order.order import FormatName
from lowprec.parity.operations import Bounded, rounded
from lowprec.parity.stack import Stack

from .layout import values

DTYPES: dict[torch.dtype, FormatName] = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
WORDS = {torch.float32: torch.int32, torch.bfloat16: torch.int16}


@dataclass
class Count:
    """Counts of an operation's calls, outputs, outputs that differ from PyTorch's, and kept outputs of PyTorch."""

    calls: int = 0
    outputs: int = 0
    differing: int = 0
    kept: int = 0


@dataclass
class Emulation:
    """Result of `emulate`.

    Attributes
    ----------
    stack : Stack
        The stack.
    counts : dict
        `Count` by operation.
    first : str
        Description of the first call with an output that differed from PyTorch's; empty if none differed.
    """

    stack: Stack
    counts: dict[str, Count] = field(default_factory=dict)
    first: str = ""

    def __str__(self) -> str:
        total, differing = (sum(getattr(c, name) for c in self.counts.values()) for name in ("outputs", "differing"))
        kept = [name for name, count in self.counts.items() if count.kept]
        words = [f"{differing} of {total} outputs of {len(self.counts)} operations differ from {self.stack.name}"]
        if self.first:
            words.append(f"the first in {self.first}")
        if kept:
            words.append(f"bits of {', '.join(kept)} are PyTorch's own")
        return "; ".join(words)


def differing(a: torch.Tensor, b: torch.Tensor) -> int:
    """Return the number of elements with other bits, where all NaNs are equal."""
    words = WORDS[a.dtype]
    wrong = a.contiguous().view(words) != b.contiguous().view(words)
    return int((wrong & ~(a.isnan() & b.isnan())).sum())


def check_bound(name: str, rule: Bounded, x: torch.Tensor, out: torch.Tensor) -> None:
    """Raise ValueError if an output of PyTorch is not within the rule's error bound of the exact value."""
    found = values(out)
    with np.errstate(all="ignore"):
        exact = getattr(np, rule.function)(values(x).astype(np.float64))
        ulp = 2.0 ** (np.floor(np.log2(np.maximum(np.abs(exact), 2.0**-126))) - 23)
        bound = (rule.ulps + {torch.float32: 0, torch.bfloat16: 2**15}[out.dtype]) * ulp  # and a rounding to bfloat16
        agrees = (np.abs(found - exact) <= bound) | (found == rounded(exact.astype(np.float32), DTYPES[out.dtype]))
    if not (agrees | np.isnan(found) & np.isnan(exact)).all():
        raise ValueError(f"emulate: {name} must be within {rule.ulps} ulp of the exact value, got larger errors")
