"""What `gemm` computes, written out: chains of `mma`, scales, and float32 arithmetic by the oracle."""

from typing import Any

import numpy as np
from floats import bits
from numpy.typing import NDArray

import lowprec as lp
from lowprec import oracle
from lowprec.testing import assert_bits_equal

F32 = NDArray[np.float32]
Pair = tuple[lp.Quantized, lp.Quantized]


def operands(
    m: int, n: int, k: int, granularity: Any = "tensor", formats: Any = "e4m3fn", scale: str = "float32", seed: int = 0
) -> Pair:
    """Quantized rows of different sizes; granularity and format of both sides or of each."""
    rng = np.random.default_rng([seed, m, n, k])
    granularity, formats = ((x, x) if isinstance(x, str) else x for x in (granularity, formats))
    rows = [rng.standard_normal((count, k)) * 2.0 ** rng.integers(-3, 4, (count, 1)) for count in (m, n)]
    rule = lp.AmaxRule("block_scale_only" if scale == "e4m3fn" else "amax/max")
    a, b = (
        lp.quantize(x.astype(np.float32), lp.Quantizer(format=f, granularity=block, scale_format=scale, rule=rule))
        for x, f, block in zip(rows, formats, granularity, strict=True)
    )
    return a, b


def fma(a: Any, b: Any, c: Any) -> F32:
    """Float32 fused multiply-add, one number at a time by the oracle."""
    a, b, c = np.broadcast_arrays(*(np.asarray(x, np.float32) for x in (a, b, c)))
    triples = zip(*(bits(x).ravel().tolist() for x in (a, b, c)), strict=True)
    return np.array([oracle.fma32(*t) for t in triples], np.uint32).view(np.float32).reshape(a.shape)


def rounded(x: F32, fmt: str) -> F32:
    """Numbers of a format, by the oracle."""
    f = lp.formats[fmt]
    values = [oracle.decode(oracle.encode(float(v), f, "nonsaturate"), f) for v in x.ravel()]
    return np.array([float(v) for v in values], np.float32).reshape(x.shape)


def by_row(q: lp.Quantized, k: int) -> F32:
    """Scales of all rows at one k."""
    rows, columns = q.granularity.block(q.shape)
    return q.scale[np.arange(q.shape[0]) // rows, k // columns]


def both_scales(qa: lp.Quantized, qb: lp.Quantized, k: int = 0) -> F32:
    """Products of the scales of both sides at one k."""
    return by_row(qa, k)[:, None] * by_row(qb, k)[None, :]


def promoted(library: lp.GemmLibrary, qa: lp.Quantized, qb: lp.Quantized, k: int, part: F32, total: F32) -> F32:
    """The float32 sum to which a chain that begins at k is promoted."""
    if library.scales_one_by_one:
        return fma(by_row(qa, k)[:, None] * part, by_row(qb, k)[None, :], total)
    return fma(both_scales(qa, qb, k), part, total)


def chain(qa: lp.Quantized, qb: lp.Quantized, start: int, stop: int, machine: Any, c: F32 | None = None) -> F32:
    """One chain over a part of K, without scales."""
    a, b = (np.ascontiguousarray(q.codes[:, start:stop]) for q in (qa, qb))
    return lp.mma(a, b, c, accumulator=machine, a_format=qa.format, b_format=qb.format)


def scaled_chain(qa: lp.Quantized, qb: lp.Quantized, machine: str, k: slice = slice(None)) -> F32:
    """One chain with the scales inside the instruction, K filled up with zeros."""
    block, fmt = lp.accumulators[machine].scale_block, lp.accumulators[machine].scale_format
    codes, scales = [], []
    for q in (qa, qb):
        span = range(*k.indices(q.shape[1]))
        codes.append(np.pad(q.codes[:, k], [(0, 0), (0, -len(span) % block)]))
        scales.append(lp.encode(np.stack([by_row(q, p) for p in span[::block]], axis=1), fmt))
    return lp.mma(
        *codes, accumulator=machine, a_format=qa.format, b_format=qb.format, a_scale=scales[0], b_scale=scales[1]
    )


def summed(qa: lp.Quantized, qb: lp.Quantized, machine: Any, every: int | None, start: int = 0, stop: int = 0) -> F32:
    """Chains of `every` products added in float32, without scales."""
    stop = stop or qa.shape[1]
    total = np.zeros((len(qa.codes), len(qb.codes)), np.float32)
    for k in range(start, stop, every or stop):
        total += chain(qa, qb, k, min(k + (every or stop), stop), machine)
    return total


def assert_same(ours: F32, right: Any) -> None:
    """Ask for float32 results of the same bits."""
    assert ours.dtype == np.float32
    assert_bits_equal(ours, np.asarray(right, np.float32))
