"""`matmul_f32`: products of float32 matrices in one fixed order."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .._arrays import as_float32, as_real, check_matmul, copy_if_overlapping, prepare_out, to_like
from .._fpenv import with_default_fpenv
from ..cast.casts import round_to
from ..cast.dispatch import nearest_constants
from ..format.catalogue import Format, formats
from .engines.chain import accumulate_f32
from .problem import Float32Matrix

_FLOAT32 = formats["float32"]


@with_default_fpenv
def matmul_f32(
    a: ArrayLike,
    b: ArrayLike,
    out: Float32Matrix | None = None,
    *,
    out_format: str | Format = "float32",
    like: Any = None,
) -> Float32Matrix:
    """Multiply float32 matrices in one fixed order: ``acc = fma(a[i, k], b[j, k], acc)`` for k = 0, 1, ... from +0.

    The bits depend only on the operands. Those of BLAS also depend on the CPU and on the number of threads.

    Parameters
    ----------
    a : array_like, shape (M, K)
        First operand, converted to float32.
    b : array_like, shape (N, K)
        Second operand, converted to float32; the product is ``A @ B.T``.
    out : ndarray of float32, shape (M, N), optional
        Destination of the result: C-contiguous.
    out_format : str or Format
        Format to which the sums are rounded at the end, as by `lowprec.round_to`.
    like : array or str, optional
        Array package of the result (NumPy, torch or JAX): one of its arrays, or its name.

    Returns
    -------
    ndarray of float32, shape (M, N)
        NaN is 0x7FFFFFFF before it is rounded to `out_format`.

    Raises
    ------
    ValueError
        If shapes do not match.

    Examples
    --------
    >>> import lowprec as lp
    >>> lp.matmul_f32([[1.0, 2.0]], [[3.0, 4.0], [5.0, 6.0]])
    array([[11., 17.]], dtype=float32)
    """
    x, y = _float32_operand(a), _float32_operand(b)
    check_matmul("matmul_f32", x.shape, y.shape)
    shape = (x.shape[0], y.shape[0])
    target = formats.get(out_format)
    as_it_is = target.same_codes(_FLOAT32)
    constants = None if as_it_is else nearest_constants(target)
    out = prepare_out("matmul_f32", out, shape, np.float32)
    x, y = copy_if_overlapping(x, out), copy_if_overlapping(y, out)
    if constants is None:
        out[...] = 0
    accumulate_f32(x, y, out, constants)
    if constants is None and not as_it_is:
        round_to(out, target, out=out)
    return out if like is None else to_like("matmul_f32", out, like)


def _float32_operand(a: ArrayLike) -> Float32Matrix:
    """Return the operand as contiguous float32, or as a transposed view of a contiguous array."""
    array = as_real("matmul_f32", a)
    turned = array.ndim == 2 and array.flags.f_contiguous
    return as_float32("matmul_f32", array.T).T if turned else as_float32("matmul_f32", array)
