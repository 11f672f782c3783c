"""Mapping from the linear layers of a torch model to layers of a recipe, derived from the model's structure.

Recipes have names such as ``layers.3.attn.wo``; models use ``o_proj``, ``c_proj``, ``attention.output.dense`` and many
others. The vocabulary head is the model's output embedding, or a module with a weight tied to an embedding. Attention
is recognized by its class, a feed-forward network by shapes that lead from the block's width to another one and back, a
router by having one output per expert. Leaf names decide only between layers that the structure cannot distinguish.
Everything else is a guess and is reported with its reason. The first number in a name is the block.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import NamedTuple

from torch import nn
from torch.nn.modules.conv import _ConvNd

from lowprec.recipe.names import LINEARS, check_pattern
from lowprec.registry import UnknownNameError

#: Given roles: "auto", patterns of module names, or a function; None means "auto" for that module.
Names = str | Mapping[str, str] | Callable[[str], str | None]
#: Input and output features of a linear layer.
Shape = tuple[int, int]

_FEED_FORWARD = {
    **dict.fromkeys(("gate_proj", "w1", "fc1", "c_fc", "linear1", "wi_0", "gate_up_proj"), "w1"),
    **dict.fromkeys(("up_proj", "w3", "wi_1"), "w3"),
    **dict.fromkeys(("down_proj", "w2", "fc2", "linear2"), "w2"),
}
_AFTER_ATTENTION = ("o_proj", "out_proj", "wo", "o", "c_proj", "to_out")
_HEADS = ("lm_head", "head", "embed_out", "output")
_GATES = ("gate", "router")
#: Role of most linear layers, assumed for an unknown one.
_MOST = "attn.wq_a"
_ATTENTION = re.compile(r"attention|attn", re.IGNORECASE)
_NETWORK = re.compile(r"mlp|ffn|feed_?forward|dense|expert|glu", re.IGNORECASE)
#: Maximum number of input projections of a feed-forward network: gate and up.
_MOST_INPUTS = 2
#: Number of axes of a parameter with the weights of all experts.
_STACKED = 3


class Role(NamedTuple):
    """Layer of a recipe, assigned to a product.

    Attributes
    ----------
    layer : str
        Name of the layer, such as ``"layers.3.attn.wo"``.
    guess : str
        Reason why the role is a guess; empty if it is not.
    """

    layer: str
    guess: str = ""


def block_of(name: str) -> int | None:
    """Return the index of the block in a module's name, or None if the name has no number.

    Examples
    --------
    >>> block_of("model.layers.3.mlp.experts.7.w1"), block_of("lm_head")
    (3, None)
    """
    number = re.search(r"(?:^|\.)(\d+)(?:\.|$)", name)
    return int(number[1]) if number else None


def find_roles(model: nn.Module, shapes: Mapping[str, Shape], names: Names = "auto") -> dict[str, Role]:
    """Return the roles of a model's linear layers.

    Parameters
    ----------
    model : nn.Module
        Model to analyse.
    shapes : mapping of str to (int, int)
        Input and output features of each linear layer, by module name; ``"NAME.3.gate_proj"`` is a product of a
        module of experts.
    names : "auto", mapping or function
        "auto", or roles by pattern of module names or as a function of the name. A role without a block, such as
        ``"ffn.w1"``, is placed in the block of its module.

    Raises
    ------
    UnknownNameError
        If a pattern matches no layer, or a role is not a layer of any recipe.

    Examples
    --------
    >>> model = nn.ModuleDict({"fc1": nn.Linear(8, 32), "fc2": nn.Linear(32, 8), "more": nn.Linear(8, 8)})
    >>> shapes = {"fc1": (8, 32), "fc2": (32, 8), "more": (8, 8)}
    >>> for name, role in find_roles(model, shapes, {"more": "attn.wo"}).items():
    ...     print(name, role.layer)
    fc1 layers.0.ffn.w1
    fc2 layers.0.ffn.w2
    more layers.0.attn.wo
    """
    if not (names == "auto" or isinstance(names, Mapping) or callable(names)):
        raise TypeError(
            f"lowprec.torch: roles must be 'auto', a mapping of patterns to layers or a function, got {names!r}"
        )
    if isinstance(names, Mapping):
        for pattern in names:
            if not any(fnmatchcase(name, pattern) for name in shapes):
                raise UnknownNameError(no_match(pattern, shapes))
    found = _Structure(model, shapes).roles()
    for name in shapes:
        if (given := _given(name, names)) is not None:
            if not isinstance(given, str):
                raise TypeError(f"lowprec.torch: names: the role of {name} must be a layer's name, got {given!r}")
            layer = given if given == "head" or given.startswith("layers.") else _layer(name, given)
            check_pattern(layer, LINEARS)
            found[name] = Role(layer)
    return {name: found[name] for name in shapes}


def no_match(pattern: str, names: Iterable[str]) -> str:
    """Return a message about a pattern that matches no name, with the names that are close to it."""
    names = list(names)
    close = difflib.get_close_matches(pattern, names, n=3, cutoff=0.4)
    known = f"did you mean {' or '.join(map(repr, close))}?" if close else f"expected one of {', '.join(names[:8])}"
    return f"lowprec.torch: no linear layer matches {pattern!r}: {known}"


def _given(name: str, names: Names) -> str | None:
    if isinstance(names, Mapping):
        return next((layer for pattern, layer in names.items() if fnmatchcase(name, pattern)), None)
    return names(name) if callable(names) else None


def _layer(name: str, part: str) -> str:
    return f"layers.{block_of(name) or 0}.{part}"


class _Structure:
    """Modules and shapes of a model, and the roles assigned so far."""

    def __init__(self, model: nn.Module, shapes: Mapping[str, Shape]) -> None:
        self.modules = dict(model.named_modules())
        self.shapes = shapes
        self.inside: dict[str, list[str]] = {}
        for name in shapes:
            for parent in ("", *(name[: dot.start()] for dot in re.finditer(r"\.", name)), name):
                self.inside.setdefault(parent, []).append(name)
        self.found: dict[str, Role] = {}
        widths: dict[str, Counter[int]] = {}
        for name, (inputs, _) in shapes.items():
            widths.setdefault(_block_path(name), Counter())[inputs] += 1
        self.widths = {block: counts.most_common(1)[0][0] for block, counts in widths.items()}
        self.has_blocks = any(block_of(name) is not None for name in shapes)

    def roles(self) -> dict[str, Role]:
        """Return the role of every linear layer."""
        self._find_heads()
        for name, module in reversed(self.modules.items()):  # children before parents
            if _ATTENTION.search(type(module).__name__):
                self._find_attention(name)
        for container, count, experts in self._experts():
            self._find_experts(container, count, experts)
        for name in reversed(self.modules):
            self._find_network(name)
        for name in self.shapes:
            if name not in self.found:
                self.found[name] = self._guess(name)
        return self.found

    def _open(self, name: str) -> list[str]:
        """Return the linear layers within a module that do not have a role yet."""
        return [layer for layer in self.inside.get(name, ()) if layer not in self.found]

    def _width(self, name: str) -> int:
        return self.widths[_block_path(name)]

    def _find_heads(self) -> None:
        embeddings = [m for m in self.modules.values() if isinstance(m, nn.Embedding)]
        tied = {id(embedding.weight) for embedding in embeddings}
        outputs = {id(output) for m in self.modules.values() if (output := _output_embeddings(m)) is not None}
        linears = {name: self.modules[name] for name in self.shapes if name in self.modules}
        heads = [n for n, m in linears.items() if id(m) in outputs or id(getattr(m, "weight", None)) in tied]
        if not heads:
            vocabularies = {(e.embedding_dim, e.num_embeddings) for e in embeddings}
            heads = [n for n in linears if block_of(n) is None and self.shapes[n] in vocabularies]
            heads = heads if len(heads) == 1 else []
        self.found |= dict.fromkeys(heads, Role("head"))

    def _find_attention(self, name: str) -> None:
        """Assign roles to the linear layers of one attention, if the module holds all of them."""
        unit = self._open(name)
        has_inner = len(unit) < len(self.inside.get(name, ()))
        if len(unit) < 2 or has_inner or any(_block_path(layer) != _block_path(unit[0]) for layer in unit):
            return
        width = self._width(unit[0])
        back = [layer for layer in unit if self.shapes[layer][1] == width]
        outer = name.rpartition(".")[0]
        if outer in self.modules and _ATTENTION.search(type(self.modules[outer]).__name__):
            more = [layer for layer in self._open(outer) if layer not in unit]
            if len(more) == 1 and self.shapes[more[0]][1] == width:
                return  # BERT: the output projection is in the outer module
        if any(self.shapes[layer][0] != width for layer in back) and len(back) > 1:
            return  # the module also holds a feed-forward network
        output, why = self._output(unit, back)
        if self._has_other_weights(name):
            back, why = unit, "an attention with weights that no linear layer multiplies"
        for layer in unit:
            part = "attn.wo" if layer == output else _MOST
            self.found[layer] = Role(_layer(layer, part), why if layer in (back or unit) else "")

    def _has_other_weights(self, name: str) -> bool:
        """Return whether a module has matrices that belong neither to a known linear layer nor to an embedding."""
        return any(
            weight.dim() > 1
            for path, module in self.modules[name].named_modules(prefix=name)
            if path not in self.shapes and not isinstance(module, nn.Embedding)
            for weight in module.parameters(recurse=False)
        )

    def _output(self, unit: list[str], back: list[str]) -> tuple[str | None, str]:
        """Return the output projection of an attention, and the reason why it is a guess, if it is one."""
        if not back:
            return None, "an attention without a projection back to the width of its block"
        if len(back) == 1:
            return back[0], ""
        parents = Counter(layer.rpartition(".")[0] for layer in unit)
        alone = [layer for layer in back if parents[layer.rpartition(".")[0]] == 1]
        named = [layer for layer in back if layer.rpartition(".")[2] in _AFTER_ATTENTION]
        for chosen in (alone, named):
            if len(chosen) == 1:
                return chosen[0], ""
        return back[-1], "several projections of an attention have its shape: the last one is taken for the output"

    def _experts(self) -> Iterator[tuple[str, int, list[str]]]:
        """Yield modules that hold experts: name, number of experts, and names of experts that are linear layers."""
        for name, module in self.modules.items():
            children = [f"{name}.{i}" for i in range(len(module))] if isinstance(module, nn.ModuleList) else []
            inside = [self.inside.get(child, []) for child in children]
            uniform = len({tuple(sorted(self.shapes[layer] for layer in layers)) for layers in inside}) == 1
            if len(children) > 1 and uniform and block_of(name) is not None:
                if all(not self.found.keys() & set(layers) and self._network(layers) for layers in inside):
                    yield name.rpartition(".")[0], len(children), children
            elif f"{name}.0.down_proj" in self.shapes:
                count = len(self.inside[name]) // 2
                yield name.rpartition(".")[0], count, [f"{name}.{e}" for e in range(count)]
            elif not isinstance(module, _ConvNd) and block_of(name) is not None:
                stacked = {len(w) for w in module.parameters(recurse=False) if w.dim() == _STACKED and len(w) > 1}
                if len(stacked) == 1:
                    yield name.rpartition(".")[0], stacked.pop(), []

    def _find_experts(self, container: str, count: int, experts: list[str]) -> None:
        """Assign roles to experts, the shared network and the router."""
        width = self.widths.get(_block_path(container), 0)
        router = count, width
        routed = any(tuple(weight.shape) == router for weight in self.modules[container].parameters())
        missing = "" if routed else "several networks of one shape, but no router with one output for each"
        for e, expert in enumerate(experts):
            layers = self._open(expert)
            roles = self._network(layers) or dict(zip(layers, (Role("w1"), Role("w2")), strict=True))
            self._assign(roles, f"experts.{e}.", missing)
        if not routed and not experts:
            return
        for layer in self._open(container):
            if routed and self.shapes[layer] in ((width, count), (width, 1)):
                self.found[layer] = Role(_layer(layer, "ffn.gate"))
        for name, _ in reversed(list(self.modules[container].named_modules(prefix=container))):
            if name != container:
                self._assign(self._network(self._open(name)), "shared.")

    def _find_network(self, name: str) -> None:
        """Assign roles to the linear layers of one feed-forward network, if the module holds it."""
        layers = self._open(name)
        if self.has_blocks:
            layers = [layer for layer in layers if block_of(layer) is not None]
        same_block = len({_block_path(layer) for layer in layers}) == 1
        if same_block or all(layer.rpartition(".")[0] == name for layer in layers):
            self._assign(self._network(layers), "")

    def _assign(self, roles: Mapping[str, Role] | None, prefix: str, why: str = "") -> None:
        for layer, role in (roles or {}).items():
            self.found[layer] = Role(_layer(layer, f"ffn.{prefix}{role.layer}"), role.guess or why)

    def _network(self, layers: list[str]) -> dict[str, Role] | None:
        """Return the roles w1, w3 and w2 of the layers of a feed-forward network, by name, or None.

        One or two layers must map one width to another, and one layer must map back; w1 may be fused with w3. Layers
        with equal input and output widths are ignored.
        """
        layers = [layer for layer in layers if self.shapes[layer][0] != self.shapes[layer][1]]
        if len(layers) > 1 + _MOST_INPUTS:
            return None
        for down in layers:
            hidden, width = self.shapes[down]
            up = [layer for layer in layers if layer != down]
            if not 1 <= len(up) <= _MOST_INPUTS or any(self.shapes[layer][0] != width for layer in up):
                continue
            fused = len(up) == 1 and self.shapes[up[0]][1] == 2 * hidden and self._is_network(down)
            if not fused and any(self.shapes[layer][1] != hidden for layer in up):
                continue
            if len(up) == 1 and self._width(layers[0]) == hidden:
                continue  # the other layer is w2
            if len(up) == 1:
                why = "" if self._width(layers[0]) == width else "a network of another width than its block"
                return {up[0]: Role("w1", why), down: Role("w2", why)}
            leaves = [_FEED_FORWARD.get(layer.rpartition(".")[2]) for layer in up]
            if sorted(map(str, leaves)) == ["w1", "w3"]:
                return {**{layer: Role(str(leaf)) for layer, leaf in zip(up, leaves, strict=True)}, down: Role("w2")}
            why = "gate and up have one shape: the first one is taken for the gate"
            return {up[0]: Role("w1", why), up[1]: Role("w3", why), down: Role("w2")}
        return None

    def _is_network(self, layer: str) -> bool:
        parent = layer.rpartition(".")[0]
        return bool(_NETWORK.search(f"{type(self.modules.get(parent)).__name__} {parent.rpartition('.')[2]}"))

    def _guess(self, name: str) -> Role:
        *path, leaf = name.split(".")
        if self.has_blocks and block_of(name) is None:
            return Role("head", "outside the blocks: taken for the head")
        if leaf == "c_proj":
            leaf = "wo" if any("attn" in part for part in path) else "w2"
        by_name = "by its name alone"
        if block_of(name) is None and leaf in _HEADS:
            return Role("head", by_name)
        if leaf in _AFTER_ATTENTION:
            return Role(_layer(name, "attn.wo"), by_name)
        if leaf in _GATES:
            return Role(_layer(name, "ffn.gate"), by_name)
        if leaf in _FEED_FORWARD:
            return Role(_layer(name, f"ffn.{_place(path)}{_FEED_FORWARD[leaf]}"), by_name)
        return Role(_layer(name, _MOST), "unknown: taken for a projection before attention, as most linear layers are")


def _output_embeddings(module: nn.Module) -> nn.Module | None:
    """Return the head of a transformers model, or None if it does not have one."""
    get = getattr(module, "get_output_embeddings", None)
    try:
        output = get() if callable(get) else None
    except (AttributeError, NotImplementedError):
        return None
    return output if isinstance(output, nn.Module) else None


def _block_path(name: str) -> str:
    """Return the part of a name up to its block, or "" outside of blocks."""
    number = re.match(r"(?:.*?\.)??\d+(?=\.|$)", name)
    return number[0] if number else ""


def _place(path: list[str]) -> str:
    """Return from the name of a network whether it is shared, or which expert it is."""
    if any(part.startswith("shared_expert") for part in path):
        return "shared."
    expert = re.search(r"(?:^|\.)experts\.(\d+)$", ".".join(path))
    return f"experts.{expert[1]}." if expert else ""
