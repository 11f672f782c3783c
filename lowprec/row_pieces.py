"""Matrix products by rows: on threads where that pays, and some rows at a time."""

from __future__ import annotations

from collections.abc import Callable

from . import _jit

_QUAD = 4  # rows that the kernels work on together


def over_rows(work: Callable[[int, int], None], rows: int, per_row: int, worth: int, at_once: int) -> None:
    """Call ``work(first, stop)`` for parts of the rows of A, until all are done.

    What lays out rows for a kernel does so in its thread's own memory (`scratch`), which `at_once` keeps small.

    Parameters
    ----------
    work : callable
        Computes some rows of the result.
    rows : int
        How many there are.
    per_row : int
        Multiply-adds of a row.
    worth : int
        Multiply-adds that are worth a thread.
    at_once : int
        Rows of a part at most.
    """

    def piece(start: int, stop: int) -> None:
        for first in range(start, stop, at_once):
            work(first, min(first + at_once, stop))

    _jit.run_chunks(piece, rows, max(1, worth // max(per_row, 1) // _QUAD) * _QUAD)
