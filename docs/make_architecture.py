"""Generate the page of the package's rooms and its drawing from the imports."""

from __future__ import annotations

import textwrap
from html import escape

from pages import table
from rooms import direct, floors, room_graph, subject

WIDTH, BAND, BOX, GAP, MARGIN, SHIFT = 1240, 66, 44, 14, 20, 190
STYLE = """text { font-family: system-ui, sans-serif; fill: #1f2937 } .name { font-size: 14px; font-weight: 600 }
.about { font-size: 9.5px; fill: #4b5563 } .floor { font-size: 11px; fill: #9ca3af }
rect { fill: #eef2ff; stroke: #6366f1 } rect.beside { fill: #f3f4f6; stroke: #9ca3af }
path { fill: none; stroke: #94a3b8; stroke-width: 1.2 }"""
LETTERS_PER_PIXEL = 1 / 5.4  # as in `.about`


def drawing() -> str:
    """Return docs/architecture.svg: rooms on their floors, and the imports that are not implied by chains of others."""
    graph = room_graph()
    floor, arrows = floors(graph), direct(graph)
    levels = [sorted(room for room in graph if floor[room] == level) for level in range(max(floor.values()), 0, -1)]
    height = len(levels) * BAND + 2 * MARGIN
    place: dict[str, tuple[float, float, float]] = {}
    for i, rooms in enumerate(levels):
        width = min(330.0, (WIDTH - 2 * MARGIN - 30 - GAP * (len(rooms) - 1)) / len(rooms))
        left = 30 + (WIDTH - 30 - len(rooms) * width - GAP * (len(rooms) - 1)) / 2
        if len(rooms) == 1:  # keep an arrow visible that passes the only room of a floor
            left += SHIFT if i % 2 else -SHIFT
        for j, room in enumerate(rooms):
            place[room] = left + j * (width + GAP), MARGIN + i * BAND, width
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        "<title>The rooms of lowprec; each imports only rooms below it</title>",
        f"<style>{STYLE}</style>",
        '<defs><marker id="tip" markerWidth="7" markerHeight="7" refX="6" refY="3" orient="auto">'
        '<polygon points="0 0, 6 3, 0 6" fill="#94a3b8"/></marker></defs>',
        f'<rect width="{WIDTH}" height="{height}" style="fill:#fff;stroke:none"/>',
    ]
    for room, used in sorted(arrows.items()):
        for other in sorted(used):
            (x, y, width), (x2, y2, width2) = place[room], place[other]
            start, end = (x + width / 2, y + BOX), (x2 + width2 / 2, y2 - 1)
            bend = (end[1] - start[1]) / 2
            parts.append(
                f'<path d="M{start[0]:.0f},{start[1]:.0f} C{start[0]:.0f},{start[1] + bend:.0f} '
                f'{end[0]:.0f},{end[1] - bend:.0f} {end[0]:.0f},{end[1]:.0f}" marker-end="url(#tip)"/>'
            )
    for i in range(len(levels)):
        parts.append(f'<text class="floor" x="8" y="{MARGIN + i * BAND + 26}">{len(levels) - i}</text>')
    for room, (x, y, width) in sorted(place.items()):
        letters = max(12, int(width * LETTERS_PER_PIXEL))
        lines = textwrap.wrap(subject(room), letters, max_lines=2, placeholder=" ...")
        parts.append(f"<g><title>{escape(subject(room))}</title>")
        parts.append(f'<rect x="{x:.0f}" y="{y:.0f}" width="{width:.0f}" height="{BOX}" rx="6"/>')
        middle = x + width / 2
        parts.append(f'<text class="name" text-anchor="middle" x="{middle:.0f}" y="{y + 15:.0f}">{room}</text>')
        for k, line in enumerate(lines):
            at = f'x="{middle:.0f}" y="{y + 27 + 11 * k:.0f}"'
            parts.append(f'<text class="about" text-anchor="middle" {at}>{escape(line)}</text>')
        parts.append("</g>")
    return "\n".join([*parts, "</svg>"]) + "\n"


def page() -> str:
    """Return docs/architecture.md."""
    graph = room_graph()
    floor = floors(graph)
    ordered = sorted(graph, key=lambda room: (-floor[room], room))
    rows = [
        (floor[room], f"`{room}`", subject(room), ", ".join(f"`{u}`" for u in sorted(graph[room]))) for room in ordered
    ]
    return f"""# The rooms of lowprec

A room is a subpackage with one subject, or a module next to the subpackages. Each imports only rooms below it. An arrow
is an import that is not implied by a chain of other imports. A folder is singular (`format`), the catalogue in it
plural (`lp.formats`), so that a public name is never also a module. `tests/` has a folder per room.
[CONTRIBUTING](../CONTRIBUTING.md) describes where to add things.

![The rooms of the package on {max(floor.values())} floors](architecture.svg)

{table(("floor", "room", "contents", "imports"), rows)}

The drawing and the table are generated from the imports (`python docs/refresh.py`). `tests/test_layering.py` checks the
allowed imports, that files do not import each other in a cycle, and that only `_jit` imports Numba.
"""
