"""Evaluation of a replay study: means over products with intervals, and extrapolations."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..._files import read_csv
from ..analysis.estimates import BootstrapMean, Resampled, pigeonhole_bootstrap, resampled_estimate
from ..analysis.findings import Finding, judge
from ..design.arms import GemmArm
from ..design.registration import Registration, registered_in
from ..measurements.gemms import COLUMNS, PRODUCTS_FILE
from ..measurements.operands import EXTRAPOLATED_K
from ..report.parts import plural, short_count
from ..report.results import collect
from ..run.store import StudyError

#: Columns with the measurements of one product on one arm, by metric.
Numbers = dict[str, float]
#: Key of a measurement: checkpoint and layer.
Place = tuple[int, str]
#: Suffix of a class with operands extended to this K.
AT_FAR = f"_at_{EXTRAPOLATED_K // 1024}k"
#: An accumulation error below this fraction of the quantization error adds less than half a percent to the total.
NEGLIGIBLE_RATIO = 0.1
#: Metrics of the operands, equal in all arms.
OF_OPERANDS = ("K", "coherence")


@dataclass(frozen=True, eq=False)
class ReplaySummary:
    """Results of a replay study.

    Attributes
    ----------
    study, setting : Replay, ReplaySetting
        The study and its size.
    classes : tuple of str
        Classes of products with recorded operands, see `class_name`.
    far : tuple of str
        Classes of products with operands extended to `EXTRAPOLATED_K`.
    checks : tuple of str
        Classes of products with extended operands for which operands of the extended length were also recorded.
    values : dict
        Means of metrics over draws, by class and arm, then by checkpoint and layer. The metrics are `REPLAY_METRICS`,
        `OF_OPERANDS`, and "quantization" and "largest", both in percent.
    lines : dict
        The same metrics for synthetic operands, by family, arm and K.
    about : dict
        Content of the first run's `run.json`.
    registered : Registration
        Expectations registered before the study.
    """

    study: Any
    setting: Any
    classes: tuple[str, ...]
    far: tuple[str, ...]
    checks: tuple[str, ...]
    values: dict[tuple[str, str], dict[Place, Numbers]]
    lines: dict[tuple[str, str, int], Numbers]
    about: dict[str, Any]
    registered: Registration

    def of(self, metric: str, arm: str, where: str) -> BootstrapMean:
        """Return the mean of a metric over products, with its interval over checkpoints and layers."""
        found = self.values[where, arm]
        return pigeonhole_bootstrap({place: numbers[metric] for place, numbers in found.items()})

    @property
    def bits(self) -> list[tuple[int, GemmArm]]:
        """Arms without promotion and with per-tensor scales, each preceded by its number of fraction bits."""
        found = [
            (bits, arm) for arm in self.study.arms
            if arm.promote_every is None and arm.blocks == "tensor"
            and (bits := getattr(arm.machine, "fraction_bits", None)) is not None
        ]  # fmt: skip
        return sorted(found, key=lambda item: item[0])

    @property
    def intervals(self) -> list[tuple[int, GemmArm]]:
        """Arms that differ from the control only in promotion, each preceded by its promotion interval."""
        control = self.control
        found = [
            (arm.promote_every, arm) for arm in self.study.arms
            if arm.promote_every is not None and (arm.machine, arm.blocks) == (control.machine, control.blocks)
        ]  # fmt: skip
        return sorted(found, key=lambda item: item[0])

    @property
    def control(self) -> GemmArm:
        """Arm that is known to hurt, or the first arm."""
        found: GemmArm = next((arm for arm in self.study.arms if arm.role == "control"), self.study.arms[0])
        return found

    def sufficient_bits(self, where: str) -> int | None:
        """Return the number of fraction bits at and above which the error is at most `NEGLIGIBLE_RATIO`, or None."""
        least = None
        for bits, arm in reversed(self.bits):
            if not self.of("over_quantization", arm.name, where).high <= NEGLIGIBLE_RATIO:
                break
            least = bits
        return least

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Outcomes of the expectations that this size can judge."""
        known = {*self.classes, *self.far, *self.checks}
        return tuple(
            judge(item, partial(resampled_estimate, self._resampled), registered=self.registered.covers(item))
            for item in self.study.expectations
            if (item.condition or self.classes[0]) in known
        )  # fmt: skip

    def _resampled(self, metric: str, where: str, arm: str) -> Resampled:
        return self.of(metric, arm, where or self.classes[0]).resampled

    @property
    def size(self) -> str:
        """Description of the measured products."""
        fingerprint, setting = self.about["fingerprint"], self.setting
        tokens = int(fingerprint["config"]["batch"]) * int(fingerprint["config"]["sequence"])
        layers = {layer for _, layer in self.values[self.classes[0], self.control.name]}
        return (
            f"{setting.config} model, {short_count(fingerprint['parameters']['active'])} active of "
            f"{short_count(fingerprint['parameters']['total'])} parameters, "
            f"{plural(setting.checkpoints, 'BF16 checkpoint')} of {short_count(setting.checkpoint_steps * tokens)} "
            f"bytes of text, {plural(len(layers), 'layer')}, Wgrad over up to {setting.tokens} tokens"
        )


