"""Why codes and scales are not those of a quantizer: a cause for every element and every scale that differs.

A cause is a rule: the quantizer's own with one thing changed (`RULES`). It explains an element if it gives the code
found there; every element that it would have changed and that was not changed speaks against it. Rules that explain
more than speaks against them come first, the best one first; what is left goes to the first rule of the catalogue
that fits the element by itself and can (not `WHOLE`), then to what can be said of single elements (`ALONE`). Blocks
whose scale differs are cast with the scale found: a code that this gives right is the scale's doing.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._arrays import as_float32, as_matrix, spread
from .._ieee import standard
from .._values import ByBits
from ..cast.casts import decode, encode, round_to
from ..format.catalogue import formats
from .granularity import Granularity
from .hadamard import hadamard
from .quantize import quantize, resolve
from .quantized import Quantized
from .quantizer import ARITHMETICS, Quantizer

F32 = NDArray[np.float32]
Codes = NDArray[Any]
Mask = NDArray[np.bool_]
_LARGEST = np.finfo(np.float32).max
_NO_FACTOR = 1e-3  # scales that differ by less are neighbours, or from another arithmetic
UNEXPLAINED = "not explained"
FOUR_OR_SIX = "the other of four and six"
MISSING = "missing"
NOT_COMPARED: Literal["not compared"] = "not compared"


@dataclass(frozen=True, eq=False)
class Explanation(ByBits):
    """What differs from a quantizer, and why.

    Attributes
    ----------
    expected : Quantized
        What the quantizer gives.
    codes : ndarray of str objects, shape (R, C)
        Cause of every element that differs, ``""`` where it does not.
    scales : ndarray of str objects, shape of the scales
        The same for the scales of blocks.
    before : ndarray of float32, shape (R, C)
        What the quantizer casts, with the scales found.
    tensor : str
        The same for the tensor's scale: ``""`` where it is the quantizer's, or was not compared.
    """

    expected: Quantized
    codes: NDArray[Any]
    scales: NDArray[Any]
    before: F32
    tensor: str = ""


@dataclass(frozen=True, eq=False)
class Cast(ByBits):
    """What a rule may look at: values, their scales as found, and what the quantizer makes of them.

    Attributes
    ----------
    x, scale, amax : ndarray of float32, shape (R, C)
        Values, and for each its block's scale and largest magnitude.
    tensor : float32
        The tensor's scale, 1 where there is none.
    top : float32
        Largest element of the format.
    v : ndarray of float32, shape (R, C)
        What is cast.
    codes : ndarray of unsigned integers, shape (R, C)
        What comes out.
    format : str
        Name of the format.
    """

    x: F32
    scale: F32
    amax: F32
    tensor: np.float32
    top: np.float32
    v: F32
    codes: Codes
    format: Any

    def cast(self, v: F32, rounding: str = "nearest_even", policy: str = "ocp_sat") -> Codes:
        """Return codes of values in the format."""
        return encode(v, self.format, rounding=rounding, policy=policy)

    def values(self, codes: Codes) -> F32:
        """Return what codes mean."""
        return decode(codes, self.format)

    @property
    def ties(self) -> Mask:
        """Where `v` lies half way between two elements; float64 holds their sum."""
        low, high = (self.values(self.cast(self.v, mode)).astype(np.float64) for mode in ("down", "up"))
        ties: Mask = (low != high) & (low + high == 2.0 * self.v)
        return ties


def _inverse(a: F32) -> F32:
    inverse: F32 = np.minimum(np.float32(1) / a, _LARGEST)
    return inverse


QUOTIENTS: dict[str, Callable[[Any, Any, Any, np.float32, np.float32], F32]] = {
    "x / s": lambda x, s, amax, top, g: x / s,
    "x * (1 / s)": lambda x, s, amax, top, g: x * _inverse(s),
    "x * (max / amax)": lambda x, s, amax, top, g: x * np.minimum(top / amax, _LARGEST),
    "x * (1 / (s * g))": lambda x, s, amax, top, g: x * _inverse(s * g),
    "x / (s * g)": lambda x, s, amax, top, g: x / (s * g),
    "x * (1 / g / s)": lambda x, s, amax, top, g: x * np.minimum(np.float32(1) / g / s, _LARGEST),
    "x / s / g": lambda x, s, amax, top, g: x / s / g,
}
"""How a value may be divided by its block's scale `s` and its tensor's `g`."""


def quotient_of(q: Quantizer) -> str:
    """Return which of `QUOTIENTS` a quantizer takes.

    Examples
    --------
    >>> from lowprec import quantizers
    >>> [quotient_of(quantizers[name]) for name in ("dsv3_inference", "deepgemm", "nvfp4_te")]
    ['x / s', 'x * (1 / s)', 'x * (1 / (s * g))']
    """
    if q.scale == "e4m3":
        special = {"quotients": "x * (1 / g / s)", "joint": "x / (s * g)", "alone": "x * (1 / s)"}
        return special.get(q.arithmetic, "x * (1 / (s * g))")
    if q.scale == "fp32" and q.arithmetic == "max/amax":
        return "x * (max / amax)"
    return "x / s" if q.scale == "fp32" and q.division == "divide" else "x * (1 / s)"


def _divided(how: str) -> Callable[[Cast], Codes]:
    return lambda c: c.cast(QUOTIENTS[how](c.x, c.scale, c.amax, c.top, c.tensor))


def _rounded(mode: str) -> Callable[[Cast], Codes]:
    return lambda c: c.cast(c.v, mode)


def _tie(mode: str) -> Callable[[Cast], Codes]:
    return lambda c: np.where(c.ties, c.cast(c.v, mode), c.codes)


def _twice(first: str) -> Callable[[Cast], Codes]:
    return lambda c: c.cast(round_to(c.v, first))


def _flushed(c: Cast) -> Codes:
    small = np.abs(c.values(c.codes)) < formats.get(c.format).smallest_normal
    return np.where(small, c.cast(np.copysign(np.float32(0), c.v)), c.codes)


RULES: dict[str, Callable[[Cast], Codes]] = {
    "sign of zero dropped": lambda c: np.where(c.values(c.codes) == 0, c.cast(np.zeros_like(c.v)), c.codes),
    "overflow not saturated": lambda c: c.cast(c.v, policy="ocp_nonsat"),
    **{f"{how} instead": _divided(how) for how in QUOTIENTS},
    "tie away from zero": _tie("nearest_away"),
    "tie toward zero": _tie("toward_zero"),
    "rounded twice, through bfloat16": _twice("bfloat16"),
    "rounded twice, through float16": _twice("float16"),
    "subnormal flushed to zero": _flushed,
    "rounded toward zero": _rounded("toward_zero"),
    "rounded up": _rounded("up"),
    "rounded down": _rounded("down"),
    "rounded to odd": _rounded("to_odd"),
}
"""The quantizer's cast with one thing changed."""

