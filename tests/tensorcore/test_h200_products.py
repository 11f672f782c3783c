"""Products of PyTorch have the bits of an H200: in one chain along K, in parts of K, and with scales."""

import ml_dtypes
import numpy as np
import pytest
from recordings import h200, inputs_of_h200

import lowprec as lp
from lowprec.recipe.operands import as_quantized
from lowprec.scaling.quantize import Granularity, Quantized

PROGRAM = inputs_of_h200()
#: Parts into which cuBLAS splits K; one for the other shapes.
PARTS = {
    "bfloat16": {(16, 512, 4096): 3, (128, 128, 7168): 5, (1, 256, 4096): 3},
    "float32": {(64, 64, 64): 2, (64, 128, 128): 4, (128, 128, 512): 8, (64, 256, 1024): 16, (16, 512, 4096): 26,
                (128, 128, 7168): 32, (8, 1024, 2048): 16, (256, 512, 2048): 8},
}  # fmt: skip
PARTS["float16"] = PARTS["bfloat16"]
TILE = {"bfloat16": 64, "float16": 64, "float32": 8}
UNITS = {"bfloat16": "hopper_bf16", "float16": "hopper_f16", "float32": "hopper_tf32"}


def corners(m, n, k, scale=1.0):
    """Return the rows of both operands that the recorded part of a product is made of."""
    a, b = PROGRAM.bell(10, m, k, scale=scale), PROGRAM.bell(11, n, k, scale=scale)
    return a[: PROGRAM.ROWS], b[: PROGRAM.COLUMNS]


def codes(x, dtype):
    """Return codes of a dtype; cuBLAS rounds float32 to TF32, to nearest even."""
    if dtype == "float32":
        return lp.round_to(x, "tf32").view(np.uint32)
    return x.astype({"bfloat16": ml_dtypes.bfloat16, "float16": np.float16}[dtype]).view(np.uint16)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", UNITS)
def test_products_of_an_h200(dtype):
    kind = {"a_format": "float32", "b_format": "float32"} if dtype == "float32" else {}
    for shape in PROGRAM.SHAPES:
        if dtype == "float32" and shape[0] == 1:
            continue  # a product of a matrix and a vector, without a tensor core
        a, b = (codes(x, dtype) for x in corners(*shape))
        tiles = -(-shape[2] // TILE[dtype])
        step = -(-tiles // PARTS[dtype].get(shape, 1)) * TILE[dtype]
        parts = [lp.mma(a[:, i : i + step], b[:, i : i + step], accumulator=UNITS[dtype], **kind)
                 for i in range(0, shape[2], step)]  # fmt: skip
        total = sum(parts[1:], parts[0])
        name = f"mm/{dtype}/{shape[0]}x{shape[1]}x{shape[2]}"
        assert (total.view(np.int32) == h200()[name]).all(), name


#: Parts of K and chains of each part in products of float32.
SGEMM = {
    (64, 64, 64): (2, 1), (64, 128, 128): (4, 1), (128, 128, 512): (8, 1), (64, 256, 1024): (16, 1),
    (16, 512, 4096): (1, 33), (128, 128, 7168): (56, 1), (8, 1024, 2048): (16, 1), (256, 512, 2048): (1, 8),
    (33, 136, 320): (1, 40),
}  # fmt: skip


def test_float32_products_of_an_h200():
    for shape in PROGRAM.SGEMM_SHAPES:
        x, y = corners(*shape)
        if shape[0] == 1:
            got = lp.orders["warp_butterfly"](shape[2], fma=True).dot(x, y)[None]
        else:
            parts, slices = SGEMM[shape]
            library, (a, b) = lp.gemm_libraries["cublas_sgemm"].with_(slices=slices), map(as_float32, (x, y))
            got = lp.gemm(a, b, accumulator="float32", library=library, split_k=parts)
        assert (got.view(np.int32) == h200()[f"sgemm/{shape[0]}x{shape[1]}x{shape[2]}"]).all(), shape


def as_float32(x):
    return as_quantized(x, lp.formats["float32"])


def quantized(x, scale, rows, columns):
    return Quantized(
        lp.encode(x, "e4m3fn"), np.asarray(scale, np.float32), lp.formats["e4m3fn"], Granularity(rows, columns)
    )


#: Parts into which cuBLASLt splits K of products with scales per tensor or block.
SPLIT = {(128, 128, 7168): 2}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("shape", PROGRAM.SHAPES, ids=str)
def test_scaled_products_of_an_h200(shape):
    (m, n, k), (a, b), split = shape, corners(*shape, scale=8), SPLIT.get(shape, 1)
    one = quantized(a, [[0.0173]], None, None), quantized(b, [[1.37]], None, None)
    scales = PROGRAM.positive(12, m, 1)[: len(a)], PROGRAM.positive(13, 1, n).T[: len(b)]
    by_row = [quantized(x, scale, 1, None) for x, scale in zip((a, b), scales, strict=True)]
    for speed, library in (("slow", "cublaslt"), ("fast", "cublaslt_fast")):
        for kind, pair, parts in (("tensor", one, split), ("row", by_row, 1)):
            right = h200()[f"scaled/{kind}/{speed}/{m}x{n}x{k}"]
            assert (lp.gemm(*pair, library=library, split_k=parts).view(np.int32) == right).all(), (kind, speed)


#: Libraries with the order of scales per 1x128 in both operands, and per 128x128 in the second; then the other one.
BLOCKS = {"block": (1, "cublaslt_1x128", "deepgemm"), "block128": (128, "deepgemm", "cublaslt_1x128")}


def with_blocks(rows, library, shape, at):
    """Return a product with scales of blocks at given rows and columns, as bits of bfloat16."""
    m, n, k = shape
    x = PROGRAM.bell(10, m, k, scale=8), PROGRAM.bell(11, n, k, scale=8)
    scales = PROGRAM.positive(14, k // 128, m).T, np.repeat(PROGRAM.positive(15, k // 128, n // rows).T, rows, axis=0)
    a, b = (quantized(v[some], s[some], 1, 128) for v, s, some in zip(x, scales, at, strict=True))
    d = lp.gemm(a, b, out_format="bfloat16", library=library, split_k=SPLIT.get(shape, 1) if rows == 1 else 1)
    return (d.view(np.int32) >> 16).astype(np.int16)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", BLOCKS)
def test_products_with_scales_of_blocks_of_an_h200(kind):
    rows, library, other = BLOCKS[kind]
    wrong = 0
    for shape in PROGRAM.SHAPES:
        name = f"scaled/{kind}/{shape[0]}x{shape[1]}x{shape[2]}"
        if name in h200():
            corner = np.arange(min(shape[0], PROGRAM.ROWS)), np.arange(PROGRAM.COLUMNS)
            assert (with_blocks(rows, library, shape, corner) == h200()[name]).all(), shape
        if f"{name}/places" in h200():
            places, right = [np.array(at) for at in PROGRAM.PLACES[shape]], h200()[f"{name}/places"]
            assert (with_blocks(rows, library, shape, places).diagonal() == right).all(), shape
            wrong += (with_blocks(rows, other, shape, places).diagonal() != right).sum()
    assert wrong
