"""Recordings of real GPUs: conversion of a checkout of the public repository to files of bits, and their digests.

They were published with "Accurate Models of NVIDIA Tensor Cores" (Khattak and Mikaitis, arXiv:2512.07004) in
github.com/north-numerical-computing/MATLAB-tensor-core, BSD-2-Clause. This package does not redistribute them; it holds
the digests of the converted files only.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._files import write_bytes
from .._files.npy import Archive, npz_bytes
from ..format.catalogue import formats
from ..oracle.values import FLOAT32, decode, encode, fields

VARIABLE = "LOWPREC_HARDWARE_RECORDINGS"
REPOSITORY = "https://github.com/north-numerical-computing/MATLAB-tensor-core"
COMMIT = "b12b5a7"
OUTPUTS = 5000
HINT = (
    f"git clone {REPOSITORY} recordings, lowprec import-recordings recordings --out converted, then "
    f"{VARIABLE}=converted pytest"
)
"""How to obtain the recordings; shown by skipped tests."""

Codes = NDArray[Any]
_GENERATION = {
    "V100": "volta", "A100": "ampere", "A2": "ampere", "Ada": "ada", "L40S": "ada", "H100": "hopper", "H200": "hopper",
    "B200": "blackwell",
}  # fmt: skip
#: Folder of the public repository and format, by kind of operands.
_FOLDERS = {"e4m3": "E4M3", "e5m2": "E5M2", "f16": "fp16", "bf16": "bf16", "tf32": "tf32"}
_FORMATS = {"e4m3": "e4m3fn", "e5m2": "e5m2", "f16": "float16", "bf16": "bfloat16", "tf32": "float32"}
_WIDE = ("bf16_f32", "f16_f16", "f16_f32", "tf32_f32")
_FP8 = ("e4m3_f32", "e5m2_f32", "e4m3_f16", "e5m2_f16")
_KINDS = {
    "V100": _WIDE[1:3], "A100": _WIDE, "A2": _WIDE, "Ada": _WIDE + _FP8, "L40S": _WIDE + _FP8[:2],
    "H100": _WIDE + _FP8, "H200": _WIDE + _FP8, "B200": _WIDE + _FP8,
}  # fmt: skip


@dataclass(frozen=True)
class Recording:
    """Identity of a recording: the GPU, the format of operands ("e4m3", "tf32") and that of results ("f32", "f16")."""

    gpu: str
    operand: str
    output: str

    @property
    def file(self) -> str:
        """Name of the converted file."""
        return f"hw_km_{self.gpu}_{self.operand}_{self.output}.npz"

    @property
    def format(self) -> str:
        """Format of the operands in the arrays: float32 for tf32."""
        return _FORMATS[self.operand]

    @property
    def accumulator(self) -> str:
        """Name of the accumulator that models the recording; FP8 is `wgmma` only on Hopper with float32 results."""
        generation = _GENERATION[self.gpu]
        unit = {"e4m3": "fp8", "e5m2": "fp8"}.get(self.operand, self.operand)
        if unit == "fp8" and (generation == "blackwell" or (generation == "hopper" and self.output == "f16")):
            unit = "fp8_mma"
        return f"{generation}_{unit}" + ("_f16" if self.output == "f16" else "")

    @property
    def has_c(self) -> bool:
        """Whether the recording has an addend c; `wgmma` was recorded without one."""
        return not (_GENERATION[self.gpu] == "hopper" and self.operand in ("e4m3", "e5m2") and self.output == "f32")


RECORDINGS = tuple(Recording(gpu, *kind.split("_")) for gpu, kinds in _KINDS.items() for kind in kinds)
"""All 48 recordings."""


class RecordingError(ValueError):
    """Error for a recording that is missing, damaged or not the published one."""


def convert(checkout: Path, recording: Recording, lines: int | None = OUTPUTS) -> dict[str, Codes]:
    """Read a recording's text files and return bits: A and B [n, K], C and D [n].

    Parameters
    ----------
    checkout : Path
        A checkout of the public repository.
    recording : Recording
        The recording to read.
    lines : int, optional
        Required number of outputs; None for any number.

    Raises
    ------
    RecordingError
        If a file is missing or malformed.
    """
    gpu, name = recording.gpu, _FOLDERS[recording.operand]
    folder = checkout / "model_validation" / gpu / name
    fmt = recording.format
    a, b = (_operands(folder / f"{side}_{gpu}_{name}.txt", fmt) for side in "ab")
    output = "fp16" if recording.output == "f16" else "fp32"
    c, d = (_results(folder / f"{side}.txt") for side in (f"c_{gpu}_fp32", f"d_{gpu}_{output}"))
    if not recording.has_c:
        c = np.zeros_like(c)
    if recording.output == "f16":
        c, d = _as_float16(c, exact=False), _as_float16(d, exact=True)
    sizes = {len(x) for x in (a, b, c, d)}
    if len(sizes) > 1 or a.shape != b.shape:
        raise RecordingError(
            f"{folder}: files must have one output per line, got shapes a {a.shape}, b {b.shape}, c {c.shape}, d "
            f"{d.shape}"
        )
    if lines is not None and len(d) != lines:
        raise RecordingError(f"{folder}: files must have {lines} outputs, as published, got {len(d)}")
    return {"A": a, "B": b, "C": c, "D": d}


def _words(path: Path, base: int, digits: int) -> list[list[int]]:
    try:
        text = path.read_text(encoding="ascii")
    except OSError as error:
        raise RecordingError(f"{path}: {error.strerror}; check out {REPOSITORY} at commit {COMMIT}") from None
    except UnicodeDecodeError:
        raise RecordingError(f"{path} must be ASCII text, got other bytes") from None
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        try:
            found.append([int(word, base) for word in words])
        except ValueError:
            words = []
        if not words or any(len(word) != digits or not word.isalnum() for word in words):
            raise RecordingError(f"{path}, line {number} must be words of {digits} digits, got {line[:60]!r}")
    return found


def _operands(path: Path, fmt: str) -> Codes:
    rows = _words(path, 16, 8)
    if len({len(row) for row in rows}) != 1:
        raise RecordingError(f"{path} must have lines of one length, got {sorted({len(row) for row in rows})} words")
    bits = np.array(rows, np.uint32)
    f = formats[fmt]
    if fmt == "float32":
        return bits
    table, codes = _table(fmt)
    at = np.minimum(np.searchsorted(table, bits), len(table) - 1)
    if not np.array_equal(table[at], bits):
        i, j = np.argwhere(table[at] != bits)[0]
        raise RecordingError(f"{path}, line {i + 1} must have values of {fmt}, got {bits[i, j]:08x}")
    return codes[at].astype(f.code_dtype)


@functools.cache
def _table(fmt: str) -> tuple[Codes, Codes]:
    """Return the float32 bits of all numbers of a format in ascending order, and their codes."""
    f = fields(formats[fmt])
    values = [(code, decode(code, f)) for code in range(1 << (f.width + f.signed))]
    pairs = sorted((encode(value, FLOAT32, "nonsaturate"), code) for code, value in values if value == value)
    return tuple(np.array(side, np.uint32) for side in zip(*pairs, strict=True))  # type: ignore[return-value]


def _results(path: Path) -> Codes:
    rows = _words(path, 2, 32)
    if any(len(row) != 1 for row in rows):
        raise RecordingError(f"{path} must have one word per line, got more")
    return np.array(rows, np.uint32).reshape(-1)


def _as_float16(bits: Codes, exact: bool) -> Codes:
    """Return the float16 codes of float32 bits. Results must be exact; addends are rounded, as by the GPU's program."""
    values = bits.view(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        half = values.astype(np.float16)
    back = half.astype(np.float32).view(np.uint32)
    if exact and not np.array_equal(back[~np.isnan(values)], bits[~np.isnan(values)]):
        raise RecordingError("results of float16 must be float16 numbers, got others")
    return half.view(np.uint16)


def digest(arrays: Mapping[str, Codes]) -> str:
    """Return the SHA-256 of the file that `write` writes for the arrays."""
    return hashlib.sha256(npz_bytes(arrays)).hexdigest()


def write(checkout: Path, out: Path) -> Iterator[tuple[Recording, int]]:
    """Convert all recordings and check their digests; yield each with its number of outputs.

    Raises
    ------
    RecordingError
        If a file is missing, damaged or not the published one.
    """
    known = digests()
    out.mkdir(parents=True, exist_ok=True)
    for recording in RECORDINGS:
        arrays = convert(checkout, recording)
        found = digest(arrays)
        if found != known[recording.file]:
            raise RecordingError(
                f"{recording.file} must have SHA-256 {known[recording.file]}, as of commit {COMMIT}, got {found}; "
                f"git checkout {COMMIT} in {checkout}"
            )
        write_bytes(out / recording.file, npz_bytes(arrays))
        yield recording, len(arrays["D"])


def digests() -> dict[str, str]:
    """Return the SHA-256 of every converted file."""
    text = Path(__file__).with_name("recordings.json").read_text(encoding="utf-8")
    found: dict[str, str] = json.loads(text)
    return found


def read(folder: Path, recording: Recording) -> dict[str, Codes]:
    """Read a converted file.

    Raises
    ------
    RecordingError
        If it is missing or damaged.
    """
    path = folder / recording.file
    try:
        with Archive(path, "a recording, or damaged") as held:
            return {name: held[name] for name in "ABCD"}
    except (OSError, ValueError) as error:
        why = f"{path}: {error.strerror}" if isinstance(error, OSError) else error
        raise RecordingError(f"{why}; made by lowprec import-recordings CHECKOUT --out {folder}") from None


def differing(folder: Path, recording: Recording, block: int = 50) -> tuple[int, int]:
    """Return the number of outputs of a recording, and how many of them our accumulator does not reproduce.

    Raises
    ------
    RecordingError
        If the file is missing or damaged.
    """
    from ..tensorcore.catalogue import accumulators
    from ..tensorcore.mma import mma

    arrays = read(folder, recording)
    a, b, c, d = (arrays[name] for name in "ABCD")
    machine = accumulators[recording.accumulator]
    dtype = np.dtype(machine.dtype)
    if not (a.ndim == b.ndim == 2 and c.ndim == d.ndim == 1 and len(a) == len(b) == len(c) == len(d)) or (
        not c.dtype.itemsize == d.dtype.itemsize == dtype.itemsize
    ):
        raise RecordingError(
            f"{folder / recording.file}: arrays must have one output per row, got A {a.shape}, B {b.shape}, C "
            f"{c.shape} {c.dtype}, D {d.shape}"
        )
    wrong = 0
    for start in range(0, len(d), block):
        rows = slice(start, start + block)
        n = len(d[rows])
        addend = np.zeros((n, n), c.dtype)
        np.fill_diagonal(addend, c[rows])
        fmt = recording.format
        try:
            ours = mma(a[rows], b[rows], addend.view(dtype), accumulator=machine, a_format=fmt, b_format=fmt)
        except (TypeError, ValueError) as error:
            raise RecordingError(f"{folder / recording.file} is damaged: {error}") from None
        wrong += int(np.count_nonzero(np.ascontiguousarray(ours.diagonal()).view(d.dtype) != d[rows]))
    return len(d), wrong
