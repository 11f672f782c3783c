"""The catalogue: what a format says of itself, against ml_dtypes, gfloat and published tables."""

import math
import warnings

import gfloat
import ml_dtypes
import numpy as np
import pytest
from gfloat.formats import format_info_p3109
from gfloat.types import Domain, Signedness
from hypothesis import given
from hypothesis import strategies as st
from micro_vectors import FACTS
from refusals import refusals

import lowprec as lp
from lowprec import oracle
from lowprec.format.catalogue import p3109

SMALL = [name for name in lp.formats if lp.formats[name].bits <= 16 and not lp.formats[name].is_table]
P3109 = [
    (K, P, signed, domain)
    for K in (3, 4, 5, 6, 7, 8, 10, 12, 16)
    for signed in (True, False)
    for P in range(1, K + (not signed))
    for domain in ("extended", "finite")
    if (1 << (K - P - signed)) <= 128
]


@pytest.mark.parametrize("name", [name for name, facts in FACTS.items() if facts.ml_dtypes])
def test_properties_are_those_of_ml_dtypes(name: str) -> None:
    f, facts = lp.formats[name], FACTS[name]
    info = ml_dtypes.finfo(getattr(ml_dtypes, facts.ml_dtypes))
    assert (f.bits, f.mantissa_bits) == (info.bits, info.nmant)
    assert (f.max, f.min, f.smallest_normal) == (info.max, info.min, info.smallest_normal)
    if name != "e8m0fnu":
        assert (f.smallest_subnormal, f.eps) == (info.smallest_subnormal, info.eps)
    assert (f.max_code, f.inf_code) == (facts.max_code, facts.inf_code)
    assert (f.nan_code in facts.nan_codes) if facts.nan_codes else f.nan_code is None


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_integers(name: str) -> None:
    f = lp.formats[name]
    codes = np.arange(1 << f.bits, dtype=np.uint8)
    half = 1 << (f.bits - 1)
    wanted = np.where(codes >= half, codes.astype(int) - 2 * half, codes)
    assert f.values().tolist() == wanted.tolist() == lp.decode(codes, f).tolist()
    assert np.array_equal(lp.encode(wanted, f), codes)
    assert lp.encode([1000.0, -1000.0, 0.5, 1.5, -0.4], f).tolist() == [half - 1, half, 0, 2, 0]
    assert (f.min, f.max, f.eps) == (-half, half - 1, 1.0)
    if name == "int4":
        assert np.array_equal(codes.view(ml_dtypes.int4).astype(int), wanted)


def test_mxint8_never_produces_its_lowest_code() -> None:
    f = lp.formats["mxint8"]
    assert lp.decode([0x80, 0x81, 0x7F], f).tolist() == [-2.0, -127 / 64, 127 / 64]
    assert lp.encode([-1.9999, -2.0, -5.0, 1.9999, 0.01], f).tolist() == [0x81, 0x81, 0x81, 0x7F, 1]
    assert np.array_equal(lp.encode(f.values()[:128], f), np.arange(128))


def gfloat_format(K: int, P: int, signed: bool, domain: str) -> gfloat.FormatInfo:
    sign = Signedness.Signed if signed else Signedness.Unsigned
    return format_info_p3109(K, P, sign, Domain.Extended if domain == "extended" else Domain.Finite)


@pytest.mark.parametrize(("K", "P", "signed", "domain"), [x for x in P3109 if x[0] <= 8])
def test_p3109_codes_are_those_of_gfloat(K: int, P: int, signed: bool, domain: str) -> None:
    ours, theirs = p3109(K, P, signed, domain), gfloat_format(K, P, signed, domain)
    wanted = [gfloat.decode_float(theirs, code).fval for code in range(1 << K)]
    assert np.array_equal(ours.values(), np.array(wanted, np.float32), equal_nan=True)
    assert lp.formats[ours.name] == ours == lp.formats[theirs.name]
    exact = [oracle.decode(code, ours) for code in range(1 << K)]
    assert np.array_equal(np.array([float(v) for v in exact]), np.array(wanted, float), equal_nan=True)


@pytest.mark.sampled(22)
@pytest.mark.parametrize(("K", "P", "signed", "domain"), P3109[::3])
def test_p3109_rounds_like_gfloat(K: int, P: int, signed: bool, domain: str) -> None:
    """Nearest even with and without saturation on values across the range, both signs where there are two."""
    ours, theirs = p3109(K, P, signed, domain), gfloat_format(K, P, signed, domain)
    rng = np.random.default_rng(K * 100 + P)
    low, high = math.log2(ours.smallest_subnormal) - 2, math.log2(ours.max) + 1
    x = np.exp2(rng.uniform(low, high, 60)) * (rng.choice([-1, 1], 60) if signed else 1)
    x = np.concatenate([x, [ours.max, ours.max * 1.01, ours.smallest_subnormal / 2, 0.0]])
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sat = [gfloat.round_float(theirs, v, sat=True) for v in x]
        none = [gfloat.round_float(theirs, v, sat=False) for v in x]
    assert lp.decode(lp.encode(x, ours, policy="p3109_satfinite"), ours).tolist() == sat
    assert np.array_equal(lp.decode(lp.encode(x, ours, policy="p3109_satnone"), ours), none, equal_nan=True)


