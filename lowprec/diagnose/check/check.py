"""Compare codes and scales with those of a quantizer, or of all quantizers, and explain differences."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from ..._arrays import as_matrix
from ..._checks import check_positive
from ..._fpenv import with_default_fpenv
from ...format.catalogue import formats
from ...scaling.granularity import Granularity
from ...scaling.quantize import resolve_spec, stateless
from ...scaling.quantized import Quantized
from ...scaling.quantizer import Quantizer, quantizers
from ...scaling.rules import AmaxRule
from ..deadline import SECONDS, Deadline
from .attribution import attribute
from .expected import F32, Expected, Observed
from .inputs import ParsedInput, match_codes, match_scales, read, read_values
from .result import Check, Counts
from .search import CauseSearch, Explanation, codes_left, scales_left, tensor_left

_DAMAGED = 2  # largest number of differences that may have another cause
_SEARCHED = 0.75  # share of the time for causes of all elements; the rest is for causes of single elements
_NEAREST = 4  # number of quantizers with a search for causes, if none is named


@with_default_fpenv
@np.errstate(all="ignore")  # predictions divide by scales of zero, and round beyond formats
def check(
    q: Quantized | ArrayLike | str | os.PathLike[str],
    values: ArrayLike | str | os.PathLike[str],
    quantizer: str | Quantizer | None = None,
    *,
    scale: ArrayLike | None = None,
    tensor_scale: float | None = None,
    granularity: str | Granularity | None = None,
    seconds: float = SECONDS,
) -> Check:
    """Compare codes and scales with the results of a quantizer, and find the causes of differences.

    Parameters
    ----------
    q : Quantized, array_like of unsigned integers, or path
        Codes with their scales, codes alone, or an .npz with the arrays `codes`, `scale` and, for two levels,
        `tensor_scale`; also arrays of ml_dtypes, torch and JAX. Bytes that hold two 4-bit codes are unpacked, the low
        code first.
    values : array_like or path, shape (..., R, C)
        Values that were quantized, or the .npy file that holds them.
    quantizer : str or Quantizer, optional
        Quantizer to compare with. Default: that of a `Quantized`; for raw codes, the whole catalogue.
    scale : array_like, optional
        Scales for an array of codes: factors that multiply codes back to values.
    tensor_scale : float, optional
        Scale of the tensor for an array of codes.
    granularity : str or Granularity, optional
        Blocks, if they differ from the quantizer's.
    seconds : float
        Time after which no further quantizer is compared, and no further cause tried; `Check.complete` is then False.

    Returns
    -------
    Check
        Result, which is true if nothing differs.

    Raises
    ------
    ValueError
        If shapes do not fit, a file is not a dump, the quantizer has a state, or `seconds` is negative.
    TypeError
        If codes are not integers of 8 or 16 bits, or values are not real numbers.

    Examples
    --------
    >>> import numpy as np, lowprec as lp
    >>> x = np.random.default_rng(0).standard_normal((64, 512), dtype=np.float32)
    >>> q = lp.quantize(x, "mxfp8")
    >>> lp.check(q, x)
    nothing differs from mxfp8_rceil
    >>> lp.check(q.codes, x, "mxfp8", scale=1 / q.scale)
    1024 of 1024 scales differ from mxfp8_rceil; all fit: scales inverted
    """
    deadline = Deadline(check_positive("check", "seconds", seconds, zero=True))
    given = read(q, scale, tensor_scale)
    x = read_values(values)
    given = match_codes(given, x.shape)
    matrix = as_matrix(x)
    if quantizer is not None or given.quantizer is not None:
        one = _in_blocks(given.quantizer if quantizer is None else quantizer, granularity)
        if not isinstance(one.rule, AmaxRule):
            raise ValueError(
                f"check: quantizer must have an AmaxRule, got {one.name or 'one'} with the rule {one.rule}"
            )
        if one.has_row_scales:
            raise ValueError(
                f"check: quantizer must have one scale of the tensor or none, got {one}, which has one per row"
            )
        if (came := given.dump.codes.dtype) != (needed := one.format.code_dtype):
            raise ValueError(
                f"check: codes must be {needed} for {one.name or 'the quantizer'} ({one.format}), got {came}"
            )
        made = Expected.of(matrix, one)
        search = CauseSearch(_fitting(given.dump, made), deadline.share(_SEARCHED))
        return replace(_result(search, made, search.explanations(made), (), deadline), seconds=seconds)
    return replace(_ranked(given, matrix, granularity, deadline), seconds=seconds)


def _in_blocks(quantizer: str | Quantizer | None, granularity: str | Granularity | None) -> Quantizer:
    """Return a stateless quantizer, with the given blocks if any; its name is unchanged."""
    q = stateless("check", resolve_spec("check", quantizer))
    return q if granularity is None else replace(q, granularity=Granularity.parse(granularity))


def _fitting(dump: Observed, made: Expected) -> Observed:
    return replace(dump, scale=match_scales(dump.scale, made.scale.shape))


def _candidates(given: ParsedInput, granularity: str | Granularity | None) -> list[Quantizer]:
    """Return the quantizers to compare with: those of the codes' format, if their dtype implies one."""
    entries = [q for q in map(quantizers.get, quantizers.names()) if not q.has_row_scales]
    if given.like:
        like = given.like[0]
        own = like.granularity
        fits = [
            q for q in entries
            if q.scale_format == like.scale_format and q.granularity == own and q.format.same_codes(like.format)
        ]  # fmt: skip
        entries = fits or list(given.like)
    fits = [q for q in entries if q.amax_history_len is None and q.format.code_dtype == given.dump.codes.dtype]
    if given.format is not None:
        implied = formats[given.format]
        fits = [q for q in fits if q.format.same_codes(implied)] or fits
    return [_in_blocks(q, granularity) for q in fits]


