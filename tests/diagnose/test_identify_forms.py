"""Normal forms of candidates: equal forms give equal results, at all edges; near misses give another."""

import numpy as np
import pytest
from dumps import candidate, mma, plain_dump

import lowprec as lp
from lowprec.diagnose.identify.candidate import Candidate, GemmCandidate, MmaCandidate
from lowprec.diagnose.identify.dump import GemmDump
from lowprec.diagnose.identify.normal_form import NormalForms
from lowprec.tensorcore.accumulator import heeded_fields
from tests.diagnose.test_identify_blind import draw

K, LONG = 12, 140  # the second has two runs of a split K


def operands(
    seed: int, with_c: bool = False, k: int = K, fmt: str = "e4m3fn", out: str = "float32", side: int = 20
) -> GemmDump:
    """Return operands with subnormals, zeros of both signs, the largest numbers and some NaN and Inf, and such a C."""
    rng = np.random.default_rng(seed)
    sign = 1 << (lp.formats[fmt].bits - 1)
    codes = rng.integers(0, 2 * sign, (2, side, k)).astype(np.uint8)
    codes[:, :4] &= sign | 1 | sign >> 5  # the smallest numbers
    codes[:, 4:7] = np.where(rng.random((2, 3, k)) < 0.8, sign, codes[:, 4:7])
    codes[:, 7:10] = np.where(rng.random((2, 3, k)) < 0.8, 0, codes[:, 7:10])
    codes[:, 10] = sign
    codes[:, 11:13] |= sign - sign // 8
    for x in codes[:, :-2].reshape(-1, k) if sign == 0x80 else ():
        x[(x & 0x7F) >= 0x7C] &= 0x8F
    c = None
    if with_c:
        width = np.uint16 if out == "float16" else np.uint32
        top = np.iinfo(width).max // 2 + 1
        c = rng.integers(0, 2 * top, (side, side)).astype(width)
        largest = int(np.finfo(out).max.view(width))
        edges = np.array([0, 1, largest, largest - 1, int(np.dtype(out).type(1).view(width))])[:, None]
        c[:5], c[5:10] = edges, edges | top
        c[10] = top
        c = c.view(out)
    return plain_dump(*codes, c, np.zeros((side, side), out), fmt)


def outputs(candidate: Candidate, dump: GemmDump) -> np.ndarray:
    return np.concatenate([candidate.outputs(part).ravel() for part in dump.parts()])


def around(machine: lp.Accumulator) -> list[Candidate]:
    """Return an accumulator with fields of edges, and within libraries."""
    found = [MmaCandidate(machine)]
    for changes in (
        {"promote_every": K}, {"promote_every": machine.step()}, {"promote_every": 2 * K}, {"group_size": 16},
        {"group_size": 32}, {"group_size": 1}, {"group_size": 2}, {"group_size": 4}, {"saturate": True},
        {"zero_exponent": -40}, {"zero_exponent": None}, {"zero_exponent": -3}, {"fraction_bits": 40},
        {"fraction_bits": 39},
        {"daz_formats": ("e5m2",)}, {"daz_formats": ("e4m3fn",)}, {"lanes": 1}, {"lanes": 2}, {"align": "floor"},
        {"product_scale_log2": 0}, {"output_format": "float32"},
    ):  # fmt: skip
        try:
            found.append(
                MmaCandidate(machine.with_(**{n: v for n, v in changes.items() if n in heeded_fields(type(machine))}))
            )
        except ValueError:
            continue
    plain = machine.with_(promote_every=None) if "promote_every" in heeded_fields(type(machine)) else machine
    for library in (
        lp.GemmLibrary("x", "end", None), lp.GemmLibrary("x", "end", 8), lp.GemmLibrary("x", k_order="interleaved"),
        lp.GemmLibrary("x", "promotion", 8, fma_promotion=False), lp.GemmLibrary("x", split_k=2),
        lp.GemmLibrary("x", split_k=2, split_k_reduction="out"),
    ):  # fmt: skip
        found.append(GemmCandidate(plain, library))
    return found


