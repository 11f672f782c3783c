"""The record of the board: cells of all packages in one JSON file, updated package by package."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from .._files import make_folder, read_json, write_json, write_text
from .adapters.harness import Operation
from .causes import rules_of
from .compare import cell
from .environments import PackageError, adapter_of, answers, packages
from .page import page


def call(operation: Operation) -> str:
    """Return the Python expression that applies an operation to `x`."""
    arguments = "".join(f", {name}={value!r}" for name, value in operation.arguments.items())
    return f"{operation.function.__name__}(x{arguments})"


def facts(package: str, operation: Operation) -> dict[str, Any]:
    """Return the items of a cell that do not depend on answers."""
    return {
        "package": package, "operation": operation.name, "call": call(operation), "entry": operation.entry,
        "options": dict(operation.options), "inputs": operation.inputs,
    }  # fmt: skip


def update(
    chosen: Sequence[str], record: Path, text: Path, cache: Path, timeout: float, progress: Callable[[str], None]
) -> dict[str, Any]:
    """Run packages, all if none is chosen, and write the record and the page after each; return the board.

    Raises
    ------
    UnknownNameError
        If a package is unknown.
    ValueError
        If a folder cannot be written, or the record is damaged.
    """
    chosen = [*chosen] or [*packages()]
    for package in chosen:
        adapter_of(package)
    for file in (record, text):
        make_folder(file.parent)
    board = _read(record)
    for package in chosen:
        operations: list[Operation] = adapter_of(package).OPERATIONS
        try:
            found, notes = answers(package, cache, partial(_named, package, progress), timeout)
        except PackageError as error:
            found, notes = {}, {"error": str(error), "errors": {}}
        cells = []
        for number, operation in enumerate(operations, 1):
            progress(f"{package}: compares {number}/{len(operations)} {operation.name}")
            reason = notes["errors"].get(operation.name, notes.get("error"))
            answer = (
                {"error": reason}
                if reason
                else cell(operation, found[operation.name], rules_of(package, operation.name))
            )
            cells.append(facts(package, operation) | answer)
        board = _read(record)  # another process may have added packages
        known = {name: value for name, value in notes.items() if name in ("versions", "host", "error")}
        board["packages"] = dict(sorted((board["packages"] | {package: known}).items()))
        board["cells"] = sorted(
            [*(c for c in board["cells"] if c["package"] != package), *cells], key=lambda c: c["package"]
        )
        write_json(record, board)
        write_text(text, page(board))
    return board


def _read(record: Path) -> dict[str, Any]:
    board: dict[str, Any] = read_json(record) if record.exists() else {"packages": {}, "cells": []}
    return board


def _named(package: str, progress: Callable[[str], None], line: str) -> None:
    progress(f"{package}: {line}")
