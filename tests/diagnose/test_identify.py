"""`identify`: what made a dump is named, by its place in the catalogue or by its fields; and what is no dump."""

import operator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from dumps import E4M3, Clock, candidate, mma, plain_dump
from recordings import FOLDER, needs_recordings
from refusals import refusals

import lowprec as lp
from lowprec.diagnose.deadline import Deadline
from lowprec.diagnose.identify.candidate import MmaCandidate
from lowprec.diagnose.identify.probes import operands, probes_for
from lowprec.diagnose.identify.search import FIELDS, Search, cost, plain_fields_of
from lowprec.diagnose.identify.search_plan import find
from lowprec.tensorcore.accumulator import heeded_fields
from lowprec.tensorcore.kinds import KINDS
from lowprec.vectors.recordings import RECORDINGS, Recording, read

Arrays = dict[str, Any]


def dump(
    machine: str | lp.Accumulator, fmt: str = "e4m3fn", shape: tuple[int, int, int] = (16, 16, 96), c: bool = False
) -> Arrays:
    rng = np.random.default_rng(0)
    m, n, k = shape
    found: Arrays = {side: lp.encode(rng.standard_normal((rows, k)), fmt) for side, rows in (("a", m), ("b", n))}
    found["c"] = rng.standard_normal((m, n)).astype(lp.accumulators.get(machine).dtype) if c else None
    found |= {"a_format": fmt, "b_format": fmt}
    return found | {"d": lp.mma(**found, accumulator=machine)}


def bits(x: np.ndarray) -> np.ndarray:
    return x.view(np.uint32)


def prints(found: Any, given: Arrays, lines: int = 1) -> bool:
    """Tell whether the first lines that `identify` prints make the outputs."""
    names, printed = {"lp": lp, "np": np} | given, found.lines()[:lines]
    return bool(printed) and all(np.array_equal(bits(eval(line, names)), bits(given["d"])) for line in printed)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hopper_fp8", "ada_fp8", "blackwell_fp8_mma", "blackwell_fp8", "exact", "float32"])
@pytest.mark.parametrize("c", [False, True], ids=["", "c"])
def test_the_catalogue_is_ranked(name: str, c: bool) -> None:
    given = dump(name, c=c)
    found = lp.identify(**given)
    assert name in {other for r in found.ranking if r.differing == 0 for other in r.names}  # some sums are exact
    assert found.differing == ()
    assert prints(found, given)
    differing = [r.differing for r in found.ranking]
    assert differing == sorted(differing)
    assert differing[-1] > 0


@pytest.mark.slow
def test_the_first_products_after_which_sums_part() -> None:
    given = dump("hopper_fp8")
    given["a"][:, :64] = 0  # nothing to tell apart before k = 64
    given["d"] = mma("hopper_fp8", given["a"], given["b"])
    found = lp.identify(**given)
    ada = next(r for r in found.ranking if "ada_fp8" in r.names and not r.libraries)
    assert ada.differing > 0
    assert ada.first_difference == range(
        80, 96
    )  # a chain's second group of 16 meets the first; Hopper has both in one sum


@pytest.mark.sampled(0, default=1)
@needs_recordings
@pytest.mark.parametrize("which", RECORDINGS, ids=lambda r: r.file)
def test_recordings_name_their_own_machine_first(which: Recording) -> None:
    x = read(Path(FOLDER), which)
    found = lp.identify(x["A"], x["B"], x["C"], x["D"], a_format=which.format, b_format=which.format)
    assert which.accumulator in found.ranking[0].names
    assert found.ranking[0].differing == 0
    assert found.library is None


@pytest.mark.parametrize("package", ["ml_dtypes", "torch", "jax.numpy"])
def test_types_say_formats(package: str) -> None:
    module = pytest.importorskip(package)
    given = dump("ada_fp8")
    typed = {
        "ml_dtypes": lambda x: x.view(ml_dtypes.float8_e4m3fn),
        "torch": lambda x: module.from_numpy(x).view(module.float8_e4m3fn),
        "jax.numpy": lambda x: module.asarray(x.view(ml_dtypes.float8_e4m3fn)),
    }[package]
    assert lp.identify(typed(given["a"]), typed(given["b"]), None, given["d"]).machines[0].name == "ada_fp8"


@pytest.mark.slow
def test_types_of_numpy() -> None:
    half = dump("ampere_f16", "float16")
    found = lp.identify(*(half[side].view(np.float16) for side in "ab"), None, half["d"])
    assert "ampere_f16" in found.ranking[0].names
    assert lp.identify(**half | {"d": bits(half["d"])}).machines == found.machines
    a, b = np.random.default_rng(0).standard_normal((2, 8, 32))
    found = lp.identify(a, b, None, lp.mma(a, b, accumulator="fp64"))
    assert [m.name for m in found.machines] == ["fp64"]


