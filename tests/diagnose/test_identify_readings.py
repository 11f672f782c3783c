"""`identify` on dumps in another layout, on another grid, damaged, or made by what no candidate computes."""

import functools
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from dumps import E4M3, Clock, mma

import lowprec as lp
from lowprec.diagnose.deadline import Deadline
from lowprec.diagnose.identify.identification import Identification
from lowprec.diagnose.identify.readings import readings

Arrays = dict[str, Any]


@functools.cache
def plain() -> Arrays:
    """Return a dump of Hopper's accumulator."""
    rng = np.random.default_rng(7)
    a, b = (lp.encode(rng.standard_normal((16, 256)), "e4m3fn") for _ in "ab")
    return {"a": a, "b": b, "d": mma("hopper_fp8", a, b)}


@functools.cache
def quantized() -> tuple[lp.Quantized, lp.Quantized]:
    rng = np.random.default_rng(8)
    qa, qb = (lp.quantize(rng.standard_normal((16, 512), np.float32), "e4m3fn 1x128") for _ in "ab")
    return qa, qb


@functools.cache
def scaled() -> Arrays:
    """Return a dump with scales as numbers, of DeepGEMM's order."""
    qa, qb = quantized()
    return {"a": qa.codes, "b": qb.codes, "a_scale": qa.scale, "b_scale": qb.scale, "d": lp.gemm(qa, qb)}


GRIDS: dict[str, Callable[[np.ndarray], Any]] = {
    "float32 with zero low halves": lambda d: d,
    "float64": lambda d: d.astype(np.float64),
    "uint32 words": lambda d: d.view(np.uint32),
    "uint16 words": lambda d: (d.view(np.uint32) >> 16).astype(np.uint16),
    "ml_dtypes": lambda d: d.astype(ml_dtypes.bfloat16),
}


def pad(x: np.ndarray, seed: int) -> np.ndarray:
    garbage = np.random.default_rng(seed).integers(0, 120, (len(x), 16), dtype=np.uint8)
    return np.concatenate([x, garbage], axis=1)


def permuted(x: np.ndarray) -> np.ndarray:
    return x[np.random.default_rng(3).permutation(len(x))]


#: What is changed of a dump, without or with scales, by the words for it.
LAYOUTS: dict[str, Callable[[Arrays], Arrays]] = {
    "d is transposed": lambda x: {"d": x["d"].T},
    "b is transposed": lambda x: {"b": x["b"].T},
    "a and b are transposed": lambda x: {"a": x["a"].T, "b": x["b"].T},
    "a and b are e4m3fn": lambda x: {"a_format": "e5m2", "b_format": "e5m2"},
    "b is e4m3fn": lambda x: {"b_format": "e4m3fnuz"},
    "a and b are e4m3fn, which has the same values for these codes": lambda x: {"a_format": "e4m3", "b_format": "e4m3"},
    "c is not added": lambda x: {"c": np.ones_like(x["d"])},
    "the first 256 products are summed: the rest of K is padding":
        lambda x: {"a": pad(x["a"], 1), "b": pad(x["b"], 2)},
    "the last 256 products are summed: K begins with padding":
        lambda x: {"a": pad(x["a"][:, ::-1], 1)[:, ::-1], "b": pad(x["b"][:, ::-1], 2)[:, ::-1]},
}  # fmt: skip
SCALES: dict[str, Callable[[Arrays], Arrays]] = {
    "scales of a and b are swapped": lambda x: {"a_scale": x["b_scale"], "b_scale": x["a_scale"]},
    "a_scale is transposed": lambda x: {"a_scale": x["a_scale"].T},
    "b_scale is stored column by column": lambda x: {"b_scale": x["b_scale"].T.reshape(x["b_scale"].shape)},
    "a_scale and b_scale are shifted by 1 block":
        lambda x: {n: np.roll(x[n], -1, 1) for n in ("a_scale", "b_scale")},
    "rows of a_scale are in another order": lambda x: {"a_scale": permuted(x["a_scale"])},
}  # fmt: skip


