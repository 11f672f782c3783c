"""What a kind of study is: each folder here answers one of these protocols, and is listed in `catalogue`.

A kind is an object. Its studies are data: instances of one frozen class, which a file of `ablations/` makes. The class
and the kind stand in different files, and a kind imports what runs and draws within its methods, so that listing
studies waits for neither.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Protocol, TypeVar, runtime_checkable

from ..report.results import Results
from ..run.backend import Backend
from ..run.plan import Plan

#: The class of a kind's studies, and of their sizes.
StudyT = TypeVar("StudyT", contravariant=True)
SettingT = TypeVar("SettingT", contravariant=True)


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
    def results(self, folder: Path) -> Results:
        """Return what a study found that ran into its folder.

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
        progress: Callable[[int, int], None] | None = None,
    ) -> Results:
        """Measure; the results are written by the caller.

        Parameters
        ----------
        study, setting : StudyT, SettingT
            What is asked, and at which size.
        folder : Path
            Where to.
        command : str
            How the study was called, for the report.
        progress : callable, optional
            Called with what is done and what there is.

        Raises
        ------
        StudyError
            If the folder cannot be written.
        """
