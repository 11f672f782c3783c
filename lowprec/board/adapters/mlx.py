"""MLX on the CPU: 32-bit words with the first code in the lowest bits; an odd number of rows of 16 raises an error."""

from typing import Any

from .harness import Answer, Operation, nibbles

VERSIONS = ("mlx", "numpy")
ENVIRONMENT = "mlx"
NEEDS = ("mlx[cpu]", "numpy")


def quantize(x: Any, mode: str, width: int, bits: int, stored: bool = False) -> Answer:
    """Quantize blocks, of which an odd number is extended by a block of ones."""
    import mlx.core as mx
    import numpy as np

    even = np.concatenate([x, np.ones((len(x) % 2, x.shape[1]), np.float32)])
    words, scales = mx.quantize(mx.array(even), group_size=width, bits=bits, mode=mode)
    codes = np.array(words)[: len(x)].view(np.uint8)
    return {"codes": codes if stored or bits == 8 else nibbles(codes), "scale_codes": np.array(scales)[: len(x)]}


def nvfp4(x: Any) -> Answer:
    """Quantize a tensor with its largest magnitude as global scale."""
    import mlx.core as mx
    import numpy as np

    words, scales = mx.quantize(
        mx.array(x), group_size=16, bits=4, mode="nvfp4", global_scale=mx.array(np.abs(x).max())
    )
    return {"codes": nibbles(np.array(words)), "scale_codes": np.array(scales)}


def cast(x: Any, name: str) -> Answer:
    """Cast float32 values."""
    import mlx.core as mx
    import numpy as np

    if name == "e4m3fn":
        return {"codes": np.array(mx.to_fp8(mx.array(x)))}
    return {"codes": np.array(mx.array(x).astype(getattr(mx, name)).view(mx.uint16))}


def decode(codes: Any) -> Answer:
    """Decode all codes of E4M3."""
    import mlx.core as mx
    import numpy as np

    return {"values": np.array(mx.from_fp8(mx.array(codes), mx.float32))}


OPERATIONS = [
    *(Operation(f"cast {name}", cast, f"casts/{name}", name, {"name": name})
      for name in ("e4m3fn", "bfloat16", "float16")),
    Operation("decode e4m3fn", decode, "codes/e4m3fn", "e4m3fn"),
    Operation("MXFP8", quantize, "blocks/32", "mxfp8_mlx", {"mode": "mxfp8", "width": 32, "bits": 8},
              options={"scale_calculation": "amax/max"}),
    Operation("MXFP4", quantize, "blocks/32", "mxfp4_mlx", {"mode": "mxfp4", "width": 32, "bits": 4},
              options={"scale_calculation": "amax/max"}),
    Operation("packing of MXFP4", quantize, "nibbles/e2m1fn", "e2m1fn",
              {"mode": "mxfp4", "width": 32, "bits": 4, "stored": True}),
    Operation("NVFP4 without a tensor scale", quantize, "blocks/16", "dsv41_kv_fp4",
              {"mode": "nvfp4", "width": 16, "bits": 4},
              options={"amax_floor": 0.0, "min_scale": 0.0, "zero_block": "rule"}),
    Operation("NVFP4", nvfp4, "tensors", "nvfp4_4over6",
              options={"four_over_six": None, "max_block_scale": 448.0}),
]  # fmt: skip
