"""Casts, bit for bit: exhaustively over 16-bit inputs and on float64 ones, against the oracle and against ml_dtypes.

Critical float32 inputs are in test_rounding_oracle.py; all 2^32 of them are test_selftest.py's.
"""

import ml_dtypes
import numpy as np
import pytest
from answers import once
from micro_vectors import FACTS, SHORT_FLOAT32
from numpy.typing import NDArray
from test_rounding_oracle import critical, float32, same_values

import lowprec as lp
from lowprec import oracle

FIELDS = {name: facts.fields for name, facts in FACTS.items()} | SHORT_FLOAT32
UP_TO_16_BITS = list(FACTS)
# ml_dtypes' e8m0fnu rounds ties up and does not round values below 2^-126; it has tests of its own below.
IN_ML_DTYPES = [name for name, facts in FACTS.items() if facts.ml_dtypes and name != "e8m0fnu"]
OVERFLOWS = {"ocp_sat": "saturate", "ocp_nonsat": "nonsaturate"}


ALL_BFLOAT16 = float32(np.arange(1 << 16, dtype=np.uint32) << 16)
ALL_FLOAT16 = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
with np.errstate(invalid="ignore"):  # signalling NaNs
    FLOAT16_AS_FLOAT32 = ALL_FLOAT16.astype(np.float32)


def adversarial_float64(name: str) -> NDArray[np.float64]:
    """Ties and codes of the format, moved by less than float32 can show: rounding through float32 gets these wrong."""
    fields = FIELDS[name]
    rng = np.random.default_rng(11)
    largest = oracle.max_code(fields)
    codes = np.arange(min(largest, 400))
    if largest > 400:
        codes = np.unique(np.concatenate([codes[:40], largest - 1 - codes[:40], rng.integers(0, largest, 300)]))
    low = [oracle.decode(int(c), fields) for c in codes]
    high = [oracle.decode(int(c) + 1, fields) for c in codes]
    points = np.array([float((x + y) / 2) for x, y in zip(low, high, strict=True)] + [float(x) for x in low])
    x = np.concatenate([points * (1 + d) for d in (0.0, 2.0**-52, -(2.0**-52), 2.0**-30, -(2.0**-30))])
    beyond = [1e39, 1e300, 5e-324, 1e-60, 2.0**128 - 2.0**103, np.inf, np.nan, 0.0, float(high[-1])]
    x = np.concatenate([x, beyond])
    return np.concatenate([x, -x])


def expected(x: NDArray[np.floating], name: str, overflow: str) -> NDArray[np.int64]:
    """The oracle's codes."""
    return np.array([oracle.encode(v, FIELDS[name], overflow) for v in x.ravel().tolist()])


def assert_codes(ours: NDArray[np.unsignedinteger], wanted: NDArray[np.integer], x: NDArray[np.floating], name: str):
    """Every bit equal; a NaN code only has to be some NaN of the format, where it has any."""
    if name in SHORT_FLOAT32:
        shift = 23 - FIELDS[name].mantissa_bits
        nans = [np.isnan(float32(c.astype(np.uint32) << shift)) for c in (ours, wanted)]
    else:
        nans = [np.isin(c, FACTS[name].nan_codes) for c in (ours, wanted)]
    wrong = np.flatnonzero((ours.astype(np.int64) != wanted) & ~(nans[0] & nans[1]))
    first = [(float(x[i]).hex(), hex(ours[i]), hex(wanted[i])) for i in wrong[:5]]
    assert wrong.size == 0, f"{name}: {wrong.size} of {x.size} differ; (input, ours, wanted): {first}"


def theirs(x: NDArray[np.floating], name: str) -> NDArray[np.unsignedinteger]:
    with np.errstate(all="ignore"):
        cast = x.astype(getattr(ml_dtypes, FACTS[name].ml_dtypes))
    return cast.view(np.uint16 if name == "bfloat16" else np.uint8)


# Decoding


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", UP_TO_16_BITS)
def test_decode_of_every_code(name: str) -> None:
    codes = np.arange(1 << (FIELDS[name].width + FIELDS[name].signed), dtype=lp.formats[name].code_dtype)
    wanted = np.array([float(oracle.decode(c, FIELDS[name])) for c in codes.tolist()], dtype=np.float32)
    for ours in (lp.decode(codes, name), lp.formats[name].values()):
        assert same_values(ours, wanted)


