"""The same bits from the process that compiles the kernels and from one that finds them on disk, NaN and all.

Which of two NaNs an operation returns is the code generator's choice, and it may choose differently when it compiles a
kernel and when it links one from the cache. A child with an empty cache computes digests, a second one computes them
again with the kernels of the first.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import lowprec

PROGRAM = """
import contextlib, hashlib, json, sys
import numpy as np
import entries, public_calls
import lowprec as lp

X, out = np.concatenate([entries.numbers()] * 2), {}  # with NaN

def keep(what, parts):
    out[what] = hashlib.sha256(b"".join(parts)).hexdigest()[:16]

def everything():
    for name in lp.formats:
        for rounding in lp.roundings:
            for policy in ("ocp_sat", "ocp_nonsat"):
                keep(f"format {name} {rounding} {policy}", entries.cast_bits(lp.formats[name], rounding, policy))
    for kind, (catalogue, does, _) in entries.DOES.items():
        for name in catalogue:
            keep(f"{kind} {name}", does(catalogue[name]))
    for name in lp.quantizers:
        for granularity in (None, "1x16", "16x1", "7x5"):
            q = lp.quantizers[name].with_(history=None, **({"granularity": granularity} if granularity else {}))
            for how in ({}, {"rounding": "stochastic", "seed": 5} if q.choice is None else {}):
                made = lp.quantize(X, q, **how)
                again, values = made.requantize("1x16"), lp.quantize_dequantize(X, q, **how)
                parts = entries.bits(made.codes, made.scale, made.dequantize(), values, again.codes, again.dequantize())
                keep(f"NaN by {name} {granularity} {how}", parts)
    for name in block_formats:
        f = block_formats[name]
        keep(f"block format {name}", entries.bits(*f.encode(X), f.round_to(X)))
    for name in lp.codecs:
        keep(f"NaN in {name}", entries.bits(lp.codecs[name].round_trip(X.reshape(8, 512))))
    with np.errstate(all="ignore"):
        for name, call in public_calls.OF_VALUES.items():
            with contextlib.suppress(ValueError):  # NaN is refused
                found = call(X[:, :128])
                keep(name, entries.bits(found) if isinstance(found, np.ndarray) else [repr(found).encode()])

if sys.argv[1] == "everything":
    everything()
else:
    made = lp.quantize(X, "deepgemm")
    keep("quantizer", entries.bits(made.codes, made.scale, made.dequantize()))
print(json.dumps(out))
"""


def digests(cache: Path, what: str) -> dict[str, str]:
    folders = (Path(lowprec.__file__).parents[1], Path(__file__).parent)
    environment = {**os.environ, "LOWPREC_CACHE_DIR": str(cache), "PYTHONPATH": os.pathsep.join(map(str, folders))}
    command = [sys.executable, "-P", "-W", "ignore", "-c", PROGRAM, what]
    child = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stderr[-2000:]
    found: dict[str, str] = json.loads(child.stdout)
    return found


def check(cache: Path, what: str) -> None:
    cold, warm = digests(cache, what), digests(cache, what)
    assert any(cache.rglob("*.nbi")), "nothing was compiled"
    assert cold
    assert {key for key in cold if cold[key] != warm[key]} == set()
    assert cold.keys() == warm.keys()


@pytest.mark.slow
def test_a_block_quantizer(tmp_path: Path) -> None:
    check(tmp_path, "deepgemm")


@pytest.mark.exhaustive
def test_the_whole_catalogue(tmp_path: Path) -> None:
    check(tmp_path, "everything")