@pytest.mark.sampled(0, default=2)
@pytest.mark.parametrize(("fmt", "out", "with_c", "k"), [
    ("e4m3fn", "float32", False, K), ("e4m3fn", "float32", True, K), ("e4m3fn", "float16", False, K),
    ("e5m2", "float32", False, K), ("e5m2", "float16", True, K), ("e2m1fn", "float32", False, K),
    ("e4m3fn", "float32", True, LONG), ("e4m3fn", "float16", True, LONG),
])  # fmt: skip
def test_what_has_one_form_gives_one_result(fmt: str, out: str, with_c: bool, k: int) -> None:
    rng = np.random.default_rng(11)
    drawn = [draw(rng) for _ in range(60)]
    catalogue = [lp.accumulators[name].with_(input_formats=()) for name in lp.accumulators]
    machines = [m for m in (*catalogue, *drawn) if m.scale_format is None and m.dtype == out]
    dumps = [operands(seed, with_c, k, fmt, out) for seed in range(3)]
    candidates = [c for m in machines for c in around(m) if all(map(c.applies, dumps[0].parts()))]
    classes = NormalForms(dumps[0]).classes(list({c.key(): c for c in candidates}.values()))
    several = [some for some in classes if len(some) > 1]
    assert len(several) > 10, "otherwise nothing is asked"
    assert len({tuple(type(c.accumulator) for c in some) for some in several}) > 5
    for some in several:
        for dump in dumps:
            wanted = outputs(some[0], dump)
            for other in some[1:]:
                wrong = outputs(other, dump) != wanted
                assert not wrong.any(), f"{some[0]} and {other}: {wrong.sum()} outputs differ"


#: Pairs that have one form without C, and what takes it away: another field.
PAIRS = [
    (candidate("cdna1_bf16", group_size=2, promote_every=2), candidate("arm_bf16_ebf"), {"promote_every": 4}),
    (candidate("cdna1_bf16", group_size=4), candidate("arm_fp8", group_size=4), {"group_size": 3}),
    (candidate("arm_fp8"), candidate("arm_fp8", saturate=True), {"product_scale_log2": -1}),
    (candidate("cdna1_bf16", group_size=1), candidate("float32"), {"group_size": 4}),
    (candidate("cdna1_bf16", group_size=16), candidate("exact"), {"group_size": 8}),
    (candidate("hopper_fp8"), candidate("hopper_fp8", promote_every=32), {"fraction_bits": 3}),
    (candidate("hopper_fp8_mma", group_size=9, fraction_bits=34, promote_every=8),
     candidate("turing_f16", group_size=8, fraction_bits=40, zero_exponent=None, promote_every=8),
     {"promote_every": 10}),
    (candidate("hopper_fp8", zero_exponent=-30), candidate("hopper_fp8"), {"zero_exponent": 20}),
    (candidate("ada_fp8", fraction_bits=40, align="floor"), candidate("ada_fp8", fraction_bits=39),
     {"fraction_bits": 9}),
    (candidate("cdna3_xf32", promote_every=2 * K), candidate("cdna3_xf32"), {"promote_every": 4}),
    (candidate("ada_fp8", group_size=4, fraction_bits=3, zero_exponent=-12),
     candidate("ada_fp8", group_size=4, fraction_bits=3, zero_exponent=None), {"zero_exponent": 3}),
    (candidate("hopper_fp8_mma", group_size=9, promote_every=18),
     candidate("turing_f16", group_size=9, fraction_bits=25, zero_exponent=None, promote_every=18),
     {"fraction_bits": 15}),
    (candidate("hopper_fp8", group_size=3, fraction_bits=10, zero_exponent=-34, output_format="fp22"),
     candidate("hopper_fp8", group_size=3, fraction_bits=10, zero_exponent=-34, output_format="float32"),
     {"group_size": 12, "fraction_bits": 13}),
]  # fmt: skip


