"""Lists of names as text."""

from __future__ import annotations

from collections.abc import Sequence

_SHOWN = 4


def join_some(names: Sequence[str]) -> str:
    """Return the first four names, and the number of the others.

    Examples
    --------
    >>> join_some(["a", "b"]), join_some("abcdef")
    ('a, b', 'a, b, c, d and 2 more')
    """
    rest = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + rest


def join_all(names: Sequence[str]) -> str:
    """Return all names, the last after "and".

    Examples
    --------
    >>> join_all(["a"]), join_all("abc")
    ('a', 'a, b and c')
    """
    return ", ".join(names[:-1]) + " and " + names[-1] if len(names) > 1 else names[0]
