"""Every rounding mode and every preset of policies against the rational oracle, code by code; wrong rules of them."""

import functools
import itertools
import tracemalloc
from collections.abc import Iterable

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import lowprec as lp
from lowprec import oracle
from lowprec.cast.streams import streams
from lowprec.format.policy import policies
from lowprec.format.rounding import Rounding, roundings
from lowprec.oracle import casts
from lowprec.oracle.mutants import wrong_rounding

FIXED = ["nearest_even", "nearest_away", "toward_zero", "up", "down", "to_odd"]
#: The whole catalogue, so that a new entry is compared, too, and some of the P3109 family; float32 and FP22 have more
#: codes than the oracle has time for.
FORMATS = [name for name in lp.formats if lp.formats[name].bits < 22 and not lp.formats[name].is_table] + [
    "p3109_k8p4se", "p3109_k8p3sf", "p3109_k8p3ue", "p3109_k8p1se", "p3109_k6p4uf", "p3109_k4p2se", "p3109_k8p1ue",
]  # fmt: skip


def float32(bits: NDArray[np.uint32]) -> NDArray[np.float32]:
    return np.ascontiguousarray(bits, dtype=np.uint32).view(np.float32)


@functools.cache
def critical(name: str) -> NDArray[np.float32]:
    """Codes, midpoints and quarter points with the float32 on either side, around zero, the maximum and beyond."""
    f = oracle.fields(lp.formats[name])
    top = oracle.max_code(f)
    rng = np.random.default_rng(3)
    codes = range(top + 1) if top < 40 else sorted({*range(6), *range(top - 5, top + 1), *rng.integers(0, top, 12)})
    values = [oracle.decode(int(c), f) for c in codes]
    last, before = oracle.decode(top, f), oracle.decode(top - 1, f)
    points = list(values) + [last + (last - before) * k / 4 for k in (1, 2, 3, 4, 6)]
    for low, high in itertools.pairwise(values):
        points += [low + (high - low) * k / 16 for k in (1, 4, 8, 11, 12)]
    tiny = oracle.decode(1, f)
    points += [tiny * 2.0**-k for k in (3, 9, 20, 24, 25, 27, 31, 40, 60)]
    with np.errstate(over="ignore"):
        around = np.array([float(p) for p in points]).astype(np.float32).view(np.uint32).astype(np.int64)
    bits = {int(b) + d for b in around for d in (-1, 0, 1) if 0 <= b + d <= 0x7F800000}
    bits |= {0, 1, 2, 0x7FFFFF, 0x800000, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FC00000, 0x7FFFFFFF}
    magnitudes = np.array(sorted(bits), np.uint32)
    return float32(np.concatenate([magnitudes, magnitudes | np.uint32(0x80000000)]))


def expected(x: NDArray[np.floating], name: str, mode: str, preset: str) -> NDArray[np.int64]:
    f = oracle.fields(lp.formats[name])
    return np.array([casts.cast(v, f, mode, preset) for v in x.tolist()])


def assert_same(ours: NDArray[np.integer], wanted: Iterable[int], x: NDArray[np.floating], what: object) -> None:
    """Hold every code to the oracle's."""
    wrong = [(v.hex(), hex(c), hex(w)) for v, c, w in zip(x.tolist(), ours, wanted, strict=True) if c != w]
    assert not wrong, f"{what}: {len(wrong)} of {x.size} differ; (input, ours, wanted): {wrong[:5]}"


def same_values(ours: NDArray[np.float32], wanted: NDArray[np.float32]) -> bool:
    """Whether all bits are the same, but for what bits a NaN has."""
    nan = np.isnan(wanted)
    same = np.array_equal(ours.view(np.uint32)[~nan], wanted.view(np.uint32)[~nan])
    return same and np.array_equal(np.isnan(ours), nan)


def float64(x: NDArray[np.floating]) -> NDArray[np.float64]:
    with np.errstate(invalid="ignore"):  # signalling NaNs
        return x.astype(np.float64)


def preset_of(name: str) -> str:
    return "p3109_satnone" if name.startswith("p3109") else "ocp_nonsat"


def test_every_policy_has_an_oracle() -> None:
    missing = sorted(set(policies.names()) - set(casts.PRESETS))
    assert not missing, f"{', '.join(missing)}: write the rule out in lowprec/oracle/casts.py, and its name in PRESETS"


