"""compressed-tensors: `calculate_qparams` and `quantize`. Its global scale multiplies values, not codes."""

from typing import Any

from .harness import Answer, Operation, nibbles

VERSIONS = ("compressed-tensors", "torch")
ENVIRONMENT = "torch"
NEEDS = ("torch", "compressed-tensors", "numpy")


def group(x: Any, bits: int, width: int, mx: bool = False, height: int = 1) -> Answer:
    """Quantize blocks of `width` values, or tiles of `height` rows."""
    import torch
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.quantization.lifecycle.forward import quantize
    from compressed_tensors.quantization.utils.helpers import calculate_qparams

    kind = {"scale_dtype": torch.uint8, "zp_dtype": torch.uint8} if mx else {}
    shape = {"block_structure": [height, width]} if height > 1 else {"group_size": width}
    args = QuantizationArgs(
        num_bits=bits, type="float", strategy="block" if height > 1 else "group", symmetric=True, **shape, **kind
    )
    t = torch.from_numpy(x)
    blocks = t.reshape(-1, 1, height * width) if height > 1 else t.unflatten(1, (-1, width))
    scale, zero = calculate_qparams(blocks.amin(-1), blocks.amax(-1), args)
    q = quantize(t.clone(), scale, zero, args)
    if bits == 8:
        return {"codes": q.to(torch.float8_e4m3fn).view(torch.uint8).numpy(), "scale": scale.float().numpy()}
    return {
        "values": (q.unflatten(1, (-1, width)) * scale.unsqueeze(-1)).float().numpy(),
        "scale": scale.float().numpy(),
    }


def nvfp4(x: Any, stored: bool = False) -> Answer:
    """Quantize a tensor in blocks of 16."""
    import torch
    from compressed_tensors.compressors.nvfp4.helpers import pack_fp4_to_uint8
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.quantization.lifecycle.forward import quantize
    from compressed_tensors.quantization.utils.helpers import calculate_qparams, generate_gparam

    args = QuantizationArgs(num_bits=4, type="float", strategy="tensor_group", group_size=16, symmetric=True,
                            scale_dtype=torch.float8_e4m3fn, zp_dtype=torch.float8_e4m3fn)  # fmt: skip
    t = torch.from_numpy(x)
    g = generate_gparam(t.min(), t.max())
    blocks = t.unflatten(1, (-1, 16))
    scale, zero = calculate_qparams(blocks.amin(-1), blocks.amax(-1), args, global_scale=g)
    q = quantize(t.clone(), scale, zero, args, global_scale=g)
    codes = pack_fp4_to_uint8(q).numpy()
    return {"codes": codes if stored else nibbles(codes), "scale": scale.float().numpy()}


def hadamard(x: Any, kind: str) -> Answer:
    """Transform blocks in bfloat16; random signs are applied twice, so that they cancel."""
    import torch
    from compressed_tensors.transform import TransformArgs, TransformFactory, TransformScheme

    factory = TransformFactory.from_scheme(TransformScheme(type=kind, head_dim=16), name="rotation", seed=0)
    args = TransformArgs(targets=["Linear"], location="input")
    transform = factory.create_transform(torch.nn.Linear(16, 16, bias=False), args)
    signs = transform.weight.detach()[:, 0].bfloat16()
    return {"values": transform(torch.from_numpy(x).bfloat16() * signs).detach().float().numpy()}


OPERATIONS = [
    Operation("MXFP8", group, "blocks/32", "mxfp8_even_1bit", {"bits": 8, "width": 32, "mx": True}),
    Operation("MXFP6 E2M3", group, "blocks/32", "mxfp6_e2m3_even", {"bits": 6, "width": 32, "mx": True}),
    Operation("MXFP4", group, "blocks/32", "mxfp4_even", {"bits": 4, "width": 32, "mx": True}),
    Operation("NVFP4", nvfp4, "tensors", "nvfp4_4over6",
              options={"four_over_six": None, "max_block_scale": 448.0}),
    Operation("packing of NVFP4", nvfp4, "nibbles/e2m1fn", "e2m1fn", {"stored": True}),
    Operation("FP8 1x128", group, "blocks/128", "dsv3_inference", {"bits": 8, "width": 128},
              options={"amax_floor": 0.0}),
    Operation("FP8 128x128", group, "tiles/128", "dsv3_inference", {"bits": 8, "width": 128, "height": 128},
              options={"amax_floor": 0.0, "granularity": "128x128"}),
    *(Operation(f"{name} transform", hadamard, "hadamard/16", "bfloat16", {"kind": kind}, options={"signs": "none"})
      for name, kind in (("Hadamard", "hadamard"), ("random Hadamard", "random-hadamard"))),
]  # fmt: skip
