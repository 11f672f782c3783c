"""onnxruntime: Cast by the kernels of its CPU provider."""

from typing import Any

from .harness import Answer, Operation

VERSIONS = ("onnxruntime", "onnx")
ENVIRONMENT = "onnxruntime"
NEEDS = ("onnxruntime", "onnx")
NAMES = {
    "e4m3fn": "FLOAT8E4M3FN", "e5m2": "FLOAT8E5M2", "e4m3fnuz": "FLOAT8E4M3FNUZ", "e5m2fnuz": "FLOAT8E5M2FNUZ",
    "e2m1fn": "FLOAT4E2M1", "e8m0fnu": "FLOAT8E8M0", "bfloat16": "BFLOAT16", "float16": "FLOAT16",
}  # fmt: skip


def cast(x: Any, name: str, size: int = 1, **attributes: Any) -> Answer:
    """Cast float32 values by a graph with one Cast node; codes are read from the result's memory."""
    import ctypes

    import numpy as np
    import onnxruntime
    from onnx import TensorProto, helper

    to = getattr(TensorProto, name)
    graph = helper.make_graph(
        [helper.make_node("Cast", ["x"], ["y"], to=to, **attributes)], "cast",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None])],
        [helper.make_tensor_value_info("y", to, [None])],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    y = session.run_with_ort_values(["y"], {"x": onnxruntime.OrtValue.ortvalue_from_numpy(x)})[0]
    raw = (ctypes.c_uint8 * (len(x) * size)).from_address(y.data_ptr())
    return {"codes": np.ctypeslib.as_array(raw).view(f"u{size}").copy()}


_OVERFLOW = {
    ("e4m3fn", 0): {"policy": "ocp_nonsat"},
    ("e5m2", 0): {"policy": "torch_2_11"},
    ("e5m2", 1): {"policy": "cuda_satfinite"},
}
OPERATIONS = [
    *(Operation(f"cast {ours}, saturate={saturate}", cast, f"casts/{ours}", ours,
                {"name": NAMES[ours], "saturate": saturate},
                options=_OVERFLOW.get((ours, saturate), {"policy": "onnx_sat" if saturate else "ml_dtypes"}))
      for ours in ("e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz") for saturate in (1, 0)),
    Operation("cast e2m1fn", cast, "casts/e2m1fn", "e2m1fn", {"name": NAMES["e2m1fn"]}),
    Operation("cast bfloat16", cast, "casts/bfloat16", "bfloat16", {"name": NAMES["bfloat16"], "size": 2}),
    Operation("cast float16", cast, "casts/float16", "float16", {"name": NAMES["float16"], "size": 2}),
    *(Operation(f"cast e8m0fnu, {mode}, saturate={saturate}", cast, "casts/e8m0fnu", "e8m0fnu",
                {"name": NAMES["e8m0fnu"], "saturate": saturate, "round_mode": mode},
                options={"rounding": rounding, "policy": "p3109_satfinite" if saturate else "ocp_nonsat"},
                domain="all" if saturate else "nonnegative")
      for mode, rounding in (("up", "up"), ("down", "down"), ("nearest", "nearest_away")) for saturate in (1, 0)),
]  # fmt: skip
