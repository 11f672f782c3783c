"""bitsandbytes on the CPU: NF4 with the absmax of a block as its scale; the high nibble of a byte is the first code."""

from typing import Any

from .harness import Answer, Operation, nibbles

VERSIONS = ("bitsandbytes", "torch")
ENVIRONMENT = "transformers"
NEEDS = ("torch", "bitsandbytes", "numpy")


def quantize(x: Any, kind: str, stored: bool = False) -> Answer:
    """Quantize blocks of 32."""
    import torch
    from bitsandbytes import functional

    packed, state = functional.quantize_4bit(torch.from_numpy(x), blocksize=32, quant_type=kind)
    packed = packed.numpy().reshape(-1, 1)
    codes = packed.reshape(len(x), -1) if stored else nibbles(packed)[:, ::-1].reshape(x.shape)
    return {"codes": codes, "scale": state.absmax.numpy()}


def cast(x: Any) -> Answer:
    """Cast values up to 1 in magnitude, in blocks of 32 that begin with a 1."""
    import numpy as np

    x = np.clip(np.nan_to_num(x), -1, 1)
    rows = np.concatenate([x, np.zeros(-len(x) % 31, np.float32)]).reshape(-1, 31)
    codes = quantize(np.concatenate([np.ones((len(rows), 1), np.float32), rows], 1), "nf4")["codes"]
    return {"codes": codes[:, 1:].reshape(-1)[: len(x)]}


def decode(codes: Any, kind: str) -> Answer:
    """Decode all codes with an absmax of 1."""
    import numpy as np
    import torch
    from bitsandbytes import functional

    packed, state = functional.quantize_4bit(torch.ones(32), blocksize=32, quant_type=kind)
    both = np.tile(codes, 2)
    packed = torch.from_numpy((both[::2] << 4 | both[1::2]).astype(np.uint8)).reshape(packed.shape)
    return {"values": functional.dequantize_4bit(packed, state).numpy().reshape(-1)[: len(codes)]}


OPERATIONS = [
    Operation("NF4 1x32", quantize, "blocks/32", "dsv3_inference", {"kind": "nf4"},
              options={"format": "nf4", "granularity": "1x32", "amax_floor": 0.0}, domain="finite"),
    Operation("cast nf4", cast, "casts/nf4", "nf4", domain="finite"),
    Operation("packing of NF4", quantize, "nibbles/nf4", "nf4", {"kind": "nf4", "stored": True}),
    Operation("NF4 decode", decode, "codes/nf4", "nf4", {"kind": "nf4"}),
    Operation("FP4 decode", decode, "codes/fp4_bitsandbytes", "fp4_bitsandbytes", {"kind": "fp4"}),
]  # fmt: skip
