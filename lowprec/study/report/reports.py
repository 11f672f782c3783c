"""Reports of finished studies, whatever their kind: files beside the runs, and one page for a folder of them."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..run.plans import STUDY_FILE
from ..run.store import StudyError, read_json
from . import html
from .document import DOCUMENT_FILE, Document

PAGE = "report.html"
#: Kind of `study.json`, and the module with `report(folder, plot)`, `show(summary, console)`, `table_csv(summary)`.
KINDS = {"ablation": "lowprec.study.report.report", "same_weights": "lowprec.study.kinds.same_weights.report"}


@dataclass(frozen=True)
class Reported:
    """A report that was written.

    Attributes
    ----------
    summary : Any
        The study's numbers.
    module : Any
        What shows them.
    document : Document
        The report.
    files : list of Path
        Everything that was written.
    """

    summary: Any
    module: Any
    document: Document
    files: list[Path]

    @property
    def broken(self) -> list[str]:
        """Reasons why the study must not be trusted."""
        found: list[str] = self.summary.broken
        return found


def report(folder: Path, plot: bool = True) -> Reported:
    """Write the report of one study that ran.

    Raises
    ------
    StudyError
        If the folder holds no finished study, or runs that cannot be compared.
    """
    if not (folder / STUDY_FILE).is_file():
        raise StudyError(f"{str(folder)!r} holds no study ({STUDY_FILE} is missing)")
    kind = read_json(folder / STUDY_FILE).get("kind")
    if kind not in KINDS:
        raise StudyError(f"{folder / STUDY_FILE} was written by another version of lowprec (kind {kind!r})")
    module: Any = importlib.import_module(KINDS[kind])
    summary, document, files = module.report(folder, plot)
    files.append(document.write(folder))
    if plot:
        files.append(html.write([document], folder / PAGE))
    return Reported(summary, module, document, files)


def studies_in(folder: Path) -> list[Path]:
    """Return the folders of the studies in a folder, or the folder itself if it is one.

    Raises
    ------
    StudyError
        If there is none.
    """
    if any((folder / name).is_file() for name in (STUDY_FILE, DOCUMENT_FILE)):
        return [folder]
    inside = sorted(
        path.parent for path in folder.glob("*/*.json") if path.name in (STUDY_FILE, DOCUMENT_FILE)
    )  # fmt: skip
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
    return html.write(ordered, folder / PAGE, f"Studies in {folder.resolve().name}")
