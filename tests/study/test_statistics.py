"""The statistics against closed forms, SciPy's own tests and simulations with known truth."""

import itertools
import math

import numpy as np
import pytest
from refusals import refusals
from scipy import stats

from lowprec.study.analysis import paired as statistics
from lowprec.study.analysis.estimates import fieller
from lowprec.study.analysis.paired import bootstrap_interval, holm, infer, paired, relative_differences
from lowprec.study.analysis.power import detectable_difference, equivalence_power, pairs_needed
from lowprec.study.analysis.variance import mean_squares, mean_variance, pooled_ratio, text_variance
from lowprec.study.analysis.variance import satterthwaite as together_variances
from lowprec.study.branches.pairs import ema, max_relative_error

MARGIN = 0.0025


def draw(seed, runs, n, mean, sd):
    generator = np.random.Generator(np.random.PCG64(seed))
    return mean + sd * generator.standard_normal((runs, n))


def assert_rate(hits, runs, expected):
    """The count is one that a binomial with this rate gives in all but a millionth of cases."""
    low, high = stats.binom.ppf([5e-7, 1 - 5e-7], runs, expected)
    assert low <= hits <= high, f"{hits} of {runs}, expected a rate of {expected}: {low} to {high}"


def test_interval_and_p_values_are_scipys():
    r = draw(1, 1, 7, 0.001, 0.002)[0]
    own = paired(r, MARGIN)
    test = stats.ttest_1samp(r, 0.0)
    assert own.n == 7
    assert own.mean == pytest.approx(np.mean(r), rel=1e-14)
    assert own.sd == pytest.approx(np.std(r, ddof=1), rel=1e-14)
    for level, ours in ((0.90, own.ci90), (0.95, own.ci95)):
        theirs = test.confidence_interval(level)
        assert ours == pytest.approx((theirs.low, theirs.high), rel=1e-12)
    assert own.p_difference == pytest.approx(test.pvalue, rel=1e-12)
    below = stats.ttest_1samp(r, MARGIN, alternative="less").pvalue
    above = stats.ttest_1samp(r, -MARGIN, alternative="greater").pvalue
    assert own.p_equivalence == pytest.approx(max(below, above), rel=1e-12)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("mean", [0.0, 0.001, 0.0025, -0.003])
def test_equivalence_by_interval_is_equivalence_by_two_one_sided_tests(seed, mean):
    own = paired(draw(seed, 1, 5, mean, 0.0012)[0], MARGIN)
    inside = own.verdict in ("equivalent", "worse, but within the margin", "better, but within the margin")
    assert inside == (own.p_equivalence < 0.05)


@pytest.mark.slow
@pytest.mark.parametrize("n", [2, 3, 6, 20])
def test_intervals_cover_the_truth_as_often_as_they_say(n):
    runs = 4000
    samples = [paired(r, MARGIN) for r in draw(n, runs, n, 0.0007, 0.001)]
    for level, name in ((0.90, "ci90"), (0.95, "ci95")):
        assert_rate(sum(getattr(s, name)[0] < 0.0007 < getattr(s, name)[1] for s in samples), runs, level)


@pytest.mark.slow
@pytest.mark.parametrize("edge", [MARGIN, -MARGIN])
def test_equivalence_is_claimed_wrongly_in_five_per_cent_at_the_margin(edge):
    # With so small a spread the other side of the margin plays no part and the size is 5 % exactly.
    runs, n = 4000, 6
    verdicts = [paired(r, MARGIN).verdict for r in draw(3, runs, n, edge, 0.0004)]
    assert_rate(sum("within" in verdict or verdict == "equivalent" for verdict in verdicts), runs, 0.05)
    # And beyond the margin as rarely: the same test the other way round.
    assert_rate(sum(verdict in ("worse", "better") for verdict in verdicts), runs, 0.05)


@pytest.mark.slow
def test_no_difference_is_called_one_in_five_per_cent():
    ends = np.array([paired(r, MARGIN).ci95 for r in draw(4, 4000, 6, 0.0, 0.001)])
    assert_rate(np.sum(ends[:, 0] > 0), 4000, 0.025)
    assert_rate(np.sum(ends[:, 1] < 0), 4000, 0.025)