WHOLE = {"rounded toward zero", "rounded up", "rounded down", "rounded to odd", *(r for r in RULES if "twice" in r)}
"""Rules of whole matrices: that one element fits them says nothing."""
WEIGHTS = {name: 4 for name in RULES if "twice" in name}
"""What speaks against these counts more: near midpoints stochastic rounding looks like them half of the time."""

ALONE: dict[str, Callable[[Cast, Codes], Mask]] = {
    "NaN or Inf in the block": lambda c, found: ~np.isfinite(c.amax),
    "code of NaN": lambda c, found: np.isnan(c.values(c.codes)) & np.isnan(c.values(found)),
    "sign of zero": lambda c, found: (c.values(c.codes) == 0) & (c.values(found) == 0),
    "overflow": lambda c, found: np.abs(c.v) > c.top,
    "sign": lambda c, found: c.values(found) == -c.values(c.codes),
    "the neighbour on the other side": lambda c, found: (found == c.cast(c.v, "up")) | (found == c.cast(c.v, "down")),
}
"""What can be said of an element without a rule for all of them; stochastic rounding ends at the last."""


@standard
def explain(
    codes: ArrayLike,
    scale: ArrayLike,
    x: ArrayLike,
    quantizer: str | Quantizer,
    granularity: str | Granularity | None = None,
    *,
    tensor_scale: float | Literal["not compared"] | None = NOT_COMPARED,
) -> Explanation:
    """Say why codes and scales are not what a quantizer makes of `x`.

    Parameters
    ----------
    codes : array_like of unsigned integers, shape (R, C)
        Codes found.
    scale : array_like of float32
        Values of the blocks' scales found.
    x : array_like, shape (R, C)
        What was quantized.
    quantizer : str or Quantizer
        What they are compared with.
    granularity : str or Granularity, optional
        Blocks, if not the quantizer's own.
    tensor_scale : float or None, optional
        The tensor's scale found, None if there is none; taken to be the quantizer's if not given.

    Returns
    -------
    Explanation

    Raises
    ------
    ValueError
        If shapes do not fit the quantizer's.

    Examples
    --------
    >>> import lowprec as lp
    >>> x = np.array([[448.0, 17.0, 0.3, 19.0]])
    >>> explain([[126, 88, 42, 90]], [[1.0]], x, "dsv3_inference").codes.tolist()
    [['', '', '', '']]
    >>> explain([[126, 89, 42, 89]], [[1.0]], x, "dsv3_inference").codes.tolist()
    [['', 'tie away from zero', '', 'tie toward zero']]
    """
    q = resolve(None, granularity, quantizer)
    values = as_matrix(as_float32("explain", x))
    expected = quantize(values, quantizer=q)
    found, scales = np.asarray(codes), np.asarray(scale, dtype=np.float32)
    if found.shape != expected.codes.shape or scales.shape != expected.scale.shape:
        raise ValueError(
            f"explain: codes {found.shape} and scales {scales.shape}; {q.name} has {expected.codes.shape} and "
            f"{expected.scale.shape}"
        )
    found = found.astype(expected.codes.dtype)
    own = np.float32(1) if expected.tensor_scale is None else expected.tensor_scale
    given = None if tensor_scale is None or tensor_scale == NOT_COMPARED else np.float32(tensor_scale)
    tensor = own if given is None else given
    why_tensor = "" if tensor_scale == NOT_COMPARED else _tensor_cause(values, given, expected, q)
    why_scales = _scale_causes(values, scales, expected, q)
    cast = _cast(values, scales, tensor, expected, q)
    names = np.full(found.shape, "", dtype=object)
    open_ = found != expected.codes
    # A scale's doing: its block has another one, and casting with it gives what was found.
    spread = _spread(why_scales, expected)
    moved = spread != ""
    by_scale = open_ & moved & (cast.codes == found)
    names[by_scale] = "scale: " + spread[by_scale]
    if tensor != own:
        names[open_ & ~moved & (cast.codes == found)] = "scale of the tensor"
    open_ &= cast.codes != found
    considered = np.isfinite(cast.amax)
    with np.errstate(all="ignore"):
        rules = ((name, rule(cast)) for name, rule in RULES.items()) if open_.any() else iter(())
        _by_rules(names, open_, found, cast.codes, rules, considered, WHOLE)
        for name, fits in ALONE.items():
            if not open_.any():
                break
            hit = open_ & fits(cast, found)
            names[hit] = name
            open_ &= ~hit
    names[open_] = UNEXPLAINED
    return Explanation(expected, names, why_scales, cast.v, why_tensor)


