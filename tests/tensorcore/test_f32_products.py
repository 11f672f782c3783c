"""Sums that are rounded as they leave the tile, rounding in place, and memory that stays."""

import platform
import subprocess
import sys

import numpy as np
import pytest

import lowprec as lp
from lowprec._threads import keep_freed_memory
from lowprec.cast.casts import round_in_place


def operand(rng, rows, k):
    x = rng.standard_normal((rows, k)).astype(np.float32) * np.exp2(rng.integers(-70, 60, (rows, 1))).astype(np.float32)
    x[rng.random(x.shape) < 0.05] = 0
    return x


@pytest.mark.parametrize("fmt", ["bfloat16", "e4m3fn", "float32"])
@pytest.mark.parametrize(("m", "n", "k"), [(5, 3, 7), (130, 70, 33), (4, 64, 128), (1, 1, 0), (0, 3, 4), (700, 200, 6)])
def test_rounding_at_the_end_is_rounding_afterwards(fmt, m, n, k):
    rng = np.random.default_rng(m)
    a, b = operand(rng, m, k), operand(rng, n, k)
    if m and k > 3:
        a[m // 2, 1], b[n // 2, 2], a[0, 3] = np.inf, np.nan, 3e38
    with np.errstate(all="ignore"):
        sums = lp.matmul_f32(a, b)
        want = sums if fmt == "float32" else lp.round_to(sums, fmt)  # which gives NaN other bits
        for x, y in ((a, b), (np.asfortranarray(a), b), (a, np.asfortranarray(b))):
            assert lp.matmul_f32(x, y, out_format=fmt).tobytes() == want.tobytes()
        out = np.full((m, n), np.nan, np.float32)
        assert lp.matmul_f32(a, b, out, out_format=fmt) is out
        assert out.tobytes() == want.tobytes()


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_do_not_change_a_bit(threads, keep_threads):
    rng = np.random.default_rng(0)
    a, b = operand(rng, 4100, 130), operand(rng, 300, 130)
    want = lp.matmul_f32(a, b)
    lp.set_num_threads(threads)
    for x in (a, np.asfortranarray(a)):
        assert lp.matmul_f32(x, b).tobytes() == want.tobytes()


@pytest.mark.parametrize("fmt", ["bfloat16", "e4m3fn", "float32"])
def test_rounding_in_place_is_round_to(fmt):
    x = np.random.default_rng(0).standard_normal(100_000).astype(np.float32)
    x[:4] = np.nan, np.inf, -0.0, 3e38
    want = lp.round_to(x, fmt)
    assert round_in_place(x, lp.formats[fmt]) is x
    assert x.tobytes() == want.tobytes()
    with pytest.raises(ValueError, match="contiguous"):
        round_in_place(np.ones((4, 4), np.float32)[:, ::2], lp.formats[fmt])


def test_memory_is_kept_unless_the_environment_says_no(monkeypatch):
    assert keep_freed_memory() == (platform.libc_ver()[0] == "glibc")
    code = "from lowprec._threads import keep_freed_memory; print(keep_freed_memory())"
    monkeypatch.setenv("LOWPREC_KEEP_MEMORY", "0")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
