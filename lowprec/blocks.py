"""A quantizer and a matrix, as numbers for the kernels: constants of its scale and its cast, segments and threads."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import _jit
from .cast import decode_constants, encode_constants, has_fast_kernel, round_constants
from .formats import Format, formats
from .granularity import Granularity
from .kernels import block_scale
from .kernels import quantize as kernels
from .quantizers import SPECIALS, Quantizer
from .rounding import policies

_HOW = {
    ("fp32", "amax/max"): block_scale.QUOTIENT,
    ("fp32", "amax*(1/max)"): block_scale.PRODUCT,
    ("fp32", "max/amax"): block_scale.MULTIPLIER,
    ("ue8m0", "floor"): block_scale.EXPONENT,
    ("ue8m0", "ceil"): block_scale.EXPONENT,
    ("ue8m0", "even"): block_scale.EXPONENT,
    ("ue8m0", "even_1bit"): block_scale.EXPONENT,
    ("ue8m0", "amax/max"): block_scale.POWER_QUOTIENT,
    ("ue8m0", "amax*(1/max)"): block_scale.POWER_PRODUCT,
    ("ue8m0", "max/amax"): block_scale.POWER_MULTIPLIER,
    ("e4m3", "folded"): block_scale.E4M3_FOLDED,
    ("e4m3", "plain"): block_scale.E4M3_PLAIN,
    ("e4m3", "quotients"): block_scale.E4M3_QUOTIENTS,
    ("e4m3", "joint"): block_scale.E4M3_JOINT,
    ("e4m3", "alone"): block_scale.E4M3_ALONE,
}
_LARGEST = np.finfo(np.float32).max
_ONE = np.float32(1)
Kernel = Callable[..., None]


class _Cast(NamedTuple):
    """Constants of the fast cast and of the general one; `index` chooses the kernel for a block's width."""

    bounded: tuple[np.uint32, ...]
    encode: tuple[np.uint32, ...]
    round: tuple[np.uint32, ...]
    fast: bool


@functools.lru_cache(maxsize=256)
def _cast_constants(f: Format) -> _Cast:
    special = policies["ocp_sat"].codes(f)
    m, emin = f.mantissa_bits, f.emin
    encode, rounding = encode_constants(f, special), round_constants(f, special)
    fast = bool(f.params.negative_zero) and f.emax + 23 - m <= 127 and emin + 23 - m <= 127
    top = int(np.float32(f.max).view(np.uint32))
    words = ((127 + emin) << 23, (23 - m) << 23, 23 - m, top, 0, f.sign_mask)
    return _Cast(tuple(np.uint32(w) for w in words) if fast else encode, encode, rounding, fast)


