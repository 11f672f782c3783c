"""Record the outputs of this machine's Hopper GPU for the operands of capture_cases.py.

    python reference_data/capture/capture.py OUT.npz [--seed 0] [--digests 200] [--library libcapture.so]

Every instruction first multiplies small integers with sums that every accumulator represents exactly. A wrong operand
layout fails this check, and then no file is written. The program requires NumPy, a GPU of compute capability 9.0, and
nvcc unless --library names a compiled program.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from capture_build import PROGRAM, compile_program, nvcc_version
from capture_cases import (
    CASES,
    INSTRUCTIONS,
    PROMOTED,
    Codes,
    Instruction,
    build,
    build_integers,
    build_promoted,
    cases_of,
    encode_integers,
)
from capture_file import Capture, CaptureError, Group

Tiles = Callable[[Instruction, Codes, Codes, Codes], Codes]
Promoted = Callable[[Codes, Codes, Codes, Codes], Codes]
HOPPER = 90
ALL_CASES = tuple(case.name for case in CASES)


class Program:
    """The compiled capture.cu."""

    def __init__(self, library: Path) -> None:
        self.code = ctypes.CDLL(str(library.resolve()))
        self.code.capture_error.restype = ctypes.c_char_p

    def _check(self, code: int, doing: str) -> None:
        if code:
            raise CaptureError(f"{doing}: {self.code.capture_error(code).decode()}")

    def device(self) -> dict[str, Any]:
        """Describe the GPU and its software.

        Raises
        ------
        CaptureError
            If there is no GPU, or it is not a Hopper GPU.
        """
        name = ctypes.create_string_buffer(256)
        numbers = [ctypes.c_int() for _ in range(3)]
        self._check(self.code.capture_device(name, 256, *map(ctypes.byref, numbers)), "no usable GPU")
        capability, driver, runtime = (number.value for number in numbers)
        if capability != HOPPER:
            raise CaptureError(
                f"{name.value.decode()} has compute capability {capability / 10}, needed is 9.0 (Hopper)"
            )
        return {
            "gpu": name.value.decode(), "capability": capability, "driver": driver,
            "driver_package": driver_package(), "runtime": runtime,
        }  # fmt: skip

    def tiles(self, instruction: Instruction, a: Codes, b: Codes, c: Codes) -> Codes:
        """Run tiles a, b [tiles, 64, K], c [tiles, 64, 64]; return d like c."""
        a, b, c = map(np.ascontiguousarray, (a, b, c))
        d = np.zeros_like(c)
        steps = a.shape[2] // instruction.a.per_step
        pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in (a, b, c, d)]
        code = self.code.capture_tiles(instruction.name.encode(), len(a), steps, *pointers)
        self._check(code, instruction.name)
        return d

    def promoted(self, a: Codes, b: Codes, scale_a: Codes, scale_b: Codes) -> Codes:
        """Run the GEMM with promotion; return the bits of D [M, N]."""
        d = np.zeros((len(a), len(b)), np.uint32)
        pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in (a, b, scale_a, scale_b, d)]
        code = self.code.capture_promoted(len(a), len(b), a.shape[1] // 128, *pointers)
        self._check(code, "the GEMM with promotion")
        return d

    def special(self, name: str, first: int, step: int, count: int) -> Codes:
        """Run a special function on the words first, first + step, and so on."""
        d = np.zeros(count, np.uint32)
        words = map(ctypes.c_uint32, (first, step))
        self._check(self.code.capture_special(name.encode(), *words, count, d.ctypes.data_as(ctypes.c_void_p)), name)
        return d

    def binary(self, name: str, x: Codes, y: Codes) -> Codes:
        """Run a function of two float32 on a multiple of 128 pairs; return words."""
        d = np.zeros(len(x), np.uint32)
        pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in (x, y, d)]
        self._check(self.code.capture_binary(name.encode(), len(x), *pointers), name)
        return d


def driver_package() -> str:
    """Return the version of the installed driver, as in "570.86.15"."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True, timeout=60).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def check(tiles: Tiles, promoted: Promoted, seed: int) -> str:
    """Multiply integers with every instruction and with the GEMM, and return a sentence on the correct outputs.

    The check cannot detect one mistake: the same permutation of k in A and B.

    Raises
    ------
    CaptureError
        If any output is wrong.
    """
    wrong, count = [], 0
    for instruction in INSTRUCTIONS.values():
        a, b, c, exact = build_integers(instruction, seed)
        d = tiles(instruction, a[None], b[None], c[None])[0]
        bad = int(np.count_nonzero(d != encode_integers(instruction.c, exact).astype(d.dtype)))
        wrong += [f"{instruction.name} ({bad} of {d.size})"] * (bad > 0)
        count += d.size
    fp8 = INSTRUCTIONS["wgmma.f32.e4m3.e4m3"]
    parts = [build_integers(fp8, seed + i, 8) for i in (1, 2)]
    a, b = (np.concatenate([part[operand] for part in parts]) for operand in (0, 1))
    scales = np.exp2(np.random.default_rng(seed).integers(0, 3, (2, 128, 2))).astype(np.float32)
    values = [_small_integers(x).reshape(128, 2, 128) * s[:, :, None] for x, s in zip((a, b), scales, strict=True)]
    exact_gemm = np.einsum("ibk,jbk->ij", *values).astype(np.float32)
    bad = int(np.count_nonzero(promoted(a, b, *scales) != exact_gemm.view(np.uint32)))
    wrong += [f"the GEMM with promotion ({bad} of {exact_gemm.size})"] * (bad > 0)
    if wrong:
        raise CaptureError(f"sums of small whole numbers are wrong, so operands do not lie as they should: {wrong}")
    return f"{count + exact_gemm.size} sums of whole numbers are right"