@pytest.mark.sampled(18)
@pytest.mark.parametrize("mode", FIXED)
@pytest.mark.parametrize("name", FORMATS)
def test_modes_on_critical_float32(name: str, mode: str) -> None:
    x, how = critical(name), {"rounding": mode, "policy": preset_of(name)}
    wanted = expected(x, name, mode, preset_of(name))
    for source in (x, float64(x)):
        codes = lp.encode(source, name, **how)
        assert_same(codes, wanted, x, (name, mode, source.dtype))
        assert same_values(lp.round_to(source, name, **how), lp.decode(codes, name))


@functools.cache
def all_bfloat16(name: str) -> tuple[casts.Rounded, ...]:
    """Every bfloat16 on the format's endless grid, nearest even; policies differ in what comes after."""
    f = oracle.fields(lp.formats[name])
    positive = [casts.on_grid(v, f) for v in float32(np.arange(1 << 15, dtype=np.uint32) << 16).tolist()]
    return (*positive, *(x._replace(negative=True) for x in positive))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("preset", policies.names())
@pytest.mark.parametrize("name", ["e4m3fn", "e5m2", "e4m3fnuz", "e2m1fn", "p3109_k8p4se", "ue5m3"])
def test_presets_on_every_bfloat16_and_critical_float32(name: str, preset: str) -> None:
    f = oracle.fields(lp.formats[name])
    x = float32(np.arange(1 << 16, dtype=np.uint32) << 16)
    project = functools.cache(lambda rounded: casts.project(rounded, f, preset))
    wanted = np.array([project(rounded) for rounded in all_bfloat16(name)])
    if not f.signed:  # whatever is below zero is asked for one by one: not all presets round it first
        below = np.arange(0x8000, 0x10000)
        wanted[below[::16]] = [casts.cast(v, f, preset=preset) for v in x[below[::16]].tolist()]
        keep = np.concatenate([np.arange(0x8000), below[::16]])
        x, wanted = x[keep], wanted[keep]
    assert_same(lp.encode(x, name, policy=preset), wanted, x, (name, preset))
    some = critical(name)
    codes, values = lp.encode(some, name, policy=preset), lp.round_to(some, name, policy=preset)
    assert_same(codes, expected(some, name, "nearest_even", preset), some, (name, preset))
    assert np.array_equal(values.view(np.uint32), lp.decode(codes, name).view(np.uint32))


@pytest.mark.sampled(46)
@pytest.mark.parametrize("preset", policies.names())
@pytest.mark.parametrize("name", [n for n in FORMATS if n not in ("e4m3fn", "e5m2", "e4m3fnuz", "e2m1fn", "ue5m3")])
def test_presets_on_critical_float32(name: str, preset: str) -> None:
    x = critical(name)[::3]
    assert_same(lp.encode(x, name, policy=preset), expected(x, name, "nearest_even", preset), x, (name, preset))


