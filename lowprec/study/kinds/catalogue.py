"""The kinds of studies that there are, and what holds for all of them: plans, reports, and a page of several."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from ..catalogue import Study
from ..report import html
from ..report.document import DOCUMENT_FILE, Document
from ..run.backend import Backend
from ..run.plan import Plan
from ..run.store import STUDY_FILE, StudyError, read_study_file
from .branches.kind import BranchKind
from .claims.kind import ClaimKind
from .errors.kind import ErrorKind
from .kind import MeasuringKind, Report, TrainingKind
from .readings.kind import ReadingKind
from .replay.kind import ReplayKind
from .same_weights.kind import SameWeightsKind
from .scaling.kind import ScalingKind
from .tensors.kind import TensorKind

AnyKind = TrainingKind[Any, Any] | MeasuringKind[Any, Any]

#: Every kind by its name.
KINDS: dict[str, AnyKind] = {
    kind.name: kind
    for kind in (
        BranchKind(),
        SameWeightsKind(),
        ScalingKind(),
        ReadingKind(),
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
    study : Ablation or SameWeights
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


def report(folder: Path, plot: bool = True) -> Report:
    """Write the report of one study that ran, and its page.

    Raises
    ------
    StudyError
        If the folder holds no finished study, or runs that cannot be compared.
    """
    name = read_study_file(folder).get("kind")
    kind = KINDS.get(str(name))
    if not isinstance(kind, TrainingKind):
        raise StudyError(f"{folder / STUDY_FILE} was written by another version of lowprec (kind {name!r})")
    found = kind.report(folder, plot)
    files = [*found.files, found.document.write(folder)]
    if plot:
        files.append(html.write([found.document], folder / html.PAGE))
    return replace(found, files=files)


def studies_in(folder: Path) -> list[Path]:
    """Return the folders of the studies in a folder, or the folder itself if it is one.

    Raises
    ------
    StudyError
        If there is none.
    """
    if any((folder / name).is_file() for name in (STUDY_FILE, DOCUMENT_FILE)):
        return [folder]
    inside = sorted(path.parent for path in folder.glob("*/*.json") if path.name in (STUDY_FILE, DOCUMENT_FILE))
    # What --fresh moved aside ends in a number; it is reported when asked for by name.
    found = [path for path in dict.fromkeys(inside) if not path.suffix[1:].isdigit()]
    if not found:
        raise StudyError(f"{str(folder)!r} holds no study ({STUDY_FILE} is missing)")
    return found


def page(documents: list[Document], folder: Path) -> Path:
    """Write one page of several studies, by tier.

    Raises
    ------
    StudyError
        If they were made by different code, packages or data.
    """
    ordered = sorted(documents, key=lambda item: (item.tier, item.name))
    return html.write(ordered, folder / html.PAGE, f"Studies in {folder.resolve().name}")
