"""What makes a verdict void, in words: written once for all kinds of studies.

A verdict is void where the runs that it is made of are incomplete, where the same runs came out otherwise when they
were done again (A/A), and where a positive control, a recipe known to hurt, was not detected: then nothing else would.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

VOID = "void"


def said(verdict: str, reasons: Sequence[str]) -> str:
    """Return a verdict, or that it is void and why.

    Examples
    --------
    >>> said("equivalent", ()), said("equivalent", ("a broke", "b is cut off"))
    ('equivalent', 'void: a broke; b is cut off')
    """
    return f"{VOID}: {'; '.join(reasons)}" if reasons else verdict


def headline(reasons: Sequence[str]) -> str:
    """Return the title of a figure whose study is void.

    Examples
    --------
    >>> headline(["a broke"])
    'VOID: a broke'
    """
    return said("", reasons).replace(VOID, VOID.upper(), 1)


def not_identical(repeat: str, reference: str) -> str:
    """Return what is wrong if a repeat (A/A) has other bits."""
    return f"{repeat} is NOT bit-identical to {reference}: runs are not reproducible here"


def not_detected(control: str) -> str:
    """Return what is wrong if a positive control does not hurt."""
    return f"{control} (positive control) is NOT detected: a recipe that is known to hurt cannot be seen here"


def once(reasons: Iterable[str]) -> tuple[str, ...]:
    """Return reasons in order, each once."""
    return tuple(dict.fromkeys(reasons))
