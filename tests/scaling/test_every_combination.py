"""Quantizers in every combination of their fields: fused values, zeros, NaN, other blocks, rows alone.

`test_quantizers_oracle.py` compares the catalogue's scales and codes with exact rationals. These tests hold every
kernel that can be reached to what is true of all quantizers: formats, arithmetics, divisions, granularities and
roundings are drawn; values are zeros, NaN and Inf of both signs, and of every binade.
"""

import itertools
from typing import Any

import numpy as np
import pytest
from floats import bits
from numpy.typing import NDArray

import lowprec as lp
from lowprec._arrays import repeat_tiles
from lowprec.scaling.constants import bound_of
from lowprec.scaling.rules import SCALE_APPLICATIONS, SPECIALS, scale_calculations

F32 = NDArray[np.float32]
QUIET_NAN = 0x7FC00000
FORMATS = [
    *(f for f in map(lp.formats.get, lp.formats) if f.signed and f.bits <= 16),
    lp.Format("e5m7 below 1", 5, 7, 34), lp.Format("e4m3 far down", 4, 3, 100, specials="fn"),
    lp.Format("e5m2 far up", 5, 2, -90, specials="fnuz"), lp.Format("e6m0", 6, 0, specials="fn"),
    lp.Format("int5 below 1", 0, 4, 20, specials="symmetric"),
]  # fmt: skip
GRANULARITIES = ("1x16", "16x1", "1x32", "1x1", "1x128", "7x5", "16x16", "1x7", "row", "column", "tensor")
ROUNDINGS = ("nearest_even", "nearest_even", "nearest_even", "nearest_away", "stochastic", lp.Rounding("w", 2, 1 << 30))
FIELDS = [
    (scale, scale_calculation, scale_application)
    for scale in ("float32", "e8m0fnu", "e4m3fn", "ue5m3")
    for scale_calculation, scale_application in itertools.product(
        scale_calculations(lp.formats[scale]), SCALE_APPLICATIONS
    )
    if scale_application != "max/amax" or (scale, scale_calculation) == ("float32", "amax/max")
]


def values(rng: np.random.Generator, shape: tuple[int, int] = (35, 75)) -> F32:
    """Blocks of every binade beside each other, all with zeros; some with NaN and Inf, some of nothing but zeros."""
    x = rng.standard_normal(shape) * np.exp2(rng.integers(-149, 127, (shape[0], 1)))
    x[:, 32:] *= np.exp2(rng.integers(-60, 20, (shape[0], 1)))
    with np.errstate(over="ignore"):
        y = np.clip(x, -3.4028e38, 3.4028e38).astype(np.float32)
    y[:, ::5] = 0.0
    y[:, 1::5] = -0.0
    y[3, :32] = y[9] = 0.0
    y[11, 20], y[12, 40] = np.finfo(np.float32).max, -np.finfo(np.float32).max
    special = np.array([0x7FC00000, 0xFFC00000, 0x7F800001, 0xFFFFFFFF, 0x7F800000, 0xFF800000], np.uint32)
    for row in range(20, shape[0], 4):
        y[row, rng.integers(0, shape[1], 5)] = rng.choice(special, 5).view(np.float32)
    return y


def block_of(q: lp.Quantized) -> tuple[int, int]:
    return q.granularity.block((q.codes.shape[0], q.codes.shape[1]))


def by_value(blocks: NDArray[np.generic], q: lp.Quantized) -> NDArray[np.generic]:
    """Return what each value's block has."""
    rows, columns = block_of(q)
    return repeat_tiles(repeat_tiles(blocks, rows, q.shape[0], 0), columns, q.shape[1])