@pytest.mark.slow
def test_scales_inside_the_instruction() -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(0, 16, (16, 128), dtype=np.uint8) for _ in "ab")
    scales = {f"{side}_scale": rng.integers(0x30, 0x48, (16, 8), dtype=np.uint8) for side in "ab"}
    given = {"a": a, "b": b, "d": lp.mma(a, b, accumulator="blackwell_nvfp4", **scales), **scales}
    found = lp.identify(**given, c=None, a_format="e2m1fn", b_format="e2m1fn")
    assert "blackwell_nvfp4" in found.ranking[0].names
    assert prints(found, given)


@pytest.mark.slow
@pytest.mark.parametrize("k", [96, 8], ids=["", "less than a group"])
def test_a_nan_may_have_any_payload(k: int) -> None:
    given = dump("hopper_fp8", shape=(16, 16, k))
    given["a"][0, 3] = 0x7F
    given["d"] = mma("hopper_fp8", given["a"], given["b"])
    bits(given["d"])[0] = 0x7FC00001  # another GPU's
    found = lp.identify(**given)
    assert same_arithmetic(found, lp.accumulators["hopper_fp8"])
    assert found.differing == ()


test_what_is_no_dump = refusals(
    [
        ("identify(d=f32(16, 15))", r"d must be \(16, 16\) or \(16,\) for .* got \(16, 15\)"),
        (
            "identify(b=np.zeros((16, 95), np.uint8))",
            r"a \[M, K\] and b \[N, K\] must have the same K, got shapes \(16, 96\) and \(16, 95\); b is",
        ),
        ("identify(a=np.zeros((0, 96), np.uint8), d=f32(0, 16))", "a and b must have elements"),
        ("identify(a_format='e4m3fm')", "did you mean 'e4m3fn'"),
        ("identify(a_format=None)", "a_format must be given, .* got uint8"),
        ("identify(a=np.zeros((16, 96)))", TypeError, "a must be codes of e4m3fn .* got float64"),
        ("identify(d=np.zeros((16, 16), np.int8))", TypeError, "d must be float32, .* got int8"),
        ("identify(c=f32(16, 1))", r"c must have shape \(16, 16\), got \(16, 1\)"),
        ("identify(a_scale=f32(16, 1) + 1)", "a_scale and b_scale must both be given"),
        ("identify(a_scale=f32(16, 97) + 1, b_scale=f32(16, 1) + 1)", r"a_scale must be .* got \(16, 97\)"),
        ("identify(a_scale=f32(16, 5) + 1, b_scale=f32(16, 1) + 1)", "a_scale must have one value per block, got 5"),
        ("identify(seconds=-1)", "identify: seconds must be a finite number >= 0, got -1"),
        ("identify(also=[{'a': 1, 'b': 2}])", TypeError, r"also must be mappings with a, b, d, .* got \['a', 'b'\]"),
        ("identify(also={'a': 1})", TypeError, r"also must be mappings with a, b, d, .* got \['str'\]"),
    ],
    lambda: {
        "identify": lambda **changes: lp.identify(**dump("hopper_fp8") | changes),
        "f32": lambda *shape: np.zeros(shape, np.float32),
    },
)


# Beyond the catalogue


def same_arithmetic(found: Any, machine: lp.Accumulator) -> bool:
    """Tell whether one of those that explain the dump is a machine, but for what provably does not show."""
    wanted = plain_fields_of(MmaCandidate(machine), found.dumps[0])
    return any(
        type(c.accumulator) is type(machine) and plain_fields_of(c, found.dumps[0]) == wanted for c in found.explaining
    )


@pytest.mark.sampled(0, default=1)
@pytest.mark.parametrize("c", [False, True], ids=["", "c"])
@pytest.mark.parametrize(
    ("base", "changes"),
    [
        ("hopper_fp8", {"group_size": 24, "fraction_bits": 11}),
        ("ada_fp8", {"fraction_bits": 9, "align": "floor", "promote_every": 64}),
        ("blackwell_fp8", {"group_size": 8, "fraction_bits": 17}),
    ],
    ids=str,
)
def test_what_nobody_has_built_is_found(base: str, changes: dict[str, Any], c: bool) -> None:
    machine = lp.accumulators[base].with_(**changes)
    given = dump(machine, c=c, shape=(32, 32, 192))
    found = lp.identify(**given, seconds=600)
    assert found.differing == ()
    assert same_arithmetic(found, machine)
    assert prints(found, given, lines=99)


