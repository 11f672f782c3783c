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


def four_over_six(x: Any) -> Answer:
    """Quantize a tensor in blocks of 16 by the four-over-six quantizer, with a block's largest magnitude at 6."""
    from types import SimpleNamespace

    import torch
    from modelopt.torch.quantization.qtensor.nvfp4_tensor import NVFP4QTensor

    t = torch.from_numpy(x).clone()
    blocks = {"block_sizes": {-1: 16, "four_over_six": True}, "_amax": t.view(len(t), -1, 16).abs().amax(-1)}
    found = NVFP4QTensor.get_weights_scaling_factor_from_quantizer(
        SimpleNamespace(**blocks, global_amax=t.abs().max()), t
    )
    q, scale, _ = NVFP4QTensor.quantize(t, 16, *found)
    return {"codes": nibbles(q._quantized_data.numpy()), "scale": scale.float().numpy()}


def fp8(x: Any, rows: int) -> Answer:
    """Quantize to E4M3 by blocks of rows x 128."""
    import torch
    from modelopt.torch.quantization.qtensor.fp8_tensor import FP8QTensor

    sizes = {-1: 128, -2: rows} if rows > 1 else {-1: 128}
    q, scale = FP8QTensor.quantize(torch.from_numpy(x), block_sizes=sizes)
    return {"codes": q._quantized_data.view(torch.uint8).numpy(), "scale": scale.numpy()}


def hadamard(x: Any) -> Answer:
    """Transform blocks in bfloat16."""
    import torch
    from modelopt.torch.quantization.nn import functional

    return {"values": functional.normalized_hadamard_transform(torch.from_numpy(x).bfloat16()).float().numpy()}


OPERATIONS = [
    Operation("MXFP8", mxfp8, "blocks/32", "mxfp8_rceil", options={"scale_calculation": "amax/max"}),
    Operation("MXFP4", mxfp4, "blocks/32", "mxfp4_modelopt"),
    Operation("NVFP4", nvfp4, "tensors", "nvfp4_modelopt"),
    Operation("NVFP4 4over6, without the choice", four_over_six, "tensors", "nvfp4_modelopt",
              options={"max_block_scale": 256.0}),
    Operation("packing of MXFP4", mxfp4, "nibbles/e2m1fn", "e2m1fn", {"stored": True}),
    Operation("FP8 1x128", fp8, "blocks/128", "dsv3_inference", {"rows": 1}, options={"amax_floor": 0.0}),
    Operation("FP8 128x128", fp8, "tiles/128", "dsv3_inference", {"rows": 128},
              options={"amax_floor": 0.0, "granularity": "128x128"}),
    Operation("Hadamard transform", hadamard, "hadamard/16", "bfloat16", options={"signs": "none"}),
]  # fmt: skip
