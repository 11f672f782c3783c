"""The encoding "mlir": FileCheck tests of arith.truncf and arith.extf, to run through MLIR's APFloat emulation."""

from __future__ import annotations

from ..format.catalogue import formats
from ..oracle.values import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, TF32, Fields, fields
from .vectors import VectorSet

_TYPES: dict[Fields, str] = {FLOAT64: "f64", FLOAT32: "f32", TF32: "tf32", BFLOAT16: "bf16", FLOAT16: "f16"}
_NARROW = {
    "e4m3fn": "f8E4M3FN", "e5m2": "f8E5M2", "e4m3fnuz": "f8E4M3FNUZ", "e5m2fnuz": "f8E5M2FNUZ",
    "e4m3b11fnuz": "f8E4M3B11FNUZ", "e4m3": "f8E4M3", "e3m4": "f8E3M4", "e8m0fnu": "f8E8M0FNU",
    "e2m3fn": "f6E2M3FN", "e3m2fn": "f6E3M2FN", "e2m1fn": "f4E2M1FN",
}  # fmt: skip
_ROUNDINGS = {
    "nearest_even": "to_nearest_even", "nearest_away": "to_nearest_away", "toward_zero": "toward_zero",
    "up": "upward", "down": "downward",
}  # fmt: skip
_RUN = """// RUN: mlir-opt %s --convert-arith-to-apfloat --convert-to-llvm | \\
// RUN: mlir-runner -e entry --entry-point-result=void \\
// RUN:             --shared-libs=%mlir_c_runner_utils \\
// RUN:             --shared-libs=%mlir_apfloat_wrappers | FileCheck %s

"""


def write(s: VectorSet) -> bytes:
    """Return a set as an integration test; ValueError if arith lacks the operation, rounding or type.

    Inputs and outputs are integers, so that the test does not depend on how floats are printed. The operation is in a
    separate function to prevent constant folding.
    """
    family, _, *rest = s.name.split("/")
    if family not in ("cast", "decode"):
        raise ValueError(f"mlir: set must be one of cast/... and decode/..., got {s.name}")
    x, y = s.inputs[0], s.results[0]
    assert x.format is not None
    assert y.format is not None
    types = _TYPES | {fields(formats[name]): mlir for name, mlir in _NARROW.items()}
    if x.format not in types or y.format not in types:
        raise ValueError(f"mlir: formats must be among {', '.join(sorted({**types}.values()))}, got {s.name}")
    source, target = types[x.format], types[y.format]
    if family == "cast":
        if rest[0] not in _ROUNDINGS:
            raise ValueError(f"mlir: rounding must be one of {', '.join(_ROUNDINGS)}, got {s.name}")
        operation = f"arith.truncf %x {_ROUNDINGS[rest[0]]} : {source} to {target}"
    else:
        operation = f"arith.extf %x : {source} to {target}"
    text = [_RUN, s.comments("//"), f"\nfunc.func private @convert(%word: i{x.bits}) -> i64 {{\n"]
    text.append(f"  %x = arith.bitcast %word : i{x.bits} to {source}\n  %y = {operation}\n")
    text.append(f"  %code = arith.bitcast %y : {target} to i{y.bits}\n  %wide = arith.extui %code : i{y.bits} to i64\n")
    text.append("  return %wide : i64\n}\n\nfunc.func @entry() {\n")
    for i, vector in enumerate(s.vectors):
        ours = vector.results[0]
        signed = vector.inputs[0] - (vector.inputs[0] >> (x.bits - 1) << x.bits)
        wanted = "{{.*}}" if s.nan == "any" and y.is_nan(ours) else str(ours)
        text.append(f"  // {vector.label}\n  // CHECK{'-NEXT' if i else ''}: {{{{^}}}}{wanted}{{{{$}}}}\n")
        text.append(f"  %x{i} = arith.constant {signed} : i{x.bits}\n")
        text.append(f"  %y{i} = func.call @convert(%x{i}) : (i{x.bits}) -> i64\n  vector.print %y{i} : i64\n")
    return "".join([*text, "  return\n}\n"]).encode()
