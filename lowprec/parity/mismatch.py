"""Difference of the log-probabilities of a trainer and a rollout, and the contributions of the parts that differ."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..format.catalogue import formats
from ..recipe import LinearSpec
from ..recipe.linears import OF_ALL_GEMMS
from ..tensorcore.catalogue import accumulators

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]
_BF16 = formats["bfloat16"]
#: Accumulators that sum the same products in another order, which gives the noise floor.
_OTHER_ORDER = {accumulators["float32"]: accumulators["hopper_bf16"]}


class PartContribution(NamedTuple):
    """Contribution of one part of the model to the KL divergence.

    Attributes
    ----------
    name : str
        Name of the part.
    kl_alone, kl_alone_error : float
        KL per token with only this part in the rollout's precision, and its standard error.
    kl_reduction, kl_reduction_error : float
        Decrease of the total KL if this part keeps the trainer's precision, and its standard error; NaN where that
        combination is not possible.
    """

    name: str
    kl_alone: float
    kl_alone_error: float
    kl_reduction: float
    kl_reduction_error: float

    @property
    def is_significant(self) -> bool:
        """Whether keeping this part in the trainer's precision lowers the KL by more than two standard errors."""
        return self.kl_reduction > 2 * self.kl_reduction_error


@dataclass(frozen=True)
class Mismatch:
    """Result of `lowprec.torch.mismatch`; KL in nats per token.

    Attributes
    ----------
    train, rollout : str
        Names of the recipes.
    kl : ndarray of float64, shape (tokens,)
        KL(train || rollout) of the next-token distributions.
    log_ratio : ndarray of float64, shape (tokens,)
        ``log p_rollout - log p_train`` of the observed tokens: the logarithm of an importance ratio.
    flips : float
        Fraction of tokens for which the most likely next token differs.
    noise_floor : float
        KL divergence between the trainer's precision with sums in its order and in another order; NaN unless
        every layer's accumulator has another order.
    group_by : str
        Kind of the groups: "layer", "part", "kind", "ingredient", or "None".
    parts : tuple of PartContribution
        Contributions, in the order of the model.
    sequences : int
        Number of sequences, which are of equal length.
    """

    train: str
    rollout: str
    kl: Floats = field(repr=False)
    log_ratio: Floats = field(repr=False)
    flips: float
    noise_floor: float
    group_by: str
    parts: tuple[PartContribution, ...]
    sequences: int

    @property
    def mean(self) -> float:
        """Mean KL over tokens."""
        return float(self.kl.mean())

    @property
    def error(self) -> float:
        """Standard error of the mean KL, with tokens taken as independent."""
        return standard_error(self.kl)

    @property
    def difference(self) -> float:
        """Mean over tokens of the absolute difference of log-probabilities."""
        return float(np.abs(self.log_ratio).mean())

    @property
    def difference_error(self) -> float:
        """Standard error of `difference`, with sequences taken as independent; NaN for a single sequence."""
        return standard_error(np.abs(self.log_ratio).reshape(self.sequences, -1).mean(1))

    def to_pandas(self) -> pd.DataFrame:
        """Return the groups as a table."""
        import pandas as pd

        return pd.DataFrame(self.parts, columns=PartContribution._fields)

    def summary(self) -> dict[str, float]:
        """Return the numbers of the result by name: the difference, its quantiles, KL, flips and noise floor."""
        quantiles = np.quantile(np.abs(self.log_ratio), (0.5, 0.9, 0.99, 1))
        names = ("median", "90 %", "99 %", "largest")
        return {
            "mean difference": self.difference, "standard error": self.difference_error,
            **{f"{name} difference": float(q) for name, q in zip(names, quantiles, strict=True)},
            "KL": self.mean, "flips": self.flips, "noise floor": self.noise_floor,
        }  # fmt: skip

    def __str__(self) -> str:
        low, high = np.quantile(self.log_ratio, (0.01, 0.99))
        median, most, nearly, largest = np.quantile(np.abs(self.log_ratio), (0.5, 0.9, 0.99, 1))
        lines = [
            f"{self.train} (train) against {self.rollout} (rollout), {self.kl.size} tokens",
            f"difference    {self.difference:.3e} +- {self.difference_error:.1e}: mean |log p_rollout - log p_train|",
            f"              median {median:.2e}, 90 % {most:.2e}, 99 % {nearly:.2e}, largest {largest:.2e}",
            f"KL            {self.mean:.3e} +- {self.error:.1e} nats per token, largest {self.kl.max():.3e}",
            f"log ratio     SD {self.log_ratio.std():.3e}, 1 to 99 %: {low:+.3e} to {high:+.3e}",
            f"flips         {self.flips:.3%} of the likeliest tokens differ",
            "floor         unknown: not every layer's sums have another order"
            if math.isnan(self.noise_floor)
            else f"floor         {self.noise_floor:.3e}: KL of the same precision, sums in another order",
        ]
        if self.parts:
            lines += ["", *self._table()]
        return "\n".join(lines)

    def _table(self) -> list[str]:
        whole = self.mean or math.nan
        lines = [f"{self.group_by:32s} {'KL alone':>10s} {'share':>7s} {'KL reduction':>17s}"]
        rows = [(g.name, g.kl_alone, g.kl_reduction, " *" if g.is_significant else "") for g in self.parts]
        alone, saved = (
            float(np.nansum(column))
            for column in ([g.kl_alone for g in self.parts], [g.kl_reduction for g in self.parts])
        )
        rows.append(("sum (not additive)", alone, saved, ""))
        for name, alone, saved, mark in rows:
            first = f"{'n/a':>18s}" if math.isnan(alone) else f"{alone:10.2e} {alone / whole:7.0%}"
            second = f"{'n/a':>17s}" if math.isnan(saved) else f"{saved / whole:+17.0%}"
            lines.append(f"{name:32s} {first} {second}{mark}".rstrip())
        return [*lines, "* larger than two standard errors"]