def _cast(x: F32, scales: F32, tensor: np.float32, expected: Quantized, q: Quantizer) -> Cast:
    rows, columns = expected.granularity.block((x.shape[0], x.shape[1]))
    if q.hadamard is not None:
        x = hadamard(x, q.hadamard, q.signs, axis=0 if columns == 1 and rows > 1 else 1)
    with np.errstate(all="ignore"):
        magnitude = np.abs(x)
        amax = np.maximum.reduceat(np.maximum.reduceat(magnitude, np.arange(0, x.shape[0], rows), 0),
                                   np.arange(0, x.shape[1], columns), 1)  # fmt: skip
        spread = _spread(np.maximum(amax, np.float32(q.amax_floor)), expected)
        each, top = _spread(scales, expected), np.float32(expected.format.max)
        here = quotient_of(q)
        v = QUOTIENTS[here](x, each, spread, top, tensor)
        if here == "x * (max / amax)":  # a multiplier is not known from a scale that differs
            v = np.where(
                each == _spread(expected.scale, expected), v, QUOTIENTS["x * (1 / s)"](x, each, 0, top, tensor)
            )
        v = np.where(spread == 0, x, v)  # a block of zeros keeps its signs
        codes = encode(v, expected.format, policy="ocp_sat")
        same = each == _spread(expected.scale, expected)
        own = np.float32(1) if expected.tensor_scale is None else expected.tensor_scale
        codes = np.where((same | ~np.isfinite(spread)) & bool(tensor == own), expected.codes, codes)
    return Cast(x, each, spread, tensor, top, v, codes, expected.format)


