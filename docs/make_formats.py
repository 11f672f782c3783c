"""Generate the page of formats from the catalogue.

Everything computable is computed here; `DIFFER` holds measurements of other packages.
"""

from __future__ import annotations

import math

import numpy as np
from pages import table

import lowprec as lp
from lowprec.cast.streams import streams
from lowprec.format.catalogue import p3109
from lowprec.measure.selftest import EXHAUSTIVE
from lowprec.scaling.block_formats import block_formats

# Formats compared with other packages in addition to the exact oracle; the tests named below list the comparisons.
GFLOAT = {"e4m3fn", "e5m2", "e2m3fn", "e3m2fn", "e2m1fn"}
TORCH = {"e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz"}
ML_DTYPES = {*EXHAUSTIVE, "e2m3fn", "e3m2fn", "e2m1fn"}

DIFFER = {
    "e4m3fn": "Overflow: ml_dtypes and PyTorch up to 2.11 give NaN, PyTorch 2.13 the maximum, Inf included. float64: "
    "ml_dtypes and PyTorch round twice, 126 of 252 values next to midpoints are wrong there.",
    "e5m2": "NaN: 0x7E in ml_dtypes, 0x7F in PyTorch and CUDA. PyTorch 2.13 still overflows to Inf.",
    "e4m3fnuz": "Inf when saturating: ONNX specifies NaN, its reference code returns the maximum (`onnx_sat`).",
    "e5m2fnuz": "See e4m3fnuz.",
    "e4m3": "Not the E4M3 of OCP, which is e4m3fn.",
    "e3m4": "Not Intel's E3M4, which is e3m4fn.",
    "e3m4fn": "Intel's toolkit maps NaN to the maximum; in lowprec NaN has a code.",
    "e8m0fnu": "Ties go to the even code, as in P3109 (3 -> 2). ml_dtypes, PyTorch, JAX and ONNX round ties up (3 -> "
    "4) and round values between 2^-127 and 1.5 * 2^-127 to 2^-126; ml_dtypes and JAX convert 0 to NaN; ONNX's "
    "reference converts 2^-127 to 2^-126 when it rounds up. All other values agree.",
    "e2m3fn": "NaN: ml_dtypes returns -0, and +0 for -NaN; JAX returns -0 for both in E2M1; CUDA's satfinite and the "
    "OCP policies return the maximum; gfloat raises an error.",
    "e3m2fn": "See e2m3fn.",
    "e2m1fn": "See e2m3fn. DeepGEMM's helper rounds ties toward zero.",
    "bfloat16": "NaN: PyTorch 2.13 returns 0xFFFF in its AVX2 and AVX-512 loops and 0x7FC0 in scalar ones (float16 "
    "sources, strides, the remainder of float64 after blocks of 16), for any NaN. float64: see e4m3fn.",
    "mxint8": "gfloat produces -2, optional in the MX specification; microxcaling and lowprec do not.",
    "int8": "Saturates; NumPy's cast wraps.",
    "hif8": "en_dtypes rounds float64 to float32 first; one CUDA kernel of the HiFloat4 repository flushes the tie "
    "2^-23 to 0. CANN's saturating casts convert NaN to 0 (`cann_sat`), en_dtypes does not saturate (`ocp_nonsat`).",
    "fp4_bitsandbytes": "Not E2M1: its values are multiples of 1/192, and code 8 is a second 0.",
    "nf4": "bitsandbytes rounds ties to the lower value, with midpoints rounded to float32.",
    "dl8": "IBM's simulation converts E4M3's numbers below the smallest, 1 to 4 times 2^-9, to +0.",
    "dl16": "IBM's simulation, in float32, rounds ties away from zero (`nearest_away`) and returns Inf, for which the "
    "format has its NaN, and +0 for a negative number that becomes zero.",
    "ue5m3": "Negative values: NaN, or zero under the saturating policies of P3109.",
}

