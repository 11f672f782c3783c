"""Formats that are a list of values: HiF8, NF4, tables of one's own, and tables that copy formats with fields."""

import functools
import itertools
import math
import pickle
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray

import lowprec as lp
from lowprec.cast.streams import streams
from lowprec.cast.tables import bucket_table, hif8_rule, thresholds
from lowprec.format.rounding import Rounding, resolve, special_codes
from lowprec.oracle import tables

FIXED = ["nearest_even", "nearest_away", "toward_zero", "up", "down", "to_odd"]
MINE = lp.TableFormat("mine", [3.0, -0.7109375, 0.0, 0.125, 2.0**100, -2.0, 0.3125, math.nan])
CODEBOOK = lp.TableFormat("codebook", [0.0, *np.random.default_rng(5).standard_normal(255).astype(np.float32).tolist()])
TABLES = {"hif8": lp.formats["hif8"], "nf4": lp.formats["nf4"], "mine": MINE, "codebook": CODEBOOK}


@functools.cache
def oracle_of(name: str) -> tables.Table:
    f = TABLES[name]
    return tables.hif8() if name == "hif8" else tables.table(list(f.table), f.next_above_max)


@functools.cache
def critical(name: str) -> NDArray[np.float64]:
    """Values, points that divide gaps, what is beyond the ends, each with its float32 neighbours, and specials."""
    t = oracle_of(name)
    numbers = sorted({Fraction(v) for v in t.values if math.isfinite(v)})
    if name == "codebook":
        numbers = sorted([*numbers[:5], *numbers[100:140], *numbers[-5:], Fraction(0)])
    points = [*numbers, t.beyond, -t.beyond, 2 * t.beyond, -2 * t.beyond]
    for low, high in itertools.pairwise(numbers):
        points += [low + (high - low) * k / 16 for k in (1, 4, 8, 11, 12)]
    points += [numbers[-1] + (t.beyond - numbers[-1]) * k / 8 for k in (1, 4, 7)]
    points += [sign * Fraction(2) ** -k for k in (24, 30, 100, 140) for sign in (1, -1)]
    with np.errstate(over="ignore", invalid="ignore"):
        x = np.unique(np.array([float(p) for p in points]).astype(np.float32))
        x = np.unique(np.concatenate([x, np.nextafter(x, np.float32(np.inf)), np.nextafter(x, np.float32(-np.inf))]))
    return np.concatenate([x, [-0.0, math.nan, -math.nan, math.inf, -math.inf, 1e-45, -1e-45]]).astype(np.float64)


def test_hif8_is_its_paper() -> None:
    f, t = lp.formats["hif8"], tables.hif8()
    ours, exact = f.values().astype(float), np.array([float(v) for v in t.values])
    assert np.array_equal(ours, exact, equal_nan=True)
    assert (f.max, f.max_code, f.inf_code, f.nan_code, f.smallest_subnormal) == (2.0**15, 0x6E, 0x6F, 0x80, 2.0**-22)
    assert (f.min_code, f.min, f.has_negative_zero, f.eps, f.emax) == (0xEE, -f.max, False, 0.125, 15)
    steps = [(15.0, 99.0), (16.0, 0.0), (16.0, 99.0), (0.0, 1.0), (2.0**15, 1e9)]
    assert [f.nextafter(*step) for step in steps] == [16.0, 15.0, 20.0, 2.0**-22, math.inf]
    assert f.ulp([0.0, 1.0, 15.5, 16.0, -16.0, 300.0, 1e9, math.inf]).tolist()[:-1] == [
        2.0**-22, 0.125, 1.0, 4.0, 4.0, 128.0, 8192.0,
    ]  # fmt: skip


HIF8_EXAMPLES = {
    1.0: 0x08, 0.5: 0x18, -1.0: 0x88, 0.1: 0x52, 1 / 3: 0x33, 15.5: 0x40, 18.0: 0x41, 2.0**-15: 0x7E, 300.0: 0x60,
    320.0: 0x61, 1000.0: 0x64, 32768.0: 0x6E, 40959.99: 0x6E, 40960.0: 0x6F, 2.0**-23: 0x01, 1.5 * 2.0**-20: 0x04,
    -0.0: 0x00, math.nan: 0x80, -math.inf: 0xEF, 2.0**-23 * (1 - 2.0**-24): 0x00,
}  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_worked_examples_of_hif8(dtype: type) -> None:
    x = np.array(list(HIF8_EXAMPLES), dtype)
    assert lp.encode(x, "hif8", policy="ocp_nonsat").tolist() == list(HIF8_EXAMPLES.values())
    saturating = [{0x6F: 0x6E, 0xEF: 0xEE, 0x80: 0x00}.get(code, code) for code in HIF8_EXAMPLES.values()]
    assert lp.encode(x, "hif8", policy="cann_sat").tolist() == saturating


