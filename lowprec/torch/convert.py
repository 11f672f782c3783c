"""Converting a model to a recipe, restoring it, and saving the recipe's state."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any, ClassVar, TypeVar
from weakref import WeakSet

import torch
from torch import nn

from lowprec.parity.catalogue import stacks
from lowprec.parity.stack import Stack, load_stack
from lowprec.recipe import LayerPrecision, LayerState, LinearSpec, Recipe, load_recipe
from lowprec.registry import UnknownNameError

from .arrays import check, values
from .classes import converted_class, original_class, shapes_of
from .emulation.forward import use_stack
from .linear import Converted
from .ops import ModuleState
from .report import Report, describe
from .roles import Names, block_of, find_roles, no_match
from .sdpa import use_attention

M = TypeVar("M", bound=nn.Module)
Rules = Sequence[tuple[str, LinearSpec | str]]


def convert(
    model: M,
    recipe: str | Recipe | None = None,
    *,
    stack: str | Stack | None = None,
    skip: Sequence[str] = (),
    roles: Names = "auto",
    overrides: Rules = (),
    seed: int = 0,
    strict: bool = False,
) -> M:
    """Make a model's linear layers compute their products by a recipe.

    The recipe's attention kernel also computes the forward pass of attention: in transformers models (see
    `register_attention`) and in modules that call ``torch.nn.functional.scaled_dot_product_attention``. The conversion
    is in place: parameters, their names, hooks, tied weights and the optimizer's references stay valid. A second call
    changes the recipe. `report` lists the precision of every product and the parts not converted.

    Parameters
    ----------
    model : nn.Module
        Model to convert: its modules of exact type ``nn.Linear``, and transformers' Conv1D and mixtures of experts.
    recipe : str or Recipe, optional
        Name in `lowprec.recipes`, path of a ``.toml`` file, or a recipe. Without it, a `stack` computes linear layers,
        too; without both, the recipe is ``dsv3``.
    stack : str or Stack, optional
        Name in `lowprec.stacks`, path of a ``.toml`` file, or a stack. It computes every other operation of the model's
        forward pass, eagerly on a CPU. After a forward pass, `report` lists the operations that it does not know, which
        PyTorch computes; with `strict`, they are an error. The backward pass is PyTorch's.
    skip : sequence of str
        Patterns of module names that are not converted, such as ``("lm_head",)``.
    roles : "auto", mapping or function
        Layer of the recipe that each module takes. "auto" derives it from the structure of the model, see
        `lowprec.torch.roles`; a mapping or function sets it, ``{"*.mixer.in_proj": "attn.wq_a"}``.
    overrides : sequence of (pattern, LinearSpec or name of a recipe)
        Rules that override the recipe, by pattern of module names, such as ``[("*.down_proj", "bf16")]``.
    seed : int
        Seed of random bits, which also depend on step and layer.
    strict : bool
        Whether to raise an error, and leave the model unconverted, if a part of the recipe or of the model has no
        counterpart, a role is a guess, or nothing is quantized.

    Returns
    -------
    nn.Module
        The model.

    Raises
    ------
    UnknownNameError
        If a recipe or role does not exist, or no module matches a pattern.
    TypeError
        If the recipe is ``float64``, or weights are neither float32 nor bfloat16.
    ValueError
        If PyTorch runs with another CPU capability than the stack's, if nothing is converted, if weights are bfloat16
        and the recipe's activations float32, or as `strict` requires.

    Warns
    -----
    UserWarning
        If the recipe quantizes some layers, but no product of this model.

    Examples
    --------
    >>> import torch, lowprec.torch as lpt
    >>> model = torch.nn.Sequential(torch.nn.Linear(128, 128), torch.nn.ReLU(), torch.nn.Linear(128, 4))
    >>> model = lpt.convert(model, "dsv3", skip=["2"])
    >>> model(torch.ones(2, 128)).sum().backward()
    >>> print(model[0].spec)
    x e4m3fn 1x128, w e4m3fn 128x128, dy e4m3fn 1x128 on hopper_fp8, promoted every 128
    """
    used = None if stack is None else load_stack(stack, stacks)
    if recipe is None and used is not None:
        if skip or overrides or roles != "auto":
            raise TypeError("lowprec.torch.convert: recipe must be given with skip, roles or overrides, got none")
        restore(model)
        use_stack(model, used, strict=strict)
        model._lowprec = None, []
        return model
    recipe = load_recipe("dsv3" if recipe is None else recipe)
    if recipe.activations == "float64":
        raise TypeError(
            f"lowprec.torch.convert: recipe must compute in float32 or bfloat16, got {recipe.name} in float64"
        )
    modules = {name: module for name, module in model.named_modules() if converted_class(module) is not None}
    if not modules:
        raise ValueError(
            "lowprec.torch.convert: model must have a module of exact type nn.Linear, or transformers' Conv1D or "
            f"experts, got {type(model).__name__}, which has none"
        )
    for pattern in (*skip, *(pattern for pattern, _ in overrides)):
        if not any(fnmatchcase(name, pattern) for name in modules):
            raise UnknownNameError(no_match(pattern, modules))
    chosen = {name: module for name, module in modules.items() if not any(fnmatchcase(name, p) for p in skip)}
    if not chosen:
        raise ValueError(
            f"lowprec.torch.convert: model must have a linear layer that is not skipped, got {len(modules)}, all "
            "skipped"
        )
    blocks = [block for name in modules if (block := block_of(name)) is not None]
    layers = max(blocks, default=0) + 1
    for name, module in chosen.items():
        _check(name, module, recipe)
    shapes: dict[str, tuple[int, int]] = {}
    for name, module in modules.items():
        shapes |= shapes_of(name, module)
    role_of = find_roles(model, shapes, roles)
    for name, module in modules.items():
        if name not in chosen:
            _restore(module)
    for name, module in chosen.items():
        module.__class__ = converted_class(module)
        assert isinstance(module, Converted)
        found = [role_of[f"{name}{part}"] for part in module.parts_of()]
        module.layers, module.guesses = tuple(role.layer for role in found), tuple(role.guess for role in found)
        module.set_precision([_precision(recipe, name, role.layer, layers, overrides) for role in found], seed)
    use_attention(model, recipe.attention)
    use_stack(model, used, strict=strict)
    notes = _take_slow_path(model, recipe)
    model._lowprec = recipe, notes
    described = report(model)
    if strict and (problems := described.problems()):
        restore(model)
        raise ValueError(
            f"lowprec.torch.convert: the model cannot be converted with strict=True: {'; '.join(problems)}"
        )
    if described.idle:
        warnings.warn(f"lowprec.torch.convert: {described.idle}", stacklevel=2)
    return model


def _precision(recipe: Recipe, name: str, layer: str, layers: int, overrides: Rules) -> LayerPrecision:
    for pattern, given in overrides:
        if fnmatchcase(name, pattern):
            spec = given if isinstance(given, LinearSpec) else load_recipe(given).spec(layer, layers)
            return LayerPrecision.of(recipe, layer, layers)._replace(spec=spec)
    return LayerPrecision.of(recipe, layer, layers)


def _check(name: str, module: nn.Module, recipe: Recipe) -> None:
    for weight in module.parameters(recurse=False):
        check(f"{name}'s weight", weight)
        if recipe.activations == "float32" and weight.dtype == torch.bfloat16:
            raise ValueError(
                f"lowprec.torch.convert: {name}'s weight must be float32 with recipe {recipe.name}, got bfloat16"
            )


class SlowPath:
    """Hold on torch's fast path of attention: it is disabled until all holds are released.

    Each copy or unpickled instance of a converted model has a separate hold.
    """

    _held: ClassVar[WeakSet[SlowPath]] = WeakSet()
    _before: ClassVar[bool | None] = None

    def __init__(self) -> None:
        if SlowPath._before is None:
            SlowPath._before = torch.backends.mha.get_fastpath_enabled()
        SlowPath._held.add(self)
        torch.backends.mha.set_fastpath_enabled(False)

    def __reduce__(self) -> tuple[type[SlowPath], tuple[()]]:
        return SlowPath, ()

    def release(self) -> None:
        """Restore the state found before the first hold if this is the last one."""
        SlowPath._held.discard(self)
        if not SlowPath._held and SlowPath._before is not None:
            torch.backends.mha.set_fastpath_enabled(SlowPath._before)
            SlowPath._before = None


def _take_slow_path(model: nn.Module, recipe: Recipe) -> list[str]:
    """Disable the fast path of torch's encoder layers and attention, which bypasses what was converted."""
    if (before := model.__dict__.pop("_lowprec_slow", None)) is not None:
        before.release()
    kinds = (nn.TransformerEncoderLayer, *((nn.MultiheadAttention,) if recipe.attention is not None else ()))
    if not any(isinstance(module, kinds) for module in model.modules()):
        return []
    model.__dict__["_lowprec_slow"] = SlowPath()
    return ["torch.backends.mha's fast path is off: it would go past converted parts of TransformerEncoderLayer"]