BAD = ("np.datetime64('2026-01-01')", "'1'", "None", "1j", "[1.0]")
test_refused = refusals(
    [
        ("p3109(8, 8)", "p3109: K must be from 3 to 16 and P from 1 to K - 1, got K=8 and P=8"),
        ("p3109(2, 1)", "p3109: K must be from 3 to 16 and P from 1 to K - 1, got K=2 and P=1"),
        ("p3109(8, 3, domain='both')", "p3109: domain must be 'extended' or 'finite', got 'both'"),
        ("p3109(16, 3)", "values must be float32 numbers"),
        ("lp.formats['p3109_k8p9se']", "p3109: K must be from 3 to 16 and P from 1 to K - 1, got K=8 and P=9"),
        ("lp.formats['binary8p4']", "unknown format 'binary8p4'"),
        ("lp.Format('x', 4, 3, specials='odd')", "specials must be one of ieee, fn, fnuz, finite, extended,"),
        ("lp.Format('x', 9, 3)", "with bias=255"),
        ("lp.Format('x', 15, 3)", "Format x: exponent_bits must be from 1 to 14, got 15"),
        ("lp.Format('x', 4, 24)", "Format x: mantissa_bits must be from 0 to 23, got 24"),
        ("lp.Format('x', 3, 4, specials='integer')", "Format x: exponent_bits must be 0 for integers, got 3"),
        ("lp.Format('x', 0, 7)", "Format x: exponent_bits must be from 1 to 14, got 0"),
        ("lp.Format('x', 0, 7, specials='integer', signed=False)", "signed and has_zero must be True"),
        ("lp.Format('x', 4, 3, bias=500)", "values must be float32 numbers"),
        ("lp.Format('x', 4, 3, bias=1.5)", "bias must be an integer, got 1.5"),
        ("lp.Format('', 4, 3)", "Format: name must be a non-empty string, got ''"),
        ("lp.Format('mine', 1, 4)", "with specials='ieee', exponent_bits must be >= 2 and mantissa_bits >= 1"),
        ("lp.Format('mine', 5, 0)", "with specials='ieee', exponent_bits must be >= 2 and mantissa_bits >= 1"),
        ("E4M3.value(256)", "code must be from 0 to 255, got 256"),
        ("E4M3.nextafter(1.01, 2)", "e4m3fn: x must be a value of the format, got 1.01"),
        ("lp.formats['e5m2'].nextafter(2**2000, 0.0)", "x must be a value of the format, got"),
        *((f"E4M3.nextafter({bad}, 1.0)", TypeError, "^e4m3fn: x must be a real number, got .*$") for bad in BAD),
        *((f"E4M3.nextafter(1.0, {bad})", TypeError, "^e4m3fn: toward must be a real number, got .*$") for bad in BAD),
        ("lp.decode([16], 'int4')", "codes of int4 must be from 0 to 15, got 16"),
        ("lp.formats['e5m2'].ulp(['a'])", TypeError, "values must be real numbers"),
    ],
    lambda: {"p3109": p3109, "E4M3": lp.formats["e4m3fn"]},
)  # fmt: skip


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", [n for n in SMALL if n != "e8m0fnu"] + ["p3109_k8p3ue", "p3109_k6p3se"])
def test_nextafter_walks_through_all_values(name: str) -> None:
    f = lp.formats[name]
    table = f.values().astype(float)
    if f.specials == "symmetric":
        table = table[table > -2]
    wanted = sorted({v for v in table.tolist() if not math.isnan(v)})
    walked, at = [wanted[0]], wanted[0]
    while (step := f.nextafter(at, math.inf)) != at:
        walked.append(step)
        at = step
    assert walked == wanted
    while (step := f.nextafter(at, -math.inf)) != at:
        at = step
    assert at == wanted[0]
    assert f.nextafter(0.0, 0.0) == 0.0
    assert f.nextafter(0.0, 2**2000) == f.nextafter(0.0, 1e300)
    assert math.isnan(f.nextafter(0.0, math.nan))


@pytest.mark.slow
@given(st.sampled_from(SMALL), st.floats(allow_nan=False, allow_infinity=False))
def test_ulp_is_the_gap_at_the_rounded_value(name: str, x: float) -> None:
    f = lp.formats[name]
    towards_zero = float(lp.round_to(x, f, rounding="toward_zero", policy="p3109_satfinite"))
    unit = float(f.ulp(x))
    if 0 < abs(towards_zero) < f.max and f.has_zero and (f.signed or x > 0):
        value = abs(towards_zero)
        assert f.nextafter(value, math.inf) - value == unit
    assert f.smallest_subnormal <= unit <= float(f.ulp(f.max))


def test_ulp_of_what_is_no_number() -> None:
    assert np.isnan(lp.formats["e5m2"].ulp([np.nan, np.inf, -np.inf])).all()
    assert lp.formats["e5m2"].ulp(np.zeros((2, 0))).shape == (2, 0)
    assert lp.formats["bf16"].ulp(ml_dtypes.bfloat16(3)) == 2.0**-6


def test_p3109_fits_up_to_8_bits() -> None:
    """Every member exists: float32 holds the exponents of all."""
    widths = [(K, P, signed) for K in range(3, 9) for signed in (True, False) for P in range(1, K + (not signed))]
    assert len({p3109(*width, domain) for width in widths for domain in ("extended", "finite")}) == 120


def test_dynamic_range_is_in_binades():
    assert lp.formats["e4m3fn"].dynamic_range == math.log2(448 * 512)
    assert lp.formats["e2m1fn"].dynamic_range == math.log2(12)
    assert lp.formats["e8m0fnu"].dynamic_range == 254
