"""From the tables of a replay to means over multiplications with intervals, and what is extrapolated from them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..._files import read_csv
from ..analysis.estimates import BootstrapMean, ByResamples, Resampled, pigeonhole_bootstrap
from ..analysis.findings import Finding, judge
from ..design.arms import GemmArm
from ..design.registration import Registration, registered_in
from ..measurements.gemms import COLUMNS, PRODUCTS_FILE
from ..measurements.operands import EXTRAPOLATED_K
from ..report.parts import plural, short_count
from ..report.results import collect
from ..run.store import StudyError

#: What is measured of one multiplication on one arm, by its metric.
Numbers = dict[str, float]
#: Checkpoint and layer.
Place = tuple[int, str]
#: Behind the name of a class: operands were extended to so much.
AT_FAR = f"_at_{EXTRAPOLATED_K // 1024}k"
#: Accumulation that costs less than this share of what quantization costs adds less than half a per cent to the error.
NEGLIGIBLE_RATIO = 0.1
#: Metrics of a multiplication that no arm changes.
OF_OPERANDS = ("K", "coherence")


@dataclass(frozen=True, eq=False)
class ReplaySummary:
    """A finished replay.

    Attributes
    ----------
    study, setting : Replay, ReplaySetting
        What was asked, and at which size.
    classes, far, checks : tuple of str
        The classes of multiplications, see `class_name`: of recorded operands, of operands extended to
        `EXTRAPOLATED_K`, and of extended ones whose own length was recorded, too.
    values : dict
        By class and arm, then by checkpoint and layer: `REPLAY_METRICS`, `OF_OPERANDS`, "quantization" (per cent) and
        "largest" (per cent), means over draws.
    lines : dict
        By family, arm and K: the same of synthetic operands, means over draws.
    about : dict
        `run.json` of the first run.
    registered : Registration
        What was registered before.
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
        """Return a metric's mean over multiplications, with its interval over checkpoints and layers."""
        found = self.values[where, arm]
        return pigeonhole_bootstrap({place: numbers[metric] for place, numbers in found.items()})

    @property
    def bits(self) -> list[tuple[int, GemmArm]]:
        """Arms that never leave the tensor core by their fraction bits, per-tensor scales."""
        found = [
            (bits, arm) for arm in self.study.arms
            if arm.promote_every is None and arm.blocks == "tensor"
            and (bits := getattr(arm.machine, "fraction_bits", None)) is not None
        ]  # fmt: skip
        return sorted(found, key=lambda item: item[0])

    @property
    def intervals(self) -> list[tuple[int, GemmArm]]:
        """Arms that differ from the control in being promoted, by the interval."""
        control = self.control
        found = [
            (arm.promote_every, arm) for arm in self.study.arms
            if arm.promote_every is not None and (arm.machine, arm.blocks) == (control.machine, control.blocks)
        ]  # fmt: skip
        return sorted(found, key=lambda item: item[0])

    @property
    def control(self) -> GemmArm:
        """The arm that is known to hurt, or the first."""
        found: GemmArm = next((arm for arm in self.study.arms if arm.role == "control"), self.study.arms[0])
        return found

    def sufficient_bits(self, where: str) -> int | None:
        """Return the fewest fraction bits whose error, and that of all wider arms, is below `NEGLIGIBLE_RATIO`."""
        least = None
        for bits, arm in reversed(self.bits):
            if not self.of("over_quantization", arm.name, where).high <= NEGLIGIBLE_RATIO:
                break
            least = bits
        return least

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What became of the expectations that this size can judge."""
        known = {*self.classes, *self.far, *self.checks}
        return tuple(
            judge(item, ByResamples(self._resampled), registered=self.registered.covers(item))
            for item in self.study.expectations
            if (item.stress or self.classes[0]) in known
        )  # fmt: skip

    def _resampled(self, metric: str, where: str, arm: str) -> Resampled:
        return self.of(metric, arm, where or self.classes[0]).resampled

    @property
    def size(self) -> str:
        """What was measured, in words."""
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
    """Return the name of a class of multiplications.

    Parameters
    ----------
    product : str
        "fprop", "dgrad" or "wgrad".
    tokens : int
        Over how many it sums, 0 if it does not.
    kept : {"", "coherence", "growth"}
        What of shorter sums is as it was recorded, where operands were extended; empty where they are whole.

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
    """Return a class of multiplications in words.

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
        raise StudyError(f"{path} has other columns than this version of lowprec writes; run again with --fresh")
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
