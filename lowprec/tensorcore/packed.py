"""Operands packed once for products with many others: `prepack_b`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .._fpenv import with_default_fpenv
from .._values import BitwiseEq
from ..format.catalogue import Format, formats
from ..scaling.quantize import Quantized
from .accumulator import Accumulator
from .catalogue import accumulators
from .engines.engine import Packed
from .engines.selection import plan_for
from .operands import check_is_quantized, instruction_operand


@dataclass(frozen=True, eq=False)
class PackedB(BitwiseEq):
    """Second operand of `lowprec.gemm`, packed for products on one accumulator.

    Attributes
    ----------
    quantized : Quantized, shape (N, K)
        Source matrix; rows and columns with NaN or Inf are computed from it.
    accumulator : Accumulator
        Accumulator of the products.
    a_format : Format
        Element format of the other operand.
    layout : Packed or None
        Operand in the engine's layout, several times as large as the codes; None if no engine computes the products.
    """

    quantized: Quantized
    accumulator: Accumulator
    a_format: Format
    layout: Packed | None = field(compare=False, repr=False)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the codes."""
        return self.quantized.shape

    def for_accumulator(self, accumulator: Accumulator) -> Packed | None:
        """Return the packed layout for an accumulator.

        Raises
        ------
        ValueError
            If the operand was packed for another accumulator.
        """
        if accumulator != self.accumulator:
            raise ValueError(f"gemm: b must be packed for {accumulator}, got one packed for {self.accumulator}")
        return self.layout

    def __reduce__(self) -> tuple[Any, ...]:
        """Make copies by packing again, because kernels read addresses that a copy of the arrays does not preserve."""
        return prepack_b, (self.quantized, self.accumulator, self.a_format)

    def __repr__(self) -> str:
        return f"<PackedB for {self.accumulator}: {self.quantized!r}>"


@with_default_fpenv
def prepack_b(
    q: Quantized, accumulator: str | Accumulator = "hopper_fp8", a_format: str | Format | None = None
) -> PackedB:
    """Pack a second operand once for many products: `lowprec.gemm` and `lowprec.grouped_gemm` accept it as `b`.

    A weight is used for all batches between two updates, and its transpose for the input gradients. The bits are those
    of the product with `q`. Under another `lowprec.use_kernel`, the operand is repacked on every call.

    Parameters
    ----------
    q : Quantized, shape (N, K)
        Matrix to pack, for example a weight. It is referenced, not copied: do not change its arrays afterwards.
    accumulator : str or Accumulator
        Accumulator of the products.
    a_format : str or Format, optional
        Element format of the other operand, by default that of `q`.

    Returns
    -------
    PackedB

    Raises
    ------
    TypeError
        If `q` is not `Quantized`.
    ValueError
        If `q` is not a matrix, or the accumulator does not support its format or scales.

    Examples
    --------
    >>> import numpy as np, lowprec as lp
    >>> rng = np.random.default_rng(0)
    >>> x = lp.quantize(rng.random((8, 128), np.float32), "e4m3fn 1x128")
    >>> w = lp.quantize(rng.random((64, 128), np.float32), "e4m3fn 128x128")
    >>> packed = lp.prepack_b(w, "hopper_fp8")
    >>> bool((lp.gemm(x, packed) == lp.gemm(x, w)).all())
    True
    """
    check_is_quantized("prepack_b", "q", q)
    accumulator = accumulators.get(accumulator)
    if len(q.shape) != 2:
        raise ValueError(f"prepack_b: q must be a matrix [N, K], got shape {q.shape}")
    a_format = q.format if a_format is None else formats.get(a_format)
    engine = plan_for(accumulator, a_format, q.format).engine
    if 0 in q.shape or engine is None:
        return PackedB(q, accumulator, a_format, None)
    return PackedB(q, accumulator, a_format, Packed(engine, engine.pack(*instruction_operand("b", q, accumulator))))
