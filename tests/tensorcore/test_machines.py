"""Every machine of the catalogue: recordings of real GPUs, published vectors, its kind, and what holds for any rule.

What each rule says is in `test_machines_oracle`, `test_limits` and `test_order`.
"""

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fast_kernels import KERNELS, agree, bits
from micro_vectors import HOPPER_E4M3, Dot
from numpy.typing import NDArray
from recordings import FOLDER, needs_recordings
from refusals import refusals

import lowprec as lp
from lowprec import oracle
from lowprec._values import compared_fields
from lowprec.tensorcore.accumulator import FLOAT64, Accumulator, AlignedSum
from lowprec.tensorcore.kinds import KINDS
from lowprec.tensorcore.kinds.amd import OnesComplementSum
from lowprec.vectors.recordings import OUTPUTS, RECORDINGS, Recording, differing

MACHINES = lp.accumulators.names()
CATALOGUE = {name: lp.accumulators[name] for name in MACHINES}
SCALED = [name for name, machine in CATALOGUE.items() if machine.scale_format is not None]


def multiply(name: str, a: NDArray, b: NDArray, c: NDArray | None = None, **options: Any) -> NDArray:
    """``mma`` with scales of one where the machine wants any."""
    if name in SCALED:
        one, block = lp.encode(1.0, CATALOGUE[name].scale_format), CATALOGUE[name].scale_block
        scales = [np.full((len(x), x.shape[1] // block), one, np.uint8) for x in (a, b)]
        options = {"a_scale": scales[0], "b_scale": scales[1], **options}
    return lp.mma(a, b, c, accumulator=name, **options)


def lost_of_c(name: str) -> int:
    """Fraction bits of C that a group without products cuts."""
    machine = CATALOGUE[name]
    kept = machine.output_bits
    if isinstance(machine, AlignedSum):
        kept = min(kept, machine.fraction_bits)
    return np.finfo(machine.dtype).nmant - kept


def codes_for(name: str, values: NDArray) -> NDArray:
    fmt = CATALOGUE[name].default_format
    return values.astype(np.float64) if fmt == FLOAT64 else lp.encode(values.astype(np.float32), fmt)


def operands(name: str, m: int, n: int, k: int) -> tuple[NDArray, NDArray, NDArray]:
    """Values of a few binades, some of them zero, and C among the products."""
    rng = np.random.default_rng([0, m, n, k])
    spread = 1 if CATALOGUE[name].default_format == lp.formats["e2m1fn"] else 2.0 ** rng.integers(-2, 3, (m + n, k))
    x = codes_for(name, rng.standard_normal((m + n, k)) * spread * (rng.random((m + n, k)) > 0.1))
    c = (rng.standard_normal((m, n)) * 4).astype(CATALOGUE[name].dtype)
    return x[:m], x[m:], c


# Recordings


DECIDED = {"hopper_f16_f16", "hopper_bf16", "hopper_tf32"}  # of `test_capture.py`


@pytest.mark.sampled(15)
@needs_recordings
@pytest.mark.parametrize(
    "recording", RECORDINGS, ids=[f"{r.file}-{OUTPUTS}-outputs-{r.accumulator}" for r in RECORDINGS]
)
def test_recorded_bits(recording: Recording) -> None:
    assert differing(Path(FOLDER), recording) == (OUTPUTS, 0)


@pytest.mark.sampled(9)
@needs_recordings
@pytest.mark.parametrize("name", sorted({r.accumulator for r in RECORDINGS}))
def test_no_published_recording_decides_what_zeros_count_as(name: str) -> None:
    """`validated_against` excludes the field unless the recording of the H200 decides it."""
    recording = next(r for r in RECORDINGS if r.accumulator == name)
    assert ("not zero_exponent" in CATALOGUE[name].validated_against) == (name not in DECIDED)
    for other in (None, CATALOGUE[name].zero_exponent + 8):
        with lp.accumulators.scoped({name: replace(CATALOGUE[name], zero_exponent=other)}):
            assert differing(Path(FOLDER), recording) == (OUTPUTS, 0)


@needs_recordings
def test_no_recording_is_left_out() -> None:
    assert sorted(p.name for p in Path(FOLDER).glob("hw_km_*.npz")) == sorted(r.file for r in RECORDINGS)


def test_what_is_said_to_be_recorded_is() -> None:
    recorded = {name for name, machine in CATALOGUE.items() if machine.validated_against.startswith("recordings")}
    rdna = {name for name in CATALOGUE if name.startswith("rdna")}  # test_rdna.py
    rdna -= {"rdna4_f16_f16_dot2", "rdna4_bf16_bf16_dot2"}
    assert recorded == {r.accumulator for r in RECORDINGS} | {"hopper_fp8_mma", "hopper_fp8_f16"} | rdna


# Published vectors


@pytest.mark.sampled(6)
@pytest.mark.parametrize("vector", HOPPER_E4M3, ids=lambda vector: vector.name)
@pytest.mark.parametrize("name", ["hopper_fp8", "ada_fp8"])
def test_published_micro_vectors(name: str, vector: Dot) -> None:
    a, b = np.zeros((2, 1, 32), np.uint8)
    a[0, : len(vector.a)], b[0, : len(vector.b)] = (lp.encode(np.array(v), "e4m3fn") for v in (vector.a, vector.b))
    c = np.array([[vector.c]], np.uint32).view(np.float32)
    assert hex(bits(agree(lambda: lp.mma(a, b, c, accumulator=name))).item()) == hex(vector.d)


# Operands and the result on an H100, as MATLAB-tensor-core's issue 7 gives them: BF16 of about 1e-22, whose products
# are subnormal, as float32 words.
SUBNORMAL_A = """9b94 19f3 9a2e 1a67 9a25 9b4e 9b29 9a33 99e0 1a14 9914 99d1 9ae9 1b1a 9a9c 1b3a"""
SUBNORMAL_B = """9aaf 99f3 9acc 1b7c 19ed 1b25 9a1b 9a20 9af7 9a48 1ae1 1b32 1b12 1b0e 9a68 1735"""


def test_subnormal_bf16_products_on_hopper() -> None:
    """A zero c takes part in the alignment, far below the least normal: without that the last bit is another."""
    a, b = (np.array([[int(x, 16) for x in side.split()]], np.uint16) for side in (SUBNORMAL_A, SUBNORMAL_B))
    assert lp.mma(a, b, accumulator="hopper_bf16").item() == float.fromhex("0x1.6p-146")
    rule = oracle.ACCUMULATORS["hopper_bf16"].rule
    pair = (oracle.BFLOAT16, oracle.BFLOAT16)
    assert rule.dot(a[0].tolist(), b[0].tolist(), 0, *pair) == 0xB
    wrong = {e: replace(rule, zero_exponent=e).dot(a[0].tolist(), b[0].tolist(), 0, *pair) for e in (None, -126, 0)}
    assert wrong == {None: 0xA, -126: 0xA, 0: 0}


# All machines


@pytest.mark.parametrize("name", MACHINES)
def test_small_whole_numbers_are_exact(name: str) -> None:
    """Where nothing is rounded, all machines agree with arithmetic; ones' complements are never exact."""
    if isinstance(CATALOGUE[name], OnesComplementSum):
        pytest.skip("recordings show that RDNA3 is off by a unit here")
    rng = np.random.default_rng(5)
    a, b = rng.integers(-3, 4, (7, 64)) / 2, rng.integers(-3, 4, (150, 64)) / 2
    c = rng.integers(-8, 9, (7, 150)) / 2
    ours = multiply(name, codes_for(name, a), codes_for(name, b), c.astype(CATALOGUE[name].dtype))
    assert ours.dtype == CATALOGUE[name].dtype
    assert np.array_equal(ours, a @ b.T + c)


@pytest.mark.parametrize("name", MACHINES)
def test_results_do_not_depend_on_threads_or_neighbours(name: str, keep_threads: None) -> None:
    a, b, c = operands(name, 9, 140, 128)
    answers = []
    for count in (1, 3):
        lp.set_num_threads(count)
        answers.append(bits(multiply(name, a, b, c)))
    assert np.array_equal(*answers)
    assert np.array_equal(bits(multiply(name, a[3:4], b[130:133], c[3:4, 130:133])), answers[0][3:4, 130:133])


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["hopper_fp8", "hopper_bf16", "blackwell_nvfp4", "cdna1_f16", "cdna2_f16", "cdna3_f16"]
)
def test_threads_share_many_rows(name: str, keep_threads: None) -> None:
    """One machine of each sort of kernel: in float32 lanes, in float64 lanes, of runs with scales, AMD's three."""
    a, b, c = operands(name, 530, 70, 128)
    kernels = KERNELS if isinstance(CATALOGUE[name], AlignedSum) else ["auto"]
    for count in (1, 2, 3):
        lp.set_num_threads(count)
        agree(lambda: multiply(name, a, b, c), count, kernels=kernels)


@pytest.mark.parametrize("name", ["hopper_bf16", "blackwell_nvfp4", "cdna3_f16", "fp64"])
def test_operands_need_not_be_contiguous(name: str) -> None:
    a, b, c = operands(name, 6, 10, 64)
    loose = multiply(name, np.asfortranarray(a), np.repeat(b, 2, axis=0)[::2], np.asfortranarray(c))
    assert np.array_equal(bits(loose), bits(multiply(name, a, b, c)))


@pytest.mark.parametrize("name", MACHINES)
def test_empty_shapes(name: str) -> None:
    a, b, c = operands(name, 3, 4, 64)
    assert multiply(name, a[:0], b).shape == (0, 4)
    assert multiply(name, a, b[:0]).shape == (3, 0)
    none, lost = multiply(name, a[:, :0], b[:, :0], np.abs(c)), lost_of_c(name)
    assert np.array_equal(bits(none), bits(np.abs(c)) >> lost << lost)


def test_a_changed_machine_says_so() -> None:
    machine = lp.accumulators["hopper_fp8"].with_(align="floor", promote_every=128)
    assert machine.name == "hopper_fp8(align=floor, promote_every=128)"
    assert machine == lp.accumulators["hopper_fp8"].with_(promote_every=128).with_(align="floor")
    assert machine.validated_against == "not"
    assert machine.source == "what-if of hopper_fp8"


# Mistakes


def names() -> dict[str, Any]:
    def mma(machine: str, a: Any = None, b: Any = None, c: Any = None, **options: Any) -> Any:
        a = some if a is None else a
        return lp.mma(a, a if b is None else b, c, accumulator=machine, **options)

    def change(machine: str, **changes: Any) -> lp.Accumulator:
        return lp.accumulators[machine].with_(**changes)

    def plain(machine: str, **scales: Any) -> Any:
        zeros = codes_for(machine, np.zeros((1, 32)))
        return lp.mma(zeros, zeros, accumulator=machine, **scales)

    some, scale = np.zeros((2, 32), np.uint8), np.full((2, 1), 127, np.uint8)
    return {"mma": mma, "change": change, "plain": plain, "some": some, "scale": scale}


test_refused = pytest.mark.sampled(60)(refusals([
    ("mma('hopper_fp8', a_format='float16')", "hopper_fp8: operands must be of e4m3fn, e5m2, got float16"),
    ("mma('cdna3_fp8', a_format='e4m3fn')", "cdna3_fp8: operands must be of e4m3fnuz, e5m2fnuz, got e4m3fn"),
    ("mma('blackwell_mxf8')", r"mma: a_scale must be codes of e8m0fnu of shape \(2, 1\) with blackwell_mxf8, got None"),
    ("mma('blackwell_mxf8', a_scale=scale)", "mma: b_scale must be codes of e8m0fnu"),
    ("mma('blackwell_mxf8', a_scale=scale.T, b_scale=scale)",
     r"a_scale must have shape \(2, 1\), one code per 32 along K, got \(1, 2\)"),
    ("mma('hopper_fp8', a_scale=scale)", r"a_scale must be None, as hopper_fp8 takes no scales, got"),
    ("mma('blackwell_mxf8', some[:, :31])", "K must be a multiple of blackwell_mxf8's scale_block=32, got 31"),
    ("mma('hopper_fp8', c=np.zeros((2, 3), np.float32))", r"c must have shape \(2, 2\), got \(2, 3\)"),
    ("mma('blackwell_nvfp4', some + 16, some, a_scale=scale)", "codes of e2m1fn must be from 0 to 15, got 16"),
    ("mma('hopper_fp8', b=some[:, :16])", "must have the same K"),
    ("mma('fp64', a_format='e4m3fn')", "fp64: operands must be float64, got e4m3fn"),
    ("mma('hopper_fp8_f16', c=np.zeros((2, 2), np.float32))", TypeError, "c must be float16, .* got float32"),
    ("mma('hopper_fp8', np.zeros((2, 32), np.float32))", TypeError,
     "codes of e4m3fn must be unsigned integers, got float32"),
    ("mma('fp64')", TypeError, "fp64: operands must be float64 or their bits as uint64, got uint8"),
    ("mma('blackwell_mxf8', a_scale=np.ones((2, 1)), b_scale=scale)", TypeError,
     "codes of e8m0fnu must be unsigned integers, got float64"),
    ("change('hopper_fp8', group_size=0)", "group_size must be an integer from 1 to 1024, got 0"),
    *((f"change({name!r}, group_size=None)", "group_size must be an integer from 1 to 1024, got None")
      for name in ("hopper_fp8", "zvdota_fp8", "aiu_dl8")),
    ("change('hopper_fp8', output_format=3)", TypeError,
     r"FusedSum hopper_fp8\(output_format=3\): output_format must be a format or a name of one, got 3"),
    ("change('hopper_fp8', fraction_bits=41)", "fraction_bits must be an integer from 3 to 40, got 41"),
    ("change('hopper_fp8', align='up')", "align must be one of 'truncate', 'floor', 'nearest', got 'up'"),
    ("change('hopper_fp8', output_format='float64')",
     "output_format must be one of fp22, float32, float16, got float64"),
    ("change('hopper_fp8', promote_every=100)", "promote_every must be a multiple of group_size, 32, got 100"),
    ("change('cdna2_f16', align='floor')", TypeError, "unknown field 'align': expected one of name, input_formats,"),
    ("change('cdna3_f16', output_format='float16')", TypeError, "unknown field 'output_format'"),
    ("change('arm_fp8', output_format='fp22')", "output_format must be one of float32, float16, got fp22"),
    ("change('blackwell_mxf8', scale_block=0)",
     "scale_format and scale_block must be given together, got e8m0fnu and 0"),
    ("change('blackwell_mxf8', scale_format='e4m3fn')", "scale_format must have no mantissa bits .* got e4m3fn"),
    ("change('blackwell_nvfp4', group_size=24)", "exact_group must divide group_size=24 and scale_block=16, got 16"),
    ("change('cdna3_f16', scale_format='e8m0fnu', scale_block=32)", TypeError, "unknown field 'scale_format':"),
    ("change('hopper_fp8', saturate=True)", TypeError, "FusedSum.with_: unknown field 'saturate'"),
    ("change('amx_fp8', group_size=6)", "group_size must be a multiple of 4, 2 for each of 2 lanes, got 6"),
    ("change('amx_bf16', group_size=5)", "group_size must be a multiple of 2, 1 for each of 2 lanes, got 5"),
    ("change('arm_fp8', product_scale_log2=200)", "product_scale_log2 must be an integer from -127 to 127, got 200"),
    ("change('hopper_fp8', input_formats=3)", TypeError,
     "input_formats must be a format, a name of one or a sequence of them, got 3"),
    ("change('hopper_fp8', input_formats=('e9m9',))", "unknown format 'e9m9'"),
    ("lp.Accumulator('mine')", TypeError, "abstract class Accumulator"),
    *((f"plain({name!r}, {side}=np.ones((1, 1), np.uint8))",
       f"{side} must be None, as .* takes no scales")
      for name, side in product(MACHINES, ("a_scale", "b_scale")) if name not in SCALED),
], names))  # fmt: skip


# --- kinds of accumulators --------------------------------------------------------------------------------------------


ENTRIES = [lp.accumulators[name] for name in lp.accumulators.names()]


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_tells_its_words_and_its_oracle(kind: type[Accumulator]) -> None:
    assert 10 < len(kind.summary) < 120
    assert hasattr(oracle, kind.oracle_class), f"{kind.__name__}: lowprec.oracle has no {kind.oracle_class}"
    assert any(type(entry) is kind for entry in ENTRIES), f"no accumulator is a {kind.__name__}"


#: Other values of fields.
OTHERS: dict[str, tuple[Any, ...]] = {
    "group_size": (2, 4, 8, 16), "fraction_bits": (11, 5), "align": ("floor", "nearest"),
    "output_format": ("float16", "float32"), "zero_exponent": (3, -1), "exact_group": (2, 4, 1), "lanes": (2, 4, 1),
    "promote_every": (64, 128), "partial_rounding": ("nearest", "exact"), "sum_rounding": ("odd",),
    "rounded_sum": ("chunk",), "chunk_format": ("float16", "e5m2"),
}  # fmt: skip


def result(machine: Accumulator, codes: np.ndarray, scales: dict[str, Any]) -> bytes:
    fmt = "e2m1fn" if scales else "e5m2"
    d = lp.mma(codes, codes[::-1], accumulator=machine, a_format=fmt, b_format=fmt, **scales)
    return d.astype(np.float32).tobytes()


@pytest.mark.parametrize("kind", KINDS)
def test_its_fields_decide_bits(kind: type[Accumulator]) -> None:
    base = next(m for m in ENTRIES if type(m) is kind and m.dtype != np.float64).with_(input_formats=())
    if "rounded_sum" in compared_fields(kind):
        base = base.with_(rounded_sum="running")  # sums of rounded chunks are exact in float32, in any order
    rng = np.random.default_rng(3)
    scales = {}
    if base.scale_format is not None:
        shape = (12, 256 // base.scale_block)
        scales = {side: rng.integers(0, 0x7E, shape).astype(np.uint8) for side in ("a_scale", "b_scale")}
    codes = rng.integers(0, 16 if scales else 0x4C, (12, 256), dtype=np.uint8)  # some float16 sums stay finite
    codes |= (rng.integers(0, 2, codes.shape) << 7).astype(np.uint8) if not scales else np.uint8(0)
    codes[::3] = np.where(rng.random((4, 256)) < 0.8, 0, codes[::3])
    own = result(base, codes, scales)
    for field in compared_fields(kind):
        different = []
        for value in OTHERS.get(field, ()):
            try:
                if (machine := base.with_(**{field: value})) != base:
                    different.append(result(machine, codes, scales) != own)
            except ValueError:  # fields that do not go together
                continue
        if field in OTHERS and (different or field != "output_format"):  # the other may be float64
            assert any(different), f"{kind.__name__}: {field}"
