"""Shapes of models, as data: configurations of DeepSeek-V3's architecture in miniature, four of them named.

The inner dimension of every forward multiplication is a multiple of 128, the tile of the FP8 recipe. The outputs, which
are inner dimensions of backward multiplications, are also multiples of 128, with two exceptions. `wkv_a` has kv_rank +
rope_dim = 160 outputs, 1.25 tiles; the original has 576, 4.5 tiles. `wq_b` has 96 per head, which for 2 and 6 heads
ends in half a tile.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from lowprec._checks import check_int, check_positive
from lowprec._values import normalize_fields
from lowprec.registry import Registry

_AT_LEAST_ZERO = {"dense_layers", "shared_experts", "mtp_depth"}


@dataclass(frozen=True)
class MoEConfig:
    """Shape of a Mixture-of-Experts transformer with latent attention, after DeepSeek-V3 (arXiv 2412.19437).

    Attributes
    ----------
    name : str
        Name in the catalogue.
    dim : int
        Width d of the residual stream.
    layers, dense_layers : int
        Number of blocks, and of the leading blocks that have a dense feed-forward network instead of experts.
    heads : int
        Number of attention heads.
    nope_dim, rope_dim, value_dim : int
        Widths per head: of queries and keys without and with rotary position (section 2.1.1), and of values.
    q_rank, kv_rank : int
        Widths of the two compressed latents.
    experts, top_k : int
        Number of routed experts, and of those that a token uses.
    expert_groups, topk_groups : int
        Experts form `expert_groups` equal groups; a token's experts come from `topk_groups` of them (section 2.1.2).
    shared_experts : int
        Number of experts that every token uses; they are computed as one expert, wider by this factor.
    expert_width, dense_width : int
        Hidden widths of one expert and of the dense network.
    vocabulary : int
        Number of different tokens, at most 256, as tokens are bytes.
    sequence, batch : int
        Number of bytes per training sequence, and of sequences per step.
    rope_theta, norm_eps : float
        Base of the rotary frequencies; constant added to the mean square in RMSNorm.
    route_scale : float
        Sum of the normalised gates of a token (2.5 in DeepSeek-V3, 1 in its small predecessor).
    balance_alpha : float
        Weight of the sequence-wise balance loss.
    bias_update_speed : float
        Update speed of the load-balancing bias. The original's 0.001 is for thousands of steps; these models run for
        hundreds.
    mtp_depth : int
        1 for a module that also predicts the byte after the next one (section 2.2), 0 for none.
    mtp_weight : float
        Weight of the module's loss, lambda in the report: there 0.3 for the first two thirds of training, then 0.1.
    swiglu_limit : float
        Limit of SwiGLU's inputs, W1 x from above and W3 x on both sides, without gradient beyond it; 0 for no limit.
        DeepSeek-V4 has 10.
    allow_partial_tiles : bool
        Whether the inputs of a linear layer may end in part of a quantization tile; see `check_tiles`.

    Raises
    ------
    ValueError
        If a size is not an integer in its range, or two sizes do not fit together.
    """

    name: str
    dim: int
    layers: int
    dense_layers: int
    heads: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    q_rank: int
    kv_rank: int
    experts: int
    top_k: int
    expert_groups: int
    topk_groups: int
    expert_width: int
    dense_width: int
    shared_experts: int = 1
    vocabulary: int = 256
    sequence: int = 128
    batch: int = 16
    rope_theta: float = 10000.0
    norm_eps: float = 1e-6
    route_scale: float = 1.0
    balance_alpha: float = 1e-4
    bias_update_speed: float = 3e-3
    mtp_depth: int = 0
    mtp_weight: float = 0.3
    swiglu_limit: float = 0.0
    allow_partial_tiles: bool = False

    def __post_init__(self) -> None:
        normalize_fields(self)
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type == "int":
                least = 0 if field.name in _AT_LEAST_ZERO else 1
                check_int(f"MoEConfig {self.name!r}", field.name, value, least)
            elif field.type == "float":
                check_positive(f"MoEConfig {self.name!r}", field.name, value, zero=True)
            elif field.type == "bool" and not isinstance(value, bool):
                raise ValueError(f"MoEConfig {self.name!r}: {field.name} must be true or false, got {value!r}")
            elif field.type == "str" and not (isinstance(value, str) and value):
                raise ValueError(f"MoEConfig: {field.name} must be a non-empty string, got {value!r}")

        def require(holds: bool, message: str) -> None:
            if not holds:
                raise ValueError(f"MoEConfig {self.name!r}: {message}")

        require(
            self.dense_layers <= self.layers,
            f"dense_layers must be at most layers={self.layers}, got {self.dense_layers}",
        )
        require(self.rope_dim % 2 == 0, f"rope_dim must be even, got {self.rope_dim}")
        require(self.vocabulary <= 256, f"vocabulary must be at most 256, as tokens are bytes, got {self.vocabulary}")
        require(
            self.experts % self.expert_groups == 0,
            f"expert_groups must divide experts={self.experts}, got {self.expert_groups}",
        )
        require(
            self.topk_groups <= self.expert_groups,
            f"topk_groups must be at most expert_groups={self.expert_groups}, got {self.topk_groups}",
        )
        require(
            self.top_k % self.topk_groups == 0,
            f"top_k must be a multiple of topk_groups={self.topk_groups}, as each is scored by its best top_k / "
            f"topk_groups experts, got {self.top_k}",
        )
        require(
            self.top_k <= self.topk_groups * self.experts // self.expert_groups,
            f"top_k must be at most topk_groups={self.topk_groups} times the {self.experts // self.expert_groups} "
            f"experts of a group, got {self.top_k}",
        )
        require(self.mtp_depth <= 1, f"mtp_depth must be 0 or 1, got {self.mtp_depth}")

    @property
    def query_dim(self) -> int:
        """Width of queries and keys per head."""
        return self.nope_dim + self.rope_dim

    @property
    def init_std(self) -> float:
        """Standard deviation of the initial weights: 0.006 at width 7168, scaled as 1 / sqrt(width)."""
        return 0.508 / math.sqrt(self.dim)

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every parameter by name, in the order of computation.

        A matrix is [outputs, inputs] and has the name of its linear layer; a vector is the gain of an RMSNorm. The
        multi-token prediction module is the block after the last, ``layers.{layers}``, as in the released models.

        Examples
        --------
        >>> from lowprec.moe.model.config import configs
        >>> shapes = configs["nano"].parameter_shapes()
        >>> shapes["layers.0.attn.wkv_a"], shapes["layers.1.ffn.experts.7.w2"], shapes["norm"]
        ((160, 128), (128, 128), (128,))
        """
        d = self.dim
        shapes: dict[str, tuple[int, ...]] = {"embed": (self.vocabulary, d)}
        for i in range(self.layers):
            shapes |= self._block_shapes(f"layers.{i}", dense=i < self.dense_layers)
        shapes |= {"norm": (d,), "head": (self.vocabulary, d)}
        if self.mtp_depth:
            module = f"layers.{self.layers}"
            shapes |= {
                f"{module}.hidden_norm": (d,),
                f"{module}.embed_norm": (d,),
                f"{module}.projection": (d, 2 * d),
                **self._block_shapes(module, dense=False),
                f"{module}.norm": (d,),
            }
        return shapes

    def _block_shapes(self, block: str, *, dense: bool) -> dict[str, tuple[int, ...]]:
        d, h = self.dim, self.heads
        shapes: dict[str, tuple[int, ...]] = {
            f"{block}.attn_norm": (d,),
            f"{block}.attn.wq_a": (self.q_rank, d),
            f"{block}.attn.q_norm": (self.q_rank,),
            f"{block}.attn.wq_b": (h * self.query_dim, self.q_rank),
            f"{block}.attn.wkv_a": (self.kv_rank + self.rope_dim, d),
            f"{block}.attn.kv_norm": (self.kv_rank,),
            f"{block}.attn.wkv_b": (h * (self.nope_dim + self.value_dim), self.kv_rank),
            f"{block}.attn.wo": (d, h * self.value_dim),
            f"{block}.ffn_norm": (d,),
        }
        networks = {f"{block}.ffn": self.dense_width}
        if not dense:
            shapes[f"{block}.ffn.gate"] = (self.experts, d)
            networks = {f"{block}.ffn.shared": self.shared_experts * self.expert_width} if self.shared_experts else {}
            networks |= {f"{block}.ffn.experts.{e}": self.expert_width for e in range(self.experts)}
        for name, width in networks.items():
            shapes |= {f"{name}.w1": (width, d), f"{name}.w3": (width, d), f"{name}.w2": (d, width)}
        return shapes

    def parameter_counts(self) -> ParameterCounts:
        """Return the number of parameters and of those that one token uses, the prediction module counted separately.

        Examples
        --------
        >>> from lowprec.moe.model.config import configs
        >>> configs["nano"].parameter_counts()
        ParameterCounts(total=1433216, active=843392, active_linear=774144, mtp=0)
        """
        total = active = active_linear = mtp = 0
        for name, shape in self.parameter_shapes().items():
            size = math.prod(shape)
            if name.startswith(f"layers.{self.layers}."):
                mtp += size
                continue
            total += size
            # layers.{i}.ffn.experts.{e}.w1: a token uses top_k of the experts, all of one size
            used = 0 if ".experts." in name and int(name.split(".")[4]) >= self.top_k else size
            active += used
            if len(shape) == 2 and name not in ("embed", "head") and not name.endswith(".gate"):
                active_linear += used
        return ParameterCounts(total, active, active_linear, mtp)


