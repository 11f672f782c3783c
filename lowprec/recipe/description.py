"""The fields of a recipe: the precision of a whole training run as one description.

They define, for every linear layer, the accumulators of its three multiplications and the quantization of their
operands (by the first rule whose pattern matches the layer's name); for every stored tensor, by name, its format; the
codecs of tensors that are sent to the experts and back; and the formats of the optimizer's state. Layers never look
these up: `BoundRecipe`, the recipe bound to a run, gives each layer its operations.

Names of linear layers are ``layers.0.attn.wq_a``, ``wq_b``, ``wkv_a``, ``wkv_b``, ``wo``; ``layers.0.ffn.w1``, ``w2``,
``w3`` in a dense block; ``layers.1.ffn.gate``, ``layers.1.ffn.shared.w1`` ..., ``layers.1.ffn.experts.0.w1`` ... in a
block with experts; ``layers.3.projection`` of a multi-token prediction module; ``head``. ``layers.-1`` is the last
block. Names of stored tensors: ``embed``; the norms, ``layers.0.attn_norm``, ``layers.0.attn.q_norm``, ``norm`` ...; in
attention ``layers.0.attn.q``, ``k``, ``v``, ``probs``, ``output``; and the outputs that a block adds to the residual
stream, ``layers.0.attn_branch`` and ``ffn_branch``.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from lowprec._checks import check_choice
from lowprec._values import ABOUT, Value, describe_changes, split_name
from lowprec.attn.kernel import AttentionKernel
from lowprec.codec import Codec, codecs
from lowprec.codec.cast import is_cast
from lowprec.format.catalogue import formats
from lowprec.scaling.spec import TensorSpec

from .attention import attention_of
from .linears import BF16_LINEAR, OF_ALL_GEMMS, OPERANDS, ROLES, LinearSpec
from .names import DEPTH, LINEARS, TENSORS, check_pattern, matches, sample_layer_names
from .reduction import GradientAllReduce

#: Transfers between tokens and experts, and activations saved for the backward pass, that have a codec.
DIRECTIONS = ("dispatch", "combine", "dispatch_grad", "combine_grad")
SAVED_ACTIVATIONS = ("attention_output", "swiglu_input")
#: Fields of a recipe that are codecs.
CODECS = (*DIRECTIONS, *(f"saved_{role}" for role in SAVED_ACTIVATIONS))
ACTIVATIONS = ("bfloat16", "float32", "float64")
WEIGHTS = ("bfloat16", "float32")
#: Storage of moments and master weights between steps.
State = TensorSpec | Literal["float64"]
STATES = ("moment_m", "moment_v", "master_weights")
#: Fields that `RecipeFields.with_` extends, so that a second change does not replace the first.
_ADDED = ("protect", "quantize", "layers", "storage")
#: Fields of a recipe that affect only what follows the forward pass.
_AFTER_FORWARD = (
    "moment_m", "moment_v", "master_weights", "dispatch_grad", "combine_grad",
    *(f"saved_{role}" for role in SAVED_ACTIVATIONS), "source",
)  # fmt: skip
_LINEAR_CHANGES = (*OPERANDS, *ROLES, *OF_ALL_GEMMS, "wgrad_input", "dgrad_weight")
#: Linear layer that takes the output of attention.
_AFTER_ATTENTION = "layers.*.attn.wo"
#: Linear layer that represents most of them: attention's first one, in a middle block.
_MAIN = "layers.0.attn.wq_a"
_BF16, _FLOAT32 = TensorSpec.parse("bfloat16"), TensorSpec.parse("float32")
_BF16_CODEC = codecs["bf16"]


@functools.lru_cache(1024)
def _check_layers(pattern: str) -> None:
    check_pattern(pattern, LINEARS)


_codec_types: set[type] = set()


def codec_of(given: Codec | str) -> Codec:
    """Return a codec, given by name or as an object.

    Raises
    ------
    TypeError
        If it is not a codec, or cannot be compared and written to files, as recipes require.
    """
    if isinstance(given, str):
        return codecs[given]
    if type(given) not in _codec_types:  # an isinstance check against the protocol takes microseconds
        hash(codecs.get(given))
        if not dataclasses.is_dataclass(type(given)):
            raise TypeError(f"codec of a recipe must be a frozen dataclass, which can be compared, got {given!r}")
        _codec_types.add(type(given))
    return given


def state_of(given: State | str) -> State:
    """Return the storage of an optimizer state: ``"float64"``, or a tensor specification, as words or an object."""
    return given if given == "float64" else TensorSpec.parse(given)


@dataclass(frozen=True, eq=False, repr=False)
class LayerRule(Value):
    """A pattern of names of linear layers (as in a shell, ``*`` for anything) and the precision of these layers."""

    pattern: str
    linear: LinearSpec

    def __post_init__(self) -> None:
        _check_layers(self.pattern)


@dataclass(frozen=True, eq=False, repr=False)
class StorageRule(Value):
    """A pattern of names of stored tensors, and the codec in which these tensors are stored."""

    pattern: str
    codec: Codec

    def __post_init__(self) -> None:
        check_pattern(self.pattern, TENSORS)
        object.__setattr__(self, "codec", codec_of(self.codec))


@dataclass(frozen=True, eq=False, repr=False)
class RecipeFields(Value):
    """The precision of everything in a training run, as data: the fields of a `Recipe`.

    Parameters
    ----------
    name : str
        Name shown in tables and results.
    description : str
        One line of description, with the origin.
    rules : tuple of Rule
        Rules of the linear layers: the first whose pattern matches a layer's name applies. Other layers run in BF16.
    activations : {"bfloat16", "float32", "float64"}
        Storage format of activations and of the residual stream. With float32 all operations are plain float32 in fixed
        order: the reference of other recipes. float64 is for checks of gradients.
    storage : tuple of StorageRule
        Tensors that are stored in another format than `activations`, with their codecs.
    moment_m, moment_v : TensorSpec or str
        Storage of AdamW's moments: a tensor specification, such as "bfloat16" or "e4m3fn 1x128", or "float64".
    master_weights : TensorSpec or str
        Storage of the master weights after every step, also as a specification; "float32" does not round them.
    weight_source : {"bfloat16", "float32"}
        Source that is quantized for each multiplication: "bfloat16", the BF16 copy of the master weight, as in mixed
        precision, or "float32", the master weight itself, for weights that exist in the narrow format only.
    dispatch, combine : Codec or str
        Codecs of tokens sent to the experts, and of the experts' outputs sent back.
    dispatch_grad, combine_grad : Codec or str
        Codecs of the two backward directions: `combine_grad` carries output gradients to the experts, and
        `dispatch_grad` the gradients of their inputs back.
    saved_attention_output, saved_swiglu_input : Codec or str
        Codecs of two activations saved for the backward pass: the input of the linear layer after attention, and the
        inputs of SwiGLU.
    attention : AttentionKernel or str, optional
        Kernel of attention's forward pass, whose operands are quantized as the kernel requires, see
        `lowprec.attn.operands.quantize_operands`; None for products of the stored operands in float32. The backward
        pass is straight through: it reads the stored q, k, v, the kernel's output and its log-sum-exp, in float32.
        After a name, the word ``plain_gradient`` selects the gradient of attention without the kernel. A float64 recipe
        ignores the kernel, as it ignores quantization.
    all_reduce : GradientAllReduce or str, optional
        All-reduce of the gradients of data-parallel ranks: ranks, algorithm and codec, such as "16 ring fp8_1x128";
        None if one rank has the whole batch.
    source : str
        Publication of the recipe.

    Raises
    ------
    ValueError
        If a name is not in its catalogue, or a pattern matches no layer or tensor; the message quotes it.

    Examples
    --------
    >>> import lowprec as lp
    >>> print(lp.recipes["dsv3"].spec("layers.1.attn.wq_a"))
    x e4m3fn 1x128, w e4m3fn 128x128, dy e4m3fn 1x128 on hopper_fp8, promoted every 128
    >>> print(lp.recipes["dsv3"].spec("head"))
    bfloat16 on float32
    >>> lp.recipes["dsv3"].with_(dy="e5m2 1x128").name
    'dsv3(dy=e5m2 1x128)'
    """

    name: str = field(compare=False)
    description: str = field(default="", compare=False)
    rules: tuple[LayerRule, ...] = ()
    activations: str = "bfloat16"
    storage: tuple[StorageRule, ...] = ()
    moment_m: State = _BF16
    moment_v: State = _BF16
    master_weights: State = _FLOAT32
    weight_source: str = "bfloat16"
    dispatch: Codec = _BF16_CODEC
    combine: Codec = _BF16_CODEC
    dispatch_grad: Codec = _BF16_CODEC
    combine_grad: Codec = _BF16_CODEC
    saved_attention_output: Codec = _BF16_CODEC
    saved_swiglu_input: Codec = _BF16_CODEC
    attention: AttentionKernel | None = None
    all_reduce: GradientAllReduce | None = None
    source: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        put, caller = object.__setattr__, f"Recipe {self.name}"
        check_choice(caller, "activations", self.activations, ACTIVATIONS)
        check_choice(caller, "weight_source", self.weight_source, WEIGHTS)
        for state in STATES:
            put(self, state, state_of(getattr(self, state)))
        for kept in CODECS:
            put(self, kept, codec_of(getattr(self, kept)))
        put(self, "attention", attention_of(self.attention))
        put(self, "all_reduce", GradientAllReduce.parse(self.all_reduce))
        for name, kind in (("rules", LayerRule), ("storage", StorageRule)):
            given = getattr(self, name)
            if not isinstance(given, tuple) or not all(isinstance(item, kind) for item in given):
                raise TypeError(f"{caller}: {name} must be a tuple of {kind.__name__}, got {given!r}")

    def spec(self, layer: str, layers: int | None = None) -> LinearSpec:
        """Return the `LinearSpec` that the rules assign to a linear layer.

        Parameters
        ----------
        layer : str
            Name of the layer.
        layers : int, optional
            Number of blocks of the model, for rules that count from the last one.
        """
        return _spec(self.rules, layer, layers)

    def input_cache(self, layer: str) -> Codec | None:
        """Return the codec in which a linear layer's input is saved for Wgrad.

        Only the layer after attention has one; in all others, Wgrad reuses Fprop's operand and the result is None.
        """
        kept = self.saved_attention_output
        if self.activations == "float64" or is_cast(kept, formats["bfloat16"]):  # the storage format of layers
            return None
        return kept if matches(layer, _AFTER_ATTENTION) else None

    @property
    def forward_fields(self) -> Self:
        """The fields that affect a forward pass; recipes with equal `forward_fields` give equal bits.

        Scales of delayed scaling depend on earlier values, those of backward passes included: see
        `uses_delayed_scaling`.

        Examples
        --------
        >>> import lowprec as lp
        >>> dsv3, bf16 = lp.recipes["dsv3"], lp.recipes["bf16"]
        >>> dsv3.with_(dy="e5m2 1x128", moments="float32").forward_fields == dsv3.forward_fields
        True
        >>> dsv3.forward_fields == bf16.forward_fields
        False
        """
        without = {name: getattr(BF16_LINEAR, name) for name in ("dgrad", "wgrad", "wgrad_input", "dgrad_weight")}
        rules = [LayerRule(rule.pattern, dataclasses.replace(rule.linear, **without)) for rule in self.rules]
        while rules and rules[-1].linear == BF16_LINEAR:  # the same as layers without a rule
            rules.pop()
        defaults: dict[str, Any] = {item.name: item.default for item in dataclasses.fields(self)}
        plain: Any = {name: defaults[name] for name in _AFTER_FORWARD}
        return dataclasses.replace(self, name="forward", description="", rules=tuple(rules), **plain)

    @property
    def forward_tensors(self) -> tuple[TensorSpec, ...]:
        """All operands of forward multiplications, over all rules."""
        return tuple(tensor for rule in self.rules for tensor in rule.linear.tensors("fprop"))

    @property
    def uses_stochastic_rounding(self) -> bool:
        """Whether a forward pass depends on random bits."""
        noisy = any((item := rule.linear.fprop.injected_error) is not None and item.noise > 0 for rule in self.rules)
        return noisy or any(tensor.random for tensor in self.forward_tensors)

    @property
    def uses_delayed_scaling(self) -> bool:
        """Whether scales of a forward pass depend on earlier values (delayed scaling)."""
        return any(tensor.delayed for tensor in self.forward_tensors)

    @property
    def typical_linear(self) -> LinearSpec:
        """The `LinearSpec` of attention's first linear layer in a middle block, taken as that of most layers."""
        return self.spec(_MAIN, layers=3)

    def with_(self, **changes: Any) -> Self:
        """Return a recipe with changes.

        Parameters
        ----------
        **changes
            Changes of the recipe are its fields; `storage` may also be a mapping from patterns of stored tensors to
            codecs, which precede the existing rules, and `moments` changes both moments.

            Changes of all quantized linear layers (or, if none is quantized, of all linear layers in the blocks except
            the gate) are `x`, `w`, `dy` (a tensor in all its multiplications), `fprop`, `dgrad`, `wgrad` (mappings of
            changes in one multiplication), `accumulator`, `promote_every`, `library`, `injected_error`, `wgrad_input`
            and `dgrad_weight`.

            Changes of single layers are `protect`, patterns of layers that run in BF16; `quantize`, patterns of layers
            that run as most quantized layers do; and `layers`, a mapping from patterns of names to changes of these
            layers, applied in order, with the keys above and `out_format`, the format of y and dx.

            If `name` is not given, the new name lists the changes.

        Raises
        ------
        TypeError
            If a field does not exist.
        ValueError
            If a pattern in `layers` matches no layer, or layers of different precision.

        Examples
        --------
        >>> import lowprec as lp
        >>> unprotected = lp.recipes["dsv3"].with_(quantize=["head"])
        >>> print(unprotected.name, "|", unprotected.spec("head").w)
        dsv3(quantize=head) | e4m3fn 128x128
        >>> router = {"x": "float32", "w": "float32", "out_format": "float32"}
        >>> print(lp.recipes["dsv3"].with_(layers={"layers.*.ffn.gate": router}).spec("layers.3.ffn.gate"))
        float32 on float32, y and dx in float32
        """
        known = self.changes()
        if odd := [key for key in changes if key not in known]:
            raise TypeError(f"Recipe.with_: unknown field {odd[0]!r}: expected one of {', '.join(known)}")
        about = self._about(changes)
        rules = _with_linears(changes.pop("rules", self.rules), changes)
        protect, quantize = _patterns(changes.pop("protect", ())), _patterns(changes.pop("quantize", ()))
        if protect or quantize:
            main = _spec(rules, _MAIN, 3)
            rules = (*(LayerRule(p, BF16_LINEAR) for p in protect), *(LayerRule(p, main) for p in quantize), *rules)
        single = changes.pop("layers", {})
        if not isinstance(single, Mapping) or not all(isinstance(change, Mapping) for change in single.values()):
            raise TypeError(
                f"Recipe.with_: layers must be a mapping from patterns of names to mappings of changes, got {single!r}"
            )
        for pattern, change in single.items():
            rules = (_changed_rule(rules, pattern, change), *rules)
        if isinstance(changes.get("storage"), Mapping):
            added = tuple(StorageRule(pattern, codec) for pattern, codec in changes["storage"].items())
            changes["storage"] = (*added, *self.storage)
        if "moments" in changes:
            changes["moment_m"] = changes["moment_v"] = changes.pop("moments")
        return dataclasses.replace(self, **{**about, "rules": rules, **changes})

    def _about(self, changes: Mapping[str, Any]) -> dict[str, str]:
        """Return name, source and description of a changed recipe."""
        before = split_name(self.name)[1]
        stated = {key: _label(value) for key, value in changes.items() if key not in ABOUT}
        for key in _ADDED:
            if key in stated and key in before:
                stated[key] = f"{before[key]}+{stated[key]}"
        return describe_changes(self, stated) if stated else {}

    @classmethod
    def changes(cls) -> list[str]:
        """Return the names of all changes that `with_` takes."""
        return [
            *(f.name for f in dataclasses.fields(cls)), *_LINEAR_CHANGES, "moments", "protect", "quantize", "layers",
        ]  # fmt: skip