def arguments(given: Arrays) -> Arrays:
    return dict.fromkeys(("c", "d_format", "a_scale", "b_scale")) | E4M3 | given


@pytest.mark.slow
@pytest.mark.parametrize("words", [*LAYOUTS, *SCALES])
def test_another_layout_is_found_and_named(words: str) -> None:
    given = plain() if words in LAYOUTS else scaled()
    changed = (LAYOUTS | SCALES)[words](given)
    arrays = {n: np.ascontiguousarray(x) if isinstance(x, np.ndarray) else x for n, x in changed.items()}
    assert readings(arguments(given | arrays), Deadline())[0].assumed == (words,)


def test_two_layouts_at_once() -> None:
    a, b, d = plain()["a"], plain()["b"], plain()["d"]
    given = arguments({"a": a, "b": np.ascontiguousarray(b.T), "d": np.ascontiguousarray(d.T)})
    assert set(readings(given, Deadline())[0].assumed) == {"b is transposed", "d is transposed"}


@pytest.mark.slow
def test_the_layout_stands_in_the_sentence_and_holds_for_further_dumps() -> None:
    a, b, d = plain()["a"], plain()["b"], plain()["d"]
    given = {"a": a, "b": b, "c": None, "d": np.ascontiguousarray(d.T), **E4M3}
    found = lp.identify(**given, also=[given])
    assert found.sentence.startswith("assuming that d is transposed: hopper_fp8 explains all 512 outputs")
    assert not lp.identify(a, b, None, d, **E4M3).assumed


@pytest.mark.sampled(1)
@pytest.mark.parametrize("how", GRIDS)
def test_outputs_of_our_own_gemm_are_read_on_their_grid(how: str) -> None:
    found = lp.identify(*quantized(), None, GRIDS[how](lp.gemm(*quantized(), out_format="bfloat16")))
    assert found.dumps[0].out == lp.formats["bfloat16"]
    assert str(found.candidates[0]) == "hopper_fp8 within deepgemm"
    assert bool(found.assumed) == (how not in ("ml_dtypes",))


@pytest.mark.slow
@pytest.mark.parametrize("out", ["float16", "e4m3fn"])
def test_outputs_on_other_grids(out: str) -> None:
    d = lp.gemm(*quantized(), out_format=out)
    found = lp.identify(*quantized(), None, d)
    assert found.dumps[0].out == lp.formats[out]
    assert found.candidates
    assert lp.identify(*quantized(), None, d, d_format=out).candidates == found.candidates


def test_small_whole_numbers_stay_float32() -> None:
    rng = np.random.default_rng(9)
    a, b = (lp.encode(rng.integers(0, 3, (16, 16)), "e4m3fn") for _ in "ab")
    found = lp.identify(a, b, None, mma("hopper_fp8", a, b), **E4M3)
    assert found.dumps[0].out == lp.formats["float32"]
    assert not found.assumed


@pytest.mark.slow
def test_zeros_in_front_of_k_move_the_groups() -> None:
    a, b = plain()["a"], plain()["b"]
    wide = [np.pad(x, ((0, 0), (8, 0))) for x in (a, b)]
    found = lp.identify(a, b, None, mma("ada_fp8", *wide), **E4M3)
    assert found.assumed == ("8 zeros come before K",)
    assert found.candidates[0].accumulator.name == "ada_fp8"
    found = lp.identify(*wide, None, mma("ada_fp8", a, b), **E4M3)
    assert found.assumed == ("8 zeros at the start of K are not summed",)


def in_random_order(out: Any) -> np.ndarray:
    """Return products summed one by one in float32, each output in an order of its own."""
    rng = np.random.default_rng(9)
    a, b = plain()["a"], plain()["b"]
    x, y = lp.decode(a, "e4m3fn"), lp.decode(b, "e4m3fn")
    d = np.zeros((16, 16), np.float32)
    for i, j in np.ndindex(16, 16):
        for product in rng.permutation(x[i] * y[j]):
            d[i, j] += product
    return d.astype(out)


