"""Arms of studies: a recipe or accumulator, changes to it, and its role in the comparison."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from lowprec._checks import check_int, check_optional_int
from lowprec._files import safe_name, to_jsonable
from lowprec._values import normalize_fields
from lowprec.definitions import to_mapping

if TYPE_CHECKING:
    from lowprec.recipe import Recipe
    from lowprec.tensorcore.accumulator import Accumulator

ROLES = ("reference", "repeat", "floor", "treatment", "control")


@dataclass(frozen=True)
class PrecisionSwitch:
    """Last part of a branch, in another precision.

    Weights, moments and biases are carried over, as if the run had been saved and resumed with this recipe.

    Parameters
    ----------
    share : float
        Fraction of the steps, between 0 and 1; the tail has at least one step.
    recipe : str or Recipe
        Recipe of the tail.
    change : mapping
        Changes to that recipe, as keywords of `Recipe.with_`.

    Examples
    --------
    >>> PrecisionSwitch(0.18, "bf16").start_step(200), str(PrecisionSwitch(0.18, "bf16"))
    (164, 'bf16 for the last 18 %')
    """

    share: float
    recipe: str | Recipe = "bf16"
    change: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if isinstance(self.share, bool) or not isinstance(self.share, (int, float)) or not 0.0 < self.share < 1.0:
            raise ValueError(f"tail must be a share of the steps in (0, 1), got {self.share!r}")

    def start_step(self, steps: int) -> int:
        """Return the first step in this precision, counted from 0."""
        return steps - max(1, round(self.share * steps))

    @property
    def precision(self) -> str | Recipe:
        """Recipe to run."""
        return precision_of(self.recipe, self.change)

    def __str__(self) -> str:
        return f"{name_of(self.recipe, self.change)} for the last {100 * self.share:g} %"


def name_of(recipe: str | Recipe, change: Mapping[str, Any]) -> str:
    """Return the name of a recipe, followed by its changes."""
    name = recipe if isinstance(recipe, str) else recipe.name
    return f"{name}({', '.join(f'{key}={_shown(value)}' for key, value in change.items())})" if change else name


def _shown(value: Any) -> Any:
    """Return a change for display, with objects replaced by their names."""
    if isinstance(value, Mapping):
        return {key: _shown(item) for key, item in value.items()}
    return getattr(value, "name", value)


def precision_of(recipe: str | Recipe, change: Mapping[str, Any]) -> str | Recipe:
    """Return the recipe to run: by name if every worker knows it, or if a custom backend defines it.

    Raises
    ------
    UnknownNameError, TypeError, ValueError
        If the recipe does not exist, or cannot be changed this way.
    """
    from lowprec.recipe import recipes

    if not change and isinstance(recipe, str) and (recipes.is_shipped(recipe) or recipe not in recipes):
        return recipe
    made = recipes.get(recipe)
    return made.with_(**{"name": name_of(recipe, change), **change}) if change else made


@dataclass(frozen=True)
class Arm:
    """One arm of a study that compares recipes, by branches or by measurements.

    Parameters
    ----------
    name : str
        Short name, used for the folder and in figures.
    recipe : str or Recipe
        Recipe, or its name in the catalogue.
    role : {"treatment", "reference", "repeat", "floor", "control"}
        `reference`: the arm that others are compared with; a study has exactly one. `repeat`: a second run of the
        reference, which must give equal bits. `floor`: the reference with one weight multiplied by (1 + 2^-7); its
        spread is the noise floor. `control`: a recipe known to hurt, which must be detected. `treatment`: a recipe that
        the question is about.
    expected : str
        Result expected before the run, in prose.
    source : str
        Source of that expectation.
    pairs : int, optional
        Number of pairs to run per checkpoint, from the first; None runs all.
    change : mapping
        Changes to the recipe, as keywords of `Recipe.with_`: ``{"dy": "e5m2 1x128"}``.
    tail : PrecisionSwitch, optional
        Another precision for the last steps of the branch.
    config : mapping
        Changes to the model configuration: ``{"bias_update_speed": 0.0}``. Branches can change only fields that affect
        the routing but not the parameters, such as ``{"topk_groups": 1}``; training from scratch allows others.
    calibration : int
        Number of batches that are run forward and backward before the first step, to fill the amax histories of delayed
        scaling, which a BF16 checkpoint does not have. It is limited to the number of steps of the checkpoint, so it
        is 0 from scratch.
    """

    name: str
    recipe: str | Recipe = "bf16"
    role: str = "treatment"
    expected: str = ""
    source: str = ""
    pairs: int | None = None
    change: Mapping[str, Any] = field(default_factory=dict, hash=False)
    tail: PrecisionSwitch | None = None
    config: Mapping[str, Any] = field(default_factory=dict, hash=False)
    calibration: int = 0

    def __post_init__(self) -> None:
        normalize_fields(self)
        safe_name("arm", self.name)
        if self.role not in ROLES:
            raise ValueError(f"arm {self.name!r}: role must be one of {', '.join(ROLES)}, got {self.role!r}")
        for name, value in (("change", self.change), ("config", self.config)):
            if not isinstance(value, Mapping):
                raise TypeError(f"arm {self.name!r}: {name} must be a mapping of fields, got {value!r:.200}")
        check_optional_int(f"arm {self.name!r}", "pairs", self.pairs, 1)
        check_int(f"arm {self.name!r}", "calibration", self.calibration, 0)

    @property
    def recipe_name(self) -> str:
        """Names of the recipe and of the tail's recipe, with their changes."""
        name = name_of(self.recipe, self.change)
        return name if self.tail is None else f"{name}, {self.tail}"

    @property
    def precision(self) -> str | Recipe:
        """Recipe to run, see `precision_of`.

        Raises
        ------
        UnknownNameError, TypeError, ValueError
            If the recipe does not exist, or cannot be changed this way.
        """
        return precision_of(self.recipe, self.change)

    def to_json(self) -> dict[str, Any]:
        """Return the fields that a report uses, with the recipe by name."""
        found: dict[str, Any] = to_jsonable(replace(self, recipe=self.recipe_name, change={}, tail=None))
        return found


