"""JSON and CSV with all digits of every float, so that values read back have the same bits.

CSV represents nan and inf as words; JSON, which has no such numbers, as strings.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .writing import PathLike, write_text

# --- JSON ------------------------------------------------------------------------------------------------------------


def to_jsonable(value: Any) -> Any:
    """Convert dataclasses, mappings and sequences to JSON types; non-finite floats become "nan", "inf", "-inf".

    Examples
    --------
    >>> to_jsonable({"loss": float("inf"), "steps": (1, 2)})
    {'loss': 'inf', 'steps': [1, 2]}
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_jsonable(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_jsonable(item) for item in value]
    if isinstance(value, bool) or value is None or isinstance(value, (int, str)):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else repr(float(value))
    if hasattr(value, "item"):
        return to_jsonable(value.item())
    return str(value)


def to_json(value: Any) -> str:
    """Return `to_jsonable(value)` as indented JSON."""
    return json.dumps(to_jsonable(value), indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def write_json(path: PathLike, value: Any) -> None:
    """Write `to_json(value)` to a file atomically, as `write_bytes` does."""
    write_text(path, to_json(value))


def read_json(path: PathLike) -> dict[str, Any]:
    """Read a JSON object.

    Raises
    ------
    OSError
        If the file cannot be read.
    ValueError
        If it is damaged.
    """
    try:
        value = json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{os.fspath(path)} is damaged ({error})") from None
    if not isinstance(value, dict):
        raise ValueError(f"{os.fspath(path)} is damaged (not a JSON object)")
    return value


# --- CSV -------------------------------------------------------------------------------------------------------------


def to_csv(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    r"""Return a table as CSV, with all digits of every float.

    Examples
    --------
    >>> to_csv(("arm", "mean"), [("a, b", 0.1 + 0.2), ("c", float("inf"))])
    'arm,mean\n"a, b",0.30000000000000004\nc,inf\n'
    """
    return csv_rows([head, *rows])


def csv_rows(rows: Iterable[Sequence[Any]]) -> str:
    """Return rows of a table as CSV, without a header."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([[_cell(value) for value in row] for row in rows])
    return text.getvalue()


def _cell(value: Any) -> Any:
    value = value.item() if hasattr(value, "item") else value
    return repr(value) if isinstance(value, float) else value


def read_csv(path: PathLike) -> tuple[list[str], list[list[str]]]:
    """Return the header and the rows of a table; both are empty for an empty file.

    Raises
    ------
    OSError
        If the file cannot be read.
    ValueError
        If a row has more or fewer cells than the header.
    """
    with open(path, encoding="utf-8", newline="") as file:
        head, *rows = [*csv.reader(file)] or [[]]
    for number, row in enumerate(rows, 1):
        if len(row) != len(head):
            raise ValueError(f"{os.fspath(path)} is damaged: row {number} has {len(row)} cells, its head {len(head)}")
    return head, rows
