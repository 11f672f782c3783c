"""Criteria of tests, as callables ``(got, want) -> bool``: limits of measures, and criteria of public suites."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..format.catalogue import formats
from ..measure.metrics import calc_diff, gain_error, sqnr
from ..registry import Registry, suggest

Values = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Criterion:
    """Rule by which a test accepts a result.

    Parameters
    ----------
    name : str
        Name in tables.
    accepts : callable
        ``(got, want) -> bool``; both are float64 arrays, `want` the exact product in the format of the result.
    source : str
        File that states the criterion.
    reference : {"operands", "values"}
        Source of `want`: the quantized operands, or the values before quantization.

    Examples
    --------
    >>> criterion("calc_diff<1e-3")([1.0, 2.0], [1.0, 2.001])
    True
    """

    name: str
    accepts: Callable[[Any, Any], Any] = field(repr=False)
    source: str = "user-defined"
    reference: str = "operands"

    def __call__(self, got: ArrayLike, want: ArrayLike) -> bool:
        """Return whether a result is accepted.

        Raises
        ------
        ValueError
            If the rule raises an error (an AssertionError is a rejection instead), or returns a number or an array.
        """
        try:
            found = self.accepts(np.asarray(got, np.float64), np.asarray(want, np.float64))
        except AssertionError:
            return False
        except Exception as error:
            raise ValueError(f"criterion {self.name}: it must accept or refuse arrays, got {error!r}") from error
        if found is None:  # a function that asserts returns nothing if it accepts
            return True
        if np.ndim(found) or "bool" not in str(getattr(found, "dtype", type(found))):
            raise ValueError(
                f"criterion {self.name}: it must return a bool, or None if it raises AssertionError, got {found!r}"
            )
        return bool(found)


def _cosine(got: Values, want: Values) -> float:
    size = np.linalg.norm(got) * np.linalg.norm(want)
    return float((got * want).sum() / size) if size else 0.0


def _largest(x: Values) -> float:
    return float(np.max(x, initial=0.0)) if not np.isnan(x).any() else np.inf


def _relative_l2(got: Values, want: Values) -> float:
    size = float(np.linalg.norm(want))
    return float(np.linalg.norm(got - want)) / size if size else np.inf


def _mean_relative(got: Values, want: Values) -> float:
    size = float(np.abs(want).sum())
    return float(np.abs(got - want).sum()) / size if size else np.inf


def max_ulp(got: Values, want: Values) -> float:
    """Return the largest error in bfloat16 ulps of `want`."""
    power = np.maximum(np.frexp(np.abs(want))[1] - 1, formats["bfloat16"].emin)
    return _largest(np.abs(got - want) / np.ldexp(1.0, power - 7))


#: Measures of two arrays by name, for criteria of the form NAME<LIMIT and NAME>LIMIT.
MEASURES: dict[str, Callable[[Any, Any], float]] = {
    "calc_diff": calc_diff, "cosine": _cosine, "sqnr": sqnr, "gain_error": gain_error, "max_ulp": max_ulp,
    "max_abs": lambda got, want: _largest(np.abs(got - want)), "relative_l2": _relative_l2,
    "mean_relative": _mean_relative,
}  # fmt: skip

criteria: Registry[Criterion] = Registry("criterion", Criterion)
"""Catalogue of criteria: those of public suites, as their test files state them."""


def _within(rtol: float, atol: float) -> Callable[[Any, Any], Any]:
    def accepts(got: Any, want: Any) -> Any:
        with np.errstate(invalid="ignore"):
            return np.allclose(got, want, rtol=rtol, atol=atol, equal_nan=True)

    return accepts


def _triton(got: Values, want: Values) -> bool:
    """Return whether errors are small relative to the larger of the element and the root mean square of the result."""
    if not (np.isinf(got) == np.isinf(want)).all():
        return False
    if not want.size:
        return True
    relative = np.abs(got - want) / np.maximum(np.sqrt(np.square(want).mean()), np.abs(want))
    return bool(relative.max(initial=0) <= 2e-2 and np.sqrt(np.square(relative).mean()) <= 4e-3)


for _criterion in (
    Criterion("deepgemm", lambda got, want: calc_diff(got, want) < 1e-3, "tests/test_fp8.py@48c741a", "values"),
    Criterion("vllm_cutlass", _within(5e-1, 1.5e-1), "tests/kernels/quantization/test_cutlass_scaled_mm.py@01065c0"),
    Criterion(
        "torchao", lambda got, want: sqnr(got, want) > 20, "test/float8/test_numerics_integration.py@04473c1", "values"
    ),
    Criterion("transformer_engine_bf16", _within(1.6e-2, 1e-5), "tests/pytorch/utils.py@009e651: dtype_tols"),
    Criterion("transformer_engine_fp8", _within(0.125, 0.0675), "tests/pytorch/utils.py@009e651: quantization_tols"),
    Criterion("triton_kernels", _triton, "python/triton_kernels/triton_kernels/testing.py@1084e81: assert_close"),
    Criterion("cutlass_67", lambda got, want: np.array_equal(got, want), "examples/67: TensorEquals, @03a62b4"),
    Criterion("torch_bfloat16", _within(1.6e-2, 1e-5), "torch.testing.assert_close, the default for bfloat16"),
):  # fmt: skip
    criteria.register(_criterion.name, _criterion)
criteria.seal()


def criterion(given: str | Criterion | Callable[[Any, Any], Any]) -> Criterion:
    """Return a criterion from its name, an expression or a callable.

    Parameters
    ----------
    given : str, Criterion or callable
        Name in the catalogue; ``NAME<LIMIT`` or ``NAME>LIMIT`` of a measure, such as ``"calc_diff<1e-3"``;
        ``"allclose(RTOL, ATOL)"``; or a callable ``(got, want)`` that returns a bool or raises AssertionError.

    Returns
    -------
    Criterion
        Callable that returns a bool.

    Raises
    ------
    ValueError
        If `given` is neither a name nor such an expression, or its measure is unknown.

    Examples
    --------
    >>> criterion("allclose(1e-2, 1e-5)")([1.0], [1.02])
    False
    """
    if isinstance(given, Criterion):
        return given
    if not isinstance(given, str):
        if not callable(given):
            raise ValueError(f"criterion: criterion must be a text or a callable, got {given!r}")
        return Criterion(getattr(given, "__name__", "callable"), given)
    if given in criteria:
        return criteria[given]
    text = given.replace(" ", "")
    if found := re.fullmatch(r"allclose\((?:rtol=)?([^,]+),(?:atol=)?([^,]+)\)", text):
        rtol, atol = (_number(given, found[i], zero=True) for i in (1, 2))
        return Criterion(given, _within(rtol, atol))
    if not (found := re.fullmatch(r"(\w+)([<>])(.+)", text)):
        raise ValueError(
            f"criterion: must be a name of the catalogue, NAME<LIMIT, NAME>LIMIT or allclose(RTOL, ATOL), got {given!r}"
        )
    name, sign, limit = found[1], found[2], _number(given, found[3])
    if name not in MEASURES:
        raise ValueError(f"criterion: unknown measure {name!r}; {suggest(name, MEASURES)}")
    measure = MEASURES[name]
    if sign == "<":
        return Criterion(given, lambda got, want: measure(got, want) < limit)
    return Criterion(given, lambda got, want: measure(got, want) > limit)


def _number(given: str, text: str, *, zero: bool = False) -> float:
    """Return a limit, which must be 0 or more if `zero`: a tolerance."""
    try:
        found = float(text.replace("_", "?"))  # Python reads 1_0 as 10
    except ValueError:
        found = math.nan
    if not math.isfinite(found) or (zero and found < 0):
        kind = "finite numbers of at least 0" if zero else "finite numbers"
        raise ValueError(f"criterion: limits must be {kind}, got {text!r} in {given!r}")
    return found
