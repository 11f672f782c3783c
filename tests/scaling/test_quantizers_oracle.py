"""Every quantizer of the catalogue, bit for bit against exact rational arithmetic that shares no code with it."""

import functools
import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import refresh
from answers import once
from floats import bits
from numpy.typing import NDArray

import lowprec as lp
from lowprec.oracle import quantizers as oracle

F32 = NDArray[np.float32]
NAMES = [name for name in lp.quantizers if lp.quantizers[name].amax_history_len is None]


def check(x: F32, name: str, granularity: str | None = None) -> None:
    """Compare codes, scales and the tensor's scale; NaN scales compare as NaN, and codes below them as well."""
    x = x[:, : x.shape[1] // (lp.quantizers[name].hadamard_size or 1) * (lp.quantizers[name].hadamard_size or 1)]
    spec = f"{name} {granularity or ''}"
    q, fused = lp.quantize(x, spec), lp.quantize_dequantize(x, spec)
    assert np.array_equal(bits(fused), bits(q.dequantize())), name

    def ask() -> None:
        block = None if granularity is None else (q.granularity.rows, q.granularity.columns)
        codes, scales, tensor = oracle.quantize(x, name, block)
        where, finite = f"{name} {granularity or ''}", ~np.isnan(scales)
        assert np.array_equal(np.isnan(q.scale), ~finite), where
        assert np.array_equal(bits(q.scale)[finite], bits(scales)[finite]), where
        assert np.array_equal(q.codes, codes), (where, np.argwhere(q.codes != codes)[:3])
        assert np.array_equal(q.tensor_scale, tensor), where

    once(ask, name, granularity, x, q.codes, q.scale, None if q.tensor_scale is None else np.asarray(q.tensor_scale))


@functools.cache
def inputs(kind: str) -> F32:
    rng = np.random.default_rng(5)
    x = rng.standard_normal((5, 150)).astype(np.float32)
    if kind == "bf16":  # values that often sit on midpoints: where quantizers differ
        return x.astype(ml_dtypes.bfloat16).astype(np.float32)
    if kind == "wide":
        x = x * np.exp2(rng.integers(-30, 30, x.shape)).astype(np.float32)
    if kind == "rows":
        x = x * np.exp2(rng.integers(-140, 120, (5, 1))).astype(np.float32)
    if kind == "special":
        x[0, 3], x[1, 40], x[2, 149], x[3, :] = np.nan, np.inf, -np.inf, 0.0
        x[4, :32], x[4, 32:64], x[4, 64:] = -0.0, 1e-42, np.finfo(np.float32).max
    return x.astype(np.float32)


def test_every_quantizer_has_an_oracle() -> None:
    missing = sorted(set(NAMES) - set(oracle.QUANTIZERS) - set(oracle.TRANSFORMED))
    assert not missing, f"{', '.join(missing)}: write the rule by this name in lowprec/oracle/quantizers.py"


@pytest.mark.sampled(6)
@pytest.mark.parametrize("kind", ["bf16", "wide", "rows", "special"])
@pytest.mark.parametrize("name", NAMES)
def test_codes_scales_and_values(name: str, kind: str) -> None:
    check(inputs(kind), name)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("granularity", ["16x1", "7x5", "column", "row", "16x16"])
@pytest.mark.parametrize("name", ["dsv3_inference", "te_block", "mxfp8_rceil", "mxint8", "nvfp4_te", "nvfp4_4over6"])
def test_other_granularities(name: str, granularity: str) -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((19, 37)) * np.exp2(rng.integers(-9, 9, (19, 37)))
    check(x.astype(np.float32), name, granularity)


@pytest.mark.slow
def test_scales_next_to_every_power_of_two() -> None:
    """Scales of amax = 2^k, 1.75 * 2^k, max * 2^k and both neighbours of each, and of subnormals, one block each."""
    centres = np.outer([1, 1.75, 1.5, 1.875, 1.9375], np.exp2(np.arange(-149.0, 128))).ravel().astype(np.float32)
    beside = (np.nextafter(centres, np.float32(end)) for end in (0, np.inf))
    amax = np.concatenate([centres, *beside, np.arange(1, 64, dtype=np.uint32).view(np.float32)])
    amax = amax[(amax > 0) & np.isfinite(amax)][:, None]
    for name in NAMES:
        if not lp.quantizers[name].has_tensor_scale:
            check(amax if lp.quantizers[name].scale_format == lp.formats["e8m0fnu"] else amax[::7], name, "1x1")


@pytest.mark.slow
def test_tensor_scales_of_awkward_tensors() -> None:
    """Two-level quantizers on tensors that are tiny, huge, zero, or hold one block far below the rest."""
    x = inputs("bf16")[:, :32]
    spread = np.where(np.arange(32) < 16, np.float32(2.0**-14), np.float32(1)) * x
    for name in NAMES:
        if lp.quantizers[name].has_tensor_scale:
            for y in (x * np.float32(1e-38), x * np.float32(1e37), np.zeros_like(x), spread, x * np.float32(1e-43)):
                check(y.astype(np.float32), name)


@pytest.mark.parametrize("size", [2, 16, 64])
def test_hadamard(size: int) -> None:
    signs = [1 if s > 0 else -1 for s in lp.hadamard(np.eye(size, dtype=np.float32), size, 7)[:, 0]]
    x = inputs("wide")[:, :128]
    assert np.array_equal(bits(lp.hadamard(x, size, 7)), bits(oracle.transform(x, signs)))
    turned = lp.hadamard(np.ascontiguousarray(x.T), size, 7, axis=0)
    assert np.array_equal(bits(turned.T), bits(lp.hadamard(x, size, 7)))


def test_golden_vectors() -> None:
    """What the file says, which exact arithmetic wrote once, is what the kernels make today."""
    data = json.loads((Path(__file__).parents[2] / "reference_data" / "quantizer_vectors.json").read_text())
    x = np.frombuffer(bytes.fromhex(data["values"]), ">f4").astype(np.float32).reshape(data["shape"])
    assert set(data["quantizers"]) == set(NAMES), f"run: {refresh.COMMAND}"
    for name, case in data["quantizers"].items():
        q = lp.quantize(x, name)
        assert q.codes.tobytes().hex() == case["codes"], name
        assert q.scale.astype(">f4").tobytes().hex() == case["scales"], name
        tensor = None if q.tensor_scale is None else np.array([q.tensor_scale], ">f4").tobytes().hex()
        assert tensor == case["tensor"], name


def edges_of_block_scales() -> F32:
    """Return blocks whose E4M3 scales lie within four float32 units of a midpoint; the last holds the tensor's amax."""
    top = np.float32(1234.5)
    middles = (np.arange(8, 16) + 0.5) / 8 * np.exp2(np.arange(0, 9, 4))[:, None]
    middles = middles[middles < 448]  # larger ones would raise the tensor's amax, and no value lay on a midpoint
    centres = (middles * 6 / (2688 / float(top))).astype(np.float32).ravel()
    near = (centres.view(np.int32)[:, None] + np.arange(-4, 5, dtype=np.int32)).view(np.float32).ravel()
    x = np.zeros((near.size + 1, 16), np.float32)
    x[:-1, 0], x[-1, 0] = near, top
    return x


@pytest.mark.slow
def test_block_scales_next_to_midpoints() -> None:
    for name in NAMES:
        if lp.quantizers[name].has_tensor_scale:
            check(edges_of_block_scales(), name, "1x16")


MUTANTS = {
    "divided instead of multiplied": ("deepgemm", {"scale_application": "divide"}),
    "multiplied instead of divided": ("dsv3_inference", {"scale_application": "reciprocal"}),
    "scale by the reciprocal of max": ("dsv3_inference", {"scale_calculation": "amax*(1/max)"}),
    "no floor": ("dsv3_inference", {"amax_floor": 0.0}),
    "floor for ceil": ("mxfp8_ceil", {"scale_calculation": "floor"}),
    "ceil for round up": ("mxfp8_rceil", {"scale_calculation": "ceil"}),
    "one bit for the element's": ("mxfp8_even", {"scale_calculation": "even_1bit"}),
    "exponents from -126": ("mxfp8_floor", {"min_scale_exponent": -126}),
    "Inf as NaN": ("mxfp8_rceil", {"inf_block": "nan"}),
    "reciprocal not folded": ("nvfp4_te", {"scale_calculation": "direct"}),
    "subnormal block scales": ("nvfp4_torchao", {"min_scale": 0.0}),
    "joint scale": ("nvfp4_torchao", {"scale_calculation": "one_quotient"}),
    "squares for magnitudes": ("nvfp4_4over6", {"four_over_six": "mse"}),
    "bound of 448": ("nvfp4_4over6", {"max_block_scale": 448.0}),
    "multiplier rounded up": ("te_block", {"scale_calculation": "amax/max"}),
    "transform not rounded": ("nvfp4_te_rht", {"transform_format": None}),
    "transform in float16": ("nvfp4_te_rht", {"transform_format": "float16"}),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_wrong_rules_are_told_from_right_ones(mutant: str) -> None:
    """Each is close, and each differs from the oracle on some input of this file."""
    name, changes = MUTANTS[mutant]
    wrong = lp.quantizers[name].with_(**changes)
    small = np.where(np.arange(150) < 16, np.float32(2.0**-14), np.float32(1)) * inputs("bf16")
    many = np.random.default_rng(2).standard_normal((64, 160)).astype(ml_dtypes.bfloat16).astype(np.float32)
    tiny = inputs("bf16") * np.float32(2.0**-128)
    huge = inputs("wide") * np.float32(2.0**60)
    for x in (inputs("bf16"), inputs("special"), small.astype(np.float32), tiny, huge, many, edges_of_block_scales()):
        x = x[:, : x.shape[1] // (wrong.hadamard_size or 1) * (wrong.hadamard_size or 1)]
        q, right = lp.quantize(x, wrong), lp.quantize(x, name)
        if not (np.array_equal(q.codes, right.codes) and np.array_equal(q.scale, right.scale, equal_nan=True)):
            return
    raise AssertionError(f"no input tells {mutant} from {name}")
