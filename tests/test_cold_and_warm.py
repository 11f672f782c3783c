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
import lowprec as lp

def digest(*arrays):
    found = hashlib.sha256()
    for a in arrays:
        found.update(f"{a.dtype}{a.shape}".encode() + np.ascontiguousarray(a).tobytes())
    return found.hexdigest()[:16]

def numbers(shape=(16, 256)):
    rng = np.random.default_rng(11)
    x = rng.standard_normal(shape).astype(np.float32) * np.exp2(rng.integers(-24, 20, (shape[0], 1))).astype(np.float32)
    special = [0, 0x80000000, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00000, 0x7FA00001, 0xFFFFFFFF]
    x[3, :8] = x[9, 100:108] = np.array(special, np.uint32).view(np.float32)
    x[13] = np.float32(-np.nan)
    return x

X, out = numbers(), {}

def quantizer(name, *granularities):
    q = lp.quantizers[name].with_(history=None)
    fixed = {"multiplier": 3.0} if lp.quantizers[name].history else {}
    for granularity in granularities:
        how = {"quantizer": q, "granularity": granularity, **fixed}
        for more in ({}, {"rounding": "stochastic", "seed": 5}):
            if more and q.choice is not None:
                continue
            made = lp.quantize(X, **how, **more)
            again = lp.requantize(made, "1x16", **fixed)
            values = lp.quantize_dequantize(X, **how, **more)
            out[f"quantizer {name} {granularity} {more}"] = digest(
                made.codes, made.scale, made.dequantize(), values, again.codes, again.scale, again.dequantize()
            )

def everything():
    for name, f in ((n, lp.formats[n]) for n in lp.formats):
        for rounding in lp.roundings:
            how = {"rounding": rounding, **({"seed": 3} if lp.roundings[rounding].is_stochastic else {})}
            for policy in ("ocp_sat", "ocp_nonsat"):
                codes = [lp.encode(x, f, policy=policy, **how) for x in (X, X.astype(float), X.astype(np.float16))]
                values = lp.round_to(X, f, policy=policy, **how)
                out[f"format {name} {rounding} {policy}"] = digest(*codes, values, lp.decode(codes[0], f))
    for name in lp.quantizers:
        quantizer(name, None, "1x16", "16x1", "7x5")
    for name in lp.block_formats:
        f = lp.block_formats[name]
        out[f"block format {name}"] = digest(*f.encode(X), f.round_to(X))
    for name in lp.codecs:
        codec = lp.codecs[name]
        x = np.tile(X, (1, 2)) if hasattr(codec, "columns_multiple") else X
        out[f"codec {name}"] = digest(np.frombuffer(codec.encode(x).to_bytes(), np.uint8), codec.round_trip(x))
    for name in lp.accumulators:
        a = lp.accumulators[name]
        formats = [getattr(f, "name", f) for f in a.inputs] or ["e4m3fn"]
        for f in formats:
            with contextlib.suppress(ValueError, TypeError):  # blocks of scales are gemm's
                x = X[:, :128].astype(np.float64) if f == "float64" else lp.encode(X[:, :128], f, overflow="saturate")
                given = {} if f == "float64" else {"a_format": f, "b_format": f}
                out[f"accumulator {name} {f}"] = digest(lp.mma(x, x[2:14], accumulator=name, **given))
    with np.errstate(all="ignore"):
        q = lp.quantize(X, "e4m3fn", "1x64")
        out["gemm"] = digest(lp.gemm(q, q, promote_every=64))
        out["float32"] = digest(lp.matmul_f32(X, X))
        out["hadamard"] = digest(lp.hadamard(X))

if sys.argv[1] == "everything":
    everything()
else:
    made = lp.quantize(X, quantizer="deepgemm")
    out["quantizer"] = digest(made.codes, made.scale)
    out["values"] = digest(made.dequantize())
print(json.dumps(out))
"""


def digests(cache: Path, what: str) -> dict[str, str]:
    environment = {**os.environ, "LOWPREC_CACHE_DIR": str(cache), "PYTHONPATH": str(Path(lowprec.__file__).parents[1])}
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
