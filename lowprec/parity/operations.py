"""Rules of a stack, each of which describes the arithmetic of an operation as data: base and elementwise operations."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from .._checks import brief_repr, check_choice, check_positive
from .._values import Value, normalize_fields
from ..order.order import DTYPES, FormatName
from ..special.cpu import CpuExp, CpuGelu
from ..special.portable import RoundedFunction

Floats = NDArray[np.float32]
Mark = Literal["exact", "decided", "own"]
MARKS: tuple[Mark, ...] = get_args(Mark)


class Loop(NamedTuple):
    """Loop in which a library computes the elements of an operation.

    It covers each run of `run` consecutive elements in vector steps; elements beyond the run's last whole step are
    computed by scalar code, as are all if `run` is 0.
    """

    dtype: FormatName
    run: int = 0


@dataclass(frozen=True, eq=False, repr=False)
class Rule(Value):
    """Base of rules, one for each operation of a stack.

    Parameters
    ----------
    mark : {"exact", "decided", "own"}
        ``exact``: the bits follow from public sources or from measurements; ``decided``: the operation has a documented
        error bound, within which the bits of the running program are kept; ``own``: a custom rule.
    source : str
        Reference for the rule.
    """

    mark: Mark = dataclasses.field(default="own", kw_only=True)
    source: str = dataclasses.field(default="user-defined", compare=False, kw_only=True)

    def __post_init__(self) -> None:
        normalize_fields(self)
        check_choice(type(self).__name__, "mark", self.mark, MARKS)
        if not isinstance(self.source, str):
            raise ValueError(f"{type(self).__name__}: source must be a string, got {self.source!r}")


@dataclass(frozen=True, eq=False, repr=False)
class Moves(Rule):
    """Operation that moves, selects or creates values, without rounding."""


@dataclass(frozen=True, eq=False, repr=False)
class Elements(Rule):
    """Base of elementwise operations, whose results are rounded to the dtype."""

    @abstractmethod
    def compute(self, loop: Loop, *operands: Any) -> Floats:
        """Return the result in float32, not yet rounded to the dtype."""


#: Operations of IEEE arithmetic; each function is rounded to float32.
_ARITHMETIC: dict[str, Any] = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide, "negative": np.negative,
    "copy": np.positive, "reciprocal": np.reciprocal, "subtract_from": lambda x, y: y - x,
}  # fmt: skip


@dataclass(frozen=True, eq=False, repr=False)
class Arithmetic(Elements):
    """Elementwise operation of IEEE arithmetic in float32.

    Parameters
    ----------
    function : str
        Name of the operation.
    """

    function: str = "add"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("Arithmetic", "function", self.function, tuple(_ARITHMETIC))

    def compute(self, loop: Loop, *operands: Any) -> Floats:
        """Return the result in float32."""
        found: Floats = _ARITHMETIC[self.function](*operands)
        return found


@dataclass(frozen=True, eq=False, repr=False)
class Power(Elements):
    """Squares and cubes, computed as products, each of which is rounded to the dtype."""

    def compute(self, loop: Loop, *operands: Any) -> Floats:
        """Return the power in float32."""
        x, power = operands
        if power not in (2, 3):
            raise ValueError(f"Power: exponent must be 2 or 3, got {power}")
        square: Floats = x * x
        return square if power == 2 else rounded(square, loop.dtype) * x


@dataclass(frozen=True, eq=False, repr=False)
class ReciprocalRoot(Elements):
    """1 / sqrt(x), by a square root and a division, each rounded to float32, or by a single rounding.

    Parameters
    ----------
    once : bool
        Whether the exact value is rounded once.
    """

    once: bool = False

    def compute(self, loop: Loop, *operands: Any) -> Floats:
        """Return the result in float32."""
        x = operands[0].astype(np.float64) if self.once else operands[0]
        found: Floats = np.asarray(x.dtype.type(1) / np.sqrt(x), np.float32)
        return found


@dataclass(frozen=True, eq=False, repr=False)
class Stepped(Elements):
    """Base of functions that are computed in the vector steps of a `Loop` and, by other code, in the rest.

    Parameters
    ----------
    step : int
        Number of bytes per vector step of the loop.
    grain : int
        Number of elements from which PyTorch divides the loop among threads, so that each has a rest.
    """

    step: int = dataclasses.field(default=128, kw_only=True)
    grain: int = dataclasses.field(default=32768, kw_only=True)

    #: Whether vector steps and scalar code have other bits.
    has_rests = True

    @abstractmethod
    def in_steps(self, x: Floats) -> Floats:
        """Return the function of a vector, as in vector steps."""

    @abstractmethod
    def in_rest(self, x: Floats) -> Floats:
        """Return the function of a vector, as in scalar code."""

    def compute(self, loop: Loop, *operands: Any) -> Floats:
        """Return the result in float32."""
        x = operands[0].reshape(-1)
        found = self.in_steps(x)
        step = self.step // DTYPES[loop.dtype].itemsize
        rest = np.arange(x.size) % max(loop.run, 1) >= loop.run // step * step
        found[rest] = self.in_rest(x[rest])
        return found.reshape(operands[0].shape)


@dataclass(frozen=True, eq=False, repr=False)
class Sigmoid(Stepped):
    """1 / (1 + exp(-x)) or x / (1 + exp(-x)).

    exp is a vector function in the vector steps of a `Loop`, and glibc's expf in its scalar code.

    Parameters
    ----------
    exp : CpuExp
        Vector function.
    times_x : bool
        Whether the numerator is x (SiLU) instead of 1.
    step, grain
        As in `Stepped`.
    """

    exp: CpuExp = dataclasses.field(kw_only=True)
    times_x: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_kind("Sigmoid", "exp", CpuExp, self.exp)

    def in_steps(self, x: Floats) -> Floats:
        """Return the function of a vector by the vector function."""
        return self._of(x, self.exp.with_(width=1)(np.negative(x)[None])[0])

    def in_rest(self, x: Floats) -> Floats:
        """Return the function of a vector by glibc's expf."""
        return self._of(x, self.exp.factors(np.minimum(np.negative(x), np.float32(128))))

    def _of(self, x: Floats, e: Floats) -> Floats:
        return (x if self.times_x else np.float32(1)) / (np.float32(1) + e)


