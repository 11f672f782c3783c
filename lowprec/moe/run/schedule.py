"""Learning rate schedules."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lowprec._checks import check_int, check_positive
from lowprec._values import normalize_fields
from lowprec.registry import suggest

#: Shares of DeepSeek-V3's tokens: the end of the constant rate, and the start of a tenth of it.
_CONSTANT, _TAIL = 0.676, 0.966

#: Largest number of steps: eleven days at one millisecond per step. A larger number is probably a typing error.
MOST_STEPS = 10**9


@dataclass(frozen=True)
class ScheduleCurve:
    """Course of a schedule after its warm-up.

    Attributes
    ----------
    lr_factor : callable
        Fraction of the peak, as a function of the step, the number of warm-up steps and the number of all steps.
    warmup : callable
        Default number of warm-up steps, as a function of the number of steps.
    bias_freeze_at, mtp_drop_at : float
        Fraction of the steps after which the load-balancing bias stays constant, and fraction after which the weight of
        the MTP loss is a third.
    """

    lr_factor: Callable[[int, int, int], float]
    warmup: Callable[[int], int]
    bias_freeze_at: float = math.inf
    mtp_drop_at: float = math.inf


def _constant(step: int, warmup: int, total: int) -> float:
    return 1.0


def _linear_to_zero(step: int, warmup: int, total: int) -> float:
    return max(0, total - step) / max(1, total - warmup)


def _stages(step: int, warmup: int, total: int) -> float:
    done = step / total
    if done < _CONSTANT:
        return 1.0
    if done < _TAIL:
        return 0.55 + 0.45 * math.cos(math.pi * (done - _CONSTANT) / (_TAIL - _CONSTANT))
    return 0.1 if done < 0.989 else 1 / 30


def _tenth(steps: int) -> int:
    return min(steps // 10, 50)


#: Curves by name.
CURVES = {
    "constant": ScheduleCurve(_constant, _tenth),
    "linear_to_zero": ScheduleCurve(_linear_to_zero, _tenth),
    "deepseek": ScheduleCurve(_stages, lambda steps: max(1, int(0.015 * steps)), _TAIL, _CONSTANT),
}


@dataclass(frozen=True)
class Schedule:
    """A learning rate that rises linearly in the first steps and then follows one of three curves.

    Attributes
    ----------
    peak_lr : float
        Peak learning rate.
    warmup_steps : int
        Number of warm-up steps: step i, from 0, has (i + 1) / warmup_steps of the peak.
    total_steps : int
        Number of steps of the schedule.
    curve : str
        Curve: "constant"; "linear_to_zero", a straight line that would reach 0 one step after the last; or "deepseek",
        DeepSeek-V3's stages as shares of its tokens (arXiv 2412.19437, section 4.2): constant to 67.6 %, a cosine down
        to a tenth at 96.6 %, a tenth to 98.9 %, a thirtieth to the end.

    Raises
    ------
    ValueError
        If `curve` is unknown, or a number is out of range.

    Examples
    --------
    >>> schedule = Schedule(peak_lr=1.0, warmup_steps=2, total_steps=6, curve="linear_to_zero")
    >>> [schedule.rate(step) for step in range(7)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]
    """

    peak_lr: float
    warmup_steps: int
    total_steps: int
    curve: str = "constant"

    def __post_init__(self) -> None:
        normalize_fields(self)
        if self.curve not in CURVES:
            raise ValueError(f"unknown schedule {self.curve!r}: {suggest(str(self.curve), CURVES)}")
        check_positive("Schedule", "learning_rate", self.peak_lr)
        check_int("Schedule", "warmup_steps", self.warmup_steps, 0)
        check_int("Schedule", "total_steps", self.total_steps, 1, MOST_STEPS)
        if self.warmup_steps > self.total_steps:
            raise ValueError(
                f"Schedule: warmup_steps must be at most total_steps={self.total_steps}, got {self.warmup_steps}"
            )

    @classmethod
    def of_run(cls, peak: float, total_steps: int, kind: str) -> Schedule:
        """Return the schedule of a run from scratch, with the curve's default number of warm-up steps.

        Examples
        --------
        >>> [Schedule.of_run(2e-3, 300, kind).warmup_steps for kind in ("linear_to_zero", "deepseek")]
        [30, 4]
        """
        return cls(peak, CURVES[kind].warmup(total_steps) if kind in CURVES else 0, total_steps, kind)

    def bias_update_factor(self, step: int) -> float:
        """Return the factor on the load-balancing bias's step size: 1, or 0 after 96.6 % of "deepseek"."""
        return 0.0 if step >= CURVES[self.curve].bias_freeze_at * self.total_steps else 1.0

    def mtp_weight_factor(self, step: int) -> float:
        """Return the factor on the MTP loss weight: 1, or 1/3 after 67.6 % of "deepseek" (0.3 to 0.1 there)."""
        return 1 / 3 if step >= CURVES[self.curve].mtp_drop_at * self.total_steps else 1.0

    def rate(self, step: int) -> float:
        """Return the rate of a step, counted from 0; a float32 value, the same on every machine."""
        # Rounding to float32 hides the last bits of the C library's cosine.
        return float(np.float32(self.peak_lr * self._share(step)))

    def _share(self, step: int) -> float:
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        return CURVES[self.curve].lr_factor(step, self.warmup_steps, self.total_steps)
