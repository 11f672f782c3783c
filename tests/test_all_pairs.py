"""All pairs of catalogue entries: a result equal to a slower one's, or an error of ours that says what fits.

Nothing may end in a compiler's error: what a user can write down is computed or refused.
"""

import functools
import itertools
import re

import numpy as np
import pytest

import lowprec as lp
from lowprec.measure import metrics

FORMATS = lp.formats.names()
ELEMENTS = [name for name in FORMATS if lp.formats[name].signed and lp.formats[name].bits <= 16]
QUANTIZERS = [name for name in lp.quantizers.names() if lp.quantizers[name].amax_history_len is None]
ACCUMULATORS = lp.accumulators.names()
PROMOTIONS = ("auto", None, 16, 96, 128)
#: Those that split K in other ways have tests/tensorcore/test_splits.py.
USUAL_LIBRARIES = [name for name in lp.gemm_libraries if lp.gemm_libraries[name].has_usual_parts]
BLOCKS = (("1x128", "128x128"), ("1x32", "1x32"), ("1x16", "1x16"), ("row", "row"), ("tensor", "tensor"))
#: What an error of ours says: what is needed, allowed, or what does not go together with what.
SAYS_WHAT_FITS = re.compile(
    r"can\b|needed|needs|takes?\b|multiple|divide|change|no number|compares|positive|given|too wide|one of|must|fit"
)


def same_bits(a, b):
    """Compare arrays bit by bit, any NaN being NaN."""
    a, b = np.asarray(a), np.asarray(b)
    assert (a.dtype, a.shape) == (b.dtype, b.shape)
    nan = np.isnan(a)
    return np.array_equal(nan, np.isnan(b)) and np.array_equal(a[~nan].view(np.uint32), b[~nan].view(np.uint32))


def or_refused(function, *arguments, **options):
    """Return a result, or None if it is refused in words that help."""
    try:
        return function(*arguments, **options)
    except ValueError as error:
        output = str(error)
    assert SAYS_WHAT_FITS.search(output), (options, output)
    return None


