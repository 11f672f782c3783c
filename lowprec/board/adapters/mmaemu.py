"""mmaemu: cuBLAS products, emulated by its reference backend on the CPU, with one chain over all of K."""

from typing import Any

from .harness import Answer, Operation

VERSIONS = ("mmaemu", "torch")
ENVIRONMENT = "mmasim"
NEEDS = ("torch", "mmaemu", "numpy")


def product(codes: Any, profile: str, dtype: str) -> Answer:
    """Multiply rows of A by rows of B with fast accumulation."""
    import mmaemu
    import numpy as np
    import torch

    t = torch.from_numpy(codes).view(getattr(torch, dtype))
    how: dict[str, Any] = {"use_fast_accum": True, "profile": profile, "splitk": 1, "backend": "reference"}
    return {"values": np.stack([mmaemu.accumulate(x[:64], x[64:], **how).numpy() for x in t])}


OPERATIONS = [
    Operation(f"product {profile} {ours}", product, f"products/{ours}", f"{profile}_fp8",
              {"profile": profile, "dtype": f"float8_{ours}"})
    for profile in ("hopper", "ada") for ours in ("e4m3fn", "e5m2")
]  # fmt: skip
