"""`Granularity`: the block of a matrix that shares a scale."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from .._checks import MAX_TILE, check_int
from .._values import Value, normalize_fields

_NAMED = {"tensor": (None, None), "row": (1, None), "column": (None, 1)}


@dataclass(frozen=True, eq=False, repr=False)
class Granularity(Value):
    """The block that shares a scale: `rows` x `columns`, where None means the whole axis.

    Examples
    --------
    >>> Granularity.parse("1x128")
    Granularity(rows=1, columns=128)
    >>> str(Granularity.parse((1, None))), str(Granularity(None, 1))
    ('row', 'column')
    """

    rows: int | None
    columns: int | None

    def __post_init__(self) -> None:
        normalize_fields(self)
        for name in ("rows", "columns"):
            if getattr(self, name) is not None:
                check_int("Granularity", name, getattr(self, name), 1, MAX_TILE)

    @classmethod
    def parse(cls, text: str | Sequence[int | None] | Granularity) -> Granularity:
        """Read ``"1x128"``, ``(1, 128)``, ``"tensor"``, ``"row"`` (1 x whole) or ``"column"`` (whole x 1).

        Raises
        ------
        ValueError
            If the string has another form.
        """
        if isinstance(text, Granularity):
            return text
        if isinstance(text, (tuple, list)) and len(text) == 2:
            return cls(*text)
        found = _read(text) if isinstance(text, str) else None
        if found is None:
            known = ", ".join(repr(name) for name in _NAMED)
            raise ValueError(
                f"granularity must be rows x columns such as '1x128' or (1, 128), or one of {known}, got {text!r}"
            )
        return found

    @property
    def T(self) -> Granularity:
        """The same block seen from the transposed matrix."""
        return Granularity(self.columns, self.rows)

    def block(self, shape: tuple[int, int]) -> tuple[int, int]:
        """Return rows and columns of a block within a matrix of the given shape."""
        return self.rows or max(shape[0], 1), self.columns or max(shape[1], 1)

    def scale_shape(self, shape: tuple[int, int]) -> tuple[int, int]:
        """Return the shape of the scales of a matrix, ragged edges included."""
        rows, columns = self.block(shape)
        return -(-shape[0] // rows), -(-shape[1] // columns)

    def __str__(self) -> str:
        for name, sizes in _NAMED.items():
            if sizes == (self.rows, self.columns):
                return name
        return f"{self.rows or 'all'}x{self.columns or 'all'}"


@functools.lru_cache(256)
def _read(text: str) -> Granularity | None:
    """Parse a granularity, with a cache, because a training step parses the same few strings thousands of times."""
    if text in _NAMED:
        return Granularity(*_NAMED[text])
    match = re.fullmatch(r"([1-9]\d*|all)x([1-9]\d*|all)", text)
    if match is None:
        return None
    rows, columns = (None if size == "all" else int(size) for size in match.groups())
    return Granularity(rows, columns)
