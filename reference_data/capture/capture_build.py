"""Compile capture.cu."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from capture_file import CaptureError

PROGRAM = Path(__file__).with_name("capture.cu")
FLAGS = (
    "-O2", "-std=c++17", "-gencode", "arch=compute_90a,code=sm_90a", "--default-stream", "per-thread",
    "-Werror", "all-warnings", "-Xcompiler", "-fPIC,-Wall,-Wextra",
)  # fmt: skip


def nvcc() -> str | None:
    """Return the path of nvcc, or None."""
    usual = Path("/usr/local/cuda/bin/nvcc")
    return shutil.which("nvcc") or (str(usual) if usual.is_file() else None)


def nvcc_version() -> str:
    """Return nvcc's version, as in "13.0.88"."""
    compiler = nvcc()
    if compiler is None:
        return "unknown"
    text = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"V(\d+\.\d+\.\d+)", text)
    return found.group(1) if found else "unknown"


def compile_program(folder: Path, *, cubin: bool = False) -> Path:
    """Compile the program to a library, or to machine code alone, without a warning.

    Raises
    ------
    CaptureError
        If nvcc is missing or reports an error or a warning.
    """
    compiler = nvcc()
    if compiler is None:
        raise CaptureError("nvcc is not installed (CUDA 12.8 or later is needed), or --library names a compiled one")
    target = folder / ("capture.cubin" if cubin else "libcapture.so")
    command = [compiler, *FLAGS, "-cubin" if cubin else "-shared", "-o", str(target), str(PROGRAM)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise CaptureError(f"nvcc failed:\n{done.stdout}{done.stderr}")
    return target
