"""Files and folders for output: written whole or not at all, in folders that one process has at a time."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

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
