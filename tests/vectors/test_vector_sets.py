"""Vector sets: what the package computes passes them, known wrong rules do not, their bytes are the same anywhere."""

import functools
import json
import operator
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from answers import once
from refusals import refusals

import lowprec as lp
from lowprec.cast.hybrid import encode_hybrid
from lowprec.format.rounding import Rounding
from lowprec.oracle.block_formats import BLOCK_FORMATS
from lowprec.oracle.quantizers import QUANTIZERS
from lowprec.oracle.random_bits import random_word
from lowprec.scaling.block_formats import block_formats
from lowprec.vectors import catalogue
from lowprec.vectors.blocks import block_of
from lowprec.vectors.casts import FIXED, with_fields
from lowprec.vectors.catalogue import families, listed, split
from lowprec.vectors.encodings import encodings
from lowprec.vectors.vectors import VectorSet

vectors = functools.cache(catalogue.vectors)

#: Sets of every kind, as the default tests look at them; `-m exhaustive` looks at all that are listed.
FIELDS = with_fields()
GEMMS = ["deepgemm", "cublaslt/ada_fp8"]
CODECS = ["bf16", "fp8_1x128", "e5m6_1x128_ue8m0", "nvfp4", "int4_1x32", "int10_1x128", "logfmt8"]
CASTS = [
    *(f"cast/{f}" for f in FIELDS),
    *(f"cast/{f}/{mode}" for f in ("e4m3fn", "ue5m3", "bfloat16") for mode in FIXED),
    *(f"cast/{f}/nearest_even/{p}" for f in ("e4m3fn", "e2m1fn") for p in lp.policies),
    "cast/e5m2/nearest_even/ieee/float64", "round/e4m3fn", "round/e4m3fn/to_odd/ocp_sat/float64",
    "round/e5m2/nearest_even/torch_2_13/float64", "round/e8m0fnu/up", *(f"decode/{f}" for f in FIELDS),
    "cast_table/hif8", "cast_table/hif8/nearest_even/ocp_nonsat", "cast_table/hif8/to_odd/ocp_sat/float64",
    "cast_table/nf4/toward_zero", "cast_table/nf4/nearest_even/ml_dtypes/float64",
    "decode_table/hif8", "decode_table/nf4", "cast_hybrid/float32", "cast_hybrid/float16/cann_sat",
]  # fmt: skip
BLOCKS = [
    *(f"block/{f}" for f in ("hif4", "hif3", "bfp8_b_host", "bfp4_b_device", "bfp2_b_host", "msfp16")),
    *(f"gemm/{name}" for name in GEMMS), *(f"codec/{name}" for name in CODECS),
    *(f"quantize/{name}" for name in ("te_current", "mxint8", "mxfp8_rceil", "nvfp4_te")),
    "logfmt/8/linear", "logfmt/3/log", "logfmt/10/linear",
]  # fmt: skip
SOME = [
    *CASTS, *BLOCKS, *(f"stochastic/{v}" for v in "abc"), "stochastic/b/e2m1fn/3",
    "stochastic/c/bfloat16/8", "stochastic/words", "mma/ada_fp8_f16", "mma/hopper_fp8/e5m2/e4m3fn", "mma/hopper_bf16",
    "mma/blackwell_nvfp4", "mma/hopper_fp8_mma_f16", "mma/hopper_fp8", "mma/blackwell_mxf8", "mma/cdna2_f16",
    "mma/cdna3_fp8", "mma/ampere_tf32", "mma/fp64", "mma/avx512_bf16", "mma/float32", "mma/exact", "mma/amx_fp8",
    "mma/arm_bf16", "mma/arm_fp8_f16",
]  # fmt: skip


def test_names_are_listed_in_full() -> None:
    names = listed()
    assert len(set(names)) == len(names) > 1000
    for name in SOME:
        family, parts = split(name)
        assert "/".join((family.name, *parts)) in names or name.count("/") > 2 or parts[1] != parts[-1]


