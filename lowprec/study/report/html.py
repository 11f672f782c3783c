"""One self-contained page of one or several reports: figures as inline SVG, styles inside, no script, no request.

Made with the standard library: the page is a list of parts (`lowprec.study.report.document`), each a few tags.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from pathlib import Path

from ..._files import write_text
from ..run.fingerprint import differences
from ..run.store import StudyError
from .document import Bullets, Details, Document, Figure, Heading, Part, Table, Text

PAGE = "report.html"
STYLE = """
:root { color-scheme: light; --ink: #202020; --soft: #606060; --line: #d8d8d8; --wash: #f5f5f3; --accent: #0072B2; }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.5rem 4rem; max-width: 72rem; color: var(--ink); background: white;
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", "Liberation Sans", "DejaVu Sans", sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .4rem; }
h2 { font-size: 1.35rem; margin: 3rem 0 .3rem; padding-top: 1rem; border-top: 2px solid var(--ink); }
h3 { font-size: 1.05rem; margin: 1.8rem 0 .4rem; }
p { margin: .5rem 0; max-width: 52rem; }
p.question { font-size: 1.1rem; color: var(--ink); }
p.caption, p.meta { color: var(--soft); font-size: .85rem; }
.tier { color: var(--soft); font-weight: normal; font-size: .9rem; margin-left: .6rem; }
ul { margin: .6rem 0; padding-left: 1.2rem; max-width: 56rem; }
li { margin: .25rem 0; }
ul.warning { border-left: 4px solid #D55E00; background: #fdf1e9; padding: .6rem 1rem .6rem 2rem; }
nav { margin: 1rem 0; } a { color: var(--accent); }
figure { margin: 1.4rem 0; overflow-x: auto; }
figure svg { width: 100%; min-width: 44rem; height: auto; display: block; }
.scroll { overflow-x: auto; margin: .8rem 0; }
table { border-collapse: separate; border-spacing: 0; width: max-content; max-width: max(100%, 44rem);
  font-size: .86rem; font-variant-numeric: tabular-nums; }
th { text-align: left; border-bottom: 1.5px solid var(--ink); padding: .3rem .8rem .3rem 0; vertical-align: bottom; }
td { border-bottom: 1px solid var(--line); padding: .28rem .8rem .28rem 0; vertical-align: top; }
th:first-child, td:first-child { position: sticky; left: 0; max-width: 45vw; background: white; }
td.number, th.number { text-align: right; white-space: nowrap; }
details { margin: .4rem 0; } summary { cursor: pointer; font-size: .9rem; }
code { font-size: .9em; white-space: nowrap; }
pre { background: var(--wash); padding: .8rem; overflow-x: auto; font-size: .8rem; line-height: 1.35; }
@media (max-width: 44rem) { body { padding: 1rem .9rem 3rem; } ul { padding-left: 1rem; } }
@media print { body { max-width: none; padding: 0; } figure svg { min-width: 0; } details { display: none; } }
"""
_NUMBER = re.compile(r"[+\-]?[\d.,]+(e[+\-]?\d+)?( ?[±x%] ?[\d.]*(e[+\-]?\d+)?)?|n/a|inf|nan|\[.*\]|")
#: What may differ between the studies of a page: their runs are never set against each other.
SAME_ON_A_PAGE = ("code", "versions", "data")


def page(documents: Sequence[Document], title: str = "") -> str:
    """Return the page.

    Parameters
    ----------
    documents : sequence of Document
        The studies, in order.
    title : str
        Of the page; the study's name where there is one study.

    Returns
    -------
    str
        HTML that loads nothing.

    Raises
    ------
    StudyError
        If the studies were made by different code, packages or data, or a figure is missing.
    """
    check_same(documents)
    title = title or (documents[0].name if len(documents) == 1 else "Studies")
    body = [f"<h1>{escape(title)}</h1>"]
    if len(documents) > 1:
        body.append(_contents(documents))
    if len(documents) == 1:
        body[0] = f'<h1>{escape(title)}<span class="tier">{escape(documents[0].tier)}</span></h1>'
    for item in documents:
        head = f'{escape(item.name)}<span class="tier">{escape(item.tier)}</span>'
        if len(documents) > 1:
            body.append(f'<h2 id="{_anchor(item.name)}">{head}</h2>')
        body.append(f'<p class="question">{escape(item.question)}</p>')
        body += [_part(part, item) for part in item.parts]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n" + "\n".join(body)
        + "\n</body>\n</html>\n"
    )  # fmt: skip


def fragment(document: Document) -> str:
    """Return one report for a notebook: a page's body, its styles left to the notebook."""
    head = f'<h3>{escape(document.name)}</h3><p class="question">{escape(document.question)}</p>'
    return head + "\n".join(_part(part, document) for part in document.parts)


def check_same(documents: Sequence[Document]) -> None:
    """Refuse to put studies on one page that were not made by the same code, packages and data.

    Raises
    ------
    StudyError
        If they were not; the message says which, and in what.
    """
    first = documents[0]
    for other in documents[1:]:
        found = []
        for key in SAME_ON_A_PAGE:
            if key in first.made_of and key in other.made_of:
                found += differences(first.made_of[key], other.made_of[key], key)
        if found:
            raise StudyError(
                f"{other.name} and {first.name} cannot stand in one report: they differ in {'; '.join(found[:3])} "
                f'("then" is {first.name}); report each folder on its own, or run one of them again with --fresh'
            )


def write(documents: Sequence[Document], path: Path, title: str = "") -> Path:
    """Write the page and return its path."""
    write_text(path, page(documents, title))
    return path


def _contents(documents: Sequence[Document]) -> str:
    """Return what stands on a page of several studies, each a link."""
    rows = "".join(
        f'<tr><td><a href="#{_anchor(item.name)}">{escape(item.name)}</a></td><td>{escape(item.tier)}</td>'
        f"<td>{escape(item.question)}</td></tr>"
        for item in documents
    )
    head = "<tr><th>study</th><th>tier</th><th>question</th></tr>"
    return f'<nav class="scroll"><table><thead>{head}</thead><tbody>{rows}</tbody></table></nav>'


def _anchor(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "-", name)


def _part(part: Part, document: Document) -> str:
    match part:
        case Heading(text):
            return f"<h3>{escape(text)}</h3>"
        case Text(text):
            return f"<p>{_prose(text)}</p>"
        case Bullets(items, warning):
            kind = ' class="warning"' if warning else ""
            return f"<ul{kind}>" + "".join(f"<li>{_prose(item)}</li>" for item in items) + "</ul>"
        case Figure(title, stem):
            return f"<figure>{_svg(document, stem, title)}</figure>"
        case Table():
            return _table(part)
        case Details(title, text):
            return f"<details><summary>{escape(title)}</summary><pre>{escape(text)}</pre></details>"


def _prose(text: str) -> str:
    """Return text as HTML, a number and its per cent sign on one line, what stands in backticks as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text)).replace(" %", "\N{NO-BREAK SPACE}%")


def _table(table: Table) -> str:
    columns = list(zip(*table.rows, strict=True)) if table.rows else [()] * len(table.head)
    kinds = [' class="number"' if all(_NUMBER.fullmatch(cell) for cell in column) else "" for column in columns]
    head = "".join(f"<th{kind}>{escape(cell)}</th>" for kind, cell in zip(kinds, table.head, strict=True))
    rows = "".join(
        "<tr>" + "".join(f"<td{kind}>{_prose(cell)}</td>" for kind, cell in zip(kinds, row, strict=True)) + "</tr>"
        for row in table.rows
    )
    caption = f'<p class="caption">{_prose(table.caption)}</p>' if table.caption else ""
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>{caption}'


def _svg(document: Document, stem: str, title: str) -> str:
    """Return a figure's SVG element, its ids made unique on the page and its title readable to screen readers."""
    path = document.folder / f"{stem}.svg"
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise StudyError(
            f"{path}: {error.strerror}; draw the figure first (lowprec report without --no-plot)"
        ) from None
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    prefix = _anchor(f"{document.name}-{stem}")
    text = re.sub(r'\bid="', f'id="{prefix}-', text)
    text = re.sub(r'(xlink:href="|href="|url\()#', rf"\g<1>#{prefix}-", text)
    opening, _, rest = text.partition(">")
    opening = re.sub(r' (width|height)="[^"]*"', "", opening)
    return f'{opening} role="img" aria-label="{escape(title, quote=True)}">{rest}'
