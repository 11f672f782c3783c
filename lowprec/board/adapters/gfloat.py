"""gfloat: rounding and encoding of float64 arrays, and MX blocks; log2 is computed in the dtype of the blocks."""

from typing import Any

from .harness import Answer, Operation

VERSIONS = ("gfloat", "numpy")
ENVIRONMENT = "small"
NEEDS = ("gfloat", "numpy")
NAMES = {
    "e4m3fn": "ocp_e4m3", "e5m2": "ocp_e5m2", "e2m3fn": "ocp_e2m3", "e3m2fn": "ocp_e3m2", "e2m1fn": "ocp_e2m1",
    "e8m0fnu": "ocp_e8m0", "bfloat16": "bfloat16", "float16": "binary16",
}  # fmt: skip
BLOCKS = {"e4m3fn": "mxfp8", "e5m2": "mxfp8_e5m2", "e2m1fn": "mxfp4"}


def cast(x: Any, name: str, sat: bool, kept: str = "numbers") -> Answer:
    """Round and encode; values for which the format raises an error are left out."""
    import gfloat
    import numpy as np
    from gfloat import formats

    info = getattr(formats, f"format_info_{name}")
    keep = np.isfinite(x) if kept == "finite" else (x > 0) & np.isfinite(x) if kept == "positive" else x == x
    codes = np.zeros(len(x), np.uint16)
    rounded = gfloat.round_ndarray(info, x[keep].astype(np.float64), gfloat.RoundMode.TiesToEven, sat=sat)
    codes[keep] = gfloat.encode_ndarray(info, rounded) & 0xFFFF
    return {"codes": codes}


def mx(x: Any, name: str, precision: str) -> Answer:
    """Quantize and dequantize blocks of 32."""
    import gfloat
    import numpy as np
    from gfloat import formats

    info = gfloat.BlockFormatInfo("mx", getattr(formats, f"format_info_{name}"), 32, formats.format_info_ocp_e8m0)
    blocks = np.where(np.isfinite(x).all(1, keepdims=True), x, 0).astype(precision)
    out = np.stack([gfloat.quantize_block(info, block, gfloat.compute_scale_amax) for block in blocks])
    scale = [gfloat.compute_scale_amax(info.etype.emax, block) for block in blocks]
    return {"values": out.astype(np.float32), "scale": np.array(scale, np.float32)}


_KEPT = {"e2m3fn": "finite", "e3m2fn": "finite", "e2m1fn": "finite", "e8m0fnu": "positive"}
OPERATIONS = [
    *(Operation(f"cast {ours}{', saturating' * sat}", cast, f"casts/{ours}", ours,
                {"name": name, "sat": sat, "kept": _KEPT.get(ours, "numbers")},
                options={"policy": "ocp_sat" if sat else "ocp_nonsat"}, domain=_KEPT.get(ours, "numbers"))
      for ours, name in NAMES.items() for sat in (True, False) if sat or ours not in _KEPT),
    Operation("MX int8 in float64", mx, "blocks/32", "mxint8", {"name": "ocp_int8", "precision": "float64"},
              domain="finite", step=19),
    *(Operation(f"MX {ours} in {precision}", mx, "blocks/32", f"{entry}_floor",
                {"name": NAMES[ours], "precision": precision}, domain="finite", step=19)
      for ours, entry in BLOCKS.items() for precision in ("float32", "float64")),
]  # fmt: skip