def _by_rules(
    names: NDArray[Any],
    open_: Mask,
    found: NDArray[Any],
    base: NDArray[Any],
    rules: Iterator[tuple[str, NDArray[Any]]],
    considered: Mask,
    whole: Container[str],
) -> None:
    """Name what rules explain, in place: the rule with most for it and least against it first."""
    fits: dict[str, Mask] = {}
    against: dict[str, int] = {}
    for name, result in rules:
        fits[name] = open_ & (result == found)
        against[name] = int(((result != base) & (base == found) & considered).sum())
    while fits:
        score = {name: int((hit & open_).sum()) - WEIGHTS.get(name, 1) * against[name] for name, hit in fits.items()}
        best = max(score, key=lambda name: score[name])  # the first of equals
        if score[best] <= 0:
            break
        hit = fits.pop(best) & open_
        names[hit] = best
        open_ &= ~hit
    for name, fit in fits.items():
        if name in whole:
            continue
        hit = fit & open_
        names[hit] = name
        open_ &= ~hit


def _scale_causes(x: F32, found: F32, expected: Quantized, q: Quantizer) -> NDArray[Any]:
    names = np.full(found.shape, "", dtype=object)
    open_ = ~((found == expected.scale) | (np.isnan(found) & np.isnan(expected.scale)))
    if not open_.any():
        return names
    others = {**dict(_other_scales(x, expected, q)), **_turned(found, expected.scale)}
    whole = others.keys() - {FOUR_OR_SIX}
    _by_rules(names, open_, found, expected.scale, iter(others.items()), np.isfinite(expected.scale), whole)
    names[open_ & (np.isnan(found) | np.isnan(expected.scale))] = "NaN"
    open_ &= ~(np.isnan(found) | np.isnan(expected.scale))
    steps = _steps(found, q) - _steps(expected.scale, q)
    for name, hit in (
        ("one step higher", steps == 1), ("one step lower", steps == -1),
        ("several steps higher", steps > 1), ("several steps lower", steps < -1),
    ):  # fmt: skip
        names[open_ & hit] = name
    names[open_ & (steps == 0)] = UNEXPLAINED
    return names


def _other_scales(x: F32, expected: Quantized, q: Quantizer) -> Iterator[tuple[str, F32]]:
    """Scales of the same quantizer with one thing changed."""
    others: dict[str, dict[str, Any]] = {
        f"from {name}": {"arithmetic": name, "choice": None}
        for name in ARITHMETICS[q.scale]
        if name != q.arithmetic and (name == "alone") == (q.arithmetic == "alone")
    }
    others |= {f"amax at least {low:g}": {"amax_floor": low} for low in (0.0, 1e-12, 1e-4) if low != q.amax_floor}
    if q.scale == "e4m3":
        others |= {f"bound {b:g}": {"bound": b, "choice": None} for b in (256.0, 448.0) if b != q.bound}
        lows = {"0": 0.0, "2^-9": 2.0**-9, "2^-6": 2.0**-6}
        others |= {f"at least {at}": {"smallest_scale": low} for at, low in lows.items() if low != q.smallest_scale}
        if q.choice is None and q.two_level:
            others["four over six"] = {"arithmetic": "plain", "bound": 256.0, "choice": "mae"}
    if q.choice is not None:
        yield FOUR_OR_SIX, _four_or_six(expected.scale, x, expected, q)
    for name, change in others.items():
        if not (change.get("amax_floor") and q.scale == "e4m3"):
            yield name, quantize(x, quantizer=q.with_(granularity=str(expected.granularity), **change)).scale


