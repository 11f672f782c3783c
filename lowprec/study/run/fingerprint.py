"""Fingerprints of runs: everything that affects their numbers, comparison of fingerprints, and a record of the host.

A run can be resumed, or reported with others, only if the fingerprints match.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
import sys
from collections.abc import Collection
from importlib import metadata
from pathlib import Path
from typing import Any

import lowprec

from ...definitions import iter_differences
from ...definitions.code import code_hash as code_hash
from .store import StudyError

#: Entries of a fingerprint that must be equal in all runs of one report.
SHARED = ("code", "versions", "data", "config", "backend")
#: Entries that must be equal in all runs of one arm.
OF_AN_ARM = ("recipe", "tail", "config")
#: CPU features that a run records.
CPU_FEATURES = (
    "avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512_bf16", "amx_bf16", "amx_tile", "asimd",
    "asimdhp", "bf16", "sve",
)  # fmt: skip


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that take part in the arithmetic."""
    return {
        "lowprec": lowprec.__version__,
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in ("numpy", "numba", "llvmlite")},
    }


def differences(old: Any, new: Any, path: str = "") -> list[str]:
    """Return one line per difference between two nested JSON objects, ignoring the names of recipes.

    Examples
    --------
    >>> differences({"data": "aa", "steps": 3}, {"data": "bb", "steps": 3})
    ["data: 'aa' then, 'bb' now"]
    """
    return [f"{place}: {then!r} then, {now!r} now" for place, then, now in iter_differences(old, new, path)]


def key_of(content: Any) -> str:
    """Return a hash of a nested JSON object, twelve hexadecimal digits, ignoring the names of recipes and their parts.

    Examples
    --------
    >>> key_of({"recipe": {"about": {"name": "a"}, "hash": "51c0"}, "seed": 1}) == key_of({"recipe": "51c0", "seed": 1})
    True
    """
    text = json.dumps(_without_names(content), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _without_names(content: Any) -> Any:
    if isinstance(content, dict):
        return content.get("hash") or {key: _without_names(value) for key, value in content.items()}
    return [_without_names(item) for item in content] if isinstance(content, list) else content


def check_mixture(
    folder: Path,
    name: str,
    record: dict[str, Any],
    first: dict[str, Any],
    first_of_arm: dict[str, Any],
    varied: Collection[str] = (),
) -> None:
    """Refuse a report over runs with different code, packages, data or model, or with two versions of an arm's recipe.

    `varied` lists entries, such as ``"config.bias_update_speed"``, in which arms differ on purpose.

    Raises
    ------
    StudyError
        If the run differs from the others; the message lists the differences.
    """
    found = []
    for key, other in [*((key, first) for key in SHARED), *((key, first_of_arm) for key in OF_AN_ARM)]:
        lines = differences(other["fingerprint"].get(key), record["fingerprint"].get(key), key)
        found += [line for line in lines if other is first_of_arm or line.partition(": ")[0] not in varied]
    if found:
        shown = "; ".join(found[:4]) + (f"; and {len(found) - 4} more" if len(found) > 4 else "")
        raise StudyError(
            f"{folder} mixes runs that cannot be compared: {name} differs from {first['name']} in {shown} "
            '("then" is the latter); resume the study with --restart, or report each on its own'
        )


def unfinished_error(folder: Path, missing: list[str]) -> StudyError:
    """Return the error for a report over an unfinished study."""
    shown = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
    return StudyError(f"{folder}: {len(missing)} runs are not finished ({shown}); resume the study first")


@functools.cache
def host() -> dict[str, Any]:
    """Describe this computer, for the record; results do not depend on it."""
    cpu, flags = platform.processor() or "unknown", ""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                cpu = value.strip()
            elif key.strip() in ("flags", "Features"):
                flags = value
                break
    except OSError:
        pass
    return {
        "cpu": cpu,
        "features": [name for name in CPU_FEATURES if name in flags.split()],
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": platform.platform(),
        "executable": sys.executable,
        "openblas": _openblas_core(),
    }


def _openblas_core() -> str | None:
    """Return the kernel family that NumPy's OpenBLAS chose, or None if it cannot be queried."""
    import ctypes

    import numpy.linalg  # noqa: F401  (loads the library)

    try:
        mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "openblas" in line}
        # SciPy's own copy of OpenBLAS is a different one.
        library = ctypes.CDLL(next(path for path in sorted(mapped) if "scipy.libs" not in path))
        for name in ("scipy_openblas_get_corename64_", "openblas_get_corename64_", "openblas_get_corename"):
            if hasattr(library, name):
                function = getattr(library, name)
                function.restype = ctypes.c_char_p
                return str(function().decode())
    except (OSError, StopIteration, AttributeError):
        pass
    return None
