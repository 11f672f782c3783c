"""AMD Quark: fake quantization of blocks of 32, which returns values."""

from typing import Any

from .harness import Answer, Operation

VERSIONS = ("amd-quark", "torch")
ENVIRONMENT = "quark"
NEEDS = ("torch", "amd-quark", "transformers", "numpy")
KINDS = {
    "fp8_e4m3": "mxfp8", "fp8_e5m2": "mxfp8_e5m2", "fp6_e2m3": "mxfp6_e2m3", "fp6_e3m2": "mxfp6_e3m2", "fp4": "mxfp4",
}  # fmt: skip


def mx(x: Any, kind: str, mode: str) -> Answer:
    """Quantize and dequantize blocks of 32."""
    import torch
    from quark.torch.kernel.hw_emulation import hw_emulation_interface

    y = hw_emulation_interface.fake_quantize_mx(torch.from_numpy(x).clone(), -1, 32, mode, mx_element_dtype=kind)
    return {"values": y.numpy()}


OPERATIONS = [
    Operation(f"MX {kind} {mode}", mx, "blocks/32", f"{entry}_{mode}", {"kind": kind, "mode": mode})
    for kind, entry in KINDS.items() for mode in ("even", "floor", "ceil")
]  # fmt: skip
