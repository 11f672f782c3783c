"""Every machine of the catalogue: recordings of real GPUs, published vectors, and what follows from the rules."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from recordings import FOLDER, needs_recordings

import lowprec as lp
from lowprec import oracle
from lowprec.conformance.recordings import OUTPUTS, RECORDINGS, Recording, differing
from lowprec.tensorcore.kinds import Exact, Fused, FusedRuns, Halves, Pairwise, Sequential, TwoFloors
from lowprec.tensorcore.kinds.x86 import Flushing

MACHINES = lp.accumulators.names()
CATALOGUE = {name: lp.accumulators[name] for name in MACHINES}
FUSED = [name for name, machine in CATALOGUE.items() if isinstance(machine.rule, Fused)]
SCALED = [name for name, machine in CATALOGUE.items() if machine.scale_format is not None]


def bits(x: NDArray) -> NDArray:
    return x.view(f"u{x.dtype.itemsize}")


def formats_of(name: str) -> list[str]:
    return list(CATALOGUE[name].inputs) or ["e4m3fn", "e5m2"]


def codes(values: NDArray, fmt: str) -> NDArray:
    return values.astype(np.float64) if fmt == "float64" else lp.encode(values.astype(np.float32), fmt)


def scales(name: str, rows: int, k: int, value: float = 1.0) -> NDArray[np.uint8]:
    machine = CATALOGUE[name]
    return np.full((rows, k // machine.scale_block), lp.encode(value, machine.scale_format), np.uint8)


def multiply(name: str, a: NDArray, b: NDArray, c: NDArray | None = None, machine=None, **options) -> NDArray:
    """``mma`` with scales of one where the machine wants any."""
    if name in SCALED:
        options.setdefault("a_scale", scales(name, len(a), a.shape[1]))
        options.setdefault("b_scale", scales(name, len(b), b.shape[1]))
    return lp.mma(a, b, c, accumulator=machine or name, **options)


def kept_of_c(name: str) -> int:
    """Fraction bits that a group without products leaves of C."""
    machine = CATALOGUE[name]
    cut = isinstance(machine.rule, (Fused, FusedRuns))
    return min(machine.fraction_bits, machine.output_bits) if cut else machine.output_bits


def operands(name: str, m: int, n: int, k: int, seed: int = 0) -> tuple[NDArray, NDArray, NDArray]:
    """Values of a few binades, some of them zero, and C among the products."""
    rng = np.random.default_rng([seed, m, n, k])
    fmt = formats_of(name)[0]
    spread = 1 if fmt == "e2m1fn" else 2.0 ** rng.integers(-2, 3, (m + n, k))
    values = rng.standard_normal((m + n, k)) * spread * (rng.random((m + n, k)) > 0.1)
    x = codes(values, fmt)
    c = (rng.standard_normal((m, n)) * 4).astype(CATALOGUE[name].dtype)
    return x[:m], x[m:], c


# Recordings


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
def test_no_recording_decides_what_zeros_count_as(name: str) -> None:
    """`verified` says so of this field; one recording of each accumulator."""
    recording = next(r for r in RECORDINGS if r.accumulator == name)
    assert "not zero_exponent" in CATALOGUE[name].verified
    for other in (None, CATALOGUE[name].zero_exponent + 8):
        with lp.accumulators.scoped({name: replace(CATALOGUE[name], zero_exponent=other)}):
            assert differing(Path(FOLDER), recording) == (OUTPUTS, 0)


@needs_recordings
def test_no_recording_is_left_out() -> None:
    assert sorted(p.name for p in Path(FOLDER).glob("hw_km_*.npz")) == sorted(r.file for r in RECORDINGS)


def test_what_is_said_to_be_recorded_is() -> None:
    told = {name for name, machine in CATALOGUE.items() if machine.verified.startswith("recordings")}
    assert told == {r.accumulator for r in RECORDINGS} | {"hopper_fp8_mma"}


# Published vectors

DISCREPANCY = {
    0.0: ["hopper_fp8", "ada_fp8", "volta_f16", "cdna2_f16"],
    -0.5: [
        "turing_f16", "ampere_f16", "ampere_tf32", "ada_f16", "ada_tf32", "cdna3_xf32", "cdna3_f16", "cdna3_bf16"
    ],
    -0.75: [
        *(f"{m}_{t}" for m in ("hopper", "blackwell") for t in ("f16", "bf16", "tf32")),
        "blackwell_fp8", "rtx_blackwell_fp8", "blackwell_mxf8",
    ],
    -0.875: ["cdna1_f16", "cdna1_bf16", "exact"],
    -0.375: ["cdna2_bf16"],
    -1.0: ["cdna3_fp8"],
}  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", [name for names in DISCREPANCY.values() for name in names])
def test_discrepancy_vector(name: str) -> None:
    fmt = {"cdna3_fp8": "e5m2fnuz"}.get(name, "e5m2" if "e5m2" in formats_of(name) else formats_of(name)[0])
    k = max(4, CATALOGUE[name].scale_block)
    a, b = np.zeros((2, 1, k), np.float32)
    a[0, :4], b[0, :4] = (-(2.0**13), -0.5, -0.25, -0.125), (2.0**10, 1, 1, 1)
    d = multiply(
        name, lp.encode(a, fmt), lp.encode(b, fmt), np.float32([[2.0**23]]), a_format=fmt, b_format=fmt
    )  # fmt: skip
    assert {d.item()} == {value for value, names in DISCREPANCY.items() if name in names}


@pytest.mark.parametrize("name", ["hopper_fp8_f16", "ada_fp8_f16", "hopper_f16_f16", "blackwell_fp8_f16"])
def test_a_tie_at_the_top_of_float16_is_infinite(name: str) -> None:
    """65504 + 16 = 65520 lies between the largest float16 and 2^16."""
    fmt = formats_of(name)[0]
    one, sixteen = lp.encode(np.ones((1, 1)), fmt), lp.encode(np.full((1, 1), 16), fmt)
    assert lp.mma(sixteen, one, np.float16([[65504]]), accumulator=name).item() == np.inf
    assert lp.mma(one, one, np.float16([[65504]]), accumulator=name).item() == 65504


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
    """Where nothing is rounded, all machines agree with arithmetic."""
    rng = np.random.default_rng(5)
    fmt, k = formats_of(name)[0], 64
    a, b = rng.integers(-3, 4, (7, k)) / 2, rng.integers(-3, 4, (150, k)) / 2
    c = rng.integers(-8, 9, (7, 150)) / 2
    machine = CATALOGUE[name]
    ours = multiply(name, codes(a, fmt), codes(b, fmt), c.astype(machine.dtype))
    assert ours.dtype == machine.dtype
    assert np.array_equal(ours, a @ b.T + c)


@pytest.mark.parametrize("name", MACHINES)
def test_results_do_not_depend_on_threads_or_neighbours(name: str) -> None:
    machine = CATALOGUE[name]
    a, b, c = operands(name, 9, 140, 128)
    threads = lp.get_num_threads()
    try:
        answers = []
        for count in (1, 3):
            lp.set_num_threads(count)
            answers.append(bits(multiply(name, a, b, c)))
    finally:
        lp.set_num_threads(threads)
    assert np.array_equal(*answers)
    assert np.array_equal(bits(multiply(name, a[3:4], b[130:133], c[3:4, 130:133])), answers[0][3:4, 130:133])
    assert machine.output != "fp22" or not np.any(answers[0] & 0x3FF)


@pytest.mark.parametrize("name", [name for name in MACHINES if CATALOGUE[name].rule.has_running_sum])
def test_a_chain_is_its_instructions(name: str) -> None:
    """Each group (each instruction of the two-step machines) takes the previous D as its C."""
    machine = CATALOGUE[name]
    step = max(machine.rule.step(machine), machine.scale_block)
    a, b, c = operands(name, 6, 5, 4 * step)
    d = c
    for k in range(0, 4 * step, step):
        d = multiply(name, np.ascontiguousarray(a[:, k : k + step]), b[:, k : k + step], d)
    assert np.array_equal(bits(multiply(name, a, b, c)), bits(d))


@pytest.mark.parametrize("name", MACHINES)
def test_zeros_fill_a_short_instruction(name: str) -> None:
    machine = CATALOGUE[name]
    k = max(machine.scale_block, 5)
    a, b, c = operands(name, 6, 5, k)
    step = max(machine.rule.step(machine), machine.scale_block)
    # A group of nothing but zeros cuts what it is given to its fraction bits: with few of them one instruction is all.
    whole = 192 if kept_of_c(name) == machine.output_bits else -(-k // step) * step
    pad = [(0, 0), (0, whole - k)]
    assert np.array_equal(bits(multiply(name, np.pad(a, pad), np.pad(b, pad), c)), bits(multiply(name, a, b, c)))


@pytest.mark.parametrize(
    "name", [name for name in MACHINES if not isinstance(CATALOGUE[name].rule, Sequential | Flushing)]
)
def test_order_within_a_group_does_not_matter(name: str) -> None:
    """Pairs of CDNA2 may be swapped, lanes of CDNA3's FP8 and halves of FP8 instructions permuted."""
    machine = CATALOGUE[name]
    rule = machine.rule
    group = 64 if isinstance(rule, Exact) else rule.step(machine)
    a, b, c = operands(name, 8, 7, group)
    rng = np.random.default_rng(3)
    order = rng.permutation(group)
    if isinstance(rule, Pairwise):
        order = np.arange(group).reshape(-1, 2)[::-1, ::-1].ravel()
    elif isinstance(rule, TwoFloors) and machine.run == 2:
        order = np.stack([2 * rng.permutation(group // 2), 2 * rng.permutation(group // 2) + 1], axis=1).ravel()
    elif isinstance(rule, Halves):
        order = np.arange(32).reshape(-1, 4)[rng.permutation(8)][:, [1, 0, 3, 2]].ravel()
    elif isinstance(rule, FusedRuns):
        order = np.concatenate([16 * r + rng.permutation(16) for r in range(4)])
    ours = multiply(name, a[:, order], b[:, order], c)
    assert np.array_equal(bits(ours), bits(multiply(name, a, b, c)))


@pytest.mark.parametrize("name", [name for name in MACHINES if CATALOGUE[name].dtype != "float64"])
def test_specials(name: str) -> None:
    """NaN and infinities in C and operands: IEEE's class of the sum, one NaN."""
    machine = CATALOGUE[name]
    fmt = lp.formats[formats_of(name)[0]]
    nan = 0x7FFF if machine.output == "float16" else 0x7FFFFFFF
    a, b, _ = operands(name, 5, 5, 64)
    c = np.zeros((5, 5), machine.dtype)
    c[0, 0], c[1, 1], c[2, 2] = np.nan, np.inf, -np.inf
    clean = multiply(name, a, b)
    assert np.isfinite(clean).all()
    d = multiply(name, a, b, c)
    assert bits(d)[0, 0] == nan
    assert d[1, 1] == np.inf
    assert d[2, 2] == -np.inf
    assert np.array_equal(bits(d)[3:], bits(clean)[3:])
    if fmt.nan_code is None:
        return
    a, b = a.copy(), b.copy()
    a[4, 40] = fmt.nan_code
    d = multiply(name, a, b, c)
    assert np.all(bits(d)[4] == nan)
    assert np.array_equal(bits(d)[3], bits(clean)[3])
    if fmt.inf_code is None:
        return
    one, zero = lp.encode(1.0, fmt), lp.encode(0.0, fmt)
    a[:], b[:] = zero, one
    a[0, 3], a[1, 3], a[2, 3], a[3, 3] = (fmt.inf_code,) * 4
    a[1, 60] = fmt.inf_code | fmt.sign_mask
    b[2, 3] = b[3, 60] = zero
    d = multiply(name, a, b, c)
    assert d[0, 1] == d[0, 3] == d[3, 1] == np.inf
    assert np.all(bits(d)[1] == nan)  # both infinities
    assert bits(d)[0, 2] == nan  # Inf * 0
    assert bits(d)[2, 2] == nan
    assert np.array_equal(d[4], np.zeros(5))


@pytest.mark.parametrize("name", FUSED)
def test_empty_sums_cut_c(name: str) -> None:
    """No products at all: C in the machine's format, its zeros positive."""
    machine = CATALOGUE[name]
    a, b, _ = operands(name, 3, 4, 32)
    zeros = np.zeros_like(a)
    zeros[1] = lp.formats[formats_of(name)[0]].sign_mask
    c = np.array([[1.0, -0.0, 3.14159, -2.0]] * 3, machine.dtype)
    d = multiply(name, zeros, b, c)
    expected = np.where(c == 0, np.zeros((), c.dtype), c)
    if machine.output == "fp22":
        expected = (expected.view(np.uint32) & 0xFFFFFC00).view(np.float32)
    assert np.array_equal(bits(d), bits(expected))


@pytest.mark.parametrize("name", ["cdna1_f16", "cdna2_bf16", "cdna3_f16", "cdna3_fp8"])
def test_signs_of_zero_outside_nvidia(name: str) -> None:
    """An exact zero is +0; C = -0 is flushed or joins an exact sum."""
    fmt = formats_of(name)[0]
    x = lp.encode(np.array([[1.0, 1.0]]), fmt)
    y = lp.encode(np.array([[1.0, -1.0]]), fmt)
    assert bits(lp.mma(x, y, np.float32([[-0.0]]), accumulator=name)).item() == 0


def test_cdna2_flushes_subnormals() -> None:
    one, tiny = lp.encode(np.ones((1, 1)), "bfloat16"), np.array([[0x0040]], np.uint16)
    smallest = np.array([[0x0080]], np.uint16)  # 2^-126
    half = lp.encode(np.full((1, 1), -0.5), "bfloat16")
    assert lp.mma(tiny, one, accumulator="cdna2_bf16").item() == 0
    assert lp.mma(tiny, one, accumulator="cdna1_bf16").item() == 2.0**-127
    assert lp.mma(smallest, one, accumulator="cdna2_bf16").item() == 2.0**-126
    assert lp.mma(smallest, half, accumulator="cdna2_bf16").item() == 0
    assert lp.mma(one, one, np.array([[0x007FFFFF]], np.uint32).view("f4"), accumulator="cdna2_bf16").item() == 1


def test_cdna3_rounds_downwards_where_others_truncate() -> None:
    """With C far above it, a negative product becomes -1 unit, a positive one nothing; FP8 forgets a small C."""
    tiny = 2.0**-8
    a, b = lp.encode(np.array([[tiny], [-tiny]]), "e5m2fnuz"), lp.encode(np.array([[tiny]]), "e5m2fnuz")
    large = np.full((2, 1), 2.0**23, np.float32)
    d = lp.mma(a, b, large, accumulator="cdna3_fp8", a_format="e5m2fnuz", b_format="e5m2fnuz")
    assert d.ravel().tolist() == [2.0**23, 2.0**23]  # -2^-9 is rounded away at the end
    one = lp.encode(np.ones((1, 1)), "float16")
    below = np.float32([[-(2.0**-60)]])
    assert lp.mma(one, one, below, accumulator="cdna3_f16").item() == 1 - 2.0**-24
    eight = lp.encode(np.ones((1, 1)), "e4m3fnuz")
    assert lp.mma(eight, eight, below, accumulator="cdna3_fp8").item() == 1


def test_fp64_is_a_chain_of_fused_multiply_adds() -> None:
    rng = np.random.default_rng(1)
    a, b, c = rng.standard_normal((3, 9)), rng.standard_normal((4, 9)), rng.standard_normal((3, 4))
    d = lp.mma(a.view(np.uint64), b, c, accumulator="fp64")
    for i in range(3):
        for j in range(4):
            right = oracle.exact(float(c[i, j]))
            for x, y in zip(a[i], b[j], strict=True):
                total = oracle.exact(float(x)) * oracle.exact(float(y)) + right
                right = oracle.exact(total.numerator / total.denominator)  # int / int rounds correctly
            assert d[i, j] == float(right)


def test_tf32_drops_the_low_bits_of_float32() -> None:
    x = np.array([[0x3F801FFF, 0x7F800001]], np.uint32)
    one = np.array([[0x3F800000, 0]], np.uint32)
    for name in ("ampere_tf32", "hopper_tf32", "cdna3_xf32"):
        assert lp.mma(x[:, :1], one[:, :1], accumulator=name).item() == 1
        assert lp.mma(x[:, 1:], one[:, :1], accumulator=name).item() == np.inf  # its NaN had only low bits
        assert np.isnan(lp.mma(x, one, accumulator=name).item())  # Inf * 0
        narrow = lp.mma(x[:, :1] >> 13, one[:, :1] >> 13, accumulator=name, a_format="tf32", b_format="tf32")
        assert narrow.item() == 1


def test_zero_exponent_hides_what_lies_far_below() -> None:
    """With a zero among the terms (here C), terms are cut at 2^(e0 - F), 2^-158 on Hopper."""
    a = lp.encode(np.array([[127 * 2.0**-70] + [1.75 * 2.0**-79] * 15]), "bfloat16")
    b = lp.encode(np.array([[2.0**-86] + [2.0**-80] * 15]), "bfloat16")
    hopper = lp.accumulators["hopper_bf16"]
    assert lp.mma(a, b, accumulator=hopper).item() == 0  # 508/512 of 2^-149, and fifteen times 7/8 of 2^-158
    assert lp.mma(a, b, accumulator=hopper.with_(zero_exponent=None)).item() == 2.0**-149
    assert lp.mma(a, b, accumulator=hopper.with_(zero_exponent=-134)).item() == 2.0**-149


# Scales inside the instruction


@pytest.mark.parametrize("name", ["blackwell_mxf8", "rtx_blackwell_mxf8"])
@pytest.mark.parametrize("pair", [("e4m3fn", "e5m2"), ("e2m1fn", "e3m2fn"), ("e2m3fn", "e2m3fn")], ids="-".join)
def test_scales_of_a_whole_block_are_powers_of_two(name: str, pair: tuple[str, str]) -> None:
    """2^3 and 2^-5 in the instruction are 2^-2 on the result; scales of one change nothing."""
    rng = np.random.default_rng(2)
    a, b = (rng.integers(0, lp.formats[f].max_code + 1, (5, 96)).astype(np.uint8) for f in pair)
    options = {"a_format": pair[0], "b_format": pair[1]}
    plain = lp.mma(a, b, accumulator=name.replace("mxf8", "fp8"), **options)
    assert np.array_equal(bits(multiply(name, a, b, **options)), bits(plain))
    scaled = multiply(name, a, b, a_scale=scales(name, 5, 96, 8), b_scale=scales(name, 5, 96, 2.0**-5), **options)
    assert np.array_equal(bits(scaled), bits(plain * np.float32(0.25)))


@pytest.mark.parametrize("name", SCALED)
def test_each_block_has_its_own_scale(name: str) -> None:
    machine = CATALOGUE[name]
    block, k = machine.scale_block, 4 * machine.scale_block
    a, b = np.ones((2, 1, k))
    fmt = formats_of(name)[0]
    sa, sb = np.array([[1.0, 2.0, 0.25, 4.0]]), np.array([[2.0, 0.5, 1.0, 8.0]])
    d = multiply(
        name, codes(a, fmt), codes(b, fmt), a_scale=lp.encode(sa, machine.scale_format),
        b_scale=lp.encode(sb, machine.scale_format),
    )  # fmt: skip
    assert d.item() == block * (sa * sb).sum()


@pytest.mark.parametrize("name", SCALED)
def test_a_nan_scale_makes_nan(name: str) -> None:
    a, b, _ = operands(name, 3, 4, 128)
    sa = scales(name, 3, 128)
    sa[1, -1] = lp.formats[CATALOGUE[name].scale_format].nan_code
    d, clean = multiply(name, a, b, a_scale=sa), multiply(name, a, b)
    assert np.all(bits(d)[1] == 0x7FFFFFFF)
    assert np.array_equal(bits(d)[[0, 2]], bits(clean)[[0, 2]])
    sb = scales(name, 4, 128)
    sb[2, 0] = sa[1, -1]
    assert np.all(bits(multiply(name, a, b, b_scale=sb))[:, 2] == 0x7FFFFFFF)


def test_nvfp4_scales() -> None:
    """E4M3's sign is ignored; zero and subnormal scales; a run that cancels keeps its exponent."""
    name = "blackwell_nvfp4"
    a, b, _ = operands(name, 3, 4, 64)
    sa = lp.encode(np.full((3, 4), 1.125), "e4m3fn")
    assert np.array_equal(
        bits(multiply(name, a, b, a_scale=sa | np.uint8(0x80))), bits(multiply(name, a, b, a_scale=sa))
    )
    assert not multiply(name, a, b, a_scale=np.zeros_like(sa)).any()
    ones = np.full((1, 64), lp.encode(1.0, "e2m1fn"), np.uint8)
    assert multiply(name, ones, ones, a_scale=np.ones((1, 4), np.uint8)).item() == 64 * 2.0**-9
    left, right = ones.copy(), np.zeros_like(ones)
    left[0, :2], right[0, :2] = 0x2, (0x2, 0xA)  # 1 * 1 - 1 * 1 in the first run,
    right[0, 16] = 0x2  # 1 * 1 in the second
    sa, sb = np.array([[0x7E, 1, 1, 1]], np.uint8), np.array([[0x7E, 1, 1, 1]], np.uint8)  # 448 and 2^-9
    assert multiply(name, left, right, a_scale=sa, b_scale=sb).item() == 2.0**-18  # 2^16 * 2^-35 is below that
    narrow = lp.accumulators[name].with_(fraction_bits=30)
    assert multiply(name, left, right, machine=narrow, a_scale=sa, b_scale=sb).item() == 0


# What if


@pytest.mark.parametrize("name", ["hopper_fp8", "hopper_bf16", "hopper_fp8_f16", "blackwell_mxf8", "cdna3_f16"])
def test_a_machine_that_promotes(name: str) -> None:
    """Every 64 products the sum goes to a float32 one and the next chain starts from +0."""
    a, b, c = operands(name, 4, 5, 200 if name not in SCALED else 192)
    total = c.astype(np.float32)
    for k in range(0, a.shape[1], 64):
        total += multiply(name, a[:, k : k + 64], b[:, k : k + 64])
    ours = multiply(name, a, b, c, machine=lp.accumulators[name].with_(promote_every=64))
    assert np.array_equal(bits(ours), bits(total.astype(c.dtype)))


def test_nan_in_c_through_promotion_and_halves() -> None:
    """Signalling NaNs warn nobody, and come out as the one NaN."""
    zeros = np.zeros((1, 64), np.uint8)
    half = np.array([[0x7C01]], np.uint16).view(np.float16)
    single = np.array([[0x7F800001]], np.uint32).view(np.float32)
    for name, c, nan in [("hopper_fp8_f16", half, 0x7FFF), ("hopper_fp8_mma_f16", half, 0x7FFF),
                         ("hopper_fp8", single, 0x7FFFFFFF), ("blackwell_fp8_mma", single, 0x7FFFFFFF)]:  # fmt: skip
        assert bits(lp.mma(zeros, zeros, c, accumulator=name)).item() == nan
        machine = lp.accumulators[name].with_(promote_every=64)
        assert bits(lp.mma(zeros, zeros, c, accumulator=machine)).item() == nan


def test_a_changed_machine_says_so() -> None:
    machine = lp.accumulators["hopper_fp8"].with_(align="floor", promote_every=128)
    assert machine.name == "hopper_fp8(align=floor,promote_every=128)"
    assert machine.verified == "not"
    assert "hopper_fp8" in machine.source


# Mistakes

SOME = np.zeros((2, 32), np.uint8)
SCALE = np.full((2, 1), 127, np.uint8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"accumulator": "hopper_fp8", "a_format": "float16"}, "hopper_fp8 takes e4m3fn, e5m2, not float16"),
        ({"accumulator": "cdna3_fp8", "a_format": "e4m3fn"}, "cdna3_fp8 takes e4m3fnuz, e5m2fnuz, not e4m3fn"),
        ({"accumulator": "blackwell_mxf8"}, r"blackwell_mxf8 needs a_scale: codes of e8m0fnu, shape \(2, 1\)"),
        ({"accumulator": "blackwell_mxf8", "a_scale": SCALE}, r"blackwell_mxf8 needs b_scale"),
        (
            {"accumulator": "blackwell_mxf8", "a_scale": SCALE.T, "b_scale": SCALE},
            r"a_scale is \(1, 2\), needed is \(2, 1\): one code for 32 along K",
        ),
        ({"accumulator": "hopper_fp8", "a_scale": SCALE}, "hopper_fp8 takes no scales .* a_scale was given"),
        ({"accumulator": "blackwell_mxf8", "b": SOME[:, :31], "a": SOME[:, :31]}, "K = 31 is not a multiple of 32"),
        ({"accumulator": "hopper_fp8", "c": np.zeros((2, 3), np.float32)}, r"c is \(2, 3\), needed is \(2, 2\)"),
        ({"accumulator": "blackwell_nvfp4", "a": SOME + 16, "a_scale": SCALE}, "code 16 is outside e2m1fn's 0..15"),
        ({"accumulator": "hopper_fp8", "b": SOME[:, :16]}, "K differs"),
        ({"accumulator": "fp64", "a_format": "e4m3fn"}, "fp64 takes float64, not e4m3fn"),
    ],
)
def test_values_that_do_not_fit(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lp.mma(options.pop("a", SOME), options.pop("b", SOME), options.pop("c", None), **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"c": np.zeros((2, 2), np.float32), "accumulator": "hopper_fp8_f16"}, "c is float32, needed is float16"),
        ({"c": np.zeros((2, 2), complex)}, "mma: c: values of type complex128"),
        ({"a": np.zeros((2, 32), np.float32)}, "codes of e4m3fn are unsigned integers, not float32"),
        ({"a": SOME, "accumulator": "fp64"}, "float64 numbers or their bits as uint64, not uint8"),
        (
            {"a_scale": np.ones((2, 1)), "b_scale": SCALE, "accumulator": "blackwell_mxf8"},
            "codes of e8m0fnu are unsigned integers, not float64",
        ),
    ],
)
def test_types_that_do_not_fit(options: dict, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        lp.mma(options.pop("a", SOME), SOME, **options)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("hopper_fp8", {"group": 0}, "group=0: 1 to 256"),
        ("hopper_fp8", {"group": 257}, "group=257"),
        ("hopper_fp8", {"fraction_bits": 41}, "fraction_bits=41: 3 to 40"),
        ("hopper_fp8", {"fraction_bits": 2.5}, "fraction_bits=2.5"),
        ("hopper_fp8", {"align": "up"}, "align='up': one of truncate, floor, nearest"),
        ("hopper_fp8", {"output": "float64"}, "output='float64': one of fp22, float32, float16"),
        ("hopper_fp8", {"promote_every": 100}, "promote_every=100 is not a multiple of the group of 32"),
        ("cdna2_f16", {"align": "floor"}, "align='floor': one of truncate"),
        ("cdna3_f16", {"output": "float16"}, "output='float16': one of float32"),
        ("blackwell_mxf8", {"scale_block": 0}, "scale_format and scale_block go together"),
        ("blackwell_mxf8", {"scale_format": "e4m3fn"}, "a fused sum takes powers of two"),
        ("blackwell_nvfp4", {"group": 24}, "run=16 must divide scale_block=16 and group=24"),
        ("cdna3_f16", {"scale_format": "e8m0fnu", "scale_block": 32}, "takes no scales"),
    ],
)
def test_machines_that_cannot_be(name: str, changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lp.accumulators[name].with_(**changes)


def test_operands_need_not_be_contiguous() -> None:
    for name in ("hopper_bf16", "blackwell_nvfp4", "cdna3_f16", "fp64"):
        a, b, c = operands(name, 6, 10, 64)
        right = multiply(name, a, b, c)
        loose = multiply(name, np.asfortranarray(a), np.repeat(b, 2, axis=0)[::2], np.asfortranarray(c))
        assert np.array_equal(bits(loose), bits(right))


@pytest.mark.parametrize("name", MACHINES)
def test_empty_shapes(name: str) -> None:
    a, b, c = operands(name, 3, 4, 64)
    assert multiply(name, a[:0], b).shape == (0, 4)
    assert multiply(name, a, b[:0]).shape == (3, 0)
    none = multiply(name, a[:, :0], b[:, :0], np.abs(c))
    lost = np.finfo(c.dtype).nmant - kept_of_c(name)
    assert np.array_equal(bits(none), bits(np.abs(c)) >> lost << lost)


@pytest.mark.parametrize("side", ["a_scale", "b_scale"])
@pytest.mark.parametrize(
    "name", [name for name in lp.accumulators.names() if lp.accumulators[name].scale_format is None]
)
def test_scales_are_refused_where_there_are_none(name, side):
    fmt = lp.accumulators[name].default_format
    codes = np.zeros((1, 32), np.float64 if fmt == "float64" else lp.formats[fmt].code_dtype)
    with pytest.raises(ValueError, match=f"takes no scales inside the instruction, but {side} was given"):
        lp.mma(codes, codes, accumulator=name, **{side: np.ones((1, 1), np.uint8)})
