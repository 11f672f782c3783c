"""One question: its arms, its two sizes, what was expected of it. Every study's class is one of these."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from lowprec._arrays import positive, whole
from lowprec._files import plain, safe_name
from lowprec._values import plain_fields
from lowprec.registry import Registry

from .arms import Arm
from .expectations import Expectation

if TYPE_CHECKING:
    from ..report.results import Results
    from ..run.backend import Backend
    from ..run.plan import Plan

#: Beyond it no study ends; somebody mistyped.
MOST = 10**9
#: Steps of warm-up where a size gives none.
WARMUP = 20


def count(least: int = 1, default: Any = MISSING) -> Any:
    """Return a field of a size that is a whole number of at least so much and at most `MOST`."""
    return field(default=default, metadata={"least": least})


@dataclass(frozen=True)
class Size:
    """How large a study is; its fields can be changed by text, as the command line has it."""

    def __post_init__(self) -> None:
        plain_fields(self)
        for item in fields(self):
            if "least" in item.metadata:
                value = whole("", item.name, getattr(self, item.name), item.metadata["least"], MOST)
                object.__setattr__(self, item.name, value)

    def with_(self, changes: Mapping[str, str | int | float]) -> Self:
        """Return the size with some fields changed; text is parsed as the type that the field has.

        Raises
        ------
        UnknownNameError
            If there is no such field.
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
                what = "whole numbers with commas between them" if kind is tuple else kind.__name__
                raise ValueError(f"{name}: cannot read {value!r} as {what}") from None
        return replace(self, **parsed)


@dataclass(frozen=True, kw_only=True)
class CheckpointSize(Size):
    """How large a study of BF16 checkpoints is.

    Parameters
    ----------
    config : str
        Model configuration of the catalogue.
    checkpoint_steps : int
        Steps of BF16 training before the measurement.
    checkpoints : int
        Independent checkpoints.
    seeds : int
        Batches of held-out text per checkpoint.
    learning_rate : float
        Constant rate of the checkpoints' training.
    warmup_steps : int, optional
        Its linear warm-up: by default 20 steps, or all if there are fewer.
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
        if whole("", "warmup_steps", self.warmup_steps, 0, MOST) > getattr(self, warmed):
            raise ValueError(f"warmup_steps must be at most {warmed}={getattr(self, warmed)}, got {self.warmup_steps}")
        object.__setattr__(self, "learning_rate", positive("", "learning_rate", self.learning_rate))

    @property
    def warmed_steps(self) -> str:
        """The field with the steps of the training that warms up."""
        return "checkpoint_steps"

    def with_(self, changes: Mapping[str, str | int | float]) -> Self:
        """Return the size with some fields changed; a warm-up that follows from the steps goes on to do so."""
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
    """One question with its arms, its two sizes and what was expected.

    Parameters
    ----------
    name : str
        Its name on the command line.
    question : str
        The question in one sentence.
    arms : tuple
        What is compared; each has a `name`.
    quick, full : Size
        A size for minutes and a size for a result.
    expectations : tuple of Expectation
        Numbers that were expected, written down before the first run.
    expected : str
        The expected finding in words.
    published, source : str
        The published result, and where.
    notes : str
        What the sizes cost and what they cannot show.
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
    """What `study.json` calls its class."""
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
                ("condition", item.stress, self.conditions(item.metric)),
            ):  # fmt: skip
                if known is not None and name not in known:
                    raise ValueError(
                        f"study {self.name!r}: expectation {item.words!r} names the unknown {what} {name!r}; "
                        f"there are {', '.join(filter(None, known))}"
                    )

    @property
    def metrics(self) -> Mapping[str, str] | None:
        """What an expectation may be of, in words, by name; None: anything."""
        return None

    def conditions(self, metric: str) -> Sequence[str] | None:
        """Return under which conditions an expectation of a metric may be; None: under any."""
        return None

    @property
    def tier(self) -> str:
        """One of `lowprec.study.catalogue.TIERS`."""
        return "T2"

    @property
    def reference(self) -> Any:
        """The arm that the others are compared with."""
        return next(arm for arm in self.arms if arm.role == "reference")

    def arms_of(self, *roles: str) -> tuple[Any, ...]:
        """Return the arms with one of these roles, in order."""
        return tuple(arm for arm in self.arms if arm.role in roles)


@dataclass(frozen=True, kw_only=True)
class PlannedStudy(Study):
    """A study whose runs need the trainer: planned, done by workers, resumed, and reported from their files.

    What runs and draws is imported by the methods, so that a list of studies waits for neither.
    """

    @abstractmethod
    def plan(self, size: Any, folder: Path, *, data: str = "stdlib", backend: Backend | None = None) -> Plan:
        """List the runs at a size; nothing is written.

        The BF16 checkpoints lie beside the study's folder and serve every study with the same code, data and sizes.

        Parameters
        ----------
        size : Size
            How large.
        folder : Path
            Where its runs will be.
        data : str
            A corpus by name, or the path of a text.
        backend : Backend, optional
            Makes the trainers, lowprec's own by default.

        Raises
        ------
        UnknownNameError
            If a configuration, recipe or accumulator is not in its catalogue.
        ValueError
            If the data cannot be used, or the size makes no sense.
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
        """Return the results so far as a sentence, and draw them; empty by default."""
        return ""

    def to_json(self, size: Any) -> dict[str, Any]:
        """Return the content of `study.json`: kind, study with recipes by name, and size."""
        arms = [arm.to_json() for arm in self.arms]
        content = {item.name: getattr(self, item.name) for item in fields(self)} | {"arms": arms}
        return {"kind": self.kind, "ablation": plain(content), "setting": plain(size)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> tuple[Self, Any]:
        """Return the study and the size that `to_json` wrote: enough to report without the ablation's file."""
        kept = cls.fields_from_json(content["ablation"])
        kept |= {name: cls.size_from_json(kept[name]) for name in ("quick", "full")}
        kept["expectations"] = tuple(map(Expectation.of, kept["expectations"]))
        return cls(**kept), cls.size_from_json(content["setting"])

    @classmethod
    def fields_from_json(cls, content: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields but sizes and expectations."""
        return {**content, "arms": tuple(Arm(**arm) for arm in content["arms"])}

    @classmethod
    def size_from_json(cls, content: Mapping[str, Any]) -> Any:
        """Return a size."""
        return CheckpointSize(**content)


@dataclass(frozen=True, kw_only=True)
class MeasuredStudy(Study):
    """A study that keeps no training: it is measured in this process, in one go."""

    has_reference: ClassVar[bool] = False

    @property
    def tier(self) -> str:
        """T1."""
        return "T1"

    @abstractmethod
    def measure(
        self, size: Any, folder: Path, *, command: str = "", progress: Callable[[int, int], None] | None = None
    ) -> Results:
        """Measure; the results are written by the caller.

        Parameters
        ----------
        size : Size
            How large.
        folder : Path
            Where to.
        command : str
            How the study was called, for the report.
        progress : callable, optional
            Called with the number of finished steps and of all steps.

        Raises
        ------
        StudyError
            If the folder cannot be written.
        """


def check_names(study: str, what: str, names: Sequence[str]) -> None:
    """Refuse parts of a study that have the same name, or none at all.

    Raises
    ------
    ValueError
        If two names are equal, or there is none.
    """
    if len(set(names)) < len(names) or not names:
        raise ValueError(f"study {study!r}: every {what} must have a name of its own, got {[*names]}")