def restore(model: M) -> M:
    """Restore the original classes of all layers; the model is as before `convert`, except for the weights' values."""
    for module in model.modules():
        _restore(module)
    use_attention(model, None)
    use_stack(model, None)
    model.__dict__.pop("_lowprec", None)
    if (held := model.__dict__.pop("_lowprec_slow", None)) is not None:
        held.release()
    return model


def _restore(module: nn.Module) -> None:
    if isinstance(module, Converted):
        for name in ("layers", "guesses", "keys", "slot"):
            module.__dict__.pop(name, None)
        module.__class__ = original_class(module)


def report(model: nn.Module) -> Report:
    """List the precision of every product, and the parts of model and recipe without a counterpart.

    Raises
    ------
    ValueError
        If the model was not converted.
    """
    if not hasattr(model, "_lowprec"):
        raise ValueError("lowprec.torch.report: the model has not been converted; call lowprec.torch.convert first")
    recipe, notes = model._lowprec
    return describe(model, recipe, notes)


def _converted(model: nn.Module) -> dict[str, Converted]:
    return {name: module for name, module in model.named_modules() if isinstance(module, Converted)}


def _states(model: nn.Module) -> dict[str, tuple[LayerState, LinearSpec]]:
    """Return the state and precision of each product that has state, by module and part."""
    found = {}
    for name, module in _converted(model).items():
        slot = module.get_slot()
        states = [] if slot is None else slot.states
        for part, state, spec in zip(module.parts_of(), states, module.specs, strict=False):
            found[f"{name}{part}"] = state, spec
    return found


