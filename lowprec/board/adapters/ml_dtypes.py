"""ml_dtypes: casts of NumPy arrays. Codes are bytes; codes of six and four bits are the low bits of a byte."""

from typing import Any

from .harness import Answer, Operation, casts, decodes

VERSIONS = ("ml_dtypes", "numpy")
ENVIRONMENT = "small"
NEEDS = ("ml_dtypes", "numpy")
NAMES = {
    "e4m3fn": "float8_e4m3fn", "e5m2": "float8_e5m2", "e4m3fnuz": "float8_e4m3fnuz", "e5m2fnuz": "float8_e5m2fnuz",
    "e4m3b11fnuz": "float8_e4m3b11fnuz", "e4m3": "float8_e4m3", "e3m4": "float8_e3m4", "e2m3fn": "float6_e2m3fn",
    "e3m2fn": "float6_e3m2fn", "e2m1fn": "float4_e2m1fn", "bfloat16": "bfloat16", "e8m0fnu": "float8_e8m0fnu",
}  # fmt: skip


def cast(x: Any, name: str, above: bool = False) -> Answer:
    """Cast float32 values, or float64 values just above them in magnitude."""
    import ml_dtypes
    import numpy as np

    kind = np.dtype(getattr(ml_dtypes, name))
    x = x.astype(np.float64) * (1 + 2.0**-40) if above else x
    return {"codes": x.astype(kind).view(f"u{kind.itemsize}")}


def decode(codes: Any, name: str) -> Answer:
    """Decode all codes."""
    import ml_dtypes

    return {"values": codes.view(getattr(ml_dtypes, name)).astype("float32")}


_POLICY = {"options": {"policy": "ml_dtypes"}}
_E8M0 = {"e8m0fnu": {"options": {"rounding": "nearest_away", "policy": "ml_dtypes"}}}
OPERATIONS = [
    *casts(cast, NAMES, _POLICY, _E8M0), *decodes(decode, NAMES),
    *(Operation(f"cast {ours} from float64", cast, f"casts/{ours}", ours, {"name": NAMES[ours], "above": True},
                options={"policy": "ml_dtypes", "rounding": "nearest_away"}) for ours in ("e4m3fn", "bfloat16")),
]  # fmt: skip
