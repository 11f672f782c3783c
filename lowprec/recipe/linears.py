"""How a linear layer's three multiplications are computed, as data.

For ``y = x W^T`` with x [T, K] and W [N, K] the multiplications, their operands and the axes they sum over are::

    fprop   y  [T, N] = x  [T, K] @ W  [N, K]^T       over K
    dgrad   dx [T, K] = dy [T, N] @ W^T [K, N]^T      over N
    wgrad   dW [N, K] = dy^T [N, T] @ x^T [K, T]^T    over T
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from lowprec._arrays import one_of, whole_or_none
from lowprec._values import plain_fields
from lowprec.format.catalogue import formats
from lowprec.tensorcore.accumulator import Accumulator
from lowprec.tensorcore.catalogue import accumulators
from lowprec.tensorcore.library import libraries

from .disturbance import Disturbance
from .tensors import TensorSpec

#: The multiplications of a linear layer, and the roles of the two operands of each.
OPERANDS = {"fprop": ("x", "w"), "dgrad": ("dy", "w"), "wgrad": ("dy", "x")}
ROLES = ("x", "w", "dy")
#: What a layer's three multiplications may have in common beside their operands.
OF_ALL_GEMMS = ("accumulator", "promote_every", "library", "disturbance")
#: The `out` of layers that leave their output to how activations are stored.
AS_ACTIVATIONS = "activations"
#: The word for chains that are never promoted, where data has no None.
NEVER = "never"


def accumulator_named(name: str | Accumulator) -> Accumulator:
    """Return the accumulator of a name; ``"hopper_fp8(fraction_bits=25)"`` differs from hopper_fp8 in that.

    Raises
    ------
    UnknownNameError
        If there is no such accumulator.
    ValueError, TypeError
        For fields that it does not have, or values out of range.

    Examples
    --------
    >>> accumulator_named("hopper_fp8(fraction_bits=25)").fraction_bits
    25
    """
    if isinstance(name, Accumulator):
        return name
    changed = re.fullmatch(r"(\w+)\((.+)\)", name) if isinstance(name, str) else None
    if changed is None or name in accumulators:
        return accumulators.get(name)
    changes: dict[str, Any] = {}
    for part in changed[2].split(","):
        key, _, value = part.partition("=")
        changes[key.strip()] = int(value) if re.fullmatch(r"-?\d+", value.strip()) else value.strip()
    return accumulators[changed[1]].with_(**changes)


def _name_of(given: str | Accumulator, accumulator: Accumulator) -> str:
    """Return the name by which a recipe can call an accumulator.

    Raises
    ------
    ValueError
        If its name finds another one, or none.
    """
    name = (isinstance(given, str) and accumulators.listed(given)) or accumulator.name
    if accumulator_named(name) != accumulator:
        raise ValueError(f"the accumulator registered as {name!r} is another one; recipes call them by their names")
    return name


@dataclass(frozen=True)
class GemmSpec:
    """One multiplication: what its operands go through, and the accumulator it runs on.

    Parameters
    ----------
    a, b : TensorSpec or str
        The operands, seen with K as columns: x and W in fprop, dy and W^T in dgrad, dy^T and x^T in wgrad.
    accumulator : str
        How products are summed; also what differs from the catalogue in a field, see `accumulator_named`.
    promote_every : int or None
        Length of a chain on it, see `lowprec.gemm`; None for chains that never leave the accumulator.
    library : str
        Whose order of operations is followed around it, see `lowprec.libraries`.
    disturbance : Disturbance or str, optional
        An error that is put into the result on purpose, ``"gain=-0.01 noise=0.02"`` for example.

    Raises
    ------
    ValueError
        If the accumulator does not take such operands, or one of them is transformed and the other is not.
    """

    a: TensorSpec = field(default=TensorSpec("bfloat16", "none"))
    b: TensorSpec = field(default=TensorSpec("bfloat16", "none"))
    accumulator: str = "float32"
    promote_every: int | None = None
    library: str = "deepgemm"
    disturbance: Disturbance | None = None

    def __post_init__(self) -> None:
        plain_fields(self)
        libraries[self.library]
        for side in ("a", "b"):
            object.__setattr__(self, side, TensorSpec.parse(getattr(self, side)))
        object.__setattr__(self, "disturbance", Disturbance.parse(self.disturbance))
        accumulator = accumulator_named(self.accumulator)
        object.__setattr__(self, "accumulator", _name_of(self.accumulator, accumulator))
        whole_or_none("", "promote_every", self.promote_every, 1)
        accumulator.check_inputs(formats[self.a.format], formats[self.b.format])
        if self.a.transform != self.b.transform:
            raise ValueError(f"{self.a} x {self.b}: Hadamard transforms cancel only if both operands have the same one")

    @property
    def summed_by(self) -> Accumulator:
        """The accumulator itself."""
        return accumulator_named(self.accumulator)

    def with_(self, **changes: Any) -> GemmSpec:
        """Return a multiplication that differs in the given fields."""
        return dataclasses.replace(self, **changes)

    def as_dict(self) -> dict[str, Any]:
        """Return the multiplication as plain data: texts and numbers."""
        every = NEVER if self.promote_every is None else self.promote_every
        plain: dict[str, Any] = {
            "a": str(self.a),
            "b": str(self.b),
            "accumulator": self.accumulator,
            "promote_every": every,
        }
        plain |= {} if self.library == "deepgemm" else {"library": self.library}
        return plain if self.disturbance is None else {**plain, "disturbance": str(self.disturbance)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> GemmSpec:
        """Return the multiplication that `as_dict` wrote; what it does not say is as by default."""
        every = data.get("promote_every", NEVER)
        return cls(**{**data, "promote_every": None if every == NEVER else every})

    @property
    def place(self) -> str:
        """The accumulator and how it is used, in words."""
        where = self.accumulator if self.library == "deepgemm" else f"{self.accumulator} by {self.library}"
        if self.promote_every is not None:
            return f"on {where}, promoted every {self.promote_every}"
        return f"on {where}{', never promoted' if self.summed_by.output == 'fp22' else ''}"

    def __str__(self) -> str:
        return f"{self.a} x {self.b} {self.place}" + (f", disturbed by {self.disturbance}" if self.disturbance else "")


@dataclass(frozen=True)
class LinearSpec:
    """How a linear layer's three multiplications are computed.

    Parameters
    ----------
    fprop, dgrad, wgrad : GemmSpec
        The multiplications.
    wgrad_input : {"cached", "source"}
        Where Wgrad's x comes from: the quantized x that Fprop multiplied, dequantized, transposed and quantized again
        (the DeepSeek-V3 report, 3.5.2), or the unquantized source, as TransformerEngine has it. For a plain x the same.
        Of an x that is computed again for the backward pass, the report says neither: "cached" is dsv3's choice.
    dgrad_weight : {"source", "cached"}
        Where Dgrad's weight comes from: the source, or the quantized weight that Fprop multiplied, dequantized,
        transposed and quantized again.
    out : str
        Format in which y and dx leave, "activations" for that of the recipe's activations; dW is float32.

    Raises
    ------
    ValueError
        For an unknown choice.
    """

    fprop: GemmSpec = GemmSpec()
    dgrad: GemmSpec = GemmSpec()
    wgrad: GemmSpec = GemmSpec()
    wgrad_input: Literal["cached", "source"] = "cached"
    dgrad_weight: Literal["source", "cached"] = "source"
    out: str = AS_ACTIVATIONS

    def __post_init__(self) -> None:
        one_of("", "wgrad_input", self.wgrad_input, ("cached", "source"))
        one_of("", "dgrad_weight", self.dgrad_weight, ("source", "cached"))
        if self.out != AS_ACTIVATIONS:
            formats[self.out]

    @classmethod
    def of(
        cls,
        x: TensorSpec | str,
        w: TensorSpec | str,
        dy: TensorSpec | str,
        accumulator: str = "float32",
        promote_every: int | None = None,
        library: str = "deepgemm",
        **more: Any,
    ) -> LinearSpec:
        """Return the layer in which each tensor goes through the same wherever it is multiplied.

        Examples
        --------
        >>> print(LinearSpec.of("e4m3fn 1x128", "e4m3fn 128x128", "e5m2 1x128", "hopper_fp8", 128).wgrad)
        e5m2 1x128 x e4m3fn 1x128 on hopper_fp8, promoted every 128
        """
        tensors = {"x": x, "w": w, "dy": dy}
        gemms: dict[str, Any] = {
            gemm: GemmSpec(
                TensorSpec.parse(tensors[a]), TensorSpec.parse(tensors[b]), accumulator, promote_every, library
            )
            for gemm, (a, b) in OPERANDS.items()
        }
        return cls(**gemms, **more)

    @property
    def x(self) -> TensorSpec:
        """What Fprop's input goes through."""
        return self.fprop.a

    @property
    def w(self) -> TensorSpec:
        """What Fprop's weight goes through."""
        return self.fprop.b

    @property
    def dy(self) -> TensorSpec:
        """What Dgrad's output gradient goes through."""
        return self.dgrad.a

    @property
    def quantized(self) -> bool:
        """Whether any operand has scales."""
        return not all(tensor.plain for gemm in OPERANDS for tensor in self.tensors(gemm))

    @property
    def stateful(self) -> bool:
        """Whether bits depend on the step: by stochastic rounding, scales from earlier steps, or a disturbance."""
        every = [tensor for gemm in OPERANDS for tensor in self.tensors(gemm)]
        disturbed = any(getattr(self, gemm).disturbance is not None for gemm in OPERANDS)
        return disturbed or any(tensor.random or tensor.delayed for tensor in every)

    def delayed_tensors(self) -> dict[str, TensorSpec]:
        """Return the operands under delayed scaling by role and format, ``"dy.e5m2"``: as their scales are kept."""
        named = [(r, t) for gemm, roles in OPERANDS.items() for r, t in zip(roles, self.tensors(gemm), strict=True)]
        return {f"{role}.{tensor.format}": tensor for role, tensor in named if tensor.delayed}

    def tensors(self, gemm: str) -> tuple[TensorSpec, TensorSpec]:
        """Return both operands of ``"fprop"``, ``"dgrad"`` or ``"wgrad"``."""
        spec: GemmSpec = getattr(self, gemm)
        return spec.a, spec.b

    def with_(self, **changes: Any) -> LinearSpec:
        """Return a layer that differs.

        Parameters
        ----------
        **changes
            Fields; or `x`, `w`, `dy` (a tensor wherever it is multiplied), `accumulator`, `promote_every`, `library`,
            `disturbance` (of all three multiplications). A multiplication may be given as a mapping of what changes in
            it.

        Examples
        --------
        >>> print(LinearSpec().with_(w="e2m1fn 16x16").dgrad)
        bfloat16 x e2m1fn 16x16 on float32
        """
        gemms: dict[str, Any] = {name: getattr(self, name) for name in OPERANDS}
        for name in OPERANDS:
            given = changes.pop(name, {})
            gemms[name] = given if isinstance(given, GemmSpec) else gemms[name].with_(**given)
        everywhere = {key: changes.pop(key) for key in OF_ALL_GEMMS if key in changes}
        tensors = {role: TensorSpec.parse(changes.pop(role)) for role in ROLES if role in changes}
        for name, roles in OPERANDS.items():
            sides = {side: tensors[role] for side, role in zip("ab", roles, strict=True) if role in tensors}
            gemms[name] = gemms[name].with_(**sides, **everywhere)
        return dataclasses.replace(self, **gemms, **changes)

    def as_dict(self) -> dict[str, Any]:
        """Return the layer as plain data: texts, numbers, and a mapping for each multiplication."""
        gemms = {name: getattr(self, name).as_dict() for name in OPERANDS}
        weight = {} if self.dgrad_weight == "source" else {"dgrad_weight": self.dgrad_weight}
        return {**gemms, "wgrad_input": self.wgrad_input, **weight, "out": self.out}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> LinearSpec:
        """Return the layer that `as_dict` wrote; what it does not say is as by default."""
        plain: dict[str, Any] = dict(data)
        return cls(**plain | {key: GemmSpec.from_dict(plain[key]) for key in OPERANDS if key in plain})

    def to_text(self) -> str:
        """Return the layer as one line of JSON, the same for equal layers.

        Examples
        --------
        >>> LinearSpec.from_text(LinearSpec(out="float32").to_text()).out
        'float32'
        """
        return json.dumps(self.as_dict(), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> LinearSpec:
        """Read what `to_text` wrote.

        Raises
        ------
        ValueError
            If it is no JSON of a layer; the message quotes it.
        """
        try:
            data = json.loads(text)
            return cls.from_dict(data)
        except (TypeError, AttributeError, json.JSONDecodeError) as error:
            raise ValueError(f"no linear layer: {text!r}: {error}") from None

    def __str__(self) -> str:
        first, own = self.fprop, {"x": self.x, "w": self.w, "dy": self.dy}
        alike = [
            getattr(self, gemm).with_(a=first.a, b=first.b) == first.with_(disturbance=None)
            and self.tensors(gemm) == tuple(own[role] for role in roles)
            for gemm, roles in OPERANDS.items()
        ]
        if all(alike):
            tensors = str(self.x) if self.x == self.w == self.dy else f"x {self.x}, w {self.w}, dy {self.dy}"
            return f"{tensors} {self.fprop.place}{self.leaves()}"
        return "; ".join(f"{name} {getattr(self, name)}" for name in OPERANDS) + self.leaves()

    def leaves(self, *tensors: str) -> str:
        """Return in words how y and dx leave, if a format is named; of `tensors` only, if given."""
        return "" if self.out == AS_ACTIVATIONS else f", {' and '.join(tensors or ('y', 'dx'))} in {self.out}"


BF16_LINEAR = LinearSpec()
