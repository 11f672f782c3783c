"""Record the special functions of this machine's Hopper GPU for every input.

    python reference_data/capture/capture_special.py OUT.npz [--library libcapture.so]
    python reference_data/capture/capture_special.py OUT.npz --dry    # NumPy's functions instead of the GPU's

All 2^32 inputs of a float32 function are computed, an octave of one sign (2^23 words with the same top nine bits) at a
time. The file has the SHA-256 of each octave's results, which detects every difference, and the results themselves of
the octaves in `KEPT`, of zeros and subnormals, of infinities and NaN, and of those with one result; of 16-bit
functions it has all results. `verify.py` compares it.

Groups of the file (`capture_file.py`) are

- FUNCTION/digests: ``x`` is log2 of the number of words of an octave, 23 but in a trial, ``d`` the 512 digests;
- FUNCTION/constant: ``x`` lists the top nine bits of octaves with one result, ``d`` these results;
- FUNCTION/T for the top nine bits T: ``x`` is T, ``start`` the first result, and ``d`` the differences between
  neighbours modulo 2^32;
- FUNCTION/binary, for a function of two numbers: ``x`` is the seed of `operands`, ``d`` all results;
- FUNCTION/pairs: ``d`` has, for the 16-bit word x, the result of x in the low half and of its complement in the high.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from capture import Program, describe
from capture_build import compile_program
from capture_file import Capture, CaptureError, Group
from numpy.typing import NDArray

Words = NDArray[np.uint32]
Floats = NDArray[np.float32]
#: Results of a function for input words: name, first word, step to the next one, number of words.
Run = Callable[[str, int, int, int], Words]
OCTAVES, MANTISSA = 512, 23
_EXACT: dict[str, Callable[..., Any]] = {
    "ex2": np.exp2, "lg2": np.log2, "rcp": np.reciprocal, "rsqrt": lambda x: 1 / np.sqrt(x), "sqrt": np.sqrt,
    "sin": np.sin, "cos": np.cos, "tanh": np.tanh, "expf": np.exp, "logf": np.log, "tanhf": np.tanh,
    "erff": np.vectorize(math.erf, [float]), "rsqrtf": lambda x: 1 / np.sqrt(x),
}  # fmt: skip
#: Functions of float32.
FLOAT32 = (
    "ex2.approx.ftz.f32", "lg2.approx.ftz.f32", "rcp.approx.ftz.f32", "rsqrt.approx.ftz.f32", "sqrt.approx.ftz.f32",
    "sin.approx.ftz.f32", "cos.approx.ftz.f32", "tanh.approx.f32",
)  # fmt: skip
#: Functions with tables found in results that the file has: exponents of these octaves, and the signs of x.
KEPT: dict[str, tuple[range, tuple[int, ...]]] = {"tanh.approx.f32": (range(-4, 4), (0, 1))}
#: Functions of pairs of 16-bit numbers.
PAIRS = ("ex2.approx.f16x2", "ex2.approx.ftz.bf16x2", "tanh.approx.f16x2", "tanh.approx.bf16x2")
#: Functions of CUDA's library, and those above with subnormal numbers: other results determine theirs.
DERIVED = (
    "ex2.approx.f32", "lg2.approx.f32", "rcp.approx.f32", "rsqrt.approx.f32", "sqrt.approx.f32", "expf", "logf",
    "tanhf", "erff", "rsqrtf",
)  # fmt: skip
#: Conversions, of a number in the low and of its negative in the high part of a word but for TF32.
CONVERSIONS = (
    "cvt.rn.satfinite.e4m3x2.f32", "cvt.rn.satfinite.e5m2x2.f32", "cvt.rn.bf16x2.f32", "cvt.rn.f16x2.f32",
    "cvt.rna.tf32.f32",
)  # fmt: skip
#: Functions of two numbers: divisions, and additions in global memory.
BINARY = (
    "div.full.f32", "div.full.ftz.f32", "div.approx.f32", "div.approx.ftz.f32", "red.global.add.f32",
    "cp.reduce.async.bulk.add.f32",
)  # fmt: skip
FUNCTIONS = (*FLOAT32, *PAIRS, *DERIVED)
#: Bits of agreement that the self-check demands; documented errors are smaller.
_AGREE = {"f16x2": 9, "bf16x2": 6}


def stand_in(name: str, first: int, step: int, count: int) -> Words:
    """Compute a function with NumPy in float64, rounded to its format; subnormal float32 become zero, but of tanh."""
    word = np.uint32(first) + np.arange(count, dtype=np.uint32) * np.uint32(step)
    function = _EXACT[name.split(".")[0]]
    if name not in PAIRS:
        flush = "ftz" in name
        return _flushed(_float32(function, _flushed(word, flush)), flush)
    low, high = word & np.uint32(0xFFFF), ~word & np.uint32(0xFFFF)
    return _of_16(name, function, low) | _of_16(name, function, high) << np.uint32(16)


def _float32(function: Callable[..., Any], word: Words) -> Words:
    with np.errstate(all="ignore"):
        y = function(word.view(np.float32).astype(np.float64)).astype(np.float32)
    return np.where(np.isnan(y), np.uint32(0x7FFFFFFF), y.view(np.uint32))


def _flushed(word: Words, flush: bool) -> Words:
    return np.where(flush & (word & 0x7F800000 == 0), word & np.uint32(1 << 31), word)


def _of_16(name: str, function: Callable[..., Any], word: Words) -> Words:
    if "bf16" in name:
        y = _float32(function, word << np.uint32(16))
        nearest = y + np.uint32(0x7FFF) + (y >> np.uint32(16) & np.uint32(1))
        return np.where(y & 0x7FFFFFFF > 0x7F800000, np.uint32(0x7FFF), nearest >> np.uint32(16))
    with np.errstate(all="ignore"):
        half = function(word.astype(np.uint16).view(np.float16).astype(np.float64)).astype(np.float16)
    return np.where(np.isnan(half), np.uint16(0x7FFF), half.view(np.uint16)).astype(np.uint32)


def _values(name: str, words: Words) -> NDArray[np.float64]:
    low = (words & 0xFFFF).astype(np.uint16)
    if name not in PAIRS:
        return words.view(np.float32).astype(np.float64)
    return (low.astype(np.uint32) << 16).view(np.float32) if "bf16" in name else low.view(np.float16)


def check(run: Run) -> str:
    """Compare every function with NumPy's from 1 on and return a sentence on the correct outputs.

    Raises
    ------
    CaptureError
        If a result is far from the function's value, or the halves of a pair disagree.
    """
    wrong, count = [], 0
    for name in FUNCTIONS:
        bits = _AGREE.get(name.split(".")[-1], 19) if name != "tanh.approx.f32" else 10
        start = (0x3F800000, 1 << 16) if name not in PAIRS else (0x3F80, 1) if "bf16" in name else (0x3C00, 8)
        words, wanted = run(name, *start, 128), stand_in(name, *start, 128)
        got, value = (_values(name, x).astype(np.float64) for x in (words, wanted))
        bad = int((~(np.abs(got - value) <= 2.0**-bits * np.maximum(np.abs(value), 1))).sum())
        wrong += [f"{name} ({bad} of {len(got)})"] * (bad > 0)
        count += len(got)
    if wrong:
        raise CaptureError(f"results are far from the functions' values: {wrong}")
    return f"{count} results are near the functions' values"


def collect(run: Run, names: Sequence[str] = FUNCTIONS, bits: int = MANTISSA) -> list[Group]:
    """Compute all results, or those of 2^bits equidistant words of every octave, on all cores."""
    with ThreadPoolExecutor() as threads:
        return _collect(run, names, bits, threads)


def _collect(run: Run, names: Sequence[str], bits: int, threads: ThreadPoolExecutor) -> list[Group]:
    groups = []
    for name in names:
        if name in PAIRS:
            x = np.array([0, 1 << 16], np.uint32)
            groups.append(Group(f"{name}/pairs", name, ["pairs"], {"x": x, "d": run(name, 0, 1, 1 << 16)}))
            continue
        octaves = list(threads.map(lambda top, name=name: _octave(run, name, top, bits), range(OCTAVES)))
        for top, (_, start, steps) in enumerate(octaves):
            if steps is not None:
                arrays = {"x": np.array([top], np.uint32), "start": start, "d": steps}
                groups.append(Group(f"{name}/{top}", name, ["octave"], arrays))
        constant = {top: int(start[0]) for top, (_, start, steps) in enumerate(octaves) if steps is None and len(start)}
        arrays = {"x": np.array(list(constant), np.uint32), "d": np.array(list(constant.values()), np.uint32)}
        groups.append(Group(f"{name}/constant", name, ["constant"], arrays))
        digests = np.stack([digest for digest, _, _ in octaves])
        groups.append(Group(f"{name}/digests", name, ["digests"], {"x": np.array([bits], np.uint32), "d": digests}))
    return groups


def _octave(run: Run, name: str, top: int, bits: int) -> tuple[NDArray[np.uint8], Words, NDArray[Any] | None]:
    """Return an octave's digest, its first result, and the differences of its results if the file keeps them.

    Nothing but the digest is returned of an octave that the file lacks, and no differences if there is one result.
    """
    exponents, signs = KEPT.get(name, (range(0), ()))
    kept = {0, 255, 256, 511} | {sign << 8 | 127 + exponent for sign in signs for exponent in exponents}
    words = run(name, top << MANTISSA, 1 << MANTISSA - bits, 1 << bits)
    digest = digest_of(words)
    steps: NDArray[Any] = np.diff(words).view(np.int32)
    if not steps.any():
        return digest, words[:1].copy(), None
    if top not in kept:
        return digest, words[:0].copy(), None
    narrow = steps.astype(np.int8)
    return digest, words[:1].copy(), narrow if (narrow == steps).all() else steps


def operands(name: str, seed: int, count: int = 1 << 16) -> tuple[Floats, Floats]:
    """Return pairs of float32: any, near each other in exponent, and subnormal ones and their neighbors."""
    rng = np.random.default_rng([seed, *name.encode()])
    x, y = rng.integers(0, 1 << 32, (2, count), np.uint32)
    third = count // 3
    near = (x >> np.uint32(23) & np.uint32(255)).astype(np.int64) + rng.integers(-2, 3, count)
    y[:third] = (y & np.uint32(0x807FFFFF) | np.clip(near, 0, 255).astype(np.uint32) << np.uint32(23))[:third]
    for words in (x[-third:], y[-third:]):
        words[:] = words & np.uint32(0x807FFFFF) | rng.integers(0, 3, third, np.uint32) << np.uint32(23)
    return x.view(np.float32), y.view(np.float32)


def collect_binary(run: Callable[[str, Floats, Floats], Words], seed: int = 0) -> list[Group]:
    """Compute the functions of two numbers."""
    return [
        Group(f"{name}/binary", name, ["binary"],
              {"x": np.array([seed], np.uint32), "d": run(name, *operands(name, seed))})
        for name in BINARY
    ]  # fmt: skip


def digest_of(words: Words) -> NDArray[np.uint8]:
    """Return the SHA-256 of results."""
    return np.frombuffer(hashlib.sha256(words.astype("<u4").tobytes()).digest(), np.uint8)


def main() -> None:
    """Record, write the file and report."""
    parser = argparse.ArgumentParser(description="Record the special functions of this machine's Hopper GPU.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--library", type=Path, help="the compiled capture.cu; default: compile it")
    parser.add_argument("--only", nargs="+", choices=FUNCTIONS + CONVERSIONS, default=FUNCTIONS + CONVERSIONS)
    parser.add_argument("--dry", action="store_true", help="use NumPy's functions, for 256 words of each octave")
    options = parser.parse_args()
    try:
        if options.dry:
            meta = {"source": "emulator", "gpu": f"NumPy {np.__version__}", **describe(0), "check": check(stand_in)}
            capture = Capture(meta, collect(stand_in, [name for name in options.only if name in FUNCTIONS], 8))
        else:
            with tempfile.TemporaryDirectory() as folder:
                program = Program(options.library or compile_program(Path(folder)))
            meta = {"source": "gpu", **program.device(), **describe(0), "check": check(program.special)}
            capture = Capture(meta, collect(program.special, options.only) + collect_binary(program.binary))
        capture.save(options.out)
    except (CaptureError, OSError) as error:
        sys.exit(f"error: {error}")
    size = options.out.stat().st_size / 1e6
    sys.stdout.write(f"{capture.meta['gpu']}: {capture.meta['check']}; {options.out} ({size:.1f} MB)\n")


if __name__ == "__main__":
    main()
