"""Shapes of language models for the computation of costs, as data.

An attention defines its weights and its cache; a `ModelShape` adds the feed-forward networks, of which a token uses the
dense ones, the shared experts and `top_k` of the routed ones. Sources of the shipped shapes: the configurations that
were published with the models.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from lowprec._checks import check_int
from lowprec._values import normalize_fields
from lowprec.registry import Registry

from .fields import from_mapping, label, load, resolve


@runtime_checkable
class Attention(Protocol):
    """Sizes of an attention that costs depend on."""

    def matrix_parameters(self, dim: int) -> int:
        """Return the number of elements of the matrices of one layer."""

    def vector_parameters(self) -> int:
        """Return the number of elements of the gains and biases of one layer."""

    @property
    def kv_widths(self) -> tuple[int, ...]:
        """Number of values that one layer caches per token, for each tensor."""

    @property
    def score_width(self) -> int:
        """Sum over heads of the widths of queries and values: the number of multiply-adds per pair of tokens."""


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1): keys and values from one latent.

    Attributes
    ----------
    heads : int
        Number of heads.
    q_rank, kv_rank : int
        Widths of the two latents; the key and value latent is cached.
    nope_dim, rope_dim, value_dim : int
        Widths per head: of the part of queries and keys without position, of the part with position, and of values. The
        keys' part with position is shared by all heads, and cached.
    """

    heads: int
    q_rank: int
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int

    def __post_init__(self) -> None:
        normalize_fields(self)
        for name in ("heads", "q_rank", "kv_rank", "nope_dim", "rope_dim", "value_dim"):
            check_int("LatentAttention", name, getattr(self, name), 1)

    def matrix_parameters(self, dim: int) -> int:
        """Return the number of elements of the matrices of one layer."""
        down = dim * (self.q_rank + self.kv_rank + self.rope_dim)
        up = self.q_rank * self.heads * (self.nope_dim + self.rope_dim)
        up += self.kv_rank * self.heads * (self.nope_dim + self.value_dim)
        return down + up + self.heads * self.value_dim * dim

    def vector_parameters(self) -> int:
        """Return the number of gains of the norms of both latents."""
        return self.q_rank + self.kv_rank

    @property
    def kv_widths(self) -> tuple[int, ...]:
        """Total width of the latent and the shared key, which are cached as one row."""
        return (self.kv_rank + self.rope_dim,)

    @property
    def score_width(self) -> int:
        """Sum over heads of the widths of queries and values."""
        return self.heads * (self.nope_dim + self.rope_dim + self.value_dim)


@dataclass(frozen=True)
class GroupedAttention:
    """Grouped-query attention: `heads` query heads share `kv_heads` pairs of keys and values.

    Attributes
    ----------
    heads, kv_heads, head_dim : int
        Number of query heads, number of pairs of key and value heads, and width of each head.
    bias : bool
        Whether queries, keys and values have biases (Qwen's do).
    """

    heads: int
    kv_heads: int
    head_dim: int
    bias: bool = False

    def __post_init__(self) -> None:
        normalize_fields(self)
        for name in ("heads", "kv_heads", "head_dim"):
            check_int("GroupedAttention", name, getattr(self, name), 1)
        if self.heads % self.kv_heads:
            raise ValueError(f"GroupedAttention: kv_heads must divide heads={self.heads}, got {self.kv_heads}")

    def matrix_parameters(self, dim: int) -> int:
        """Return the number of elements of the matrices of one layer."""
        return dim * self.head_dim * (2 * self.heads + 2 * self.kv_heads)

    def vector_parameters(self) -> int:
        """Return the number of biases."""
        return self.head_dim * (self.heads + 2 * self.kv_heads) if self.bias else 0

    @property
    def kv_widths(self) -> tuple[int, ...]:
        """Widths of keys and of values, which are cached as two rows."""
        return (self.kv_heads * self.head_dim,) * 2

    @property
    def score_width(self) -> int:
        """Sum over heads of the widths of queries and values."""
        return self.heads * 2 * self.head_dim


_ATTENTIONS: dict[str, type[LatentAttention] | type[GroupedAttention]] = {
    "latent": LatentAttention,
    "grouped": GroupedAttention,
}


