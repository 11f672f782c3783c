"""Output files and folders: atomic writes, and folders locked by one process at a time."""

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

# Suffix of a file that is being written.
_PART = ".part"
_LOCK = ".lock"


def write_bytes(path: PathLike, content: bytes) -> None:
    """Write a file atomically: readers see the complete old or new content, even after a crash.

    A symbolic link is followed. A new file gets the mode of the umask, an existing one keeps its mode.

    Parameters
    ----------
    path : str or path
        Regular file or new file, in an existing folder.
    content : bytes
        New content.

    Raises
    ------
    OSError
        If it cannot be written, or is a folder, a device or a pipe; the error names the file, and nothing is changed.
    """
    try:
        _replace(Path(os.path.realpath(path)), content)
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(path)) from None


def _replace(path: Path, content: bytes) -> None:
    mode = _mode(path)
    # Only the start of the name: a name of the maximum length leaves no space for a suffix.
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
    # The new name reaches the disk only when its folder is synced, which not every file system supports.
    with contextlib.suppress(OSError):
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _mode(path: Path) -> int | None:
    """Return the permissions of a regular file, or None if it does not exist."""
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
    """Write a string as UTF-8 atomically, as `write_bytes` does."""
    write_bytes(path, text.encode())


def safe_name(what: str, name: object) -> str:
    """Return the name if it is safe for a file or a folder: it cannot lead out of the enclosing folder.

    Parameters
    ----------
    what : str
        Description of the named object, for messages.
    name : object
        Name, from a file or a program.

    Raises
    ------
    ValueError
        If it is not a string, does not begin with a letter or a digit, is longer than 100 characters, or contains
        characters other than letters, digits and ``_ . + -``.

    Examples
    --------
    >>> safe_name("study", "fp8_vs_bf16")
    'fp8_vs_bf16'
    >>> safe_name("study", "../evil")
    Traceback (most recent call last):
    ValueError: study name must have at most 100 letters, digits and _ . + -, as it names a file, got '../evil'
    """
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,99}", name):
        raise ValueError(
            f"{what} name must have at most 100 letters, digits and _ . + -, as it names a file, got "
            f"{str(name)[:120]!r}"
        )
    return name


def make_folder(path: PathLike) -> Path:
    """Create an output folder if it does not exist, and check that it is writable; call it before any work.

    Raises
    ------
    ValueError
        If it cannot be written; the message has the reason.
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
    """Context manager: lock a folder against other users; locks left by dead processes are ignored.

    Raises
    ------
    ValueError
        If the folder is locked, by this process or another, which the message names; or if it cannot be written.
    """
    path = folder / _LOCK
    file = _lock(path)
    try:
        try:
            file.truncate(0)
            os.write(file.fileno(), f"pid {os.getpid()}".encode())  # unbuffered: a buffer would fail again on closing
        except OSError as error:  # a full disk: better reported before the work than after it
            raise ValueError(f"output folder {os.fspath(folder)!r} cannot be written: {error.strerror}") from None
        yield
    finally:
        path.unlink(missing_ok=True)  # while the lock is held: a process that opens it later makes a new file
        file.close()


def _lock(path: Path) -> TextIO:
    """Return the locked lock file."""
    import fcntl

    while True:
        file = open(path, "a+", encoding="utf-8")  # noqa: SIM115  the caller closes it
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_file(file, path):
                return file
        except OSError as error:
            file.seek(0)
            caller = file.read().strip() or "unknown"
            file.close()
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise
            raise ValueError(f"{os.fspath(path.parent)!r} is in use by another process ({caller})") from None
        file.close()  # the run that held it ended between the two lines above: the file was replaced or removed


def _is_file(file: TextIO, path: Path) -> bool:
    """Return whether a path still refers to an open file."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def backup_path(folder: Path) -> Path:
    """Return the next free `<name>.<number>` next to a folder."""
    number = 1
    while (target := folder.with_name(f"{folder.name}.{number}")).exists():
        number += 1
    return target


def move_to_backup(folder: Path) -> Path:
    """Rename a folder, locked by the caller, to `backup_path` and return the new path."""
    target = folder.rename(backup_path(folder))
    (target / _LOCK).unlink(missing_ok=True)
    return target


def remove_temporary_files(folder: Path) -> None:
    """Remove partial files that killed processes left in a folder."""
    for left in folder.glob(f".*{_PART}"):
        left.unlink(missing_ok=True)
