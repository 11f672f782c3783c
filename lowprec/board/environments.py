"""Packages in separate environments: installation, and runs of their adapters in a separate process."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import inspect
import json
import os
import pkgutil
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from .._files import locked, make_folder
from ..definitions.code import hash_of_source
from ..registry import UnknownNameError, suggest
from . import adapters
from .inputs import digest, inputs

_START = "import sys; sys.path.append(sys.argv[1]); from adapters import harness; "
_MAIN, _VERSIONS = "harness.main(*sys.argv[2:])", "print(harness.versions(sys.argv[2]))"
_QUIET = {"JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}


class PackageError(Exception):
    """Error for a package that cannot be installed, imported or run; the message gives the reason."""


@functools.cache
def packages() -> dict[str, ModuleType]:
    """Return the adapters, by the names of their packages."""
    names = sorted(found.name for found in pkgutil.iter_modules(adapters.__path__) if found.name != "harness")
    modules = [importlib.import_module(f"{adapters.__name__}.{name}") for name in names]
    return {module.VERSIONS[0]: module for module in modules}


def adapter_of(package: str) -> ModuleType:
    """Return the adapter of a package.

    Raises
    ------
    UnknownNameError
        If the package is unknown; the message lists the known ones.
    """
    if package not in packages():
        raise UnknownNameError(f"board: unknown package {package!r}: {suggest(package, list(packages()))}")
    return packages()[package]


def answers(
    package: str, cache: Path, progress: Callable[[str], None], timeout: float
) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Return the answers of a package by operation, and notes on versions, host and errors.

    Parameters
    ----------
    package : str
        Name of a package.
    cache : path
        Folder for environments and answers. Answers are computed once per version, adapter and inputs.
    progress : callable
        Function that takes a line of text.
    timeout : float
        Seconds after which a run is stopped.

    Raises
    ------
    PackageError
        If the package cannot be installed, imported or run, or another process uses its environment.
    """
    module = adapter_of(package)
    name, folder = module.__name__.rsplit(".", 1)[-1], make_folder(cache / module.ENVIRONMENT)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(locked(folder))
        except ValueError as error:
            raise PackageError(str(error)) from None
        python, here = _installed(folder, module, progress), os.fspath(Path(__file__).parent)
        versions = _run([python, "-c", _START + _VERSIONS, here, name], timeout)
        given = _written(module, cache)
        key = hashlib.sha256(json.dumps([versions, given.name, *_computed(module)]).encode()).hexdigest()[:16]
        out = make_folder(cache / "answers") / f"{name}-{key}.npz"
        if not out.exists():
            command = [python, "-c", _START + _MAIN, here, name, os.fspath(given), os.fspath(out)]
            _run(command, timeout, progress)
    return _read(out)


def _computed(module: ModuleType) -> list[Any]:
    """Return an adapter's functions, as hashes, and their calls: all that determines its answers."""
    functions = [value for _, value in inspect.getmembers(module, inspect.isfunction)]
    calls = [(o.name, o.function.__name__, repr(o.arguments), o.inputs, o.step) for o in module.OPERATIONS]
    return [*(hash_of_source(function.__code__.co_filename, function.__name__) for function in functions), *calls]


def _read(path: Path) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    with np.load(path, allow_pickle=False) as file:
        notes = json.loads(str(file["notes"]))
        found: dict[str, dict[str, Any]] = {}
        for name in file.files:
            if name != "notes":
                operation, part = name.rsplit("|", 1)
                found.setdefault(operation, {})[part] = file[name]
    return found, notes


def _installed(folder: Path, module: ModuleType, progress: Callable[[str], None]) -> str:
    """Install the requirements of an adapter, once, and return the path of the environment's Python."""
    python, done = folder / "bin" / "python", folder / "needs.txt"
    if not done.exists():  # Python alone may be of an interrupted call, without pip
        progress("makes an environment")
        _run([sys.executable, "-m", "venv", "--clear", os.fspath(folder)], 300)
    known = done.read_text().splitlines() if done.exists() else []
    for needs in (module.NEEDS, *getattr(module, "THEN", ())):
        if (line := " ".join(needs)) not in known:
            progress(f"installs {line}")
            _run([os.fspath(python), "-m", "pip", "install", "-q", *needs], 1800)
            known.append(line)
            done.write_text("\n".join(known) + "\n")
    return os.fspath(python)


def _written(module: ModuleType, cache: Path) -> Path:
    """Write the inputs of an adapter; return their folder, whose name is a hash of them."""
    keys = sorted({operation.inputs for operation in module.OPERATIONS})
    arrays = [inputs(key) for key in keys]
    folder = cache / "inputs" / hashlib.sha256(" ".join([*keys, digest(arrays)]).encode()).hexdigest()[:16]
    if not folder.exists():
        part = make_folder(folder.with_suffix(f".{os.getpid()}"))
        for key, array in zip(keys, arrays, strict=True):
            np.save(part / f"{key.replace('/', '_')}.npy", array)
        try:
            part.rename(folder)
        except OSError:
            if not folder.exists():
                raise
            shutil.rmtree(part)  # another process was first, with the same arrays
    return folder


def _run(command: list[str], timeout: float, progress: Callable[[str], None] | None = None) -> str:
    """Run a command, pass its lines on, and return its output."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | _QUIET
    ) as process:  # fmt: skip
        errors: list[str] = []
        reader = threading.Thread(target=lambda: errors.extend(process.stderr or ()))
        timer = threading.Timer(timeout, process.kill)
        reader.start()
        timer.start()
        try:
            lines = list(_passed_on(process.stdout or (), progress))
            process.wait()
        finally:
            overdue = not timer.is_alive()
            timer.cancel()
            with contextlib.suppress(OSError):
                process.kill()
            reader.join()
    if process.returncode:
        last = " ".join("".join(errors[-3:]).split())[-300:]
        raise PackageError(f"stopped after {timeout:g} s" if overdue else last or f"exit code {process.returncode}")
    return "".join(lines)


def _passed_on(lines: Any, progress: Callable[[str], None] | None) -> Iterator[str]:
    for line in lines:
        if progress is not None:
            progress(line.rstrip())
        yield line