@pytest.mark.slow
def test_a_misfit_is_not_called_damage(clock: Clock) -> None:
    a, b, d = plain()["a"], plain()["b"], plain()["d"]
    found = lp.identify(a, b, None, in_random_order(ml_dtypes.bfloat16), **E4M3, seconds=1000)
    assert not found.differing or not found.candidates
    assert "does not discriminate" in found.sentence or "hardly discriminates" in found.sentence
    d = d.astype(np.float16)
    d.view(np.uint16)[2, 3] += 1  # one unit in the last place
    found = lp.identify(a, b, None, d, **E4M3, seconds=1000)
    assert not found.candidates
    assert "damage" not in found.sentence.replace("which is not damage", "")


@pytest.mark.slow
def test_damage_beside_the_catalogue_takes_no_search() -> None:
    a, b, d = plain()["a"], plain()["b"], plain()["d"]
    d = d.copy()
    d.view(np.uint32)[2, 3] ^= 1 << 24
    found = lp.identify(a, b, None, d, **E4M3)
    assert found.differing == ((2, 3),)
    assert found.sentence.startswith("hopper_fp8 explains all but 1 of 256 outputs")
    assert found.tried < 3000


@pytest.mark.ci
@pytest.mark.parametrize("changes", [
    {"group_size": 64, "fraction_bits": 12, "promote_every": 64},
    {"group_size": 64, "fraction_bits": 12, "promote_every": 128},
    {"group_size": 128, "fraction_bits": 11, "align": "floor"},
    {"fraction_bits": 9, "align": "floor", "promote_every": 128},
], ids=str)  # fmt: skip
def test_three_fields_at_once(changes: dict[str, Any]) -> None:
    a, b = plain()["a"], plain()["b"]
    machine = lp.accumulators["hopper_fp8"].with_(**changes)
    found = lp.identify(a, b, None, mma(machine, a, b), **E4M3, seconds=300)  # of a machine that others use, too
    assert found.candidates
    assert not found.differing


def first(found: Identification) -> str:
    return found.sentence.split(" explain")[0]


@pytest.mark.slow
def test_twins_are_named_together() -> None:
    rng = np.random.default_rng(9)
    a, b = (rng.standard_normal((16, 64)).astype(np.float16) for _ in "ab")
    codes = {"a_format": "float16", "b_format": "float16"}
    d = lp.mma(a.view(np.uint16), b.view(np.uint16), accumulator="ampere_f16", **codes)
    assert {"turing_f16", "ampere_f16"} <= set(first(lp.identify(a, b, None, d)).replace(",", "").split())
    assert first(lp.identify(**plain(), c=None, **E4M3)) == "hopper_fp8"


@pytest.mark.slow
@pytest.mark.parametrize("outputs", [16, 1])
def test_a_dump_that_does_not_discriminate_says_so_first(outputs: int) -> None:
    """Small whole numbers, whose sums are exact; one output, which entries share that are not equal."""
    rng = np.random.default_rng(0)
    x = rng.integers(-2, 3, (2, 16, 64)) if outputs > 1 else rng.standard_normal((2, 1, 64))
    a, b = (lp.encode(side, "e4m3fn") for side in x)
    found = lp.identify(a, b, None, mma("hopper_fp8", a, b), **E4M3)
    assert not found.discriminates
    assert found.kinds > 2
    assert found.sentence.startswith(f"this dump does not discriminate: {len(found.classes)} accumulators")
    assert repr(found).startswith("Identification: this dump does not discriminate")
    assert "hopper_fp8" in found.twins
    assert len(found.twins) > 2
    assert ", ".join(found.twins[:2]) in found.sentence
    assert "outputs distinguish 15 of the next 15" in found.sentence