PROBES = {
    "e4m3fn": [464.0, 500.0, -500.0, math.inf, -math.inf, math.nan, -0.0],
    "e5m2": [61439.0, 61440.0, -61440.0, math.inf, -math.inf, math.nan, -0.0],
    "e4m3fnuz": [247.0, 248.0, -248.0, math.inf, -math.inf, math.nan, -0.0],
    "e2m1fn": [6.0, 7.0, -7.0, math.inf, -math.inf, math.nan, -0.0],
}


def power(value: float) -> str:
    """Write a power of two as one, anything else as a number."""
    mantissa, exponent = math.frexp(value)
    return f"2^{exponent - 1}" if mantissa == 0.5 and not 1 / 64 <= value <= 512 else f"{value:.6g}"


def definition(f: lp.Format) -> list[object]:
    """Return the table row of a format."""
    widths = "" if f.is_table else f"{int(f.signed)}/{f.exponent_bits}/{f.mantissa_bits}"
    nan = "none" if f.nan_code is None else f"0x{f.nan_code:X}"
    inf = "none" if f.inf_code is None else f"0x{f.inf_code:X}"
    return [
        f.name, f.bits, widths, f.bias, f.specials,
        f"{power(f.max)} (0x{f.max_code:X})", power(f.min),
        "" if "smallest_normal" in f.undefined_properties else power(f.smallest_normal),
        power(f.smallest_subnormal), "" if math.isnan(f.eps) else power(f.eps), f"{f.dynamic_range:.1f}", inf, nan,
        "yes" if f.has_negative_zero else "no", f.source,
    ]  # fmt: skip


COLUMNS = (
    "name", "bits", "s/e/m", "bias", "specials", "max (code)", "lowest", "min normal", "smallest", "eps", "binades",
    "Inf", "NaN", "-0", "source",
)  # fmt: skip


def block_definition(name: str) -> list[object]:
    """Return the table row of a block format."""
    f = block_formats[name]
    codes = f.encode(np.zeros(f.block, np.float32))
    bits = 1 + f.magnitude_bits + (8 + codes.levels.size) / f.block
    return [name, f.block, f.magnitude_bits, f"{bits:g}", f.source]


def checked(f: lp.Format) -> str:
    """Return the packages that a format was compared with, and the numbers of inputs."""
    parts = []
    if f.bits <= 16:
        parts.append(f"decode: {1 << f.bits:,} codes (all) with the oracle")
    if f.name in ("fp22", "float32"):
        parts.append("encode: nearest even, saturating and not, on structured float32 and float64 with the oracle")
    else:
        parts.append("encode: every rounding and policy on critical values with the oracle")
    if f.name == "hif8":
        parts.append(
            "65,536 bfloat16, 65,536 float16 and 4,294,967,296 float32 (all) with en_dtypes 0.0.4: 0 differences"
        )
    if f.name in ML_DTYPES:
        parts.append("65,536 bfloat16 and 65,536 float16 (all) with the oracle and ml_dtypes")
    if f.name in EXHAUSTIVE:
        parts.append("4,294,967,296 float32 (all) with ml_dtypes: 0 differences")
    if f.name in TORCH:
        parts.append("over 1.1 million float32 with PyTorch 2.13 and ONNX 1.23")
    if f.name in GFLOAT:
        parts.append("five roundings on the critical values with gfloat 0.5.2")
    return "; ".join(parts)


def policies() -> str:
    """Return the table of results for inputs that a format cannot represent, by policy."""
    parts = []
    for name, values in PROBES.items():
        f = lp.formats[name]
        x = np.array(values, np.float32)
        rows = []
        for policy in lp.policies:
            codes = lp.encode(x, f, policy=policy)
            rows.append([f"`{policy}`", *(f"0x{code:0{-(-f.bits // 4)}X}" for code in codes.tolist())])
        parts.append(f"**{name}**\n\n" + table(["policy", *(f"{v:g}" for v in values)], rows))
    return "\n\n".join(parts)


