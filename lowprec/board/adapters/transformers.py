"""transformers: FP8 quantization by blocks (its weight_scale_inv multiplies) and GPT-OSS's MXFP4 weights."""

from typing import Any

from .harness import Answer, Operation

VERSIONS = ("transformers", "torch")
ENVIRONMENT = "transformers"
NEEDS = ("torch", "transformers", "numpy")


def fp8(x: Any, rows: int, scale_format: str = "float") -> Answer:
    """Quantize to E4M3 by blocks of rows x 128."""
    from types import SimpleNamespace

    import torch
    from transformers.integrations.finegrained_fp8 import Fp8Quantize

    config = SimpleNamespace(weight_block_size=(rows, 128), scale_fmt=scale_format)
    out = Fp8Quantize(SimpleNamespace(quantization_config=config))._quantize_one("a.weight", torch.from_numpy(x))
    return {"codes": out["a.weight"].view(torch.uint8).numpy(), "scale": out["a.weight_scale_inv"].float().numpy()}


def mxfp4_decode(codes: Any) -> Answer:
    """Decode all codes with the scale 2^0, low nibble first."""
    import numpy as np
    import torch
    from transformers.integrations.mxfp4 import _convert_moe_packed_tensors

    packed = torch.from_numpy((codes[::2] | codes[1::2] << 4).astype(np.uint8)).reshape(1, 1, 1, -1)
    scales = torch.full((1, 1, 1), 127, dtype=torch.uint8)
    return {"values": _convert_moe_packed_tensors(packed, scales, dtype=torch.float32).numpy().reshape(-1)}


OPERATIONS = [
    Operation("FP8 1x128", fp8, "blocks/128", "te_block_fp32", {"rows": 1}),
    Operation("FP8 128x128", fp8, "tiles/128", "te_block_fp32", {"rows": 128}, options={"granularity": "128x128"}),
    Operation("FP8 1x128 ue8m0", fp8, "blocks/128", "dsv3_inference_ue8m0", {"rows": 1, "scale_format": "ue8m0"},
              options={"amax_floor": 0.0}),
    Operation("MXFP4 decode", mxfp4_decode, "codes/e2m1fn", "e2m1fn"),
]  # fmt: skip
