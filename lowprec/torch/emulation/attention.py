"""Products in PyTorch's attention on CPUs; their orders are found by probing `torch.mm` or attention itself."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lowprec.parity.operations import rounded
from lowprec.parity.sums import Flash, row_sums

from .layout import Floats, fill, like, values


@dataclass
class Float32Blocks:
    """Products Q K^T and P V of a block of attention in float32, added in the orders of `torch.mm`.

    The order depends on the alignment of operands and result; the result has that of the kernel's buffer.
    """

    mode: Any
    rule: Flash
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    rows: int

    def scores(self) -> Floats:
        """Return Q K^T."""
        return self.mode.products(self.rule, self.q, self.k.t(), None, "float32", 0)

    def times_values(self, p: Floats) -> Floats:
        """Return P V; the result is stored after the scores, maxima and sums of all rows of a block."""
        at = self.rows * (len(self.k) + 2) % 16
        return self.mode.products(self.rule, torch.from_numpy(p), self.v, None, "float32", at)


class Bfloat16Blocks(Float32Blocks):
    """Products of a block of attention in bfloat16, whose orders are probed through attention itself."""

    def scores(self) -> Floats:
        """Return Q K^T; a probe reads a score from the log-sum-exp, with all other keys masked."""
        q, k = like(self.q), like(self.k)
        n, zeros = len(k), torch.zeros_like(self.v)
        masks = torch.full((n, n), -math.inf, dtype=torch.float32).fill_diagonal_(0.0)
        kernel = self.rule.kernel("bfloat16")

        def probe(x: Floats, y: Floats, z: float) -> Floats:
            fill(q, torch.from_numpy(x))
            fill(k, torch.from_numpy(y))
            found = [_flash(q, k, zeros, mask.expand(len(q), n))[1].reshape(-1) for mask in masks]
            return values(torch.stack(found, 1)).ravel()

        # log(e**0) in the kernel's arithmetic, which is not always 0
        logs = np.tile(kernel.exp2.log(kernel.exp2(np.zeros((1, n), np.float32))[0]), len(q))

        def seen(scores: Floats) -> Floats:
            return scores + logs

        plan = self.mode.plan("qk", self.rule, "scores", probe, q.shape[1], "bfloat16", [q, k], seen=seen)
        return plan.sums(values(self.q), values(self.k))

    def times_values(self, p: Floats) -> Floats:
        """Return P V; probes have scores of 0, so that every unnormalized probability is e**0."""
        v, (m, d) = like(self.v), self.q.shape
        n = len(v)
        q, k = torch.zeros(m, d, dtype=v.dtype), torch.zeros(n, d, dtype=v.dtype)
        kernel = self.rule.kernel("bfloat16")
        ones = kernel.exp2(np.zeros((1, n), np.float32))
        inverse = kernel.reciprocal(row_sums(kernel.row_sum, ones))

        def probe(x: Floats, y: Floats, z: float) -> Floats:
            fill(v, torch.from_numpy(x)[:, None])
            return values(_flash(q, k, v, None)[0]).ravel()

        def seen(sums: Floats) -> Floats:
            return rounded(sums * inverse, "bfloat16")

        plan = self.mode.plan("pv", self.rule, "values", probe, n, "bfloat16", [q, v], operands=1, seen=seen)
        return plan.sums(p, values(self.v).T)


def _flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None) -> Any:
    operands = (t[None, None] for t in (q, k, v))
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*operands, attn_mask=mask, scale=1.0)
