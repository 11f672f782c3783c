"""The precision map of a recipe as a picture: one cell per product of each linear layer, colored by its bits."""

from __future__ import annotations

from lowprec._markup import svg_box, svg_document, svg_text

from .description import RecipeFields
from .linears import OPERANDS, GemmSpec
from .names import DEPTH, LINEARS
from .table import precision_rows

_NAMES, _CELL, _LINE, _TOP = 215, 250, 34, 46
#: Colors by the bits of the wider operand: up to 4, up to 8, up to 16, more.
_COLORS = ((4, "warm"), (8, "box"), (16, "in"), (32, "plain"))
_BLOCK = DEPTH // 2  # a middle block, which no pattern selects by number


def precision_map(recipe: RecipeFields) -> str:
    """Return the map as an SVG: linear layers of a middle block and the head, then all that is stored or sent.

    Examples
    --------
    >>> import lowprec as lp
    >>> precision_map(lp.recipes["dsv3"]).count("hopper_fp8") > 20
    True
    """
    parts = [svg_text(_NAMES + _CELL * i + 6, _TOP - 10, gemm, "bold") for i, gemm in enumerate(OPERANDS)]
    parts.append(svg_text(8, 18, f"{recipe.name}: operands of every product, and the accumulator that sums it", "bold"))
    y = float(_TOP)
    for names, gemms in _alike(recipe):
        for line, name in enumerate(names):
            parts.append(svg_text(8, y + 15 + 14 * line, name))
        height = max(_LINE, 14 * len(names) + 8)
        for i, gemm in enumerate(gemms):
            parts += _cell(gemm, _NAMES + _CELL * i, y, height - 4)
        y += height
    y += 26
    parts.append(svg_text(8, y - 8, "what is kept and sent", "bold"))
    for row in precision_rows(recipe):
        if row.what.lower() in OPERANDS:
            continue
        parts.append(svg_text(8, y + 12, f"{row.part}: {row.what}"))
        parts.append(svg_text(_NAMES + _CELL, y + 12, row.precision))
        y += 17
    return svg_document(parts, _NAMES + 3 * _CELL + 8, y + 10, f"Precision map of {recipe.name}")


def _alike(recipe: RecipeFields) -> list[tuple[list[str], tuple[GemmSpec, ...]]]:
    """Return runs of consecutive layers with equal computation, and their three multiplications."""
    found: list[tuple[list[str], tuple[GemmSpec, ...]]] = []
    for layer in LINEARS:
        spec = recipe.spec(layer.replace("layers.0.", f"layers.{_BLOCK}."), DEPTH)
        gemms = spec.fprop, spec.dgrad, spec.wgrad
        name = layer.replace("layers.0.", "").replace("experts.0.", "experts.")
        if not found or found[-1][1] != gemms:
            found.append(([], gemms))
        prefix, _, leaf = name.rpartition(".")
        names = found[-1][0]
        if names and names[-1].startswith(f"{prefix}.") and prefix:
            names[-1] += f", {leaf}"
        else:
            names.append(name)
    return found


def _cell(gemm: GemmSpec, x: float, y: float, height: float) -> list[str]:
    bits = max(side.format.bits for side in (gemm.a, gemm.b))
    kind = next(kind for most, kind in _COLORS if bits <= most)
    return [
        svg_box(x, y, _CELL - 6, height, kind),
        svg_text(x + 6, y + 13, f"{gemm.a.format.name} x {gemm.b.format.name}"),
        svg_text(x + 6, y + 25, gemm.accumulator_summary, "small"),
    ]
