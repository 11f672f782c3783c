"""Codes and scales as they were found, and as a quantizer with one thing changed would make them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..._arrays import spread
from ..._values import ByBits
from ...cast.casts import decode, encode, round_to
from ...format.catalogue import Format, formats
from ...format.policy import policies
from ...scaling.constants import rule_of
from ...scaling.granularity import Granularity
from ...scaling.hadamard import transformed
from ...scaling.quantize import quantize
from ...scaling.quantizer import Quantizer
from ...scaling.rules import FLOAT32, are_powers

F32 = NDArray[np.float32]
Codes = NDArray[Any]
Mask = NDArray[np.bool_]
_LARGEST = np.finfo(np.float32).max


@dataclass(frozen=True, eq=False)
class Observed(ByBits):
    """What a quantizer leaves behind, or is said to.

    Attributes
    ----------
    codes : ndarray of unsigned integers, shape (R, C)
        Bit patterns of the elements.
    scale : ndarray of float32
        Values of the blocks' scales, of any shape.
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
    """Return which of `QUOTIENTS` a quantizer takes.

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
    """Codes and scales that a quantizer makes of values, with what an element was before its cast.

    Attributes
    ----------
    x : ndarray of float32, shape (R, C)
        What was quantized.
    q : Quantizer
        By what.
    own : ndarray of float32
        Scales that are the quantizer's for `x`. Where `scale` is something else, codes are cast with that.
    largest : ndarray of float32, optional
        What the scales were computed from, where that is not the blocks' largest magnitudes.
    through : str
        16-bit format that values are rounded to between the division and the cast; empty for none.
    """

    x: F32 = None  # type: ignore[assignment]  # dataclasses wants a default after one
    q: Quantizer = None  # type: ignore[assignment]
    own: F32 = None  # type: ignore[assignment]
    largest: F32 | None = None
    through: str = ""

    @classmethod
    def of(cls, x: F32, q: Quantizer, **options: Any) -> Expected:
        """Return what a quantizer makes of a matrix."""
        made = quantize(x, q, **options)
        assert not isinstance(made.tensor_scale, np.ndarray), "quantizers with scales of rows are refused before"
        return cls(made.codes, made.scale, made.tensor_scale, x, q, made.scale)

    @functools.cached_property
    def format(self) -> Format:
        """What the codes mean."""
        return formats.get(self.q.format)

    @property
    def block(self) -> tuple[int, int]:
        """Rows and columns that share a scale."""
        return Granularity.parse(self.q.granularity).block((self.x.shape[0], self.x.shape[1]))

    @functools.cached_property
    def rotated(self) -> F32:
        """Values after the quantizer's Hadamard transform."""
        rows, columns = self.block
        return transformed(self.x, self.q, axis=0 if columns == 1 and rows > 1 else 1)

    @functools.cached_property
    def amax(self) -> F32:
        """Largest magnitude of every block, NaN where there is one."""
        return amax_of(self.rotated, self.block)

    @property
    def floored(self) -> F32:
        """Magnitudes that the scales are computed from."""
        return np.maximum(self.amax, np.float32(rule_of(self.q).amax_floor)) if self.largest is None else self.largest

    def each(self, scale: NDArray[Any]) -> NDArray[Any]:
        """Return what blocks have for each of their elements."""
        rows, columns = self.block
        return spread(spread(scale, rows, self.x.shape[0], 0), columns, self.x.shape[1])

    def before(self, scale: F32 | None = None, tensor: np.float32 | None = None, how: str = "") -> F32:
        """Return what is cast: values over their scales, those given or the own ones."""
        scale = self.scale if scale is None else scale
        tensor = self.tensor if tensor is None else tensor
        each, g, top = self.each(scale), np.float32(1 if tensor is None else tensor), np.float32(self.format.max)
        amax = self.each(self.floored)
        how_own = quotient_of(self.q)
        with np.errstate(all="ignore"):
            v = QUOTIENTS[how or how_own](self.rotated, each, amax, top, g)
            if (
                not how and how_own == "x * (max / amax)" and self.largest is None
            ):  # a multiplier is not known from a scale that differs
                v = np.where(each == self.each(self.own), v, QUOTIENTS["x * (1 / s)"](self.rotated, each, 0, top, g))
            result: F32 = np.where(amax == 0, self.rotated, v)  # a block of zeros keeps its signs
        return in_16_bits(result)[self.through] if self.through else result

    @functools.cached_property
    def v(self) -> F32:
        """What was cast."""
        return self.before()

    def cast(self, v: F32, rounding: str | None = None, policy: str | None = None) -> Codes:
        """Return codes of values in the format, by default as the quantizer casts.

        Blocks with NaN or Inf keep theirs, which no cast decides.
        """
        own = replace(policies["ocp_sat"], negative_zero=self.q.negative_zero)
        codes = encode(
            v, self.format, rounding=self.q.rounding if rounding is None else rounding, policy=policy or own
        )  # fmt: skip
        return np.where(self.each(np.isfinite(self.amax)), codes, self.codes)

    def with_scale(
        self, scale: F32, tensor: np.float32 | None = None, how: str = "", largest: F32 | None = None
    ) -> Expected:
        """Return the same values cast with other scales of blocks, and of the tensor."""
        tensor = self.tensor if tensor is None else tensor
        if largest is not None:
            changed = replace(self, largest=largest)
            return replace(changed, codes=changed.cast(changed.before(scale, tensor)), scale=scale, tensor=tensor)
        codes = self.cast(self.before(scale, tensor, how))
        if tensor == self.tensor and not how:  # blocks whose scale stays keep their codes, to the last bit
            codes = np.where(self.each(scale) == self.each(self.scale), self.codes, codes)
        return replace(self, codes=codes, scale=scale, tensor=tensor)


def in_16_bits(x: F32) -> dict[str, F32]:
    """Return float32 values rounded to the two 16-bit formats, by format."""
    return {"bfloat16": round_to(x, "bfloat16"), "float16": x.astype(np.float16).astype(np.float32)}


def amax_of(x: F32, block: tuple[int, int]) -> F32:
    """Return the largest magnitude of every block."""
    if not x.size:
        return np.zeros((-(-x.shape[0] // block[0]), -(-x.shape[1] // block[1])), np.float32)
    by_row = np.maximum.reduceat(np.abs(x), np.arange(0, x.shape[0], block[0]), 0)
    amax: F32 = np.maximum.reduceat(by_row, np.arange(0, x.shape[1], block[1]), 1)
    return amax


def scales_of(q: Quantizer, amax: F32, tensor_amax: float | None = None) -> F32:
    """Return the scales that a quantizer takes for blocks of these largest magnitudes.

    A matrix with one element a block is quantized: the arithmetic is the quantizer's own.
    """
    alone = q.with_(granularity="1x1", hadamard_size=None, four_over_six=None)
    top = tensor_amax if q.has_tensor_scale else None
    return quantize(np.ascontiguousarray(amax), alone, tensor_amax=top).scale


def values_of(codes: Codes, fmt: Format) -> F32:
    """Return what codes mean; a code beyond the format's bits means nothing, NaN."""
    inside = codes < (1 << fmt.bits)
    return np.where(inside, decode(np.where(inside, codes, 0).astype(fmt.code_dtype), fmt), np.float32(np.nan))
