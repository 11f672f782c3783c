"""Codes and scales that were found, and those predicted by a quantizer with a changed step."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..._arrays import repeat_tiles
from ..._values import BitwiseEq
from ...cast.casts import decode, encode, round_to
from ...format.catalogue import Format
from ...format.policy import policies
from ...scaling.constants import rule_of, tensor_scale
from ...scaling.hadamard import transform
from ...scaling.quantize import quantize
from ...scaling.quantizer import Quantizer
from ...scaling.rules import FLOAT32, are_powers

F32 = NDArray[np.float32]
Codes = NDArray[Any]
Mask = NDArray[np.bool_]
_LARGEST = np.finfo(np.float32).max


@dataclass(frozen=True, eq=False)
class Observed(BitwiseEq):
    """Codes and scales, as they are stored.

    Attributes
    ----------
    codes : ndarray of unsigned integers, shape (R, C)
        Bit patterns of the elements.
    scale : ndarray of float32
        Scales of blocks, as numbers, in any shape.
    tensor : float32, optional
        The scale of the whole tensor.
    """

    codes: Codes
    scale: F32
    tensor: np.float32 | None = None


def _inverse(a: Any) -> Any:
    return np.minimum(np.float32(1) / a, _LARGEST)


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
    """Return the formula, one of `QUOTIENTS`, by which a quantizer divides values by scales.

    Examples
    --------
    >>> from lowprec import quantizers
    >>> [quotient_of(quantizers[name]) for name in ("dsv3_inference", "deepgemm", "nvfp4_te")]
    ['x / s', 'x * (1 / s)', 'x * (1 / (s * g))']
    """
    rule = rule_of(q)
    if q.scale_format == FLOAT32:
        if "max/amax" in (rule.scale_calculation, rule.scale_application):
            return "x * (max / amax)"
        return "x / s" if rule.scale_application == "divide" else "x * (1 / s)"
    if are_powers(q.scale_format):
        return "x * (1 / s)"
    alone = "x / s" if rule.scale_application == "divide" else "x * (1 / s)"
    special = {"two_quotients": "x * (1 / g / s)", "one_quotient": "x / (s * g)", "block_scale_only": alone}
    return special.get(rule.scale_calculation, "x * (1 / (s * g))")


@dataclass(frozen=True, eq=False)
class Expected(Observed):
    """Codes and scales that a quantizer gives for values, and the numbers that it casts.

    Attributes
    ----------
    x : ndarray of float32, shape (R, C)
        Values that were quantized.
    q : Quantizer
        Quantizer.
    own : ndarray of float32
        Scales that the quantizer gives for `x`. If `scale` differs, codes are cast with `scale`.
    part : callable, optional
        Function of values and blocks that returns the values from which amax is computed; default: all.
    after : tuple of callable
        Changes of amax, applied in order before scales are computed.
    whole : bool
        Whether `part` and `after` also change the amax of the tensor.
    tensor_amax : float32, optional
        Amax of the tensor, if not that of `x`.
    top : Format, optional
        Format for which scales are computed, if not that of the codes.
    directed : callable, optional
        Function of an `Expected` that returns scales rounded in another direction.
    how : str
        Division, one of `QUOTIENTS`; empty: the quantizer's.
    through : str
        16-bit format to which values are rounded between the division and the cast; empty: no rounding.
    plain : Expected, optional
        Result of the unchanged quantizer; None if this is that result.
    """

    x: F32 = None  # type: ignore[assignment]  # dataclasses wants a default after one
    q: Quantizer = None  # type: ignore[assignment]
    own: F32 = None  # type: ignore[assignment]
    part: Callable[[F32, tuple[int, int]], F32] | None = None
    after: tuple[Callable[[F32], F32], ...] = ()
    whole: bool = False
    tensor_amax: np.float32 | None = None
    top: Format | None = None
    directed: Callable[[Expected], F32] | None = None
    how: str = ""
    through: str = ""
    plain: Expected | None = None

    @classmethod
    def of(cls, x: F32, q: Quantizer, **options: Any) -> Expected:
        """Return a quantizer's result for a matrix."""
        made = quantize(x, q, **options)
        assert not isinstance(made.tensor_scale, np.ndarray), "quantizers with scales of rows are refused before"
        return cls(made.codes, made.scale, made.tensor_scale, x, q, made.scale)

    def changed(self, **steps: Any) -> Expected:
        """Return the result with more steps of the quantizer changed.

        Raises
        ------
        ValueError
            If no quantizer can have the changed fields.
        """
        new = replace(self, **steps)
        plain = self.plain or self
        if new.x is not self.x or new.q is not self.q:
            plain = Expected.of(new.x, new.q)
        of_scales = new.part or new.after or new.top or new.directed
        if new.tensor_amax is not None and not of_scales:
            exact = Expected.of(new.x, new.q, tensor_amax=float(new.tensor_amax))
            plain = replace(exact, tensor_amax=new.tensor_amax, plain=plain)
        if not (of_scales or new.how or new.through):
            return plain
        new = replace(new, codes=plain.codes, scale=plain.scale, tensor=plain.tensor, own=plain.own,
                      plain=plain.plain or plain)  # fmt: skip
        if of_scales:
            scale, tensor = new._scales()
            new = replace(new, scale=scale, tensor=tensor, own=scale)
            if new.directed is not None:
                scale = new.directed(new)
                new = replace(new, scale=scale, own=scale)
        return replace(new, codes=new.cast(new.before()))

    def _scales(self) -> tuple[F32, np.float32 | None]:
        """Return the scales of the blocks and of the tensor, computed from `floored`."""
        q = self.q if self.top is None else self.q.with_(format=self.top, four_over_six=None)
        if not q.has_tensor_scale:
            return scales_of(q, self.floored), None
        top = self.tensor_amax
        if top is None:
            amax = self.floored if self.whole else self.amax
            top = np.float32(np.max(amax, initial=0, where=np.isfinite(amax)))
        return scales_of(q, self.floored, float(top)), tensor_scale(q, q.format, top).scale

    @property
    def format(self) -> Format:
        """Format of the codes."""
        return self.q.format

    @property
    def block(self) -> tuple[int, int]:
        """Rows and columns that share a scale."""
        return self.q.granularity.block((self.x.shape[0], self.x.shape[1]))

    @functools.cached_property
    def rotated(self) -> F32:
        """Values after the quantizer's Hadamard transform."""
        if self.plain is not None:
            return self.plain.rotated
        rows, columns = self.block
        return transform(self.x, self.q, axis=0 if columns == 1 and rows > 1 else 1)

    @functools.cached_property
    def amax(self) -> F32:
        """Largest magnitude of every block; NaN if the block contains NaN."""
        return amax_of(self.rotated, self.block) if self.plain is None else self.plain.amax

    @functools.cached_property
    def floored(self) -> F32:
        """Amax of every block, at least the quantizer's lower bound: the input of the scale formula."""
        amax = self.amax if self.part is None else amax_of(self.part(self.rotated, self.block), self.block)
        amax = np.maximum(amax, np.float32(rule_of(self.q).amax_floor))
        for change in self.after:
            amax = change(amax)
        return amax

    def each(self, scale: NDArray[Any]) -> NDArray[Any]:
        """Return the value of each element's block."""
        rows, columns = self.block
        return repeat_tiles(repeat_tiles(scale, rows, self.x.shape[0], 0), columns, self.x.shape[1])

    def before(self, scale: F32 | None = None, tensor: np.float32 | None = None) -> F32:
        """Return the numbers that are cast: values divided by the given scales, by default the quantizer's."""
        scale = self.scale if scale is None else scale
        tensor = self.tensor if tensor is None else tensor
        each, g = self.each(scale), np.float32(1 if tensor is None else tensor)
        amax, top = self.each(self.floored), np.float32((self.top or self.format).max)
        how = self.how or quotient_of(self.q)
        with np.errstate(all="ignore"):
            v = QUOTIENTS[how](self.rotated, each, amax, top, g)
            if how == "x * (max / amax)":  # another scale does not determine its multiplier
                v = np.where(each == self.each(self.own), v, QUOTIENTS["x * (1 / s)"](self.rotated, each, 0, top, g))
            result: F32 = np.where(amax == 0, self.rotated, v)  # a block of zeros keeps its signs
        return in_16_bits(result)[self.through] if self.through else result

    @functools.cached_property
    def v(self) -> F32:
        """Numbers that were cast."""
        return self.before()

    def cast(self, v: F32, rounding: str | None = None, policy: str | None = None) -> Codes:
        """Return the codes of values, with the quantizer's rounding and policy by default.

        Blocks with NaN or Inf keep the quantizer's codes, which follow its rule for such blocks.
        """
        own = replace(policies["ocp_sat"], negative_zero=self.q.negative_zero)
        codes = encode(
            v, self.format, rounding=self.q.rounding if rounding is None else rounding, policy=policy or own
        )  # fmt: skip
        return np.where(self.each(np.isfinite(self.amax)), codes, self.codes)

    def with_scale(self, scale: F32, tensor: np.float32 | None = None) -> Expected:
        """Return the result for the same values with other scales of blocks and of the tensor."""
        tensor = self.tensor if tensor is None else tensor
        codes = self.cast(self.before(scale, tensor))
        if tensor == self.tensor:  # codes of blocks with unchanged scales are unchanged
            codes = np.where(self.each(scale) == self.each(self.scale), self.codes, codes)
        return replace(self, codes=codes, scale=scale, tensor=tensor, plain=self.plain or self)


