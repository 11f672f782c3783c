"""What a kind of study is: each folder here answers one of these protocols, and is listed in `catalogue`.

A kind is an object. Its studies are data: instances of one frozen class, which a file of `ablations/` makes. The class
and the kind stand in different files, and a kind imports what runs and draws within its methods, so that listing
studies waits for neither.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

from ..report.document import Document
from ..run.backend import Backend
from ..run.plan import Plan

#: The class of a kind's studies, and of their sizes.
StudyT = TypeVar("StudyT", contravariant=True)
SettingT = TypeVar("SettingT", contravariant=True)


@dataclass(frozen=True, eq=False)
class Report:
    """A report that was written.

    Attributes
    ----------
    outcome : Any
        The numbers, as the kind has them.
    document : Document
        What it says.
    files : sequence of Path
        Everything that was written.
    show : callable
        Prints the result on a rich console.
    table_csv : callable
        Returns the result as a table, every float exact.
    broken : sequence of str
        Reasons why the study must not be trusted.
    holds : bool
        Whether every published figure that the study measures came out.
    """

    outcome: Any
    document: Document
    files: Sequence[Path]
    show: Callable[[Any], None]
    table_csv: Callable[[], str]
    broken: Sequence[str] = ()
    holds: bool = True

    @property
    def summary_file(self) -> Path:
        """The file with everything in JSON."""
        return self.document.folder / "summary.json"

    def __repr__(self) -> str:
        return f"<Report of {self.document.name} in {self.document.folder}>"

    def _repr_html_(self) -> str:
        from ..report.html import fragment

        return fragment(self.document)


class Kind(Protocol):
    """What every kind of study has."""

    name: ClassVar[str]
    """What `study.json` calls it."""
    study: ClassVar[type]
    """The class of its studies: one of them is a `lowprec.study.catalogue.Study`."""


@runtime_checkable
class TrainingKind(Kind, Protocol[StudyT, SettingT]):
    """A kind whose runs need the trainer: they are planned, run by workers, resumed, and reported from their files."""

    @abstractmethod
    def plan(
        self, study: StudyT, setting: SettingT, folder: Path, *, data: str = "stdlib", backend: Backend | None = None
    ) -> Plan:
        """List the runs of a study; nothing is written.

        Raises
        ------
        UnknownNameError
            If a configuration or recipe is not in its catalogue.
        ValueError
            If the data cannot be used.
        """

    @abstractmethod
    def report(self, folder: Path, plot: bool) -> Report:
        """Write the report of a study that ran into its folder.

        Raises
        ------
        StudyError
            If the folder holds no finished study, or runs that cannot be compared.
        """

    def so_far(self, folder: Path, plot: bool) -> str:
        """Say in a line what a study that still runs has found, and draw it; nothing, if its kind cannot."""
        return ""


@runtime_checkable
class MeasuringKind(Kind, Protocol[StudyT, SettingT]):
    """A kind that trains nothing that it keeps: it is measured in this process, in one go."""

    @abstractmethod
    def measure(
        self,
        study: StudyT,
        setting: SettingT,
        folder: Path,
        *,
        command: str = "",
        plot: bool = True,
        progress: Callable[[int, int], None] | None = None,
    ) -> Report:
        """Measure, and write numbers, figures and the report.

        Parameters
        ----------
        study, setting : StudyT, SettingT
            What is asked, and at which size.
        folder : Path
            Where to.
        command : str
            How the study was called, for the report.
        plot : bool
            Whether figures are drawn.
        progress : callable, optional
            Called with what is done and what there is.

        Raises
        ------
        StudyError
            If the folder cannot be written, or matplotlib is missing.
        """