@pytest.mark.parametrize(("one", "other", "changes"), PAIRS)
def test_pairs_of_one_form_and_what_takes_it_away(one: Candidate, other: Candidate, changes: dict) -> None:
    """The counterpart differs in bits, so that forms that were equal there would be wrong."""
    dump = operands(5)
    forms = NormalForms(dump)
    assert forms.same(one, other)
    np.testing.assert_array_equal(outputs(one, dump), outputs(other, dump))
    third = MmaCandidate(one.accumulator.with_(**changes))
    assert not forms.same(third, other)
    assert any((outputs(third, d) != outputs(other, d)).any() for d in map(operands, range(30)))


def test_signs_of_zeros_need_a_proof_where_there_is_a_c() -> None:
    """-0 plus nothing but negative zeros is -0 where a group is rounded by itself, +0 where it starts from +0."""
    apart, promoted = candidate("arm_bf16_ebf"), candidate("cdna1_bf16", group_size=2, promote_every=2)
    assert NormalForms(operands(1)).same(apart, promoted)
    assert not NormalForms(operands(1, with_c=True)).same(apart, promoted)
    zero, one, c = np.full((1, K), 0x80, np.uint8), np.full((1, K), 0x38, np.uint8), np.full((1, 1), -0.0, np.float32)
    zeros = plain_dump(zero, one, c, c)
    assert outputs(apart, zeros) != outputs(promoted, zeros)


def test_the_order_of_operands_is_theirs() -> None:
    forms = NormalForms(operands(2, k=64))
    chain, halves = lp.GemmLibrary("x", "end", None), lp.GemmLibrary("x", "end", None, k_order="interleaved")
    same = {}
    for name in ("arm_bf16_ebf", "cdna1_f16"):
        machine = lp.accumulators[name].with_(input_formats=())
        same[machine.group_size] = forms.same(GemmCandidate(machine, chain), GemmCandidate(machine, halves))
    assert same == {2: True, 4: False}, "of four products that are added, two come from further on"


@pytest.mark.parametrize("fields", [
    {"split_k": 2, "split_k_reduction": "serial"}, {"split_k": 2, "split_k_reduction": "workspace"},
    {"split_tile": 32, "split_k_reduction": "tree"}, {"slices": 2}, {"split_tile": 32, "stream_k": (3, 128, 128)},
    {"split_tile": 32, "split_k": 2}, {"round_through": "float16"},
], ids=str)  # fmt: skip
def test_other_splits_are_equal_to_nothing_but_themselves(fields: dict) -> None:
    dump = operands(4, True, LONG, out="float16" if set(fields) & {"split_k_reduction", "round_through"} else "float32")
    forms, m = NormalForms(dump), candidate("float32").accumulator
    split = GemmCandidate(m, lp.GemmLibrary("x", "end", None, **fields))
    usual = [
        GemmCandidate(m, lp.GemmLibrary("x", "end", None, split_k=n, split_k_reduction=added))
        for n in (1, 2) for added in ("float32", "out")
    ]  # fmt: skip
    assert not any(forms.same(split, other) for other in usual)
    assert forms.same(split, GemmCandidate(m, lp.GemmLibrary("y", "end", None, **fields)))
    if "round_through" not in fields:  # float16 after float16 is the same
        assert all((outputs(split, dump) != outputs(other, dump)).any() for other in usual)


@pytest.mark.parametrize(("with_c", "least"), [(False, 22), (True, 26)])
def test_what_one_rounding_to_float16_hides_iscandidate(with_c: bool, least: int) -> None:
    """One product at a time: a cut far below the larger of two numbers leaves what is rounded to that all the same."""
    rng = np.random.default_rng(5)
    codes = np.arange(256, dtype=np.uint8)
    codes = np.stack([codes, *(rng.permutation(codes) for _ in range(K - 1))], axis=1)
    c = rng.integers(0, 1 << 16, (256, 256)).astype(np.uint16).view(np.float16) if with_c else None
    d = np.zeros((256, 256), np.float16)
    dump = plain_dump(codes, rng.permutation(codes), c, d)
    forms, exact = NormalForms(dump), candidate("hopper_f16_f16", group_size=1, fraction_bits=40, zero_exponent=None)
    assert forms.same(exact, candidate("arm_fp8_fmlal_f16", group_size=1)) != with_c, "its zeros have signs"
    wanted = outputs(exact, dump)
    for bits in range(least, 32):
        other = candidate("hopper_f16_f16", group_size=1, fraction_bits=bits, zero_exponent=None)
        assert forms.same(exact, other), bits
        np.testing.assert_array_equal(outputs(other, dump), wanted)
    assert not forms.same(exact, candidate("hopper_f16_f16", group_size=1, fraction_bits=least - 1, zero_exponent=None))
    few = candidate("hopper_f16_f16", group_size=1, fraction_bits=13, zero_exponent=None)
    assert (outputs(few, dump) != wanted).any()