def test_hif8_rounds_float64_once() -> None:
    values = [float(v) for v in sorted({abs(v) for v in tables.hif8().values if math.isfinite(v)})]
    below = np.array([(a + b) / 2 * (1 - 2.0**-40) for a, b in itertools.pairwise(values)])
    assert below.size == 126
    assert np.array_equal(lp.decode(lp.encode(below, "hif8"), "hif8"), np.array(values[:-1], np.float32))


@pytest.mark.sampled(25)
@pytest.mark.parametrize("preset", lp.policies.names())
@pytest.mark.parametrize("mode", FIXED)
@pytest.mark.parametrize("name", TABLES)
def test_modes_and_presets_are_the_oracles(name: str, mode: str, preset: str) -> None:
    x, f, t = critical(name), TABLES[name], oracle_of(name)
    x = x if preset in ("ocp_sat", "ocp_nonsat") else np.concatenate([x[:-7:11], x[-7:]])
    wanted = [tables.cast(v, t, mode, preset) for v in x.tolist()]
    assert lp.encode(x, f, rounding=mode, policy=preset).tolist() == wanted
    with np.errstate(invalid="ignore"):
        narrow = x.astype(np.float32)
    assert lp.encode(narrow, f, rounding=mode, policy=preset).tolist() == wanted
    values = lp.decode(np.array(wanted, f.code_dtype), f)
    assert np.array_equal(lp.round_to(narrow, f, rounding=mode, policy=preset), values, equal_nan=True)


@pytest.mark.sampled(13)
@pytest.mark.parametrize("bits", [1, 8, 24])
@pytest.mark.parametrize("variant", ["A", "B", "C"])
@pytest.mark.parametrize("name", ["hif8", "nf4", "codebook"])
def test_stochastic_rounding_is_the_oracles(name: str, variant: str, bits: int) -> None:
    x, t, mode = critical(name)[::3], oracle_of(name), Rounding.stochastic(bits, variant)
    drawn = zip(x.tolist(), streams["lowprec"].words(9, 0, x.size).tolist(), strict=True)
    wanted = [tables.cast(v, t, variant, "ocp_nonsat", word >> (32 - bits), bits) for v, word in drawn]
    assert lp.encode(x, TABLES[name], rounding=mode, policy="ocp_nonsat", seed=9).tolist() == wanted


FIELDED = ("e4m3fn", "e5m2", "e2m1fn", "e4m3fnuz", "p3109_k8p3ue", "p3109_k8p4se", "e5m6", "int8")


@pytest.mark.slow
@pytest.mark.parametrize("name", FIELDED)
def test_a_table_of_a_formats_values_is_that_format(name: str) -> None:
    """Every rounding and policy, stochastic ones by the same words; NaNs may have other codes."""
    f = lp.formats[name]
    last = f.value(f.max_code) - f.value(f.max_code - 1)
    t = lp.TableFormat("copy", f.values().tolist(), next_above_max=f.max + last)
    values = np.unique(f.values()[np.isfinite(f.values())].astype(np.float64))
    middle = (values[1:] + values[:-1]) / 2
    x = np.concatenate([values, middle, [f.max + last / 2, -f.max - last / 2, 1e30, -1e30, 1e-30]]).astype(np.float32)
    bits = np.random.default_rng(0).integers(0, 1 << 32, 1 << 12, dtype=np.uint32)
    x = np.concatenate([x, *(np.nextafter(x, np.float32(end)) for end in (1e38, -1e38)), bits.view(np.float32)])
    for mode, policy in itertools.product(lp.roundings, lp.policies):
        if lp.policies[policy].always_saturate:  # names formats, and a table is none of them
            continue
        seed = 3 if lp.roundings[mode].is_stochastic else None
        ours, wanted = (lp.encode(x, g, rounding=mode, policy=policy, seed=seed) for g in (t, f))
        nan = np.isnan(f.values())
        same = (ours == wanted) | (nan[ours] & nan[wanted])
        if name == "int8":  # its lowest has no opposite, so overflow below is judged otherwise only beyond it
            same |= x < -128.0
        zero_for_nan = np.isnan(x) & (policy in ("ml_dtypes", "onnx_sat"))
        assert (same | zero_for_nan).all(), (mode, policy, x[~same][:5], ours[~same][:5], wanted[~same][:5])


def by_thresholds(f: lp.TableFormat, mode: Rounding, policy: str | None, x: NDArray[np.uint32]) -> NDArray[np.uint8]:
    """Codes of float32 bits by a search among the thresholds, without a kernel."""
    _, chosen = resolve(f, mode, policy)
    t = thresholds(f, mode, special_codes(f, mode, chosen), np.dtype(np.float32))
    keys = np.where(x >> 31 == 1, ~x, x | np.uint32(1 << 31))
    codes: NDArray[np.uint8] = t.codes[np.searchsorted(t.keys, keys, "right")]
    return codes


