"""The module that makes the golden losses, for tests that run what it runs."""

import importlib.util
from pathlib import Path

_SPEC = importlib.util.spec_from_file_location(
    "make_golden_losses", Path(__file__).parents[1] / "reference_data" / "make_golden_losses.py"
)
golden = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(golden)
