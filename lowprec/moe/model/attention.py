"""Multi-head latent attention (MLA), forward and backward.

Queries and keys/values pass through narrow latents, each with its RMSNorm; positions are encoded by rotating a few
extra channels, which for keys are shared by all heads (arXiv 2412.19437, section 2.1.1)::

    c_q = RMSNorm(wq_a x)                 q      = wq_b c_q          # [T, H * (n + r)], the last r of a head rotated
    c_kv, k_r = split(wkv_a x)            k_n, v = wkv_b RMSNorm(c_kv)   # [T, H * (n + v)]; k = [k_n ; rotated k_r]
    o = softmax(q k^T / sqrt(n + r)) v    y      = wo o

The backward pass reads o too: the row's sum of do * o is subtracted from the gradient of a row of scores, as in fused
kernels. The format in which o is saved, E5M6 in DeepSeek-V3 (section 3.3.3), therefore affects attention's gradients as
well as wo's.

If a recipe has an attention kernel, that kernel computes o and the log-sum-exp of the scores in the forward pass, from
operands with a scale per sequence and head. The backward pass is straight through: it computes the softmax from the
stored q and k and the saved log-sum-exp as 2^(s log2(e) q k^T - log2(e) lse) in float32, then the same gradients as
above, as if q, k, v and P had not been quantized. With `plain_gradient`, the backward pass computes the softmax and o
again from the stored q, k and v, without the kernel; then the format in which o is saved affects wo's gradient only.

B sequences of S tokens, T = B * S; H heads; per head n channels without position, r rotated, v of the value.
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lowprec._threads import run_chunks
from lowprec.attn.attention import attention
from lowprec.attn.operands import quantize_operands
from lowprec.attn.tiles import Call
from lowprec.kernels.model import attention as plain_kernels
from lowprec.kernels.model import attention_f32
from lowprec.moe.model.config import MoEConfig
from lowprec.moe.model.layers import Array, Grads, Linear, Params, RMSNorm
from lowprec.moe.model.memory import SAVE_ALL, RecomputePolicy
from lowprec.special.exp2 import RoundedExp2
from lowprec.tensorcore.matmul import matmul_f32

if TYPE_CHECKING:
    from lowprec.attn.kernel import AttentionKernel
    from lowprec.recipe import BoundRecipe

_LOG2_E = math.log2(math.e)
_EXP2 = RoundedExp2()


def rotary_angles(sequence: int, rope_dim: int, theta: float, dtype: Any = np.float32) -> tuple[Array, Array]:
    """Return cosine and sine [S, r/2] of position * theta**(-2 i / r), the angle that rotates channels 2i, 2i+1.

    They are computed in float64 and rounded once.

    Examples
    --------
    >>> cosine, sine = rotary_angles(3, rope_dim=4, theta=10000.0)
    >>> sine[2]
    array([0.9092974 , 0.01999867], dtype=float32)
    """
    angles = [[s * theta ** (-2 * i / rope_dim) for i in range(rope_dim // 2)] for s in range(sequence)]
    cosine = np.array([[math.cos(angle) for angle in row] for row in angles], dtype=dtype)
    sine = np.array([[math.sin(angle) for angle in row] for row in angles], dtype=dtype)
    return cosine, sine


def _kernels(dtype: Any) -> ModuleType:
    """Return the module with the products for a dtype; those in float64 are for gradient checks, and may be slow."""
    return attention_f32 if dtype == np.float32 else plain_kernels


def _kept_only(saved: Any) -> Any:
    """Return a linear layer's saved data without Fprop's operand, if Wgrad reads another one."""
    return saved._replace(x=saved.x._replace(row=None)) if saved.x.kept is not saved.x.row else saved


class _Saved(NamedTuple):
    linears: dict[str, Any]
    q_norm: Any
    kv_norm: Any
    k_rope: Array | None
    q: Array | None
    k: Array | None
    v: Array | None
    probs: Array | None
    lse: Array | None  # of an attention kernel: the backward pass computes the probabilities from it
    output: Array | None
    angles: tuple[Array, Array]


class LatentAttention:
    """Attention of one block.

    Parameters
    ----------
    name : str
        Prefix of the parameters' names.
    config : MoEConfig
        Sizes.
    recipe : BoundRecipe
        Precision of the GEMMs of the five linear layers, and of stored activations. The products of attention itself
        are BF16 times BF16 summed in float32, as in all the reports, unless the recipe has a kernel for them.
    recompute : RecomputePolicy
        Activations that the backward pass recomputes.
    """

    def __init__(
        self, name: str, config: MoEConfig, recipe: BoundRecipe, recompute: RecomputePolicy = SAVE_ALL
    ) -> None:
        self.config = config
        self.recompute = recompute
        self.store = recipe.store
        self.stored = {part: recipe.storage(f"{name}.{part}") for part in ("q", "k", "v", "probs", "output")}
        self.linears = {w: Linear(f"{name}.{w}", recipe) for w in ("wq_a", "wq_b", "wkv_a", "wkv_b", "wo")}
        self.q_norm = RMSNorm(f"{name}.q_norm", config.norm_eps, recipe)
        self.kv_norm = RMSNorm(f"{name}.kv_norm", config.norm_eps, recipe)
        self.keep_output = recipe.cache("attention_output") is None
        self.scale = 1.0 / math.sqrt(config.query_dim)
        self.kernel = recipe.attention
        self.plain_gradient = self.kernel is not None and self.kernel.plain_gradient
        if self.kernel is not None:
            self.kernel.tile_of(Call(1, 1, config.query_dim, config.value_dim))  # error if it lacks this size
        self._angles: dict[tuple[int, Any], tuple[Array, Array]] = {}

    def _rotary(self, sequence: int, dtype: Any) -> tuple[Array, Array]:
        key = (sequence, dtype)
        if key not in self._angles:
            self._angles = {key: rotary_angles(sequence, self.config.rope_dim, self.config.rope_theta, dtype)}
        return self._angles[key]

    def forward(self, params: Params, x: Array, sequence: int, *, keep_input: bool = True) -> tuple[Array, _Saved]:
        """Map x [T, d], consecutive whole sequences, to y [T, d]; if x is not saved, pass it to `backward`."""
        c, linears = self.config, self.linears
        saved: dict[str, Any] = {}
        q_latent, saved["wq_a"] = linears["wq_a"].forward(params, x)
        latent, saved["wkv_a"] = linears["wkv_a"].forward(params, x, shared_with=(linears["wq_a"], saved["wq_a"]))
        # Copies: the following products need contiguous rows of both parts.
        kv_latent, k_rope = (np.ascontiguousarray(part) for part in np.split(latent, [c.kv_rank], axis=1))
        q_latent, q_norm = self.q_norm.forward(params, q_latent)
        kv_latent, kv_norm = self.kv_norm.forward(params, kv_latent)
        angles = self._rotary(sequence, x.dtype)
        q, k, v = self._heads(params, saved, q_latent, kv_latent, k_rope, angles)
        if self.kernel is None:
            probs = self._probabilities(q, k)
            lse, out = None, self._output(probs, v)
        else:
            probs, (out, lse) = None, self._attend(self.kernel, q, k, v)
            lse = None if self.plain_gradient else lse
        y, wo = linears["wo"].forward(params, self.stored["output"](out))
        saved["wo"] = _kept_only(wo)
        output = out if self.keep_output and not self.plain_gradient else None
        if not keep_input:
            saved |= {name: linears[name].with_input(saved[name], None) for name in ("wq_a", "wkv_a")}
        if self.recompute.norms:
            saved |= {name: linears[name].with_input(saved[name], None) for name in ("wq_b", "wkv_b")}
        kept = _Saved(saved, q_norm, kv_norm, None, q, k, v, probs, lse, output, angles)
        if self.recompute.up_projections:
            kept = kept._replace(k_rope=k_rope, q=None, k=None, v=None)
        return y, kept._replace(probs=None) if self.recompute.probabilities else kept

    def _heads(
        self, params: Params, saved: dict[str, Any], q_latent: Array, kv_latent: Array, k_rope: Array,
        angles: tuple[Array, Array],
    ) -> tuple[Array, Array, Array]:  # fmt: skip
        """Return queries, keys and values of the heads [B * H, S, ...]; add saved activations to `saved`."""
        c, sequence, dtype = self.config, len(angles[0]), q_latent.dtype
        q_flat, saved["wq_b"] = self.linears["wq_b"].forward(params, q_latent)
        kv_flat, saved["wkv_b"] = self.linears["wkv_b"].forward(params, kv_latent)
        heads = len(q_flat) // sequence * c.heads
        q, k = (np.empty((heads, sequence, c.query_dim), dtype=dtype) for _ in range(2))
        v = np.empty((heads, sequence, c.value_dim), dtype=dtype)
        run_chunks(lambda a, b: plain_kernels.split_heads(q_flat, k_rope, kv_flat, *angles, q, k, v, a, b), heads, 1)
        return self.stored["q"](q), self.stored["k"](k), self.stored["v"](v)

    def _attend(self, kernel: AttentionKernel, q: Array, k: Array, v: Array) -> tuple[Array, Array]:
        """Return the kernel's output [T, H * v] and log-sum-exp [B * H, S]."""
        *operands, descale = quantize_operands(q[None], k[None], v[None], kernel)
        found = attention(*operands, kernel=kernel, causal=True, scale=self.scale, descale=descale)
        lse = kernel.lse_in_nats(found.lse, q[None], k[None], self.scale)
        heads = found.out.reshape(-1, self.config.heads, *v.shape[1:])
        return np.ascontiguousarray(heads.swapaxes(1, 2)).reshape(-1, heads.shape[1] * heads.shape[3]), lse[0]

    def _output(self, probs: Array, v: Array) -> Array:
        """Return the products of probabilities and values, [T, H * v]."""
        c, kernels = self.config, _kernels(v.dtype)
        out = np.empty((len(v) * v.shape[1] // c.heads, c.heads * c.value_dim), dtype=v.dtype)
        run_chunks(lambda a, b: kernels.attend(probs, v, out, a, b), len(v), 1)
        return out

    def _probabilities(self, q: Array, k: Array, lse: Array | None = None) -> Array:
        """Return the softmax [B * H, S, S], rounded to storage; a kernel's log-sum-exp `lse` is used if given."""
        probs = np.empty((*q.shape[:2], q.shape[1]), dtype=q.dtype)
        if lse is None:
            kernels = _kernels(q.dtype)
            run_chunks(lambda a, b: kernels.probabilities(q, k, self.scale, probs, a, b), len(q), 1)
        else:
            earlier = np.tri(q.shape[1], dtype=bool)
            with np.errstate(all="ignore"):  # Inf and NaN are inputs, too
                for head, octaves in enumerate(lse * np.float32(_LOG2_E)):
                    scores = matmul_f32(q[head], k[head]) * np.float32(self.scale * _LOG2_E)
                    probs[head] = _EXP2(np.where(earlier, scores - octaves[:, None], np.float32(-np.inf)))
        return self.stored["probs"](probs)

    def _remade(self, params: Params, saved: _Saved) -> tuple[dict[str, Any], Array, Array, Array, Array]:
        """Return the linear layers' saved data, queries, keys, values and probabilities, saved or recomputed."""
        linears, q, k, v = dict(saved.linears), saved.q, saved.k, saved.v
        if self.recompute.norms or self.recompute.up_projections:
            q_latent = self.q_norm.again(params, saved.q_norm)
            kv_latent = self.kv_norm.again(params, saved.kv_norm)
            if saved.k_rope is not None:
                q, k, v = self._heads(params, linears, q_latent, kv_latent, saved.k_rope, saved.angles)
            else:
                linears["wq_b"] = self.linears["wq_b"].with_input(linears["wq_b"], q_latent)
                linears["wkv_b"] = self.linears["wkv_b"].with_input(linears["wkv_b"], kv_latent)
        assert q is not None
        assert k is not None
        assert v is not None
        return linears, q, k, v, self._probabilities(q, k, saved.lse) if saved.probs is None else saved.probs

    def backward(self, params: Params, grads: Grads, d_y: Array, saved: _Saved, x: Array | None = None) -> Array:
        """Return the gradient of x [T, d]."""
        c = self.config
        linears, q, k, v, probs = self._remade(params, saved)
        if x is not None:
            linears["wq_a"] = self.linears["wq_a"].with_input(linears["wq_a"], x)
            shared_with = (self.linears["wq_a"], linears["wq_a"])
            linears["wkv_a"] = self.linears["wkv_a"].with_input(linears["wkv_a"], x, shared_with)

        def linear(name: str, d_y: Array) -> Array:
            return self.linears[name].backward(grads, d_y, linears[name])

        kernels = _kernels(d_y.dtype)
        # If the recipe saves the output with a codec, wo's Wgrad and attention both read the decoded one.
        out = saved.output
        if self.plain_gradient:
            out = self.stored["output"](self._output(probs, v))
        elif out is None:
            out = self.linears["wo"].cached_input(linears["wo"])
        d_out = linear("wo", d_y)
        d_scores, d_q, d_k, d_v = (np.empty_like(array) for array in (probs, q, k, v))
        heads = len(q)
        run_chunks(lambda a, b: kernels.score_gradients(d_out, out, probs, v, self.scale, d_scores, a, b), heads, 1)
        self.store(d_scores)
        run_chunks(lambda a, b: kernels.operand_gradients(d_out, d_scores, probs, q, k, d_q, d_k, d_v, a, b), heads, 1)
        d_q_flat = np.empty((len(d_y), c.heads * c.query_dim), dtype=d_y.dtype)
        d_kv_flat = np.empty((len(d_y), c.heads * (c.nope_dim + c.value_dim)), dtype=d_y.dtype)
        d_latent_and_rope = np.empty((len(d_y), c.kv_rank + c.rope_dim), dtype=d_y.dtype)
        d_k_rope = np.empty((len(d_y), c.rope_dim), dtype=d_y.dtype)
        cosine, sine = saved.angles
        run_chunks(
            lambda a, b: plain_kernels.merge_head_gradients(
                d_q, d_k, d_v, cosine, sine, d_q_flat, d_k_rope, d_kv_flat, a, b
            ),
            heads // c.heads,
            1,
        )

        d_latent = linear("wkv_b", self.store(d_kv_flat))
        d_latent_and_rope[:, : c.kv_rank] = self.kv_norm.backward(
            params, grads, d_latent, saved.kv_norm, np.zeros_like(d_latent)
        )
        d_latent_and_rope[:, c.kv_rank :] = self.store(d_k_rope)
        d_x = linear("wkv_a", d_latent_and_rope)
        d_latent = linear("wq_b", self.store(d_q_flat))
        d_x += linear("wq_a", self.q_norm.backward(params, grads, d_latent, saved.q_norm, np.zeros_like(d_latent)))
        return self.store(d_x)
