"""The generated pages are what their generator writes today, and their examples run."""

import doctest
import importlib.util
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"
spec = importlib.util.spec_from_file_location("docs_tables", DOCS / "tables.py")
tables = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tables)


@pytest.mark.parametrize("name", tables.PAGES)
def test_pages_are_current(name):
    assert (DOCS / name).read_text(encoding="utf-8") == tables.PAGES[name](), f"run: python docs/tables.py ({name})"


@pytest.mark.parametrize("name", tables.PAGES)
def test_examples_run(name):
    found = doctest.testfile(str(DOCS / name), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert found.attempted > 0
    assert found.failed == 0
