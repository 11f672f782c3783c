"""One way of running: a recipe, what differs from it, and what it is there for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from lowprec._arrays import whole, whole_or_none
from lowprec._files import plain, safe_name
from lowprec._values import plain_fields
from lowprec.definitions import described

if TYPE_CHECKING:
    from lowprec.recipe import Recipe
    from lowprec.tensorcore.accumulator import Accumulator

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
    return f"{name}({', '.join(f'{key}={_shown(value)}' for key, value in change.items())})" if change else name


def _shown(value: Any) -> Any:
    """Return what changes with objects by their names."""
    if isinstance(value, Mapping):
        return {key: _shown(item) for key, item in value.items()}
    return getattr(value, "name", value)


def precision_of(recipe: str | Recipe, change: Mapping[str, Any]) -> str | Recipe:
    """Return the recipe to run: a name only where every worker has it, or a backend of one's own.

    Raises
    ------
    UnknownNameError, TypeError, ValueError
        If there is no such recipe, or it cannot be changed so.
    """
    from lowprec.recipe import recipes

    if not change and isinstance(recipe, str) and (recipes.is_shipped(recipe) or recipe not in recipes):
        return recipe
    made = recipes.get(recipe)
    return made.with_(**{"name": name_of(recipe, change), **change}) if change else made


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
        Fields of the model's configuration that differ: ``{"bias_rate": 0.0}``. A branch may differ in how tokens are
        routed, ``{"kept_groups": 1}``, which changes no parameter; others go with arms that train from scratch.
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
        plain_fields(self)
        safe_name("arm", self.name)
        if self.role not in ROLES:
            raise ValueError(f"arm {self.name!r}: unknown role {self.role!r}; allowed are {', '.join(ROLES)}")
        for name, value in (("change", self.change), ("config", self.config)):
            if not isinstance(value, Mapping):
                raise TypeError(f"arm {self.name!r}: {name} must be a mapping of fields, got {value!r:.200}")
        whole_or_none(f"arm {self.name!r}", "pairs", self.pairs, 1)
        whole(f"arm {self.name!r}", "calibration", self.calibration, 0)

    @property
    def recipe_name(self) -> str:
        """Name of the recipe, whichever way it was given, with what differs from it, and the tail's."""
        name = name_of(self.recipe, self.change)
        return name if self.tail is None else f"{name}, {self.tail}"

    @property
    def precision(self) -> str | Recipe:
        """The recipe to run, see `precision_of`.

        Raises
        ------
        UnknownNameError, TypeError, ValueError
            If there is no such recipe, or it cannot be changed so.
        """
        return precision_of(self.recipe, self.change)

    def to_json(self) -> dict[str, Any]:
        """Return what a report needs: the recipe by its name."""
        found: dict[str, Any] = plain(replace(self, recipe=self.recipe_name, change={}, tail=None))
        return found


def same_precision(arm: Arm, other: Arm) -> bool:
    """Tell whether two arms run in the same precision, however it was given."""
    if (arm.recipe, arm.change, arm.tail) == (other.recipe, other.change, other.tail):
        return True
    return _resolved(arm) == _resolved(other)


def _resolved(arm: Arm) -> tuple[Any, ...]:
    """Return the recipes of an arm as values, those of a backend of one's own as their names."""
    from lowprec.recipe import recipes

    parts = [arm.precision] if arm.tail is None else [arm.precision, arm.tail.precision]
    share = None if arm.tail is None else arm.tail.share
    found = (recipes.find(part) if isinstance(part, str) else part for part in parts)
    return share, *(part if recipe is None else recipe for part, recipe in zip(parts, found, strict=True))


@dataclass(frozen=True)
class GemmArm:
    """One way of quantizing operands and of adding their products.

    Parameters
    ----------
    name, label : str
        Its name in files and in the figure.
    accumulator : Accumulator or str
        What adds them: an object, or one of the catalogue's by name.
    promote_every : int, optional
        Length in k of the chains that are added up in FP32; None leaves everything to the accumulator.
    blocks : str
        What shares a scale where operands are quantized, ``"tensor"`` or ``"1x128"``: only scales that do not change
        along K are possible for sums that stay in the tensor core.
    role : {"treatment", "control", "reference"}
        How it is drawn: `control` is known to hurt, `reference` is as good as it gets.
    expected : str
        What was expected before the run, in words.
    change : mapping
        What differs from the accumulator, as its `with_` takes it: ``{"fraction_bits": 9}``.
    """

    name: str
    label: str
    accumulator: Accumulator | str
    promote_every: int | None = None
    blocks: str = "tensor"
    role: str = "treatment"
    expected: str = ""
    change: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        safe_name("arm", self.name)
        every = whole_or_none(f"arm {self.name!r}", "promote_every", self.promote_every, 1)
        object.__setattr__(self, "promote_every", every)

    @property
    def machine(self) -> Accumulator:
        """The accumulator as an object.

        Raises
        ------
        UnknownNameError, TypeError, ValueError
            If there is none of this name, or it cannot be changed so.
        """
        from lowprec.tensorcore.catalogue import accumulators  # whose compiler plain descriptions do not need

        made = accumulators.get(self.accumulator)
        return made.with_(**self.change) if self.change else made

    def to_json(self) -> dict[str, Any]:
        """Return the arm in JSON's types, its accumulator with all that decides it."""
        content = {name: value for name, value in vars(self).items() if name != "change"}
        found: dict[str, Any] = plain({**content, "accumulator": described(self.machine)})
        return found

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> GemmArm:
        """Return the arm that `to_json` wrote."""
        from lowprec.recipe.data import reader

        return cls(**{**content, "accumulator": reader({}, "study.json").made(content["accumulator"])})
