"""Names of linear layers and stored tensors, and the patterns by which rules select them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

from lowprec.registry import UnknownNameError, suggest

_FEED_FORWARD = ("w1", "w2", "w3")
#: Linear layers of a model; one block and one expert represent all.
LINEARS = (
    *(f"layers.0.attn.{name}" for name in ("wq_a", "wq_b", "wkv_a", "wkv_b", "wo")),
    *(f"layers.0.ffn.{name}" for name in (*_FEED_FORWARD, "gate")),
    *(f"layers.0.ffn.{network}.{name}" for network in ("shared", "experts.0") for name in _FEED_FORWARD),
    "layers.0.projection",
    "head",
)
#: Number of blocks of a model in which patterns, which count from either end, do not reach the middle.
DEPTH = 1000
#: Tensors that are stored.
TENSORS = (
    "embed",
    *(f"layers.0.attn.{name}" for name in ("q_norm", "kv_norm", "q", "k", "v", "probs", "output")),
    *(f"layers.0.{name}" for name in ("attn_norm", "ffn_norm", "hidden_norm", "embed_norm", "norm")),
    *(f"layers.0.{name}" for name in ("attn_branch", "ffn_branch")),
    "norm",
)


def matches(name: str, pattern: str, layers: int | None = None) -> bool:
    """Return whether a pattern matches a name in a model with `layers` blocks.

    Examples
    --------
    >>> matches("layers.3.attn.wo", "layers.*.attn.w*"), matches("layers.3.attn.wo", "layers.-1.*", layers=4)
    (True, True)
    """
    if fnmatchcase(name, pattern):
        return not _from_the_end(pattern) or layers is None
    place = re.match(r"layers\.(\d+)\.", name)
    if layers is None or place is None or not _from_the_end(pattern):
        return False
    return fnmatchcase(f"layers.{int(place[1]) - layers}.{name[place.end() :]}", pattern)


def sample_layer_names(patterns: Iterable[str]) -> list[str]:
    """Return names of linear layers of a model of `DEPTH` blocks, one for each case that the patterns distinguish.

    Examples
    --------
    >>> [name for name in sample_layer_names(["layers.-1.*"]) if name.endswith("gate")]
    ['layers.999.ffn.gate', 'layers.0.ffn.gate', 'layers.500.ffn.gate']
    """
    patterns = list(patterns)
    heads = [place for pattern in patterns if (place := re.match(r"layers\.(-?\d+)(\.|$)", pattern))]
    experts = [place for pattern in patterns if (place := re.search(r"\.experts\.(\d+)(\.|$)", pattern))]
    blocks = dict.fromkeys([*(int(place[1]) % DEPTH for place in heads), 0, DEPTH // 2])
    numbers = dict.fromkeys([*(int(place[1]) for place in experts), 0, DEPTH // 2])
    names = {
        name.replace("layers.0.", f"layers.{block}.").replace("experts.0.", f"experts.{expert}."): None
        for block in blocks
        for expert in numbers
        for name in LINEARS
    }
    return list(names)


def _from_the_end(pattern: str) -> bool:
    return re.match(r"layers\.-\d", pattern) is not None


def check_pattern(pattern: str, names: tuple[str, ...]) -> None:
    """Raise an UnknownNameError unless the pattern matches a name in some model."""
    if not isinstance(pattern, str):
        raise TypeError(f"pattern must be a string such as 'layers.*.attn.w*', got {pattern!r}")
    general = re.sub(r"^layers\.-?\d+(?=\.|$)", "layers.0", pattern)
    general = re.sub(r"experts\.\d+(?=\.|$)", "experts.0", general)
    if any(fnmatchcase(name, general) for name in names):
        return
    raise UnknownNameError(f"pattern {pattern!r} matches no layer of any model: {suggest(general, names, 0.6)}")


def check_blocks(patterns: list[str], layers: int | None) -> None:
    """Raise a ValueError if a pattern names a block that a model with `layers` blocks lacks."""
    for pattern in patterns:
        place = re.match(r"layers\.(-?\d+)(\.|$)", pattern)
        if place is None:
            continue
        number = int(place[1])
        if layers is None:
            if number < 0:
                raise ValueError(
                    f"pattern {pattern!r} counts from the last block, so the number of layers must be given, got None"
                )
        elif not -layers <= number <= layers:  # a prediction module has the number after the last block's
            raise ValueError(f"pattern must name a block of a model of {layers} layers, got {pattern!r}")
