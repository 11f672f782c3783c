"""LogFMT on arrays: shapes, types, special values, packing, threads, and what is refused."""

import numpy as np
import pytest
from logfmt_tiles import B, F, gauss, same, tokens
from refusals import refusals

from lowprec import logfmt
from lowprec.logfmt import encode, from_bytes, unpack

# --- shapes, tiles, special values -----------------------------------------------------------------------------------


@pytest.mark.parametrize("tile", [1, 2, 7, 128, 129, 5000])
def test_tiles_of_any_length_do_not_see_each_other(tile):
    x = gauss(3, 2, 300)
    z = encode(x, 8, tile)
    assert z.shape == z.decode().shape == x.shape
    assert z.amin.shape == z.amax.shape == (3, 2, -(-300 // tile))
    for first in range(0, 300, tile):
        part = slice(first, first + tile)
        alone = encode(x[..., part], 8, 10**6)
        assert np.array_equal(z.codes[..., part], alone.codes)
        assert z.decode()[..., part].tobytes() == alone.decode().tobytes()
    assert same(unpack(z.pack(), 300, 8, tile, range_bits=64), z)
    assert tile > 1 or z.decode().tobytes() == x.tobytes()


@pytest.mark.parametrize("shape", [(0,), (0, 128), (4, 0), (3, 0, 5), (0, 9), (9, 0)])
@pytest.mark.parametrize("fallback", [None, "bf16"])
def test_nothing(shape, fallback):
    for axis in range(len(shape)):
        z = encode(np.zeros(shape, F), 8, 4, axis=axis, fallback=fallback, range_format="fp32")
        assert z.decode().shape == shape
        assert z.codes.size == z.bits_per_value == z.pack().size == 0
        assert from_bytes(z.to_bytes()) == z


@pytest.mark.parametrize(
    ("x", "codes"),
    [([0.0, -0.0, 0.0, -0.0], [0, 128, 0, 128]), ([-0.3, 0.3, 0.0, 0.3], [255, 127, 0, 127])],
    ids=["zeros", "constants"],
)
def test_zeros_and_constants(x, codes):
    z = encode(np.array(x, F))
    assert z.codes.tolist() == codes
    assert z.amin[0] == z.amax[0] == F(max(x))
    assert z.decode().tobytes() == np.array(x, F).tobytes()


def test_values_that_are_not_finite():
    x = np.ones((2, 300), F)
    x[1, 140], x[1, 299] = np.nan, -np.inf
    z = encode(x, nonfinite="poison")
    wanted = x.copy()
    wanted[1, 128:] = np.nan
    assert np.array_equal(z.decode(), wanted, equal_nan=True)
    assert unpack(z.pack(), 300, range_bits=32).decode().tobytes() == z.decode().tobytes()


# --- the wire --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", range(3, 17))
@pytest.mark.parametrize(("kind", "range_bits"), [(F, 64), (B, 32)])
def test_packing(bits, kind, range_bits):
    z = encode(gauss(3, 2, 300, seed=bits).astype(kind), bits)
    wire = z.pack()
    assert (z.range_bits, z.nbytes) == (range_bits, wire.size)
    assert same(unpack(wire, 300, bits, range_bits=range_bits), z)
    # One row by big integers: metadata first, then 16 * bits bytes a tile.
    row = np.stack([z.amin[2, 1], z.amax[2, 1]], axis=1).astype(kind).tobytes()
    for first in range(0, 300, 128):
        part = z.codes[2, 1, first : first + 128].tolist()
        stream = sum(code << (bits * i) for i, code in enumerate(part))
        row += stream.to_bytes(-(-len(part) * bits // 8), "little")
    assert wire[2, 1].tobytes() == row


def test_bits_per_value():
    x = gauss(4, 7168)
    assert encode(x, 8).bits_per_value == 8.5
    assert encode(x.astype(B), 10).bits_per_value == 10.25
    assert encode(x.astype(B), 10).nbytes == 4 * 9184  # as one DeepEP message of 7168 channels


# --- threads ---------------------------------------------------------------------------------------------------------


# --- refusals --------------------------------------------------------------------------------------------------------


def holding(value, shape=(3, 300), place=(1, 200)):
    x = gauss(*shape)
    x[place] = value
    return x


def with_ends(amin, amax):
    z = encode(gauss(2, 256))
    z.amin[1, 1], z.amax[1, 1] = amin, amax
    return z.pack()


def padded():
    wire = encode(gauss(1, 9), 5).pack()
    wire[0, -1] |= 0x80  # 45 bits are 6 bytes less 3 bits
    return wire


def too_wide():
    z = encode(gauss(4, 128), 5)
    z.codes[3, 3] = 200
    return z


def names():
    sent, fallen = (
        encode(tokens(3, 1536, sigma=0.27), variant="deepep"),
        encode(gauss(4, 2500, sigma=0.1), fallback="bf16"),
    )
    return {
        **globals(), "inf": np.inf, "nan": np.nan, "ones": np.ones(4, F), "wire": encode(np.ones(300, F)).pack(),
        "fallen": fallen.pack(), "sent": sent, "cut": sent.pack(), "two": np.array([1700, 3999]),
        "Units": logfmt.ApproxTables, "deepep": logfmt.deepep,
    }  # fmt: skip


OVERFLOW = "encode(holding({}), 8, fallback='bf16', range_format='fp32', nonfinite='poison')"
CUT, LARGE = "wire is cut short: row", "must not overflow bfloat16"
ENDS = r"row 1, tile 1: \(amin, amax\) must be 0 < amin <= amax, \(0, 0\) or \(0, NaN\), got"
test_refused = refusals(
    [
        ("encode(ones, bits=2)", "bits must be an integer from 3 to 16, got 2"),
        ("encode(ones, tile=0)", "tile must be an integer from 1 to.*got 0"),
        ("encode(ones, clamp_octaves=33)", "clamp_octaves must be an integer from 1 to 32, got 33"),
        ("encode(ones, variant='deep')", "variant must be 'paper' or 'deepep', got 'deep'"),
        ("encode(ones, nonfinite='drop')", "logfmt: nonfinite must be 'raise' or 'poison', got 'drop'"),
        ("encode(ones, rounding='up')", "rounding must be one of 'linear', 'log', 'logmean', 'stochastic', got 'up'"),
        ("encode(ones, range_format='fp16')", "range_format must be one of None, 'bf16', 'fp32', got 'fp16'"),
        ("encode(ones, fallback=True)", "fallback must be None or 'bf16', got True"),
        ("encode(ones, seed=-1)", "seed must be an integer from 0.*got -1"),
        *((f"encode(gauss(3, 4), axis={axis})", "axis must be an integer from -2 to 1,") for axis in (2, -3, 7)),
        # values
        ("logfmt.encode(1.0)", "logfmt: x must have one axis or more, got a single number"),
        ("encode(holding(nan, place=(1, 140)))", "x must be finite, got nan in row 1, tile 1; nonfinite='poison'"),
        ("encode(holding(inf, (4000, 128), (two, 5)))", "inf in row 1700, tile 0"),  # whatever the threads
        ("encode(holding(nan, (4, 2500), (3, 100)), fallback='bf16')", "nan in row 3, tile 0"),
        ("encode(np.arange(9) / 7)", r"x must hold float32 numbers, got 0.14285714285714285 in float64;"),
        ("encode(np.array([1.0, 1e300]))", r"x must hold float32 numbers, got 1e\+300 in float64"),
        ("encode(holding(3.4e38, place=(1, 5)), range_format='bf16')", rf"{LARGE}, got .*e\+38 in row 1, tile 0"),
        *(
            (OVERFLOW.format(value), f"{LARGE}, got .* in row 1, tile 1; use fallback=None")
            for value in ("3.4e38", "-3.4e38", "np.nextafter(F(3.3961776e38), F(np.inf))")
        ),
        # decoding
        ("too_wide().decode()", "logfmt: codes must be from 0 to 31, got 200"),
        # wires
        ("unpack(wire, 301, range_bits=32)", r"logfmt: wire must have 313 bytes per row of 301 values in 8 bits,"),
        ("unpack(wire, 300, range_bits=16)", "logfmt: range_bits must be 32 or 64, got 16"),
        ("unpack(wire, -1, range_bits=64)", "columns must be an integer >= 0, got -1"),
        ("unpack(wire.astype(np.int64), 300, range_bits=64)", r"logfmt: wire must be uint8 bytes in rows, got int64"),
        ("unpack(padded(), 9, 5, range_bits=64)", "logfmt: wire must have zero bits after 9 codes of 5 bits, got"),
        *(
            (f"unpack(with_ends({ends}), 256, range_bits=64)", ENDS)
            for ends in ("2, 1", "-1, 1", "0, 1", "1, 0", "1, inf", "nan, 1", "1, nan", "-0.0, -0.0")
        ),
        *(
            (f"unpack(fallen[:{size}], 2500, range_bits=64, fallback='bf16')", CUT)
            for size in (1, 159, 160, 2000, -1)
        ),
        ("unpack(fallen, 0, range_bits=64, fallback='bf16')", "logfmt: wire must be empty for rows of 0 values, got"),
        # DeepEP
        ("encode(tokens(1, 1000), variant='deepep')",
         "logfmt: channels must be a multiple of 512 with variant='deepep',"),
        ("encode(np.full(1024, 0.1, F), variant='deepep')",
         "x must hold bfloat16 numbers with variant='deepep', got"),
        ("encode(0.5, variant='deepep')", "logfmt: x must have one axis or more, got a single number"),
        *(
            (f"encode(ones, variant='deepep', {option}={value})",
             f"{option} must be .* with variant='deepep', got {value}")
            for option, value in {
                "bits": 8, "tile": 64, "axis": 0, "rounding": "'log'", "clamp_octaves": 8, "range_format": "'fp32'",
            }.items()
        ),
        ("encode(tokens(1, 1024), approx_tables=Units())",
         r"logfmt: approx_tables must be None with variant='paper', which has no"),
        ("encode(tokens(1, 1024), variant='deepep', approx_tables='H100')", TypeError,
         "logfmt: approx_tables must be a lowprec.logfmt.ApproxTables or None, got 'H100'"),
        ("Units(np.zeros(4, F))", r"logfmt: table log2 must be contiguous of shape \(32768,\), got shape \(4,\)"),
        ("Units(exp2_fractions=[1.0])", r"logfmt: table exp2_fractions must be a float32 array, got \[1.0\]"),
        *((f"deepep.unpack(cut[:{size}], 1536)", CUT) for size in (1, 47, 48, 700, -1)),
        ("deepep.unpack(cut[None], 1536)", r"logfmt: wire must be uint8 bytes with one axis, got uint8 \(1, 6288\)"),
        ("deepep.unpack(cut, 100)", "logfmt: channels must be a multiple of 512 with variant='deepep', got 100"),
        ("sent.decode(out=np.empty((3, 1536)))", r"out must be a C-contiguous float32 array of shape \(3, 1536\),"),
    ],
    names,
)  # fmt: skip