def check(x: F32, quantizer: lp.Quantizer, granularity: str | lp.Granularity | None = None, **how: Any) -> lp.Quantized:
    """Quantize, and hold codes, scales and fused values to what is true of every quantizer."""
    quantizer = quantizer if granularity is None else quantizer.with_(granularity=granularity)
    q = lp.quantize(x, quantizer, **how)
    fused = lp.quantize_dequantize(x, quantizer, **how)
    f, where = q.format, repr(q.quantizer)
    assert np.array_equal(bits(fused), bits(q.dequantize())), where
    if quantizer.hadamard_size is not None:  # what follows is about the values that were transformed
        return q
    with np.errstate(all="ignore"):
        tensor = np.float32(1 if q.tensor_scale is None else q.tensor_scale)
        own = by_value(q.scale, q) * lp.decode(q.codes, f) * tensor
    own[np.isnan(own)] = np.nan
    assert np.array_equal(bits(own), bits(fused)), where
    assert set(bits(fused[np.isnan(fused)]).tolist()) <= {QUIET_NAN}, where
    assert set(bits(q.scale[np.isnan(q.scale)]).tolist()) <= {QUIET_NAN}, where
    decoded = lp.decode(q.codes, f)
    assert set(q.codes[np.isnan(decoded)].tolist()) <= {f.nan_code}, where
    rows, columns = block_of(q)
    finite = np.logical_and.reduceat(np.isfinite(x), np.arange(0, x.shape[0], rows), 0)
    finite = np.logical_and.reduceat(finite, np.arange(0, x.shape[1], columns), 1)
    assert np.isfinite(q.scale[finite]).all(), where
    assert not np.signbit(q.scale).any(), where
    if 0.0 in decoded.dtype.type(f.values()):
        zeros = by_value(finite, q) & (x == 0)
        minus = np.signbit(x[zeros]) & (f.has_negative_zero and quantizer.negative_zero == "keep")
        assert np.array_equal(bits(decoded[zeros]), np.where(minus, np.uint32(1 << 31), np.uint32(0))), where
    return q


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("scale", "scale_calculation", "scale_application"), FIELDS, ids=map(" ".join, FIELDS))
def test_every_combination(scale: str, scale_calculation: str, scale_application: str) -> None:
    """Fused kernels give the codes' values, zeros stay zeros, NaN is one pattern, columns are rows of the transpose."""
    rng = np.random.default_rng([3, *map(ord, scale + scale_calculation + scale_application)])
    for trial in range(22):
        f = lp.formats["e4m3fn"] if trial == 0 else FORMATS[rng.integers(len(FORMATS))]
        granularity = GRANULARITIES[trial % len(GRANULARITIES)]
        rounding = ROUNDINGS[rng.integers(len(ROUNDINGS))]
        q = lp.Quantizer(
            "", f, granularity, scale, lp.AmaxRule(
                scale_calculation, scale_application, amax_floor=(0.0, 0.0, 1e-4, 1e30)[rng.integers(4)],
                min_scale_exponent=(-127, -126)[rng.integers(2)], min_scale=(0.0, 2.0**-9)[rng.integers(2)],
                zero_block=("rule", "one", "smallest")[rng.integers(3)], inf_block=[*SPECIALS][rng.integers(6)],
                nan_block=("nan", "one")[rng.integers(2)],
            ), rounding, negative_zero=("keep", "keep", "positive")[rng.integers(3)],
        )  # fmt: skip
        x, how = values(rng), {"seed": 1} if rounding == "stochastic" else {}
        if q.has_tensor_scale:
            if bound_of(q) * f.max >= 2.0**128:
                continue
            how["tensor_amax"] = (None, 1.0, 0.0, 1e-42, 3e38, np.inf)[rng.integers(6)]
        elif trial % 4 == 3:
            how["inverse_scale"] = (1.0, 1e-40, 3e38)[rng.integers(3)]
        made = check(x, q, **how)
        if not how.get("seed"):
            turned = lp.quantize(x.T, q.with_(granularity=made.granularity.T), **how).T
            assert np.array_equal(turned.codes, made.codes), q
            assert np.array_equal(bits(turned.scale), bits(made.scale)), q


def entries() -> list[lp.Quantizer]:
    """Return the catalogue, delayed scaling as it is with a multiplier."""
    return [lp.quantizers[name].with_(amax_history_len=None) for name in lp.quantizers]