@pytest.mark.slow
def test_power_is_that_of_the_noncentral_t():
    runs, n, sd, true = 4000, 6, 0.001, 0.0015
    found = sum(paired(r, MARGIN).ci95[0] > 0 for r in draw(5, runs, n, true, sd))
    expected = stats.nct.sf(stats.t.ppf(0.975, n - 1), n - 1, true / sd * math.sqrt(n))
    assert 0.5 < expected < 0.9
    assert_rate(found, runs, expected)


@pytest.mark.parametrize(
    ("differences", "verdict"),
    [
        ([0.004, 0.0042, 0.0041], "worse"),
        ([-0.004, -0.0042, -0.0041], "better"),
        ([0.0, 0.01, -0.01], "not resolved"),
        ([0.0001], "not resolved"),
        ([0.0001, math.inf], "worse"),  # a divergence counts as worse
        ([0.0, 0.0], "equivalent"),
        ([0.01, 0.01], "worse"),
        ([-0.01, -0.01], "better"),
        ([MARGIN, MARGIN], "not resolved"),  # the margin itself is neither inside nor beyond
        ([0.002, 0.0026, 0.0024], "not resolved"),  # real, but is it beyond?
        ([0.0005, 0.0006, 0.0007, 0.0006], "worse, but within the margin"),
        ([-0.0005, -0.0006, -0.0007], "better, but within the margin"),
    ],
)
def test_verdicts(differences, verdict):
    assert paired(differences, MARGIN).verdict == verdict


def test_one_pair_claims_nothing():
    own = paired([0.0001], MARGIN)
    assert own.mean == 0.0001
    assert own.ci90 == own.ci95 == (-math.inf, math.inf)
    assert np.isnan([own.sd, own.p_difference, own.p_equivalence]).all()
    assert not own.resolved_difference
    assert paired([0.0005, 0.0006, 0.0007, 0.0006], MARGIN).resolved_difference


def test_a_spread_of_zero_leaves_no_doubt():
    for differences, p in (([0.0, 0.0, 0.0], (1.0, 0.0)), ([0.01, 0.01], (0.0, 1.0))):
        own = paired(differences, MARGIN)
        assert (own.p_difference, own.p_equivalence) == p


def test_relative_differences():
    assert relative_differences([1.5, math.nan, math.inf], [1.0, 1.0, 1.0]).tolist() == [0.5, math.inf, math.inf]


def test_holm_is_the_textbooks():
    # Holm (1979) by hand: 4 x 0.005, 3 x 0.011, 2 x 0.02, 1 x 0.04, each at least its predecessor.
    assert holm([0.011, 0.04, 0.005, 0.02]) == pytest.approx([0.033, 0.04, 0.02, 0.04])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([0.01, math.nan, 0.02]) == pytest.approx([0.02, math.nan, 0.02], rel=0, nan_ok=True)
    assert holm([]) == []


@pytest.mark.slow
def test_holm_keeps_the_chance_of_any_false_alarm():
    runs, arms = 2000, 3
    studies = draw(6, runs, arms * 6, 0.0, 0.001).reshape(runs, arms, 6)
    alarms = sum(min(holm([paired(r, MARGIN).p_difference for r in study])) < 0.05 for study in studies)
    # The first comparison is at 5 % / 3, independent for each arm.
    assert_rate(alarms, runs, 1 - (1 - 0.05 / 3) ** 3)


# --- two levels ------------------------------------------------------------------------------------------------------


def satterthwaite(seed, runs, checkpoints, seeds, arms, between):
    """EffectSamples of several arms that share a reference, [runs, arms, checkpoints * seeds], variance 1 + between."""
    generator = np.random.Generator(np.random.PCG64(seed))
    noise = generator.standard_normal((runs, arms + 1, checkpoints, seeds))
    noise += math.sqrt(between) * generator.standard_normal((runs, arms + 1, checkpoints, 1))
    r = (noise[:, 1:] - noise[:, :1]) / math.sqrt(2)
    return 0.001 * r.reshape(runs, arms, -1), np.repeat(np.arange(checkpoints), seeds).tolist()