@pytest.mark.parametrize("name", SHORT_FLOAT32)
def test_decode_of_wide_codes(name: str) -> None:
    fields = FIELDS[name]
    codes = np.random.default_rng(5).integers(0, 1 << (fields.width + 1), 20_000).astype(np.uint32)
    assert same_values(lp.decode(codes, name), float32(codes << np.uint32(23 - fields.mantissa_bits)))


@pytest.mark.parametrize("name", FIELDS)
def test_fields_of_the_catalogue(name: str) -> None:
    assert oracle.fields(lp.formats[name]) == FIELDS[name]


# Encoding, 16-bit inputs, all of them


@pytest.mark.slow
@pytest.mark.parametrize("name", UP_TO_16_BITS)
def test_encode_of_every_bfloat16_and_float16(name: str) -> None:
    """Of both policies; the oracle is asked twice only about magnitudes in reach of the largest one, or NaN."""

    def check() -> None:
        overflowing = expected(x, name, "nonsaturate")
        assert_codes(nonsat, overflowing, x, name)
        saturating, asked = overflowing.copy(), ~(np.abs(x) < np.float32(FACTS[name].maximum / 2))
        saturating[asked] = expected(x[asked], name, "saturate")
        assert_codes(sat, saturating, x, name)

    for x in (ALL_BFLOAT16, FLOAT16_AS_FLOAT32):
        nonsat, sat = (lp.encode(x, name, policy=policy) for policy in ("ocp_nonsat", "ocp_sat"))
        once(check, FIELDS[name], x, nonsat, sat)


@pytest.mark.parametrize("name", IN_ML_DTYPES)
def test_policy_ml_dtypes_is_ml_dtypes(name: str) -> None:
    """The codes of NaN included, on all 16-bit inputs and critical float32 ones."""
    for x in (ALL_BFLOAT16, FLOAT16_AS_FLOAT32, critical(name)):
        assert np.array_equal(lp.encode(x, name, policy="ml_dtypes"), theirs(x, name))


@pytest.mark.parametrize("name", ["e4m3fn", "e5m2", "e2m1fn", "bfloat16", "e5m6"])
def test_sixteen_bit_arrays_need_no_detour(name: str) -> None:
    """float16 and ml_dtypes arrays give the codes of the float32 that they are."""
    assert np.array_equal(lp.encode(ALL_FLOAT16, name), lp.encode(FLOAT16_AS_FLOAT32, name))
    as_bfloat16 = np.arange(1 << 16, dtype=np.uint16).view(ml_dtypes.bfloat16)
    assert np.array_equal(lp.encode(as_bfloat16, name), lp.encode(ALL_BFLOAT16, name))


# Encoding, float64 inputs


@pytest.mark.sampled(7)
@pytest.mark.parametrize("policy", OVERFLOWS)
@pytest.mark.parametrize("name", FIELDS)
def test_encode_of_float64_rounds_once(name: str, policy: str) -> None:
    x = adversarial_float64(name)
    wanted = expected(x, name, OVERFLOWS[policy])
    assert_codes(lp.encode(x, name, policy=policy), wanted, x, name)
    if name != "float32" and FIELDS[name].has_zero:
        with np.errstate(over="ignore"):
            twice = lp.encode(x.astype(np.float32), name, policy=policy)
        assert np.count_nonzero(twice != wanted) > 20, "these inputs no longer tell one rounding from two"


@pytest.mark.parametrize("name", ["e4m3fn", "e5m2", "e2m1fn", "bfloat16", "float16", "float32", "e8m0fnu"])
def test_integers_are_rounded_once(name: str) -> None:
    above = (((2 << FIELDS[name].mantissa_bits) + 1) << 25) + 1  # a tie but for its last bit, which float32 drops
    x = np.array([0, 1, -1, 3, 17, -19, 447, 465, 61440, 1 << 24, (1 << 24) + 1, -(1 << 52) - 1, above, -above])
    x = x if FIELDS[name].signed else np.abs(x)
    assert_codes(lp.encode(x, name, policy="ocp_sat"), expected(x, name, "saturate"), x, name)


def test_ml_dtypes_power_of_two_scales() -> None:
    """Where ml_dtypes' e8m0fnu rounds correctly and is no tie, we agree: every positive bfloat16 from 2^-126 up."""
    x = ALL_BFLOAT16[:0x7F80]
    x = x[(x >= 2.0**-126) & (x.view(np.uint32) & 0x7FFFFF != 0x400000)]
    assert x.size == 254 * 127
    assert np.array_equal(lp.encode(x, "e8m0fnu", policy="ocp_nonsat"), theirs(x, "e8m0fnu"))


# round_to
