"""Files: written whole or not at all, and the tables, JSON and arrays that stand in them.

Everything that lowprec saves goes through `write_bytes`. A float is written with every digit, in CSV and in JSON, so
what is read back has the same bits; CSV has words for nan and inf, which JSON lacks.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import errno
import io
import json
import math
import os
import re
import secrets
import stat
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

PathLike = str | os.PathLike[str]

# What a file is called until it is whole.
_PART = ".part"
_LOCK = ".lock"


def write_bytes(path: PathLike, content: bytes) -> None:
    """Write a file so that readers see the old one or the new one, whole, even after a crash.

    A symbolic link is followed. A new file gets the mode that the umask leaves, an existing one keeps its own.

    Parameters
    ----------
    path : str or path
        The file: a regular one or a new one, in a folder that exists.
    content : bytes
        What it will hold.

    Raises
    ------
    OSError
        If it cannot be written, or is a folder, a device or a pipe; the error names the file, and nothing has changed.
    """
    try:
        _replace(Path(os.path.realpath(path)), content)
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(path)) from None


def _replace(path: Path, content: bytes) -> None:
    mode = _mode(path)
    # The start of the name alone: one of the greatest length would leave no room for more.
    part = path.with_name(f".{path.name[:40]}.{os.getpid()}-{secrets.token_hex(4)}{_PART}")
    try:
        with open(part, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if mode is not None:
            part.chmod(mode)
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    # The new name itself reaches the disk only with its folder; not every file system can be asked to.
    with contextlib.suppress(OSError):
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _mode(path: Path) -> int | None:
    """Return the permissions of a regular file, None if there is no file."""
    try:
        found = os.stat(path).st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(found):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(found):
        raise OSError(errno.EINVAL, "not a regular file")
    return stat.S_IMODE(found)


def write_text(path: PathLike, text: str) -> None:
    """Write text as UTF-8, as `write_bytes` does."""
    write_bytes(path, text.encode())


def safe_name(what: str, name: object) -> str:
    """Return a name that becomes a file or a folder inside another folder, and can lead nowhere else.

    Parameters
    ----------
    what : str
        What it names, for the message.
    name : object
        The name, as a file or a program gives it.

    Raises
    ------
    ValueError
        If it is no text, begins with something else than a letter or a digit, is longer than 100 characters, or holds
        anything but letters, digits and ``_ . + -``.

    Examples
    --------
    >>> safe_name("study", "fp8_vs_bf16")
    'fp8_vs_bf16'
    >>> safe_name("study", "../evil")
    Traceback (most recent call last):
    ValueError: study name '../evil': letters, digits and _ . + - only, 100 at most, since it names a file
    """
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,99}", name):
        raise ValueError(
            f"{what} name {str(name)[:120]!r}: letters, digits and _ . + - only, 100 at most, since it names a file"
        )
    return name


def make_folder(path: PathLike) -> Path:
    """Make a folder for output, unless it exists, and make sure that it takes files: before the work, not after it.

    Raises
    ------
    ValueError
        If it cannot be written; the message says why.
    """
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(f"output folder {os.fspath(path)!r} cannot be written: {error.strerror}") from None
    return folder


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep others out of a folder for as long as a block runs; the lock of a process that died is none.

    Raises
    ------
    ValueError
        If somebody else, of this process or another, has the folder, the message says who; or if it cannot be written.
    """
    path = folder / _LOCK
    file = _lock(path)
    try:
        try:
            file.truncate(0)
            os.write(file.fileno(), f"pid {os.getpid()}".encode())  # at once: what is kept back fails again on closing
        except OSError as error:  # a full disk: better before the work than after it
            raise ValueError(f"output folder {os.fspath(folder)!r} cannot be written: {error.strerror}") from None
        yield
    finally:
        path.unlink(missing_ok=True)  # while the lock is held: whoever opens it later makes a new one
        file.close()


def _lock(path: Path) -> TextIO:
    """Return the lock file, locked."""
    import fcntl

    while True:
        file = open(path, "a+", encoding="utf-8")  # noqa: SIM115  the caller closes it
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_file(file, path):
                return file
        except OSError as error:
            file.seek(0)
            who = file.read().strip() or "unknown"
            file.close()
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise
            raise ValueError(f"{os.fspath(path.parent)!r} is in use by another process ({who})") from None
        file.close()  # of a run that ended between the two lines above: there is a new file, or none


