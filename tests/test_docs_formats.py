"""The page about formats is what its generator writes now."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

import lowprec as lp

SCRIPT = Path(__file__).parents[1] / "docs" / "make_formats.py"


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_formats", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date(generator: ModuleType) -> None:
    assert generator.PAGE.read_text() == generator.page(), "run: python docs/make_formats.py"


def test_what_is_said_of_formats_is_said_of_known_ones(generator: ModuleType) -> None:
    said = {*generator.DIFFER, *generator.GFLOAT, *generator.TORCH, *generator.ML_DTYPES, *generator.PROBES}
    assert said <= set(lp.formats.names())
