"""LogFMT on arrays: shapes, types, special values, packing, threads and arguments."""

import ml_dtypes
import numpy as np
import pytest

from lowprec import _threads, logfmt
from lowprec.logfmt import encode, unpack

F = np.float32

# --- shapes, tiles, special values -----------------------------------------------------------------------------------


def test_tiles_do_not_see_each_other():
    x = np.random.default_rng(2).standard_normal((3, 2, 300)).astype(F)
    z = encode(x)
    assert z.shape == z.decode().shape == (3, 2, 300)
    assert z.amin.shape == z.amax.shape == (3, 2, 3)
    for i in range(3):
        for first, last in ((0, 128), (128, 256), (256, 300)):
            alone = encode(x[i, 1, first:last])
            assert np.array_equal(z.codes[i, 1, first:last], alone.codes)
            assert z.decode()[i, 1, first:last].tobytes() == alone.decode().tobytes()


def test_views_that_are_not_contiguous():
    x = np.random.default_rng(2).standard_normal((256, 130)).astype(F)
    assert np.array_equal(encode(x.T).codes, encode(np.ascontiguousarray(x.T)).codes)


@pytest.mark.parametrize("shape", [(0,), (0, 128), (4, 0)])
def test_nothing(shape):
    z = encode(np.zeros(shape, F))
    assert z.decode().shape == shape
    assert z.codes.size == z.bits_per_value == 0
    assert z.pack().size == 0


def test_zeros_and_constants():
    x = np.array([0.0, -0.0, 0.0, -0.0], F)
    z = encode(x)
    assert z.codes.tolist() == [0, 128, 0, 128]
    assert (z.amin[0], z.amax[0]) == (0, 0)
    assert z.decode().tobytes() == x.tobytes()
    x = np.array([-0.3, 0.3, 0.0, 0.3], F)
    z = encode(x)
    assert z.codes.tolist() == [255, 127, 0, 127]
    assert z.decode().tobytes() == x.tobytes()


def test_values_that_are_not_finite():
    x = np.ones((2, 300), F)
    x[1, 140] = np.nan
    x[1, 299] = -np.inf
    with pytest.raises(ValueError, match=r"logfmt: nan in row 1, tile 1; use nonfinite='poison'"):
        encode(x)
    z = encode(x, nonfinite="poison")
    y = z.decode()
    assert np.array_equal(np.isnan(y).all(axis=0), np.zeros(300, bool))
    assert np.isnan(y[1, 128:]).all()
    assert np.array_equal(y[0], x[0])
    assert np.array_equal(y[1, :128], x[1, :128])
    assert unpack(z.pack(), 300, meta_bits=32).decode().tobytes() == y.tobytes()


def test_types_that_float32_holds():
    x = np.random.default_rng(0).standard_normal(128)
    for dtype in (np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn):
        narrow = x.astype(dtype)
        assert np.array_equal(encode(narrow).codes, encode(narrow.astype(F)).codes)
    assert np.array_equal(encode(x.astype(F).astype(np.float64)).codes, encode(x.astype(F)).codes)
    assert np.array_equal(encode([1, 2, 3]).codes, encode(np.array([1, 2, 3], F)).codes)
    with pytest.raises(ValueError, match=r"float64 value .* is no float32 number; round the array first"):
        encode(x)
    with pytest.raises(ValueError, match=r"1e\+300\) is no float32 number"):
        encode(np.array([1.0, 1e300]))
    for bad in (np.array(["1"]), np.array([1j]), np.array([True])):
        with pytest.raises(TypeError, match="real numbers are needed"):
            encode(bad)


