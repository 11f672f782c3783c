"""PyTorch on the CPU: casts by its vector loops (contiguous tensors) and scalar loops (strided ones), and products."""

from typing import Any

from .harness import Answer, Operation, decodes

VERSIONS = ("torch",)
ENVIRONMENT = "torch"
NEEDS = ("torch", "numpy")
FP8 = {name: f"float8_{name}" for name in ("e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz")}


def cast(x: Any, name: str, strided: bool = False, above: bool = False) -> Answer:
    """Cast float32 values, or float64 values just above them in magnitude."""
    import torch

    t = torch.from_numpy(x).double() * (1 + 2.0**-40) if above else torch.from_numpy(x)
    t = (torch.stack([t, t], 1)[:, 0] if strided else t).to(getattr(torch, name)).contiguous()
    size = t.element_size()
    return {"codes": t.view(torch.uint8 if size == 1 else torch.int16).numpy().view(f"u{size}")}


def decode(codes: Any, name: str) -> Answer:
    """Decode all codes."""
    import torch

    return {"values": torch.from_numpy(codes).view(getattr(torch, name)).float().numpy()}


def product(codes: Any, name: str) -> Answer:
    """Multiply rows of A by rows of B with scales of 1."""
    import numpy as np
    import torch

    one, t = torch.ones(()), torch.from_numpy(codes).view(getattr(torch, name))
    pairs = [(x[:64].contiguous(), x[64:].contiguous().t()) for x in t]
    return {"values": np.stack([torch._scaled_mm(a, b, one, one, out_dtype=torch.float32).numpy() for a, b in pairs])}


_E8M0 = {"options": {"rounding": "nearest_away", "policy": "ocp_nonsat"}, "domain": "nonnegative"}
_FIELDS: dict[str, Any] = {name: {"options": {"policy": "torch_2_13"}} for name in FP8} | {"e8m0fnu": _E8M0}
OPERATIONS = [
    *(Operation(f"cast {ours}{', strided' * strided}", cast, f"casts/{ours}", ours,
                {"name": name, **({"strided": True} if strided else {})},
                **_FIELDS.get(ours, {"options": {"policy": "riscv_bf16"} if strided and ours == "bfloat16" else {}}))
      for strided in (False, True)
      for ours, name in (FP8 | {"e8m0fnu": "float8_e8m0fnu", "bfloat16": "bfloat16", "float16": "float16"}).items()),
    *(Operation(f"cast {ours} from float64", cast, f"casts/{ours}", ours, {"name": name, "above": True},
                options={"policy": policy, "rounding": "nearest_away"})
      for ours, name, policy in (("e4m3fn", "float8_e4m3fn", "torch_2_13"), ("bfloat16", "bfloat16", "riscv_bf16"))),
    *decodes(decode, FP8),
    *(Operation(f"_scaled_mm {ours}", product, f"products/{ours}", "float32", {"name": FP8[ours]})
      for ours in ("e4m3fn", "e5m2")),
]  # fmt: skip