def test_what_fp22_cuts_between_groups_is_cut_again() -> None:
    """Nine fraction bits: only a last group of many products shows more than FP22's 14 bits."""
    for group, alike in ((14, True), (16, False)):  # of 256 products 4 are the last, or 16
        one, other = (
            candidate("hopper_fp8", group_size=group, fraction_bits=9, output_format=out) for out in ("fp22", "float32")
        )
        assert NormalForms(operands(3, with_c=True, k=256)).same(one, other) == alike
        a = np.full((1, 256), 0x7E, np.uint8)  # 448, the largest
        b = np.stack([np.where(np.arange(256) < 256 - n, 0, np.uint8(0x7E)) for n in range(1, 18)])
        b[:, -1] = 0x40  # 2: the last product has the last bit that is kept
        d = [mma(c.accumulator, a, b) for c in (one, other)]
        assert (d[0].view(np.uint32) == d[1].view(np.uint32)).all() == alike


def test_bits_and_runs_that_cut_nothing_arecandidate() -> None:
    """E4M3's products lie within 34 binades: what keeps so many bits cuts none, nor the sum so far, without a C."""
    machines = [
        candidate("cdna3_f16", group_size=72, fraction_bits=bits, lanes=run)
        for bits in (34, 38, 40)
        for run in (1, 2, 3)
    ]
    without, with_c = (NormalForms(operands(1, c, k=256)) for c in (False, True))
    assert len(without.classes(machines)) == 1
    assert len(with_c.classes(machines)) == 6, "a C may lie below the bits, or below what one lane looks at"
    assert not without.same(machines[0], candidate("cdna3_f16", group_size=72, fraction_bits=33, lanes=1))
    for seed in range(3):
        dump = operands(seed, k=256)
        for other in machines[1:]:
            np.testing.assert_array_equal(outputs(machines[0], dump), outputs(other, dump))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("group", [1, 4])
@pytest.mark.parametrize("run", [1, 2])
def test_a_pair_of_products_that_cdna3_cuts_is_rounded_to_nearest(run: int, group: int) -> None:
    """All pairs of significands and signs, and differences of exponents up to 30, of products of E4M3 numbers."""
    codes, mantissas = np.arange(1, 0x7F, dtype=np.uint8), np.arange(8, dtype=np.uint8)
    a = np.stack([np.repeat(codes, len(codes)), np.tile(codes, len(codes))], axis=1)
    pairs = np.stack([np.repeat(mantissas, 8), np.tile(mantissas, 8)], axis=1)
    b = np.concatenate([pairs | np.array(fields, np.uint8) << 3 for fields in ((1, 14), (14, 1), (7, 7))])
    b = np.concatenate([b, b ^ np.array([0, 0x80], np.uint8)])
    machine = lp.accumulators["cdna3_fp8"].with_(input_formats=(), fraction_bits=31, group_size=group, lanes=run)
    got, wanted = mma(machine, a, b), mma("exact", a, b)
    np.testing.assert_array_equal(got.view(np.uint32), wanted.view(np.uint32))
    forms, less = NormalForms(plain_dump(a[:9], b[:9], None, got[:9, :9])), machine.with_(fraction_bits=30)
    assert forms.same(MmaCandidate(machine), candidate("exact"))
    assert not forms.same(MmaCandidate(less), candidate("exact"))
    assert (mma(less, a, b) != wanted).any()