def test_every_block_format_has_its_oracle() -> None:
    assert set(BLOCK_FORMATS) == set(block_formats)


# --- what the package makes of a set's inputs, a row of words a vector ------------------------------------------------


def words(x: np.ndarray) -> np.ndarray:
    """Return bits of float32 numbers, and codes as they are."""
    return x.view(np.uint32) if x.dtype == np.float32 else x


def cast(s: VectorSet, target: str, rounding: str, policy: str, *source: str) -> np.ndarray:
    x = s["x"].view({4: np.float32, 8: np.float64}[s["x"].itemsize])
    return (lp.round_to if s.name.startswith("round/") else lp.encode)(x, target, rounding=rounding, policy=policy)


def block(s: VectorSet, name: str) -> np.ndarray:
    f = block_formats[name]
    codes = f.encode(s["x"].view(np.float32))
    given = {"elements": codes.elements, "shared": codes.shared, "levels": codes.levels, "y": f.decode(codes)}
    return np.hstack([words(given[field.name]).reshape(len(s), -1) for field in s.results])


def gemm(s: VectorSet, library: str, accumulator: str) -> np.ndarray:
    kind, d = "1x128" if lp.gemm_libraries[library].apply_scales_at == "promotion" else "tensor", []
    for i in range(len(s)):
        scales = (np.atleast_1d(s[f"{x}_scale"][i]).view(np.float32)[None] for x in "ab")
        sides = [lp.Quantized(s[x][i][None], scale, "e4m3fn", kind) for x, scale in zip("ab", scales, strict=True)]
        d.append(lp.gemm(*sides, accumulator=accumulator, library=library))
    return np.concatenate(d)


def quantize(s: VectorSet, quantizer: str) -> list[list[int]]:
    rows = []
    for vector in s.vectors:
        x = np.array(vector.inputs, np.uint32).view(np.float32).reshape(block_of(QUANTIZERS[quantizer]))
        q = lp.quantize(x, quantizer)
        tensor = [] if q.tensor_scale is None else [np.float32(q.tensor_scale)]
        rows.append([*q.codes.ravel().tolist(), *words(np.array([*q.scale.ravel(), *tensor])).tolist()])
    return rows


def logfmt(s: VectorSet, bits: str, rounding: str) -> np.ndarray:
    z = lp.logfmt.encode(s["x"].view(np.float32), bits=int(bits), tile=32, rounding=rounding)
    given = {"codes": z.codes, "amin": z.amin, "amax": z.amax, "y": z.decode()}
    return np.hstack([words(given[field.name]) for field in s.results])


def codec(s: VectorSet, name: str) -> list[list[int]]:
    c, rows = lp.codecs[name], [np.array(vector.inputs, np.uint32).view(np.float32)[None] for vector in s.vectors]
    return [list(c.to_bytes(c.encode(x))) for x in rows]