@pytest.mark.slow
def test_damaged_outputs_are_listed() -> None:
    machine = lp.accumulators["hopper_fp8"].with_(group_size=16, fraction_bits=12)
    given = dump(machine, shape=(64, 64, 128))
    rng = np.random.default_rng(5)
    places = sorted({(int(i), int(j)) for i, j in rng.integers(0, 64, (4, 2))})  # 0.1 %
    for i, j in places:
        bits(given["d"])[i, j] ^= np.uint32(1 << int(rng.integers(10, 31)))
    found = lp.identify(**given)
    assert same_arithmetic(found, machine)
    assert list(found.differing) == places
    assert f"all but {len(places)} of 4096 outputs" in found.sentence


SCALED = {"separate": lp.GemmLibrary("mine", fma_promotion=False)} | {
    name: lp.gemm_libraries[name] for name in ("cublaslt", "cublaslt_1x128", "deepgemm")
}


@pytest.mark.ci
@pytest.mark.parametrize("name", SCALED)
@pytest.mark.parametrize("out", ["float32", "bfloat16"])
def test_what_is_done_around_chains(name: str, out: str) -> None:
    rng = np.random.default_rng(0)
    granularity = "row" if name == "cublaslt" else "1x128"
    qa, qb = (lp.quantize(rng.standard_normal((32, 512), np.float32), f"e4m3fn {granularity}") for _ in "ab")
    made = lp.gemm(qa, qb, library=SCALED[name], out_format=out)
    d = made if out == "float32" else made.astype(ml_dtypes.bfloat16)
    found = lp.identify(qa, qb, None, d)
    order = operator.attrgetter("fma_promotion", "apply_scales_at", "scales_one_by_one")
    orders = [order(c.library) for c in found.candidates if c.library is not None]
    assert order(SCALED[name]) in orders
    if out == "float32":
        assert orders[0] == order(SCALED[name])
    assert found.machines[0].name == "hopper_fp8"
    given = {"a": qa.codes, "b": qb.codes, "a_scale": qa.scale, "b_scale": qb.scale}
    assert prints(found, given | {"d": d.astype(np.float32)})
    assert lp.identify(**given, c=None, d=d, **E4M3).candidates == found.candidates


@pytest.mark.ci
@pytest.mark.parametrize("options", [
    {"promote_every": None, "k_order": "interleaved"}, {"promote_every": 64, "split_k": 2}
], ids=["interleaved", "split"])  # fmt: skip
def test_orders_of_k(options: dict[str, Any]) -> None:
    library = lp.GemmLibrary("mine", apply_scales_at="end", **options)
    given = dump("ampere_f16", "float16", shape=(24, 24, 512))
    qa, qb = (lp.Quantized(given[x], np.ones((1, 1), np.float32), "float16", "tensor") for x in "ab")
    given["d"] = lp.gemm(qa, qb, accumulator="ampere_f16", library=library)
    found = lp.identify(**given)
    assert found.library is not None
    assert (found.library.k_order, found.library.split_k) == (library.k_order, library.split_k)
    assert found.machines[0] == lp.accumulators["turing_f16"]  # the same arithmetic as Ampere's
    assert prints(found, given)


@pytest.mark.slow
def test_probes_close_the_loop() -> None:
    """Zeros that take part below what the dump shows: probes tell which exponent it is, as far as it can show."""
    machine = lp.accumulators["ada_fp8"].with_(zero_exponent=-3)
    given = dump(machine, shape=(32, 32, 128))
    found = lp.identify(**given)
    assert same_arithmetic(found, machine)
    before = len(found.explaining)
    assert before > 1
    probes = found.probes()
    assert probes
    d = mma(machine, probes.arrays["a"], probes.arrays["b"])
    again = lp.identify(**given, also=[{**probes.arrays, "d": d, **E4M3}])
    assert same_arithmetic(again, machine)
    assert len(again.explaining) < before
    assert again.probes().distinguished == ()


@pytest.mark.sampled(0, default=4)
@pytest.mark.parametrize("k", [1, 5, 40])
@pytest.mark.parametrize("fmt", ["e2m1fn", "e3m2fn", "e5m2", "int8", "bfloat16", "float32"])
def test_operands_of_probes_are_codes_of_any_format(fmt: str, k: int) -> None:
    f = lp.formats[fmt]
    codes = np.zeros((2, k), f.code_dtype)
    lots = list(operands(plain_dump(codes, codes, None, np.zeros((2, 2), np.float32), fmt), 1, (13,)))
    assert len(lots) > 100
    for _, arrays in lots:
        assert all(arrays[side].dtype == f.code_dtype and arrays[side].max() < 1 << f.bits for side in "ab")


