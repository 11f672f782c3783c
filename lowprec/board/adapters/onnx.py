"""ONNX's reference evaluator: Cast with `saturate` and `round_mode`, and the packing of four-bit tensors."""

from typing import Any

from .harness import Answer, Operation

VERSIONS = ("onnx", "ml_dtypes")
ENVIRONMENT = "small"
NEEDS = ("onnx", "numpy")
NAMES = {
    "e4m3fn": "FLOAT8E4M3FN", "e5m2": "FLOAT8E5M2", "e4m3fnuz": "FLOAT8E4M3FNUZ", "e5m2fnuz": "FLOAT8E5M2FNUZ",
    "e2m1fn": "FLOAT4E2M1", "e2m3fn": "FLOAT6E2M3", "e3m2fn": "FLOAT6E3M2", "e8m0fnu": "FLOAT8E8M0",
    "bfloat16": "BFLOAT16", "float16": "FLOAT16",
}  # fmt: skip
ROUNDINGS = {"up": "up", "down": "down", "nearest": "nearest_away"}


def cast(x: Any, name: str, **attributes: Any) -> Answer:
    """Cast float32 values by a graph with one Cast node."""
    import numpy as np
    from onnx import TensorProto, helper
    from onnx.reference import ReferenceEvaluator

    to = getattr(TensorProto, name)
    graph = helper.make_graph(
        [helper.make_node("Cast", ["x"], ["y"], to=to, **attributes)], "cast",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, None)],
        [helper.make_tensor_value_info("y", to, None)],
    )  # fmt: skip
    y = np.asarray(ReferenceEvaluator(helper.make_model(graph)).run(None, {"x": x})[0])
    return {"codes": y.view(f"u{y.dtype.itemsize}")}


_FP8 = [name for name in NAMES if name[:2] in ("e4", "e5")]
OPERATIONS = [
    *(Operation(f"cast {ours}, saturate={saturate}", cast, f"casts/{ours}", ours,
                {"name": NAMES[ours], "saturate": saturate},
                options={"policy": "onnx_sat" if saturate else "ml_dtypes"})
      for ours in _FP8 for saturate in (1, 0)),
    *(Operation(f"cast {ours}", cast, f"casts/{ours}", ours, {"name": NAMES[ours]},
                options={} if ours == "float16" else {"policy": "ml_dtypes"})
      for ours in ("e2m1fn", "e2m3fn", "e3m2fn", "bfloat16", "float16")),
    *(Operation(f"cast e8m0fnu, {mode}", cast, "casts/e8m0fnu", "e8m0fnu",
                {"name": NAMES["e8m0fnu"], "saturate": 0, "round_mode": mode},
                options={"rounding": rounding, "policy": "ocp_nonsat"}, domain="nonnegative")
      for mode, rounding in ROUNDINGS.items()),
]  # fmt: skip
