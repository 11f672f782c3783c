"""`identify_attention`: the attention kernels that reproduce recorded outputs from queries, keys and values."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..._arrays import to_numpy
from ..._checks import check_choice, check_int, check_positive, check_real
from ..._fpenv import with_default_fpenv
from ...attn.attention import attention, find_window, sink_logits, softmax_attention
from ...attn.catalogue import attentions
from ...attn.kernel import AttentionKernel
from ...attn.scales import HeadScales, OperandScales, ThreadScales
from ...cast.arrays import format_from_dtype
from ...cast.casts import decode, round_to
from ...format.catalogue import Format, formats
from ..deadline import SECONDS, Deadline
from .attention_result import AttentionFit, AttentionIdentification, Options

Array = NDArray[Any]
Layout = Literal["bhmd", "bmhd"]
_LAYOUTS: tuple[Layout, ...] = ("bhmd", "bmhd")
_DERIVED = 3  # number of kernels with changes of fields, if no entry reproduces the outputs
_REFERENCE_ROWS = 64  # number of rows from which the mask is inferred
_LEAST_ERROR = 0.5  # relative error above which outputs are not the attention of these operands
_CODES = {1: "e4m3fn", 2: "bfloat16"}  # formats of unsigned integers by their bytes
_LSE_ERROR = 2.0**-20  # error of log-sum-exps if the bits of 2**x are not public, relative to 1 or to their magnitude
#: Values of fields that are tried in addition to those of the catalogue's other kernels.
_VALUES: dict[str, Sequence[Any]] = {
    "p_offset": (0, 4, 8), "rescale_threshold": (0.0, 2.0, 4.0, 8.0),
    "promote_every": (None, 1, 2, 4, 8, 16, 32, 64), "p_format": tuple(map(formats.get, ("e4m3fn", "e5m2"))),
    "key_tiles": (16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 256, 512),
}  # fmt: skip
#: Fields that are not changed.
_FIXED = {"name", "operands", "output_format", "source", "decided", "gradient_tiles", "sink", "softcap", "combine",
          "schedule", "scales", "v_format"}  # fmt: skip


@with_default_fpenv
def identify_attention(
    q: ArrayLike, k: ArrayLike, v: ArrayLike, o: ArrayLike, lse: ArrayLike | None = None, *,
    causal: bool | None = None, window: tuple[int, int] | None = None, scale: float | None = None,
    descale: tuple[ArrayLike, ArrayLike, ArrayLike] | None = None, softcap: float | None = None,
    sinks: ArrayLike | None = None, splits: int = 1, page_size: int | None = None, layout: Layout | None = None,
    out_format: str | Format | None = None, seconds: float = SECONDS,
) -> AttentionIdentification:  # fmt: skip
    """Find the attention kernel that reproduces recorded outputs.

    The catalogue is compared first. If no entry gives every bit, single fields of the nearest ones are changed.
    If the bits of a kernel's 2**x are not public, the kernel also counts as explaining outputs that differ from its
    own, as long as some function within the documented error may give them (`undecided` of `lowprec.attention`).

    Parameters
    ----------
    q, k, v : array_like, shapes (B, H, M, D), (B, Hk, N, D) and (B, Hk, N, Dv)
        Operands of the kernel, after any quantization; leading axes may be omitted.
        Unsigned integers are codes: of bfloat16 if they have 16 bits, of e4m3fn if they have 8.
    o : array_like, shape (B, H, M, Dv)
        Outputs: numbers of float32, float16 or bfloat16, or codes of bfloat16.
    lse : array_like of float32, shape (B, H, M), optional
        Log-sum-exps.
    causal : bool, optional
        Whether the mask is causal; default: inferred from the outputs.
    window, scale, descale, softcap, sinks, splits, page_size
        As in `lowprec.attention`.
    layout : {"bhmd", "bmhd"}, optional
        Order of the axes of q, k, v and o: heads before tokens, or after them, as in FlashAttention; default: inferred
        from the outputs.
    out_format : str or Format, optional
        Format of the outputs; default: the narrowest of bfloat16, float16 and float32 that represents all of them.
    seconds : float
        Time after which no further kernel is compared; `AttentionIdentification.untried` then lists the rest.

    Returns
    -------
    AttentionIdentification
        Ranking of the kernels; `explaining` lists those that explain every output.

    Raises
    ------
    ValueError
        If shapes do not match, the outputs are not the attention of these operands, or no kernel takes the operands.

    Examples
    --------
    >>> import numpy as np, lowprec as lp
    >>> rng = np.random.default_rng(0)
    >>> q, k, v = (lp.round_to(rng.standard_normal((n, 64)), "e4m3fn") for n in (8, 300, 300))
    >>> found = lp.attention(q, k, v, kernel="vllm_fa3_fp8", causal=True)
    >>> lp.identify_attention(q, k, v, found.out, found.lse).explaining[0].kernel.name
    'vllm_fa3_fp8'
    """
    deadline = Deadline(check_positive("identify_attention", "seconds", seconds, zero=True))
    if scale is not None:
        scale = check_real("identify_attention", "scale", scale)
    if softcap is not None:
        softcap = check_positive("identify_attention", "softcap", softcap)
    find_window(False, window)
    splits = check_int("identify_attention", "splits", splits, 1)
    given = {"window": window, "scale": scale, "descale": descale, "softcap": softcap, "sinks": sinks,
             "splits": splits if splits != 1 else None, "page_size": page_size}  # fmt: skip
    options = {name: value for name, value in given.items() if value is not None}
    dump, assumed = _read({"q": q, "k": k, "v": v, "o": o}, lse, causal, layout, options)
    target = _format_of(o, dump.out) if out_format is None else formats.get(out_format)
    assumed = (*assumed, *((f"outputs are {target}",) if out_format is None else ()))
    search = _Search(dump.first_group(), target, deadline)
    ranking = search.compared(attentions[name] for name in attentions)
    if not ranking and search.skipped:
        raise ValueError(
            f"identify_attention: q, k and v must be operands of a kernel, got none that takes them "
            f"({search.skipped[0]})"
        )
    if ranking and any((ranking[0].differing, ranking[0].lse_differing, ranking[0].wrong)):
        derived = itertools.chain(*(_derived(fit.kernel) for fit in ranking[:_DERIVED]))
        ranking += search.compared(derived, ranking[0].differing)
    whole = _Search(dump, target, deadline)
    if dump.out.size > search.dump.out.size:
        explain = [fit.kernel for fit in ranking if not fit.wrong]
        others = [replace(fit, explains_first=fit.wrong > 0) for fit in whole.compared(explain)]
        ranking = others + [fit for fit in ranking if fit.wrong]
    ranking.sort(key=_order)
    untried = [*search.untried, *(f"other heads of {name}" for name in whole.untried)]
    options = {**dump.options, "out_format": target.name}
    return AttentionIdentification(
        options, tuple(ranking), assumed, tuple(search.skipped), tuple(untried), seconds
    )  # fmt: skip


def _order(fit: AttentionFit) -> tuple[bool, bool, float, float, float]:
    """Return the key of the ranking: kernels that explain more first, then those with more equal bits.

    These are fractions, since kernels that explain the first key head are compared with all heads.
    """
    differing, lse_differing = fit.differing / fit.outputs, fit.lse_differing / max(fit.lses, 1)
    return fit.wrong > 0, not fit.explains_first, fit.wrong / (fit.outputs + fit.lses), differing, lse_differing


@dataclass(frozen=True, eq=False)
class _Dump:
    """Operands, outputs and log-sum-exps of four and three axes, heads before tokens, in float32."""

    q: Array
    k: Array
    v: Array
    out: Array
    lse: Array | None
    options: Options

    def first_group(self) -> _Dump:
        """Return the query heads of the first key head of the first sequence."""
        group, options = self.q.shape[1] // self.k.shape[1], dict(self.options)
        if options.get("descale") is not None:
            given, shape = map(np.asarray, options["descale"]), self.k.shape[:2]
            options["descale"] = tuple(
                x[:1, :heads] if x.ndim > 2 else np.broadcast_to(x, shape)[:1, :1]
                for x, heads in zip(given, (group, 1, 1), strict=True)
            )
        if options.get("sinks") is not None:
            options["sinks"] = np.asarray(options["sinks"])[:group]
        q, out, lse = (None if x is None else x[:1, :group] for x in (self.q, self.out, self.lse))
        return _Dump(q, self.k[:1, :1], self.v[:1, :1], out, lse, options)  # type: ignore[arg-type]


def _read(
    arrays: dict[str, Any], lse: Any, causal: bool | None, layout: Layout | None, options: Options
) -> tuple[_Dump, tuple[str, ...]]:
    """Return the dump in the layout and with the mask whose float64 attention is nearest to the outputs."""
    values = [_values(name, x) for name, x in arrays.items()]
    if len({x.ndim for x in values}) > 1 or not 2 <= values[0].ndim <= 4:
        shapes = ", ".join(str(x.shape) for x in values)
        raise ValueError(f"identify_attention: q, k, v and o must have the same 2 to 4 axes, got {shapes}")
    given: Any = options.get("descale", (1, 1, 1))
    count = sum(1 for _ in given) if np.iterable(given) else 1
    if count != 3:
        raise ValueError(
            "identify_attention: descale must be three scales, since kernels with scales of blocks are not identified, "
            f"got {count}"
        )
    of_threads = any(np.ndim(x) > 2 for x in given)
    rule: OperandScales = ThreadScales() if of_threads else HeadScales()
    layouts = _LAYOUTS if values[0].ndim == 4 else _LAYOUTS[:1]
    if layout is not None:
        layouts = (check_choice("identify_attention", "layout", layout, _LAYOUTS),)
    masks = (False, True) if causal is None else (bool(causal),)
    found: list[tuple[float, Layout, bool, tuple[Array, ...]]] = []
    refused: ValueError | None = None
    for name in layouts:
        q, k, v, out = (x.swapaxes(1, 2) if name == "bmhd" else x for x in values)
        q, k, v, out = (x.reshape((1,) * (4 - x.ndim) + x.shape) for x in (q, k, v, out))
        if k.shape[:3] != v.shape[:3] or q.shape[3] != k.shape[3] or out.shape != (*q.shape[:3], v.shape[3]):
            continue
        if not k.shape[1] or q.shape[1] % k.shape[1] or not out.size or not k.size:
            continue
        try:
            scales = rule.read(options.get("descale"), q.shape, v.shape)
            if options.get("sinks") is not None:
                sink_logits(options["sinks"], q.shape[1])
        except ValueError as misfit:  # other axes may fit
            refused = misfit
            continue
        for mask in masks:
            found.append((_error(q, k, v, out, mask, options, scales), name, mask, (q, k, v, out)))
    if refused is not None and not found:
        raise refused
    if not found:
        shapes = ", ".join(str(x.shape) for x in values)
        raise ValueError(
            "identify_attention: q, k, v and o must be (B, H, M, D), (B, Hk, N, D), (B, Hk, N, Dv) and "
            f"(B, H, M, Dv), not empty, got {shapes}"
        )
    error, name, mask, (q, k, v, out) = min(found, key=lambda one: one[0])
    if not error < _LEAST_ERROR:
        raise ValueError(
            "identify_attention: o must be near the attention of q, k and v, got a relative error of "
            f"{error:.2g} at best; check scale, descale, window and layout"
        )
    lses = None if lse is None else np.asarray(lse, np.float32)
    if lses is not None:
        lses = lses.reshape((1,) * (3 - lses.ndim) + lses.shape)
        if lses.shape != out.shape[:3]:
            raise ValueError(f"identify_attention: lse must be of shape {out.shape[:3]}, got {np.shape(lse)}")
    assumed = [f"axes are {name}"] * (len(layouts) > 1) + [f"causal is {mask}"] * (causal is None)
    q, k, v, out = (np.ascontiguousarray(x) for x in (q, k, v, out))
    return _Dump(q, k, v, out, lses, {"causal": mask, **options}), tuple(assumed)


def _values(name: str, x: Any) -> Array:
    """Return numbers, or the values of codes, in float32."""
    implied, codes = format_from_dtype(x), np.asarray(to_numpy(x))
    if implied is None and codes.dtype.kind not in "biufV":
        raise TypeError(f"identify_attention: {name} must hold real numbers, got {codes.dtype}")
    if implied is None and codes.dtype.kind in "uV" and codes.dtype.itemsize in _CODES:
        return decode(codes.view(f"u{codes.dtype.itemsize}"), _CODES[codes.dtype.itemsize])
    with np.errstate(over="ignore"):  # beyond float32: Inf
        return (
            np.asarray(codes, np.float32) if implied is None or formats[implied].bits > 16 else round_to(codes, implied)
        )


def _error(q: Array, k: Array, v: Array, out: Array, causal: bool, options: Options, scales: Sequence[Array]) -> float:
    """Return the relative error of the last rows of three heads against float64; NaN and Inf are left out.

    It is infinite if nothing is left.
    """
    rows = slice(max(q.shape[2] - _REFERENCE_ROWS, 0), None)
    known = {name: options[name] for name in ("window", "scale", "softcap") if name in options}
    sinks = None if options.get("sinks") is None else sink_logits(options["sinks"], q.shape[1])
    group, last = q.shape[1] // k.shape[1], (q.shape[0] - 1, q.shape[1] - 1)
    errors, sizes, compared, finite = 0.0, 0.0, 0, 0
    with np.errstate(all="ignore"):
        for b, h in {(0, 0), (last[0] // 2, last[1] // 2), last}:
            g, heads = h // group, slice(h, h + 1)
            factors: Sequence[Array] = [x[b, g] for x in scales]
            if scales[0].ndim > 2:  # of queries, keys and channels
                factors = scales[0][b, h, rows, None], factors[1][:, None], factors[2]
            operands = q[b, heads, rows], k[b, g][None], v[b, g][None]
            one = [x * factor for x, factor in zip(operands, factors, strict=True)]
            exact = softmax_attention(*one, causal=causal, sinks=None if sinks is None else sinks[heads], **known)
            theirs = out[b, heads, rows]
            is_known = np.isfinite(exact) & np.isfinite(theirs)
            errors += float(np.abs(theirs - exact)[is_known].sum())
            sizes += float(np.abs(exact[is_known]).sum())
            compared, finite = compared + int(is_known.sum()), finite + int(np.isfinite(exact).sum())
    if finite and not compared:
        return math.inf
    return errors / sizes if sizes else 0.0


def _format_of(given: Any, out: Array) -> Format:
    """Return the narrowest format that represents all outputs."""
    implied = format_from_dtype(given)
    if implied is not None and formats[implied].bits <= 16:
        return formats[implied]
    for name in ("bfloat16", "float16"):
        rounded = round_to(out, name, policy="ieee")
        if ((rounded == out) | (np.isnan(rounded) & np.isnan(out))).all():
            return formats[name]
    return formats["float32"]


def _derived(kernel: AttentionKernel) -> Iterator[AttentionKernel]:
    """Yield kernels with one changed field, with values from the catalogue's other kernels and from `_VALUES`."""
    others = [attentions[name] for name in attentions]
    for name in (f for f in AttentionKernel.__dataclass_fields__ if f not in _FIXED):
        own = getattr(kernel, name)
        values = [not own] if isinstance(own, bool) else list(_VALUES.get(name, ()))
        if name == "key_tiles":
            for n in values:
                tiles = tuple(row._replace(keys=n, causal=n, window=n) for row in own)
                if not (kernel.normalizes_p or kernel.has_thread_scales or kernel.has_block_scales):
                    yield kernel.with_(name=f"{kernel.name}(key_tiles={n})", key_tiles=tiles)
            continue
        if not isinstance(own, bool):
            values += [getattr(other, name) for other in others]
        for value in dict.fromkeys(values):
            try:
                derived = kernel.with_(**{name: value})
            except (ValueError, TypeError):  # no such kernel
                continue
            # A kernel whose bits are public is not explained by bounds.
            if derived != kernel and derived.is_determined == kernel.is_determined:
                yield derived