def attention(s: VectorSet, kernel: str) -> np.ndarray:
    rows = []
    if kernel == "sage3_fp4":
        fields = ("q", "k", "v", "scale of q", "scales of k", "scales of v")
        q, k, v, *of = (
            lp.decode(s[name], fmt) for name, fmt in zip(fields, ["e2m1fn"] * 3 + ["e4m3fn"] * 3, strict=True)
        )
        for i in range(len(q)):
            operands = [np.zeros((1, 1, n, 64), np.float32) for n in (1, 150, 150)]
            operands[0][..., :16], operands[1][..., :16] = q[i], k[i].reshape(150, 16)
            operands[2][..., :2] = v[i].reshape(2, 150).T
            descale = [np.zeros((1, 1, *shape), np.float32) for shape in ((1, 4), (150, 4), (64, 10), (1, 150))]
            descale[0][..., 0], descale[1][..., 0], descale[2][0, 0, :2] = of[0][i], of[1][i], of[2][i].reshape(2, 10)
            descale[3][:] = s["addends"][i].view(np.float32)
            found = lp.attention(*operands, kernel=kernel, descale=descale, scale=0.3, out_format="float32")
            rows.append([*found.out[0, 0, 0, :2], *found.lse[0, 0]])
        return np.array(rows)
    if lp.attentions[kernel].has_thread_scales:
        q, k, v = (lp.decode(s[name], fmt) for name, fmt in (("q", "int8"), ("k", "int8"), ("v", "e4m3fn")))
        of_q, of_k, of_v = (s[f"scale{end}"].view(np.float32) for end in (" of q", "s of k", "s of v"))
        for i in range(len(q)):
            values = np.pad(v[i].reshape(200, 2), ((0, 0), (0, 6)))
            operands = q[i][None, None, None], k[i].reshape(1, 1, 200, 8), values[None, None]
            descale = of_q[i].ravel()[0], of_k[i][None, None], np.pad(of_v[i], (0, 6))[None, None]
            found = lp.attention(*operands, kernel=kernel, descale=descale, scale=0.3, out_format="float32")
            rows.append([*found.out[0, 0, 0, :2], *found.lse[0, 0]])
        return np.array(rows)
    for given in s.vectors:
        x = lp.decode(np.array(given.inputs), lp.attentions[kernel].operands)
        q, k, v = x[None, :8], x[8:1608].reshape(200, 8), x[1608:].reshape(200, 2)
        found = lp.attention(q, k, v, kernel=kernel, scale=0.3, out_format="float32")
        rows.append([*found.out[0], *found.lse])
    return np.array(rows)


PACKAGE = {
    "cast": cast, "round": cast, "cast_table": cast, "block": block, "gemm": gemm, "quantize": quantize,
    "logfmt": logfmt, "codec": codec, "attention": attention,
    "decode": lambda s, target: lp.decode(s["x"], target), "decode_table": lambda s, name: lp.decode(s["x"], name),
    "cast_hybrid": lambda s, source, policy: encode_hybrid(s["x"].view(source), policy=policy),
}  # fmt: skip


def check_passes(name: str) -> None:
    s = vectors(name)
    family, *parts = s.name.split("/")
    rows = PACKAGE[family](s, *parts)
    ours = [tuple(np.ravel(row).tolist()) for row in (words(rows) if isinstance(rows, np.ndarray) else rows)]
    exact = family in ("cast_table", "cast_hybrid", "block", "logfmt", "codec")  # codes of NaN as well
    same = operator.eq if exact else s.same
    wrong = [vector for vector, y in zip(s.vectors, ours, strict=True) if not same(vector.results, y)]
    assert not wrong, (len(wrong), wrong[:5])


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", CASTS)
def test_casts_of_the_package_pass(name: str) -> None:
    check_passes(name)


@pytest.mark.sampled(0, default=10)
@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_of_the_package_pass(name: str) -> None:
    check_passes(name)


@pytest.mark.ci
@pytest.mark.parametrize("name", families["attention"].listed())
def test_attention_of_the_package_passes(name: str) -> None:
    check_passes(name)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["stochastic/a", "stochastic/b/e2m1fn/3", "stochastic/c/bfloat16/8", "stochastic/a/float16/24"]
)
def test_stochastic_casts_of_the_package_pass(name: str) -> None:
    """R is found where the words of a seed lead with it: not every vector's, but some of every set's."""
    s = vectors(name)
    variant, target, bits = s.name.split("/")[1:]
    mode = Rounding.stochastic(int(bits), variant.upper())
    wanted = {r: i for i in range(1 << 16) if (r := random_word(9, i) >> (32 - int(bits))) is not None}
    found = [(v, wanted[v.inputs[1]]) for v in s.vectors if v.inputs[1] in wanted]
    assert len(found) > 20
    for v, index in found:
        x = np.array([v.inputs[0]], np.uint32).view(np.float32)
        assert lp.encode(x, target, rounding=mode, policy="ocp_sat", seed=9, offset=index).tolist() == list(v.results)


