"""The page about quantizers is what its generator writes now."""

import importlib.util
from pathlib import Path

import lowprec as lp

SCRIPT = Path(__file__).parents[1] / "docs" / "make_quantizers.py"


def test_the_page_is_up_to_date_and_speaks_of_known_quantizers() -> None:
    spec = importlib.util.spec_from_file_location("make_quantizers", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    assert set(generator.CHECKED) <= set(lp.quantizers.names())
    assert generator.PAGE.read_text() == generator.page(), "run: python docs/make_quantizers.py"
