"""The kinds of studies that there are, and what holds for all of them: plans and reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..catalogue import Study
from ..report import page
from ..report.results import Results
from ..run.backend import Backend
from ..run.plan import Plan
from ..run.store import STUDY_FILE, StudyError, read_study_file
from .branches.kind import BranchKind
from .claims.kind import ClaimKind
from .errors.kind import ErrorKind
from .fixed_weights.kind import MeasurementKind
from .kind import MeasuringKind, TrainingKind
from .replay.kind import ReplayKind
from .scaling.kind import ScalingKind
from .tensors.kind import TensorKind

AnyKind = TrainingKind[Any, Any] | MeasuringKind[Any, Any]

#: Every kind by its name.
KINDS: dict[str, AnyKind] = {
    kind.name: kind
    for kind in (
        BranchKind(),
        MeasurementKind(),
        ScalingKind(),
        ReplayKind(),
        TensorKind(),
        ErrorKind(),
        ClaimKind(),
    )
}


def register(kind: AnyKind) -> None:
    """Add a kind of study, in place of one of the same name: its studies are run and reported like any other."""
    KINDS[kind.name] = kind


def kind_of(study: Study) -> AnyKind:
    """Return the kind of a study.

    Raises
    ------
    TypeError
        If it is of none.
    """
    for kind in KINDS.values():
        if isinstance(study, kind.study):
            return kind
    known = ", ".join(kind.study.__name__ for kind in KINDS.values())
    raise TypeError(f"{type(study).__name__} {study.name!r} is of no kind of study; there are {known}")


def plan(study: Study, setting: Any, folder: Path, *, data: str = "stdlib", backend: Backend | None = None) -> Plan:
    """List the runs of a study; nothing is written.

    Parameters
    ----------
    study : Ablation or MeasurementStudy
        What is asked.
    setting : Setting or CheckpointSize
        At which size.
    folder : Path
        Where its runs will be.
    data : str
        A corpus by name, or the path of a text.
    backend : Backend, optional
        Makes the trainers, lowprec's own by default.

    Raises
    ------
    TypeError
        If the study trains nothing.
    UnknownNameError
        If a configuration or recipe is not in its catalogue.
    ValueError
        If the data cannot be used, or the setting makes no sense.
    """
    kind = kind_of(study)
    if not isinstance(kind, TrainingKind):
        raise TypeError(f"{study.name} trains nothing, so there is nothing to plan")
    return kind.plan(study, setting, folder, data=data, backend=backend)


def report(folder: Path, plot: bool = True) -> Results:
    """Write the report of one study that ran, and with `plot` its page.

    Raises
    ------
    StudyError
        If the folder holds no finished study, or runs that cannot be compared.
    """
    name = read_study_file(folder).get("kind")
    kind = KINDS.get(str(name))
    if not isinstance(kind, TrainingKind):
        raise StudyError(f"{folder / STUDY_FILE} was written by another version of lowprec (kind {name!r})")
    return kind.results(folder).write(plot)


def studies_in(folder: Path) -> list[Path]:
    """Return the folders of the studies in a folder, or the folder itself if it is one.

    Raises
    ------
    StudyError
        If there is none.
    """
    if any((folder / name).is_file() for name in (STUDY_FILE, page.REPORT)):
        return [folder]
    inside = sorted(path.parent for path in folder.glob("*/*") if path.name in (STUDY_FILE, page.REPORT))
    # What --fresh moved aside ends in a number; it is reported when asked for by name.
    found = [path for path in dict.fromkeys(inside) if not path.suffix[1:].isdigit()]
    if not found:
        raise StudyError(f"{str(folder)!r} holds no study ({STUDY_FILE} is missing)")
    return found
