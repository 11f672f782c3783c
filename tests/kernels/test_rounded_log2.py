"""log2 and 2**y of float32 numbers are correctly rounded: every doubtful input is listed and given to mpmath."""

import mpmath
import numpy as np
import pytest

from lowprec._jit import float32_from_bits, kernel
from lowprec.kernels.logfmt import rounded_log2
from lowprec.kernels.logfmt.deepep import fill_log2

F = np.float32
LOG, POWER = False, True
mpmath.mp.prec = 200
UP, DOWN = 1 + 2 * rounded_log2.RELATIVE_ERROR, 1 - 2 * rounded_log2.RELATIVE_ERROR


@kernel
def _doubtful(power, first, last, out):
    """List the inputs, by their bits, of which the float64 number may lie on either side of a tie."""
    n = 0
    for u in range(first, last):
        x = float32_from_bits(np.uint32(u))
        v = rounded_log2.exp2_float64(x) if power else rounded_log2.log2_float64(x)
        if np.float32(v * UP) != np.float32(v * DOWN):
            out[n] = u
            n += 1
    return n


@kernel
def _results(x, logs, powers):
    for i in range(x.size):
        logs[i] = rounded_log2.log2_rounded(x[i])
        powers[i] = rounded_log2.exp2_rounded(x[i])


def results(x):
    x = np.asarray(x, F)
    logs, powers = np.empty_like(x), np.empty_like(x)
    _results(x, logs, powers)
    return logs, powers


def nearest(value):
    """The float32 number nearest to an mpmath number that is no tie."""
    near = F(float(value))
    around = [np.nextafter(near, F(-np.inf)), near, np.nextafter(near, F(np.inf))]
    return min(around, key=lambda candidate: abs(mpmath.mpf(float(candidate)) - value))


def exact_log(x):
    return nearest(mpmath.log(mpmath.mpf(float(x)), 2))


def exact_power(y):
    return nearest(mpmath.mpf(2) ** mpmath.mpf(float(y)))


def bits_of(x):
    return int(np.array(x, F).view(np.uint32))


def check(power, first, last):
    """All inputs first .. last - 1, by their bits: return how many were doubtful."""
    found, out, exact = 0, np.empty(1 << 16, np.uint32), exact_power if power else exact_log
    for start in range(first, last, 1 << 26):
        n = _doubtful(power, start, min(last, start + (1 << 26)), out)
        assert n < out.size
        got = results(out[:n].view(F))[power]
        assert [float(v) for v in got] == [float(exact(x)) for x in out[:n].view(F)]
        found += n
    return found


@pytest.mark.slow
def test_every_log2_that_deepep_takes():
    """All bfloat16 magnitudes one by one, and (1 + 2^step) / 2 for every step of up to 32 octaves / 510."""
    table = np.empty(1 << 15, F)
    fill_log2(table)
    x = (np.arange(1 << 15, dtype=np.uint32) << np.uint32(16)).view(F)
    assert table[0] == -np.inf
    assert table[0x7F80] == np.inf
    assert np.isnan(table[0x7F81:]).all()
    assert table[1:0x7F80].tolist() == [float(exact_log(v)) for v in x[1:0x7F80]]
    check(LOG, bits_of(1), bits_of(1.0223))


@pytest.mark.slow
def test_the_powers_at_steps():
    check(POWER, bits_of(1e-5), bits_of(0.0628))


def test_the_two_that_float64_gets_wrong():
    hard = np.array([0x3B429D37, 0xBCF3A937], np.uint32).view(F)
    assert results(hard)[1].tolist() == [float(exact_power(y)) for y in hard]
    assert [float(F(rounded_log2.exp2_float64(y))) for y in hard] != results(hard)[1].tolist()


def test_samples_of_everything():
    rng = np.random.default_rng(0)
    x = np.concatenate([
        rng.integers(1, 0x7F800000, 3000, np.uint32).view(F), np.exp2(np.arange(-149, 128)).astype(F),
        1 + np.arange(-50, 50).astype(F) * F(2.0**-24),
    ])  # fmt: skip
    assert results(x)[0].tolist() == [float(exact_log(v)) for v in x]
    y = np.concatenate([rng.uniform(-152, 127.9, 3000), np.arange(-149, 128), rng.uniform(-1e-6, 1e-6, 200)]).astype(F)
    assert results(y)[1].tolist() == [float(exact_power(v)) for v in y]


def test_the_ends():
    logs, powers = results([0.0, -0.0, -1.0, np.inf, np.nan])
    assert logs[:2].tolist() == [-np.inf, -np.inf]
    assert np.isnan(logs[[2, 4]]).all()
    assert logs[3] == np.inf
    assert powers[:4].tolist() == [1, 1, 0.5, np.inf]
    assert np.isnan(powers[4])
    assert results([-np.inf, 128, 3e38, -150, -149.5, -3e38])[1].tolist() == [0, np.inf, np.inf, 0, 2.0**-149, 0]


@pytest.mark.exhaustive
def test_every_float32_number():
    assert check(LOG, 1, 0x7F800000) == 128
    assert check(POWER, 1, bits_of(150)) == 5
    assert check(POWER, 0x80000001, bits_of(-153)) == 7