def killed(s: VectorSet) -> dict[str, int]:
    """How many vectors tell each known wrong rule apart."""
    family, parts = split(s.name)
    return {
        rule.words: sum(not s.same(v.results, rule.answer(v.inputs)) for v in s.vectors)
        for rule in family.rules(parts, {})
        if rule.mutant
    }


def check_killed(name: str) -> None:
    counts = killed(vectors(name))
    assert counts
    assert not {words: n for words, n in counts.items() if n < 2}


@pytest.mark.sampled(10, default=60)
@pytest.mark.parametrize("name", SOME)
def test_known_wrong_rules_are_told_apart(name: str) -> None:
    once(lambda: check_killed(name), "wrong rules", name, also=("vectors",))


@pytest.mark.sampled(1, default=46)
@pytest.mark.parametrize("name", SOME)
def test_level_1_is_small_and_labelled(name: str) -> None:
    s = vectors(name)
    assert all(s.labels)
    assert len({v.inputs for v in s.vectors}) == len(s)
    assert len(encodings["json"].write(s)) <= 1_000_000


@pytest.mark.slow
def test_level_2_holds_level_1_and_more() -> None:
    for name in ("cast/e4m3fn", "cast/e2m1fn", "decode/float16", "stochastic/words"):
        one, two = vectors(name), vectors(name, 2)
        assert {v.inputs for v in one.vectors if v.label != "random"} <= {v.inputs for v in two.vectors}
        assert len(two) > 2 * len(one)
        assert (vectors(name, 2, seed=1).sha256 != two.sha256) == (not name.startswith("decode"))  # that is all codes
        assert all(v.results == x.results for v, x in zip(two.vectors, catalogue.vectors(name, 2).vectors, strict=True))