def test_the_levels_are_the_analysis_of_variance():
    studies, labels = satterthwaite(7, 1, 3, 4, 1, 4.0)
    r = studies[0, 0]
    own, levels, groups = paired(r, MARGIN, labels), mean_squares(r, labels), r.reshape(3, 4)
    f = stats.f_oneway(*groups)
    assert own.p_checkpoints == pytest.approx(f.pvalue, rel=1e-10)
    assert (levels.n, levels.checkpoints, levels.df) == (12, 3, (2, 9))
    assert levels.within == pytest.approx(groups.var(axis=1, ddof=1).mean(), rel=1e-12)
    assert levels.between / levels.within == pytest.approx(f.statistic, rel=1e-10)
    # One arm alone says nothing of others: the means of its checkpoints count.
    over = stats.ttest_1samp(groups.mean(axis=1), 0.0)
    assert own.p_difference == pytest.approx(over.pvalue, rel=1e-10)
    # Unequal numbers of pairs, and one pair a checkpoint, where only the upper level is left.
    ragged, single = paired(r[:6], MARGIN, labels[:6]), paired(r[::4], MARGIN, [0, 1, 2])
    assert ragged.p_checkpoints == pytest.approx(stats.f_oneway(r[:4], r[4:6]).pvalue, rel=1e-10)
    assert single.p_difference == pytest.approx(stats.ttest_1samp(r[::4], 0.0).pvalue, rel=1e-10)
    assert paired(r[:4], MARGIN, [4, 4, 4, 4]).df == 3


#: Checkpoints, seeds, arms, between over within, and the coverage of 90 % intervals that the module's docstring states.
COVERAGE = [
    (4, 2, 6, 0.0, (0.91, 0.94)), (4, 2, 6, 0.25, (0.89, 0.925)), (4, 2, 6, 1.0, (0.875, 0.91)),
    (4, 3, 6, 0.0, (0.91, 0.94)), (4, 3, 6, 1.0, (0.87, 0.905)), (4, 2, 2, 1.0, (0.885, 0.92)),
    (4, 1, 6, 1.0, (0.885, 0.915)), (2, 3, 6, 1.0, (0.89, 0.93)),
]  # fmt: skip


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("checkpoints", "seeds", "arms", "between", "expected"), COVERAGE)
def test_intervals_cover_the_mean_over_checkpoints_that_nobody_trained(checkpoints, seeds, arms, between, expected):
    runs = 700
    r, labels = satterthwaite(8, runs, checkpoints, seeds, arms, between)
    covered = 0
    for study in r:
        levels = [mean_squares(arm, labels) for arm in study]
        ratio = pooled_ratio(levels)
        for item in levels:
            variance, df = mean_variance(item, ratio)
            covered += abs(item.mean) < stats.t.ppf(0.95, df) * math.sqrt(variance)
    assert expected[0] < covered / (runs * arms) < expected[1]


@pytest.mark.slow
def test_equivalence_is_claimed_wrongly_about_as_rarely_with_checkpoints_that_differ():
    """Size at the margin, and power without a difference, of the estimator that studies use."""
    runs, arms = 500, 6
    r, labels = satterthwaite(9, runs, 4, 3, arms, 0.25)
    margin, claims, found = 0.001, 0, 0
    for study in r:
        ratio = pooled_ratio(mean_squares(arm, labels) for arm in study)
        for arm in study:
            claims += paired(arm + margin, margin, labels, ratio=ratio).ci90[1] < margin
            found += paired(arm, MARGIN, labels, ratio=ratio).p_equivalence < 0.05
    assert 0.03 < claims / (runs * arms) < 0.07
    assert found / (runs * arms) > 0.95


def test_many_arms_say_more_of_checkpoints_than_one():
    r, labels = satterthwaite(10, 40, 4, 2, 8, 0.0)
    alone = np.mean([np.diff(paired(arm, MARGIN, labels).ci90) for study in r for arm in study])
    shared = np.mean([
        np.diff(paired(arm, MARGIN, labels, ratio=pooled_ratio(mean_squares(a, labels) for a in study)).ci90)
        for study in r for arm in study
    ])  # fmt: skip
    assert shared < 0.97 * alone


