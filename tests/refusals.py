"""Tables of calls that must be refused, and the test that each table makes."""

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import pytest

import lowprec as lp

Row = tuple[str, str] | tuple[str, type[BaseException], str]


def refusals(rows: Iterable[Row], names: Callable[[], Mapping[str, Any]] = dict) -> Callable[..., None]:
    """Return a test with a case for each row: the call raises the error, and its message says so.

    A row is the source of a call or a statement, the class of the error (`ValueError` where it is left out) and a
    regular expression that its message matches. The source may use `lp`, `np` and what `names` returns; `names` is
    called once, by the first case, so that collecting the table computes nothing.

    Examples
    --------
    >>> test_bad_formats = refusals([("lp.formats['e9m9']", KeyError, "no such format 'e9m9'")])
    """
    table = [(row[0], *((ValueError, row[1]) if len(row) == 2 else row[1:])) for row in rows]
    known = functools.cache(lambda: {"lp": lp, "np": np, **names()})

    @pytest.mark.parametrize(("call", "error", "message"), table, ids=[row[0] for row in table])
    def test(call: str, error: type[BaseException], message: str) -> None:
        with pytest.raises(error, match=message):
            exec(call, dict(known()))

    return test
