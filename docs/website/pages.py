"""Writer of the site's generated pages into docs/generated."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

from . import api, catalogues, findings
from .links import MIRROR, ROOT, links, outside

FOLDER = ROOT / "docs"


def write_pages() -> None:
    """Write pages that changed, so that Sphinx reads only these again; remove pages that no longer exist."""
    kept = set()
    for name, text in _pages():
        path = FOLDER / name
        kept.add(path)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    for picture in (
        found for folder in ("ablations/results", "benchmarks", "docs") for found in ROOT.glob(f"{folder}/*.svg")
    ):
        path = FOLDER / MIRROR / picture.relative_to(ROOT)
        kept.add(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(picture, path)
    for path in (FOLDER / "generated").rglob("*"):
        if path.is_file() and path not in kept:
            path.unlink()


def _pages() -> Iterator[tuple[str, str]]:
    """Yield paths in docs/ and their contents."""
    for path in outside():
        yield f"{MIRROR}/{path}", links((ROOT / path).read_text(encoding="utf-8"), path)
    yield from catalogues.pages()
    yield from findings.pages()
    yield from api.pages()
