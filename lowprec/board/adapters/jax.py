"""JAX on the CPU: casts by `astype` under jit, which is XLA's convert."""

from typing import Any

from .harness import Answer, casts, decodes

VERSIONS = ("jax", "jaxlib", "ml_dtypes")
ENVIRONMENT = "jax"
NEEDS = ("jax", "numpy")
FLOATS = {
    "e4m3fn": "float8_e4m3fn", "e5m2": "float8_e5m2", "e4m3fnuz": "float8_e4m3fnuz", "e5m2fnuz": "float8_e5m2fnuz",
    "e4m3b11fnuz": "float8_e4m3b11fnuz", "e4m3": "float8_e4m3", "e3m4": "float8_e3m4", "e2m1fn": "float4_e2m1fn",
    "e8m0fnu": "float8_e8m0fnu",
}  # fmt: skip


def cast(x: Any, name: str) -> Answer:
    """Cast float32 values."""
    import jax
    import numpy as np

    y = np.asarray(jax.jit(lambda v: v.astype(getattr(jax.numpy, name)))(x))
    return {"codes": y.view(f"u{y.dtype.itemsize}")}


def decode(codes: Any, name: str) -> Answer:
    """Decode all codes."""
    import jax
    import numpy as np

    kind = np.dtype(getattr(jax.numpy, name))
    return {"values": np.asarray(jax.jit(lambda v: v.astype("float32"))(codes.view(kind)))}


_POLICY = {"options": {"policy": "ml_dtypes"}}
_SPECIAL: dict[str, Any] = {"e8m0fnu": {"options": {"rounding": "nearest_away", "policy": "ml_dtypes"}}, "float16": {}}
OPERATIONS = [
    *casts(cast, FLOATS | {"bfloat16": "bfloat16", "float16": "float16"}, _POLICY, _SPECIAL),
    *decodes(decode, FLOATS),
]
