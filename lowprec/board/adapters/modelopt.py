"""nvidia-modelopt: QTensors on the CPU. A byte holds two codes, the first in its low nibble."""

from typing import Any

from .harness import Answer, Operation, nibbles

VERSIONS = ("nvidia-modelopt", "torch")
ENVIRONMENT = "torch"
NEEDS = ("torch", "nvidia-modelopt", "requests", "numpy")


def mxfp8(x: Any) -> Answer:
    """Quantize blocks of 32 to E4M3."""
    import torch
    from modelopt.torch.quantization.qtensor.mxfp8_tensor import MXFP8QTensor

    q, scale = MXFP8QTensor.quantize(torch.from_numpy(x))
    return {"codes": q._quantized_data.view(torch.uint8).numpy(), "scale_codes": scale.numpy()}


def mxfp4(x: Any, stored: bool = False) -> Answer:
    """Quantize blocks of 32 to E2M1."""
    import torch
    from modelopt.torch.quantization.qtensor.mxfp4_tensor import MXFP4QTensor

    q, scale = MXFP4QTensor.quantize(torch.from_numpy(x), 32)
    codes = q._quantized_data.numpy()
    return {"codes": codes if stored else nibbles(codes), "scale_codes": scale.numpy()}


def nvfp4(x: Any) -> Answer:
    """Quantize a tensor in blocks of 16."""
    import torch
    from modelopt.torch.quantization.qtensor.nvfp4_tensor import NVFP4QTensor

    q, scale, _ = NVFP4QTensor.quantize(torch.from_numpy(x).clone(), 16)
    return {"codes": nibbles(q._quantized_data.numpy()), "scale": scale.float().numpy()}


def fp8(x: Any, rows: int) -> Answer:
    """Quantize to E4M3 by blocks of rows x 128."""
    import torch
    from modelopt.torch.quantization.qtensor.fp8_tensor import FP8QTensor

    sizes = {-1: 128, -2: rows} if rows > 1 else {-1: 128}
    q, scale = FP8QTensor.quantize(torch.from_numpy(x), block_sizes=sizes)
    return {"codes": q._quantized_data.view(torch.uint8).numpy(), "scale": scale.numpy()}


OPERATIONS = [
    Operation("MXFP8", mxfp8, "blocks/32", "mxfp8_rceil", options={"scale_calculation": "amax/max"}),
    Operation("MXFP4", mxfp4, "blocks/32", "mxfp4_modelopt"),
    Operation("NVFP4", nvfp4, "tensors", "nvfp4_modelopt"),
    Operation("packing of MXFP4", mxfp4, "nibbles/e2m1fn", "e2m1fn", {"stored": True}),
    Operation("FP8 1x128", fp8, "blocks/128", "dsv3_inference", {"rows": 1}, options={"amax_floor": 0.0}),
    Operation("FP8 128x128", fp8, "tiles/128", "dsv3_inference", {"rows": 128},
              options={"amax_floor": 0.0, "granularity": "128x128"}),
]  # fmt: skip