def _is_file(file: TextIO, path: Path) -> bool:
    """Tell whether an open file is the one that a path names now."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def place_aside(folder: Path) -> Path:
    """Return the next free `<name>.<number>` beside a folder."""
    number = 1
    while (target := folder.with_name(f"{folder.name}.{number}")).exists():
        number += 1
    return target


def set_aside(folder: Path) -> Path:
    """Rename a folder, locked by the caller, to `place_aside` and return the new path."""
    target = folder.rename(place_aside(folder))
    (target / _LOCK).unlink(missing_ok=True)
    return target


def remove_parts(folder: Path) -> None:
    """Remove what killed processes left of files that they were writing in a folder."""
    for left in folder.glob(f".*{_PART}"):
        left.unlink(missing_ok=True)


# --- JSON ------------------------------------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """Return dataclasses, mappings and sequences as JSON's types; floats that JSON lacks become "nan", "inf", "-inf".

    Examples
    --------
    >>> plain({"loss": float("inf"), "steps": (1, 2)})
    {'loss': 'inf', 'steps': [1, 2]}
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, bool) or value is None or isinstance(value, (int, str)):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else repr(float(value))
    if hasattr(value, "item"):
        return plain(value.item())
    return str(value)


def to_json(value: Any) -> str:
    """Return `plain(value)` as lines of JSON."""
    return json.dumps(plain(value), indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def write_json(path: PathLike, value: Any) -> None:
    """Write `to_json(value)`, as `write_bytes` does."""
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
        raise ValueError(f"{os.fspath(path)} is damaged (no JSON object)")
    return value


# --- CSV -------------------------------------------------------------------------------------------------------------


def to_csv(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    r"""Return a table as CSV, floats with every digit.

    Examples
    --------
    >>> to_csv(("arm", "mean"), [("a, b", 0.1 + 0.2), ("c", float("inf"))])
    'arm,mean\n"a, b",0.30000000000000004\nc,inf\n'
    """
    return csv_rows([head, *rows])


def csv_rows(rows: Iterable[Sequence[Any]]) -> str:
    """Return rows of a table as CSV, without a head."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([[_cell(value) for value in row] for row in rows])
    return text.getvalue()


def _cell(value: Any) -> Any:
    value = value.item() if hasattr(value, "item") else value
    return repr(value) if isinstance(value, float) else value


def read_csv(path: PathLike) -> tuple[list[str], list[list[str]]]:
    """Return the head and the rows of a table; both are empty if the file is.

    Raises
    ------
    OSError
        If the file cannot be read.
    ValueError
        If a row has more or fewer cells than the head.
    """
    with open(path, encoding="utf-8", newline="") as file:
        head, *rows = [*csv.reader(file)] or [[]]
    for number, row in enumerate(rows, 1):
        if len(row) != len(head):
            raise ValueError(f"{os.fspath(path)} is damaged: row {number} has {len(row)} cells, its head {len(head)}")
    return head, rows


# --- arrays ----------------------------------------------------------------------------------------------------------


def write_npy(path: PathLike, array: ArrayLike) -> None:
    """Write one array in NumPy's format, as `write_bytes` does."""
    import numpy as np

    content = io.BytesIO()
    np.save(content, array)
    write_bytes(path, content.getvalue())


def write_npz(path: PathLike, arrays: Mapping[str, ArrayLike]) -> None:
    """Write arrays as members of an archive in NumPy's format, as `write_bytes` does; the path is taken as it is."""
    import numpy as np

    content = io.BytesIO()
    np.savez(content, **dict(arrays))  # type: ignore[arg-type]  # a member's name is no option
    write_bytes(path, content.getvalue())


def npz_bytes(arrays: Mapping[str, ArrayLike]) -> bytes:
    """Return an archive of arrays that is the same bytes whenever and wherever it is made, unlike `numpy.savez`'s.

    Members stand in the given order, stored as they are, little-endian, without a time.
    """
    import numpy as np

    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as file:
        for name, array in arrays.items():
            member = zipfile.ZipInfo(f"{name}.npy", (1980, 1, 1, 0, 0, 0))  # the first time that an archive can say
            member.create_system = 3
            member.external_attr = 0o644 << 16
            content = io.BytesIO()
            values = np.asarray(array)
            little = np.ascontiguousarray(values.astype(values.dtype.newbyteorder("<")))
            np.lib.format.write_array(content, little.reshape(values.shape), version=(1, 0), allow_pickle=False)
            file.writestr(member, content.getvalue())
    return archive.getvalue()
