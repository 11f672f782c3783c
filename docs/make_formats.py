"""The page of formats, from the catalogue.

Everything that can be computed is computed here; what was measured of other packages is said in `DIFFER`.
"""

from __future__ import annotations

import math

import numpy as np
from pages import table

import lowprec as lp
from lowprec.cast.streams import streams
from lowprec.format.catalogue import p3109
from lowprec.measure.verify import EXHAUSTIVE
from lowprec.scaling.block_formats import block_formats

# Formats with more witnesses than the exact oracle; what others were compared on is in the tests named below.
GFLOAT = {"e4m3fn", "e5m2", "e2m3fn", "e3m2fn", "e2m1fn"}
TORCH = {"e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz"}
ML_DTYPES = {*EXHAUSTIVE, "e2m3fn", "e3m2fn", "e2m1fn"}

DIFFER = {
    "e4m3fn": "Overflow: ml_dtypes and PyTorch up to 2.11 give NaN, PyTorch 2.13 the maximum, Inf included. float64: "
    "ml_dtypes and PyTorch round twice, 126 of 252 values beside the midpoints are wrong there.",
    "e5m2": "NaN: 0x7E in ml_dtypes, 0x7F in PyTorch and CUDA. PyTorch 2.13 still overflows to Inf.",
    "e4m3fnuz": "Inf when saturating: ONNX's text says NaN, its reference code gives the maximum (`onnx_sat`).",
    "e5m2fnuz": "As e4m3fnuz.",
    "e4m3": "Not OCP's E4M3: that one is e4m3fn.",
    "e3m4": "Not Intel's E3M4: that one is e3m4fn.",
    "e3m4fn": "Intel's toolkit maps NaN to the maximum; here NaN is a code.",
    "e8m0fnu": "Ties go to the even code as P3109 has it (3 -> 2). ml_dtypes, PyTorch, JAX and ONNX round ties up "
    "(3 -> 4), and take values between 2^-127 and 1.5 * 2^-127 to 2^-126; ml_dtypes sends 0 to NaN; ONNX's reference "
    "takes 2^-127 itself to 2^-126 when it rounds up. Where they are right and there is no tie we agree.",
    "e2m3fn": "NaN: ml_dtypes gives -0, and +0 for -NaN; JAX gives -0 for both in E2M1; CUDA's satfinite and the OCP "
    "presets the maximum; gfloat refuses.",
    "e3m2fn": "As e2m3fn.",
    "e2m1fn": "As e2m3fn. DeepGEMM's helper sends ties toward zero.",
    "bfloat16": "NaN: PyTorch 2.13 gives 0xFFFF in its AVX2 and AVX-512 loops, 0x7FC0 in scalar ones (float16 sources, "
    "strides, what is left of float64 after blocks of 16), whatever NaN came in. float64 as e4m3fn.",
    "mxint8": "pychop and gfloat produce -2, which the MX specification leaves optional; microxcaling and we do not.",
    "int8": "Saturates; NumPy's cast wraps.",
    "hif8": "en_dtypes rounds float64 by way of float32; one CUDA kernel of the HiFloat4 repository flushes the tie "
    "2^-23 to 0. CANN's saturating casts send NaN to 0 (`cann_sat`), en_dtypes does not saturate (`ocp_nonsat`).",
    "nf4": "bitsandbytes sends ties to the lower value, by midpoints rounded to float32.",
    "ue5m3": "Negative values: NaN, or zero by P3109's saturating presets.",
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
    """Return a row about a format."""
    widths = "" if f.is_table else f"{int(f.signed)}/{f.exponent_bits}/{f.mantissa_bits}"
    nan = "none" if f.nan_code is None else f"0x{f.nan_code:X}"
    inf = "none" if f.inf_code is None else f"0x{f.inf_code:X}"
    return [
        f.name, f.bits, widths, f.bias, f.specials,
        f"{power(f.max)} (0x{f.max_code:X})", power(f.min),
        "" if "smallest_normal" in f.undefined else power(f.smallest_normal),
        power(f.smallest_subnormal), "" if math.isnan(f.eps) else power(f.eps), f"{f.dynamic_range:.1f}", inf, nan,
        "yes" if f.has_negative_zero else "no", f.source,
    ]  # fmt: skip


COLUMNS = (
    "name", "bits", "s/e/m", "bias", "specials", "max (code)", "lowest", "min normal", "smallest", "eps", "binades",
    "Inf", "NaN", "-0", "source",
)  # fmt: skip


def block_definition(name: str) -> list[object]:
    """Return a row about a format of blocks."""
    f = block_formats[name]
    codes = f.encode(np.zeros(f.block, np.float32))
    bits = 1 + f.magnitude_bits + (8 + codes.levels.size) / f.block
    return [name, f.block, f.magnitude_bits, f"{bits:g}", f.source]


def checked(f: lp.Format) -> str:
    """Say what a format was compared with, and on how many inputs."""
    parts = []
    if f.bits <= 16:
        parts.append(f"decode: {1 << f.bits:,} codes (all) with the oracle")
    if f.name in ("fp22", "float32"):
        parts.append("encode: nearest even, saturating and not, on structured float32 and float64 with the oracle")
    else:
        parts.append("encode: every mode and preset on critical values with the oracle")
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
        parts.append("five rounding modes on the critical values with gfloat 0.5.2")
    return "; ".join(parts)


def policies() -> str:
    """Return what every preset gives for inputs that a format cannot hold."""
    parts = []
    for name, values in PROBES.items():
        f = lp.formats[name]
        x = np.array(values, np.float32)
        rows = []
        for preset in lp.policies:
            codes = lp.encode(x, f, policy=preset)
            rows.append([f"`{preset}`", *(f"0x{code:0{-(-f.bits // 4)}X}" for code in codes.tolist())])
        parts.append(f"**{name}**\n\n" + table(["policy", *(f"{v:g}" for v in values)], rows))
    return "\n\n".join(parts)


def roundings() -> str:
    """Return what every rounding gives for a few values in e4m3fn, whose values at 1 are 0.125 apart."""
    values = [1.0625, 1.1875, -1.0625, 1.01, 2.0**-10, 2.0**-12]
    rows = []
    for name in lp.roundings:
        y = lp.round_to(values, "e4m3fn", rounding=name, seed=0 if lp.roundings[name].is_stochastic else None)
        rows.append([f"`{name}`", *(f"{v:.6g}" for v in y.tolist())])
    return table(["rounding", *(f"{v:.6g}" for v in values)], rows)


def bias() -> str:
    """Return how often stochastic rounding goes up in 2^20 draws, and how many standard deviations that is off."""
    n, rows = 1 << 20, []
    for mode in ("stochastic", "stochastic_b", "stochastic_c"):
        for name in ("e4m3fn", "e5m2"):
            f = lp.formats[name]
            for place, at, unit in (("1 + f ulp", 1.0, f.eps), ("f subnormals", 0.0, f.smallest_subnormal)):
                cells = []
                for i, wanted in enumerate((2.0**-12, 0.1, 0.5, 0.9)):
                    x = np.float32(at + wanted * unit)
                    p = (float(x) - at) / unit
                    up = int(
                        np.count_nonzero(lp.round_to(np.full(n, x), f, rounding=mode, seed=100 * len(rows) + i) > at)
                    )
                    cells.append(f"{up / n:.5f} [{(up - n * p) / math.sqrt(n * p * (1 - p)):+.1f}]")
                rows.append([f"`{mode}`", name, place, *cells])
    return table(["rounding", "format", "at", "f = 2^-12", "0.1", "0.5", "0.9"], rows)


def page() -> str:
    """Return the page."""
    catalogue = [lp.formats[name] for name in lp.formats]
    family = [p3109(8, P, signed, domain) for P in (1, 3, 4, 5) for signed in (True, False)
              for domain in ("extended", "finite")]  # fmt: skip
    about = [[f.name, checked(f), DIFFER.get(f.name, "")] for f in catalogue]
    return f"""# Formats, roundings and policies

Written by `python docs/refresh.py` from the catalogue; the numbers are computed, not typed.

## The catalogue

`lowprec formats` prints it, `lowprec formats NAME` one format, `lowprec formats NAME --grid` all its values.
"specials" says what the topmost codes mean (`help(lowprec.format.format)`); "binades" is log2(max / smallest).

{table(COLUMNS, map(definition, catalogue))}

## Tables of values

`lp.TableFormat(name, values)` is a format whose codes stand for a list of values, in whatever order: HiF8, whose codes
are not ordered by magnitude, NF4, or any power of two of float32 numbers of one's own. Neighbours are those by value;
"even" and "odd" are codes'. HiF8 rounds to nearest, ties away, unless a rounding is given. Every rounding and policy
holds for tables: they become thresholds between codes, and tables of other formats' values give those formats' codes.

`lowprec.cast.hybrid.encode_hybrid` is HiF8's CAST_HYBRID as CANN's reference data have it, compared with its rule on
integers on 61,948 float16 (all that are not specials, overflow or zero) and 19,658 float32, and with its examples. It
is no rounding of the catalogue: those add words to what is cut, and this one asks which type a number had. Not settled:
by that rule float32 values of the format itself move, 70 of 126; whether the chip does so is not known.

## Formats of blocks

`block_formats[name]` (`lowprec.scaling.block_formats`) has `encode`, `decode` and `round_to` for formats whose elements
mean nothing alone. HiF4: 64 elements of 4 bits, a scale in E6M2, a bit for every 8 and one for every 4 elements that
doubles. Block floating point: integers below one exponent.

{table(("name", "block", "magnitude bits", "bits a value", "source"), map(block_definition, block_formats.names()))}

Compared with rules in fractions in `tests/scaling/test_block_formats.py` and `lowprec/oracle/block_formats.py`
(`lowprec vectors write block/hif4`): HiF4 on 10,240 values, each block
floating point on 6,400, 0 differences, and with the worked examples of their sources. On 262,144 bfloat16 from N(0, 1)
Tenstorrent's host and device differ in 10 % (bfp8), 42 % (bfp4) and 28 % (bfp2) of codes. Not settled: how HiF4's 24
level bits are packed, what it makes of NaN and Inf; the device's ties, and whether it saturates or carries.

## The P3109 family

`lp.formats["p3109_k8p4se"]`, or `binary8p4se`, or `p3109(K, P, signed, domain)`: K bits, precision P, **s**igned or
**u**nsigned, **e**xtended (with Inf) or **f**inite. Bias 2^(K-P-1), unsigned 2^(K-P); one NaN; no -0. Members are
made when asked for, with 3 <= K <= 16, as long as all values are float32 numbers. Values agree with gfloat 0.5.2 on all
codes of all 120 members of up to 8 bits, roundings on values across the range. Some members:

{table(COLUMNS[:-1], [definition(f)[:-1] for f in family])}

`lowprec.scaling.p3109` has the draft's blocks (a scale's code beside elements' codes; not divided by the elements'
maximum): `block_project`, `block_convert`, `block_reduce`, `block_dot`, `block_apply`, each exact up to one projection.
Compared with fractions written out in `tests/scaling/test_p3109_blocks.py` by four projections: 11,520 elements
projected, 960 converted with 120 scales, 4,320 decoded, 720 sums, products and dot products each, 1,600 elements of
four operations, 0 differences, and with the draft's example. `lowprec.measure.kappa` counts the code points by which an
implementation is off at most; subnormals flushed to the nearer end give the annex's 2^(P - 2) for P from 2 to 5.

## What was checked, and where others differ

The oracle is exact rational arithmetic that shares no code with the kernels (`lowprec.oracle`). "Critical values" are
all codes and midpoints of small formats, or those at both ends of large ones, with the float32 on either side, quarter
points, deep underflow, overflow, Inf and NaN; from float32 and from float64. `lowprec verify --exhaustive` repeats
the comparison on all 2^32 float32 on your machine; `pytest -m peers tests/cast/test_peers_casts.py` asks PyTorch, ONNX
and gfloat where they are installed.

{table(("format", "compared", "where incumbents differ"), about)}

## Policies

What each preset gives for what a format cannot hold. "Overflow" is judged after rounding.

{policies()}

## Rounding modes

What each gives in e4m3fn (steps of 0.125 at 1, smallest value 2^-9 = {2.0**-9:.6g}):

{roundings()}

## Machines' conversions and random words

Policies and roundings named after machines are held to the worked examples of their manuals and simulators, and to the
oracle, in `tests/cast/test_conversions_of_machines.py`: AVX10.2 on 31,744 float16 by five biases, AMD's on 8,000
numbers with their seeds. `random=` of a cast takes a word for each element, whose leading bits are R, or a stream's
name:

{table(("stream", "words"), [[f"`{name}`", streams[name].source] for name in streams])}

Known answers: three blocks each of Philox4x32-10 and Threefry2x32-20, eight words of `at::Philox4_32`, two of Triton.
Which element a kernel gives which word is a property of its tiling and not promised: TransformerEngine takes the words
of subsequence = thread in turn, one for each `cvt.rs` of four elements. JAX's order was not run against JAX.

## Stochastic rounding has no bias

Share of 2^20 draws that went up, and in brackets its distance from f in standard deviations; 24 random bits.

{bias()}
"""
