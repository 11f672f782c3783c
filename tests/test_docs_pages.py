"""Generated pages are what their generators write today, speak of what there is; the site's links lead to files."""

import doctest
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import lowprec as lp

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = {
    "formats.md": "make_formats", "accumulators.md": "make_accumulators",
    "quantizers.md": "make_quantizers", "codecs.md": "make_codecs",
    "costs.md": "make_costs", "recipes.md": "make_recipes",
    "ablations.md": "make_ablations", "architecture.md": "make_architecture",
    "architecture.svg": "make_architecture", "vectors.md": "make_vectors",
}  # fmt: skip


@pytest.fixture(autouse=True)
def docs_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", PAGES)
def test_pages_are_current(name: str) -> None:
    page = importlib.import_module(PAGES[name]).PAGES[name]
    assert (DOCS / name).read_text(encoding="utf-8") == page(), f"run: python docs/{PAGES[name]}.py"


def test_every_generated_page_is_looked_at() -> None:
    found = {
        (page, path.stem)
        for path in DOCS.glob("*.py")
        for page in getattr(importlib.import_module(path.stem), "PAGES", ())
    }
    assert found == set(PAGES.items())


def test_what_is_said_of_entries_is_said_of_known_ones() -> None:
    formats = importlib.import_module("make_formats")
    said = {*formats.DIFFER, *formats.GFLOAT, *formats.TORCH, *formats.ML_DTYPES, *formats.PROBES}
    assert said <= set(lp.formats.names())
    assert set(importlib.import_module("make_quantizers").CHECKED) <= set(lp.quantizers.names())


def site() -> Iterator[tuple[str, str]]:
    """Return the site's pages as Markdown, before Sphinx reads them."""
    links = importlib.import_module("website.links")
    for path in links.outside():
        yield path, links.links((ROOT / path).read_text(encoding="utf-8"), path)
    yield from importlib.import_module("website.findings").pages()


def test_pictures_are_where_links_lead() -> None:
    mirror = f"/{importlib.import_module('website.links').MIRROR}/"
    shown = [(page, target) for page, text in site() for target in re.findall(r"\]\(([^)\s]+\.(?:svg|png))\)", text)]
    assert sum(page.startswith("generated/findings/") for page, _ in shown) >= 25

    def there(target: str) -> bool:
        return (ROOT / target.removeprefix(mirror) if target.startswith(mirror) else Path(f"{DOCS}{target}")).is_file()

    assert [(page, target) for page, target in shown if not (target.startswith("/") and there(target))] == []


def test_examples_of_links_run() -> None:
    found = doctest.testmod(importlib.import_module("website.links"))
    assert (found.failed, found.attempted > 0) == (0, True)


@pytest.mark.ci
@pytest.mark.parametrize("name", ["accumulators.md", "codecs.md", "costs.md", "start.md"])
def test_examples_run(name: str) -> None:
    found = doctest.testfile(str(DOCS / name), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert (found.failed, found.attempted > 0) == (0, True)