@pytest.mark.sampled(24)
@pytest.mark.parametrize("bits", [1, 3, 8, 16, 24])
@pytest.mark.parametrize("variant", ["A", "B", "C"])
@pytest.mark.parametrize("name", ["e4m3fn", "e5m2fnuz", "bfloat16", "float16", "mxint8", "p3109_k8p1se", "e8m0fnu"])
def test_stochastic_is_its_definition(name: str, variant: str, bits: int) -> None:
    """The same R, drawn by (seed, index), decides in the oracle; float32 and float64 sources agree."""
    x, f = critical(name)[::2], oracle.fields(lp.formats[name])
    at = {"seed": 5 << 33 | 17, "offset": 2**32 - x.size // 2}
    words = streams["lowprec"].words(*at.values(), x.size).tolist()
    drawn = zip(x.tolist(), (word >> 32 - bits for word in words), strict=True)
    wanted = [casts.cast(v, f, variant, preset_of(name), r, bits) for v, r in drawn]
    how = {"rounding": Rounding.stochastic(bits, variant), "policy": preset_of(name), **at}
    for source in (x, float64(x)):
        codes = lp.encode(source, name, **how)
        assert_same(codes, wanted, x, (name, variant, bits))
        assert same_values(lp.round_to(source, name, **how), lp.decode(codes, name))


def test_stochastic_from_float64_sees_all_bits() -> None:
    """The low bits of a float64 count: the codes are those of the definition, not of the float32 nearby."""
    x = (1 + np.random.default_rng(1).integers(0, 8, 4000) / 8) * (1 + 2.0**-5 + 2.0**-28)
    words = streams["lowprec"].words(3, 0, x.size).tolist()
    wanted = [casts.cast(v, oracle.E4M3FN, "B", "ocp_sat", w >> 8, 24) for v, w in zip(x.tolist(), words, strict=True)]
    assert_same(lp.encode(x, "e4m3fn", rounding="stochastic_b", seed=3), wanted, x, "float64")


def test_stochastic_does_not_depend_on_chunks_threads_or_shape(keep_threads: None) -> None:
    x = np.random.default_rng(0).standard_normal((300, 1001)).astype(np.float32)
    lp.set_num_threads(1)
    whole, flat = lp.encode(x, "e4m3fn", rounding="stochastic", seed=11), x.reshape(-1)
    lp.set_num_threads(3)
    assert np.array_equal(lp.encode(flat, "e4m3fn", rounding="sr", seed=11), whole.reshape(-1))
    parts = [lp.encode(flat[a : a + 777], "e4m3fn", rounding="sr", seed=11, offset=a) for a in range(0, flat.size, 777)]
    assert np.array_equal(np.concatenate(parts), whole.reshape(-1))
    in_place = x.copy()
    lp.round_to(in_place, "e4m3fn", rounding="sr", seed=11, out=in_place)
    assert np.array_equal(in_place, lp.decode(whole, "e4m3fn"))
    assert np.count_nonzero(lp.encode(x, "e4m3fn", rounding="sr", seed=12) != whole) > 1000


any_float, any_name = st.floats(width=32) | st.floats(), st.sampled_from([*FORMATS, "fp22", "float32"])


@pytest.mark.slow
@given(any_float, any_name, st.sampled_from(FIXED), st.sampled_from(policies.names()))
def test_any_value_any_mode_any_preset(x: float, name: str, mode: str, preset: str) -> None:
    wanted = casts.cast(x, oracle.fields(lp.formats[name]), mode, preset)
    with np.errstate(over="ignore"):
        narrow = np.float32(x)
    for source in (np.float64(x), narrow)[: 1 + (float(narrow) == x or x != x)]:
        assert int(lp.encode(source, name, rounding=mode, policy=preset)) == wanted


@pytest.mark.parametrize("name", ["e4m3fn", "e5m2", "e4m3fnuz", "e2m1fn"])
def test_onnx_sat_is_clip_and_ml_dtypes(name: str) -> None:
    """What the reference implementation of ONNX does: clip to the format's range, then ml_dtypes."""
    f, dtype = lp.formats[name], getattr(ml_dtypes, lp.formats.aliases(name)[0])
    x = float32(np.arange(1 << 16, dtype=np.uint32) << 16)
    with np.errstate(invalid="ignore"):
        clipped = np.clip(x, np.float32(-f.max), np.float32(f.max)).astype(dtype).view(np.uint8)
    assert np.array_equal(lp.encode(x, name, policy="onnx_sat"), clipped)


def test_a_strict_policy_takes_what_rounds_to_a_number() -> None:
    strict = lp.Policy(
        "strict", overflow="raise", inf="raise", nan="raise", nan_fallback="raise", negative_to_unsigned="raise"
    )
    good = np.array([0.0, -0.0, 464.0, -464.0, 1e-30], np.float32)
    assert lp.encode(good, "e4m3fn", policy=strict).tolist() == lp.encode(good, "e4m3fn").tolist()


def test_negative_zero_as_wished() -> None:
    plus = lp.Policy("plus", negative_zero="positive")
    x = np.array([-0.0, -1e-9, -1.0], np.float32)
    assert lp.encode(x, "e4m3fn", policy=plus).tolist() == [0, 0, 0xB8]
    assert lp.encode(x, "e4m3fn").tolist() == [0x80, 0x80, 0xB8]
    assert np.signbit(lp.round_to(x, "e4m3fn", policy=plus)).tolist() == [False, False, True]


def test_every_rounding_is_tested() -> None:
    """By its name, or as one of the stochastic roundings, whose bits and variant are data."""
    others = {name: roundings[name] for name in roundings if name not in FIXED}
    drawn = {name for name, mode in others.items() if mode.is_stochastic}
    assert others.keys() == drawn, (
        "a rounding that draws nothing has its rule in `oracle.casts.away`, its name in FIXED"
    )
    assert all(others[name] == Rounding.stochastic(others[name].random_bits, others[name].variant) for name in drawn)


@pytest.mark.parametrize("rounding", ["nearest_even", "up", "stochastic"])
def test_nothing_is_allocated_with_out(rounding: str, keep_threads: None) -> None:
    """Python and NumPy account for a few small objects, not for the arrays."""
    lp.set_num_threads(1)
    x = np.random.default_rng(0).standard_normal(1 << 18).astype(np.float32)
    codes, values, wide = np.empty(x.size, np.uint8), np.empty_like(x), x.astype(np.float64)
    seed = 1 if rounding == "stochastic" else None

    for measured in (False, True):  # the first round may compile
        if measured:
            tracemalloc.start()
        for source in (x, wide):
            lp.encode(source, "e4m3fn", rounding=rounding, seed=seed, out=codes)
        lp.round_to(x, "e4m3fn", rounding=rounding, seed=seed, out=values)
        lp.decode(codes, "e4m3fn", out=values)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20_000


# Wrong rules: the inputs above must tell each from the right one.

WITH_MUTANTS = ["e4m3fn", "e5m2", "e4m3fnuz", "e2m1fn", "bfloat16", "p3109_k8p4se", "mxint8"]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", WITH_MUTANTS)
def test_critical_inputs_tell_modes_apart(name: str) -> None:
    """Every two modes differ on some of them, so that none could stand in for another."""
    x = critical(name)
    codes = {mode: expected(x, name, mode, "ocp_nonsat") for mode in FIXED}
    for one, other in itertools.combinations(FIXED, 2):
        assert np.count_nonzero(codes[one] != codes[other]) >= 2, (one, other)


#: Modes and how many random bits they are given.
MODES = [*((mode, 0) for mode in FIXED), ("A", 3), ("B", 3), ("C", 3)]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("mode", "bits"), MODES)
def test_critical_inputs_kill_wrong_rules(mode: str, bits: int) -> None:
    f = oracle.fields(lp.formats["e4m3fn"])
    x = critical("e4m3fn").tolist()
    words = np.random.default_rng(2).integers(0, 1 << max(bits, 1), len(x)).tolist()
    right = [casts.cast(v, f, mode, "ocp_sat", r, bits) for v, r in zip(x, words, strict=True)]
    for name, rule in wrong_rounding(mode).items():
        killed = [casts.cast(v, f, mode, "ocp_sat", r, bits, rule) for v, r in zip(x, words, strict=True)]
        assert sum(a != b for a, b in zip(right, killed, strict=True)) >= 2, name


