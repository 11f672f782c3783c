"""The budget of a search is kept in every phase: by a clock that counts what is computed, a second each."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from dumps import E4M3, Clock, mma

import lowprec as lp
from lowprec.diagnose.identify.identify import _answers

LATE = 4  # seconds: what was begun ends

Arrays = dict[str, Any]


def codes(whole: bool = False) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(7)
    x = rng.integers(-2, 3, (2, 8, 64)) if whole else rng.standard_normal((2, 8, 64))
    return tuple(lp.encode(x, "e4m3fn"))


def of(machine: str | lp.Accumulator, whole: bool = False) -> Arrays:
    a, b = codes(whole)
    return {"a": a, "b": b, "c": None, "d": mma(machine, a, b), **E4M3}


def with_scales() -> Arrays:
    rng = np.random.default_rng(8)
    qa, qb = (lp.quantize(rng.standard_normal((8, 256), np.float32), "e4m3fn 1x128") for _ in "ab")
    return {"a": qa, "b": qb, "c": None, "d": lp.gemm(qa, qb)}


MINE = lp.accumulators["hopper_fp8"].with_(group_size=16, fraction_bits=12)
#: Dumps, and the tenths of all that they take which are tried as budgets.
DUMPS: dict[str, tuple[tuple[int, ...], Callable[[], Arrays]]] = {
    "of the catalogue": ((0, 1, 3, 5, 9), lambda: of("hopper_fp8")),
    "transposed": ((0, 1), lambda: (given := of("ada_fp8")) | {"d": np.ascontiguousarray(given["d"].T)}),
    "not discriminating": ((0, 7, 9), lambda: of("hopper_fp8", whole=True)),
    "with scales": ((0, 3, 7), with_scales),
    "of other fields": ((3, 6, 9), lambda: of(MINE)),
    "several": ((0, 3, 9), lambda: of(MINE) | {"also": [of(MINE)]}),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.ci] * (name in ("of other fields", "several"))) for name in DUMPS]
)
def test_the_budget_is_kept_in_every_phase(name: str, clock: Clock) -> None:
    tenths, make = DUMPS[name]

    def spent(seconds: float) -> int:
        _answers().clear()
        given, start = make(), clock.seconds
        found = lp.identify(**given, seconds=seconds)
        said = found.sentence, found.alternatives(), found.lines(), found.catalogue()
        took = clock.seconds - start
        assert bool(found.untried) == ("ended before" in said[0]) == (took >= seconds)
        return took

    whole = spent(1e9)
    for tenth in tenths:
        assert spent(whole * tenth // 10) <= whole * tenth // 10 + LATE


@pytest.mark.slow
def test_what_was_not_tried_is_listed(clock: Clock) -> None:
    a, b = codes()
    calls: list[int] = []
    noise = np.random.default_rng(9).standard_normal((8, 8)).astype(np.float32)
    found = lp.identify(a, b, None, noise, **E4M3, seconds=1200, progress=calls.append)
    assert not found.candidates
    assert "the 1200 s ended" in found.sentence
    assert any(line.startswith("FusedSum, from") for line in found.untried)
    assert calls == sorted(calls)
    assert calls


@pytest.mark.slow
def test_an_answer_that_ran_out_of_time_is_not_repeated(clock: Clock) -> None:
    given = of("hopper_fp8")
    assert lp.identify(**given, seconds=1).untried
    found = lp.identify(**given, seconds=1e9)
    assert not found.untried
    before = clock.seconds
    lp.identify(**given, seconds=1e9)
    assert clock.seconds - before < 250  # the catalogue, but no search


def noise(q: lp.Quantized) -> lp.Quantized:
    q.codes[:] = np.random.default_rng(3).integers(0, 120, q.codes.shape)
    return q


@pytest.mark.slow
@pytest.mark.parametrize("quantizer", [None, "deepgemm"])
def test_the_budget_of_check_is_kept(quantizer: str | None, clock: Clock) -> None:
    x = np.random.default_rng(5).standard_normal((4, 128)).astype(np.float32)
    q = noise(lp.quantize(x, "deepgemm"))

    for seconds in (0, 10, 400):
        start = clock.seconds
        found = lp.check(q.codes, x, quantizer, scale=2 * q.scale, seconds=seconds)
        assert clock.seconds - start <= seconds + 3 * LATE  # comparisons of what was begun
        assert not found.complete
        assert f"the {seconds} s ended before all was tried" in str(found)
    assert lp.check(lp.quantize(x, "deepgemm"), x, seconds=0).complete