def roundings() -> str:
    """Return the table of results of every rounding for a few values in e4m3fn, which has a spacing of 0.125 at 1."""
    values = [1.0625, 1.1875, -1.0625, 1.01, 2.0**-10, 2.0**-12]
    rows = []
    for name in lp.roundings:
        y = lp.round_to(values, "e4m3fn", rounding=name, seed=0 if lp.roundings[name].is_stochastic else None)
        rows.append([f"`{name}`", *(f"{v:.6g}" for v in y.tolist())])
    return table(["rounding", *(f"{v:.6g}" for v in values)], rows)


def bias() -> str:
    """Return the fraction of upward roundings in 2^20 stochastic draws, and its deviation in standard deviations."""
    n, rows = 1 << 20, []
    for rounding in ("stochastic", "stochastic_b", "stochastic_c"):
        for name in ("e4m3fn", "e5m2"):
            f = lp.formats[name]
            for place, at, unit in (("1 + f ulp", 1.0, f.eps), ("f subnormals", 0.0, f.smallest_subnormal)):
                cells = []
                for i, wanted in enumerate((2.0**-12, 0.1, 0.5, 0.9)):
                    x = np.float32(at + wanted * unit)
                    p = (float(x) - at) / unit
                    up = int(
                        np.count_nonzero(
                            lp.round_to(np.full(n, x), f, rounding=rounding, seed=100 * len(rows) + i) > at
                        )
                    )
                    cells.append(f"{up / n:.5f} [{(up - n * p) / math.sqrt(n * p * (1 - p)):+.1f}]")
                rows.append([f"`{rounding}`", name, place, *cells])
    return table(["rounding", "format", "at", "f = 2^-12", "0.1", "0.5", "0.9"], rows)