@pytest.mark.slow
@pytest.mark.parametrize("name", ["e4m3fn", "e5m2", "e4m3fnuz"])
def test_presets_that_differ_are_told_apart(name: str) -> None:
    """Presets with other codes for what a format cannot hold differ on the bfloat16 numbers."""
    f = oracle.fields(lp.formats[name])
    grid = set(all_bfloat16(name))
    answers = {p: tuple(casts.project(x, f, p) for x in sorted(grid, key=repr)) for p in lp.policies}
    codes = {p: lp.policies[p].codes(lp.formats[name]) for p in lp.policies}
    assert len(set(answers.values())) == len(set(codes.values())) >= 4
    assert answers["ocp_sat"] != answers["ocp_nonsat"]
    assert (answers["torch_2_11"] == answers["torch_2_13"]) == (name != "e4m3fn")


# `oracle.encode` knows sign and magnitude with OFP8's policies.
OFP8 = [name for name in WITH_MUTANTS if lp.formats[name].specials in ("ieee", "fn", "fnuz", "finite")]


@pytest.mark.parametrize("name", OFP8)
def test_the_two_oracles_agree(name: str) -> None:
    """`oracle.encode`, written for nearest even alone, and `casts.cast` with all modes."""
    f = oracle.fields(lp.formats[name])
    for x in critical(name).tolist():
        kept = -1 if x == x else ~(1 << f.width)  # one of them keeps the sign of a NaN
        for preset, overflow in (("ocp_sat", "saturate"), ("ocp_nonsat", "nonsaturate")):
            assert casts.cast(x, f, preset=preset) & kept == oracle.encode(x, f, overflow) & kept, x