def test_arms_that_do_not_vary_are_left_out_of_the_ratio():
    ratio = pooled_ratio([mean_squares([0.0] * 4, [0, 0, 1, 1])])
    assert math.isnan(ratio.value)
    assert paired([0.0] * 4, MARGIN, [0, 0, 1, 1], ratio=ratio).verdict == "equivalent"


@pytest.mark.parametrize("pairs", [1, 6])
def test_the_text_is_a_sample_too(pairs):
    """What blocks of text vary by, alike in all pairs, is found; what each pair has of its own is not counted twice."""
    generator = np.random.Generator(np.random.PCG64(11))
    found = []
    for _ in range(400):
        common = np.repeat(generator.standard_normal(32), 8)
        found.append(text_variance(np.tile(common, (pairs, 1)) + 0.5 * generator.standard_normal((pairs, 256)))[0])
    assert np.mean(found) == pytest.approx((1.0 + (0.25 / 8 if pairs == 1 else 0.0)) / 32, rel=0.05)
    noise = [text_variance(generator.standard_normal((6, 256)))[0] for _ in range(400)]
    assert np.mean(noise) < 0.5 / (6 * 256)
    assert text_variance(np.zeros((3, 1))) == (0.0, 0.0)


def test_variances_together():
    assert together_variances((1.0, 3.0), (0.0, 31.0)) == (1.0, 3.0)
    total, df = together_variances((1.0, 4.0), (0.5, 31.0))
    assert (total, 4.0 < df < 35.0) == (1.5, True)
    assert math.isnan(together_variances((math.nan, 0.0), (1.0, 31.0))[0])


@pytest.mark.slow
def test_fieller_covers_the_ratio():
    runs, covered, unbounded = 3000, 0, 0
    generator = np.random.Generator(np.random.PCG64(12))
    draws = np.reshape([2.0, 1.0], (2, 1, 1)) + generator.standard_normal((2, runs, 8))
    for x, y in zip(*draws, strict=True):
        found = fieller(x.mean(), y.mean(), lambda r, x=x, y=y: ((x - r * y).var(ddof=1) / 8, 7.0))
        unbounded += found == (-math.inf, math.inf)
        covered += found[0] <= 2.0 <= found[1]
    assert covered / runs > 0.89
    assert 0.05 < unbounded / runs < 0.6  # a mean that is 2.8 standard errors from 0


def test_a_ratio_lies_in_its_interval_whatever_variances_do():
    """Of two arms that go satterthwaite the sum's variance, shrunken by itself, can ask for a correlation above 1."""

    def shrunken(r):
        return 0.0100 + 0.0100 * r**2 - 0.0201 * r + 0.0002, 5.0

    found = fieller(0.97, 1.0, shrunken)
    assert found[0] < 0.97 < found[1]
    exact = fieller(3.0, 2.0, lambda r: (0.0, 5.0))
    assert exact == pytest.approx((1.5, 1.5))


# --- bootstrap -------------------------------------------------------------------------------------------------------


def test_bootstrap_is_reproducible_and_near_t_for_many_pairs():
    r = draw(10, 1, 60, 0.001, 0.002)[0]
    first = bootstrap_interval(r)
    assert first == bootstrap_interval(r)
    assert first == pytest.approx(paired(r).ci90, abs=1e-4)
    assert bootstrap_interval([0.1]) == bootstrap_interval([0.1, math.inf]) == (-math.inf, math.inf)
    assert bootstrap_interval([0.1, 0.1]) == (0.1, 0.1)


def test_bca_follows_a_skewed_sample():
    skewed = np.random.default_rng(11).exponential(size=(1, 30))[0]
    low, high = bootstrap_interval(skewed)
    assert high - skewed.mean() > 1.1 * (skewed.mean() - low)  # a t interval is symmetric