def in_16_bits(x: F32) -> dict[str, F32]:
    """Return float32 values rounded to bfloat16 and to float16, by the format's name."""
    return {"bfloat16": round_to(x, "bfloat16"), "float16": x.astype(np.float16).astype(np.float32)}


def amax_of(x: F32, block: tuple[int, int]) -> F32:
    """Return the largest magnitude of every block."""
    if not x.size:
        return np.zeros((-(-x.shape[0] // block[0]), -(-x.shape[1] // block[1])), np.float32)
    by_row = np.maximum.reduceat(np.abs(x), np.arange(0, x.shape[0], block[0]), 0)
    amax: F32 = np.maximum.reduceat(by_row, np.arange(0, x.shape[1], block[1]), 1)
    return amax


def scales_of(q: Quantizer, amax: F32, tensor_amax: float | None = None) -> F32:
    """Return the scales of a quantizer for blocks with the given amax.

    It quantizes a matrix with one element per block, and so uses the quantizer's own arithmetic.
    """
    alone = q.with_(granularity="1x1", hadamard_size=None, four_over_six=None)
    top = tensor_amax if q.has_tensor_scale else None
    return quantize(np.ascontiguousarray(amax), alone, tensor_amax=top).scale


def values_of(codes: Codes, fmt: Format) -> F32:
    """Return the values of codes; NaN for codes beyond the format's bits."""
    inside = codes < (1 << fmt.bits)
    return np.where(inside, decode(np.where(inside, codes, 0).astype(fmt.code_dtype), fmt), np.float32(np.nan))