@pytest.mark.parametrize("mode", ["nearest_even", "nearest_away"])
@pytest.mark.parametrize("policy", ["ocp_sat", "ocp_nonsat"])
def test_the_vector_kernel_of_hif8_is_its_thresholds(mode: str, policy: str) -> None:
    """Every leading 18 bits, with the bits below them all zeros, a one, all ones but the last, and all ones."""
    f, rounding = lp.formats["hif8"], lp.roundings[mode]
    low = np.array([[0], [1], [(1 << 14) - 2], [(1 << 14) - 1]], np.uint32)
    x = (np.arange(1 << 18, dtype=np.uint32) << np.uint32(14)) + low
    special = special_codes(f, *resolve(f, mode, policy))
    assert hif8_rule(f, rounding, special) is not None
    codes = lp.encode(x.view(np.float32), f, rounding=mode, policy=policy)
    assert np.array_equal(codes, by_thresholds(f, rounding, policy, x))
    assert hif8_rule(f, lp.roundings["up"], special) is None


@pytest.mark.sampled(3)
@pytest.mark.parametrize("mode", FIXED)
def test_buckets_of_leading_bits_are_the_thresholds(mode: str) -> None:
    """Random bits and what lies about every threshold; a table whose values lie too close has no buckets."""
    close = lp.TableFormat("close", [0.0, 1.0, 1.0 + 2.0**-20, 1.0 + 2.0**-19])
    bits = np.random.default_rng(0).integers(0, 1 << 32, 1 << 16, dtype=np.uint32)
    for f, found in ((lp.formats["hif8"], True), (lp.formats["nf4"], True), (MINE, True), (close, False)):
        rounding = lp.roundings[mode]
        special = special_codes(f, *resolve(f, mode, "ocp_nonsat"))
        if mode != "to_odd":  # which may put thresholds at both ends of a gap
            assert (bucket_table(f, rounding, special) is not None) == found
        keys = thresholds(f, rounding, special, np.dtype(np.float32)).keys
        at = np.where(keys >> 31 == 1, keys ^ np.uint32(1 << 31), ~keys)
        x = np.unique(np.concatenate([bits, at, at + np.uint32(1), at - np.uint32(1)]))
        codes = lp.encode(x.view(np.float32), f, rounding=mode, policy="ocp_nonsat")
        assert np.array_equal(codes, by_thresholds(f, rounding, "ocp_nonsat", x))


@pytest.mark.parametrize("name", TABLES)
def test_codes_and_values_go_round(name: str) -> None:
    f = TABLES[name]
    codes = np.arange(1 << f.bits, dtype=f.code_dtype)
    values = lp.decode(codes, f)
    assert np.array_equal(values, f.values(), equal_nan=True)
    assert np.array_equal(lp.encode(values, f, policy="ocp_nonsat"), codes)
    order = sorted(v for v in values.astype(float).tolist() if not math.isnan(v))
    walked = [order[0]]
    while (after := f.nextafter(walked[-1], math.inf)) != walked[-1]:
        walked.append(after)
    assert walked == order
    again = pickle.loads(pickle.dumps(f))
    assert (again, hash(again)) == (f, hash(f))
    assert f.same_codes(again)
    assert f.can_represent_all(again)
    assert lp.TableFormat("other", f.table, next_above_max=f.next_above_max).same_codes(f)
    assert not lp.formats["bfloat16"].same_codes(f)


def test_what_holds_what() -> None:
    copy = lp.TableFormat("copy", lp.formats["e2m1fn"].values().tolist())
    for wide, narrow, holds in [
        ("float16", "hif8", True), ("float16", "nf4", False), ("bfloat16", MINE, True), ("float16", MINE, False),
        ("float32", MINE, True), ("e4m3fn", "hif8", False), (copy, "e2m1fn", True), ("nf4", copy, False),
    ]:  # fmt: skip
        assert lp.formats.get(wide).can_represent_all(lp.formats.get(narrow)) == holds, (wide, narrow)


def test_tables_without_a_zero_or_a_sign() -> None:
    signs = lp.TableFormat("signs", [-1.0, 1.0])
    assert lp.encode([-0.5, -0.0, 0.0, 0.1, 9.0, -9.0], signs).tolist() == [0, 0, 0, 1, 1, 0]
    share = lp.encode(np.full(1 << 16, -0.5), signs, rounding="stochastic", seed=1).mean()
    assert abs(share - 0.25) < 0.01
    above = lp.TableFormat("above", [1.0, 2.0, 4.0, math.nan])
    assert lp.encode([0.0, 0.3, 1.5, 1.6, 100.0, -1.0, math.nan], above).tolist() == [0, 0, 0, 1, 2, 3, 3]
    assert lp.encode([-1.0], above, policy="p3109_satfinite").tolist() == [0]