# --- power -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("sd", "n", "difference"), [(0.001, 3, 0.0), (0.002, 6, 0.0), (0.002, 12, 0.001)])
def test_power_of_equivalence_is_what_simulations_find(sd, n, difference):
    runs = 20_000
    r = draw(13, runs, n, difference, sd)
    half = stats.t.ppf(0.95, n - 1) * r.std(axis=1, ddof=1) / math.sqrt(n)
    inside = int(np.count_nonzero(np.abs(r.mean(axis=1)) + half < MARGIN))
    assert_rate(inside, runs, equivalence_power(sd, n, MARGIN, difference=difference))


def test_detectable_difference_is_found_in_eighty_per_cent():
    runs, n, sd = 20_000, 6, 0.001
    r = draw(14, runs, n, detectable_difference(sd, n), sd)
    found = int(np.count_nonzero(stats.ttest_1samp(r, 0.0, axis=1).confidence_interval(0.95).low > 0))
    assert_rate(found, runs, 0.80)
    assert detectable_difference(sd, 1) == math.inf


def test_pairs_needed_is_the_least_number():
    for sd in (0.0006, 0.002, 0.004):
        n = pairs_needed(sd, MARGIN)
        assert equivalence_power(sd, n, MARGIN) >= 0.8 > equivalence_power(sd, n - 1, MARGIN)
    assert equivalence_power(0.001, 1, MARGIN) == 0.0
    assert equivalence_power(0.0, 3, MARGIN) == 1.0


def test_an_inference_without_a_degree_of_freedom_claims_nothing():
    nothing = infer(0.1, 0.1, 0, MARGIN)
    assert (nothing.verdict, nothing.resolved_difference) == ("not resolved", False)


def test_spread_ignores_divergence_and_needs_two():
    assert statistics.spread([0.001, -0.001, 0.0, math.inf]) == 0.001
    assert np.isnan([statistics.spread([0.001]), statistics.spread([math.inf, 0.001])]).all()


def test_root_mean_square_ignores_divergence_and_keeps_what_differences_share():
    assert statistics.root_mean_square([0.003, -0.003, math.inf]) == 0.003
    assert (
        statistics.root_mean_square([-0.5, -0.5]) == statistics.root_mean_square([0.5]) == 0.5
    )  # a standard deviation would be 0
    assert math.isnan(statistics.root_mean_square([math.inf]))


def test_ema_is_the_recurrence_and_stops_at_what_is_not_finite():
    x = [3.0, 1.0, 4.0, 1.0, 5.0]
    assert ema(x).tolist() == [*itertools.accumulate(x, lambda smooth, value: 0.9 * smooth + (1 - 0.9) * value)]
    broken = ema([1.0, math.inf, 1.0])
    assert broken[0] == 1.0
    assert np.isnan(broken[1:]).all()
    assert ema([]).size == 0


def test_max_relative_error_sees_the_worst_step_after_the_start():
    reference = np.full(50, 2.0)
    arm = reference.copy()
    arm[0] = 4.0  # decays with 0.9^t in the average
    assert max_relative_error(arm, reference, skip=0) == pytest.approx(1.0)
    assert max_relative_error(arm, reference, skip=10) == pytest.approx(0.9**10)
    assert max_relative_error(arm[:1], reference[:1]) == 1.0  # the last step always counts
    assert max_relative_error(arm[:20], reference) == math.inf  # ended early
    arm[7] = math.nan
    assert max_relative_error(arm, reference) == math.inf


test_refused = refusals([
    *[(f"paired({bad}, MARGIN)", "paired difference") for bad in ("[]", "[[0.1]]", "[math.nan, 0.1]")],
    *[(f"paired([0.1, 0.2], {margin})", "margin must be positive and finite")
      for margin in ("0.0", "-1.0", "math.inf", "math.nan")],
    ("paired([0.1, 0.2, 0.3, 0.4], MARGIN, [0, 0, 1])", "checkpoints must be 4, one per paired difference, got 3"),
    ("relative_differences([1.0], [1.0, 2.0])", r"arm and reference must have the same shape, got \(1,\) and \(2,\)"),
    *[(f"relative_differences([1.0], [{bad}])", "losses of the reference must be positive and finite, got")
      for bad in ("0.0", "-1.0", "math.nan", "math.inf")],
    ("max_relative_error(np.ones(3), np.ones(2))", r"curves of arm and reference must have the same shape, got"),
], lambda: globals())  # fmt: skip
