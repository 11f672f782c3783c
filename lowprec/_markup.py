"""HTML tables and SVG drawings of objects for notebooks and pages, without dependencies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

_STYLE = (
    "text { font-family: system-ui, sans-serif; font-size: 12px; fill: #1f2937 } .bold { font-weight: 600 } "
    ".small { font-size: 10px; fill: #4b5563 } .box { fill: #eef2ff; stroke: #6366f1 } "
    ".in { fill: #f3f4f6; stroke: #9ca3af } .plain { fill: #fff; stroke: #9ca3af } "
    ".warm { fill: #fef3c7; stroke: #d97706 } .line { fill: none; stroke: #64748b; stroke-width: 1.2 } "
    ".tick { stroke: #0072B2; stroke-width: 1 } .axis { stroke: #9ca3af }"
)


def html_table(rows: Iterable[Sequence[object]], head: Sequence[str] = (), title: str = "") -> str:
    """Return a table as HTML, with all text escaped; strings are aligned left, numbers right.

    Examples
    --------
    >>> html_table([("a < b", 8, None)], title="e4m")
    '<table><caption>e4m</caption><tbody><tr><td style="text-align:left">a &lt; b</td><td style="text-align:right">8...'
    """
    caption = f"<caption>{escape(title)}</caption>" if title else ""
    above = f"<thead>{_row(head, 'th')}</thead>" if head else ""
    return f"<table>{caption}{above}<tbody>{''.join(_row(row, 'td') for row in rows)}</tbody></table>"


def _row(cells: Iterable[object], tag: str) -> str:
    return f"<tr>{''.join(_cell(cell, tag) for cell in cells)}</tr>"


def _cell(cell: object, tag: str) -> str:
    if cell is None:
        return f"<{tag}></{tag}>"
    side = "right" if isinstance(cell, int | float) else "left"  # notebooks align all cells right by default
    return f'<{tag} style="text-align:{side}">{escape(f"{cell:.5g}" if isinstance(cell, float) else str(cell))}</{tag}>'


def svg_document(parts: Iterable[str], width: float, height: float, title: str) -> str:
    """Return a drawing on a white background, with a title for screen readers."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'style="max-width:100%;height:auto" role="img"><title>{escape(title)}</title><style>{_STYLE}</style>'
        f'<rect width="{width:g}" height="{height:g}" fill="#fff"/>{"".join(parts)}</svg>'
    )


def svg_text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    """Return a line of text for `svg_document`; `kind` is one of its styles."""
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>'


def svg_box(x: float, y: float, width: float, height: float, kind: str = "box") -> str:
    """Return a rectangle for `svg_document`."""
    return f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="5"/>'
