"""MMA-Sim: models of NVIDIA's and AMD's matrix instructions. A product is one instruction; C is 0 by default."""

from typing import Any

from .harness import Answer, Operation

VERSIONS = ("mmasim", "torch")
ENVIRONMENT = "mmasim"
NEEDS = ("torch", "mmasim", "setuptools", "numpy")


def product(codes: Any, kind: str, arch: str, name: str, dtype: str, addend: str = "0") -> Answer:
    """Multiply rows of A by rows of B, in tiles of the instruction, and add a constant."""
    import numpy as np
    import torch
    from mmasim import amd, nv_ptx

    unit = getattr(amd if kind == "MFMA" else nv_ptx, kind)(arch, name)
    t = torch.from_numpy(codes).view(getattr(torch, dtype))
    rows = min(unit.m, 64)

    def one(a: Any, b: Any) -> Any:
        wide = b.view(torch.uint8).repeat(unit.n // 8, 1).view(b.dtype)
        return unit(a.contiguous(), wide.T, torch.full((rows, unit.n), float(addend)))[:, :8]

    return {"values": np.stack([np.concatenate([one(x[i : i + rows], x[64:]) for i in range(0, 64, rows)]) for x in t])}


_SIMULATED = {
    "Ada FP8": ("MMA", "Ada Lovelace", "m16n8k32.f32.e4m3.e4m3.f32", "e4m3fn", "ada_fp8"),
    "Hopper FP8": ("WGMMA", "Hopper", "m64n8k32.f32.e4m3.e4m3", "e4m3fn", "hopper_fp8"),
    "Blackwell FP8": ("TCGen05MMA", "Blackwell", "m64n8k32.kind::f8f6f4.f32.e4m3.e4m3", "e4m3fn", "blackwell_fp8"),
    "Hopper FP8 E5M2": ("WGMMA", "Hopper", "m64n8k32.f32.e5m2.e5m2", "e5m2", "hopper_fp8"),
    "CDNA3 FP8": ("MFMA", "CDNA3", "f32_16x16x32_fp8_fp8", "e4m3fnuz", "cdna3_fp8"),
}
OPERATIONS = [
    *(Operation(f"product {name}", product, f"products/{ours}", entry,
                {"kind": kind, "arch": arch, "name": instruction, "dtype": f"float8_{ours}"})
      for name, (kind, arch, instruction, ours, entry) in _SIMULATED.items()),
    Operation("product CDNA3 FP8 E5M2, C = NaN", product, "products/e5m2fnuz", "cdna3_fp8",
              {"kind": "MFMA", "arch": "CDNA3", "name": "f32_16x16x32_bf8_bf8", "dtype": "float8_e5m2fnuz",
               "addend": "nan"}, options={"addend": "nan"}),
]  # fmt: skip