@dataclass(frozen=True)
class ParameterCounts:
    """Numbers of the main model's parameters: all, and those that a token uses.

    `active_linear` counts those that a token uses in the linear layers that FP8 recipes quantize. `mtp` counts the
    multi-token prediction module, which may be dropped when a trained model is used.
    """

    total: int
    active: int
    active_linear: int
    mtp: int = 0


#: Configurations by name.
configs: Registry[MoEConfig] = Registry("model configuration", MoEConfig)

for _config in [
    MoEConfig(  # continuous integration
        "nano", dim=128, layers=3, dense_layers=1, heads=2, nope_dim=64, rope_dim=32, value_dim=64, q_rank=128,
        kv_rank=128, experts=8, top_k=2, expert_groups=2, topk_groups=1, expert_width=128, dense_width=384,
    ),
    MoEConfig(  # the workhorse of ablations
        "pilot", dim=256, layers=2, dense_layers=1, heads=4, nope_dim=64, rope_dim=32, value_dim=64, q_rank=128,
        kv_rank=128, experts=8, top_k=2, expert_groups=2, topk_groups=1, expert_width=128, dense_width=384,
    ),
    MoEConfig(  # the default of reports
        "tiny", dim=256, layers=4, dense_layers=1, heads=4, nope_dim=64, rope_dim=32, value_dim=64, q_rank=128,
        kv_rank=128, experts=16, top_k=4, expert_groups=4, topk_groups=2, expert_width=128, dense_width=640,
    ),
    MoEConfig(  # over night
        "small", dim=384, layers=6, dense_layers=1, heads=6, nope_dim=64, rope_dim=32, value_dim=64, q_rank=256,
        kv_rank=128, experts=32, top_k=4, expert_groups=8, topk_groups=2, expert_width=128, dense_width=640,
    ),
]:  # fmt: skip
    configs.register(_config.name, _config)