@dataclass(frozen=True)
class ModelShape:
    """The shape of a model, as far as costs depend on it.

    Attributes
    ----------
    name : str
        Name in the catalogue.
    dim, layers, vocabulary : int
        Width of the residual stream, number of blocks, size of the vocabulary.
    attention : LatentAttention or GroupedAttention
        Attention of every block.
    dense_width : int
        Hidden width of the dense SwiGLU networks.
    dense_layers : int, optional
        Number of blocks with a dense network, the first ones; by default all of them.
    experts, top_k, shared_experts, expert_width : int
        Number of routed experts in the other blocks, of those that a token uses, and of experts that all tokens use;
        hidden width of an expert.
    gate_bias : bool
        Whether each routed expert has a bias for load balancing (arXiv 2412.19437, section 2.1.2).
    expert_groups, topk_groups : int
        Number of groups of routed experts, one per node, and of those that a token's experts come from.
    source : str
        Source of the numbers.

    Raises
    ------
    ValueError
        If a number is out of range, or two do not fit together.

    Examples
    --------
    >>> from lowprec.costs import models
    >>> v3 = models["deepseek_v3"]
    >>> v3.parameters, v3.active_parameters, v3.matmul_parameters
    (671026419200, 37552297472, 36518166528)
    """

    name: str
    dim: int
    layers: int
    vocabulary: int
    attention: LatentAttention | GroupedAttention
    dense_width: int = 0
    dense_layers: int | None = None
    experts: int = 0
    top_k: int = 0
    shared_experts: int = 0
    expert_width: int = 0
    gate_bias: bool = False
    expert_groups: int = 1
    topk_groups: int = 1
    source: str = "user-defined"

    def __post_init__(self) -> None:
        normalize_fields(self)
        owner = label("model", self.name)
        for name in ("dim", "layers", "vocabulary", "expert_groups", "topk_groups"):
            check_int(owner, name, getattr(self, name), 1)
        for name in ("dense_width", "experts", "top_k", "shared_experts", "expert_width"):
            check_int(owner, name, getattr(self, name), 0)
        if not isinstance(self.attention, Attention):
            raise TypeError(
                f"{owner}: attention must be a LatentAttention or a GroupedAttention, got {self.attention!r}"
            )
        if self.dense_layers is not None:
            check_int(owner, "dense_layers", self.dense_layers, 0)
        if self.first_dense > self.layers:
            raise ValueError(f"{owner}: dense_layers must be at most layers={self.layers}, got {self.dense_layers}")
        if self.first_dense and not self.dense_width:
            raise ValueError(
                f"{owner}: dense_width must be > 0 with {self.first_dense} dense layers, got {self.dense_width}"
            )
        if self.moe_layers and not (0 < self.top_k <= self.experts and self.expert_width):
            raise ValueError(
                f"{owner}: expert_width must be > 0 and top_k from 1 to experts with {self.moe_layers} layers of "
                "experts, "
                f"got expert_width={self.expert_width}, top_k={self.top_k} and experts={self.experts}"
            )
        if self.experts % self.expert_groups or self.topk_groups > self.expert_groups:
            raise ValueError(
                f"{owner}: expert_groups must divide experts={self.experts} and topk_groups be at most expert_groups, "
                f"got expert_groups={self.expert_groups} and topk_groups={self.topk_groups}"
            )

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ModelShape:
        """Read a shape from plain data, as in a TOML file.

        Parameters
        ----------
        data : mapping
            Fields; ``attention`` is a mapping with ``kind`` "latent" or "grouped" and its fields.

        Raises
        ------
        ValueError
            If a key is unknown or missing, or a number is out of range.

        Examples
        --------
        >>> from lowprec.costs import ModelShape
        >>> mine = ModelShape.from_dict({
        ...     "name": "mine", "dim": 1024, "layers": 24, "vocabulary": 32000, "dense_width": 2816,
        ...     "attention": {"kind": "grouped", "heads": 16, "kv_heads": 4, "head_dim": 64}})
        >>> mine.parameters
        336118784
        """
        if not isinstance(data, Mapping):
            raise TypeError(f"model: data must be a mapping of fields, got {data!r}")
        owner, fields = f"model {data.get('name')!r}", dict(data)
        attention = fields.get("attention")
        if isinstance(attention, Mapping):
            rest = dict(attention)
            kind = rest.pop("kind", None)
            if not isinstance(kind, str) or kind not in _ATTENTIONS:
                raise ValueError(f"{owner}: kind of attention must be one of {', '.join(_ATTENTIONS)}, got {kind!r}")
            fields["attention"] = from_mapping(_ATTENTIONS[kind], rest, f"{owner}, {kind} attention")
        return from_mapping(cls, fields, owner)

    @classmethod
    def from_toml(cls, path: str | Path) -> ModelShape:
        """Read a shape from a TOML file; the default name is that of the file."""
        return load(path, cls.from_dict)

    @property
    def first_dense(self) -> int:
        """Number of dense layers."""
        if self.dense_layers is None:
            return 0 if self.experts else self.layers
        return self.dense_layers

    @property
    def moe_layers(self) -> int:
        """Number of layers with experts."""
        return self.layers - self.first_dense

    @property
    def parameters(self) -> int:
        """Number of all parameters: matrices, gains, biases, embedding and head (not tied)."""
        gate = self.experts * (self.dim + self.gate_bias)
        experts = (self.experts - self.top_k) * 3 * self.dim * self.expert_width
        per_layer = 2 * self.dim + self.attention.vector_parameters()
        rest = self.layers * per_layer + self.dim + self.dim * self.vocabulary
        return self.matmul_parameters + self.moe_layers * (gate + experts) + rest

    @property
    def active_parameters(self) -> int:
        """Number of parameters that one token uses: all but those of experts that it is not sent to."""
        return self.parameters - self.moe_layers * (self.experts - self.top_k) * 3 * self.dim * self.expert_width

    @property
    def matmul_parameters(self) -> int:
        """Number of elements of the matrices that multiply one token, without embedding, gates and gains.

        DeepSeek counts these for training costs (arXiv 2505.09343, table 2): with the gates included the MFUs of its
        table 4 would be off by 0.1 percentage points.
        """
        dense = self.first_dense * 3 * self.dim * self.dense_width
        experts = self.moe_layers * (self.top_k + self.shared_experts) * 3 * self.dim * self.expert_width
        return self.layers * self.attention.matrix_parameters(self.dim) + dense + experts + self.dim * self.vocabulary

    @property
    def experts_per_token(self) -> int:
        """Number of experts that a token is sent to, shared ones included."""
        return self.top_k + self.shared_experts


