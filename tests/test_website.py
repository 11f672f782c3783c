"""The site's pages, as Markdown: their pictures and pages are where their links lead, before Sphinx reads them."""

import doctest
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


@pytest.fixture(autouse=True)
def docs_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))


def pages() -> Iterator[tuple[str, str]]:
    links = importlib.import_module("website.links")
    for path in links.outside():
        yield path, links.links((ROOT / path).read_text(encoding="utf-8"), path)
    yield from importlib.import_module("website.findings").pages()


def test_pictures_are_where_links_lead() -> None:
    mirror = f"/{importlib.import_module('website.links').MIRROR}/"
    shown = [(page, target) for page, text in pages() for target in re.findall(r"\]\(([^)\s]+\.(?:svg|png))\)", text)]
    assert sum(page.startswith("generated/findings/") for page, _ in shown) >= 25

    def there(target: str) -> bool:
        return (ROOT / target.removeprefix(mirror) if target.startswith(mirror) else Path(f"{DOCS}{target}")).is_file()

    assert [(page, target) for page, target in shown if not (target.startswith("/") and there(target))] == []


def test_examples_of_links_run() -> None:
    failed, attempted = doctest.testmod(importlib.import_module("website.links"))
    assert attempted > 0
    assert failed == 0
