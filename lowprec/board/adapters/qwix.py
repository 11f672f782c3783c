"""qwix: `quantize` returns codes and scales that multiply codes; its NVFP4 omits the tensor scale.

For many blocks, XLA's loops ignore NaN in the largest magnitude of a block; for few, they do not. Programs of the page
therefore have 256 copies of a block.
"""

from typing import Any

from .harness import Answer, Operation

VERSIONS = ("qwix", "jax", "ml_dtypes")
ENVIRONMENT = "jax"
NEEDS = ("jax", "qwix", "numpy")
COPIES = 256


def quantize(x: Any, kind: str, width: int) -> Answer:
    """Quantize blocks."""
    import numpy as np
    import qwix

    q = qwix.quantize(x, kind, channelwise_axes=[0], tiled_axes={1: width})
    return {"codes": np.asarray(q.qvalue).view(np.uint8), "scale": np.asarray(q.scale, np.float32)}


_MX = {"zero_block": "one"}
OPERATIONS = [
    Operation("mxfp8", quantize, "blocks/32", "mxfp8_rceil", {"kind": "mxfp8", "width": 32}, options=_MX),
    Operation("mxfp4", quantize, "blocks/32", "mxfp4_rceil", {"kind": "mxfp4", "width": 32}, options=_MX),
    Operation("nvfp4", quantize, "blocks/16", "dsv41_kv_fp4", {"kind": "nvfp4", "width": 16},
              options={"amax_floor": 0.0, "min_scale": 0.0, "zero_block": "rule"}),
    Operation("float8_e4m3fn 1x128", quantize, "blocks/128", "dsv32_inference",
              {"kind": "float8_e4m3fn", "width": 128}, options={"amax_floor": 0.0}),
]  # fmt: skip
