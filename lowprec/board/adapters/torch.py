"""PyTorch on the CPU: casts by its vector loops (contiguous tensors) and by its scalar loops (strided ones)."""

from typing import Any

from .harness import Answer, Operation

VERSIONS = ("torch",)
ENVIRONMENT = "torch"
NEEDS = ("torch", "numpy")
FP8 = ("e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz")


def cast(x: Any, name: str, strided: bool = False) -> Answer:
    """Cast float32 values."""
    import torch

    t = torch.from_numpy(x)
    t = (torch.stack([t, t], 1)[:, 0] if strided else t).to(getattr(torch, name)).contiguous()
    size = t.element_size()
    return {"codes": t.view(torch.uint8 if size == 1 else torch.int16).numpy().view(f"u{size}")}


def decode(codes: Any, name: str) -> Answer:
    """Decode all codes."""
    import torch

    return {"values": torch.from_numpy(codes).view(getattr(torch, name)).float().numpy()}


def _casts(strided: bool) -> list[Operation]:
    more = {"strided": True} if strided else {}
    loop = ", strided" * strided
    fp8 = [Operation(f"cast {ours}{loop}", cast, f"casts/{ours}", ours, {"name": f"float8_{ours}", **more},
                     options={"policy": "torch_2_13"}) for ours in FP8]  # fmt: skip
    return [
        *fp8,
        Operation(f"cast e8m0fnu{loop}", cast, "casts/e8m0fnu", "e8m0fnu", {"name": "float8_e8m0fnu", **more},
                  options={"rounding": "nearest_away", "policy": "ocp_nonsat"}, domain="nonnegative", causes="J",
                  issue="jax-ml/ml_dtypes#298"),
        Operation(f"cast bfloat16{loop}", cast, "casts/bfloat16", "bfloat16", {"name": "bfloat16", **more},
                  options={"policy": "riscv_bf16"} if strided else {}, causes="" if strided else "K"),
        Operation(f"cast float16{loop}", cast, "casts/float16", "float16", {"name": "float16", **more}, causes="K"),
    ]  # fmt: skip


OPERATIONS = [
    *_casts(strided=False),
    *_casts(strided=True),
    *(Operation(f"decode {ours}", decode, f"codes/{ours}", ours, {"name": f"float8_{ours}"}) for ours in FP8),
]
