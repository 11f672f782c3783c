"""Operands of one linear layer, and its three products in a recipe."""

import numpy as np

import lowprec as lp


def operands(rows=70, k=200, n=90, seed=0):
    rng = np.random.default_rng(seed)
    bf16 = lambda *shape: lp.round_to(rng.standard_normal(shape).astype(np.float32), "bfloat16")  # noqa: E731
    return bf16(rows, k), bf16(n, k), bf16(rows, n)
