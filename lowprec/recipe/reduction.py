"""How the gradients of data-parallel ranks become one, as data."""

from __future__ import annotations

import re
from dataclasses import dataclass

from lowprec.codec.catalogue import codecs
from lowprec.codec.reductions import all_reduces

#: What a recipe says where one rank has the whole batch.
NONE = "none"


@dataclass(frozen=True)
class Reduction:
    """An all-reduce of gradients.

    Parameters
    ----------
    ranks : int
        Ranks that share a batch evenly, by sequences.
    algorithm : str
        Who sends what, see `lowprec.codec.reductions`.
    codec : str
        What every message goes through.

    Examples
    --------
    >>> Reduction.parse("16 ring fp8_1x128")
    Reduction(ranks=16, algorithm='ring', codec='fp8_1x128')
    >>> Reduction.parse("none") is None
    True
    """

    ranks: int
    algorithm: str
    codec: str

    @classmethod
    def parse(cls, text: str) -> Reduction | None:
        """Read ``"16 ring fp8_1x128"``; None for ``"none"``.

        Raises
        ------
        ValueError
            If it says something else; the message quotes it.
        UnknownNameError
            If there is no such algorithm or codec.
        """
        if text == NONE:
            return None
        found = re.fullmatch(r"([1-9]\d{0,3}) (\S+) (\S+)", text) if isinstance(text, str) else None
        if found is None:
            raise ValueError(
                f"all_reduce={text!r}: {NONE!r}, or ranks, algorithm and codec such as '16 ring fp8_1x128', is needed"
            )
        return cls(int(found[1]), all_reduces.get(found[2]).name, codecs.get(found[3]).name)
