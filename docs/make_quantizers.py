"""Generate the page of quantizers from the catalogue."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from pages import table

import lowprec as lp
from lowprec.scaling import rules
from lowprec.scaling.constants import bound_of, rule_of
from lowprec.scaling.quantizer import Quantizer
from lowprec.scaling.rules import FLOAT32

TORCHAO = "torchao 0.18.0"
# Vendor code that each entry is compared with (tests/scaling/test_peers_quantizers.py), and the number of elements.
CHECKED = {
    **{
        f"{n}{s}": ("its arithmetic in torch 2.13", 3145728)
        for n in ("dsv3_inference", "deepgemm")
        for s in ("", "_ue8m0")
    },
    **{f"mxfp8{e}_{r}": (TORCHAO, 3145728) for e in ("", "_e5m2") for r in ("floor", "ceil", "even", "rceil")},
    **{f"{n}_{r}": (TORCHAO, 3145728) for n in ("mxfp6_e2m3", "mxfp6_e3m2", "mxfp4") for r in ("floor", "rceil")},
    "mxfp8_even_1bit": ("compressed-tensors 0.20.0, scales", 31231),
    "torchao_fp8": (TORCHAO, 3145728),
    "nvfp4_torchao": (TORCHAO, 3145728),
    "nvfp4_torchao_one_level": (TORCHAO, 3145728),
    "nvfp4_modelopt": ("nvidia-modelopt 0.47.0", 3145728),
}
# Comparisons with other packages.
ALSO = """\
The inputs are bfloat16 numbers, N(0, 1) and wider, without -0, blocks of zeros, subnormals and Inf. On those, vendors
differ. TransformerEngine's reference, modelopt's NVFP4 and compressed-tensors convert -0 to +0, and keep the sign of
negative values that underflow. "Where vendors differ" covers blocks of zeros, blocks with Inf and tiny blocks.
The [conformance board](board.md) has such inputs: every difference, with the smallest input that shows it.

References of TransformerEngine (commit d0067d0):

- `NVFP4QuantizerRef` with `with_rht` and `nvfp4_te_rht`, and without its sign mask `nvfp4_te_rht_unsigned`: 65,536
  bfloat16 numbers of N(0, 1) each, 0 codes and 0 of 4,096 scales differ.
- The blockwise reference with `row_scaled_nvfp4` and `nvfp4_te_row_scaled`: 1,048,576 numbers of N(0, 1), and as many
  each times 2^-60 to 2^59 by row, times 2^-12 to 2^11 by element, all bfloat16, and times 2^-20 to 2^19 by row in
  float32: 0 codes and 0 of 262,144 block scales differ.

Other packages:

- gfloat 0.5.2, `quantize_block` with `compute_scale_amax`, on float64 (its log2 is wrong next to powers of two in
  float32): `mxfp8_floor`, `mxfp8_e5m2_floor`, `mxfp6_e2m3_floor`, `mxfp6_e3m2_floor`, `mxfp4_floor` on 40,960 elements
  each, 0 differ; `mxint8` on 40,960 elements, 4 differ: gfloat returns -2, lowprec -1.984375.
- nvidia-modelopt 0.47.0, `MXFP8QTensor`, and `mxfp8_rceil`: 3,145,728 elements, 0 differ. modelopt computes log2 in
  float32: just above 1.75 * 2^k, 222 of its 230 scales are one step too low, so that the largest elements saturate. It
  gives a block with NaN the scale 2^-127, so that only the NaN decodes to NaN.
- nvidia-modelopt 0.47.0's four over six and `nvfp4_4over6_mse`: scales and codes for given choices, 3,145,728
  elements, 1 differs (modelopt divides by s * g, lowprec multiplies by the inverse), and 221 of 196,608 scales are
  2^-9 in modelopt and 0 in lowprec. modelopt chooses differently: the best of 126 E4M3 scales in a calibration run.
