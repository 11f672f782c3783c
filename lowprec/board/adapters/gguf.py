"""gguf, llama.cpp's Python package: an MXFP4 block is a scale byte, then bytes of element i (low nibble) and i + 16."""

from typing import Any

from .harness import Answer, Operation

VERSIONS = ("gguf", "numpy")
ENVIRONMENT = "small"
NEEDS = ("gguf", "numpy")


def mxfp4(x: Any, stored: bool = False) -> Answer:
    """Quantize blocks of 32."""
    import numpy as np
    from gguf import GGMLQuantizationType, quants

    packed = quants.quantize(x, GGMLQuantizationType.MXFP4).reshape(-1, 17)
    codes = packed[:, 1:] if stored else np.concatenate([packed[:, 1:] & 15, packed[:, 1:] >> 4], 1)
    return {"codes": codes, "scale_codes": packed[:, 0]}


def ue4m3(x: Any) -> Answer:
    """Cast nonnegative values to the scales of NVFP4."""
    from gguf import quants

    return {"codes": quants.NVFP4.fp32_to_ue4m3(x)}


def bfloat16(x: Any) -> Answer:
    """Cast float32 values."""
    import numpy as np
    from gguf import GGMLQuantizationType, quants

    return {"codes": quants.quantize(x.reshape(-1, 1), GGMLQuantizationType.BF16).reshape(-1).view(np.uint16)}


OPERATIONS = [
    Operation("MXFP4", mxfp4, "blocks/32", "mxfp4_gguf"),
    Operation("packing of MXFP4", mxfp4, "nibbles/e2m1fn", "e2m1fn", {"stored": True}),
    Operation("cast ue4m3", ue4m3, "casts/e4m3fn", "e4m3fn", options={"rounding": "nearest_away"},
              domain="nonnegative"),
    Operation("cast bfloat16", bfloat16, "casts/bfloat16", "bfloat16"),
]  # fmt: skip
