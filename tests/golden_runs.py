"""The module that makes the golden losses, for tests that run what it runs, and a shorter text."""

import functools
import importlib.util
from pathlib import Path

from lowprec.moe.data.corpus import corpus_from_bytes
from lowprec.recipe import recipes

_SPEC = importlib.util.spec_from_file_location(
    "make_golden_losses", Path(__file__).parents[1] / "reference_data" / "make_golden_losses.py"
)
golden = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(golden)


#: State of every kind: random bits, amax histories of other layers, a running mean, a narrow moment.
MIXED = recipes["nvfp4"].with_(
    name="mixed",
    dgrad={"a": "te_delayed e5m2 amax_history4", "b": "te_current", "accumulator": "hopper_fp8"},
    moment_m="e4m3fn 1x128",
)


@functools.cache
def short_text(held_out=1_000):
    """Return the golden text with less to be tested on, which takes most of the time of short runs."""
    return corpus_from_bytes("short", golden.text().train[:60_000].tobytes(), held_out=held_out)