def _small_integers(codes: Codes) -> Codes:
    """Return the values of the e4m3 codes of -2 to 2."""
    values = np.zeros(256)
    values[encode_integers(INSTRUCTIONS["wgmma.f32.e4m3.e4m3"].a, np.arange(-2, 3))] = np.arange(-2, 3)
    return values[codes]


def collect(
    tiles: Tiles,
    promoted: Promoted,
    seed: int,
    instructions: Sequence[str] = tuple(INSTRUCTIONS),
    names: Sequence[str] = ALL_CASES,
    gemms: Sequence[str] = PROMOTED,
) -> list[Group]:
    """Ask everything, and keep questions and answers."""
    groups = []
    for instruction in map(INSTRUCTIONS.__getitem__, instructions):
        cases = [case for case in cases_of(instruction) if case.name in names]
        for steps in sorted({case.steps for case in cases}):
            same = [case for case in cases if case.steps == steps]
            a, b, c = map(np.stack, zip(*(build(instruction, case, seed) for case in same), strict=True))
            arrays = {"a": a, "b": b, "c": c, "d": tiles(instruction, a, b, c)}
            label = f"{instruction.name}.k{a.shape[2]}"
            groups.append(Group(label, instruction.name, [case.name for case in same], arrays))
    for kind in gemms:
        a, b, sa, sb = build_promoted(kind, seed)
        arrays = {"a": a, "b": b, "sa": sa, "sb": sb, "d": promoted(a, b, sa, sb)}
        groups.append(Group(f"promoted.{kind.replace(' ', '_')}", "promoted", [kind], arrays))
    return groups


def collect_digests(tiles: Tiles, promoted: Promoted, seeds: Sequence[int]) -> list[Group]:
    """Return the SHA-256 of the outputs of every group of `collect`, for each seed."""

    def digests(seed: int) -> list[bytes]:
        return [hashlib.sha256(group.arrays["d"].tobytes()).digest() for group in collect(tiles, promoted, seed)]

    with ThreadPoolExecutor() as threads:
        found = np.array(list(threads.map(digests, seeds))).view(np.uint8).reshape(len(seeds), -1, 32)
    arrays = {"x": np.array(seeds, np.uint32), "d": found}
    return [Group("digests", "digests", [f"{len(seeds)} seeds"], arrays)]


def describe(seed: int) -> dict[str, Any]:
    """Return the metadata of a capture about the program that made it."""
    program = hashlib.sha256(PROGRAM.read_bytes()).hexdigest()
    return {"seed": seed, "nvcc": nvcc_version(), "numpy": np.__version__, "program": program}


def main() -> None:
    """Check the program, record the outputs and write the file."""
    parser = argparse.ArgumentParser(description="Record what this machine's Hopper GPU returns.")
    parser.add_argument("out", type=Path, help="file to write (.npz)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--digests", type=int, default=200, help="number of further seeds; the file keeps the SHA-256 of their outputs"
    )
    parser.add_argument("--library", type=Path, help="a compiled capture.cu; without it nvcc compiles one")
    options = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory() as folder:
            program = Program(options.library or compile_program(Path(folder)))
            meta = {"source": "gpu", **program.device(), **describe(options.seed)}
            meta["check"] = check(program.tiles, program.promoted, options.seed)
            capture = Capture(meta, collect(program.tiles, program.promoted, options.seed))
            seeds = range(options.seed + 1, options.seed + 1 + options.digests)
            capture.groups += collect_digests(program.tiles, program.promoted, seeds)
        capture.save(options.out)
    except (CaptureError, OSError) as error:
        sys.exit(f"error: {error}")
    outputs = sum(group.arrays["d"].size for group in capture.groups[:-1])
    sys.stdout.write(
        f"{meta['gpu']}, driver {meta['driver_package']}: {meta['check']}; {outputs} outputs, and digests of "
        f"{outputs * options.digests} more, in {options.out} ({options.out.stat().st_size / 1e6:.1f} MB)\n"
    )


if __name__ == "__main__":
    main()