def _turned(found: F32, expected: F32) -> dict[str, F32]:
    """Return all scales turned over, and all times one factor, where that gives most of those that differ."""
    differ = (found != expected) & ~(np.isnan(found) & np.isnan(expected))
    with np.errstate(all="ignore"):
        turned = {"the inverse": _where_near(found, np.float32(1) / expected)}
        ratio = found / expected
        factors = ratio[differ & np.isfinite(ratio) & (ratio > 0)]
        if factors.size and abs((factor := np.sort(factors)[factors.size // 2]) - 1) > _NO_FACTOR:
            turned[f"{factor:.6g} times it"] = _where_near(found, expected * factor)
    return {name: scales for name, scales in turned.items() if 2 * (scales == found)[differ].sum() > differ.sum()}


def _where_near(found: F32, meant: F32) -> F32:
    """Return what is meant, but what was found where that is meant but for a rounding."""
    near: F32 = np.where(np.abs(found - meant) <= np.spacing(np.abs(meant)), found, meant)
    return near


def _tensor_cause(x: F32, found: np.float32 | None, expected: Quantized, q: Quantizer) -> str:
    """Say why the tensor's scale is not the quantizer's, ``""`` if it is."""
    own = expected.tensor_scale
    if own is None:
        return "" if found is None or found == 1 else "the quantizer has none"
    if found is None:
        return MISSING
    if found == own or (np.isnan(found) and np.isnan(own)):
        return ""
    if not (np.isfinite(found) and found > 0):
        return "no positive number"
    others: dict[str, Any] = {}
    for name in ARITHMETICS[q.scale]:
        other = q.with_(granularity=str(expected.granularity), arithmetic=name, choice=None)
        if other.two_level and name != q.arithmetic:
            others[f"from {name}"] = _of_tensor(x, other)
    for bound in (256.0, 448.0):
        other = q.with_(granularity=str(expected.granularity), bound=bound)
        if bound != q.bound:
            others[f"bound {bound:g}"] = _of_tensor(x, other)
    top, aim = np.float32(expected.format.max), np.float32(q.bound)
    with np.errstate(all="ignore"):
        others |= {"the inverse": np.float32(1) / own, "amax": own * top * aim}
        others |= {f"without {top:g}": own * top, f"without {aim:g}": own * aim}
        near = [name for name, meant in others.items() if found == meant or (
                not name.startswith("from") and _where_near(np.asarray(found), meant) == found)]  # fmt: skip
        if near:
            return near[0]
        if abs(found / own - 1) <= _NO_FACTOR:
            return f"{'higher' if found > own else 'lower'} by {abs(found / own - 1):.2g}"
        return f"{found / own:.6g} times it"


def _of_tensor(x: F32, q: Quantizer) -> F32:
    scale: Any = quantize(x, quantizer=q).tensor_scale
    return np.asarray(scale)


def _four_or_six(chosen: F32, x: F32, expected: Quantized, q: Quantizer) -> F32:
    six = quantize(x, quantizer=q.with_(granularity=str(expected.granularity), choice=None)).scale
    four = quantize(x, quantizer=q.with_(granularity=str(expected.granularity), choice=None, bound=1.5 * q.bound)).scale
    return np.where(chosen == six, four, six)


def _steps(scale: F32, q: Quantizer) -> NDArray[np.int64]:
    if q.scale == "e4m3":
        return encode(scale, "e4m3fn", policy="ocp_sat").astype(np.int64)
    bits = scale.view(np.uint32).astype(np.int64)
    if q.scale == "fp32":
        return bits
    with np.errstate(divide="ignore"):
        return np.where(scale > 0, np.frexp(scale)[1], -1000).astype(np.int64)


def _spread(scale: NDArray[Any], expected: Quantized) -> NDArray[Any]:
    """Return every element's scale."""
    shape = as_matrix(expected.codes).shape
    rows, columns = expected.granularity.block((shape[0], shape[1]))
    return spread(spread(scale, rows, shape[0], 0), columns, shape[1])
