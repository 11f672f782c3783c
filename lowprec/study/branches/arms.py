"""Summary of one arm of a branch study relative to the reference: effects, verdict, and reasons that void it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ..analysis.findings import not_detected, not_identical, unique, verdict_or_void
from ..analysis.paired import EQUIVALENT, Paired, bootstrap_interval
from ..analysis.power import detectable_difference, equivalence_power, pairs_needed
from ..analysis.variance import PooledRatio
from ..design.arms import Arm
from .pairs import ArmRun, EffectSamples, data_equivalent, max_relative_error
from .sizes import EFFECTS

#: Verdict on an equivalent treatment, if the positive control shows little more than equivalence.
INSENSITIVE = "small, but the control is hardly larger"
#: The interval of an equivalent arm must be below this fraction of the positive control's effect.
ASSAY_SENSITIVITY = 0.25
#: Possible positions of an interval relative to the noise floor.
AT_THE_FLOOR, ABOVE_THE_FLOOR, ACROSS_THE_FLOOR = "at the floor", "above the floor", "not told from the floor"


@dataclass(frozen=True)
class Power:
    """Statistical power of a number of pairs with a given spread.

    Attributes
    ----------
    detectable : float
        True difference that is detected with 80 % probability.
    equivalence : float
        Probability of showing equivalence if the true difference is 0.
    pairs : int
        Number of pairs for which that probability is 80 %.
    """

    detectable: float
    equivalence: float
    pairs: int


@dataclass(frozen=True, eq=False)
class ArmSummary:
    """Summary of one arm relative to the reference.

    Attributes
    ----------
    arm : Arm
        The arm.
    runs : tuple of ArmRun
        Runs of the arm.
    by_effect : mapping of str to EffectSamples
        Relative differences of the validation loss for each pair, by name in `EFFECTS`.
    effects : mapping of str to Paired
        Statistics of these differences.
    primary_effect : str
        The effect that answers the study's question.
    train_error : float
        Largest smoothed relative difference of the training loss over all pairs and steps (DeepSeek-V3's measure).
    data_exponent : float
        d ln(loss) / d ln(bytes) at the branch point, mean over checkpoints; nan where it is not known.
    p_holm : float
        p value of a difference, adjusted for the number of treatments and controls; nan for other roles.
    identical : bool or None
        Whether every step and result of a repeat has the reference's bits; None for other roles.
    bootstrap90 : (float, float)
        Bootstrap interval of the primary effect.
    power : Power
        Statistical power with this number of pairs and this spread.
    mean_floor : float
        Noise floor of the mean; nan if the study has no floor arm.
    sensitivity : mapping of str to float
        Upper limit for equivalence, by effect: `ASSAY_SENSITIVITY` times the smallest effect of a positive control;
        empty without a control.
    faulty_runs : tuple of str
        Reasons not to trust the numbers: incomplete runs of the arm or of the arms it is compared with, or a differing
        repeat.
    undetected_controls : tuple of str
        Positive controls that were not detected.
    """

    arm: Arm
    runs: tuple[ArmRun, ...]
    by_effect: Mapping[str, EffectSamples]
    effects: Mapping[str, Paired]
    primary_effect: str
    train_error: float
    data_exponent: float
    p_holm: float
    identical: bool | None
    bootstrap90: tuple[float, float]
    power: Power
    mean_floor: float = math.nan
    sensitivity: Mapping[str, float] = field(default_factory=dict)
    faulty_runs: tuple[str, ...] = ()
    undetected_controls: tuple[str, ...] = ()

    @property
    def primary(self) -> Paired:
        """Statistics of the effect that answers the question."""
        return self.effects[self.primary_effect]

    @property
    def floor_position(self) -> str:
        """Position of the 90 % interval relative to the noise floor of the mean; empty if either is missing."""
        return against_floor(self.primary, self.mean_floor)

    @property
    def differences(self) -> NDArray[np.float64]:
        """Relative difference in the primary effect for each pair; inf for a diverged run."""
        return self.by_effect[self.primary_effect].values

    @property
    def data_equivalent(self) -> float:
        """Fraction of the training data that, if removed, would raise the loss by the effect; nan if unknown."""
        return data_equivalent(self.primary.mean, self.data_exponent)

    @property
    def void(self) -> tuple[str, ...]:
        """Reasons that void the verdict; empty if it is valid."""
        return self.faulty_runs + self.undetected_controls

    @property
    def verdict(self) -> str:
        """Verdict on the primary effect, or for a repeat whether it is identical; "void: " and the reasons if void."""
        if self.identical is not None:
            return verdict_or_void("bit-identical" if self.identical else "NOT bit-identical", self.void)
        return self.verdict_on(self.primary_effect)

    def verdict_on(self, effect: str) -> str:
        """Return the verdict on one effect.

        An equivalent treatment must also be well below the positive control of the same study: otherwise the
        study does not show that it could see an effect of that size.
        """
        found, bound = self.effects[effect], self.sensitivity.get(effect, math.inf)
        small = found.verdict == EQUIVALENT and self.arm.role == "treatment" and not found.ci90[1] < bound
        return verdict_or_void(INSENSITIVE if small else found.verdict, self.void)

    @property
    def word(self) -> str:
        """Verdict without the reasons that void it."""
        return self.verdict.partition(":")[0]

    @property
    def detected(self) -> bool:
        """Whether the arm is shown to hurt."""
        return self.primary.diverged > 0 or self.primary.ci95[0] > 0.0


def pairs_with(runs: Sequence[ArmRun], reference: Sequence[ArmRun]) -> list[tuple[ArmRun, ArmRun]]:
    """Return an arm's runs, each paired with the reference's run of the same checkpoint and seed."""
    partner = {(run.checkpoint, run.seed): run for run in reference}
    return [(run, partner[run.checkpoint, run.seed]) for run in runs]


def arm_summary(
    arm: Arm,
    pairs: Sequence[tuple[ArmRun, ArmRun]],
    by_effect: Mapping[str, EffectSamples],
    ratios: Mapping[str, PooledRatio],
    margin: float,
    primary_effect: str,
) -> ArmSummary:
    """Return the summary of an arm relative to the reference.

    Parameters
    ----------
    arm : Arm
        The arm.
    pairs : sequence of (ArmRun, ArmRun)
        Runs of the arm, each with the reference's.
    by_effect : mapping of str to EffectSamples
        Result of `effects_of`.
    ratios : mapping of str to PooledRatio
        Ratio of variances between and within checkpoints, pooled over all arms, for every effect.
    margin : float
        Equivalence margin.
    primary_effect : str
        The effect that answers the question.
    """
    effects = {name: found.summarize(margin, ratios[name]) for name, found in by_effect.items()}
    exponents = [other.data_exponent for _, other in pairs]
    return ArmSummary(
        arm=arm,
        runs=tuple(run for run, _ in pairs),
        by_effect=by_effect,
        effects=effects,
        primary_effect=primary_effect,
        train_error=_train_error(pairs),
        data_exponent=math.fsum(exponents) / len(exponents),
        p_holm=math.nan,
        identical=all(run.outcome == other.outcome for run, other in pairs) if arm.role == "repeat" else None,
        bootstrap90=bootstrap_interval(by_effect[primary_effect].values, 0.90),
        power=_power(effects[primary_effect]),
    )


def sensitivity(arms: Sequence[ArmSummary]) -> dict[str, float]:
    """Return `ASSAY_SENSITIVITY` times the smallest effect of a positive control, by effect; empty without controls.

    A control that diverged has an infinite effect.
    """
    controls = [item for item in arms if item.arm.role == "control"]
    found = {name: [item.effects[name] for item in controls] for name in EFFECTS if controls}
    return {
        name: ASSAY_SENSITIVITY * min(math.inf if effect.diverged else effect.mean for effect in effects)
        for name, effects in found.items()
    }


def floor_of_mean(floor: float, pairs: int, references: int = 1) -> float:
    """Return the noise floor of a mean over pairs, given the noise floor of a single pair of runs.

    With two references, each run is compared with their mean, which has half of a run's variance.

    Examples
    --------
    >>> floor_of_mean(0.4, 16), round(floor_of_mean(0.4, 16, references=2), 4)
    (0.1, 0.0866)
    """
    return floor * math.sqrt((1 + 1 / references) / 2 / pairs)


def against_floor(found: Paired, floor: float) -> str:
    """Return the position of a 90 % interval relative to the noise floor of the mean; empty if either is missing.

    Examples
    --------
    >>> from lowprec.study.analysis.paired import paired
    >>> [against_floor(paired([mean - 1e-5, mean + 1e-5]), 0.0004) for mean in (0.0, 0.0004, 0.001)]
    ['at the floor', 'not told from the floor', 'above the floor']
    """
    low, high = found.ci90
    if not (math.isfinite(floor) and math.isfinite(low) and math.isfinite(high)):
        return ""
    if -floor <= low and high <= floor:
        return AT_THE_FLOOR
    return ABOVE_THE_FLOOR if low > floor or high < -floor else ACROSS_THE_FLOOR


def _train_error(pairs: Sequence[tuple[ArmRun, ArmRun]]) -> float:
    if any(run.lacks or other.lacks for run, other in pairs):
        return math.nan
    return max(max_relative_error(run.curve, other.curve) for run, other in pairs)


def _power(own: Paired) -> Power:
    # The spread that underlies the interval.
    sd, df = own.error * math.sqrt(own.n), own.df
    return Power(
        detectable_difference(sd, own.n, df),
        equivalence_power(sd, own.n, own.margin, df),
        pairs_needed(sd, own.margin) if math.isfinite(sd) else 0,
    )


# --- validity of verdicts: decided here and nowhere else -------------------------------------------------------------


def judged(
    arms: Sequence[ArmSummary], reference: str, runs: Sequence[ArmRun]
) -> tuple[list[ArmSummary], tuple[str, ...], tuple[str, ...]]:
    """Return the arms with the reasons that void their verdicts.

    Parameters
    ----------
    arms : sequence of ArmSummary
        All arms except the reference.
    reference : str
        Name of the reference.
    runs : sequence of ArmRun
        Runs of the reference.

    Returns
    -------
    list of ArmSummary, tuple of str, tuple of str
        The arms; then reasons that void the verdicts of all arms: faulty runs, and controls that were not detected.
    """
    damage = [*_lost(runs)]
    for item in arms:
        if item.arm.role in ("repeat", "control"):
            damage += _lost(item.runs)
        if item.identical is False and not _lost([*runs, *item.runs]):
            damage.append(not_identical(item.arm.name, reference))
    blind = unique(not_detected(item.arm.name) for item in arms if item.arm.role == "control" and not item.detected)
    found = []
    for item in arms:
        if item.arm.role == "repeat":
            found.append(replace(item, faulty_runs=unique([*_lost(runs), *_lost(item.runs)])))
        else:
            found.append(replace(item, faulty_runs=unique([*damage, *_lost(item.runs)]), undetected_controls=blind))
    return found, unique(damage), blind


def _lost(runs: Sequence[ArmRun]) -> list[str]:
    return [run.lacks for run in runs if run.lacks]
