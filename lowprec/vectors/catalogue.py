"""The catalogue of vector sets: families by name, and sets by their full names."""

from __future__ import annotations

from ..registry import Registry
from .attention import AttentionFamily
from .block_formats import BlockFormatFamily
from .blocks import LogfmtFamily, QuantizeFamily
from .casts import CastFamily, DecodeFamily, RoundFamily
from .codecs import CodecFamily
from .family import Family
from .products import GemmFamily, MmaFamily
from .stochastic import StochasticFamily
from .tables import HybridFamily, TableCastFamily, TableDecodeFamily
from .vectors import VectorSet

families: Registry[Family] = Registry("family of vector sets", Family)  # type: ignore[type-abstract]
"""The families by name."""
for _family in (
    CastFamily(),
    DecodeFamily(),
    RoundFamily(),
    TableCastFamily(),
    TableDecodeFamily(),
    HybridFamily(),
    StochasticFamily(),
    MmaFamily(),
    GemmFamily(),
    QuantizeFamily(),
    BlockFormatFamily(),
    LogfmtFamily(),
    CodecFamily(),
    AttentionFamily(),
):
    families.register(_family.name, _family)


def split(name: str) -> tuple[Family, tuple[str, ...]]:
    """Return the family of a set and the other parts of its full name."""
    family, *parts = name.strip("/").split("/")
    return families[family], families[family].full(parts)


def listed() -> list[str]:
    """Return the full names of all listed sets; sets that differ from them only in a parameter are left out."""
    return [name for family in families for name in families[family].listed()]


def vectors(name: str, level: int = 1, seed: int = 0) -> VectorSet:
    """Make a set of test vectors.

    Parameters
    ----------
    name : str
        A name shown by `lowprec vectors list`. Trailing parts that are omitted get their defaults.
    level : {1, 2}
        1: boundaries. 2: boundaries, pairs of boundaries and random inputs.
    seed : int
        Seed of the random inputs.

    Returns
    -------
    VectorSet
        The same bytes on every machine.

    Raises
    ------
    ValueError
        If the set or the level does not exist.

    Examples
    --------
    >>> s = vectors("cast/e4m3fn/toward_zero")
    >>> s.name, s.header()["definition"]["special codes"]["Inf"]
    ('cast/e4m3fn/toward_zero/ocp_sat', '0x7e')
    """
    if level not in (1, 2):
        raise ValueError(f"vectors: level must be 1 (boundaries) or 2 (pairs and random inputs too), got {level!r}")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ValueError(f"vectors: seed must be an integer >= 0, got {seed!r}")
    family, parts = split(name)
    return family.make(parts, level, seed)
