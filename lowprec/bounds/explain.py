"""Causes of a rejected product that are not in the catalogue of faults: other codes, or another arithmetic."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..cast.casts import encode
from ..diagnose.check.check import check
from ..diagnose.identify.identify import identify
from ..format.catalogue import formats
from ..scaling.quantized import Quantized
from ..scaling.rules import AmaxRule
from .checksum import Values
from .product import Product

_ROWS = 16  # number of rows and columns of the outputs that are identified
_SECONDS = 10.0


def explained(product: Product, d: Values, arithmetic: bool) -> list[str]:
    """Return sentences about wrongly quantized operands, places of differing outputs and, if asked, the arithmetic.

    Operands are compared with the values before quantization, if these are known.
    """
    found = []
    for name, q, x in zip("ab", (product.a, product.b), product.sources or (), strict=False):
        made = q.quantizer
        if made is None or not isinstance(made.rule, AmaxRule) or made.has_row_scales:
            continue
        if not (seen := check(q, x)):
            found.append(f"Operand {name}: {seen.sentence}.")
    right = product.result()
    wrong = ~((d == right) | np.isnan(d) & np.isnan(right))
    rows, columns = (np.flatnonzero(wrong.any(axis=axis)) for axis in (1, 0))
    if rows.size and (rows.size, columns.size) != wrong.shape:
        found.append(
            f"Outputs differ from those of lowprec.gemm in rows {rows[0]} to {rows[-1]} and columns {columns[0]} to "
            f"{columns[-1]} only."
        )
    arithmetic = arithmetic and bool(wrong[:_ROWS, :_ROWS].any())
    plain = all(product.options.get(name, 1.0) == 1.0 for name in ("alpha", "beta"))
    if arithmetic and plain and product.options.get("split_k") is None:
        found += _arithmetic(product, d)
    return found


def _arithmetic(product: Product, d: Values) -> list[str]:
    """Return a sentence with the arithmetic that gives the bits of the first rows and columns, if there is one."""
    target, part = formats.get(product.options["out_format"]), d[:_ROWS, :_ROWS]
    wide = target.same_codes(formats["float32"])
    outputs = part.astype(np.float32) if wide else encode(part, target)
    c = None if product.c is None else np.asarray(product.c)[:_ROWS, :_ROWS]
    try:
        seen = identify(
            _first(product.a), _first(product.b), c, outputs, d_format=None if wide else target, seconds=_SECONDS
        )
    except (ValueError, TypeError):  # identify does not support these operands or results
        return []
    return [f"Of {part.size} outputs: {seen.sentence}."] if seen.machines and not seen.differing else []


def _first(q: Quantized) -> Quantized:
    """Return the first rows of an operand."""
    rows = q.granularity.block((q.shape[0], q.shape[1]))[0]
    top = q.tensor_scale[:_ROWS] if isinstance(q.tensor_scale, np.ndarray) else q.tensor_scale
    codes, scale = q.codes[:_ROWS], q.scale[: -(-min(_ROWS, q.shape[0]) // rows)]
    return replace(
        q, codes=np.ascontiguousarray(codes), scale=np.ascontiguousarray(scale), tensor_scale=top, quantizer=None
    )  # fmt: skip
