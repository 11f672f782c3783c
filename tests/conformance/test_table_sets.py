"""Vector sets of tables and of block formats: the package passes them (wrong rules: `test_block_sets`)."""

import functools

import numpy as np
import pytest

import lowprec as lp
from lowprec.cast.hybrid import encode_hybrid
from lowprec.conformance import catalogue
from lowprec.oracle.block_formats import BLOCK_FORMATS

CASTS = [
    "cast_table/hif8", "cast_table/hif8/nearest_even/ocp_nonsat", "cast_table/hif8/to_odd/ocp_sat/float64",
    "cast_table/nf4/toward_zero", "cast_table/nf4/nearest_even/ml_dtypes/float64",
]  # fmt: skip
HYBRID = ["cast_hybrid/float32", "cast_hybrid/float16/cann_sat"]
BLOCKS = [f"block/{name}" for name in ("hif4", "hif3", "bfp8_b_host", "bfp4_b_device", "bfp2_b_host", "msfp16")]
vectors = functools.cache(catalogue.vectors)


@pytest.mark.parametrize("name", CASTS)
def test_casts_of_the_package_pass(name: str) -> None:
    s = vectors(name)
    target, mode, preset = s.name.split("/")[1:4]
    x = s["x"].view({4: np.float32, 8: np.float64}[s["x"].itemsize])
    ours = lp.encode(x, target, rounding=mode, policy=preset)
    assert not [s.vectors[i] for i in np.flatnonzero(ours != s["y"])[:5]]


@pytest.mark.parametrize("name", HYBRID)
def test_hybrid_casts_of_the_package_pass(name: str) -> None:
    s = vectors(name)
    source, preset = s.name.split("/")[1:]
    ours = encode_hybrid(s["x"].view(source), policy=preset)
    assert not [s.vectors[i] for i in np.flatnonzero(ours != s["y"])[:5]]


@pytest.mark.parametrize("name", ["hif8", "nf4"])
def test_values_of_the_package_pass(name: str) -> None:
    s = vectors(f"decode_table/{name}")
    ours = lp.decode(s["x"], name).view(np.uint32)
    assert all(s.same(v.results, (y,)) for v, y in zip(s.vectors, ours.tolist(), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_of_the_package_pass(name: str) -> None:
    s, f = vectors(name), lp.block_formats[name.split("/")[1]]
    codes = f.encode(s["x"].view(np.float32))
    assert np.array_equal(codes.elements, s["elements"])
    assert np.array_equal(codes.shared[:, 0], s["shared"])
    assert np.array_equal(f.decode(codes).view(np.uint32), s["y"])
    assert codes.levels.size == 0 or np.array_equal(codes.levels[:, 0], s["levels"])


def test_every_block_format_has_its_oracle() -> None:
    assert set(BLOCK_FORMATS) == set(lp.block_formats)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cast/hif8", "cast_table/hif8"), ("decode/nf4", "decode_table/nf4"), ("cast_table/e4m3fn", "no table"),
        ("cast_table/hif8/stochastic", "random words"), ("cast_table/hif8/up/ocp_sat/float16", "a source is"),
        ("decode_table/e4m3fn", "no table"), ("cast_hybrid/float64", "a source is"), ("block/none", "it has hif4"),
    ],
)  # fmt: skip
def test_names_that_are_none(name: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        vectors(name)
