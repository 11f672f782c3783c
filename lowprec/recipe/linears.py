"""The three multiplications of a linear layer, as data.

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

from lowprec._checks import check_choice, check_optional_int
from lowprec._values import Value
from lowprec.format.catalogue import Format, formats
from lowprec.scaling.spec import TensorSpec
from lowprec.tensorcore.accumulator import FP22, Accumulator
from lowprec.tensorcore.catalogue import accumulators
from lowprec.tensorcore.library import GemmLibrary, gemm_libraries

from .injected_error import InjectedError

#: Multiplications of a linear layer, and the roles of the two operands of each.
OPERANDS = {"fprop": ("x", "w"), "dgrad": ("dy", "w"), "wgrad": ("dy", "x")}
ROLES = ("x", "w", "dy")
#: Fields that a layer's three multiplications may share, in addition to their operands.
OF_ALL_GEMMS = ("accumulator", "promote_every", "library", "injected_error")
#: Word for outputs in the storage format of activations, where data cannot have None.
AS_ACTIVATIONS = "activations"
#: Word for chains that are never promoted, where data cannot have None.
NEVER = "never"
#: GEMM library of multiplications that name none.
DEEPGEMM = gemm_libraries["deepgemm"]
_BF16 = TensorSpec.parse("bfloat16")


@dataclass(frozen=True, eq=False, repr=False)
class GemmSpec(Value):
    """One multiplication: the quantization of its operands, and its accumulator.

    Parameters
    ----------
    a, b : TensorSpec or str
        Operands, with K as columns: x and W in fprop, dy and W^T in dgrad, dy^T and x^T in wgrad.
    accumulator : Accumulator or str
        Summation of the products.
    promote_every : int or None
        Number of products in a chain on the accumulator, see `lowprec.gemm`; None for chains that are never promoted.
    library : GemmLibrary or str
        GEMM library that defines the order of operations around the accumulator, see `lowprec.gemm_libraries`.
    injected_error : InjectedError or str, optional
        Error injected into the result, such as ``"gain=-0.01 noise=0.02"``.

    Raises
    ------
    ValueError
        If the accumulator does not take such operands, or their Hadamard transforms differ.

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
    injected_error: InjectedError | None = None

    def __post_init__(self) -> None:
        put = object.__setattr__
        for side in ("a", "b"):
            put(self, side, TensorSpec.parse(getattr(self, side)))
        put(self, "accumulator", accumulators.get(self.accumulator))
        put(self, "library", gemm_libraries.get(self.library))
        put(self, "injected_error", InjectedError.parse(self.injected_error))
        put(self, "promote_every", check_optional_int("", "promote_every", self.promote_every, 1))
        self.accumulator.check_inputs(self.a.format, self.b.format)
        if self.a.transform != self.b.transform:
            raise ValueError(
                f"GemmSpec: a and b must have the same Hadamard transform, so that it cancels, got {self.a} and "
                f"{self.b}"
            )

    def with_(self, **changes: Any) -> GemmSpec:
        """Return the multiplication with the given fields replaced, or the same object if no field changes."""
        new = dataclasses.replace(self, **changes)
        return self if new == self else new

    @property
    def accumulator_summary(self) -> str:
        """Description of the accumulator and its promotion."""
        where = str(self.accumulator) if self.library == DEEPGEMM else f"{self.accumulator} by {self.library}"
        if self.promote_every is not None:
            return f"on {where}, promoted every {self.promote_every}"
        return f"on {where}{', never promoted' if self.accumulator.output_format == FP22 else ''}"

    def __str__(self) -> str:
        return f"{self.a} x {self.b} {self.accumulator_summary}" + (
            f", disturbed by {self.injected_error}" if self.injected_error else ""
        )


