"""torchao: MX in four scale modes, NVFP4 with one and two levels, FP8 by tensor, by 1x128 and by 128x128."""

from typing import Any

from .harness import Answer, Operation, nibbles

VERSIONS = ("torchao", "torch")
ENVIRONMENT = "torch"
NEEDS = ("torch", "torchao", "triton", "numpy")
KINDS = {
    "mxfp8": "float8_e4m3fn", "mxfp8_e5m2": "float8_e5m2", "mxfp6_e2m3": "fp6_e2m3", "mxfp6_e3m2": "fp6_e3m2",
    "mxfp4": "float4_e2m1fn_x2",
}  # fmt: skip


def mx(x: Any, kind: str, mode: str, stored: bool = False) -> Answer:
    """Quantize blocks of 32."""
    import torch
    from torchao.prototype.mx_formats.mx_tensor import ScaleCalculationMode, to_mx

    scale, q = to_mx(torch.from_numpy(x), getattr(torch, kind, kind), 32, getattr(ScaleCalculationMode, mode))
    codes = q.contiguous().view(torch.uint8).numpy()
    codes = nibbles(codes) if "4_e2m1" in kind and not stored else codes
    return {"codes": codes, "scale_codes": scale.view(torch.uint8).numpy()}


def nvfp4(x: Any, levels: int) -> Answer:
    """Quantize a tensor in blocks of 16."""
    import torch
    from torchao.prototype.mx_formats.nvfp4_tensor import nvfp4_quantize, per_tensor_amax_to_scale

    t = torch.from_numpy(x)
    scale, packed = nvfp4_quantize(t, 16, per_tensor_amax_to_scale(t.abs().max()) if levels == 2 else None)
    return {"codes": nibbles(packed.view(torch.uint8).numpy()), "scale_codes": scale.view(torch.uint8).numpy()}


def tensorwise(x: Any) -> Answer:
    """Quantize a tensor to E4M3 with one scale."""
    import torch
    from torchao.float8.float8_utils import amax_to_scale, to_fp8_saturated

    t = torch.from_numpy(x)
    m = amax_to_scale(t.abs().max(), torch.float8_e4m3fn)
    codes = to_fp8_saturated(t * m, torch.float8_e4m3fn).view(torch.uint8).numpy()
    return {"codes": codes, "scale": (1.0 / m).numpy().astype("float32")}


def float8_tensor(x: Any) -> Answer:
    """Quantize rows to E4M3 by the tensor subclass for inference."""
    from torch import from_numpy, uint8
    from torchao.quantization import Float8Tensor, PerRow

    q = Float8Tensor.from_hp(from_numpy(x), granularity=PerRow())
    return {"codes": q.qdata.view(uint8).numpy(), "scale": q.scale.numpy()}


def hadamard(x: Any) -> Answer:
    """Transform blocks in bfloat16."""
    import torch
    from torchao.prototype.moe_training.nvfp4_training import hadamard_utils as utils

    signs = (1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1)  # TransformerEngine's
    matrix = utils.get_rht_matrix(signs, "cpu", torch.bfloat16, 16)
    return {"values": (torch.from_numpy(x).bfloat16() @ matrix).float().numpy()}


def blockwise(x: Any, function: str) -> Answer:
    """Quantize to E4M3 by blocks, as in blockwise FP8 training."""
    import torch
    from torchao.prototype.blockwise_fp8_training import kernels

    q, scale = getattr(kernels, function)(torch.from_numpy(x))
    return {"codes": q.contiguous().view(torch.uint8).numpy(), "scale": scale.contiguous().numpy()}


OPERATIONS = [
    *(Operation(f"{entry.upper()} {mode}", mx, "blocks/32", f"{entry}_{mode.lower()}", {"kind": kind, "mode": mode},
                options={"scale_calculation": "amax/max"} if mode == "RCEIL" else {})
      for entry, kind in KINDS.items() for mode in ("FLOOR", "CEIL", "EVEN", "RCEIL")),
    Operation("NVFP4, two levels", nvfp4, "tensors", "nvfp4_torchao", {"levels": 2}),
    Operation("NVFP4, one level", nvfp4, "tensors", "nvfp4_torchao_one_level", {"levels": 1}),
    Operation("FP8 tensor", tensorwise, "tensors", "torchao_fp8"),
    Operation("FP8 1x128", blockwise, "blocks/128", "torchao_fp8",
              {"function": "torch_blockwise_scale_act_quant_lhs"}, options={"granularity": "1x128"}),
    Operation("Float8Tensor rows", float8_tensor, "blocks/128", "dsv3_inference", options={"amax_floor": 0.0}),
    Operation("packing of MXFP4", mx, "nibbles/e2m1fn", "e2m1fn",
              {"kind": "float4_e2m1fn_x2", "mode": "FLOOR", "stored": True}),
    Operation("random Hadamard transform", hadamard, "hadamard/16", "bfloat16"),
    Operation("FP8 128x128", blockwise, "tiles/128", "torchao_fp8",
              {"function": "torch_blockwise_scale_weight_quant"}, options={"granularity": "128x128"}),
]  # fmt: skip
