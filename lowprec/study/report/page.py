"""Self-contained HTML pages of one or several reports: Markdown as HTML, figures as inline SVG, no scripts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from ..._files import safe_name, write_text
from ..run.fingerprint import differences
from ..run.store import StudyError, read_json

PAGE, REPORT, SUMMARY = "report.html", "report.md", "summary.json"
#: Markdown features of reports. Links, emphasis and tags are off: "L[arm](w)" and "<x>" are plain text.
RULES = ["heading", "list", "fence", "table", "blockquote", "backticks", "image"]
FOLDED = re.compile(r"<p>([^<]*):</p>\n<pre><code>(.*?)</code></pre>", re.DOTALL)
IMAGE = re.compile(r'<p><img src="([^"]*)\.png" alt="([^"]*)" ?/?></p>')


def write(folders: Sequence[Path], path: Path, title: str = "") -> Path:
    """Write the page of the reports in folders, ordered by tier and name, and return its path.

    Raises
    ------
    StudyError
        If the studies were made by different code, packages or data, or a file is missing.
    """
    found = sorted(((read_json(folder / SUMMARY), folder) for folder in folders), key=lambda item: _key(item[0]))
    summaries = [summary for summary, _ in found]
    _check_same(summaries)
    body = [render(folder, summary["tier"]) for summary, folder in found]
    if len(found) > 1:
        body = [f"<h1>{escape(title)}</h1>", _contents(summaries), *map(_lower, body)]
    shell = Template(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))
    write_text(path, shell.substitute(title=escape(title or summaries[0]["study"]), body="\n".join(body)))
    return path


def render(folder: Path, tier: str = "") -> str:
    """Return the report in a folder as HTML.

    Raises
    ------
    StudyError
        If the SVG of a figure is missing.
    ValueError
        If a figure's name leads out of the folder.
    """
    from markdown_it import MarkdownIt

    html = MarkdownIt("zero").enable(RULES).render((folder / REPORT).read_text(encoding="utf-8"))
    html = FOLDED.sub(r"<details><summary>\1</summary><pre>\2</pre></details>", html)
    html = html.replace("<table>", '<div class="scroll"><table>').replace("</table>", "</table></div>")
    html = html.replace("<h2>", "<h3>").replace("</h2>", "</h3>").replace(" %", "\N{NO-BREAK SPACE}%")
    html = IMAGE.sub(lambda match: f"<figure>{_svg(folder, *match.groups())}</figure>", html)
    return html.replace("</h1>", f'<span class="tier">{escape(tier)}</span></h1>' if tier else "</h1>", 1)


def _key(summary: dict[str, Any]) -> tuple[str, str]:
    return summary["tier"], summary["study"]


def _lower(html: str) -> str:
    """Return a report with its title as a second-level heading with an anchor."""
    return re.sub(r"<h1>([^<]*)(.*?)</h1>", lambda m: f'<h2 id="{_anchor(m[1])}">{m[1]}{m[2]}</h2>', html, count=1)


def _check_same(summaries: Sequence[dict[str, Any]]) -> None:
    first = summaries[0]
    for other in summaries[1:]:
        common = [key for key in first["made_of"] if key in other["made_of"]]
        found = [text for key in common for text in differences(first["made_of"][key], other["made_of"][key], key)]
        if found:
            raise StudyError(
                f"{other['study']} and {first['study']} cannot be in one report: they differ in "
                f'{"; ".join(found[:3])} ("then" is {first["study"]}); report each folder on its own, or run one of '
                "them again with --restart"
            )


def _contents(summaries: Sequence[dict[str, Any]]) -> str:
    rows = "".join(
        f'<tr><td><a href="#{_anchor(item["study"])}">{escape(item["study"])}</a></td><td>{escape(item["tier"])}</td>'
        f"<td>{escape(item['question'])}</td></tr>"
        for item in summaries
    )
    head = "<tr><th>study</th><th>tier</th><th>question</th></tr>"
    return f'<nav class="scroll"><table><thead>{head}</thead><tbody>{rows}</tbody></table></nav>'


def _anchor(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "-", name)


def _svg(folder: Path, stem: str, title: str) -> str:
    """Return a figure's SVG element, with ids that are unique on the page and a title for screen readers."""
    path = folder / f"{safe_name('figure', stem)}.svg"
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise StudyError(
            f"{path}: {error.strerror}; draw the figure first (lowprec report without --no-plot)"
        ) from None
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    prefix = _anchor(f"{folder.name}-{stem}")
    text = re.sub(r'\bid="', f'id="{prefix}-', text)
    text = re.sub(r'(xlink:href="|href="|url\()#', rf"\g<1>#{prefix}-", text)
    opening, _, rest = text.partition(">")
    opening = re.sub(r' (width|height)="[^"]*"', "", opening)
    return f'{opening} role="img" aria-label="{title}">{rest}'