@dataclass(frozen=True, eq=False, repr=False)
class LinearSpec(Value):
    """The three multiplications of a linear layer.

    Parameters
    ----------
    fprop, dgrad, wgrad : GemmSpec
        Multiplications of the layer.
    wgrad_input : {"dequantized", "high_precision"}
        Source of Wgrad's x: the quantized x of Fprop, dequantized, transposed and requantized (the DeepSeek-V3 report,
        3.5.2), or the unquantized source, as in TransformerEngine. They are equal for an x without scales. For an x
        that is recomputed in the backward pass, the report specifies neither: "dequantized" is dsv3's choice.
    dgrad_weight : {"high_precision", "dequantized"}
        Source of Dgrad's weight: the unquantized weight, or the quantized weight of Fprop, dequantized, transposed and
        requantized.
    out_format : Format or str, optional
        Format of y and dx, None for that of the recipe's activations; dW is float32.

    Raises
    ------
    ValueError
        If a choice is unknown.
    """

    fprop: GemmSpec = GemmSpec()
    dgrad: GemmSpec = GemmSpec()
    wgrad: GemmSpec = GemmSpec()
    wgrad_input: Literal["dequantized", "high_precision"] = "dequantized"
    dgrad_weight: Literal["high_precision", "dequantized"] = "high_precision"
    out_format: Format | None = None

    def __post_init__(self) -> None:
        check_choice("", "wgrad_input", self.wgrad_input, ("dequantized", "high_precision"))
        check_choice("", "dgrad_weight", self.dgrad_weight, ("high_precision", "dequantized"))
        kept = (
            None if self.out_format is None or str(self.out_format) == AS_ACTIVATIONS else formats.get(self.out_format)
        )
        object.__setattr__(self, "out_format", kept)

    @classmethod
    def from_tensors(
        cls,
        x: TensorSpec | str,
        w: TensorSpec | str,
        dy: TensorSpec | str,
        accumulator: Accumulator | str = "float32",
        promote_every: int | None = None,
        library: GemmLibrary | str = "deepgemm",
        **more: Any,
    ) -> LinearSpec:
        """Return the layer in which each tensor is quantized the same way in all its multiplications.

        Examples
        --------
        >>> print(LinearSpec.from_tensors("e4m3fn 1x128", "e4m3fn 128x128", "e5m2 1x128", "hopper_fp8", 128).wgrad)
        e5m2 1x128 x e4m3fn 1x128 on hopper_fp8, promoted every 128
        """
        tensors = {role: TensorSpec.parse(given) for role, given in zip(ROLES, (x, w, dy), strict=True)}
        around = accumulators.get(accumulator), promote_every, gemm_libraries.get(library)
        gemms: dict[str, Any] = {gemm: GemmSpec(tensors[a], tensors[b], *around) for gemm, (a, b) in OPERANDS.items()}
        return cls(**gemms, **more)

    @property
    def x(self) -> TensorSpec:
        """Specification of Fprop's input."""
        return self.fprop.a

    @property
    def w(self) -> TensorSpec:
        """Specification of Fprop's weight."""
        return self.fprop.b

    @property
    def dy(self) -> TensorSpec:
        """Specification of Dgrad's output gradient."""
        return self.dgrad.a

    @functools.cached_property
    def quantized(self) -> bool:
        """Whether any operand has scales."""
        return not all(tensor.plain for gemm in OPERANDS for tensor in self.tensors(gemm))

    @property
    def stateful(self) -> bool:
        """Whether bits depend on the step, because of stochastic rounding, delayed scaling, or an injected error."""
        every = [tensor for gemm in OPERANDS for tensor in self.tensors(gemm)]
        disturbed = any(getattr(self, gemm).injected_error is not None for gemm in OPERANDS)
        return disturbed or any(tensor.random or tensor.delayed for tensor in every)

    def delayed_tensors(self) -> dict[str, TensorSpec]:
        """Return the operands under delayed scaling, by the key of their state: role and format, ``"dy.e5m2"``."""
        named = [(r, t) for gemm, roles in OPERANDS.items() for r, t in zip(roles, self.tensors(gemm), strict=True)]
        return {f"{role}.{tensor.format}": tensor for role, tensor in named if tensor.delayed}

    def tensors(self, gemm: str) -> tuple[TensorSpec, TensorSpec]:
        """Return both operands of ``"fprop"``, ``"dgrad"`` or ``"wgrad"``."""
        spec: GemmSpec = getattr(self, gemm)
        return spec.a, spec.b

    def with_(self, **changes: Any) -> LinearSpec:
        """Return a layer with changes.

        Parameters
        ----------
        **changes
            Fields; or `x`, `w`, `dy` (a tensor in all its multiplications), `accumulator`, `promote_every`, `library`,
            `injected_error` (of all three multiplications). A multiplication may be a mapping of its changes.

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
        equal_to_fprop = [
            getattr(self, gemm).with_(a=first.a, b=first.b) == first.with_(injected_error=None)
            and self.tensors(gemm) == tuple(own[role] for role in roles)
            for gemm, roles in OPERANDS.items()
        ]
        if all(equal_to_fprop):
            tensors = str(self.x) if self.x == self.w == self.dy else f"x {self.x}, w {self.w}, dy {self.dy}"
            return f"{tensors} {self.fprop.accumulator_summary}{self.describe_outputs()}"
        return "; ".join(f"{name} {getattr(self, name)}" for name in OPERANDS) + self.describe_outputs()

    def describe_outputs(self, *tensors: str) -> str:
        """Return the output format of `tensors`, y and dx by default, as words; empty if no format is given."""
        return "" if self.out_format is None else f", {' and '.join(tensors or ('y', 'dx'))} in {self.out_format}"


BF16_LINEAR = LinearSpec()
