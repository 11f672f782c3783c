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

from .expectations import Expectation
from .quantities import BRANCH_METRICS

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
class Tail:
    """The last part of a branch, in another precision.

    The weights, moments and biases go over as they are, as if the run had been saved and gone on with this recipe.

    Parameters
    ----------
    share : float
        Of the steps, between 0 and 1; one step at least has the tail's precision.
    recipe : str or Recipe
        Its recipe.
    change : mapping
        What differs from that recipe, as `Recipe.with_` takes it.

    Examples
    --------
    >>> Tail(0.18, "bf16").begins(200), str(Tail(0.18, "bf16"))
    (164, 'bf16 for the last 18 %')
    """

    share: float
    recipe: str | Recipe = "bf16"
    change: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if isinstance(self.share, bool) or not isinstance(self.share, (int, float)) or not 0.0 < self.share < 1.0:
            raise ValueError(f"tail of {self.share!r}: a share of the steps between 0 and 1 is needed")

    def begins(self, steps: int) -> int:
        """Return the first step, counted from 0, that has this precision."""
        return steps - max(1, round(self.share * steps))

    @property
    def precision(self) -> str | Recipe:
        """The recipe to run."""
        return precision_of(self.recipe, self.change)

    def __str__(self) -> str:
        return f"{name_of(self.recipe, self.change)} for the last {100 * self.share:g} %"


def name_of(recipe: str | Recipe, change: Mapping[str, Any]) -> str:
    """Return the name of a recipe with what differs from it."""
    name = recipe if isinstance(recipe, str) else recipe.name
    return f"{name}({', '.join(f'{key}={value}' for key, value in change.items())})" if change else name


def precision_of(recipe: str | Recipe, change: Mapping[str, Any]) -> str | Recipe:
    """Return the recipe to run: a name where it is one of the catalogue.

    Raises
    ------
    UnknownNameError, TypeError, ValueError
        If there is no such recipe, or it cannot be changed so.
    """
    if not change:
        return recipe
    from lowprec.recipe import recipes

    return recipes.get(recipe).with_(**{"name": name_of(recipe, change), **change})


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
    tail : Tail, optional
        Another precision for the last steps of the branch.
    config : mapping
        Fields of the model's configuration that differ: ``{"bias_rate": 0.0}``. Only where arms train from scratch.
    calibration : int
        Batches that pass through the model before a branch's first step and change no weight, so that scales of
        delayed scaling follow from the values at hand: a BF16 checkpoint has no amax histories. At most as many as
        the checkpoint has steps, so none from scratch.
    """

    name: str
    recipe: str | Recipe = "bf16"
    role: str = "treatment"
    expected: str = ""
    source: str = ""
    pairs: int | None = None
    change: Mapping[str, Any] = field(default_factory=dict, hash=False)
    tail: Tail | None = None
    config: Mapping[str, Any] = field(default_factory=dict, hash=False)
    calibration: int = 0

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.+-]*", self.name):
            raise ValueError(f"arm name {self.name!r}: letters, digits and _ . + - only, since it names a folder")
        if self.role not in ROLES:
            raise ValueError(f"arm {self.name!r}: unknown role {self.role!r}; allowed are {', '.join(ROLES)}")
        if self.pairs is not None and self.pairs < 1:
            raise ValueError(f"arm {self.name!r}: pairs must be at least 1, not {self.pairs}")
        if isinstance(self.calibration, bool) or not isinstance(self.calibration, int) or self.calibration < 0:
            raise ValueError(f"arm {self.name!r}: calibration counts batches, 0 or more, not {self.calibration!r}")

    @property
    def recipe_name(self) -> str:
        """Name of the recipe, whichever way it was given, with what differs from it, and the tail's."""
        name = name_of(self.recipe, self.change)
        return name if self.tail is None else f"{name}, {self.tail}"

    @property
    def precision(self) -> str | Recipe:
        """The recipe to run: a name where it is one of the catalogue.

        Raises
        ------
        UnknownNameError, TypeError, ValueError
            If there is no such recipe, or it cannot be changed so.
        """
        return precision_of(self.recipe, self.change)


@dataclass(frozen=True)
class Setting:
    """How large a study is.

    Parameters
    ----------
    config : str
        Model configuration of the catalogue.
    checkpoint_steps : int
        Steps of BF16 training before the branch; 0 for arms that train from scratch, each from the initial weights.
    branch_steps : int
        Steps of every arm, with the learning rate going linearly to 0.
    checkpoints : int
        Independent BF16 checkpoints, or initial weights (their seeds are 0, 1, ...).
    seeds : int
        Data seeds per checkpoint; checkpoints x seeds pairs per arm.
    learning_rate : float
        Peak rate; the checkpoint is trained at it and the branch starts from it.
    warmup_steps : int
        Linear warm-up of the checkpoint, or of arms from scratch.
    """

    config: str
    checkpoint_steps: int
    branch_steps: int
    checkpoints: int
    seeds: int
    learning_rate: float = 2e-3
    warmup_steps: int = 20

    def __post_init__(self) -> None:
        least = {"checkpoint_steps": 0, "branch_steps": 1, "checkpoints": 1, "seeds": 1, "warmup_steps": 0}
        for name, low in least.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < low:
                raise ValueError(f"{name} must be a whole number of at least {low}, not {value!r}")
        if self.from_scratch and self.warmup_steps > self.branch_steps:
            raise ValueError(f"warmup_steps={self.warmup_steps} of branch_steps={self.branch_steps}, from scratch")
        if not 0.0 < self.learning_rate < float("inf"):
            raise ValueError(f"learning_rate must be positive and finite, not {self.learning_rate!r}")

    @property
    def from_scratch(self) -> bool:
        """Whether arms train from initial weights instead of branching from a checkpoint."""
        return self.checkpoint_steps == 0

    def __str__(self) -> str:
        if self.from_scratch:
            return f"{self.config}: {self.pairs} x {self.branch_steps} steps per arm from scratch"
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

    @property
    def tier(self) -> str:
        """One of `TIERS`."""

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
    expectations : tuple of Expectation
        Numbers that were expected, over metrics of `lowprec.study.quantities.BRANCH_METRICS`.
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
    expectations: tuple[Expectation, ...] = ()
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
            if arm.config and not (self.quick.from_scratch and self.full.from_scratch):
                raise ValueError(
                    f"arm {arm.name!r} changes the configuration ({', '.join(arm.config)}): that goes with arms from "
                    "scratch, checkpoint_steps=0"
                )
        if not 0.0 < self.margin < 1.0:
            raise ValueError(f"ablation {self.name!r}: margin must lie between 0 and 1, not {self.margin!r}")
        for item in self.expectations:
            known = {
                "metric": (item.metric, BRANCH_METRICS),
                "arm": (item.arm, names),
                "over": (item.over, ["", *names]),
            }
            for kind, (name, allowed) in known.items():
                if name not in allowed:
                    raise ValueError(
                        f"ablation {self.name!r}: expectation {item.words!r} names the unknown {kind} {name!r}; "
                        f"allowed are {', '.join(filter(None, allowed))}"
                    )

    @property
    def tier(self) -> str:
        """T3, or T4 if its arms train from scratch."""
        return "T4" if self.full.from_scratch else "T3"

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