def state_dict(model: nn.Module) -> dict[str, Any]:
    """Return the steps and scales on which the bits of layers depend; ``model.state_dict()`` does not contain them."""
    return {name: state.state_dict() for name, (state, _) in _states(model).items()}


def load_state_dict(model: nn.Module, state: Mapping[str, Any]) -> None:
    """Load the result of `state_dict`.

    Raises
    ------
    ValueError
        If the state belongs to other layers, or the length of an amax history differs.
    """
    states = _states(model)
    if odd := sorted(set(states) ^ set(state)):
        where = "the model" if odd[0] in states else "the state"
        raise ValueError(
            f"lowprec.torch.load_state_dict: both sides must have the same layers, got {odd[0]!r} in {where} only"
        )
    for name, (own, spec) in states.items():
        own.load_state_dict(state[name], spec.delayed_tensors())


@contextmanager
def frozen(model: M) -> Iterator[M]:
    """Context manager that quantizes and packs each weight only once, for evaluation token by token.

    Within it, a layer raises a RuntimeError at its next call if its weight has changed, except for changes to
    ``weight.data``, which torch does not count. If the rounding of a weight depends on the step, it is still quantized
    at every call.

    Examples
    --------
    >>> import torch, lowprec.torch as lpt
    >>> model = lpt.convert(torch.nn.Sequential(torch.nn.Linear(128, 128)), "mxfp8")
    >>> with lpt.frozen(model), torch.no_grad():
    ...     y = model(torch.ones(1, 128))
    """
    held = [module for module in _converted(model).values() if _freeze(module)]
    try:
        yield model
    finally:
        for module in held:
            slot = module.get_slot()
            if slot is not None and slot.states:
                slot.weights, slot.versions = [], []
            else:
                module.set_slot(None)


def _freeze(module: Converted) -> bool:
    """Quantize and keep a module's weights for Fprop; return False if their bits depend on the step."""
    if any(spec.fprop.b.random or spec.fprop.b.delayed for spec in module.specs):
        return False
    if module.slot is None:
        module.set_slot(ModuleState([]))
    slot = module.get_slot()
    assert slot is not None
    matrices = module.matrices()
    slot.weights = [
        LayerPrecision.from_key(key).ops().weight(values(w)) for key, w in zip(module.keys, matrices, strict=True)
    ]
    slot.versions = [w._version for w in matrices]
    return True
