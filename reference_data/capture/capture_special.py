"""Record the special functions of this machine's Hopper GPU for every input.

    python reference_data/capture/capture_special.py OUT.npz [--library libcapture.so]
    python reference_data/capture/capture_special.py OUT.npz --dry    # NumPy's functions instead of the GPU's

All 2^32 inputs of a float32 function are computed, an octave of one sign (2^23 words with the same top nine bits) at a
time. The file has the SHA-256 of each octave's results, which detects every difference, and the results themselves of
the octaves in `KEPT`, of zeros and subnormals, of infinities and NaN, and of those with one result; of 16-bit
functions it has all results. `special_table.py` reads it.

Groups of the file (`capture_file.py`) are

- FUNCTION/digests: ``x`` is log2 of the number of words of an octave, 23 but in a trial, ``d`` the 512 digests;
- FUNCTION/constant: ``x`` lists the top nine bits of octaves with one result, ``d`` these results;
- FUNCTION/T for the top nine bits T: ``x`` is T, ``start`` the first result, and ``d`` the differences between
  neighbours modulo 2^32;
- FUNCTION/pairs: ``d`` has, for the 16-bit word x, the result of x in the low half and of its complement in the high.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from capture import Program, describe
from capture_build import compile_program
from capture_file import Capture, CaptureError, Group
from numpy.typing import NDArray

Words = NDArray[np.uint32]
#: Results of a function for input words: name, first word, step to the next one, number of words.
Run = Callable[[str, int, int, int], Words]
OCTAVES, MANTISSA = 512, 23
_EXACT: dict[str, Callable[..., Any]] = {
    "ex2": np.exp2, "lg2": np.log2, "rcp": np.reciprocal, "rsqrt": lambda x: 1 / np.sqrt(x), "sqrt": np.sqrt,
    "sin": np.sin, "cos": np.cos, "tanh": np.tanh,
}  # fmt: skip
#: Functions of float32, with the exponents of the octaves whose results the file has, of both signs or of positive x.
KEPT: dict[str, tuple[range, tuple[int, ...]]] = {
    "ex2.approx.ftz.f32": (range(-25, 1), (0, 1)), "lg2.approx.ftz.f32": (range(-2, 2), (0,)),
    "rcp.approx.ftz.f32": (range(1), (0,)), "rsqrt.approx.ftz.f32": (range(2), (0,)),
    "sqrt.approx.ftz.f32": (range(2), (0,)), "sin.approx.ftz.f32": (range(-3, 3), (0, 1)),
    "cos.approx.ftz.f32": (range(-3, 3), (0, 1)), "tanh.approx.f32": (range(-4, 4), (0, 1)),
}  # fmt: skip
#: Functions of pairs of 16-bit numbers.
PAIRS = ("ex2.approx.f16x2", "ex2.approx.ftz.bf16x2", "tanh.approx.f16x2", "tanh.approx.bf16x2")
FUNCTIONS = (*KEPT, *PAIRS)
#: Bits of agreement that the self-check demands; documented errors are smaller.
_AGREE = {"f32": 19, "f16x2": 9, "bf16x2": 6}


def stand_in(name: str, first: int, step: int, count: int) -> Words:
    """Compute a function with NumPy in float64, rounded to its format; subnormal float32 become zero, but of tanh."""
    word = np.uint32(first) + np.arange(count, dtype=np.uint32) * np.uint32(step)
    function = _EXACT[name.split(".")[0]]
    if name in KEPT:
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
    if name in KEPT:
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
        bits = _AGREE[name.split(".")[-1]] if name != "tanh.approx.f32" else 10
        start = (0x3F800000, 1 << 16) if name in KEPT else (0x3F80, 1) if "bf16" in name else (0x3C00, 8)
        words, wanted = run(name, *start, 128), stand_in(name, *start, 128)
        got, value = (_values(name, x).astype(np.float64) for x in (words, wanted))
        bad = int((~(np.abs(got - value) <= 2.0**-bits * np.maximum(np.abs(value), 1))).sum())
        wrong += [f"{name} ({bad} of {len(got)})"] * (bad > 0)
        count += len(got)
    if wrong:
        raise CaptureError(f"results are far from the functions' values: {wrong}")
    return f"{count} results are near the functions' values"


def collect(run: Run, names: Sequence[str] = FUNCTIONS, bits: int = MANTISSA) -> list[Group]:
    """Compute all results, or those of 2^bits equidistant words of every octave."""
    groups = []
    for name in names:
        if name in PAIRS:
            x = np.array([0, 1 << 16], np.uint32)
            groups.append(Group(f"{name}/pairs", name, ["pairs"], {"x": x, "d": run(name, 0, 1, 1 << 16)}))
            continue
        exponents, signs = KEPT[name]
        kept = {0, 255, 256, 511} | {sign << 8 | 127 + exponent for sign in signs for exponent in exponents}
        digests, constant = np.empty((OCTAVES, 32), np.uint8), dict[int, np.uint32]()
        for top in range(OCTAVES):
            words = run(name, top << MANTISSA, 1 << MANTISSA - bits, 1 << bits)
            digests[top] = digest_of(words)
            steps: NDArray[Any] = np.diff(words).view(np.int32)
            if not steps.any():
                constant[top] = words[0]
            elif top in kept:
                narrow = steps.astype(np.int8)
                steps = narrow if (narrow == steps).all() else steps
                arrays = {"x": np.array([top], np.uint32), "start": words[:1], "d": steps}
                groups.append(Group(f"{name}/{top}", name, ["octave"], arrays))
        arrays = {"x": np.array(list(constant), np.uint32), "d": np.array(list(constant.values()), np.uint32)}
        groups.append(Group(f"{name}/constant", name, ["constant"], arrays))
        groups.append(Group(f"{name}/digests", name, ["digests"], {"x": np.array([bits], np.uint32), "d": digests}))
    return groups


def digest_of(words: Words) -> NDArray[np.uint8]:
    """Return the SHA-256 of results."""
    return np.frombuffer(hashlib.sha256(words.astype("<u4").tobytes()).digest(), np.uint8)


def main() -> None:
    """Record, write the file and report."""
    parser = argparse.ArgumentParser(description="Record the special functions of this machine's Hopper GPU.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--library", type=Path, help="the compiled capture.cu; default: compile it")
    parser.add_argument("--dry", action="store_true", help="use NumPy's functions, for 256 words of each octave")
    options = parser.parse_args()
    try:
        if options.dry:
            meta, run, bits = {"source": "emulator", "gpu": f"NumPy {np.__version__}"}, stand_in, 8
        else:
            with tempfile.TemporaryDirectory() as folder:
                program = Program(options.library or compile_program(Path(folder)))
            meta, run, bits = {"source": "gpu", **program.device()}, program.special, MANTISSA
        capture = Capture({**meta, **describe(0), "check": check(run)}, collect(run, bits=bits))
        capture.save(options.out)
    except (CaptureError, OSError) as error:
        sys.exit(f"error: {error}")
    size = options.out.stat().st_size / 1e6
    sys.stdout.write(f"{capture.meta['gpu']}: {capture.meta['check']}; {options.out} ({size:.1f} MB)\n")


if __name__ == "__main__":
    main()