def _ranked(given: ParsedInput, x: F32, granularity: str | Granularity | None, deadline: Deadline) -> Check:
    """Compare the dump with every quantizer, and explain the differences from the nearest few."""
    searching = deadline.share(_SEARCHED)
    tried: list[tuple[float, Counts, Expected, CauseSearch]] = []
    for q in _candidates(given, granularity):
        if tried and searching.passed:
            break
        try:
            made = Expected.of(x, q)
        except ValueError:  # a Hadamard transform that does not divide the columns
            continue
        found = _fitting(given.dump, made)
        counts = _counts(made, found)
        share = counts.codes / made.codes.size + counts.scales / max(made.scale.size, found.scale.size)
        tried.append((share + 0.01 * counts.tensor, counts, made, CauseSearch(found, searching)))
    if not tried:
        raise ValueError(f"check: codes must be a quantizer's for values {x.shape}, got {given.dump.codes.dtype}")
    tried.sort(key=lambda item: item[0])
    ranking = tuple(counts for _, counts, _, _ in tried)
    fits: list[tuple[tuple[float, float], CauseSearch, Expected, list[Explanation]]] = []
    for share, counts, made, search in tried[:_NEAREST]:
        if fits and searching.passed:
            break
        if counts.same:
            return _result(search, made, [], ranking, deadline)
        fit = search.explanations(made)
        order = (float(fit[0].left), fit[0].prior_cost) if fit[0].steps else (share * 1e12, 0.0)
        fits.append((order, search, made, fit))
    best = min(fits, key=lambda item: item[0])  # the nearest, of equally good ones the first
    tied = tuple(made.q.name for order, _, made, _ in fits if order == best[0] and made is not best[2])
    return replace(_result(*best[1:], ranking, deadline), tied=tied)


def _counts(made: Expected, found: Observed) -> Counts:
    return Counts(
        made.q.name, codes_left(found, made.codes), scales_left(found, made.scale), tensor_left(found, made.tensor),
        found.scale.shape == made.scale.shape,
    )  # fmt: skip


def _result(
    search: CauseSearch, made: Expected, fit: list[Explanation], ranking: tuple[Counts, ...], deadline: Deadline
) -> Check:
    counts, late = _counts(made, search.found), search.deadline.passed
    kept = tuple(e for e in fit if _explains(e, counts))
    codes, scales, tensor = attribute(replace(search, deadline=deadline), made, list(kept))
    complete = counts.same or not (late or deadline.passed)
    return Check(made, search.found, counts, kept, codes, scales, tensor, ranking, complete=complete)


def _explains(e: Explanation, counts: Counts) -> bool:
    """Return whether an explanation leaves few differences; otherwise it may fit by coincidence."""
    if e.codes_follow and not e.steps:
        return e.left <= counts.scales + counts.tensor
    return bool(e.steps) and e.left <= max(_DAMAGED, counts.total // 20)
