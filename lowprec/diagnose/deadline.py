"""Time limit of a search."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")
#: Default time limit of a search in seconds.
SECONDS = 60.0


class Deadline:
    """Time at which a search ends.

    Parameters
    ----------
    seconds : float
        Time from now on.
    """

    def __init__(self, seconds: float = SECONDS) -> None:
        self._end = time.monotonic() + seconds

    @property
    def passed(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() >= self._end

    def share(self, part: float) -> Deadline:
        """Return a deadline after a fraction of the remaining time."""
        return Deadline(max(self._end - time.monotonic(), 0.0) * part)

    def limit(self, items: Iterable[T]) -> Iterator[T]:
        """Yield items until the time is over."""
        for _, item in zip(iter(lambda: self.passed, True), items, strict=False):
            yield item
