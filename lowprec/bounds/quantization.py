"""`quantize_tolerance`: bounds on the codes and scales of correct implementations of a quantizer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._arrays import as_float32, as_matrix
from .._fpenv import with_default_fpenv
from ..cast.casts import encode, round_to
from ..diagnose.check.check import check
from ..format.catalogue import formats
from ..format.rounding import Rounding, roundings
from ..scaling.quantize import quantize, resolve_spec, stateless
from ..scaling.quantized import Quantized
from ..scaling.quantizer import Quantizer
from ..scaling.rules import AmaxRule, are_powers
from ..scaling.spec import TensorSpec
from .checksum import TINY, Values, half_ulp
from .derived import Tolerance
from .named import named_output
from .product import Errors

Floats = NDArray[np.float32]
#: Relative error, from some float32 roundings, of a scale before its format rounds it, and of a divided value.
_FREE = 2.0**-20


@with_default_fpenv
def quantize_tolerance(
    x: ArrayLike, spec: str | Quantizer | TensorSpec, *, rounding: str | Rounding | None = None
) -> Tolerance:
    """Bound the dequantized values of a quantizer, for any order of its float32 operations.

    A correct kernel computes the same scale and the same quotient, possibly by other operations: ``x * (1 / s)`` for
    ``x / s``, ``amax * (1 / max)`` for ``amax / max``. Both may then differ by some float32 roundings, which change a
    scale or a code only near a tie.

    Parameters
    ----------
    x : array_like, shape (..., R, C)
        Values, taken as float32.
    spec : str, Quantizer or TensorSpec
        Quantizer, see `lowprec.quantize`.
    rounding : str or Rounding, optional
        Rounding of elements; by default that of `spec`. With a stochastic rounding, either neighbour is accepted.

    Returns
    -------
    Tolerance
        Tolerance of the dequantized values; its `test` takes a `Quantized`, or dequantized values.

    Raises
    ------
    ValueError
        If no bound is known for the quantizer: it transforms values, has a state or a Python function as rule, or
        chooses a scale by a comparison of sums (four over six, EDEN).

    Examples
    --------
    >>> import numpy as np, lowprec as lp
    >>> x = np.random.default_rng(0).standard_normal((16, 512), np.float32)
    >>> t = lp.quantize_tolerance(x, "e4m3fn 1x128")
    >>> print(t.test(lp.quantize(x, lp.quantizers["te_block_fp32"])))
    inside what this arithmetic does in some order
    >>> bool(t.test(lp.quantize(x, "e4m3fn 1x128", rounding="toward_zero")))
    False
    """
    made = resolve_spec("quantize_tolerance", spec)
    q = stateless("quantize_tolerance", made)
    _check_has_bound(q, made)
    values = as_float32("quantize_tolerance", x)
    mode = roundings.get("stochastic" if rounding is None and made.stochastic else rounding or q.rounding)
    seed = 0 if mode.is_stochastic else None
    emulated = quantize(values, q, rounding=mode, seed=seed)
    right = emulated.dequantize()
    with np.errstate(all="ignore"):
        low, high = _ends(values, q, mode, emulated)
        exact = np.where(np.isfinite(right), values, right).astype(np.float64)
        low, high = (np.where(np.isfinite(right), end, right) for end in (low, high))
        bound = np.maximum(high - exact, exact - low)
        scale = _scales(emulated)
        step = np.nan_to_num(emulated.format.ulp(exact / scale) * scale)
    fmt = emulated.format

    def name(got: Any, expected: Values, d: Values) -> str:
        if isinstance(got, Quantized) and not q.has_row_scales and got.format == fmt:
            found = check(got, values, q)
            return ", or ".join(found.causes) or named_output(right, expected, d, formats["float32"])
        return named_output(right, expected, d, formats["float32"])

    found = Tolerance.of(
        Errors(exact, bound, np.square(step) / 12 + 1e-300), formats["float32"], [right],
        [] if mode.is_stochastic else [right], name=name, rtol=half_ulp(fmt),
    )  # fmt: skip
    return replace(found, low=low, high=high, bound=np.where(np.isfinite(right), bound, np.abs(right)))


def _check_has_bound(q: Quantizer, made: TensorSpec) -> None:
    reason = None
    if not isinstance(q.rule, AmaxRule):
        reason = f"a Python function as rule, {q.rule}"
    elif q.rule.four_over_six is not None or made.eden:
        reason = f"a scale chosen by a comparison of sums, {q.rule.four_over_six or 'eden'}"
    elif q.hadamard_size is not None:
        reason = f"hadamard_size={q.hadamard_size}; transform x first, with lowprec.hadamard"
    if reason is not None:
        raise ValueError(f"quantize_tolerance: spec must be a quantizer with a bound, got one with {reason}")


def _ends(values: Floats, q: Quantizer, mode: Rounding, emulated: Quantized) -> tuple[Values, Values]:
    """Return the smallest and the largest possible dequantized value of each element.

    Scales are monotone in the amax of the block, so the scales of a slightly smaller and a slightly larger amax bound
    them. Rounding is monotone, so the codes of two quotients bound all codes between them.
    """
    free = 0.0 if are_powers(q.scale_format) else _FREE
    modes = (roundings["down"], roundings["up"]) if mode.is_stochastic else (mode,)
    fmt, found = emulated.format, []
    for scale in _possible_scales(values, q, emulated):
        quotients = [values.astype(np.float64) * (1 + sign * free) / scale for sign in (-2, 2)]
        ends = [
            round_to(y, fmt, rounding=r, policy="ocp_sat").astype(np.float64) for y in quotients for r in modes
        ]  # fmt: skip
        for end in (np.minimum.reduce(ends), np.maximum.reduce(ends)):
            found += [end * scale * (1 + sign * 2 * free) for sign in (-1, 1)]
    slack = np.where(values == 0, 0.0, TINY)
    return np.minimum.reduce(found) - slack, np.maximum.reduce(found) + slack


def _possible_scales(values: Floats, q: Quantizer, emulated: Quantized) -> Iterator[Values]:
    """Yield the scale of every value; if the scale format rounds, also those of slightly smaller and larger amaxes."""
    yield _scales(emulated)
    if q.scale_format == formats["float32"]:
        return  # the tolerance of scales includes these errors
    matrix = as_matrix(values)
    size, fixed = np.abs(matrix), np.zeros(matrix.shape, bool)
    if q.has_tensor_scale:  # the scale of blocks with the largest magnitude does not depend on roundings
        axis = None if not q.has_row_scales else 1 if q.granularity.rows == 1 else 0
        fixed = size == size.max(axis=axis, keepdims=True, initial=0.0)
    for sign in (-1, 1):
        moved = np.where(fixed, matrix, matrix * np.float32(1 + sign * _FREE)).reshape(values.shape)
        yield _scales(quantize(moved, q, rounding="toward_zero"))


def _scales(q: Quantized) -> Values:
    """Return, for each element, the factor that multiplies its decoded code."""
    ones = np.full(q.shape, encode(1.0, q.format), q.codes.dtype)
    return replace(q, codes=ones, quantizer=None).dequantize().astype(np.float64)
