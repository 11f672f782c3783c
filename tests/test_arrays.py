"""What every public function does alike with what it is given: arrays of something else, room for results, numbers."""

import ast
import itertools
import math
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from public_calls import OF_VALUES, ONES, QUANTIZED, bits
from refusals import refusals

import lowprec as lp
from lowprec import _arrays, _checks, codec, logfmt, study
from lowprec.measure.atlas import measure_errors

NOT_REAL = {
    "complex": ONES * 1j,
    "text": ONES.astype(str),
    "bytes": ONES.astype("S"),
    "dates": np.zeros((16, 128), "datetime64[s]"),
    "times": np.zeros((16, 128), "timedelta64[s]"),
    "objects": ONES.astype(object),
    "truth": ONES > 0,
    "records": np.zeros((16, 128), [("a", np.float32)]),
    "raw": np.zeros((16, 128), "V4"),
    "masked": np.ma.masked_greater(ONES, 2.0),
}


@pytest.mark.parametrize("what", NOT_REAL)
@pytest.mark.parametrize("name", OF_VALUES)
def test_only_real_numbers_are_taken(name, what):
    with pytest.raises(TypeError, match="values must be real numbers") as caught:
        OF_VALUES[name](NOT_REAL[what])
    assert str(caught.value).startswith(name.split()[0])


@pytest.mark.parametrize("name", OF_VALUES)
def test_neither_type_nor_layout_changes_a_bit(name):
    rng = np.random.default_rng(0)
    whole, x = rng.integers(1, 8, (16, 128)).astype(np.float32), rng.standard_normal((16, 128)).astype(np.float32)
    types = (np.float16, np.float64, np.int8, np.uint64, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ">f4", ">f2")
    layouts = np.asfortranarray(x), np.repeat(x, 2, axis=1)[:, ::2], x[::-1, ::-1].copy()[::-1, ::-1]
    before = x.tobytes()
    x.flags.writeable = False
    for plain, others in ((whole, map(whole.astype, types)), (x, layouts)):
        wanted = bits(OF_VALUES[name](plain))
        for same in others:
            assert bits(OF_VALUES[name](same)) == wanted, (same.dtype, same.strides)
    assert x.tobytes() == before


def test_arrays_of_ml_dtypes_are_codes():
    x = np.random.default_rng(0).standard_normal((4, 64)).astype(ml_dtypes.float8_e4m3fn)
    y = x.astype(np.float32).astype(ml_dtypes.float8_e5m2)
    codes = x.view(np.uint8)
    assert np.array_equal(lp.decode(x, "e4m3fn"), x.astype(np.float32))
    assert np.array_equal(lp.mma(x, x), lp.mma(codes, codes))
    assert np.array_equal(lp.mma(x, y), lp.mma(codes, y.view(np.uint8), b_format="e5m2"))
    for of, fmt in ((x, "e4m3fn"), (y, "e5m2")):
        assert lp.Quantized(of, np.ones((1, 1), np.float32), fmt, "tensor").codes.dtype == np.uint8
    with pytest.raises(TypeError, match="codes must be of e5m2, got float8_e4m3fn"):
        lp.decode(x, "e5m2")


# --- results in the memory of what they come from --------------------------------------------------------------------

N = 1 << 19  # bytes: several pieces of work
BYTES = np.random.default_rng(0).integers(0, 256, N, np.uint8)


def at(raw, start, kind):
    """Return the array of some type and shape that begins at a byte."""
    dtype, *shape = kind
    return raw[start : start + np.dtype(dtype).itemsize * math.prod(shape)].view(dtype).reshape(shape)


def quantize_onto(x, room):
    q = lp.quantize(x, "e4m3fn 1x128", out=lp.Quantized(room, np.ones((16, 4), np.float32), "e4m3fn", "1x128"))
    return np.concatenate([q.codes.reshape(-1), q.scale.reshape(-1).view(np.uint8)])


def logfmt_onto(given, out):
    z = logfmt.encode(np.linspace(-1, 1, given.size, dtype=np.float32))
    return logfmt.LogFMT(given & np.uint8(0x7F), z.amin, z.amax, 8).decode(out=out)


def deepep_onto(ends, out):
    z = logfmt.encode(lp.round_to(np.linspace(-1, 1, 512 * 128, dtype=np.float32), "bfloat16"), variant="deepep")
    return logfmt.DeepEPMessage(z.codes, z.amin, lp.round_to(np.abs(ends), "bfloat16"), z.approx_tables).decode(out=out)


