"""The generated pages are what their generators write today, speak of what there is, and their examples run."""

import doctest
import importlib
from pathlib import Path
from types import ModuleType

import pytest

import lowprec as lp

DOCS = Path(__file__).parents[1] / "docs"
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


def generator(name: str) -> ModuleType:
    return importlib.import_module(name)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", PAGES)
def test_pages_are_current(name: str) -> None:
    page = generator(PAGES[name]).PAGES[name]
    assert (DOCS / name).read_text(encoding="utf-8") == page(), f"run: python docs/{PAGES[name]}.py"


def test_every_generated_page_is_looked_at() -> None:
    found = {(page, path.stem) for path in DOCS.glob("*.py") for page in getattr(generator(path.stem), "PAGES", ())}
    assert found == set(PAGES.items())


def test_what_is_said_of_formats_is_said_of_known_ones() -> None:
    formats = generator("make_formats")
    said = {*formats.DIFFER, *formats.GFLOAT, *formats.TORCH, *formats.ML_DTYPES, *formats.PROBES}
    assert said <= set(lp.formats.names())


def test_what_was_compared_with_vendors_are_known_quantizers() -> None:
    assert set(generator("make_quantizers").CHECKED) <= set(lp.quantizers.names())


@pytest.mark.ci
@pytest.mark.parametrize("name", ["accumulators.md", "codecs.md", "costs.md", "start.md"])
def test_examples_run(name: str) -> None:
    found = doctest.testfile(str(DOCS / name), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert found.attempted > 0
    assert found.failed == 0