def _patterns(given: str | tuple[str, ...] | list[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _label(value: Any) -> str:
    """Return a change as shown in the name of a recipe."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}={_label(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "+".join(_label(item.pattern if isinstance(item, LayerRule | StorageRule) else item) for item in value)
    return "never" if value is None else str(getattr(value, "name", value))


def _with_linears(rules: tuple[LayerRule, ...], changes: dict[str, Any]) -> tuple[LayerRule, ...]:
    """Return rules with the changes of all quantized layers, which are removed from `changes`."""
    linear = {key: changes.pop(key) for key in _LINEAR_CHANGES if key in changes}
    if not linear:
        return rules
    main = None if any(rule.linear.quantized for rule in rules) else _spec(rules, _MAIN, 3)
    new_of: dict[LinearSpec, LinearSpec] = {}  # rules share the specifications of layers
    found = []
    for rule in rules:
        if rule.linear.quantized if main is None else rule.linear == main:
            if rule.linear not in new_of:
                new_of[rule.linear] = rule.linear.with_(**linear)
            rule = dataclasses.replace(rule, linear=new_of[rule.linear])
        found.append(rule)
    return tuple(found)


def _spec(rules: tuple[LayerRule, ...], layer: str, layers: int | None) -> LinearSpec:
    return next((rule.linear for rule in rules if matches(layer, rule.pattern, layers)), BF16_LINEAR)


def _changed_rule(rules: tuple[LayerRule, ...], pattern: str, change: Mapping[str, Any]) -> LayerRule:
    check_pattern(pattern, LINEARS)
    if odd := [key for key in change if key not in (*_LINEAR_CHANGES, "out_format")]:
        known = ", ".join((*_LINEAR_CHANGES, "out_format"))
        raise TypeError(f"layers {pattern!r}: unknown field {odd[0]!r} of a linear layer: expected one of {known}")
    names = sample_layer_names([pattern, *(rule.pattern for rule in rules)])
    specs = {_spec(rules, name, DEPTH): name for name in names if matches(name, pattern, DEPTH)}
    if len(specs) > 1:
        raise ValueError(f"layers {pattern!r} differ in precision; change them one by one: {', '.join(specs.values())}")
    return LayerRule(pattern, next(iter(specs), BF16_LINEAR).with_(**change))
