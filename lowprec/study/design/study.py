"""Base classes of studies: a question with its arms, two sizes, and expected results."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from lowprec._checks import check_int, check_positive
from lowprec._files import safe_name, to_jsonable
from lowprec._values import normalize_fields
from lowprec.registry import Registry

from .arms import Arm
from .expectations import Expectation

if TYPE_CHECKING:
    from ..report.results import Results
    from ..run.backend import Backend
    from ..run.plan import Plan

#: Upper limit of counts, which catches typing errors.
MOST = 10**9
#: Function that is called with the number of finished steps, and of all steps.
Progress = Callable[[int, int], object]
#: Default number of warm-up steps.
WARMUP = 20


def count(least: int = 1, default: Any = MISSING) -> Any:
    """Return a dataclass field for an integer from `least` to `MOST`."""
    return field(default=default, metadata={"least": least})


@dataclass(frozen=True)
class Size:
    """Size of a study; its fields can be set from strings, as on the command line."""

    def __post_init__(self) -> None:
        normalize_fields(self)
        for item in fields(self):
            if "least" in item.metadata:
                value = check_int("", item.name, getattr(self, item.name), item.metadata["least"], MOST)
                object.__setattr__(self, item.name, value)

    def with_(self, changes: Mapping[str, str | int | float]) -> Self:
        """Return the size with some fields changed; strings are parsed as the type of the field.

        Raises
        ------
        UnknownNameError
            If the field does not exist.
        ValueError
            If a value cannot be read or is out of range.

        Examples
        --------
        >>> CheckpointSize("nano", seeds=1).with_({"seeds": "7"}).seeds
        7
        """
        types: Registry[type] = Registry("setting", type)
        for item in fields(self):
            types.register(item.name, type(getattr(self, item.name)))
        parsed: dict[str, Any] = {}
        for name, value in changes.items():
            kind = types[name]
            try:
                parsed[name] = tuple(map(int, str(value).split(","))) if kind is tuple else kind(value)
            except ValueError:
                what = "integers separated by commas" if kind is tuple else f"of type {kind.__name__}"
                raise ValueError(f"{name} must be {what}, got {value!r}") from None
        return replace(self, **parsed)


@dataclass(frozen=True, kw_only=True)
class CheckpointSize(Size):
    """Size of a study of BF16 checkpoints.

    Parameters
    ----------
    config : str
        Model configuration of the catalogue.
    checkpoint_steps : int
        Number of steps of BF16 training before the measurement.
    checkpoints : int
        Number of independent checkpoints.
    seeds : int
        Number of batches of held-out text per checkpoint.
    learning_rate : float
        Constant learning rate of the checkpoints' training.
    warmup_steps : int, optional
        Number of steps of linear warm-up; by default 20, or all steps if there are fewer.
    """

    config: str = field(default="nano", kw_only=False)
    checkpoint_steps: int = count(1, 300)
    checkpoints: int = count(1, 1)
    seeds: int = count(1, 2)
    learning_rate: float = 2e-3
    warmup_steps: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        warmed = self.warmed_steps
        if self.warmup_steps is None:
            object.__setattr__(self, "warmup_steps", min(WARMUP, getattr(self, warmed)))
        if check_int("", "warmup_steps", self.warmup_steps, 0, MOST) > getattr(self, warmed):
            raise ValueError(f"warmup_steps must be at most {warmed}={getattr(self, warmed)}, got {self.warmup_steps}")
        object.__setattr__(self, "learning_rate", check_positive("", "learning_rate", self.learning_rate))

    @property
    def warmed_steps(self) -> str:
        """Name of the field that counts the steps of the phase of training that has the learning-rate warm-up."""
        return "checkpoint_steps"

    def with_(self, changes: Mapping[str, str | int | float]) -> Self:
        """Return the size with some fields changed; a default warm-up is derived again from the new steps."""
        follows = replace(self, warmup_steps=None) == self and "warmup_steps" not in changes
        changed = super(CheckpointSize, replace(self, warmup_steps=0) if follows else self).with_(changes)
        return replace(changed, warmup_steps=None) if follows else changed

    def __str__(self) -> str:
        before = f"{self.config}: {self.checkpoints} x {self.checkpoint_steps} steps"
        return f"{before}, then {self.checkpoints * self.seeds} batches per arm"


#: Sizes of studies that measure the weights of checkpoints.
QUICK, FULL = CheckpointSize(), CheckpointSize("pilot", checkpoint_steps=400, checkpoints=4, seeds=4)


@dataclass(frozen=True, kw_only=True)
class Study(ABC):
    """A question with its arms, two sizes and the expected results.

    Parameters
    ----------
    name : str
        Name on the command line.
    question : str
        The question in one sentence.
    arms : tuple
        Arms to compare; each has a `name`.
    quick, full : Size
        Size for a result in minutes, and size for a published result.
    expectations : tuple of Expectation
        Expected ranges, written down before the first run.
    expected : str
        Expected finding in prose.
    published, source : str
        Published result and its source.
    notes : str
        Cost of the sizes, and their limitations.
    """

    name: str
    question: str
    arms: tuple[Any, ...]
    quick: Any
    full: Any
    expectations: tuple[Expectation, ...] = ()
    expected: str = ""
    published: str = ""
    source: str = ""
    notes: str = ""
    kind: ClassVar[str]
    """Name of the class in `study.json`."""
    has_reference: ClassVar[bool] = True
    """Whether exactly one arm is the reference."""

    def __post_init__(self) -> None:
        safe_name("study", self.name)
        names = [arm.name for arm in self.arms]
        check_names(self.name, "arm", names)
        references = [arm.name for arm in self.arms if getattr(arm, "role", "") == "reference"]
        if self.has_reference and len(references) != 1:
            raise ValueError(f"study {self.name!r}: exactly one arm must be the reference, got {references}")
        for item in self.expectations:
            for what, name, known in (
                ("metric", item.metric, self.metrics), ("arm", item.arm, names), ("arm", item.other or item.arm, names),
                ("condition", item.condition, self.conditions(item.metric)),
            ):  # fmt: skip
                if known is not None and name not in known:
                    raise ValueError(
                        f"study {self.name!r}: unknown {what} {name!r} in expectation {item.words!r}: expected one of "
                        f"{', '.join(filter(None, known))}"
                    )

    @property
    def metrics(self) -> Mapping[str, str] | None:
        """Metrics that expectations may refer to: descriptions by name; None allows any."""
        return None

    def conditions(self, metric: str) -> Sequence[str] | None:
        """Return the conditions that an expectation of a metric may refer to; None allows any."""
        return None

    @property
    def tier(self) -> str:
        """Use of the trainer, one of `lowprec.study.catalogue.TIERS`."""
        return "T2"

    @property
    def reference(self) -> Any:
        """Arm that the others are compared with."""
        return next(arm for arm in self.arms if arm.role == "reference")

    def arms_of(self, *roles: str) -> tuple[Any, ...]:
        """Return the arms with one of the given roles, in order."""
        return tuple(arm for arm in self.arms if arm.role in roles)


@dataclass(frozen=True, kw_only=True)
class PlannedStudy(Study):
    """Base class of studies that train: runs are planned, executed by workers, resumed, and reported from files.

    `results` imports the code that evaluates and plots, so that listing studies does not load it.
    """

    size_type: ClassVar[type[Size]] = CheckpointSize
    """Class of its sizes, for reading `study.json`."""

    @abstractmethod
    def plan(self, size: Any, folder: Path, *, data: str = "stdlib", backend: Backend | None = None) -> Plan:
        """Return the plan of all runs at a size, without writing anything.

        BF16 checkpoints are stored next to the study's folder and shared by studies with equal code, data and sizes.

        Parameters
        ----------
        size : Size
            Size of the study.
        folder : Path
            Folder for its runs.
        data : str
            Name of a corpus, or path of a text file.
        backend : Backend, optional
            Backend that creates trainers, lowprec's by default.

        Raises
        ------
        UnknownNameError
            If a configuration, recipe or accumulator is not in its catalogue.
        ValueError
            If the data cannot be used, or the size is invalid.
        """

    @abstractmethod
    def results(self, size: Any, folder: Path) -> Results:
        """Return the results at a size, from the runs in a folder.

        Raises
        ------
        StudyError
            If runs are missing, or cannot be compared.
        """

    def interim_results(self, size: Any, folder: Path, plot: bool) -> str:
        """Return a sentence with the results so far, and plot them; empty by default."""
        return ""

    def to_json(self, size: Any) -> dict[str, Any]:
        """Return the content of `study.json`: kind, study with recipes by name, and size."""
        arms = [arm.to_json() for arm in self.arms]
        content = {item.name: getattr(self, item.name) for item in fields(self)} | {"arms": arms}
        return {"kind": self.kind, "ablation": to_jsonable(content), "setting": to_jsonable(size)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> tuple[Self, Any]:
        """Return the study and size from their JSON form, which suffices for reports."""
        kept = cls.fields_from_json(content["ablation"])
        kept |= {name: cls.size_type(**kept[name]) for name in ("quick", "full")}
        kept["expectations"] = tuple(map(Expectation.of, kept["expectations"]))
        return cls(**kept), cls.size_type(**content["setting"])

    @classmethod
    def fields_from_json(cls, content: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of the study, with sizes and expectations still in their JSON form."""
        return {**content, "arms": tuple(Arm(**arm) for arm in content["arms"])}


@dataclass(frozen=True, kw_only=True)
class MeasuredStudy(Study):
    """Base class of studies without training, which are measured in one call in this process."""

    has_reference: ClassVar[bool] = False

    @property
    def tier(self) -> str:
        """Use of the trainer: always "T1"."""
        return "T1"

    @abstractmethod
    def measure(
        self, size: Any, folder: Path, *, command: str = "", progress: Progress = lambda done, total: None
    ) -> Results:
        """Measure and return the results; the caller writes them.

        Parameters
        ----------
        size : Size
            Size of the study.
        folder : Path
            Output folder.
        command : str
            Command line, for the report.
        progress : callable
            Called with the number of finished steps and of all steps.

        Raises
        ------
        StudyError
            If the folder cannot be written.
        """


def check_names(study: str, what: str, names: Sequence[str]) -> None:
    """Refuse a study if two of its parts have the same name, or there are no parts.

    Raises
    ------
    ValueError
        If two names are equal, or there are no names.
    """
    if len(set(names)) < len(names) or not names:
        raise ValueError(f"study {study!r}: every {what} must have a different name, got {[*names]}")