def summarize(study: Any, setting: Any, folder: Path) -> ReplaySummary:
    """Read the runs of a finished `Replay`.

    Raises
    ------
    StudyError
        If some runs are missing, or cannot be compared.
    """
    names = [f"recorded/c{number}" for number in range(setting.checkpoints)]
    stored = collect(folder, [*names, *(f"synthetic/s{number}" for number in range(setting.seeds))])
    gathered: dict[tuple[str, str], dict[Place, list[Numbers]]] = {}
    order: dict[str, tuple[str, int, str]] = {}
    lines: dict[tuple[str, str, int], list[Numbers]] = {}
    for name, (run, _) in stored.found.items():
        checkpoint = int(name.rpartition("/")[2][1:])
        for product, tokens, kept, layer, _, *rest in _table(run.path / PRODUCTS_FILE):
            arm, numbers = _numbers(rest)
            if product == "synthetic":
                lines.setdefault((layer, arm, int(numbers["K"])), []).append(numbers)
                continue
            where = class_name(product, int(tokens), kept)
            order[where] = product, int(tokens), kept
            gathered.setdefault((where, arm), {}).setdefault((checkpoint, layer), []).append(numbers)
    values = {key: {place: _means(found) for place, found in places.items()} for key, places in gathered.items()}
    means = {key: _means(found) for key, found in lines.items()}
    recorded, far, checks = (
        tuple(sorted((name for name, (_, tokens, kept) in order.items() if of == (bool(kept), bool(kept and tokens))),
                     key=lambda name: (("fprop", "dgrad", "wgrad").index(order[name][0]), order[name][1:])))
        for of in ((False, False), (True, False), (True, True))
    )  # fmt: skip
    known = registered_in(folder, study.name)
    return ReplaySummary(study, setting, recorded, far, checks, values, means, stored.about, known)


def class_name(product: str, tokens: int, kept: str) -> str:
    """Return the name of a class of products.

    Parameters
    ----------
    product : str
        "fprop", "dgrad" or "wgrad".
    tokens : int
        Number of tokens that the product sums over, 0 if it does not sum over tokens.
    kept : {"", "coherence", "growth"}
        Property of the recorded sums that extended operands preserve; empty for recorded operands.

    Examples
    --------
    >>> class_name("fprop", 0, ""), class_name("fprop", 0, "coherence"), class_name("wgrad", 65536, "")
    ('fprop', 'fprop_at_16k', 'wgrad_64k')
    """
    if not tokens:
        return product + {"": "", "coherence": AT_FAR, "growth": f"{AT_FAR}_diluted"}[kept]
    size = f"{tokens // 1024}k" if tokens % 1024 == 0 else str(tokens)
    return f"{product}_{size}{'_extended' if kept else ''}"


def class_label(where: str) -> str:
    """Return the label of a class of products.

    Examples
    --------
    >>> class_label("wgrad_64k"), class_label("fprop_at_16k"), class_label("dgrad")
    ('Wgrad, 64k tokens', 'Fprop at K = 16384, as coherent', 'Dgrad')
    """
    product, _, rest = where.partition("_")
    if AT_FAR in where:
        how = "less coherent" if where.endswith("_diluted") else "as coherent"
        return f"{product.capitalize()} at K = {EXTRAPOLATED_K}, {how}"
    tokens = rest.removesuffix("_extended")
    made = ", extended" if tokens != rest else ""
    return f"{product.capitalize()}, {tokens} tokens{made}" if rest else product.capitalize()


def _table(path: Path) -> list[list[str]]:
    try:
        head, rows = read_csv(path)
    except (OSError, ValueError) as error:
        raise StudyError(f"{path} is damaged ({error}); remove that folder and run again") from None
    if tuple(head) != COLUMNS:
        raise StudyError(f"{path} has other columns than this version of lowprec writes; run again with --restart")
    return rows


def _numbers(cells: Iterable[str]) -> tuple[str, Numbers]:
    length, coherence, arm, quantization, accumulation, gain, largest = cells
    lost, off = float(quantization), float(accumulation)
    return arm, {
        "K": float(length), "coherence": float(coherence), "quantization": 100 * lost,
        "over_quantization": off / lost if lost else math.nan, "error_percent": 100 * off,
        "bias_percent": 100 * float(gain), "largest": 100 * float(largest),
    }  # fmt: skip


def _means(found: list[Numbers]) -> Numbers:
    return {name: float(np.mean([numbers[name] for numbers in found])) for name in found[0]}


def spread_of(values: Iterable[float]) -> NDArray[np.float64]:
    """Return the 5th and the 95th percentile."""
    found: NDArray[np.float64] = np.quantile(np.array(list(values)), (0.05, 0.95))
    return found
