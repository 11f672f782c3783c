"""Blocks whose elements are tables of values: NF4 below an absmax as bitsandbytes has it, HiF8 in tiles."""

import bisect
import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray

import lowprec as lp
from lowprec.oracle import FLOAT32, casts, decode, tables

NF4 = tables.table(list(lp.formats["nf4"].values().tolist()))


def r32(value: Fraction) -> Fraction:
    return Fraction(decode(casts.cast(value, FLOAT32, "nearest_even", "ocp_sat"), FLOAT32))


def numbers(rows: int, columns: int) -> NDArray[np.float32]:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((rows, columns)) * 2.0 ** rng.integers(-8, 8, (rows, 1))
    x[1] = np.round(x[1] * 4) / 4
    x[2, :64] = 0
    return lp.round_to(x.astype(np.float32), "bfloat16")


@pytest.mark.slow
def test_nf4_with_absmax_is_bitsandbytes_rule() -> None:
    """absmax of 64, x * fl(1 / absmax), the nearest value: every operation in fractions, 8,192 elements."""
    x = numbers(32, 256)
    q = lp.quantize(x, "nf4", "1x64", division="reciprocal")
    middles = [np.float32((a + b) / 2) for a, b in itertools.pairwise(sorted(lp.formats["nf4"].values().tolist()))]
    theirs = np.zeros_like(q.codes)
    for i, j in itertools.product(range(32), range(0, 256, 64)):
        block = [Fraction(float(v)) for v in x[i, j : j + 64]]
        amax = max(map(abs, block)) or Fraction(1)
        assert q.scale[i, j // 64] == amax
        inverse = r32(1 / amax)
        scaled = [r32(v * inverse) for v in block]
        assert q.codes[i, j : j + 64].tolist() == [tables.cast(v, NF4, "nearest_even") for v in scaled]
        theirs[i, j : j + 64] = [bisect.bisect_left(middles, np.float32(float(v))) for v in scaled]
    assert np.array_equal(q.codes, theirs)  # their thresholds are float32 midpoints, of which none was met
    assert q.bits_per_value == 4.5
    values = lp.formats["nf4"].values()[q.codes] * np.repeat(q.scale, 64, axis=1)
    assert np.array_equal(q.dequantize(), values)
    assert np.array_equal(lp.quantize_dequantize(x, "nf4", "1x64", division="reciprocal"), values)


@pytest.mark.parametrize("block", ["1x128", "128x1", "16x16", "tensor", "row", "1x7"])
def test_hif8_in_blocks(block: str) -> None:
    x = numbers(64, 192)
    q = lp.quantize(x, "hif8", block, scale="ue8m0")
    rows, columns = q.granularity.block(x.shape)
    each = np.repeat(np.repeat(q.scale, rows, 0), columns, 1)[:64, :192]
    assert np.array_equal(q.codes, lp.encode(x / each, "hif8", rounding="nearest_even"))
    away = lp.quantize(x, "hif8", block, scale="ue8m0", rounding="nearest_away")  # the format's own
    assert np.array_equal(away.codes, lp.encode(x / each, "hif8"))
    amax = np.maximum.reduceat(np.abs(x), np.arange(0, 64, rows), 0)
    amax = np.maximum.reduceat(amax, np.arange(0, 192, columns), 1)
    assert np.array_equal(lp.quantize(x, "hif8", block).scale, np.where(amax == 0, 1, amax / np.float32(32768)))
    by_chance = lp.quantize(x, "hif8", block, scale="ue8m0", rounding="stochastic", seed=5, offset=3)
    assert np.array_equal(by_chance.codes, lp.encode(x / each, "hif8", rounding="stochastic", seed=5, offset=3))


def test_what_is_not_finite_and_what_is_refused() -> None:
    x = np.ones((3, 64), np.float32)
    x[0, 1], x[1, 2] = np.nan, -np.inf
    for name in ("nf4", "hif8"):
        q = lp.quantize(x, name, "1x64")
        assert np.isnan(q.dequantize()[:2]).all()
        assert (q.dequantize()[2] == 1).all()
        assert lp.quantize(np.zeros((0, 64)), name, "1x64").shape == (0, 64)
    given = lp.quantize(x[2:], "nf4", "1x64", multiplier=0.5)
    assert (math.isclose(given.scale.item(), 2.0), given.codes[0, 0]) == (True, lp.encode(0.5, "nf4").item())
    unsigned = lp.TableFormat("unsigned", [0.0, 1.0, 2.0, 4.0])
    with pytest.raises(ValueError, match="cannot be an element format"):
        lp.quantize(x, unsigned, "1x64")
