"""Numbers that the figures of `lp.plot` show, computed again."""

import numpy as np
import pytest

import lowprec as lp

pytest.importorskip("matplotlib")
pytestmark = pytest.mark.slow


def test_errors_of_sums_are_relative_to_the_magnitudes():
    x = np.random.default_rng(0).standard_normal((2, 3, 100)).astype(np.float32)
    (line,) = lp.plot.accumulation_error(*x, ["hopper_fp8"]).get_lines()
    a, b = (lp.round_to(part, "e4m3fn").astype(np.float64) for part in x)
    sums = lp.mma(*lp.encode(x, "e4m3fn"), accumulator="hopper_fp8", a_format="e4m3fn", b_format="e4m3fn")
    wrong = np.abs(sums - a @ b.T) / (np.abs(a) @ np.abs(b).T)
    assert line.get_xdata().tolist() == [32, 64, 100]
    assert line.get_ydata()[-1] == pytest.approx(wrong.max(), rel=1e-6)


def test_relative_errors_are_those_of_a_binade():
    x = np.random.default_rng(0).uniform(1, 4, (8, 512)).astype(np.float32)
    (line,) = lp.plot.relative_errors(x, ["e4m3fn"]).get_lines()
    for at, (low, error) in enumerate(zip((1, 2), line.get_ydata(), strict=True)):
        some = x[(x >= low) & (x < 2 * low)].astype(np.float64)
        relative = (lp.round_to(some.astype(np.float32), "e4m3fn") - some) / some
        assert line.get_xdata()[at] == low * 2**0.5
        assert error == pytest.approx(np.sqrt(np.mean(relative**2)), rel=1e-12)


def test_every_positive_value_of_a_format_is_a_tick():
    axes = lp.plot.format_values("e2m1fn", "int4")
    ticks = [[segment[0][0] for segment in lines.get_segments()] for lines in axes.collections]
    assert ticks == [[0.5], [1, 1.5, 2, 3, 4, 6], [], list(range(1, 8))]
    with pytest.raises(ValueError, match="format_values: fmts must have at most 10 bits, got bfloat16 with 16"):
        lp.plot.format_values("bfloat16")
