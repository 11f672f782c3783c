"""Random Hadamard transform: spreads outliers over neighbouring values before quantization.

With ``H`` the Sylvester-Hadamard matrix of size n and ``D`` a diagonal matrix of signs, n consecutive values x become
``H D x / sqrt(n)``. Both operands of a GEMM are transformed along K, so that the transforms cancel in the product. The
order of operations is fixed: signs; butterflies ``(a + b, a - b)`` at distances 1, 2, 4, ..., n/2; one multiplication
with float32(1 / sqrt(n)). A quantizer may round the result to a narrower format first (`Quantizer.transform_format`).
Source: NVIDIA, arXiv:2509.25149, section 4.2; Tseng et al. (QuIP#), arXiv:2402.04396.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import _threads
from .._arrays import as_float32
from .._checks import MAX_SEED, check_choice
from .._fpenv import quiet_nan, with_default_fpenv
from ..cast.casts import round_to
from ..cast.streams import split_seed
from ..kernels.cast.random_bits import random_word
from ..kernels.scaling import hadamard as kernels
from .quantizer import Quantizer

TE_SIGNS = (1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1)
"""TransformerEngine's fixed signs for the transform of size 16."""


def sign_vector(size: int, signs: str | int) -> NDArray[np.float32]:
    """Return the signs of a transform.

    Parameters
    ----------
    size : int
        A power of two, at least 2.
    signs : {"te", "none"} or int
        ``te``: those of TransformerEngine (size 16 only); ``none``: all plus; a seed: sign j is minus if the top bit of
        the random word (seed, j) is set (`lowprec.kernels.cast.random_bits`).

    Raises
    ------
    ValueError
        If the size or the signs are not supported.
    """
    check_size(size)
    if isinstance(signs, bool) or not isinstance(signs, (str, int)):
        raise _wrong_signs(signs)
    return _sign_vector(size, signs)


@functools.lru_cache(maxsize=64)
def _sign_vector(size: int, signs: str | int) -> NDArray[np.float32]:
    if signs == "none":
        vector = np.ones(size, np.float32)
    elif signs == "te":
        if size != 16:
            raise ValueError(
                f"hadamard: size must be 16 with signs='te', got {size}; other sizes take 'none' or a seed"
            )
        vector = np.array(TE_SIGNS, np.float32)
    elif isinstance(signs, int) and 0 <= signs <= MAX_SEED:
        lo, hi = split_seed(signs)
        words = [int(random_word(lo, hi, np.uint32(j), np.uint32(0))) for j in range(size)]
        vector = np.array([-1.0 if word >> 31 else 1.0 for word in words], np.float32)
    else:
        raise _wrong_signs(signs)
    vector.flags.writeable = False
    return vector


def _wrong_signs(signs: object) -> ValueError:
    return ValueError(f"hadamard: signs must be 'te', 'none' or a seed from 0 to 2^64 - 1, got {signs!r}")


def check_size(size: int) -> None:
    """Raise a ValueError unless a transform can have this size."""
    if isinstance(size, bool) or not isinstance(size, int) or size < 2 or size & (size - 1):
        raise ValueError(f"hadamard: size must be a power of two >= 2, got {size!r}")


@with_default_fpenv
def hadamard(
    x: ArrayLike, size: int = 16, signs: str | int = "te", *, axis: int = -1, inverse: bool = False
) -> NDArray[np.float32]:
    """Transform each group of `size` consecutive values along an axis of a matrix.

    Parameters
    ----------
    x : array_like, shape (R, C)
        Values, taken as float32.
    size : int
        Length of a group, a power of two; the length of the axis must be a multiple of it.
    signs : {"te", "none"} or int
        See `sign_vector`.
    axis : {-1, 1, 0}
        Axis of the groups: -1 or 1 (the default) transforms within rows, 0 within columns.
    inverse : bool
        Whether to undo the transform, up to rounding.

    Returns
    -------
    ndarray of float32, shape (R, C)
        New array. Every NaN in it, including that of Inf - Inf, is the positive quiet one.

    Raises
    ------
    ValueError
        If the shape, the size, the signs or the axis do not fit.

    Examples
    --------
    >>> x = np.zeros((1, 16), np.float32)
    >>> x[0, 3] = 8.0
    >>> hadamard(x, signs="none")[0, :4].tolist()
    [2.0, -2.0, -2.0, 2.0]
    >>> hadamard(hadamard(x), inverse=True)[0, 3].item()
    8.0
    """
    check_size(size)
    values = as_float32("hadamard", x)
    axis = check_choice("hadamard", "axis", axis, (-1, 0, 1))
    if values.ndim != 2:
        raise ValueError(f"hadamard: x must be a matrix, got shape {values.shape}")
    length = values.shape[0] if axis == 0 else values.shape[1]
    if length % size:
        raise ValueError(f"hadamard: x must have a multiple of size={size} values along the axis, got {length}")
    out = np.empty(values.shape, np.float32)
    vector = sign_vector(size if out.size else 16, signs)  # any size for an empty array
    if out.size == 0:
        return out
    factor = np.float32(1 / math.sqrt(size))
    work: Callable[..., None] = kernels.transform_columns if axis == 0 else kernels.transform_rows
    items = length // size if axis == 0 else values.shape[0]
    grain = max(1, (1 << 16) * items // values.size)
    _threads.run_chunks(lambda a, b: work(values, vector, factor, inverse, out, a, b), items, grain)
    return quiet_nan(out)


def transform(x: NDArray[np.float32], q: Quantizer, *, axis: int) -> NDArray[np.float32]:
    """Return `x` or, if the quantizer has a transform, its transform rounded to the transform's format."""
    if q.hadamard_size is None or x.size == 0:
        return x
    y = hadamard(x, q.hadamard_size, q.hadamard_signs, axis=axis)
    return y if q.transform_format is None else round_to(y, q.transform_format, out=y)
