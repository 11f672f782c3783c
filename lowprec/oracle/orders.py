"""Sums in a given order, computed in fractions: every operation is exact and its result is then rounded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .ieee import ieee_sum
from .machines.cpu import _flushed
from .values import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, Exact, Fields, decode, encode, exact

_FORMATS = {"float16": FLOAT16, "bfloat16": BFLOAT16, "float32": FLOAT32, "float64": FLOAT64}
_ONE, _NO_ADDEND = exact(1), -0.0  # adding -0 changes no number


def ordered_sum(
    terms: Sequence[tuple[Exact, Exact | None]], steps: Sequence[Sequence[int]], *, dtype: str, sum_format: str,
    step_formats: Mapping[int, str], out_format: str, fma: bool, from_zero: bool, flush: bool = False,
) -> int:  # fmt: skip
    """Return the code of a sum of elements, or of products of pairs, that are added in the order of the steps.

    Parameters
    ----------
    terms : sequence of (Exact, Exact or None)
        Elements, each paired with None, or pairs of factors.
    steps, dtype, sum_format, step_formats, out_format, fma, from_zero, flush
        As the fields of `lowprec.order.order.Order`.
    """
    n = len(terms)
    out = _FORMATS[out_format]
    pairs = [(exact(a), _ONE if b is None else exact(b)) for a, b in terms]
    if flush:
        pairs = [(_flushed(a), _flushed(b)) for a, b in pairs]
    products = any(b is not None for _, b in terms)
    if sum_format == "exact":
        return encode(ieee_sum(pairs, exact(0.0) if from_zero else _NO_ADDEND), out, "nonsaturate")

    def new(k: int, fmt: str, starts: bool = True) -> Exact:
        term = _round(ieee_sum([pairs[k]], _NO_ADDEND), flush, _widest(dtype, fmt), fmt)
        return ieee_sum([(term, _ONE)], exact(0.0)) if from_zero and starts else term

    values: list[tuple[Exact, str]] = []
    for i, step in enumerate(steps):
        fmt = step_formats.get(i, sum_format)
        if len(step) == 1:
            values.append((new(step[0], fmt), fmt))
            continue
        elements, sums = [t for t in step if t < n], [values[t - n] for t in step if t >= n]
        if len(elements) == 1 and products and fma:
            wide = _widest(fmt, sums[0][1], dtype, "float32")
            values.append((_round(ieee_sum([pairs[elements[0]]], sums[0][0]), flush, wide, fmt), fmt))
            continue
        sums += [(new(k, sum_format, len(elements) == 2), sum_format) for k in elements]
        wide = _widest(fmt, *(f for _, f in sums))
        values.append((_round(ieee_sum([(value, _ONE) for value, _ in sums], _NO_ADDEND), flush, wide, fmt), fmt))
    return encode(values[-1][0] if values else new(0, sum_format), out, "nonsaturate")


def _widest(*formats: str) -> str:
    for wide in ("float64", "float32"):
        if wide in formats:
            return wide
    return formats[0] if len(set(formats)) == 1 else "float32"


def _round(value: Exact, flush: bool, *formats: str) -> Exact:
    if flush:
        return _flushed(value)
    for fmt in formats:
        rounding: Fields = _FORMATS[fmt]
        value = decode(encode(value, rounding, "nonsaturate"), rounding)
    return value
