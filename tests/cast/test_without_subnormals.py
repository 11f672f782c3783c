"""Formats without subnormals: values are rounded with unlimited exponents; results below the smallest are 0."""

import numpy as np
import pytest

import lowprec as lp
from lowprec import oracle

ROUNDINGS = ("nearest_even", "nearest_away", "toward_zero", "up", "down", "to_odd")
FORMATS = (
    lp.formats["dl8"], lp.formats["dl16"], lp.Format("e1m3", 1, 3, specials="finite", subnormals=False),
    lp.Format("fnuz", 5, 2, specials="fnuz", subnormals=False),
    lp.Format("u", 4, 3, signed=False, specials="fn", subnormals=False),
)  # fmt: skip


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)
def test_every_code(fmt: lp.Format) -> None:
    codes = np.arange(1 << fmt.bits, dtype=fmt.code_dtype)
    values = lp.decode(codes, fmt)
    some = np.unique(np.r_[:300, fmt.max_code - 4 : fmt.max_code + 3, fmt.sign_mask : fmt.sign_mask + 9])
    some = some[some < codes.size]
    wanted = np.array([float(oracle.decode(code, fmt)) for code in some.tolist()], np.float32)
    assert np.array_equal(values[some], wanted, equal_nan=True)
    assert np.array_equal(np.signbit(values[some]), np.signbit(wanted))
    finite = codes[: fmt.max_code + 1]
    assert np.array_equal(lp.encode(values[: finite.size], fmt), finite)
    assert (np.diff(values[: finite.size]) > 0).all()
    assert fmt.smallest_normal == fmt.smallest_subnormal == values[1] == 2.0**fmt.emin * (1 + fmt.eps)
    assert fmt.nextafter(0.0, 1.0) == values[1] == fmt.ulp(0.0)
    assert fmt.nextafter(0.0, -1.0) == (-values[1] if fmt.signed else 0)
    assert not fmt.is_representable(2.0**fmt.emin)


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)
def test_casts(fmt: lp.Format, rounding: str) -> None:
    """Against a format of the same precision whose exponents end far below."""
    wide = lp.Format("wide", 8, fmt.mantissa_bits)
    rng = np.random.default_rng(4)
    near = fmt.smallest_normal * np.exp2(rng.uniform(-3, 3, 400)) * rng.choice([-1, 1], 400)
    halves = np.arange(-64, 65) * 2.0 ** (fmt.emin - fmt.mantissa_bits - 2)
    x = np.concatenate([near, halves, rng.standard_normal(100), [0.0, 1e-40, -1e-300]])
    x = x[np.abs(x) < fmt.max] if fmt.signed else np.abs(x[np.abs(x) < fmt.max])
    for given in (x, x.astype(np.float32)):
        wanted = lp.round_to(given, wide, rounding=rounding)
        wanted = np.where(np.abs(wanted) < fmt.smallest_normal, np.copysign(0, wanted), wanted)
        found = lp.round_to(given, fmt, rounding=rounding)
        assert np.array_equal(found, np.minimum(np.maximum(wanted, -fmt.max), fmt.max))
        assert np.array_equal(np.signbit(found), np.signbit(wanted)) or not fmt.has_negative_zero


def test_sums_of_products() -> None:
    """Accumulators read the codes, or the values, of such operands; fast kernels are not used for them."""
    fmt, rng = lp.formats["dl8"], np.random.default_rng(5)
    a, b = (rng.choice(np.r_[0:20, 100:127, 128:148], (6, 40)).astype(np.uint8) for _ in "ab")
    for name in ("hopper_fp8", "cdna2_f16", "rdna3_f16", "zvdota_fp8", "arm_fp8"):
        unit, rule = lp.accumulators[name].with_(input_formats=()), oracle.ACCUMULATORS[name].rule
        found = lp.mma(a, b, accumulator=unit, a_format=fmt, b_format=fmt).view(np.uint32)
        wanted = [[rule.dot(x.tolist(), y.tolist(), 0, oracle.DL8, oracle.DL8) for y in b] for x in a]
        assert np.array_equal(found, wanted), name


def test_scales_of_an_unsigned_format() -> None:
    """Codes from 8 on, 0 and NaN are those of E4M3."""
    unit, rng = lp.accumulators["blackwell_nvfp4"], np.random.default_rng(7)
    a, b = (rng.integers(0, 16, (20, 64), np.uint8) for _ in "ab")
    scales = {f"{side}_scale": rng.choice(np.r_[0, 8:128], (20, 4)).astype(np.uint8) for side in "ab"}
    found, wanted = (lp.mma(a, b, accumulator=unit.with_(scale_format=f), **scales) for f in (FORMATS[-1], "e4m3fn"))
    assert np.array_equal(found, wanted, equal_nan=True)
    assert 0 < np.isnan(found).sum() < found.size


@pytest.mark.parametrize(
    "fields", [{"exponent_bits": 4, "mantissa_bits": 0, "specials": "fn"}, {"exponent_bits": 0, "mantissa_bits": 7,
               "specials": "integer"}],
)  # fmt: skip
def test_formats_that_have_none_anyway(fields: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="with subnormals=False, exponent_bits and mantissa_bits must be >= 1, got"):
        lp.Format("x", **fields, subnormals=False)


def test_blocks_have_such_elements() -> None:
    x = (np.random.default_rng(6).standard_normal((3, 256)) * 2.0 ** np.arange(-8, 0).repeat(32)).astype(np.float32)
    q = lp.quantize(x, "dl8 1x128")
    each = np.repeat(q.scale, 128, axis=1)
    assert np.array_equal(q.codes, lp.encode(x / each, "dl8"))
    assert np.array_equal(q.dequantize(), lp.decode(q.codes, "dl8") * each)
    assert np.array_equal(lp.quantize_dequantize(x, "dl8 1x128"), q.dequantize())