def same_precision(arm: Arm, other: Arm) -> bool:
    """Return whether two arms have equal recipes, whether given by name or as objects."""
    if (arm.recipe, arm.change, arm.tail) == (other.recipe, other.change, other.tail):
        return True
    return _resolved(arm) == _resolved(other)


def _resolved(arm: Arm) -> tuple[Any, ...]:
    """Return the recipes of an arm as objects, or as names if a custom backend defines them."""
    from lowprec.recipe import recipes

    parts = [arm.precision] if arm.tail is None else [arm.precision, arm.tail.precision]
    share = None if arm.tail is None else arm.tail.share
    found = (recipes.find(part) if isinstance(part, str) else part for part in parts)
    return share, *(part if recipe is None else recipe for part, recipe in zip(parts, found, strict=True))


@dataclass(frozen=True)
class GemmArm:
    """One arm of a GEMM study: quantization of the operands, and accumulation of their products.

    Parameters
    ----------
    name, label : str
        Name in files, and label in figures.
    accumulator : Accumulator or str
        Accumulator, or its name in the catalogue.
    promote_every : int, optional
        Number of products per chain in the accumulator; sums of chains are added in FP32. None: the accumulator
        computes the whole sum.
    blocks : str
        Elements that share a scale, ``"tensor"`` or ``"1x128"``. Sums that stay in the tensor core require scales that
        do not change along K.
    role : {"treatment", "control", "reference"}
        Role in the figure: `control` is known to hurt, `reference` is the most accurate arm.
    expected : str
        Result expected before the run, in prose.
    change : mapping
        Changes to the accumulator, as keywords of its `with_`: ``{"fraction_bits": 9}``.
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
        every = check_optional_int(f"arm {self.name!r}", "promote_every", self.promote_every, 1)
        object.__setattr__(self, "promote_every", every)

    @property
    def machine(self) -> Accumulator:
        """Accumulator of the arm, as an object.

        Raises
        ------
        UnknownNameError, TypeError, ValueError
            If the accumulator does not exist, or cannot be changed this way.
        """
        from lowprec.tensorcore.catalogue import accumulators  # it imports the compiler, which descriptions do not use

        made = accumulators.get(self.accumulator)
        return made.with_(**self.change) if self.change else made

    def to_json(self) -> dict[str, Any]:
        """Return the arm in JSON types, with all fields of its accumulator."""
        content = {name: value for name, value in vars(self).items() if name != "change"}
        found: dict[str, Any] = to_jsonable({**content, "accumulator": to_mapping(self.machine)})
        return found

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> GemmArm:
        """Return the arm that `to_json` wrote."""
        from lowprec.recipe.data import reader

        return cls(**{**content, "accumulator": reader({}, "study.json").made(content["accumulator"])})
