"""All-reduce of the gradients of data-parallel ranks, as data."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from lowprec._checks import check_int
from lowprec._values import Value
from lowprec.codec.catalogue import codecs
from lowprec.codec.wire import Codec
from lowprec.collective.catalogue import collectives
from lowprec.collective.collective import Collective
from lowprec.scaling.spec import Lookup

#: Word for one rank that has the whole batch, where data cannot have None.
NONE = "none"
_CATALOGUES: Mapping[str, Lookup] = {"all_reduce": collectives, "codec": codecs}


@dataclass(frozen=True, eq=False, repr=False)
class GradientAllReduce(Value):
    """An all-reduce of gradients.

    Parameters
    ----------
    ranks : int
        Number of ranks, which share the sequences of a batch evenly.
    algorithm : Collective or str
        Algorithm of the all-reduce, of `lowprec.collectives`.
    codec : Codec or str
        Codec of every message.

    Examples
    --------
    >>> print(GradientAllReduce(16, "ring", "fp8_1x128"))
    16 ring fp8_1x128
    """

    ranks: int
    algorithm: Collective
    codec: Codec

    def __post_init__(self) -> None:
        object.__setattr__(self, "ranks", check_int("Reduction", "ranks", self.ranks, 1))
        object.__setattr__(self, "algorithm", collectives.get(self.algorithm))
        object.__setattr__(self, "codec", codecs.get(self.codec))

    @classmethod
    def parse(
        cls, given: str | GradientAllReduce | None, names: Mapping[str, Lookup] | None = None
    ) -> GradientAllReduce | None:
        """Parse an all-reduce such as ``"16 ring fp8_1x128"``; return None for ``"none"``.

        Parameters
        ----------
        given : str, GradientAllReduce or None
            Words, or an object.
        names : mapping of str to Lookup, optional
            Mappings from names to algorithms and codecs, by default the catalogues.

        Raises
        ------
        ValueError
            If the words have another form; the message quotes them.
        UnknownNameError
            If the algorithm or the codec is unknown.

        Examples
        --------
        >>> GradientAllReduce.parse("16 ring fp8_1x128").ranks, GradientAllReduce.parse("none")
        (16, None)
        """
        if given is None or given == NONE or isinstance(given, GradientAllReduce):
            return given if isinstance(given, GradientAllReduce) else None
        found = re.fullmatch(r"([1-9]\d{0,3}) (\S+) (\S+)", given) if isinstance(given, str) else None
        if found is None:
            raise ValueError(
                f"all_reduce must be {NONE!r} or ranks, algorithm and codec such as '16 ring fp8_1x128', got {given!r}"
            )
        names = _CATALOGUES if names is None else names
        return cls(int(found[1]), names["all_reduce"][found[2]], names["codec"][found[3]])

    def __str__(self) -> str:
        return f"{self.ranks} {self.algorithm.name} {self.codec.name}"
