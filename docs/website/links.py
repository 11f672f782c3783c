"""Places of the repository's files on the site, and links to them."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "ablations" / "results"
#: Pages outside of docs/ that the site includes, and the folder within docs/ to write them to.
OUTSIDE = (
    "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "ablations/README.md", "ablations/results/*.md",
    "benchmarks/README.md", "reference_data/README.md", "reference_data/capture/README.md",
)  # fmt: skip
MIRROR = "generated/repository"
#: Files with a special page on the site: a page generated from a catalogue, or a script that it runs.
MADE = {
    "docs/accumulators.md": "/generated/accumulators/index.md",
    "docs/gallery/GALLERY_HEADER.rst": "/tutorials/index.rst",
    "lowprec/__init__.pyi": "/generated/api/index.rst",
    "lowprec/cli/app.py": "/generated/command_line.rst",
    "lowprec/format/catalogue.py": "/generated/formats/index.md",
    "lowprec/moe/model/config.py": "/generated/configurations.md",
    "lowprec/recipe/catalogue.py": "/generated/recipes/index.md",
} | {
    f"docs/gallery/{path.name}": f"/tutorials/{path.stem}.rst" for path in ROOT.glob("docs/gallery/plot_*.py")
}  # fmt: skip
#: Link text, which may contain an interval in brackets, then the target and its anchor.
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^)#\s:]+)(#[^)\s]*)?\)")
_PICTURES = (".svg", ".png")


def outside() -> list[str]:
    """Return the pages outside of docs/, as paths in the repository."""
    return sorted(path.relative_to(ROOT).as_posix() for pattern in OUTSIDE for path in ROOT.glob(pattern))


def place(path: str) -> str | None:
    """Return the path of a repository file on the site, from the root of docs/; None if it does not have a page.

    Examples
    --------
    >>> place("docs/formats.md"), place("CONTRIBUTING.md"), place("pyproject.toml")
    ('/formats.md', '/generated/repository/CONTRIBUTING.md', None)
    """
    if path in MADE:
        return MADE[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs") if path.endswith((".md", *_PICTURES)) else None
    return f"/{MIRROR}/{path}" if path in outside() or path.endswith(_PICTURES) else None


def links(text: str, page: str) -> str:
    """Return a page with its links adapted to the site; links to files without a page become text.

    Parameters
    ----------
    text : str
        Markdown text.
    page : str
        Path of the page in the repository.

    Examples
    --------
    >>> links("[a](../CONTRIBUTING.md#set-up) [b](../pyproject.toml)", "docs/x.md")
    '[a](/generated/repository/CONTRIBUTING.md#set-up) b (`pyproject.toml`)'
    >>> links("[a](gallery/plot_4_logfmt.py) [b](ablations.md#promotion)", "docs/x.md")
    '[a](/tutorials/plot_4_logfmt.rst) [b](/generated/findings/promotion.md)'
    >>> links("![by +0.1 [0.0, 0.2] %](x.svg)", "docs/x.md")
    '![by +0.1 [0.0, 0.2] %](/x.svg)'
    """
    here = posixpath.dirname(page)

    def changed(found: re.Match[str]) -> str:
        picture, words, target, anchor = found.groups()
        if target.startswith("/"):  # between generated pages: Sphinx checks it
            return found.group()
        path = posixpath.normpath(posixpath.join(here, target))
        there = place(path)
        if path == "docs/ablations.md" and anchor and (RESULTS / f"{anchor[1:]}.json").exists():
            there, anchor = f"/generated/findings/{anchor[1:]}.md", None  # the article with its figure
        if there is None:
            return words if words.strip("`") in path else f"{words} (`{path}`)"
        return f"{picture}[{words}]({there}{anchor or ''})"

    return _LINK.sub(changed, text)