@pytest.mark.parametrize("q", entries(), ids=lambda q: q.name)
def test_the_catalogue(q: lp.Quantizer) -> None:
    """The same of every entry, rounded its own way and stochastically."""
    rng = np.random.default_rng(5)
    x = values(rng, (48, 80))
    for granularity in (None, "1x16", "16x1", "column"):
        for how in ({}, {"rounding": "stochastic", "seed": 3}):
            if not how or q.rule.four_over_six is None:
                check(x, q, granularity, **how)


FILLERS = {"NaN": -np.nan, "Inf": -np.inf, "huge": 3.3e38, "zeros": 0.0, "tiny": -1e-45, "noise": None}


def given(q: lp.Quantizer) -> dict[str, float]:
    """Return what stands for the tensor where a quantizer looks at all of it."""
    if q.has_tensor_scale:
        return {"tensor_amax": 7.5}
    return {"inverse_scale": 3.0} if q.granularity == "tensor" else {}


@pytest.mark.sampled(40)
@pytest.mark.parametrize("filler", FILLERS)
@pytest.mark.parametrize("q", entries(), ids=lambda q: q.name)
def test_blocks_do_not_depend_on_their_neighbours(q: lp.Quantizer, filler: str) -> None:
    """Whatever stands in other rows and in other blocks of a row, a block's codes, scale and values are the same."""
    rng = np.random.default_rng(9)
    wide = rng.standard_normal((48, 256)) * np.exp2(rng.integers(-20, 20, (48, 256)))
    x = wide.astype(np.float32)
    x[::7, ::3] = 0.0
    x[18, 130] = -np.nan
    rows, columns = slice(16, 32), slice(128, 256)  # whole blocks of all entries
    block = None if lp.Granularity.parse(q.granularity).rows in (1, 16) else "16x128"
    kept = np.zeros(x.shape, bool)
    kept[rows, columns] = True
    noise = rng.standard_normal(x.shape).astype(np.float32) * np.float32(1e6)
    other = np.where(kept, x, noise if FILLERS[filler] is None else np.float32(FILLERS[filler]))
    for granularity, how in itertools.product((block, "16x1", "1x16"), ({}, {"rounding": "stochastic", "seed": 3})):
        if how and q.rule.four_over_six is not None:
            continue
        found = []
        for y in (x, other, np.ascontiguousarray(x[rows, columns])):
            if how and y.shape != x.shape:
                continue  # an element's random word is its index's
            part = (rows, columns) if y.shape == x.shape else (slice(None),) * 2
            made = check(y, q, granularity, **given(q), **how)
            found.append([a[part].tobytes() for a in (made.codes, by_value(made.scale, made), made.dequantize())])
        assert all(one == found[0] for one in found), (q, granularity, how)


@pytest.mark.sampled(18)
@pytest.mark.parametrize(("scale", "scale_calculation", "scale_application"), FIELDS, ids=map(" ".join, FIELDS))
def test_zeros_beside_a_block_far_above_stay_zeros(scale: str, scale_calculation: str, scale_application: str) -> None:
    """The second block's scale underflows where scales are E4M3; its inverse overflows to FLT_MAX at most."""
    x = np.zeros((1, 32), np.float32)
    x[0, 0], x[0, 16] = 1.0, 1e-12
    for f in FORMATS:
        q = lp.Quantizer("", f, "1x16", scale, lp.AmaxRule(scale_calculation, scale_application))
        if q.has_tensor_scale and bound_of(q) * f.max >= 2.0**128:
            continue
        for how in ({}, {"tensor_amax": 1e30} if q.has_tensor_scale else {"inverse_scale": 1e-40}):
            made = check(x, q, **how)
            assert not made.dequantize()[0, [*range(1, 16), *range(17, 32)]].any()


def test_a_tensor_scale_that_is_given_is_all_that_rows_share() -> None:
    """Of what rows share, the catalogue has nothing but the tensor's amax: the largest magnitude alone decides it."""
    x = np.random.default_rng(1).standard_normal((4, 64)).astype(np.float32)
    for q in entries():
        if q.has_tensor_scale and not q.has_row_scales and q.hadamard_size is None:
            amax = float(np.abs(x).max())
            both = lp.quantize(x, q), lp.quantize(x, q, tensor_amax=amax)
            assert both[0] == both[1], q.name