def page() -> str:
    """Return docs/formats.md."""
    catalogue = [lp.formats[name] for name in lp.formats]
    family = [p3109(8, P, signed, domain) for P in (1, 3, 4, 5) for signed in (True, False)
              for domain in ("extended", "finite")]  # fmt: skip
    about = [[f.name, checked(f), DIFFER.get(f.name, "")] for f in catalogue]
    return f"""# Formats, roundings and policies

Generated from the catalogue by `python docs/refresh.py`; all numbers are computed.

## The catalogue

`lowprec formats` prints this table, `lowprec formats NAME` one format, `lowprec formats NAME --codes` all its values.
"specials" is the meaning of the topmost codes (`help(lowprec.format.layout)`); "binades" is log2(max / smallest).

{table(COLUMNS, map(definition, catalogue))}

## Tables of values

`lp.TableFormat(name, values)` is a format with a list of float32 values, one per code, in any order. Examples are HiF8,
which does not order its codes by magnitude, and NF4; a custom list may have any power of two as its length. Neighbours
are neighbours by value; "even" and "odd" refer to codes. HiF8 rounds to nearest, ties away, unless a rounding is given.
Every rounding and policy works for tables: it becomes a list of thresholds between codes. A table with the values of
another format gives the codes of that format.

`lowprec.cast.hybrid.encode_hybrid` is HiF8's CAST_HYBRID, as in CANN's reference data. It is compared with its rule in
integers on 61,948 float16 (all except specials, overflow and zero) and 19,658 float32, and with its examples. It is not
in `lp.roundings`: those add an increment to the discarded fraction, whereas this rule depends on the type of the input.
An open question: by this rule 70 of 126 values that HiF8 can represent change when they come as float32. Whether the
chip does this is unknown.

## Formats of blocks

`block_formats[name]` (`lowprec.scaling.block_formats`) has `encode`, `decode` and `round_to` for formats in which a
single element has no value. HiF4 has 64 elements of 4 bits, a scale in E6M2, and a doubling bit for every 8 and for
every 4 elements. Block floating point has integers that share an exponent.

{table(("name", "block", "magnitude bits", "bits per value", "source"), map(block_definition, block_formats.names()))}

`tests/scaling/test_block_formats.py` compares them with rules in rational arithmetic
(`lowprec/oracle/block_formats.py`, `lowprec vectors write block/hif4`) and with the worked examples of their sources:
HiF4 on 10,240 values and each block floating point format on 6,400, 0 differences. On 262,144 bfloat16 from N(0, 1),
the codes of Tenstorrent's host and device differ in 10 % (bfp8), 42 % (bfp4) and 28 % (bfp2) of the cases. Open
questions: how HiF4 packs its 24 level bits and handles NaN and Inf; how the device rounds ties, and whether it
saturates or carries.

## The P3109 family

`lp.formats["p3109_k8p4se"]`, or `binary8p4se`, or `p3109(K, P, signed, domain)`: K bits, precision P, **s**igned or
**u**nsigned, **e**xtended (with Inf) or **f**inite. The bias is 2^(K-P-1), for unsigned formats 2^(K-P); there is one
NaN and no -0. Any member with 3 <= K <= 16 exists if float32 holds all its values. For all 120 members of up to 8 bits,
all codes agree with gfloat 0.5.2, and roundings agree on values across the range. Some members:

{table(COLUMNS[:-1], [definition(f)[:-1] for f in family])}

`lowprec.scaling.p3109` implements the blocks of the draft: `block_project`, `block_convert`, `block_reduce`,
`block_dot`, `block_apply`. A block has the code of a scale and the codes of its elements; the scale is not divided by
the maximum of the element format. Each function is exact up to one projection.
`tests/scaling/test_p3109_blocks.py` compares them with rational arithmetic under four projections: 11,520 elements
projected, 960 converted with 120 scales, 4,320 decoded, 720 sums, products and dot products each, and 1,600 elements of
four operations, 0 differences; also with the draft's example. `lowprec.measure.kappa` returns the largest error of an
implementation in code points; flushing subnormals to the nearer end gives 2^(P - 2) for P from 2 to 5, as in the annex.

## Comparisons, and differences from other packages

The oracle is exact rational arithmetic that shares no code with the kernels (`lowprec.oracle`). "Critical values" are
all codes and midpoints of small formats, or those at both ends of large ones, with the adjacent float32, quarter
points, deep underflow, overflow, Inf and NaN; from float32 and from float64. `lowprec selftest --exhaustive` compares
all 2^32 float32 on your machine; `pytest -m peers tests/cast/test_peers_casts.py` compares with PyTorch, ONNX and
gfloat if they are installed. The [conformance board](board.md) has the smallest input for each difference.

{table(("format", "compared", "other packages"), about)}

## Policies

`lp.encode(x, "e4m3fn", policy="ocp_nonsat")` selects a policy. The default is `ocp_sat` for formats of up to 8 bits, so
that 1000 becomes 448 in e4m3fn, and `ieee` for wider ones; ml_dtypes returns NaN, as `ocp_nonsat`. The tables have the
codes that each policy gives for inputs that a format cannot represent. Overflow is detected after rounding.

{policies()}

## Roundings

`lp.encode(x, "e4m3fn", rounding="toward_zero")` selects a rounding; the default is `nearest_even`. Stochastic roundings
take the random bits of a seed, here 0. Results of each rounding in e4m3fn (steps of 0.125 at 1, smallest value 2^-9 =
{2.0**-9:.6g}):

{roundings()}

## Hardware conversions and random bits

Policies and roundings named after hardware are compared with the worked examples of manuals and simulators, and with
the oracle, in `tests/cast/test_conversions_of_machines.py`: AVX10.2 on 31,744 float16 with five biases, AMD on 8,000
numbers with their seeds. `random_words=` of a cast takes one word per element, with R in its leading bits, or the name
of a stream:

{table(("stream", "words"), [[f"`{name}`", streams[name].source] for name in streams])}

Known answers: three blocks each of Philox4x32-10 and Threefry2x32-20, eight words of `at::Philox4_32`, two of Triton.
The assignment of words to elements depends on a kernel's tiling and is not guaranteed: TransformerEngine takes the
words of subsequence = thread in order, one for each `cvt.rs` of four elements. JAX's order was not compared with JAX.

## Bias of stochastic rounding

Share of 2^20 draws that were rounded up, and in brackets its distance from f in standard deviations; 24 random bits.

{bias()}
"""
