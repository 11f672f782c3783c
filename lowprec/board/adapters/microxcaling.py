"""microxcaling, from the checkout in the folder MICROXCALING: values of MX blocks, on the CPU, with ties to even."""

from typing import Any

from .harness import Answer, Operation, checkout

VERSIONS = ("microxcaling", "torch")
ENVIRONMENT = "torch"
NEEDS = ("torch", "numpy")
KINDS = {
    "fp8_e4m3": "mxfp8_floor", "fp8_e5m2": "mxfp8_e5m2_floor", "fp6_e2m3": "mxfp6_e2m3_floor",
    "fp6_e3m2": "mxfp6_e3m2_floor", "fp4_e2m1": "mxfp4_floor", "int8": "mxint8",
}  # fmt: skip


def version() -> str:
    """Return a hash of the checkout's files for quantization."""
    return checkout("MICROXCALING", "github.com/microsoft/microxcaling", "mx/*.py")


def mx(x: Any, kind: str) -> Answer:
    """Quantize and dequantize blocks of 32."""
    import os
    import sys

    import torch

    sys.path.insert(0, os.environ["MICROXCALING"])
    from mx.mx_ops import quantize_mx_op
    from mx.specs import MxSpecs

    specs = MxSpecs(
        scale_bits=8, block_size=32, shared_exp_method="max", mx_flush_fp32_subnorms=False, custom_cuda=False
    )
    y = quantize_mx_op(torch.from_numpy(x).clone(), specs, kind, axes=[-1], round="even")
    return {"values": y.numpy() + 0 if kind == "int8" else y.numpy()}  # integers have no -0


OPERATIONS = [Operation(f"MX {kind}", mx, "blocks/32", entry, {"kind": kind}) for kind, entry in KINDS.items()]