models: Registry[ModelShape] = Registry("model", ModelShape)
"""Shipped shapes by name."""

for _shape in (
    ModelShape(
        "deepseek_v2", dim=5120, layers=60, vocabulary=102400,
        attention=LatentAttention(128, q_rank=1536, kv_rank=512, nope_dim=128, rope_dim=64, value_dim=128),
        dense_width=12288, dense_layers=1, experts=160, top_k=6, shared_experts=2, expert_width=1536,
        expert_groups=8, topk_groups=3, source="config.json of deepseek-ai/DeepSeek-V2",
    ),
    ModelShape(
        "deepseek_v3", dim=7168, layers=61, vocabulary=129280,
        attention=LatentAttention(128, q_rank=1536, kv_rank=512, nope_dim=128, rope_dim=64, value_dim=128),
        dense_width=18432, dense_layers=3, experts=256, top_k=8, shared_experts=1, expert_width=2048, gate_bias=True,
        expert_groups=8, topk_groups=4, source="config.json of deepseek-ai/DeepSeek-V3",
    ),
    ModelShape(
        "qwen2.5_72b", dim=8192, layers=80, vocabulary=152064, attention=GroupedAttention(64, 8, 128, bias=True),
        dense_width=29568, source="config.json of Qwen/Qwen2.5-72B",
    ),
    ModelShape(
        "llama3.1_405b", dim=16384, layers=126, vocabulary=128256, attention=GroupedAttention(128, 8, 128),
        dense_width=53248, source="config.json of meta-llama/Llama-3.1-405B",
    ),
):  # fmt: skip
    models.register(_shape.name, _shape)


def find_model(model: str | ModelShape | Mapping[str, Any]) -> ModelShape:
    """Return a shape from its name, a TOML file's path (``*.toml``), a mapping, or itself."""
    return resolve(model, models, ModelShape.from_dict)
