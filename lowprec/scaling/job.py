"""A quantizer and a matrix as arguments of the kernels: constants of scales and casts, segments, and threads."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import _threads
from .._arrays import repeat_tiles
from .._checks import check_float32, check_positive_float32
from .._fpenv import quiet_nan
from ..cast.casts import decode, encode
from ..cast.constants import (
    decode_constants,
    encode_constants,
    has_word_kernel,
    random_constants,
    round_constants,
    rounding_words,
    takes_float32,
    word_constants,
)
from ..cast.streams import random_source
from ..format.catalogue import Format
from ..format.policy import Policy
from ..format.rounding import Rounding, policies, roundings, special_codes
from ..kernels.scaling import quantize as kernels
from ..kernels.scaling.scales import DIVIDE, block_scales
from .constants import NO_TENSOR, bound_of, bounded_constants, rule_of, scale_rule, tensor_scale
from .hadamard import transform
from .quantizer import Quantizer

STREAMED = 1 << 25
"""Size in bytes from which values are written past the caches: a core's caches hold no more."""

_ONE = np.float32(1)
_NEAREST_EVEN = roundings["nearest_even"]
Kernel = Callable[..., None]
Constants = tuple[np.uint32, ...]


class _Cast(NamedTuple):
    """Constants of the cast for values that are not NaN and of the general cast, and whether these casts are exact."""

    bounded: Constants | None
    encode: Constants | None
    round: Constants | None


_ELEMENTS = replace(policies["ocp_sat"], nan="positive")
"""How elements are cast. The sign of a NaN that an operation returns is the code generator's choice: it is dropped."""


@functools.lru_cache(256)
def _cast_constants(f: Format) -> _Cast:
    if f.is_table:
        return _Cast(None, None, None)
    special = _ELEMENTS.codes(f)
    m, encode = f.mantissa_bits, encode_constants(f, special)
    far = max(f.emax, f.emin) + 23 - m > 127
    bounded = bounded_constants(f) if encode and f.params.negative_zero and not far else None
    return _Cast(bounded, encode, round_constants(f, special))


def check_element_format(f: Format) -> None:
    """Raise a ValueError unless blocks can have elements of a format."""
    if f.bits > 16 or not (f.is_table or has_word_kernel(f) or not f.subnormals) or not f.signed:
        raise ValueError(f"quantize: element format must be signed and of at most 16 bits, got {f}")


def check_two_levels(q: Quantizer) -> None:
    """Raise a ValueError unless a scale on top of the block scales can be computed in float32."""
    f = q.format
    if bound_of(q) * f.max >= 2.0**128:
        raise ValueError(
            f"quantize: element format must be one such as e2m1fn with two levels of scales, got {f}, whose {f.max:g} "
            f"times the bound {bound_of(q):g} overflows float32"
        )


def given_amax(tensor_amax: float | None) -> np.float32 | None:
    """Return the amax for the scale on top of the block scales, or None if none is given.

    Raises
    ------
    ValueError
        If the amax is not a number, or is negative.
    """
    amax = None if tensor_amax is None else check_float32("quantize", "tensor_amax", tensor_amax)
    if amax is not None and not amax >= 0:
        raise ValueError(f"quantize: tensor_amax must be a number >= 0 or Inf, got {tensor_amax!r}")
    return amax


class _Element(NamedTuple):
    """Policy and constants of a quantizer's elements, and whether values are rounded word by word."""

    policy: Policy
    words: Any
    random: Any
    cast: _Cast
    by_words: bool


@functools.lru_cache(256)
def _element(q: Quantizer, mode: Rounding) -> _Element:
    """Return a quantizer's policy and constants for elements, which do not depend on the matrix.

    Raises
    ------
    ValueError
        If the format cannot be an element format.
    """
    f = q.format
    check_element_format(f)
    policy, cast = replace(_ELEMENTS, negative_zero=q.negative_zero), _cast_constants(f)
    if f.is_table:
        return _Element(policy, None, None, cast, True)
    special = special_codes(f, mode, policy)
    by_words = not mode.is_nearest_even or q.negative_zero != "keep" or cast.encode is None
    return _Element(policy, word_constants(f, special, mode), random_constants(f, special, mode), cast, by_words)


