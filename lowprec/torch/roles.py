"""Which layer of a recipe a linear layer of a torch model is, by its name.

Recipes speak of ``layers.3.attn.wo``; models say ``model.layers.3.self_attn.o_proj``, ``transformer.h.3.attn.c_proj``
and much else. The first number in a name is the block.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase

#: What finds a layer's role: "auto", patterns of module names, or a function; None leaves it to "auto".
Names = str | Mapping[str, str] | Callable[[str], str | None]

_FEED_FORWARD = {
    **dict.fromkeys(("gate_proj", "w1", "fc1", "c_fc", "linear1"), "w1"),
    **dict.fromkeys(("up_proj", "w3"), "w3"),
    **dict.fromkeys(("down_proj", "w2", "fc2", "linear2"), "w2"),
}
_AFTER_ATTENTION = ("o_proj", "out_proj", "wo")
_HEADS = ("lm_head", "head", "embed_out", "output")
_GATES = ("gate", "router")
#: What most linear layers do, and so what an unknown one does.
_MOST = "attn.wq_a"


def block_of(name: str) -> int | None:
    """Return the block that a module's name names.

    Examples
    --------
    >>> block_of("model.layers.3.mlp.experts.7.w1"), block_of("lm_head")
    (3, None)
    """
    number = re.search(r"(?:^|\.)(\d+)(?:\.|$)", name)
    return int(number[1]) if number else None


def role(name: str, names: Names = "auto") -> str:
    """Return the layer of a recipe that a module of a model is.

    Examples
    --------
    >>> role("model.layers.3.self_attn.o_proj"), role("transformer.h.0.mlp.c_proj"), role("lm_head")
    ('layers.3.attn.wo', 'layers.0.ffn.w2', 'head')
    >>> role("model.layers.1.mlp.shared_experts.up_proj"), role("net.2", {"net.2": "head"})
    ('layers.1.ffn.shared.w3', 'head')
    """
    given = None
    if isinstance(names, Mapping):
        given = next((said for pattern, said in names.items() if fnmatchcase(name, pattern)), None)
    elif callable(names):
        given = names(name)
    elif names != "auto":
        raise TypeError(f"lowprec.torch: names={names!r}: 'auto', a mapping of patterns to layers, or a function")
    return given if given is not None else _auto(name)


def _auto(name: str) -> str:
    *path, leaf = name.split(".")
    block = block_of(name)
    if block is None and leaf in _HEADS:
        return "head"
    where = f"layers.{block or 0}"
    if leaf == "c_proj":
        leaf = "wo" if any("attn" in part for part in path) else "w2"
    if leaf in _AFTER_ATTENTION:
        return f"{where}.attn.wo"
    if leaf in _GATES:
        return f"{where}.ffn.gate"
    if leaf in _FEED_FORWARD:
        return f"{where}.ffn.{_network(path)}{_FEED_FORWARD[leaf]}"
    return f"{where}.{_MOST}"


def _network(path: list[str]) -> str:
    if any(part.startswith("shared_expert") for part in path):
        return "shared."
    expert = re.search(r"(?:^|\.)experts\.(\d+)$", ".".join(path))
    return f"experts.{expert[1]}." if expert else ""
