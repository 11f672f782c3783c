"""FPy: MPFR rounds numbers one by one in a context, which then encodes them."""

from typing import Any

from .harness import Answer, casts

VERSIONS = ("fpy2",)
ENVIRONMENT = "fpy2"
NEEDS = ("fpy2", "numpy")
NAMES = {
    "e4m3fn": "MX_E4M3", "e5m2": "MX_E5M2", "e2m3fn": "MX_E2M3", "e3m2fn": "MX_E3M2", "e2m1fn": "MX_E2M1",
    "e4m3fnuz": "S1E4M3", "e5m2fnuz": "S1E5M2", "bfloat16": "BF16", "float16": "FP16", "e8m0fnu": "MX_E8M0",
}  # fmt: skip


def cast(x: Any, name: str) -> Answer:
    """Round and encode values in contexts with the overflow mode OVERFLOW."""
    import fpy2
    import numpy as np

    context = getattr(fpy2, name)
    return {"codes": np.array([context.encode(context.round(v)) for v in x.tolist()], np.uint16)}


_SPECIAL: dict[str, Any] = {
    name: {"options": {"policy": "ocp_sat"}, "domain": "finite", "step": 3} for name in ("e2m3fn", "e3m2fn", "e2m1fn")
}
_SPECIAL["e8m0fnu"] = {"options": {"rounding": "nearest_away", "policy": "ocp_nonsat"}, "domain": "positive", "step": 3}
_SPECIAL |= {name: {"options": {"policy": "ml_dtypes"}, "step": 3} for name in ("e4m3fnuz", "e5m2fnuz")}
_SPECIAL |= {name: {"step": 3} for name in ("bfloat16", "float16")}
OPERATIONS = casts(cast, NAMES, {"options": {"policy": "ocp_nonsat"}, "step": 3}, _SPECIAL)
