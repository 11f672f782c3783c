"""An ablation is one question put to the trainer: its arms, its sizes and the expected answer, all of it data."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

import lowprec
from lowprec.registry import Registry

if TYPE_CHECKING:
    from lowprec.recipe import Recipe

#: What a study asks of the trainer, from nothing to a training: the more, the longer it takes.
TIERS = {
    "T1": "tensors alone: seconds",
    "T2": "one batch through the same weights: gradients and predictions, no noise, seconds to minutes",
    "T3": "branches of a BF16 checkpoint: minutes to hours",
    "T4": "training from scratch",
}
ROLES = ("reference", "repeat", "floor", "treatment", "control")


@dataclass(frozen=True)
class Arm:
    """One way of running the branch.

    Parameters
    ----------
    name : str
        Short name; it becomes a folder and a label.
    recipe : str or Recipe
        The precision recipe, a name of the catalogue or an object.
    role : {"treatment", "reference", "repeat", "floor", "control"}
        `reference`: what the others are compared with, exactly one. `repeat`: the reference once more, which must
        agree in every bit. `floor`: the reference with one weight times (1 + 2^-7), whose spread is the noise floor.
        `control`: a recipe known to hurt, which must be detected. `treatment`: what the question is about.
    expected : str
        What was expected before the run, in words.
    source : str
        Where that expectation comes from.
    pairs : int, optional
        Run only the first so many pairs of each checkpoint; None means all of them.
    change : mapping
        What differs from the recipe, as `Recipe.with_` takes it: ``{"dy": "e5m2 1x128"}``.
    """

    name: str
    recipe: str | Recipe = "bf16"
    role: str = "treatment"
    expected: str = ""
    source: str = ""
    pairs: int | None = None
    change: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.+-]*", self.name):
            raise ValueError(f"arm name {self.name!r}: letters, digits and _ . + - only, since it names a folder")
        if self.role not in ROLES:
            raise ValueError(f"arm {self.name!r}: unknown role {self.role!r}; allowed are {', '.join(ROLES)}")
        if self.pairs is not None and self.pairs < 1:
            raise ValueError(f"arm {self.name!r}: pairs must be at least 1, not {self.pairs}")

    @property
    def recipe_name(self) -> str:
        """Name of the recipe, whichever way it was given, with what differs from it."""
        name = self.recipe if isinstance(self.recipe, str) else self.recipe.name
        return f"{name}({', '.join(f'{key}={value}' for key, value in self.change.items())})" if self.change else name

    @property
    def precision(self) -> str | Recipe:
        """The recipe to run: a name where it is one of the catalogue.

        Raises
        ------
        UnknownNameError, TypeError, ValueError
            If there is no such recipe, or it cannot be changed so.
        """
        if not self.change:
            return self.recipe
        from lowprec.recipe import recipes

        return recipes.get(self.recipe).with_(**{"name": self.recipe_name, **self.change})


@dataclass(frozen=True)
class Setting:
    """How large a study is.

    Parameters
    ----------
    config : str
        Model configuration of the catalogue.
    checkpoint_steps : int
        Steps of BF16 training before the branch.
    branch_steps : int
        Steps of every arm, with the learning rate going linearly to 0.
    checkpoints : int
        Independent BF16 checkpoints (their seeds are 0, 1, ...).
    seeds : int
        Data seeds per checkpoint; checkpoints x seeds pairs per arm.
    learning_rate : float
        Peak rate; the checkpoint is trained at it and the branch starts from it.
    warmup_steps : int
        Linear warm-up of the checkpoint.
    """

    config: str
    checkpoint_steps: int
    branch_steps: int
    checkpoints: int
    seeds: int
    learning_rate: float = 2e-3
    warmup_steps: int = 20

    def __post_init__(self) -> None:
        for name in ("checkpoint_steps", "branch_steps", "checkpoints", "seeds"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, not {value!r}")
        if isinstance(self.warmup_steps, bool) or not isinstance(self.warmup_steps, int) or self.warmup_steps < 0:
            raise ValueError(f"warmup_steps must be a whole number of at least 0, not {self.warmup_steps!r}")
        if not 0.0 < self.learning_rate < float("inf"):
            raise ValueError(f"learning_rate must be positive and finite, not {self.learning_rate!r}")

    def __str__(self) -> str:
        before = f"{self.config}: {self.checkpoints} x {self.checkpoint_steps} steps"
        return f"{before}, then {self.pairs} x {self.branch_steps} per arm"

    @property
    def pairs(self) -> int:
        """Pairs per arm: one for each checkpoint and data seed."""
        return self.checkpoints * self.seeds

    def with_(self, changes: dict[str, str | int | float]) -> Setting:
        """Return the setting with some fields changed; text is parsed as the field's type.

        Raises
        ------
        UnknownNameError
            If there is no such field.
        ValueError
            If a value cannot be read or is out of range.

        Examples
        --------
        >>> Setting("nano", 10, 5, 1, 2).with_({"branch_steps": "7"}).branch_steps
        7
        """
        return replace(self, **parsed_changes(self, changes))


def parsed_changes(setting: Any, changes: dict[str, str | int | float]) -> dict[str, Any]:
    """Return changes of a setting's fields, with text parsed as the type that the field has.

    Raises
    ------
    UnknownNameError
        If there is no such field.
    ValueError
        If a value cannot be read.
    """
    types: Registry[type] = Registry("setting", type)
    for item in fields(setting):
        types.register(item.name, type(getattr(setting, item.name)))
    parsed: dict[str, Any] = {}
    for name, value in changes.items():
        kind = types[name]
        try:
            parsed[name] = kind(value)
        except ValueError:
            raise ValueError(f"{name}: cannot read {value!r} as {kind.__name__}") from None
    return parsed


@runtime_checkable
class Study(Protocol):
    """What every file of `ablations/` defines as `ablation`, whatever it measures.

    A kind of study whose runs need the trainer names a `planner`: a module with
    ``plan(study, setting, folder, *, data)``, which returns a `Plan`. One that needs none names a `runner`: a module
    with ``sized(study, quick, seeds)``, which returns the setting, ``run(study, setting, folder, *, command, plot,
    progress)``, which returns the outcome (it has ``holds``) and the files, ``claims_csv(outcome)`` and
    ``show(outcome, console)``. The command imports it.
    """

    tier: ClassVar[str]

    @property
    def name(self) -> str:
        """Name on the command line."""

    @property
    def question(self) -> str:
        """The question in one sentence."""

    @property
    def arms(self) -> tuple[Any, ...]:
        """What is compared; each has a `name`."""

    @property
    def quick(self) -> Any:
        """A size for minutes."""

    @property
    def full(self) -> Any:
        """A size for a result."""


@dataclass(frozen=True)
class Ablation:
    """One question with its arms, its two sizes and the expected finding.

    Parameters
    ----------
    name : str
        Its name on the command line.
    question : str
        The question in one sentence.
    arms : tuple of Arm
        The arms, the reference among them.
    quick, full : Setting
        A size for minutes and a size for a result.
    expected : str
        The expected finding, written down before the first run.
    source : str
        Where it comes from.
    margin : float
        Equivalence margin on the relative difference of the validation loss.
    notes : str
        What the sizes cost and what they cannot show.
    """

    name: str
    question: str
    arms: tuple[Arm, ...]
    quick: Setting
    full: Setting
    expected: str = ""
    source: str = ""
    margin: float = 0.0025
    notes: str = ""
    tier: ClassVar[str] = "T3"
    planner: ClassVar[str] = "lowprec.study.plans"

    def __post_init__(self) -> None:
        names = [arm.name for arm in self.arms]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"ablation {self.name!r}: two arms are called {twice[0]!r}")
        references = [arm.name for arm in self.arms if arm.role == "reference"]
        if len(references) != 1:
            raise ValueError(f"ablation {self.name!r}: exactly one arm is the reference, got {references}")
        for arm in self.arms:
            same = arm.recipe_name == self.reference.recipe_name
            if arm.role in ("repeat", "floor") and not same:
                raise ValueError(f"arm {arm.name!r} is a {arm.role}: its recipe must be the reference's")
        if not 0.0 < self.margin < 1.0:
            raise ValueError(f"ablation {self.name!r}: margin must lie between 0 and 1, not {self.margin!r}")

    @property
    def reference(self) -> Arm:
        """The arm that the others are compared with."""
        return next(arm for arm in self.arms if arm.role == "reference")

    def arms_of(self, *roles: str) -> tuple[Arm, ...]:
        """Return the arms with one of these roles, in order."""
        return tuple(arm for arm in self.arms if arm.role in roles)


def folder() -> Path:
    """Return the folder with the ablation files: the checkout's, or the one inside an installed wheel."""
    package = Path(lowprec.__file__).resolve().parent
    checkout = package.parent / "ablations"
    if checkout.is_dir() and (package.parent / "pyproject.toml").is_file():
        return checkout
    return package / "_ablations"


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
        If the file defines no `ablation`.

    Examples
    --------
    >>> load("fp8_vs_bf16").name
    'fp8_vs_bf16'
    """
    if name.endswith(".py"):
        path = Path(name)
        if not path.is_file():
            raise FileNotFoundError(f"no such ablation file: {name!r}")
    else:
        known: Registry[Path] = Registry("ablation", Path)
        for stem in names():
            known.register(stem, folder() / f"{stem}.py")
        path = known[name]
    spec = importlib.util.spec_from_file_location(f"lowprec_ablation_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{path}: cannot be read as Python")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = getattr(module, "ablation", None)
    if not isinstance(found, Study):
        raise ValueError(f"{path}: defines no `ablation = Ablation(...)`")
    return found