@dataclass(frozen=True, eq=False, repr=False)
class Gelu(Stepped):
    """GELU, or its approximation by tanh.

    Parameters
    ----------
    vector, scalar : CpuGelu
        Functions in the vector steps of a `Loop` and in its scalar code.
    dense : tuple of CpuGelu
        Functions of a library that computes all elements of contiguous operands, of which the first with PyTorch's bits
        is used; may be empty.
    probed : bool
        Whether every function is compared with PyTorch's before it is used; if not, they are used as given.
    step, grain
        As in `Stepped`.
    """

    vector: CpuGelu = dataclasses.field(kw_only=True)
    scalar: CpuGelu = dataclasses.field(kw_only=True)
    dense: tuple[CpuGelu, ...] = ()
    probed: bool = dataclasses.field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_kind("Gelu", "vector, scalar and dense", CpuGelu, self.vector, self.scalar, *self.dense)

    @property
    def has_rests(self) -> bool:  # type: ignore[override]
        """Whether vector steps and scalar code have other bits."""
        return self.vector != self.scalar

    def in_steps(self, x: Floats) -> Floats:
        """Return the function of a vector by the vector function."""
        return self.vector(x)

    def in_rest(self, x: Floats) -> Floats:
        """Return the function of a vector by the scalar function."""
        return self.scalar(x)


@dataclass(frozen=True, eq=False, repr=False)
class Function(Elements):
    """Function that the package computes itself.

    Parameters
    ----------
    function : RoundedFunction
        The function.
    """

    function: RoundedFunction = dataclasses.field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_kind("Function", "function", RoundedFunction, self.function)

    def compute(self, loop: Loop, *operands: Any) -> Floats:
        """Return the result in float32."""
        return self.function(operands[0])


@dataclass(frozen=True, eq=False, repr=False)
class Bounded(Rule):
    """Function without a public definition of its bits: PyTorch's results are kept if they are within an error bound.

    Parameters
    ----------
    function : str
        Name of the function in NumPy.
    ulps : float
        Largest error, in units in the last place of float32.
    """

    function: str = "sin"
    ulps: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if getattr(getattr(np, str(self.function), None), "nin", 0) != 1:
            raise ValueError(f"Bounded: function must be a NumPy ufunc of one argument, got {self.function!r}")
        check_positive("Bounded", "ulps", self.ulps, zero=True)


def _check_kind(caller: str, name: str, kind: type, *values: Any) -> None:
    if odd := [value for value in values if not isinstance(value, kind)]:
        raise ValueError(f"{caller}: {name} must be of class {kind.__name__}, got {brief_repr(odd[0])}")


def rounded(x: Floats, dtype: FormatName) -> Floats:
    """Round float32 values to a dtype, and return them as float32."""
    return x if dtype == "float32" else x.astype(DTYPES[dtype]).astype(np.float32)