COUNT = N // 8
F32, U8, ROWS, TILES = ("f4", COUNT), ("u1", COUNT), ("f4", 16, COUNT // 16), ("f4", 16, 512)
OVERLAPPING = {  # function of (input, room for the result), and what these are
    "encode": (lambda x, out: lp.encode(x, "e4m3fn", out=out), F32, U8),
    "encode 32": (lambda x, out: lp.encode(x, "float32", out=out), F32, ("u4", COUNT)),
    "decode": (lambda x, out: lp.decode(x, "e4m3fn", out=out), U8, F32),
    "round_to": (lambda x, out: lp.round_to(x, "e4m3fn", out=out), F32, F32),
    "by chance": (lambda x, out: lp.round_to(x, "e4m3fn", rounding="stochastic", seed=1, out=out), F32, F32),
    "pack": (lambda x, out: lp.pack(x, 8, out=out), U8, U8),
    "unpack": (lambda x, out: lp.unpack(x, 4, 2 * COUNT, out=out), U8, ("u1", 2 * COUNT)),
    "quantize": (quantize_onto, TILES, ("u1", 16, 512)),
    "quantize_dequantize": (lambda x, out: lp.quantize_dequantize(x, "e4m3fn 1x128", out=out), ROWS, ROWS),
    "dequantize": (
        lambda x, out: lp.Quantized(x, np.float32([[2.0]]), "e4m3fn", "tensor").dequantize(out=out),
        ("u1", 1, COUNT), ("f4", 1, COUNT),
    ),
    "dequantize scales": (
        lambda x, out: lp.Quantized(np.full((16, 512), 56, np.uint8), x, "e4m3fn", "1x128").dequantize(out=out),
        ("f4", 16, 4), TILES,
    ),
    "logfmt": (logfmt_onto, U8, F32),
    "deepep": (deepep_onto, ("f4", 512), ("f4", 512 * 128)),
    "matmul_f32": (lambda x, out: lp.matmul_f32(x, np.eye(64), out=out), ("f4", 64, 64), ("f4", 64, 64)),
}  # fmt: skip


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", OVERLAPPING)
@np.errstate(all="ignore")
def test_results_may_go_where_the_input_is(name):
    function, kind, room = OVERLAPPING[name]
    content = BYTES
    if kind[0] == "f4":  # bits of numbers that are finite
        content = np.random.default_rng(1).standard_normal(N // 4).astype(np.float32).view(np.uint8)
    for start, place in itertools.product((0, 4, 64, 4096), (0, 4, 128, 8192)):
        raw = content.copy()
        x = at(raw, start, kind)
        expected = function(x.copy(), np.empty_like(at(raw, place, room)))
        assert function(x, at(raw, place, room)).tobytes() == expected.tobytes(), (start, place)


def test_rounding_in_place_takes_no_memory_of_its_own():
    x = np.ones(COUNT, np.float32)
    assert _arrays.copy_if_overlapping(x, x, in_place=True) is x
    assert _arrays.copy_if_overlapping(x, x) is not x
    assert np.shares_memory(_arrays.copy_if_overlapping(x[:8], x[8:16]), x)


@pytest.mark.parametrize("quantizer", sorted(lp.quantizers))
def test_every_quantizer_works_in_place(quantizer):
    if lp.quantizers[quantizer].amax_history_len is not None:
        pytest.skip("it has a state, and is used through DelayedScaling")
    x = np.random.default_rng(0).standard_normal((128, 256), dtype=np.float32)
    with_specials = x.copy()
    with_specials[[3, 64, 64], [5, 17, 200]] = np.nan, np.inf, -np.inf
    multipliers = (None,) if lp.quantizers[quantizer].has_row_scales else (None, 0.75)
    for values, multiplier in ((x, None), *((with_specials, multiplier) for multiplier in multipliers)):
        options = {"spec": quantizer, "inverse_scale": multiplier}
        expected = lp.quantize_dequantize(values, **options).tobytes()
        assert lp.quantize(values, **options).dequantize().tobytes() == expected
        place = values.copy()
        assert lp.quantize_dequantize(place, **options, out=place) is place
        assert place.tobytes() == expected


ROOMS = [
    ([[0.0]], "list"), (np.empty((2, 2)), r"float64 \(2, 2\)"), (np.empty((2, 3), np.float32), r"float32 \(2, 3\)"),
    (np.empty((2, 2), ">f4"), r">f4 \(2, 2\)"), (np.empty((2, 4), np.float32)[:, ::2], "one that is not contiguous"),
    (np.ma.masked_array(np.empty((2, 2), np.float32)), "MaskedArray"),
    (np.broadcast_to(np.float32(0), (2, 2)), "one that is not contiguous"),
    (np.frombuffer(bytes(16), np.float32).reshape(2, 2), "a read-only one"),
]  # fmt: skip
WITH_ROOM = [
    "lp.round_to(x, 'e4m3fn', out=bad)", "lp.decode(np.zeros((2, 2), np.uint8), 'e4m3fn', out=bad)",
    "lp.quantize_dequantize(x, 'e4m3fn 1x128', out=bad)", "lp.quantize(x, 'e4m3fn 1x128').dequantize(out=bad)",
    "lp.matmul_f32(x, x, out=bad)", "lp.logfmt.encode(x).decode(out=bad)",
]  # fmt: skip
test_room_for_a_result_must_fit = refusals(
    (
        (
            call.replace("bad", f"rooms[{i}]"),
            rf"^\w+: out must be a C-contiguous float32 array of shape \(2, 2\), got {found}$",
        )
        for call in WITH_ROOM
        for i, (_, found) in enumerate(ROOMS)
    ),
    lambda: {"x": np.ones((2, 2), np.float32), "rooms": [bad for bad, _ in ROOMS]},
)


# --- numbers ---------------------------------------------------------------------------------------------------------


test_numbers_that_are_refused = refusals(
    [
        ("check_int('f', 'n', 0, 1, None)", "^f: n must be an integer >= 1, got 0$"),
        ("check_int('f', 'n', True, 1, None)", "^f: n must be an integer >= 1, got True$"),
        ("check_int('f', 'n', 2.0, 0, 3)", "^f: n must be an integer from 0 to 3, got 2.0$"),
        ("check_int('f', 'n', None, None, None)", "^f: n must be an integer, got None$"),
        ("check_int('f', 'n', -1, 0, 2**64 - 1)", r"^f: n must be an integer from 0 to 2\^64 - 1, got -1$"),
        ("check_int('f', 'n', 2**62 + 1, 0, 2**62)", rf"^f: n must be an integer from 0 to 2\^62, got {2**62 + 1}$"),
        ("check_int('f', 'n', np.array(3), 0, None)", r"^f: n must be an integer >= 0, got array\(3\)$"),
        ("check_optional_int('', 'n', 0, 1)", "^n must be an integer >= 1 or None, got 0$"),
        *((f"check_positive('f', 'x', {bad})", "f: x must be a finite number > 0, got .*")
          for bad in ("0", "-1.0", "float('nan')", "float('inf')", "True", "'1'", "None")),
        ("check_positive_float32('f', 'x', 1e300)", r"^f: x must be finite and > 0 in float32, got 1e\+300, there inf"),
        ("check_positive_float32('f', 'x', 1e-300)", "^f: x must be finite and > 0 in float32, got 1e-300, there 0.0"),
        ("lp.Quantizer(format='mxint8').with_(amax_floor=1e300)", r"amax_floor must be finite .* got 1e\+300"),
        ("lp.quantize(ones, 'mxint8 1x128 ue8m0', inverse_scale=1e300)",
         r"inverse_scale must be finite .* got 1e\+300"),
        ("lp.quantize(ones, 'mxint8 1x128 ue8m0', inverse_scale=1e-300)",
         "quantize: inverse_scale must be finite and >"),
        ("lp.quantize(ones, 'mxint8 1x128 ue8m0', tensor_amax=-1.0)", "quantize: tensor_amax must be a number >= 0"),
        ("lp.quantize(ones, 'nvfp4_te', tensor_amax=float('nan'))", "quantize: tensor_amax must be a number >= 0"),
    ],
    lambda: {**vars(_checks), "lp": lp, "ones": ONES},
)  # fmt: skip


def test_whole_numbers_of_numpy_are_whole_numbers():
    assert [type(_checks.check_int("f", "n", n, 0, 9)) for n in (3, np.int8(3), np.uint64(3))] == [int] * 3
    assert _checks.check_optional_int("f", "n", None) is None
    assert (_checks.check_positive("f", "x", np.float32(0.5)), _checks.check_positive("f", "x", 0, zero=True)) == (
        0.5,
        0.0,
    )


def test_numbers_in_float32():
    expected = {1e300: np.inf, -(2**2000): -np.inf, 5e-324: 0, 0.1: np.float32(0.1)}
    assert {x: _checks.check_float32("f", "x", x) for x in expected} == expected
    assert (
        _checks.check_positive_float32("f", "x", 0, zero=True)
        == _checks.check_positive_float32("f", "x", 1e-300, zero=True)
        == 0
    )


def test_numbers_beyond_float32_are_infinite_or_refused():
    """Without a warning, whoever takes them as float32."""
    q = lp.quantize(ONES, "nvfp4_te")
    for factor in (1e300, float("inf"), 2**2000):
        assert np.isinf(lp.gemm(QUANTIZED, QUANTIZED, alpha=factor)).all()
        assert np.isinf(lp.gemm(QUANTIZED, QUANTIZED, ONES[:, :16], beta=factor)).all()
        assert np.isinf(lp.gemm(q, q, accumulator="blackwell_nvfp4", alpha=factor)).all()
    assert np.isnan(lp.gemm(q, q, accumulator="blackwell_nvfp4", alpha=float("nan"))).all()
    amaxes = (1e300, 2**2000, float("inf"), np.float32(np.inf), np.float16(np.inf))
    assert len({lp.quantize(ONES, "nvfp4_te", tensor_amax=amax).codes.tobytes() for amax in amaxes}) == 1


CHECKS = {"check_int", "check_optional_int", "check_positive", "check_positive_float32", "check_real", "check_float32"}


@pytest.mark.slow
def test_a_number_that_was_checked_is_used_as_the_check_returns_it():
    """Where a check's result is dropped, NumPy's uint8 goes on and overflows later; objects plain all their fields."""
    dropped = []
    for path in sorted(Path(lp.__file__).parent.rglob("*.py")):
        for function in ast.walk(ast.parse(path.read_text())):
            if not isinstance(function, ast.FunctionDef):
                continue
            called = [
                (node, node.value.func.id) for node in ast.walk(function)
                if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
                and isinstance(node.value.func, ast.Name)
            ]  # fmt: skip
            based = any(isinstance(node, ast.Attribute) and node.attr == "__post_init__" for node in ast.walk(function))
            if not based and not {"normalize_fields", "check_whole"} & {name for _, name in called}:
                dropped += [f"{path.name}:{node.lineno} {name}" for node, name in called if name in CHECKS]
    assert dropped == []


def test_what_tiles_share_is_spread_over_values_and_no_further():
    """A tile may be longer than its row; nothing that long is made on the way."""
    for axis in (0, 1):
        for length, times in ((5, 2), (4, 2), (1, 7), (3, 3)):
            a = np.arange(-(-length // times) * 2).reshape((-1, 2) if axis == 0 else (2, -1))
            want = np.repeat(a, times, axis)[
                (slice(length), slice(None)) if axis == 0 else (slice(None), slice(length))
            ]
            assert np.array_equal(_arrays.repeat_tiles(a, times, length, axis), want)
    huge = 2**31 - 1
    long = codec.BlockCodec("huge", "e4m3fn", tile=huge)
    x = ONES.copy()
    x[3, 7] = np.inf
    wire = long.encode(x)
    assert long.from_bytes(long.to_bytes(wire), x.shape) == wire
    assert long.max_magnitudes(wire).shape == x.shape
    quantizer = lp.quantizers["mxfp8"].with_(inf_block="one")
    assert np.isnan(codec.BlockCodec("own", "e4m3fn", huge, "e8m0fnu", quantizer).round_trip(x)[3]).all()
    logarithmic = codec.LogFMTCodec("huge", 8, tile=huge)
    assert logarithmic.max_magnitudes(logarithmic.encode(ONES)).shape == x.shape
    q = lp.quantize(ONES, f"e4m3fn {huge}x{huge}")
    assert np.array_equal(lp.gemm(q, q), lp.gemm(QUANTIZED, QUANTIZED))
    assert np.array_equal(lp.quantize(ONES, f"mxint8 {huge}x{huge}").dequantize(), ONES)
    assert measure_errors(ONES, lp.Quantizer(granularity=f"{huge}x{huge}")).sqnr == np.inf
    assert lp.check(q, ONES, lp.Quantizer(granularity=f"{huge}x{huge}"))


_TILE = "tile must be an integer from 1 to 2147483647"
test_sizes_and_fields_that_are_refused_before_the_work = refusals(
    [
        *((f"codec.BlockCodec('own', 'e4m3fn', {wrong})", "codec own: .* must be") for wrong in (
            "tile=0", "tile=2**40", "tile=True", "tile=1.5", "quantizer='nvfp4_te'",
            "tensor_scale=True")),
        ("codec.BlockCodec('own', 'none')", KeyError, "unknown"),
        ("codec.BlockCodec('own', 'e4m3fn', scale_format='fp31')", KeyError, "unknown format 'fp31'"),
        ("codec.BlockCodec('own', 'e4m3fn', quantizer='none')", KeyError, "unknown"),
        ("codec.LogFMTCodec('own', bits=2)", "codec own: bits must be"),
        ("codec.LogFMTCodec('own', bits=17)", "codec own: bits must be"),
        ("codec.LogFMTCodec('own', 8, tile=0)", "codec own: tile must be"),
        ("codec.LogFMTCodec('own', 8, clamp_octaves=0)", "codec own: clamp_octaves must be"),
        ("codec.LogFMTCodec('own', 8, rounding='none')", "codec own: rounding must be"),
        ("codec.CastCodec('own', 'none')", KeyError, "unknown"),
        ("lp.train('nano', steps=2**64)", rf"steps must be an integer from 1 to 1000000000, got {2**64}"),
        ("lp.train('nano', steps=10**9 + 1)", r"steps must be an integer from 1 to 1000000000, got 1000000001"),
        ("study.CheckpointSize(seeds=2**64)", r"seeds must be an integer .*, got 18446744073709551616"),
        ("lp.Quantizer(amax_history_len=2**40)",
         r"Quantizer: amax_history_len must be from 1 to 2\^20, got 1099511627776"),
        ("lp.grouped_wgrad(q, q, [3, 4], align=2**40)", f"align={2**40}"),
        ("lp.grouped_wgrad(q, q, [3, 4], align=2**64)", f"align={2**64}"),
        ("lp.costs.uniform_nodes(2**40, 8, 2**40)", f"experts must be an integer from 1 to 65536, got {2**40}"),
        ("lp.costs.uniform_nodes(10**30, 8, 8)", f"experts must be an integer from 1 to 65536, got {10**30}"),
        ("lp.costs.measured_nodes([[1, 2]], 2**40, 2**40)", f"experts must be an integer from 1 to 65536, got {2**40}"),
        ("lp.costs.measured_nodes([[1, 2]], 10**30, 8)", f"experts must be an integer from 1 to 65536, got {10**30}"),
        ("lp.costs.uniform_nodes(64, 2**40, 8)", f"top_k must be an integer from 1 to 256, got {2**40}"),
        ("lp.hadamard(ones, 2**40)", "hadamard: x must have a multiple of size=1099511627776 values along the"),
        ("lp.hadamard(np.zeros((0, 2**20), np.float32), 2**40, signs='none')", "x must have a multiple of"),
        ("lp.logfmt.unpack(bytes_, 2**40, range_bits=32, fallback='bf16')", "cut short"),
        *((f"lp.logfmt.encode(ones, tile={tile})", f"{_TILE}, got {tile}") for tile in (2**31, 2**40, 2**64)),
        *((f"lp.logfmt.unpack(bytes_, 2, tile={tile}, range_bits=32)", f"{_TILE}, got {tile}")
          for tile in (2**31, 2**40, 2**64)),
        ("lp.quantize(ones, f'e4m3fn 1x{2**40}')", f"columns must be an integer from 1 to.*got {2**40}"),
    ],
    lambda: {"codec": codec, "study": study, "q": QUANTIZED, "ones": ONES, "bytes_": np.zeros(8, np.uint8)},
)  # fmt: skip


def test_sizes_beyond_the_array_are_taken():
    assert lp.hadamard(np.zeros((0, 2**40), np.float32), 2**40, signs="none").shape == (0, 2**40)
    assert logfmt.unpack(np.zeros(0, np.uint8), 2**30, range_bits=32, fallback="bf16").shape == (0, 2**30)
    for options in ({}, {"fallback": "bf16"}, {"axis": 0}):
        z = logfmt.encode(ONES, tile=2**31 - 1, **options)
        back = logfmt.from_bytes(z.to_bytes())
        assert z.decode().tobytes() == back.decode().tobytes() == ONES.tobytes()
        assert back.to_bytes() == z.to_bytes()
    assert lp.quantize(ONES, f"e4m3fn 1x{2**30}").scale.shape == (16, 1)