# --- the wire --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", range(3, 17))
def test_packing(bits):
    x = np.random.default_rng(bits).standard_normal((3, 2, 300)).astype(F)
    for values, meta_bits in ((x, 64), (x.astype(ml_dtypes.bfloat16), 32)):
        z = encode(values, bits)
        wire = z.pack()
        assert (z.meta_bits, z.nbytes) == (meta_bits, wire.size)
        back = unpack(wire, 300, bits, meta_bits=meta_bits)
        assert np.array_equal(back.codes, z.codes)
        assert back.decode().tobytes() == z.decode().tobytes()
        # One row by big integers: metadata first, then 16 * bits bytes a tile.
        kind = F if meta_bits == 64 else ml_dtypes.bfloat16
        row = b"".join(
            F(v).astype(kind).tobytes() for pair in zip(z.amin[2, 1], z.amax[2, 1], strict=True) for v in pair
        )
        for first in range(0, 300, 128):
            part = z.codes[2, 1, first : first + 128].tolist()
            stream = sum(code << (bits * i) for i, code in enumerate(part))
            row += stream.to_bytes(-(-len(part) * bits // 8), "little")
        assert wire[2, 1].tobytes() == row


def test_bits_per_value():
    x = np.random.default_rng(0).standard_normal((4, 7168)).astype(F)
    assert encode(x, 8).bits_per_value == 8.5
    assert encode(x.astype(ml_dtypes.bfloat16), 10).bits_per_value == 10.25
    assert encode(x.astype(ml_dtypes.bfloat16), 10).nbytes == 4 * 9184  # as one DeepEP message of 7168 channels


def test_bad_wires():
    z = encode(np.ones(300, F))
    with pytest.raises(ValueError, match=r"wire is uint8 \(312,\); rows of 301 values in 8 bits are 313 uint8"):
        unpack(z.pack(), 301, meta_bits=32)
    with pytest.raises(ValueError, match="meta_bits=16: 32 or 64"):
        unpack(z.pack(), 300, meta_bits=16)


# --- threads and arguments --------------------------------------------------------------------------------------------


def test_threads_change_nothing():
    x = np.random.default_rng(0).standard_normal((300, 1000)).astype(F)
    before = _threads.get_num_threads()
    seen = set()
    try:
        for threads in (1, 2, 3):
            _threads.set_num_threads(threads)
            z = encode(x, 10)
            seen.add((z.codes.tobytes(), z.amin.tobytes(), z.amax.tobytes(), z.decode().tobytes()))
    finally:
        _threads.set_num_threads(before)
    assert len(seen) == 1


def test_the_first_bad_tile_is_named_whatever_the_threads():
    x = np.ones((4000, 128), F)
    x[3999, 5] = x[1700, 3] = np.inf
    with pytest.raises(ValueError, match="inf in row 1700, tile 0"):
        encode(x)


def test_out():
    x = np.random.default_rng(0).standard_normal((4, 200)).astype(F)
    z, out = encode(x), np.empty((4, 200), F)
    assert z.decode(out=out) is out
    assert out.tobytes() == z.decode().tobytes()
    for bad in (np.empty((4, 201), F), np.empty((4, 200)), np.empty((200, 4), F).T):
        with pytest.raises(ValueError, match=r"needed is contiguous float32 \(4, 200\)"):
            z.decode(out=bad)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"bits": 2}, ValueError, "bits=2: a whole number from 3 to 16"),
        ({"bits": 17}, ValueError, "bits=17"),
        ({"bits": 8.0}, ValueError, "bits=8.0"),
        ({"tile": 0}, ValueError, "tile=0: a whole number from 1 to"),
        ({"clamp_octaves": 33}, ValueError, "clamp_octaves=33: a whole number from 1 to 32"),
        ({"mode": "deep"}, ValueError, "mode='deep': 'paper' or 'deepep' is needed"),
        ({"nonfinite": "drop"}, ValueError, "nonfinite='drop': 'raise' or 'poison'"),
    ],
)
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        encode(np.ones(4, F), **arguments)


def test_a_number_is_no_array():
    with pytest.raises(ValueError, match="a single number has no tiles"):
        logfmt.encode(1.0)
