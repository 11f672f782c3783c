"""Calls of a function under test: arguments, checks of its results, and a time limit."""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._arrays import to_like, to_numpy
from .._checks import brief_repr, check_choice, check_int
from .order import DTYPES, FORMATS, FormatName

Array = NDArray[Any]
_SHOW_EVERY = 1.0  # seconds between two calls of `progress`


class RevealError(ValueError):
    """Error raised if no order gives the results of a callable.

    Attributes
    ----------
    evidence : mapping of str to array
        Inputs `x` (or `a` and `b`), results of the callable (`got`) and of the order (`expected`).
    """

    def __init__(self, message: str, evidence: Mapping[str, Any] = MappingProxyType({})) -> None:
        super().__init__(message)
        self.evidence = dict(evidence)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.args[0], self.evidence)


def check_options(caller: str, dtype: FormatName, operands: int, seed: int) -> tuple[int, int]:
    """Check all three arguments and return the number of operands and the seed."""
    check_choice(caller, "dtype", dtype, FORMATS)
    return check_int(caller, "operands", operands, 1, 2), check_int(caller, "seed", seed, 0)


def check_callable(caller: str, function: Any) -> None:
    """Raise TypeError if a function is not callable."""
    if not callable(function):
        raise TypeError(f"{caller}: function must be callable, got {brief_repr(function)}")


class Call:
    """Call of a function with arrays or tensors of a dtype; its errors and those of `convert` become `RevealError`."""

    def __init__(
        self, function: Callable[..., Any], dtype: np.dtype[Any], convert: Callable[[Any], Any] = lambda found: found
    ) -> None:  # fmt: skip
        self.function, self.dtype, self.takes_tensors, self.convert = function, dtype, takes_tensors(function), convert

    def __call__(self, caller: str, what: str, given: Sequence[Array], evidence: Mapping[str, Any]) -> Any:
        """Return the converted result for copies of the given arrays, which messages call `what`."""
        inputs = [to_like(caller, x, "torch", self.dtype) if self.takes_tensors else x.copy() for x in given]
        try:
            with np.errstate(all="ignore"):  # inputs overflow on purpose
                return self.convert(self.function(*inputs))
        except Exception as error:
            raise RevealError(
                f"{caller}: {name_of(self.function)} must take {what}, got {type(error).__name__}: "
                f"{brief_repr(str(error))[1:-1]}", evidence,
            ) from error  # fmt: skip


class Probed:
    """Callable of one or two vectors that returns one number.

    Parameters
    ----------
    function : callable
        Callable; functions of torch get tensors, all others arrays of NumPy.
    n : int
        Length of a vector.
    dtype : str
        Format of the elements.
    operands : {1, 2}
        Number of vectors; 2: the callable returns a dot product, and the second vector contains ones.
    seconds : float
        Time after which calls are refused.
    progress : callable or None
        Function that is called every second with the number of calls so far.
    """

    def __init__(
        self, function: Callable[..., Any], n: int, dtype: FormatName, operands: int, seconds: float,
        progress: Callable[[int], object] | None,
    ) -> None:  # fmt: skip
        self.n, self.dtype, self.operands = n, DTYPES[dtype], operands
        self.name = name_of(function)
        self.seconds, self.progress, self.calls = seconds, progress, 0
        self._start = self._first = self._shown = time.monotonic()
        self._call = Call(function, self.dtype)
        self.out_format: FormatName | None = None

    def given(self, *vectors: Array) -> tuple[Array, ...]:
        """Return the arguments of the callable for one vector, with a vector of ones if it takes two."""
        x = tuple(np.ascontiguousarray(v).astype(self.dtype) for v in vectors)
        return x if len(x) == self.operands else (*x, np.ones(self.n, self.dtype))

    def evidence(self, *vectors: Array, **more: Any) -> dict[str, Any]:
        """Return inputs and outputs as the evidence of an error."""
        given = self.given(*vectors)
        return dict(zip(("a", "b") if self.operands == 2 else ("x",), given, strict=True)) | more

    def __call__(self, *vectors: Array) -> float:
        """Return the number that the callable returns for one vector, or two.

        Raises
        ------
        RevealError
            If the callable raises, returns anything but one real number of one dtype, or the time is up.
        """
        self._watch()
        what = f"{'two vectors' if self.operands == 2 else 'a vector'} of {self.n} {self.dtype.name} numbers"
        self.calls += 1
        returned = self._call("reveal", what, self.given(*vectors), self.evidence(*vectors))
        try:
            array = np.asarray(to_numpy(returned))
        except (TypeError, ValueError, RuntimeError):
            array = np.empty(0, object)
        name = array.dtype.name
        if isinstance(returned, int) and not isinstance(returned, bool):
            name = "float64"  # sum([]) and the like: an exact number
        if array.shape != () or name not in FORMATS:
            what = f"an array of shape {array.shape}" if array.shape and array.size else brief_repr(returned)
            raise RevealError(
                f"reveal: {self.name} must return one number in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}, got {what}",
                self.evidence(*vectors),
            )
        fmt = next(f for f in FORMATS if f == name)
        if self.out_format not in (None, fmt):
            raise RevealError(
                f"reveal: {self.name} must return numbers of one dtype, got {self.out_format} and {fmt}",
                self.evidence(*vectors, got=returned),
            )
        self.out_format = fmt
        return float(array)

    def _watch(self) -> None:
        now = time.monotonic()
        spent = now - self._start
        if self.progress and now - self._shown > _SHOW_EVERY:
            self._shown = now
            self.progress(self.calls)
        if self.calls == 1:
            self._first = now  # the first call may compile or import
        each = (now - self._first) / (self.calls - 1) if self.calls > 1 else 0.0
        if spent > self.seconds or each * self.n > self.seconds:  # an order needs at least n calls
            about = f"{each or spent:.2g} s a call, and at least {self.n} calls"
            raise RevealError(
                f"reveal: seconds must be enough for {self.name}: {about}, got {self.seconds:g}, of which {self.calls} "
                f"calls took {spent:.1f}; a smaller n needs fewer"
            )


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of a callable for messages.

    Examples
    --------
    >>> name_of(np.sum), name_of(sum), name_of(np.add.reduce)
    ('numpy.sum', 'sum', 'reduce')
    """
    name = str(getattr(function, "__qualname__", None) or type(function).__qualname__)
    module = _package(function)
    name = name if "<" in name else name.rpartition(".")[2]
    return name if module in ("", "builtins", "__main__") or "<" in name else f"{module}.{name}"


def takes_tensors(function: Callable[..., Any]) -> bool:
    """Return whether a callable is a function of torch, or its first parameter is annotated as a tensor."""
    inner: Any = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    try:
        signature = inspect.signature(function, eval_str=True)
    except (NameError, AttributeError):  # a name that is imported for type checkers alone
        signature = inspect.signature(function)
    except (ValueError, TypeError):  # written in C, without a signature
        signature = inspect.Signature()
    kinds = [str(parameter.annotation) for parameter in signature.parameters.values()]
    return _package(inner) == "torch" or (kinds != [] and ("torch.Tensor" in kinds[0] or kinds[0] == "Tensor"))


def _package(function: Callable[..., Any]) -> str:
    module = getattr(function, "__module__", None) or getattr(getattr(function, "__objclass__", None), "__module__", "")
    return str(module).partition(".")[0]
