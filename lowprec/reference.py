"""Find, load and verify `reference_data/`: the checkout's folder, or the copy inside an installed wheel.

The folder's README.md has a table with a row for every file; the row's last cell is the file's SHA-256. Loading
verifies the hash, so that a test or a figure never uses a file that was changed.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

TABLE = "README.md"
HEADER = ("file", "what", "source", "command", "sha256")


class ReferenceDataError(RuntimeError):
    """Error for missing or changed reference data; the message names the file and the command that makes it."""


@dataclass(frozen=True)
class Entry:
    """A row of the table in README.md.

    Attributes
    ----------
    file : str
        Path inside the folder.
    what, source, command : str
        Content, origin, and command that makes the file.
    sha256 : str
        Hash of the file, 64 hexadecimal digits.
    """

    file: str
    what: str
    source: str
    command: str
    sha256: str


def folder() -> Path:
    """Return the folder with the reference data: that of the checkout, or else that of the wheel.

    Raises
    ------
    ReferenceDataError
        If neither exists.

    Examples
    --------
    >>> from lowprec import reference
    >>> (reference.folder() / "README.md").is_file()
    True
    """
    package = Path(__file__).resolve().parent
    checkout = package.parent / "reference_data"
    for candidate in (checkout, package / "_reference_data"):
        # Next to an installed package there may be an unrelated folder of that name.
        if (candidate / TABLE).is_file() and (candidate != checkout or (package.parent / "pyproject.toml").is_file()):
            return candidate
    raise ReferenceDataError(
        f"reference data cannot be found: neither {checkout} nor {package / '_reference_data'} has a {TABLE}"
    )


def entries(where: Path | None = None) -> dict[str, Entry]:
    """Return the rows of the table, by file.

    Parameters
    ----------
    where : Path, optional
        Another folder with such a table.

    Raises
    ------
    ReferenceDataError
        If the table is missing, or a row is incomplete.

    Examples
    --------
    >>> from lowprec import reference
    >>> len(reference.entries()["golden_losses.json"].sha256)
    64
    """
    table = (folder() if where is None else where) / TABLE
    try:
        lines = table.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ReferenceDataError(f"{table}: {error.strerror}") from None
    rows = [
        tuple(cell.strip() for cell in line.strip().strip("|").split("|")) for line in lines if line.startswith("|")
    ]
    if not rows or rows[0] != HEADER:
        raise ReferenceDataError(f"{table} must have a table with the columns {', '.join(HEADER)}, got none")
    found: dict[str, Entry] = {}
    for row in rows[2:]:
        if len(row) != len(HEADER) or len(row[-1]) != 64 or set(row[-1]) - set("0123456789abcdef"):
            raise ReferenceDataError(
                f"{table}: row {row[0]!r} must have {len(HEADER)} cells, the last a SHA-256, got {row[1:]!r}"
            )
        found[row[0]] = Entry(row[0], row[1], row[2], row[3].strip("`"), row[4])
    return found


def path(file: str, where: Path | None = None) -> Path:
    """Return the path of a file after comparing its hash.

    Parameters
    ----------
    file : str
        Path inside the folder, as in the table.
    where : Path, optional
        Another folder with such a table.

    Raises
    ------
    KeyError
        If the table has no row for the file.
    ReferenceDataError
        If the file is missing or changed.

    Examples
    --------
    >>> from lowprec import reference
    >>> reference.path("golden_losses.json").name
    'golden_losses.json'
    """
    base = folder() if where is None else where
    known = entries(base)
    if file not in known:
        raise KeyError(f"unknown reference data {file!r}: expected one of {', '.join(known) or 'none'}")
    found, entry = base / file, known[file]
    try:
        digest = hashlib.sha256(found.read_bytes()).hexdigest()
    except OSError as error:
        raise ReferenceDataError(f"{found}: {error.strerror}; made by: {entry.command}") from None
    if digest != entry.sha256:
        raise ReferenceDataError(
            f"{found} must have SHA-256 {entry.sha256}, as in the table, got {digest}; made by: {entry.command}"
        )
    return found


def load_json(file: str, where: Path | None = None) -> Any:
    """Return the content of a JSON file; errors are those of `path`."""
    return json.loads(path(file, where).read_text(encoding="utf-8"))


def load_arrays(file: str, where: Path | None = None) -> dict[str, NDArray[Any]]:
    """Return the arrays of an npz file by name; errors are those of `path`."""
    with np.load(path(file, where), allow_pickle=False) as data:
        return dict(data)


def verify(where: Path | None = None) -> list[Entry]:
    """Check that all files match the table, and that the table has a row for every file.

    Parameters
    ----------
    where : Path, optional
        Another folder with such a table.

    Returns
    -------
    list of Entry
        Rows of the compared files.

    Raises
    ------
    ReferenceDataError
        If a file is missing or changed, or a data file has no row.
    """
    base = folder() if where is None else where
    known = entries(base)
    for file in known:
        path(file, base)
    data = (p for p in sorted(base.rglob("*")) if p.suffix in (".json", ".npz", ".csv", ".bin"))
    strays = [p.relative_to(base).as_posix() for p in data if p.relative_to(base).as_posix() not in known]
    if strays:
        raise ReferenceDataError(f"{base / TABLE} has no row for {', '.join(strays)}")
    return list(known.values())
