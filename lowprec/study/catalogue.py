"""Catalogue of studies: files of `ablations/` by name, classes of studies by kind, and folders with their runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowprec.registry import Registry

from .branches.scaling import Scaling
from .branches.study import Ablation
from .design import modules
from .design.registration import folder
from .design.study import PlannedStudy, Study
from .fixed_weights.replay import Replay
from .fixed_weights.study import MeasurementStudy

if TYPE_CHECKING:
    from .report.results import Results

#: How much a study uses the trainer, from not at all to trainings from scratch; later tiers take longer.
TIERS = {
    "T1": "tensors alone: seconds",
    "T2": "one batch through the same weights: gradients and predictions, no noise, seconds to minutes",
    "T3": "branches of a BF16 checkpoint: minutes to hours",
    "T4": "training from scratch",
}
#: Classes of studies with stored runs, by the `kind` in their `study.json`.
STUDIES: dict[str, type[PlannedStudy]] = {cls.kind: cls for cls in (Ablation, MeasurementStudy, Scaling, Replay)}


def register(cls: type[PlannedStudy]) -> None:
    """Register a class of studies, so that its runs can be reported; it replaces a class of the same kind."""
    STUDIES[cls.kind] = cls


def names() -> list[str]:
    """Return the names of the ablations that come with the package."""
    return sorted(path.stem for path in folder().glob("*.py") if not path.stem.startswith("_"))


def load(name: str) -> Study:
    """Load an ablation by name, or from a Python file that defines `ablation`.

    Parameters
    ----------
    name : str
        A name of `names()`, or the path of a file ending in `.py`.

    Raises
    ------
    UnknownNameError
        If no ablation has this name.
    FileNotFoundError
        If the file does not exist.
    ValueError
        If the file raises an exception, defines no `ablation`, or its name cannot be that of a folder.

    Examples
    --------
    >>> load("fp8_vs_bf16").name
    'fp8_vs_bf16'
    """
    if name.endswith(".py"):
        path = Path(name)
        if not path.is_file():
            raise FileNotFoundError(f"ablation file {name!r} does not exist")
    else:
        known: Registry[Path] = Registry("ablation", Path)
        for stem in names():
            known.register(stem, folder() / f"{stem}.py")
        path = known[name]
    found = getattr(modules.load(path), "ablation", None)
    if not isinstance(found, Study):
        raise ValueError(f"{path} must define `ablation = Ablation(...)`, got {type(found).__name__}")
    return found


# --- folders of runs -------------------------------------------------------------------------------------------------


def read(runs: Path) -> tuple[PlannedStudy, Any]:
    """Return the study and its size from a folder of runs.

    Raises
    ------
    StudyError
        If `study.json` is missing, damaged or of another version.
    """
    from .run.store import STUDY_FILE, StudyError, read_study_file

    content = read_study_file(runs)
    kind = STUDIES.get(str(content.get("kind")))
    if kind is None:
        found = content.get("kind")
        raise StudyError(f"{runs / STUDY_FILE} was written by another version of lowprec (kind {found!r})")
    try:
        return kind.from_json(content)
    except (KeyError, TypeError, ValueError) as error:
        raise StudyError(f"{runs / STUDY_FILE} is damaged, or another version of lowprec wrote it ({error})") from None


def results(runs: Path) -> Results:
    """Return the results of a study from the folder of its runs.

    Raises
    ------
    StudyError
        If runs are missing, or cannot be compared.
    """
    study, size = read(runs)
    return study.results(size, runs)


def report(runs: Path, plot: bool = True) -> Results:
    """Write the report of a finished study, with figures and page if `plot`, and return its results.

    Raises
    ------
    StudyError
        If runs are missing, or cannot be compared.
    """
    return results(runs).write(plot)


def interim_results(runs: Path, plot: bool) -> str:
    """Return a sentence with the results so far of a running study, and plot them; empty for most kinds."""
    study, size = read(runs)
    return study.interim_results(size, runs, plot)


def studies_in(runs: Path) -> list[Path]:
    """Return the folders of all studies in a folder, or the folder itself if it is one.

    Raises
    ------
    StudyError
        If no folder holds a study.
    """
    from .report.page import REPORT
    from .run.store import STUDY_FILE, StudyError

    if any((runs / name).is_file() for name in (STUDY_FILE, REPORT)):
        return [runs]
    inside = sorted(path.parent for path in runs.glob("*/*") if path.name in (STUDY_FILE, REPORT))
    # Folders that --restart renamed end in a number; they are reported only if given by name.
    found = [path for path in dict.fromkeys(inside) if not path.suffix[1:].isdigit()]
    if not found:
        raise StudyError(f"{str(runs)!r} holds no study ({STUDY_FILE} is missing)")
    return found