class BlockJob:
    """One matrix and one quantizer, as numbers for the kernels."""

    def __init__(self, q: Quantizer, x: NDArray[np.float32], tensor_amax: float | None) -> None:
        f = self.format = formats.get(q.format)
        if f.bits > 16 or not has_fast_kernel(f):
            raise ValueError(f"quantize: {f} cannot be an element format; signed formats of up to 16 bits can")
        self.x, self.granularity = x, Granularity.parse(q.granularity)
        shape = (x.shape[0], x.shape[1])
        self.rows, self.width = self.granularity.block(shape)
        self.scale_shape = self.granularity.scale_shape(shape)
        self.cast = _cast_constants(f)
        self.tensor_scale: np.float32 | None = None
        tensor = _NO_TENSOR
        if q.two_level:
            tensor = _tensor_scale(q, f, _amax(x) if tensor_amax is None else np.float32(tensor_amax))
            self.tensor_scale = tensor.scale
        self.rule = _rule(q, f, tensor)

    def codes(self, codes: NDArray[Any], scales: NDArray[np.float32]) -> None:
        """Write codes and scales of the matrix."""
        kernel: Kernel = kernels.quantize_strips[self._index] if self.cast.fast else kernels.quantize_strips_any
        cast = (self.cast.bounded if self.cast.fast else self.cast.encode, self.cast.encode)

        def work(x: Any, codes: Any, scales: Any, a: int, b: int) -> None:
            kernel(x, self.rows, self.width, self._segment, self.rule, cast, codes, scales, a, b)

        self._run(work, codes, scales)

    def values(self, values: NDArray[np.float32]) -> None:
        """Write the values that codes and scales would decode to."""
        kernel: Kernel = kernels.round_strips[self._index] if self.cast.fast else kernels.round_strips_any
        cast = (self.cast.bounded if self.cast.fast else self.cast.round, self.cast.round)
        tensor = _ONE if self.tensor_scale is None else self.tensor_scale

        def work(x: Any, values: Any, _: Any, a: int, b: int) -> None:
            kernel(x, self.rows, self.width, self._segment, self.rule, cast, tensor, values, a, b)

        self._run(work, values, None)

    @property
    def _index(self) -> int:
        index: int = kernels.WIDTHS.index(self.width) if self.width in kernels.WIDTHS else 0
        return index

    @property
    def _segment(self) -> int:
        """Columns worked on at a time: a few KiB of a row, or what a strip of the second cache holds."""
        wanted = 2048 if self.rows == 1 else max(256, (1 << 16) // self.rows)
        segment: int = self.width * max(1, min(wanted // self.width, -(-self.x.shape[1] // self.width)))
        return segment

    def _run(self, work: Any, into: NDArray[Any], scales: NDArray[np.float32] | None) -> None:
        x, width = self.x, self.width
        if self.rows == 1 and x.shape[1] % width == 0:  # blocks lie one after another: the matrix is one long row
            flat, into_flat = x.reshape(-1), into.reshape(-1)
            scale_flat = None if scales is None else scales.reshape(-1)

            def piece(a: int, b: int) -> None:
                part = slice(a * width, b * width)
                own = None if scale_flat is None else scale_flat[a:b].reshape(1, -1)
                work(flat[part].reshape(1, -1), into_flat[part].reshape(1, -1), own, 0, 1)

            self.x = x.reshape(1, -1)
            _jit.run_chunks(piece, flat.size // width, max(1, (1 << 16) // width))
            return
        strips = self.scale_shape[0]
        grain = max(1, (1 << 16) // (self.rows * x.shape[1]))
        _jit.run_chunks(lambda a, b: work(x, into, scales, a, b), strips, grain)


class _Tensor(NamedTuple):
    scale: np.float32
    inverse: np.float32
    folded: np.float32


_NO_TENSOR = _Tensor(_ONE, _ONE, _ONE)


def _tensor_scale(q: Quantizer, f: Format, amax: np.float32) -> _Tensor:
    """Return the tensor's scale, its inverse and the constant that block scales are computed with."""
    largest = np.float32(f.max)
    bound = np.float32(np.float32(q.bound) * largest)
    with np.errstate(all="ignore"):
        if q.arithmetic in ("folded", "plain"):
            inverse = np.minimum(np.float32(bound / amax), _LARGEST)
            inverse = _ONE if amax == 0 or inverse == 0 else inverse
            return _Tensor(np.float32(_ONE / inverse), inverse, np.float32(inverse * np.float32(_ONE / largest)))
        g = np.float32(amax / bound)
        return _Tensor(g, np.float32(_ONE / g), np.float32(largest * g))


def _amax(x: NDArray[np.float32]) -> np.float32:
    """Return the largest magnitude, NaN left out."""
    flat, tops = x.reshape(-1), [np.uint32(0)]
    _jit.run_chunks(lambda a, b: tops.append(np.uint32(kernels.largest_finite(flat[a:b]))), flat.size, 1 << 17)
    return np.float32(max(tops).view(np.float32))


def _rule(q: Quantizer, f: Format, tensor: _Tensor) -> tuple[Any, ...]:
    """Return what `kernels.block_scale.block_scales` takes."""
    head, numbers, words, special, use_special_zero = _fixed_rule(q, f)
    return (*head, (*numbers[:4], *tensor, numbers[4]), words, special, use_special_zero)


@functools.lru_cache(maxsize=256)
def _fixed_rule(q: Quantizer, f: Format) -> tuple[Any, ...]:
    largest = np.float32(f.max)
    cap = _LARGEST if q.amax_floor == 0 else np.float32(min(float(_LARGEST), float(f.max) / q.amax_floor))
    numbers = (
        largest, np.float32(_ONE / largest), np.float32(q.amax_floor), np.float32(cap), np.float32(q.smallest_scale)
    )  # fmt: skip
    mantissa = {"even": f.mantissa_bits, "even_1bit": 1}.get(q.arithmetic, 0)
    add = {"floor": 0, "ceil": 0x7FFFFF}.get(q.arithmetic, 1 << (22 - mantissa))
    e4m3 = formats["e4m3fn"]
    words = (
        np.uint32(add), np.int32(f.emax), np.uint32(q.smallest_exponent + 127),
        encode_constants(e4m3, policies["ocp_sat"].codes(e4m3)), decode_constants(e4m3),
    )  # fmt: skip
    cases = [SPECIALS.get(case, (1.0, 1.0)) for case in (q.zero, q.inf, q.nan)]
    special = tuple(np.float32(number) for pair in cases for number in pair)
    divides = (q.scale == "fp32" and q.division == "divide" and q.arithmetic != "max/amax") or q.arithmetic == "joint"
    division = block_scale.DIVIDE if divides else block_scale.RECIPROCAL
    use_special_zero = q.zero != "rule" and q.amax_floor == 0
    return (_HOW[q.scale, q.arithmetic], division), numbers, words, special, use_special_zero
