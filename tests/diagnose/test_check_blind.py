"""A blind test of `lp.check`: mistakes made by hand must be named.

The exhaustive test draws its seed now. The others keep one, so that a run can be repeated.
"""

from __future__ import annotations

import secrets
from collections import Counter

import numpy as np
import pytest
import wrong_codes as wrong
from blind_faults import blind

import lowprec as lp

SEED = 2777917853  # of a run that found a bound on the amax of one tensor called a factor
SHAPES = ((256, 256), (256, 512))


def outcome(name: str, hand: wrong.Hand, family: str, seed: list[int]) -> tuple[str, str]:
    """Return "named", "tie", "wrong", "silent", "same bits" or "none", and what was said."""
    rng = np.random.default_rng(seed)
    x = wrong.FAMILIES[family](rng, SHAPES[rng.integers(len(SHAPES))])
    answers, make = wrong.MISTAKES[name]
    made = make(rng, hand, x)
    if made is None:
        return "none", ""
    codes, scale, tensor = made
    own = hand(x)
    same = all(np.array_equal(a, b) for a, b in zip((codes, scale), own[:2], strict=True)) and tensor == own[2]
    found = lp.check(codes, x, hand.quantizer, scale=scale, tensor_scale=tensor, seconds=1e6)
    if same:
        return ("same bits" if found else "false alarm"), str(found)
    if found:
        return "silent", str(found)
    names = [{step.cause.name for step in e.steps} for e in found.explanations if not e.left]
    hits = [bool(given & answers) for given in names]
    return ("named" if hits[:1] == [True] else "tie" if any(hits) else "wrong"), str(found)


def seed_of(seed: int, name: str, hand: wrong.Hand, family: str) -> list[int]:
    places = (list(wrong.MISTAKES).index(name), wrong.HANDS.index(hand), list(wrong.FAMILIES).index(family))
    return [seed, *places]


@pytest.mark.parametrize("hand", wrong.HANDS, ids=lambda hand: hand.name)
@pytest.mark.parametrize("family", wrong.FAMILIES)
def test_quantizers_by_hand_are_the_catalogues(hand: wrong.Hand, family: str) -> None:
    x = wrong.FAMILIES[family](np.random.default_rng(SEED), (256, 256))
    x[3, :] = 0.0
    x[4, :] = -0.0
    codes, scale, tensor = hand(x)
    found = lp.check(codes, x, hand.quantizer, scale=scale, tensor_scale=tensor)
    assert found, str(found)
    assert str(found) == f"nothing differs from {hand.name}"


@pytest.mark.sampled(0, default=6)
@pytest.mark.parametrize("name", wrong.MISTAKES)
def test_a_mistake_is_named(name: str) -> None:
    rng = np.random.default_rng([SEED, list(wrong.MISTAKES).index(name)])
    tried = 0
    for hand in wrong.HANDS:
        family = list(wrong.FAMILIES)[rng.integers(len(wrong.FAMILIES))]
        how, said = outcome(name, hand, family, seed_of(SEED, name, hand, family))
        assert how in ("named", "tie", "same bits", "none"), f"{hand.name}, {family}: {how}: {said}"
        tried += how != "none"
    assert tried


@pytest.mark.slow
@pytest.mark.parametrize("number", range(4))
def test_faults_planted_together_are_named(number: int) -> None:
    how, _, said = blind(SEED, number, number % 4)
    assert how in ("named", "tie", "clean"), said


@pytest.mark.exhaustive
def test_a_thousand_plants_of_the_moment_are_named() -> None:
    seed = secrets.randbits(32)
    total = Counter(blind(seed, number, number % 10 and 1 + number % 3)[0] for number in range(1112))
    assert not total["silent"] + total["alarm"], f"seed {seed}: {total}"
    assert total["other"] + total["partly"] <= 50, f"seed {seed}: {total}"