@pytest.mark.ci
def test_probes_name_what_a_sparse_dump_hardly_shows() -> None:
    """Almost everything explains the dump; all 64 outputs of the probes are needed to see which kind it is."""
    machine = lp.accumulators["amx_f16"].with_(input_formats=(), group_size=114)
    rng = np.random.default_rng(53)
    sparse = {x: np.where(rng.random((24, 256)) < 0.8, 0, rng.integers(0x30, 0x40, (24, 256))) for x in "ab"}
    codes = {x: rng.integers(0, 0x7E, (8, 256)) for x in "ab"}
    dumps = []
    for given in (sparse, codes):
        a, b = (given[x].astype(np.uint8) for x in "ab")
        dumps.append(plain_dump(a, b, None, mma(machine, a, b)))
    search = Search(tuple(dumps), 5, Deadline(600))
    known = [candidate(name) for name in ("exact", "hopper_fp8", "cdna1_f16")]
    found, _ = find(search, known, known)
    assert not search.late
    assert [(type(c.accumulator), c.accumulator.group_size) for c in found] == [(type(machine), 114)]


@pytest.mark.ci
def test_a_group_and_an_interval_that_another_kind_shows_are_tried() -> None:
    """Groups of 74 promoted every 148 products: exact groups of CDNA3 are near long before BFDOT's own changes are."""
    machine = lp.accumulators["arm_bf16_ebf"].with_(input_formats=(), group_size=74, promote_every=148)
    rng = np.random.default_rng([5, 256])
    x = rng.standard_normal((2, 64, 256)) * 2.0 ** rng.integers(-6, 7, (2, 64, 256))
    a, b = lp.encode(x, "e4m3fn")
    c = (4 * rng.standard_normal((64, 64))).astype(np.float32)
    given = {"a": a, "b": b, "c": c, "d": mma(machine, a, b, c), **E4M3}
    found = lp.identify(**given, seconds=600)
    # Partial sums of RISC-V are the same function if both roundings are to nearest: the two are a tie.
    tied = {type(machine), type(lp.accumulators["ime_bf16_frm"])}
    assert {(type(m), m.group_size, m.promote_every) for m in found.machines} == {(kind, 74, 148) for kind in tied}


@pytest.mark.slow
@pytest.mark.parametrize(("base", "c", "one", "other"), [
    ("hopper_fp8", False, {"fraction_bits": 9, "group_size": 16, "output_format": "fp22"},
     {"output_format": "float32"}),
    ("hopper_fp8", True, {"fraction_bits": 9, "group_size": 32, "output_format": "fp22"}, {"output_format": "float32"}),
    ("hopper_f16_f16", True, {"group_size": 1, "fraction_bits": 21}, {"fraction_bits": 25}),
])  # fmt: skip
def test_probes_tell_apart_what_a_bit_beside_a_full_group_or_a_tie_shows(
    base: str, c: bool, one: dict[str, Any], other: dict[str, Any]
) -> None:
    drawn = candidate(base, **one)
    given = dump(drawn.accumulator, c=c, shape=(16, 16, 256))
    looked = plain_dump(given["a"], given["b"], given["c"], np.zeros_like(given["d"]))
    assert probes_for(looked, [drawn, candidate(base, **one | other)]).distinguished


def test_what_takes_longer_counts_as_more_candidates() -> None:
    given = dump("cdna1_f16", "float16", shape=(64, 64, 128))
    whole = plain_dump(*(given[name] for name in "abcd"), "float16")
    part, few = whole.part(np.arange(64), np.arange(64)), whole.sample(5)
    plain, fast = candidate("cdna1_f16", group_size=8), candidate("hopper_fp8")  # the first has no kernel
    often = candidate("cdna1_f16", group_size=8, promote_every=8)
    assert cost(fast, part) < cost(plain, part) < cost(often, part)
    assert cost(fast, few) == cost(plain, few) < cost(often, few)


@pytest.mark.slow
def test_the_smallest_example_of_what_nothing_explains(clock: Clock) -> None:
    given = dump("hopper_fp8", shape=(16, 16, 32))
    given["a"][3] = 0
    given["a"][3, [4, 9]] = 0x38, 0x30
    given["d"] = np.random.default_rng(1).standard_normal((16, 16)).astype(np.float32)
    found = lp.identify(**given, seconds=1200)
    assert found.machines == ()
    assert found.library is None
    example = found.example()
    assert example is not None
    assert example.place[0] == 3
    i, j = example.place
    assert [(t.k, t.a_code, t.b_code) for t in example.terms] == [
        (k, int(given["a"][i, k]), int(given["b"][j, k])) for k in (4, 9)
    ]
    assert example.theirs == (int(bits(given["d"])[i, j]), float(given["d"][i, j]))
    assert {name: value for name, _, value in example.rules}["exact"] == sum(t.product for t in example.terms)
    with pytest.raises(ValueError, match="the dump must be explained before probes"):
        found.probes()


def test_every_field_that_decides_bits_has_values_to_search() -> None:
    for kind in KINDS:
        missing = set(heeded_fields(kind)) - set(FIELDS)
        assert not missing, f"{kind.__name__}: lowprec/diagnose/identify/search.py needs values of {missing}"