def standard_error(x: Floats) -> float:
    """Return the standard error of a mean, or NaN for a single value."""
    return float(x.std(ddof=1) / math.sqrt(x.size)) if x.size > 1 else math.nan


def contribution(name: str, kl: Floats, alone: Floats | None, spared: Floats | None) -> PartContribution:
    """Return the contribution of a part.

    Parameters
    ----------
    name : str
        Name of the part.
    kl : ndarray of float64, shape (tokens,)
        KL with all parts in the rollout's precision.
    alone, spared : ndarray of float64, shape (tokens,), or None
        KL with only this part in the rollout's precision, and with all others; None if a combination is not possible.
    """
    pairs = [
        (math.nan, math.nan) if x is None else (float(x.mean()), standard_error(x))
        for x in (alone, None if spared is None else kl - spared)
    ]
    return PartContribution(name, *pairs[0], *pairs[1])


def _with_gemms(to: LinearSpec, of: LinearSpec, fields: tuple[str, ...]) -> LinearSpec:
    """Return a copy of a LinearSpec in which some fields of the forward product are those of another."""
    return to.with_(fprop=to.fprop.with_(**{name: getattr(of.fprop, name) for name in fields}))


#: Ingredients of a linear layer's precision: functions that return the first layer with the ingredient of the second.
INGREDIENTS: Mapping[str, Callable[[LinearSpec, LinearSpec], LinearSpec]] = {
    "operands (formats, scales)": lambda a, b: _with_gemms(a, b, ("a", "b")),
    "accumulator": lambda a, b: _with_gemms(a, b, OF_ALL_GEMMS),
    "rounding of the result": lambda a, b: a.with_(out_format=b.out_format),
}


def reordered(spec: LinearSpec) -> LinearSpec | None:
    """Return a layer whose forward product has another order of sums, or None if its accumulator has only one."""
    if spec.fprop.accumulator not in _OTHER_ORDER or spec.fprop.a.format != _BF16:
        return None
    return spec.with_(fprop={"accumulator": _OTHER_ORDER[spec.fprop.accumulator]})
