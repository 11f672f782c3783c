"""fouroversix: its PyTorch reference, without the layout of Blackwell; the low nibble of a byte is the first code."""

from typing import Any

from .harness import Answer, Operation, nibbles

VERSIONS = ("fouroversix", "torch")
ENVIRONMENT = "fouroversix"
NEEDS = ("torch", "numpy", "transformers", "setuptools", "wheel", "ninja", "packaging")
THEN = (("--no-build-isolation", "fouroversix"),)


def quantize(x: Any, rule: str, kind: str = "nvfp4", square: bool = False, stored: bool = False) -> Answer:
    """Quantize a tensor."""
    import torch
    from fouroversix.quantize.pytorch.reference import quantize_to_fp4
    from fouroversix.utils import DataType, ScaleRule

    codes, scale, _ = quantize_to_fp4(
        torch.from_numpy(x), fp4_format=DataType[kind], scale_rule=ScaleRule[rule], block_scale_2d=square,
        use_blackwell_scale_layout=False,
    )  # fmt: skip
    scale = scale.view(torch.uint8).numpy().reshape(len(x), -1)[:: 16 if square else 1]
    codes = codes.numpy().reshape(len(x), -1)
    return {"codes": codes if stored else nibbles(codes), "scale_codes": scale}


def hadamard(x: Any) -> Answer:
    """Transform blocks in bfloat16."""
    import torch
    from fouroversix.quantize.utils import get_rht_matrix

    matrix = get_rht_matrix(device="cpu")
    return {"values": (torch.from_numpy(x).bfloat16() @ matrix).float().numpy()}


_PLAIN = {"four_over_six": None, "max_block_scale": 448.0}
OPERATIONS = [
    Operation("NVFP4 static_6", quantize, "tensors", "nvfp4_4over6", {"rule": "static_6"}, options=_PLAIN),
    Operation("NVFP4 mse", quantize, "tensors", "nvfp4_4over6_mse", {"rule": "mse"}),
    Operation("NVFP4 mae", quantize, "tensors", "nvfp4_4over6", {"rule": "mae"}),
    Operation("NVFP4 16x16 mse", quantize, "tensors", "nvfp4_4over6_mse", {"rule": "mse", "square": True},
              options={"granularity": "16x16"}),
    Operation("MXFP4 static_6", quantize, "blocks/32", "mxfp4_rceil", {"rule": "static_6", "kind": "mxfp4"},
              options={"scale_calculation": "amax/max"}),
    Operation("packing of MXFP4", quantize, "nibbles/e2m1fn", "e2m1fn",
              {"rule": "static_6", "kind": "mxfp4", "stored": True}),
    Operation("random Hadamard transform", hadamard, "hadamard/16", "bfloat16"),
]  # fmt: skip
