"""Numbers that studies judge, with intervals: of one arm, of a difference, of a ratio that may mean nothing."""

import math
from functools import partial

import numpy as np
import pytest

from lowprec.study import Expectation
from lowprec.study.analysis.estimates import (
    Estimate,
    SeedMeans,
    crossed_variance,
    estimate,
    weighted_rows,
)
from lowprec.study.analysis.findings import (
    AS_EXPECTED,
    AS_PUBLISHED,
    BOTH,
    NEITHER,
    NO_RATIO,
    NOT_RESOLVED,
    judge,
    outcome_of,
)
from lowprec.study.report.parts import expected_table, finding_sentence, findings_json


class Simulated:
    """Two arms in checkpoints x batches, both levels samples, errors of the arms correlated."""

    sizes = False

    def __init__(self, rng, means, size=(4, 6)):
        count, batches = size
        shared = 0.3 * rng.standard_normal((count, 1)) + 0.3 * rng.standard_normal((1, batches))
        self.tables = {}
        for arm, mean in means.items():
            values = mean * (1 + shared) + 0.1 * rng.standard_normal(size)
            self.tables[arm] = np.array([[c, b, values[c, b]] for c in range(count) for b in range(batches)])

    def mean(self, metric, arm, condition=""):
        return float(self.tables[arm][:, 2].mean())

    def variance(self, metric, condition, weights):
        return crossed_variance(weighted_rows(self.tables, weights))

    def is_nonnegative(self, metric, arm, condition=""):
        return self.sizes


class Sizes(Simulated):
    sizes = True


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "truth"), [({}, 3.0), ({"minus": "b"}, 1.0), ({"over": "b"}, 1.5)], ids=["mean", "difference", "ratio"]
)
@pytest.mark.parametrize("means", [Simulated, Sizes])
def test_ninety_per_cent_intervals_cover(kind, truth, means):
    rng = np.random.default_rng(0)
    inside = 0
    for _ in range(400):
        found = estimate(means(rng, {"a": 3.0, "b": 2.0}), "m", "a", **kind)
        inside += found.ci90[0] <= truth <= found.ci90[1]
    assert inside / 400 >= 0.88


def test_what_is_shared_cancels_in_a_ratio():
    """Batches that are hard for both arms widen either mean's interval, not that of their ratio."""
    means = Simulated(np.random.default_rng(1), {"a": 3.0, "b": 2.0})
    alone, ratio = estimate(means, "m", "a"), estimate(means, "m", "a", over="b")
    assert (ratio.ci90[1] - ratio.ci90[0]) / ratio.value < 0.5 * (alone.ci90[1] - alone.ci90[0]) / alone.value


def test_a_ratio_over_what_may_be_nothing_is_a_difference():
    means = Simulated(np.random.default_rng(2), {"a": 3.0, "b": 0.01})
    item = Expectation("a is more", "m", "a", "b", expected=(0.0, 1e9))
    found = judge(item, partial(estimate, means))
    assert found.outcome == NO_RATIO
    value, low, high = found.found.as_difference
    difference = estimate(means, "m", "a", minus="b")
    assert (value, low, high) == (difference.value, *difference.ci90)
    assert low <= 2.99 <= high
    assert f"{value:.3g}" in finding_sentence(found)
    assert "difference" in expected_table([found]).rows[0][4]
    assert findings_json([found])[0]["instead"] == (value, low, high)
    assert judge(item, partial(estimate, means), registered=False).outcome == "not registered"


def test_a_ratio_of_sizes_has_two_ends_however_few_they_are():
    means = Sizes(np.random.default_rng(4), {"a": 3.0, "b": 2.0}, (2, 2))
    low, high = estimate(means, "m", "a", over="b").ci90
    assert 0 < low < 1.5 < high < np.inf


def test_an_arm_over_itself_is_one_and_one_batch_has_no_interval():
    means = Simulated(np.random.default_rng(3), {"a": 3.0, "b": 2.0})
    assert estimate(means, "m", "a", over="a").ci90 == (1.0, 1.0)
    single = estimate(Simulated(np.random.default_rng(3), {"a": 3.0, "b": 2.0}, (1, 1)), "m", "a", over="b")
    assert (math.isnan(single.ci90[0]), single.as_difference) == (True, None)


@pytest.mark.parametrize(
    ("ends", "expected", "published", "outcome"),
    [
        ((0.906, 1.07), (0.98, 1.02), (0.98, 1.02), NOT_RESOLVED),
        ((0.985, 1.015), (0.98, 1.02), (0.98, 1.02), BOTH),
        ((0.98, 1.02), (0.98, 1.02), None, AS_EXPECTED),
        ((-0.016, 1.2), (0.0, math.inf), None, NOT_RESOLVED),
        ((0.1, 1.2), (0.0, math.inf), (1.5, 2.0), AS_EXPECTED),
        ((0.1, 1.6), (0.0, math.inf), (1.5, 2.0), "as expected; published: not resolved"),
        ((0.9, 1.1), (1.05, 2.0), (0.8, 1.2), "as published; expected: not resolved"),
        ((0.9, 1.1), (1.2, 2.0), (0.8, 1.2), AS_PUBLISHED),
        ((0.9, 1.1), (1.2, 2.0), (1.05, 2.0), NOT_RESOLVED),
        ((0.9, 1.1), (1.2, 2.0), None, NEITHER),
        ((math.nan, math.nan), (0.0, 2.0), (0.0, 2.0), NOT_RESOLVED),
    ],
)
def test_the_whole_interval_judges(ends, expected, published, outcome):
    """The number is 1 in every case: what it alone lies in decides nothing."""
    item = Expectation("w", "m", "a", expected=expected, published=published)
    assert judge(item, lambda *_, **__: Estimate(1.0, ends)).outcome == outcome


def test_a_divergence_is_certain():
    assert outcome_of(Estimate(math.inf), (1.0, math.inf)) == AS_EXPECTED
    assert outcome_of(Estimate(math.inf), (1.0, 2.0)) == NEITHER


def test_numbers_by_seed_are_paired():
    """Against Student's t: the differences are 1 and 3, with a standard error of 1 and one degree of freedom."""
    means = SeedMeans({("m", "a"): [2.0, 5.0], ("m", "b"): [1.0, 2.0], ("m", "twice"): [2.0, 4.0]})
    difference = estimate(means, "m", "a", minus="b")
    assert (difference.value, *difference.ci90) == pytest.approx((2.0, 2 - 6.3138, 2 + 6.3138), abs=1e-4)
    assert estimate(means, "m", "twice", over="b").ci90 == (2.0, 2.0)
    assert outcome_of(estimate(SeedMeans({("m", "a"): [1.0]}), "m", "a"), (0.0, 2.0)) == "not resolved"
    for other, got in (([1.0], "{'a': 2, 'b': 1}"), (3.0, "{'a': 2, 'b': None}")):
        with pytest.raises(ValueError, match=f"SeedMeans: m must have as many seeds for all arms compared, got {got}"):
            estimate(SeedMeans({("m", "a"): [1.0, 2.0], ("m", "b"): other}), "m", "a", over="b")


def test_what_no_sample_changes_is_its_own_interval():
    item = Expectation("half", "m", "a", "b", expected=(0.4, 0.6))
    found = judge(item, partial(estimate, SeedMeans({("m", "a"): 1.0, ("m", "b"): 2.0})))
    assert (found.value, found.outcome) == (0.5, AS_EXPECTED)
    assert finding_sentence(found) == "half: m of a over b is 0.5, as expected."
