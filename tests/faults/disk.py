"""A disk that fails at the n-th operation of what writes files: writing, reaching the disk, taking the file's name."""

import builtins
import contextlib
import errno
import os
from types import SimpleNamespace

from lowprec._files import writing
from lowprec.study.run import store


class FailingFile:
    """An open file whose writes are counted; the one that fails leaves half of what it was given."""

    def __init__(self, file, disk):
        self._file, self._disk = file, disk

    def write(self, content):
        if self._disk.fails("write"):
            self._file.write(content[: len(content) // 2])
            self._file.flush()
            self._disk.fail()
        return self._file.write(content)

    def __getattr__(self, name):
        return getattr(self._file, name)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        return self._file.__exit__(*exception)


class Disk:
    """Counts operations and fails at one of them.

    Parameters
    ----------
    at : int, optional
        The operation that fails, counted from 1; by default none.
    for_good : bool
        Whether all that follow fail, too, as those of a full disk do.
    die : bool
        Whether the process ends at once instead, with nothing cleaned up, as when the power goes.
    """

    def __init__(self, at=None, *, for_good=False, die=False):
        self.at, self.for_good, self.die = at, for_good, die
        self.operations = []

    def fails(self, operation):
        self.operations.append(operation)
        n = len(self.operations)
        return self.at is not None and (n == self.at or (self.for_good and n > self.at))

    def fail(self):
        if self.die:
            os._exit(9)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _open(self, path, mode="r", **options):
        file = builtins.open(path, mode, **options)  # noqa: SIM115  whoever asked closes it
        return FailingFile(file, self) if mode in ("xb", "a") else file

    def _counted(self, name):
        real = getattr(os, name)

        def call(*args):
            if self.fails(name):
                self.fail()
            return real(*args)

        return call


@contextlib.contextmanager
def using(disk):
    """Let the atomic writer, and what appends to a study's curves, write to such a disk."""
    real = writing.os
    counted = {name: disk._counted(name) for name in ("write", "fsync", "replace")}
    writing.os = SimpleNamespace(**{**vars(os), **counted})
    writing.open = store.open = disk._open
    try:
        yield disk
    finally:
        writing.os = real
        del writing.open, store.open