@pytest.mark.slow
def test_no_kernel_and_no_float_of_numpy_makes_them() -> None:
    names = sorted({name.split("/")[0]: name for name in SOME}.values())
    code = "import sys; from lowprec.vectors.catalogue import vectors\n"
    code += f"for name in {names}: vectors(name)\n"
    code += (
        "print(sorted(name for name in sys.modules if name.startswith(('numba', 'lowprec.kernels', 'lowprec.cast'))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_bytes_are_the_same_anywhere() -> None:
    """A few of each family as they were made elsewhere; all of them with `-m exhaustive`."""
    known = json.loads((Path(lp.__file__).parents[1] / "reference_data" / "vector_digests.json").read_text())
    compared = set()
    for name in (n for n in SOME if n.split("/")[0] in ("cast", "decode", "stochastic", "codec")):
        s = vectors(name)
        if s.name in known:
            compared.add(name.split("/")[0])
            assert s.sha256 == known[s.name]["sha256"], name
    assert compared == {"cast", "decode", "stochastic", "codec"}


@pytest.mark.parametrize("encoding", ["json", "npz", "hex", "testfloat", "c", "mlir"])
def test_encodings_hold_every_word(encoding: str, tmp_path) -> None:
    s = vectors("cast/e2m1fn/up")
    content = encodings[encoding].write(s)
    assert content == encodings[encoding].write(vectors("cast/e2m1fn/up"))
    assert encoding == "testfloat" or s.sha256.encode() in content
    if encoding == "json":
        read = json.loads(content)
        assert [(int(v["x"], 16), int(v["y"], 16), v["label"]) for v in read["vectors"]] == [
            (*v.inputs, *v.results, v.label) for v in s.vectors
        ]
        assert read["header"] == json.loads(json.dumps(s.header()))
    elif encoding == "npz":
        (tmp_path / "s.npz").write_bytes(content)
        with np.load(tmp_path / "s.npz") as held:
            assert np.array_equal(held["x"], s["x"])
            assert np.array_equal(held["y"], s["y"])
            header = json.loads(held["header"].tobytes())
            assert [header["labels"][i] for i in held["label"]] == s.labels
        assert {i.date_time for i in zipfile.ZipFile(tmp_path / "s.npz").infolist()} == {(1980, 1, 1, 0, 0, 0)}
    elif encoding == "hex":
        lines = [line for line in content.decode().splitlines() if not line.startswith("//")]
        assert [int(line.split()[0], 16) for line in lines] == [v.inputs[0] << 4 | v.results[0] for v in s.vectors]
        assert "reg [35:0]" in content.decode()
        assert "input x = vector[35:4]" in content.decode()
    elif encoding == "testfloat":
        assert content.decode().splitlines() == [f"{v.inputs[0]:08x} {v.results[0]:x}" for v in s.vectors]
    elif encoding == "mlir":
        text = content.decode()
        assert "arith.truncf %x upward : f32 to f4E2M1FN" in text
        assert text.count("func.call @convert") == len(s)


def test_mlir_extends_what_it_decodes() -> None:
    assert "arith.extf %x : f8E5M2 to f32" in encodings["mlir"].write(vectors("decode/e5m2")).decode()


def test_a_format_of_a_longer_name_is_not_meant() -> None:
    assert vectors("cast/e4m3").name.startswith("cast/e4m3/")


NAMES = [
    ("cast", r"set must be named cast/FORMAT\[/ROUNDING\[/POLICY\[/SOURCE\]\]\], got 'cast'"),
    ("casts/e4m3fn", "did you mean 'cast'"),
    ("stochastic/d", "variants are a, b, c"),
    ("cast/e4m3fn/stochastic", "stochastic/"), ("cast/e4m3fn/up/ocp_sat/float16", "a source is"),
    ("cast/e4m3fn/up/ocp_sat/float32/more", r"set must be named cast/FORMAT\[/ROUNDING\[/POLICY\[/SOURCE\]\]\], got"),
    ("stochastic/a/e4m3fn/25", "from 1 to 24"),
    ("decode/none", "unknown format"), ("cast/hif8", "cast_table/hif8"), ("decode/nf4", "decode_table/nf4"),
    ("cast_table/e4m3fn", "format must be a table of values"),
    ("cast_table/hif8/stochastic",
     "cast_table/hif8/stochastic: rounding must be deterministic, got stochastic; see the"),
    ("cast_table/hif8/up/ocp_sat/float16", "a source is"), ("decode_table/e4m3fn", "format must be a table of values"),
    ("cast_hybrid/float64", "a source is"), ("block/none", "the formats hif4"),
    ("codec/logfmt10_deepep", "the codecs float32"), ("quantize/none", "Hadamard"),
    ("gemm/none", "the libraries deepgemm"), ("logfmt/17", "from 3 to 16"),
    ("gemm/deepgemm/hopper_fp8_f16", "gemm/deepgemm/hopper_fp8_f16: accumulator must"), ("mma/none", "accumulators"),
    ("mma/hopper_fp8/float16", "multiplies e4m3fn, e5m2"),
]  # fmt: skip
NOT_IN_MLIR = ("round/e4m3fn", "cast/e5m6", "cast/e4m3fn/to_odd", "decode/int8")
test_refused = refusals(
    [(f"vectors({name!r})", words) for name, words in NAMES]
    + [(f"mlir(vectors({name!r}))", r"mlir|arith") for name in NOT_IN_MLIR],
    lambda: {"vectors": vectors, "mlir": encodings["mlir"].write},
)


@pytest.mark.exhaustive
@pytest.mark.parametrize("family", families.names())
def test_all_listed_sets_are_small_and_tell_wrong_rules_apart(family: str) -> None:
    known = json.loads((Path(lp.__file__).parents[1] / "reference_data" / "vector_digests.json").read_text())
    for name in families[family].listed():
        s = vectors(name)
        assert s.name == name
        assert len(encodings["json"].write(s)) <= 1_000_000, name
        assert s.sha256 == known[name]["sha256"]
        counts = killed(s)
        assert [words for words, n in counts.items() if n < 2] == known[name]["not"]