class BlockJob:
    """One matrix and one quantizer, as arguments of the kernels.

    Parameters
    ----------
    q : Quantizer
        Quantizer.
    x : ndarray of float32, shape (R, C)
        Contiguous matrix.
    tensor_amax, inverse_scale : float, optional
        See `lowprec.quantize`.
    rounding : str or Rounding, optional
        Rounding of elements, by default the quantizer's.
    seed, offset : int
        Seed and offset of stochastic rounding, see `lowprec.quantize`.

    Raises
    ------
    ValueError
        If the format cannot be an element format, or options contradict each other.
    """

    def __init__(
        self,
        q: Quantizer,
        x: NDArray[np.float32],
        *,
        tensor_amax: float | None = None,
        inverse_scale: float | None = None,
        rounding: str | Rounding | None = None,
        seed: int | None = None,
        offset: int = 0,
    ) -> None:
        self.q, self.granularity = q, q.granularity
        self.mode = roundings.get(q.rounding if rounding is None else rounding)
        made = (
            q if isinstance(q.hadamard_signs, str) else replace(q, hadamard_signs="none")
        )  # constants are the same for all signs
        self.policy, self.words, self.random, self.cast, self.by_words = _element(made, self.mode)
        self.format = f = q.format
        shape = (x.shape[0], x.shape[1])
        self.rows, self.width = self.granularity.block(shape)
        self.scale_shape = self.granularity.scale_shape(shape)
        along_rows = self.width == 1 and self.rows > 1
        self.x = x = transform(x, q, axis=0 if along_rows else 1)
        low, high, self.offset, *_ = random_source("quantize", self.mode, seed, offset)
        self.seed = low, high
        self.random_words = seed, offset
        self.choice = rule_of(q).four_over_six
        if self.choice is not None and not self.mode.is_nearest_even:
            raise ValueError(
                f"quantize: rounding must be 'nearest_even' with four_over_six={self.choice!r}, got {self.mode.name!r}"
            )
        if self.choice is not None and self.cast.bounded is None:
            raise ValueError(
                f"quantize: element format must be floating-point with a negative zero and values far within "
                f"float32's, such as e2m1fn or e4m3fn, with four_over_six={self.choice!r}, got {f}"
            )
        self.tensor_scale: np.float32 | None = None
        amax = given_amax(tensor_amax)
        factor = None if inverse_scale is None else check_positive_float32("quantize", "inverse_scale", inverse_scale)
        self.tensor_amax, tensor = np.float32(0), NO_TENSOR
        if q.has_tensor_scale:
            check_two_levels(q)
            self.tensor_amax = largest_magnitude(x) if amax is None else amax
            tensor = tensor_scale(q, f, self.tensor_amax)
            self.tensor_scale = tensor.scale
        self.rule = scale_rule(made, f, tensor, factor)
        #: Job that computes the scales, if the codes are computed from other multipliers.
        self.quotients: BlockJob | None = None
        if rule_of(q).scale_application == "max/amax" and factor is None:
            plain = replace(rule_of(q), scale_application="divide")
            self.quotients = BlockJob(replace(q, rule=plain, rounding=_NEAREST_EVEN, hadamard_size=None), self.x)

    def codes(self, codes: NDArray[Any], scales: NDArray[np.float32]) -> None:
        """Write codes and scales of the matrix."""
        self._codes(codes, scales)
        if self.quotients is not None:
            self.quotients._codes(np.empty_like(codes), scales)

    def _codes(self, codes: NDArray[Any], scales: NDArray[np.float32]) -> None:
        if self.choice is not None:
            return self._choose(codes, scales)
        if self.format.is_table or not takes_float32(self.format, self.mode):
            return self._codes_by_cast(codes, scales)
        if self.by_words:
            return self._codes_by_words(codes, scales)
        self._run(lambda x, codes, scales, _, a, b: self.strips(x, codes, scales, a, b), codes, scales)

    def strips(self, x: Any, codes: Any, scales: Any, start: int, stop: int) -> None:
        """Write codes and scales of some strips of blocks of `x`, by the kernels of rounding to nearest even."""
        kernel: Kernel = kernels.quantize_strips[self._index] if self.cast.bounded else kernels.quantize_strips_any
        cast = (self.cast.bounded or self.cast.encode, self.cast.encode)
        kernel(x, self._blocks(1 << 14), self.rule, cast, codes, scales, start, stop)

    def values(self, values: NDArray[np.float32]) -> None:
        """Write the values that codes and scales would decode to."""
        tensor = _ONE if self.tensor_scale is None else self.tensor_scale
        if self.choice is not None or self.by_words or self.quotients is not None:
            codes = np.empty(values.shape, self.format.code_dtype)
            scales = np.empty(self.scale_shape, np.float32)
            self.codes(codes, scales)
            dequantize(codes, scales, (self.rows, self.width), self.format, tensor, values)
            return
        kernel: Kernel = kernels.round_strips[self._index] if self.cast.bounded else kernels.round_strips_any
        cast = (self.cast.bounded or self.cast.round, self.cast.round)
        streamed = values.nbytes >= STREAMED

        def work(x: Any, values: Any, _: Any, __: int, a: int, b: int) -> None:
            kernel(x, self._blocks(1 << 14), self.rule, cast, tensor, streamed, values, a, b)

        self._run(work, values, None)
        if not np.isfinite(tensor):  # zero times Inf, in blocks that are themselves finite
            quiet_nan(values)

    def _codes_by_cast(self, codes: NDArray[Any], scales: NDArray[np.float32]) -> None:
        """Scale and then cast all values at once, for quantizers without a block kernel, such as to a `TableFormat`."""
        rows, width = self.rows, self.width
        top = np.maximum.reduceat(np.abs(self.x).view(np.uint32), np.arange(0, self.x.shape[0], rows), 0)
        amax = np.ascontiguousarray(np.maximum.reduceat(top, np.arange(0, self.x.shape[1], width), 1))
        factor = np.empty(amax.shape, np.float32)
        block_scales(amax.reshape(-1), self.rule, scales.reshape(-1), factor.reshape(-1))
        each = repeat_tiles(repeat_tiles(factor, rows, self.x.shape[0], 0), width, self.x.shape[1])
        with np.errstate(all="ignore"):
            values = self.x / each if self.rule[1] == DIVIDE else self.x * each
        seed, offset = self.random_words
        encode(values, self.format, rounding=self.mode, policy=self.policy, seed=seed, offset=offset, out=codes)

    def _codes_by_words(self, codes: NDArray[Any], scales: NDArray[np.float32]) -> None:
        from ..kernels.scaling import quantize_words

        words = rounding_words(self.mode)
        strips = quantize_words.quantize_strips if self.random is None else quantize_words.quantize_strips_random
        kernel: Kernel = strips[self._index]
        constants = self.words if self.random is None else self.random

        def work(x: Any, codes: Any, scales: Any, first: int, a: int, b: int) -> None:
            cast = constants, words, self.seed, self.offset + first
            kernel(x, self._blocks(1 << 11), self.rule, cast, codes, scales, a, b)

        self._run(work, codes, scales)

    def _choose(self, codes: NDArray[Any], scales: NDArray[np.float32]) -> None:
        from ..kernels.scaling import four_over_six

        _, _, rule_numbers, words, special, _ = self.rule
        largest, tensor, inverse = rule_numbers[0], rule_numbers[4], rule_numbers[5]
        numbers = (largest, tensor, inverse, self.tensor_amax, np.float32(largest * np.float32(bound_of(self.q))))
        casts = (self.cast.bounded, self.cast.encode, words[5])
        rule = numbers, special, self.choice == "mse"
        strips_16, strips = four_over_six.quantize_strips_16, four_over_six.quantize_strips
        kernel: Kernel = strips_16 if self.width == 16 else strips

        def work(x: Any, codes: Any, scales: Any, _: int, a: int, b: int) -> None:
            kernel(x, self._blocks(1 << 10), rule, casts, codes, scales, a, b)

        self._run(work, codes, scales)

    @property
    def _index(self) -> int:
        index: int = kernels.WIDTHS.index(self.width) if self.width in kernels.WIDTHS else 0
        return index

    def _blocks(self, wanted: int) -> kernels.Blocks:
        """Return the division of `x` into blocks and segments of about `wanted` columns, or strips of at most 4 MiB.

        A segment has 8 KiB of a row if values are written. If codes are written, it has 64 KiB, so that the next
        segment is fetched while one is cast.
        """
        if self.rows > 1:
            wanted = max(256, (1 << 20) // self.rows)
        columns = int(self.x.shape[1])
        segment = self.width * max(1, min(wanted // self.width, -(-columns // self.width)))
        return kernels.Blocks(self.rows, self.width, segment)

    def _run(self, work: Any, into: NDArray[Any], scales: NDArray[np.float32] | None) -> None:
        """Call ``work(x, into, scales, index of x's first element, first strip, stop)`` for all pieces."""
        x, width = self.x, self.width
        if self.rows == 1 and x.shape[1] % width == 0:  # blocks are contiguous: the matrix is one long row
            flat, into_flat = x.reshape(-1), into.reshape(-1)
            scale_flat = None if scales is None else scales.reshape(-1)

            def piece(a: int, b: int) -> None:
                part = slice(a * width, b * width)
                own = None if scale_flat is None else scale_flat[a:b].reshape(1, -1)
                work(flat[part].reshape(1, -1), into_flat[part].reshape(1, -1), own, a * width, 0, 1)

            self.x = x.reshape(1, -1)
            _threads.run_chunks(piece, flat.size // width, max(1, (1 << 16) // width))
            return
        strips = self.scale_shape[0]
        grain = max(1, (1 << 16) // (self.rows * x.shape[1]))
        _threads.run_chunks(lambda a, b: work(x, into, scales, 0, a, b), strips, grain)


def largest_magnitude(x: NDArray[np.float32]) -> np.float32:
    """Return the largest magnitude in a contiguous array, ignoring NaN."""
    flat, tops = x.reshape(-1), [np.uint32(0)]
    _threads.run_chunks(lambda a, b: tops.append(np.uint32(kernels.largest_finite(flat[a:b]))), flat.size, 1 << 17)
    return np.float32(max(tops).view(np.float32))


def dequantize(
    codes: NDArray[Any],
    scales: NDArray[np.float32],
    block: tuple[int, int],
    fmt: Format,
    tensor: np.float32 | NDArray[np.float32],
    out: NDArray[np.float32],
) -> None:
    """Write ``float32(scale * decode(code)) * tensor`` for a matrix of codes that is not empty; NaN is 0x7FC00000.

    The kernels take one tensor scale; row or column scales, [R, 1] or [1, C], are multiplied in a separate pass.
    """
    rows, columns = block
    if isinstance(tensor, np.ndarray):
        dequantize(codes, scales, block, fmt, _ONE, out)
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            out *= tensor
        quiet_nan(out)
        return
    if not has_word_kernel(fmt):
        by_row = repeat_tiles(scales, rows, codes.shape[0], 0)
        with np.errstate(over="ignore", invalid="ignore"):
            np.multiply(decode(codes, fmt), repeat_tiles(by_row, columns, codes.shape[1]), out=out)
            out *= tensor
        quiet_nan(out)
        return
    constants = decode_constants(fmt)

    def piece(a: int, b: int) -> None:
        if columns == 1:
            kernels.dequantize_columns(codes, scales, rows, tensor, constants, out, a, b)
        else:
            kernels.dequantize_blocks(codes, scales, rows, columns, tensor, constants, out, a, b)

    _threads.run_chunks(piece, codes.shape[0], max(1, (1 << 16) // codes.shape[1]))
