"""How a linear layer's three multiplications are computed, as data.

For ``y = x W^T`` with x [T, K] and W [N, K] the multiplications, their operands and the axes they sum over are::

    fprop   y  [T, N] = x  [T, K] @ W  [N, K]^T       over K
    dgrad   dx [T, K] = dy [T, N] @ W^T [K, N]^T      over N
    wgrad   dW [N, K] = dy^T [N, T] @ x^T [K, T]^T    over T
"""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from typing import Any, Literal

from lowprec._arrays import one_of, whole_or_none
from lowprec._values import Value
from lowprec.format.catalogue import Format, formats
from lowprec.scaling.spec import TensorSpec
from lowprec.tensorcore.accumulator import FP22, Accumulator
from lowprec.tensorcore.catalogue import accumulators
from lowprec.tensorcore.library import GemmLibrary, gemm_libraries

from .disturbance import Disturbance

#: The multiplications of a linear layer, and the roles of the two operands of each.
OPERANDS = {"fprop": ("x", "w"), "dgrad": ("dy", "w"), "wgrad": ("dy", "x")}
ROLES = ("x", "w", "dy")
#: What a layer's three multiplications may have in common beside their operands.
OF_ALL_GEMMS = ("accumulator", "promote_every", "library", "disturbance")
#: The word for outputs that are stored as activations are, where data has no None.
AS_ACTIVATIONS = "activations"
#: The word for chains that are never promoted, where data has no None.
NEVER = "never"
#: The library of multiplications that name none.
DEEPGEMM = gemm_libraries["deepgemm"]
_BF16 = TensorSpec.parse("bfloat16")


@dataclass(frozen=True, eq=False, repr=False)
class GemmSpec(Value):
    """One multiplication: what its operands go through, and the accumulator it runs on.

    Parameters
    ----------
    a, b : TensorSpec or str
        The operands, seen with K as columns: x and W in fprop, dy and W^T in dgrad, dy^T and x^T in wgrad.
    accumulator : Accumulator or str
        How products are summed.
    promote_every : int or None
        Length of a chain on it, see `lowprec.gemm`; None for chains that never leave the accumulator.
    library : Library or str
        Whose order of operations is followed around it, see `lowprec.gemm_libraries`.
    disturbance : Disturbance or str, optional
        An error that is put into the result on purpose, ``"gain=-0.01 noise=0.02"`` for example.

    Raises
    ------
    ValueError
        If the accumulator does not take such operands, or one of them is transformed and the other is not.

    Examples
    --------
    >>> print(GemmSpec("e4m3fn 1x128", "e4m3fn 128x128", accumulators["hopper_fp8"].with_(fraction_bits=20), 128))
    e4m3fn 1x128 x e4m3fn 128x128 on hopper_fp8(fraction_bits=20), promoted every 128
    """

    a: TensorSpec = _BF16
    b: TensorSpec = _BF16
    accumulator: Accumulator = accumulators["float32"]
    promote_every: int | None = None
    library: GemmLibrary = DEEPGEMM
    disturbance: Disturbance | None = None

    def __post_init__(self) -> None:
        put = object.__setattr__
        for side in ("a", "b"):
            put(self, side, TensorSpec.parse(getattr(self, side)))
        put(self, "accumulator", accumulators.get(self.accumulator))
        put(self, "library", gemm_libraries.get(self.library))
        put(self, "disturbance", Disturbance.parse(self.disturbance))
        put(self, "promote_every", whole_or_none("", "promote_every", self.promote_every, 1))
        self.accumulator.check_inputs(self.a.format, self.b.format)
        if self.a.transform != self.b.transform:
            raise ValueError(f"{self.a} x {self.b}: Hadamard transforms cancel only if both operands have the same one")

    def with_(self, **changes: Any) -> GemmSpec:
        """Return a multiplication that differs in the given fields; itself if none does."""
        new = dataclasses.replace(self, **changes)
        return self if new == self else new

    @property
    def place(self) -> str:
        """The accumulator and how it is used, in words."""
        where = str(self.accumulator) if self.library == DEEPGEMM else f"{self.accumulator} by {self.library}"
        if self.promote_every is not None:
            return f"on {where}, promoted every {self.promote_every}"
        return f"on {where}{', never promoted' if self.accumulator.output_format == FP22 else ''}"

    def __str__(self) -> str:
        return f"{self.a} x {self.b} {self.place}" + (f", disturbed by {self.disturbance}" if self.disturbance else "")


@dataclass(frozen=True, eq=False, repr=False)
class LinearSpec(Value):
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
    out : Format or str, optional
        Format in which y and dx leave, None for that of the recipe's activations; dW is float32.

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
    out: Format | None = None

    def __post_init__(self) -> None:
        one_of("", "wgrad_input", self.wgrad_input, ("cached", "source"))
        one_of("", "dgrad_weight", self.dgrad_weight, ("source", "cached"))
        kept = None if self.out is None or str(self.out) == AS_ACTIVATIONS else formats.get(self.out)
        object.__setattr__(self, "out", kept)

    @classmethod
    def of(
        cls,
        x: TensorSpec | str,
        w: TensorSpec | str,
        dy: TensorSpec | str,
        accumulator: Accumulator | str = "float32",
        promote_every: int | None = None,
        library: GemmLibrary | str = "deepgemm",
        **more: Any,
    ) -> LinearSpec:
        """Return the layer in which each tensor goes through the same wherever it is multiplied.

        Examples
        --------
        >>> print(LinearSpec.of("e4m3fn 1x128", "e4m3fn 128x128", "e5m2 1x128", "hopper_fp8", 128).wgrad)
        e5m2 1x128 x e4m3fn 1x128 on hopper_fp8, promoted every 128
        """
        tensors = {role: TensorSpec.parse(given) for role, given in zip(ROLES, (x, w, dy), strict=True)}
        around = accumulators.get(accumulator), promote_every, gemm_libraries.get(library)
        gemms: dict[str, Any] = {gemm: GemmSpec(tensors[a], tensors[b], *around) for gemm, (a, b) in OPERANDS.items()}
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

    @functools.cached_property
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
        gemms: dict[str, Any] = {}
        everywhere = {key: changes.pop(key) for key in OF_ALL_GEMMS if key in changes}
        tensors = {role: TensorSpec.parse(changes.pop(role)) for role in ROLES if role in changes}
        for name, roles in OPERANDS.items():
            old, given = getattr(self, name), changes.pop(name, {})
            if isinstance(given, GemmSpec):
                old, given = given, {}
            sides = {side: tensors[role] for side, role in zip("ab", roles, strict=True) if role in tensors}
            new = {**given, **sides, **everywhere}
            gemms[name] = old.with_(**new) if new else old
        return dataclasses.replace(self, **gemms, **changes)

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
        return "" if self.out is None else f", {' and '.join(tensors or ('y', 'dx'))} in {self.out}"


BF16_LINEAR = LinearSpec()
