"""Block quantization: scales and codes bit for bit against the oracle, and every shape and special block."""

from collections.abc import Iterator

import ml_dtypes
import numpy as np
import pytest

import lowprec as lp
from lowprec import oracle
from lowprec.scaling import job

FORMATS = ["e4m3fn", "e5m2", "e2m1fn", "e3m2fn", "e5m6"]
GRANULARITIES = ["1x128", "128x1", "128x128", "1x32", "1x16", "16x16", "7x5", "row", "column", "tensor"]
SCALES = ["fp32", "ue8m0"]


def blocks(shape: tuple[int, ...], block: tuple[int, int]) -> Iterator[tuple[tuple[int, int], tuple[slice, slice]]]:
    for i in range(0, shape[0], block[0]):
        for j in range(0, shape[1], block[1]):
            yield (i // block[0], j // block[1]), (slice(i, i + block[0]), slice(j, j + block[1]))


def check_against_oracle(x: np.ndarray, q: lp.Quantized, scale: str) -> int:
    """Compare every block with the oracle; returns how many values were compared."""
    for at, part in blocks(x.shape, q.granularity.block(x.shape)):
        codes, s = oracle.quantize_tile(x[part].ravel(), q.format, scale)
        assert q.scale[at].tobytes() == s.tobytes(), at
        assert q.codes[part].ravel().tolist() == list(codes), (at, part)
    return x.size


@pytest.mark.sampled(1)
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_ragged_matrix_against_oracle(granularity: str, scale: str) -> None:
    rng = np.random.default_rng(7)
    x = (rng.standard_normal((37, 73)) * np.exp2(rng.integers(-30, 30, (37, 1)))).astype(np.float32)
    x[3, :40] = 0
    for fmt in FORMATS:
        q = lp.quantize(x, fmt, granularity, scale=scale)
        assert check_against_oracle(x, q, scale) == x.size


@pytest.mark.sampled(1)
@pytest.mark.parametrize("scale", SCALES)
def test_scales_at_every_power_of_two(scale: str) -> None:
    """Every 2^k and max * 2^k with their neighbours, subnormals included: one tile for each."""
    top = lp.formats["e4m3fn"].max
    powers = np.array([2.0**k for k in range(-149, 128)], np.float32)
    scaled = np.float32(top) * powers[powers < 2.0**119]
    centres = np.concatenate([powers, 1.75 * powers, scaled]).astype(np.float32)
    amax = np.concatenate([centres, np.nextafter(centres, np.float32(0)), np.nextafter(centres, np.float32(np.inf))])
    amax = amax[np.isfinite(amax)]
    x = np.stack([amax, -amax / np.float32(3), np.zeros_like(amax)], axis=1)
    assert check_against_oracle(x, lp.quantize(x, "e4m3fn", "1x128", scale=scale), scale) == 3 * amax.size


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
def test_a_block_with_nan_or_inf_is_all_nan_and_alone(bad: float, scale: str) -> None:
    x = np.ones((4, 256), np.float32)
    x[1, 200] = bad
    values = lp.quantize(x, "e4m3fn", "1x128", scale=scale).dequantize()
    assert np.isnan(values[1, 128:]).all()
    values[1, 128:] = 1
    assert (values == 1).all()


def test_zeros_keep_their_sign_and_get_scale_one() -> None:
    x = np.array([[0.0, -0.0, 0.0, -0.0]], np.float32)
    q = lp.quantize(x, "e4m3fn")
    assert q.scale.tolist() == [[1.0]]
    assert np.signbit(q.dequantize()).tolist() == [[False, True, False, True]]


def test_amax_floor_and_named_rules() -> None:
    x = np.full((1, 128), 1e-6, np.float32)
    assert lp.quantize(x, "e4m3fn").dequantize()[0, 0] == np.float32(1e-6)
    floored = lp.quantize(x, "e4m3fn", quantizer="dsv3_inference")
    assert floored.scale[0, 0] == np.float32(np.float32(1e-4) / np.float32(448))
    assert (
        lp.quantize(x, "e4m3fn", quantizer="dsv3_inference", amax_floor=0.0).scale[0, 0]
        == lp.quantize(x, "e4m3fn").scale[0, 0]
    )


def test_division_and_reciprocal_differ_as_their_arithmetic_says() -> None:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((2048, 128), dtype=np.float32).astype(ml_dtypes.bfloat16).astype(np.float32)
    divided = lp.quantize(x, "e4m3fn")
    multiplied = lp.quantize(x, "e4m3fn", division="reciprocal")
    s = divided.scale
    assert (multiplied.scale == s).all()
    assert (divided.codes == lp.encode(x / s, "e4m3fn")).all()
    assert (multiplied.codes == lp.encode(x * (np.float32(1) / s), "e4m3fn")).all()
    share = (divided.codes != multiplied.codes).mean()
    assert 1e-5 < share < 1e-2, "the two rules are different, but rarely"


def test_transposing_is_quantizing_the_transpose() -> None:
    x = np.random.default_rng(0).standard_normal((200, 300), dtype=np.float32)
    for granularity, turned in (("128x1", "1x128"), ("128x128", "128x128"), ("1x32", "32x1"), ("row", "column")):
        ours = lp.quantize(x, "e4m3fn", granularity).T
        other = lp.quantize(np.ascontiguousarray(x.T), "e4m3fn", turned)
        assert str(ours.granularity) == turned
        assert (ours.codes == other.codes).all()
        assert (ours.scale == other.scale).all()


@pytest.mark.parametrize("shape", [(0, 128), (5, 0), (0, 0), (128,), (0,), (2, 3, 200)])
def test_any_shape(shape: tuple[int, ...]) -> None:
    x = np.ones(shape, np.float32)
    q = lp.quantize(x, "e4m3fn")
    assert q.codes.shape == shape
    assert (q.dequantize() == x).all()
    assert np.asarray(q).shape == shape


def test_strided_readonly_and_other_types() -> None:
    base = np.random.default_rng(0).standard_normal((64, 512)).astype(np.float32)
    expected = lp.quantize(np.ascontiguousarray(base[::2, ::3]), "e4m3fn").codes
    base.flags.writeable = False
    assert (lp.quantize(base[::2, ::3], "e4m3fn").codes == expected).all()
    half = base.astype(np.float16)
    assert (lp.quantize(half, "e4m3fn").codes == lp.quantize(half.astype(np.float32), "e4m3fn").codes).all()
    brain = base.astype(ml_dtypes.bfloat16)
    assert (lp.quantize(brain, "e4m3fn").codes == lp.quantize(brain.astype(np.float32), "e4m3fn").codes).all()


def test_threads_do_not_change_bits(keep_threads: None) -> None:
    x = np.random.default_rng(0).standard_normal((1000, 1500), dtype=np.float32)
    for granularity in ("1x128", "128x1", "128x128", "tensor"):
        answers = []
        for threads in (1, 2, 5):
            lp.set_num_threads(threads)
            q = lp.quantize(x, "e4m3fn", granularity)
            answers.append((q.codes.tobytes(), q.scale.tobytes(), q.dequantize().tobytes()))
        assert answers[0] == answers[1] == answers[2]


def test_storage_counts_codes_and_scales() -> None:
    x = np.zeros((128, 576), np.float32)
    assert lp.quantize(x, "e4m3fn").nbytes == 128 * 576 + 4 * 128 * 5
    assert lp.quantize(x, "e4m3fn", scale="ue8m0").nbytes == 128 * 576 + 128 * 5
    assert lp.quantize(x, "e2m1fn", "1x16").bits_per_value == 4 + 32 / 16
    assert lp.quantize(x, "e5m6", "128x128").nbytes == 128 * 576 * 12 // 8 + 4 * 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"granularity": "1x"}, "granularity='1x': rows x columns"),
        ({"granularity": "0x128"}, "granularity='0x128'"),
        ({"granularity": 128}, "granularity=128"),
        ({"scale": "fp16"}, "scale='fp16': 'fp32', 'ue8m0'"),
        ({"division": "shift"}, "division='shift'"),
        ({"amax_floor": -1.0}, "amax_floor=-1.0: a finite number >= 0"),
        ({"amax_floor": np.nan}, "amax_floor=nan"),
        ({"quantizer": "dsv3_inferenc"}, "unknown quantizer 'dsv3_inferenc': did you mean 'dsv3_inference'"),
        ({"fmt": "e8m0fnu"}, "e8m0fnu cannot be an element format"),
        ({"fmt": "fp22"}, "fp22 cannot be an element format"),
        ({"fmt": "e4m3fm"}, "did you mean 'e4m3fn'"),
    ],
)
def test_bad_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        lp.quantize(np.ones((2, 2)), **{"fmt": "e4m3fn", **options})
    assert message in str(caught.value)