"""
CASES = {
    "NaN": np.nan,
    "Inf": np.inf,
    "zeros": 0.0,
    "-0": -0.0,
    "FLT_MAX": float(np.finfo(np.float32).max),
    "1e-42": 1e-42,
}


COLUMNS = (
    "name", "element", "block", "scale, arithmetic", "other fields", "vendor's code: elements, differences", "source",
)  # fmt: skip


def page() -> str:
    """Return docs/quantizers.md."""
    doc = (rules.__doc__ or "").split("\n\n")
    table_at = next(i for i, part in enumerate(doc) if part.startswith("======"))
    arithmetics, *symbols = doc[table_at : table_at + 3]
    lines = [
        "# Quantizers", "",
        "Generated from `lowprec.quantizers` by `python docs/refresh.py`. Every entry is compared with exact rational",
        "arithmetic (`lowprec.oracle.quantizers`), which shares no code, by `tests/scaling/test_quantizers_oracle.py`:",
        "codes, scales and fused values on bfloat16, wide, huge, tiny and special data, and the scales of up to 4,300",
        "amaxes next to every power of two, to 1.5, 1.75, 1.875 and 1.9375 times one, and to subnormals.", "",
        "A scale multiplies codes back to values. All operations are in float32, each rounded to nearest even.",
        "`amax` is the largest magnitude of the block, `max` the largest element, `emax` its exponent.", "",
        "## Scale calculation", "",
        "```", arithmetics.strip(), "```", "", *(part.strip().replace("``", "`") + "\n" for part in symbols),
        "## The catalogue", "",
        "`lowprec quantizers` lists all quantizers, `lowprec quantizers NAME` shows every field of one.", "",
        table(COLUMNS, map(_row, map(lp.quantizers.get, lp.quantizers))),
        "", ALSO,
    ]  # fmt: skip
    lines += ["## Where vendors differ", ""]
    notes = dict[str, list[str]]()
    for name in lp.quantizers:
        notes.setdefault(lp.quantizers[name].note, []).append(f"`{name}`")
    lines += [f"- {', '.join(names)}: {note}." for note, names in notes.items() if note]
    lines += [
        "", *_differences(), "", "## Special blocks", "",
        "Columns NaN and Inf: decoded values of a block of ones with one NaN or Inf, at that element / at the others.",
        "Other columns: decoded values of a block of equal values. `x` is the value itself, `~x` a value within a",
        "quarter of it. Quantizers with a Hadamard transform return transformed values.", "",
        table(("name", *CASES), (_special(n) for n in lp.quantizers if lp.quantizers[n].amax_history_len is None)),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _row(q: Quantizer) -> list[str]:
    extras, rule = [], rule_of(q)
    if q.scale_format == FLOAT32 and rule.scale_calculation != "max/amax":
        extras.append(
            {"divide": "x / s", "reciprocal": "x * (1 / s)", "max/amax": "x * (max / amax)"}[rule.scale_application]
        )
    if rule.amax_floor:
        extras.append(f"amax >= {rule.amax_floor:g}")
    if rule.min_scale:
        extras.append(f"s >= 2^{int(np.log2(rule.min_scale))}")
    if q.has_tensor_scale and rule.max_block_scale is not None:
        extras.append(f"bound {bound_of(q):g}")
    if q.has_row_scales:
        extras.append("g of each row")
    if rule.four_over_six:
        extras.append(f"four over six by {rule.four_over_six.upper()}")
    if q.hadamard_size:
        extras.append(f"Hadamard {q.hadamard_size}" + (f" in {q.transform_format}" if q.transform_format else ""))
    if q.amax_history_len:
        extras.append(f"history of {q.amax_history_len} steps")
    who, count = CHECKED.get(q.name, ("", 0))
    beside = f"{who}: {count:,}, 0" if count else ""
    aliases = "".join(f", `{alias}`" for alias in lp.quantizers.aliases(q.name))
    return [
        f"`{q.name}`{aliases}", str(q.format), str(q.granularity), f"{q.scale_format} {rule.scale_calculation}",
        ", ".join(extras), beside, q.source,
    ]  # fmt: skip


def _differences() -> list[str]:
    """Return sentences with the numbers of codes and scales that differ on bfloat16 values of N(0, 1)."""
    x = np.random.default_rng(0).standard_normal((1024, 1024)).astype(ml_dtypes.bfloat16).astype(np.float32)
    pairs = [("dsv32_inference", "dsv3_inference"), ("deepgemm", "dsv3_inference"),
             ("te_block_fp32", "dsv3_inference"), ("te_block", "dsv3_inference_ue8m0"),
             ("mxfp8_ceil", "mxfp8_rceil"), ("mxfp8_even", "mxfp8_rceil"), ("mxfp8_floor", "mxfp8_rceil"),
             ("nvfp4_te_row_scaled", "nvfp4_te"),
             ("nvfp4_torchao", "nvfp4_te"), ("nvfp4_modelopt", "nvfp4_te"), ("nvfp4_4over6", "nvfp4_te")]  # fmt: skip
    rows = []
    for name, other in pairs:
        a, b = lp.quantize(x, name), lp.quantize(x, other)
        rows.append((name, other, f"{(a.codes != b.codes).mean():.2g}", f"{(a.scale != b.scale).mean():.2g}"))
    return [
        "Share of codes and scales that differ on 2^20 bfloat16 values of N(0, 1), which are often midpoints:", "",
        table(("quantizer", "compared with", "codes", "scales"), rows, right=2),
    ]  # fmt: skip


def _special(name: str) -> list[str]:
    cells = [name]
    for case, value in CASES.items():
        x = np.ones((16, 128), np.float32)
        if case in ("NaN", "Inf"):
            x[3, 5] = value
        else:
            x[:] = value
        y = lp.quantize_dequantize(x, name if lp.quantizers[name].granularity.rows is None else f"{name} 1x16")
        at, elsewhere = y[3, 5], y[3, 6]
        cells.append(f"{_cell(at, value)} / {_cell(elsewhere, 1.0)}" if case in ("NaN", "Inf") else _cell(at, value))
    return cells


def _cell(y: float, value: float) -> str:
    if np.isnan(y):
        return "NaN"
    if y == value and np.signbit(y) == np.signbit(value):
        return "x"
    if value != 0 and np.isfinite(value) and abs(y / value - 1) < 0.25:
        return "~x"
    return f"{y:.3g}"