def values(rows, columns, seed=0):
    """Return numbers of some magnitudes, zeros among them."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, columns)) * np.exp2(rng.integers(-4, 5, (rows, columns)))
    x[0, :2] = 0.0, -0.0
    return x.astype(np.float32)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("quantizer", QUANTIZERS)
def test_every_format_in_every_quantizer(quantizer):
    x, done = values(16, 64), 0
    for fmt in FORMATS:
        q = or_refused(lambda fmt=fmt: lp.quantize(x, lp.quantizers[quantizer].with_(format=fmt)))
        if q is None:
            continue
        done += 1
        if not q.quantizer.has_row_scales:  # which check refuses
            found = lp.check(q, x)
            assert found, fmt
            if lp.quantizers[quantizer].rule.four_over_six is None:  # the same in NumPy, with a general cast
                assert np.array_equal(q.codes, found.made.cast(found.made.v)), fmt
        rows, columns = q.granularity.block(x.shape)
        spread = np.repeat(np.repeat(q.scale, rows, 0), columns, 1)[: x.shape[0], : x.shape[1]]
        slowly = spread * lp.decode(q.codes, fmt) * np.float32(1 if q.tensor_scale is None else q.tensor_scale)
        assert same_bits(q.dequantize(), slowly), fmt
        assert same_bits(lp.quantize_dequantize(x, q.quantizer), q.dequantize()), fmt
        by_chance = or_refused(lp.quantize, x, q.quantizer, rounding="stochastic", seed=1)
        assert by_chance is None or by_chance.codes.shape == x.shape
    assert done >= 8


@pytest.mark.parametrize("fmt", FORMATS)
def test_what_is_said_to_be_quantized_is_dequantized(fmt):
    """Codes of every format that somebody brings along, with any granularity."""
    f = lp.formats[fmt]
    codes = np.arange(60, dtype=np.uint64) % (1 << f.bits)
    codes = codes.astype(f.code_dtype).reshape(4, 15)
    for block in ("1x5", "tensor", "row", "column", "2x4"):
        granularity = lp.Granularity.parse(block)
        scale = np.full(granularity.scale_shape((4, 15)), 0.75, np.float32)
        q = lp.Quantized(codes, scale, fmt, block)
        with np.errstate(over="ignore", invalid="ignore"):
            assert same_bits(q.dequantize(), np.float32(0.75) * lp.decode(codes, fmt))
            assert np.asarray(q).shape == (4, 15)
        if fmt in ELEMENTS:
            again = or_refused(q.requantize, "1x3")
            assert again is None or again.shape == (4, 15)


def product(qa, qb, accumulator, **options):
    """Return the product of the kernels in use, and that of the reference."""
    fast = lp.gemm(qa, qb, accumulator=accumulator, **options)
    with lp.use_kernel("reference"):
        return fast, lp.gemm(qa, qb, accumulator=accumulator, **options)


def operands(fmt, block_a, block_b, scale):
    """Return two quantized matrices."""
    quantizer = lp.Quantizer(
        scale_format=scale, rule=lp.AmaxRule("block_scale_only" if scale == "e4m3fn" else "amax/max")
    )
    sides = ((2, block_a, 1), (3, block_b, 2))
    return [
        lp.quantize(values(rows, 256, seed), quantizer.with_(format=fmt, granularity=block))
        for rows, block, seed in sides
    ]


def formats_of(accumulator):
    """Return two formats that it takes and that can be quantized."""
    taken = [name for name in ELEMENTS if lp.accumulators[accumulator].accepts(lp.formats[name])]
    return taken[:1] + taken[-1:] if len(taken) > 1 else taken


@pytest.mark.sampled(12)
@pytest.mark.parametrize("accumulator", ACCUMULATORS)
def test_every_format_on_every_accumulator(accumulator):
    for fmt in ELEMENTS:
        made = or_refused(operands, fmt, "1x128", "128x128", "ue8m0")
        if made is None:
            continue
        for every in (128, None):
            both = or_refused(product, *made, accumulator, promote_every=every)
            assert both is None or same_bits(*both), (fmt, every)
        call = functools.partial(lp.mma, *(q.codes for q in made), accumulator=accumulator, a_format=fmt, b_format=fmt)
        raw, machine = or_refused(call), lp.accumulators[accumulator]
        if machine.input_formats:
            assert (raw is not None) == (machine.accepts(lp.formats[fmt]) and machine.scale_format is None), fmt
        else:
            assert raw is not None or accumulator == "exact", fmt  # which refuses what its integers cannot hold
        if raw is not None:
            with lp.use_kernel("reference"):
                assert same_bits(raw, call()), fmt


@pytest.mark.sampled(2)
@pytest.mark.parametrize("accumulator", ACCUMULATORS)
def test_every_promotion_library_and_block_on_every_accumulator(accumulator):
    done = 0
    for fmt, scale, blocks in itertools.product(formats_of(accumulator), ("e8m0fnu", "e4m3fn"), BLOCKS):
        made = operands(fmt, *blocks, scale)
        for every, library in itertools.product(PROMOTIONS, USUAL_LIBRARIES):
            what = {"promote_every": every, "library": library}
            both = or_refused(product, *made, accumulator, **what)
            assert both is None or same_bits(*both), (fmt, scale, blocks, what)
            done += both is not None
    assert done or not formats_of(accumulator)


@pytest.mark.sampled(16)
@pytest.mark.parametrize("accumulator", ACCUMULATORS)
def test_every_output_of_every_accumulator(accumulator):
    done = 0
    for fmt in formats_of(accumulator)[:1]:
        made = operands(fmt, "tensor", "tensor", "ue8m0")
        whole = or_refused(lp.gemm, *made, accumulator=accumulator)
        if whole is None:
            continue
        for out in FORMATS:
            rounded = or_refused(lp.gemm, *made, accumulator=accumulator, out_format=out)
            assert rounded is None or same_bits(rounded, lp.round_to(whole, out)), out
            done += rounded is not None
    assert done or not formats_of(accumulator)


@pytest.mark.parametrize("block", ["row", "tensor", "1x128", "1x32"])
@pytest.mark.parametrize("library", lp.gemm_libraries.names())
def test_experts_without_tokens(block, library):
    dy, x = (lp.quantize(values(n, 256, n), f"e4m3fn {block}") for n in (3, 2))
    for counts in ([0, 3, 100], [3, 0, 100], [3, 100, 0], [0], [0, 0]):
        out = or_refused(lp.grouped_wgrad, dy, x, counts, library=library)
        if out is None:
            assert block in ("1x32", "1x128")  # 1x32 needs another promotion, 1x128 scales within the sum
            continue
        for e, count in enumerate(counts):
            assert out[e].any() == bool(count)


def test_measures_of_single_numbers():
    for a, r in ((1.0, 2.0), (0.0, 0.0), (np.nan, 1.0), (np.inf, np.inf), (1.0, 0.0)):
        assert repr(lp.compare(a, r)) == repr(lp.compare([a], [r]))
        for measure in (
            metrics.relative_error, metrics.ulp_difference, metrics.bit_match_fraction, metrics.underflow,
            metrics.magnitude_bias, metrics.gain_error, metrics.calc_diff, lp.sqnr,
        ):  # fmt: skip
            alone, in_array = np.asarray(measure(a, r)), np.asarray(measure([a], [r]))
            assert alone.shape == ()
            assert np.array_equal(alone.reshape(in_array.shape), in_array, equal_nan=True)