class _Search:
    """Comparison of kernels with a dump until the time is over."""

    def __init__(self, dump: _Dump, target: Format, deadline: Deadline) -> None:
        self.dump, self.options, self.deadline = dump, {**dump.options, "out_format": target}, deadline
        self.skipped: list[str] = []
        self.untried: list[str] = []

    def compared(self, kernels: Iterable[AttentionKernel], most: float = math.inf) -> list[AttentionFit]:
        """Return the fits of kernels, best first; kernels after the deadline are added to `untried`.

        Outputs are bounded if at most `most` differ.
        """
        found = []
        for kernel in kernels:
            if self.deadline.passed:
                self.untried.append(str(kernel))
                continue
            try:
                found.append(self.compare(kernel, most))
            except (ValueError, TypeError) as error:
                self.skipped.append(f"{kernel}: {error}")
        return sorted(found, key=_order)

    def compare(self, kernel: AttentionKernel, most: float) -> AttentionFit:
        """Return the fit of a kernel, or raise an error if the kernel does not take the operands or options."""
        dump = self.dump
        found = attention(dump.q, dump.k, dump.v, kernel=kernel, **self.options)
        differs = _differ(found.out, dump.out)
        lses = np.zeros(0, bool) if dump.lse is None else _differ(found.lse, dump.lse)
        wrong, far = int(differs.sum()), int(lses.sum())
        if not kernel.is_determined and dump.lse is not None:
            with np.errstate(invalid="ignore"):
                apart = np.abs(found.lse - dump.lse) <= _LSE_ERROR * np.maximum(np.abs(dump.lse), 1)
            far = int((lses & ~apart).sum())
        if 0 < wrong <= most and not kernel.is_determined and self._can_be_open(kernel):
            bounded = attention(dump.q, dump.k, dump.v, kernel=kernel, undecided=True, **self.options)
            assert bounded.undecided is not None
            wrong = int((differs & ~bounded.undecided).sum())
        return AttentionFit(kernel, differs.size, lses.size, int(differs.sum()), int(lses.sum()), wrong + far)

    def _can_be_open(self, kernel: AttentionKernel) -> bool:
        return not kernel.normalizes_p and self.options.get("softcap") is None and self.options.get("splits", 1) == 1


def _differ(ours: Array, theirs: Array) -> Array:
    same: Array = ours.view(np.uint32) == theirs.view(np.uint32)
    return ~(same | (np.isnan(ours) & np.isnan(theirs)))