def test_bad_arrays() -> None:
    with pytest.raises(TypeError, match="real numbers are needed"):
        lp.quantize(np.array(["a"]), "e4m3fn")
    with pytest.raises(TypeError, match="complex"):
        lp.quantize(np.ones((2, 2), complex), "e4m3fn")
    q = lp.quantize(np.ones((2, 2)), "e4m3fn")
    with pytest.raises(ValueError, match=r"out is float64 \(2, 2\), needed is contiguous float32"):
        q.dequantize(out=np.ones((2, 2)))
    with pytest.raises(ValueError, match="for matrices"):
        _ = lp.quantize(np.ones((2, 2, 2)), "e4m3fn").T


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("columns", [16, 48, 1024])
def test_every_nan_of_a_transform_has_the_same_bits(axis, columns):
    """The sign of Inf - Inf, and of a NaN that is added, would depend on which loop computes it."""
    x = np.random.default_rng(0).choice([1.0, -np.inf, np.inf, -np.nan, np.nan], (64, columns)).astype(np.float32)
    y = lp.hadamard(x, axis=axis)
    assert np.isnan(y).any()
    assert set(y[np.isnan(y)].view(np.uint32).tolist()) == {0x7FC00000}


@pytest.mark.parametrize("quantizer", ["nvfp4_te", "mxfp8_floor", "te_block", "te_current", "nvfp4_modelopt"])
def test_values_written_past_the_caches_are_the_same(quantizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole and ragged blocks, arrays that begin anywhere, over the input, NaN and Inf."""
    rng = np.random.default_rng(2)
    for shape in ((40, 512), (33, 250), (3, 20000)):
        x = (rng.standard_normal(shape) * np.exp2(rng.integers(-9, 9, (shape[0], 1)))).astype(np.float32)
        x[0, 3], x[1, 5], x[2, :9] = np.nan, np.inf, -0.0
        wanted = lp.quantize(x, quantizer=quantizer).dequantize()
        for least in (0, 1 << 60):
            monkeypatch.setattr(job, "STREAMED", least)
            for start in range(5):
                out = np.empty(x.size + start, np.float32)[start:].reshape(shape)
                lp.quantize_dequantize(x, quantizer=quantizer, out=out)
                assert np.array_equal(out.view(np.uint32), wanted.view(np.uint32))
            own = x.copy()
            lp.quantize_dequantize(own, quantizer=quantizer, out=own)
            assert np.array_equal(own.view(np.uint32), wanted.view(np.uint32))
