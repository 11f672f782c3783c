"""Vector sets of GEMMs, quantizers, LogFMT and codecs: the package passes them, wrong rules do not."""

import functools

import numpy as np
import pytest
from answers import once
from test_table_sets import BLOCKS, CASTS, HYBRID
from test_vector_sets import check_killed

import lowprec as lp
from lowprec.conformance import catalogue
from lowprec.conformance.blocks import block_of
from lowprec.conformance.encodings import encodings
from lowprec.oracle.quantizers import QUANTIZERS

GEMM = ["gemm/deepgemm", "gemm/cublaslt/ada_fp8"]
QUANTIZE = [f"quantize/{name}" for name in ("te_current", "mxint8", "mxfp8_rceil", "nvfp4_te")]
LOGFMT = ["logfmt/8/linear", "logfmt/3/log", "logfmt/10/linear"]
CODEC = [
    f"codec/{name}"
    for name in ("bf16", "fp8_1x128", "e5m6_1x128_ue8m0", "nvfp4", "int4_1x32", "int10_1x128", "logfmt8")
]
vectors = functools.cache(catalogue.vectors)
SOME = GEMM + QUANTIZE + LOGFMT + CODEC + CASTS + HYBRID + ["decode_table/hif8"] + BLOCKS


@pytest.mark.parametrize("name", SOME)
def test_wrong_rules_are_told_apart(name: str) -> None:
    once(lambda: check_killed(name), "wrong rules", name, also=("conformance",))


@pytest.mark.sampled(0, default=8)
@pytest.mark.parametrize("name", SOME)
def test_level_1_is_small(name: str) -> None:
    s = vectors(name)
    assert all(s.labels)
    assert len(encodings["json"].write(s)) <= 1_000_000


@pytest.mark.slow
@pytest.mark.parametrize("name", GEMM)
def test_gemms_of_the_package_pass(name: str) -> None:
    s = vectors(name)
    library, accumulator = s.name.split("/")[1:]
    promoted = lp.libraries[library].scales == "promotion"
    wrong = []
    for i, vector in enumerate(s.vectors):
        sides = []
        for x in "ab":
            scale = np.atleast_1d(s[f"{x}_scale"][i]).view(np.float32)[None]
            sides.append(lp.Quantized(s[x][i][None], scale, "e4m3fn", "1x128" if promoted else "tensor"))
        d = lp.gemm(*sides, accumulator=accumulator, library=library)
        if not s.same(vector.results, (int(d.view(np.uint32)[0, 0]),)):
            wrong.append((i, vector.label))
    assert not wrong, (len(wrong), wrong[:5])


@pytest.mark.slow
@pytest.mark.parametrize("name", QUANTIZE)
def test_quantizers_of_the_package_pass(name: str) -> None:
    s = vectors(name)
    quantizer = name.split("/")[1]
    shape = block_of(QUANTIZERS[quantizer])
    wrong = []
    for vector in s.vectors:
        x = np.array(vector.inputs, np.uint32).view(np.float32).reshape(shape)
        q = lp.quantize(x, quantizer=quantizer)
        ours = [*q.codes.reshape(-1).tolist(), *q.scale.reshape(-1).view(np.uint32).tolist()]
        if q.tensor_scale is not None:
            ours.append(int(np.float32(q.tensor_scale).view(np.uint32)))
        if not s.same(vector.results, tuple(ours)):
            wrong.append(vector.label)
    assert not wrong, (len(wrong), wrong[:5])


@pytest.mark.slow
@pytest.mark.parametrize("name", LOGFMT)
def test_logfmt_of_the_package_passes(name: str) -> None:
    s = vectors(name)
    bits, rounding = s.name.split("/")[1:]
    x = s["x"].view(np.float32)
    z = lp.logfmt.encode(x, bits=int(bits), tile=32, rounding=rounding)
    assert np.array_equal(z.codes, s["codes"])
    assert np.array_equal(z.amin[:, 0].view(np.uint32), s["amin"])
    assert np.array_equal(z.amax[:, 0].view(np.uint32), s["amax"])
    assert np.array_equal(z.decode().view(np.uint32), s["y"])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", CODEC)
def test_codecs_of_the_package_pass(name: str) -> None:
    s = vectors(name)
    codec = lp.codecs[name.split("/")[1]]
    for vector in s.vectors:
        x = np.array(vector.inputs, np.uint32).view(np.float32)[None]
        assert tuple(codec.to_bytes(codec.encode(x))) == vector.results, vector.label


def test_what_the_oracle_lacks_is_said() -> None:
    for name, words in (
        ("codec/logfmt10_deepep", "no such codec"), ("quantize/none", "Hadamard"), ("gemm/none", "it has deepgemm"),
        ("gemm/deepgemm/hopper_fp8_f16", "float32 results"), ("logfmt/17", "3 to 16 bits"),
        ("mma/none", "accumulators"), ("mma/hopper_fp8/float16", "multiplies e4m3fn, e5m2"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=words):
            vectors(name)
