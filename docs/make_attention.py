"""Generate the page of attention kernels from the catalogue."""

from __future__ import annotations

from pages import table

import lowprec as lp


def page() -> str:
    """Return docs/attention.md."""
    rows = [
        (
            f"`{name}`", a.operands.name, f"`{a.scores.name}`",
            ", ".join(
                f"{t.keys} to D = {t.head_dim}" + (f" (Dv = {t.value_dim})" if t.value_dim else "") for t in a.key_tiles
            ),
            type(a.row_sum).__name__, f"2^{a.p_offset} P in {a.p_format.name}", f"{a.rescale_threshold:g}",
            "never" if a.promote_every is None else f"every {a.promote_every}",
            ", ".join(n for n, has in (("splits", a.combine), ("sinks", a.sink), ("softcap", a.softcap),
                                       ("gradients", a.gradient_tiles)) if has),
            a.source,
        )
        for name, a in ((name, lp.attentions[name]) for name in lp.attentions)
    ]  # fmt: skip
    names = (
        "kernel",
        "operands",
        "accumulator",
        "keys per tile",
        "row sum",
        "P",
        "threshold",
        "promoted",
        "options",
        "source",
    )
    return f"""# Attention kernels

Between two matrix products, attention has a softmax, and a kernel computes all three by tiles of keys. Everything that
affects the bits is data here: the tiles, both accumulators, how the running maximum is kept, in which order a row of P
is added, the format of P and the power of two that multiplies it, and whether the tensor core accumulates the output
over all tiles. `lp.attention` computes any such kernel:

```python
>>> import numpy as np, lowprec as lp
>>> rng = np.random.default_rng(0)
>>> q, k, v = (lp.round_to(rng.standard_normal((n, 128)), "e4m3fn") for n in (4, 8192, 8192))
>>> v = lp.round_to(v + 1, "e4m3fn")                                  # values whose mean is not zero
>>> exact = lp.attention(q, k, v, kernel="fa3_bf16", out_format="float32").out
>>> for name in ("fa3_fp8", "vllm_fa3_fp8"):
...     out = lp.attention(q, k, v, kernel=name, out_format="float32").out
...     print(f"{{name}}: {{(out * exact).sum() / (exact * exact).sum() - 1:+.1%}}")
fa3_fp8: -10.0%
vllm_fa3_fp8: -0.1%

```

Both are FlashAttention-3 on Hopper. Upstream, the output of 8192 keys stays in the tensor core, whose FP8 sums keep
14 significant bits and truncate; vLLM's fork adds the result of each tile in float32. The
[tutorial](gallery/plot_attention.py) shows what that does to a long context.

A hypothetical kernel is one change away, and everything else stays:

```python
>>> lagging = lp.attentions["fa4_fp8"].with_(rescale_threshold=4.0)     # FlashAttention-4 before its correction
>>> int(lp.attention(q * 2, k, v, kernel=lagging).saturated.sum()) > 0   # probabilities above the largest number of P
True

```

`splits=8` computes eight ranges of tiles separately and combines them by their log-sum-exps, in the order of each
kernel's combination (`Combine`): the number of splits, which schedulers derive from the batch and the GPU, changes
bits. `softcap=` and `sinks=` are there for the kernels that have them. `page_size=` is the size of the
[pages of a KV cache](#pages-of-a-kv-cache), which can change the tiles.

From the command line: `lowprec attentions` lists the kernels, `lowprec attention Q.npy K.npy V.npy --kernel NAME`
computes one.

## Catalogue

{table(names, rows)}

A threshold keeps the old maximum while the new one is larger by at most that many octaves. *Promoted* is how often P V
leaves the tensor core. Causal masks and sliding windows have their own tiles (`key_tiles`). A rule of each library
(`schedule`) normalizes the mask as its wrapper does and decides which tiles a block of queries visits: vLLM's windows
start at the first key that a block sees, and few queries have smaller tiles; in FlashAttention-4 the share of 2^x that
the polynomial computes depends on head size, mask, rows and heads of a group. A NaN in V reaches the rows of all blocks
that visit its tile, also where it is masked.

The entries are these kernels and no others: `flash2` is the unsplit kernel with the tiles of an A100, although
FlashAttention-2's wrapper splits keys for small batches (`flash2_splitkv`), and GPUs of compute capability 8.6 and 8.9
have other tiles at D = 128. FlashAttention-3 has V in rows; FlashAttention-4 is compiled for sm_100, since its kernel
for sm_103 has no polynomial.

### Pages of a KV cache

Tiles take keys in their logical order, whatever their pages. But a kernel may copy pages in another way than contiguous
keys, with other tiles, and then the bits of the output change:

| kernel | copied as contiguous keys are (by TMA) | otherwise |
| --- | --- | --- |
| `flash2_splitkv` | multiples of 256 keys, in vLLM's fork of 16: addresses only | refused; `flash2` has no pages |
| `fa3_bf16`, `fa3_fp8` | pages of whole tiles, and more queries x heads of a group than rows of a block | other \
tiles (128 keys instead of 176 in BF16 at D = 128, 160 instead of 224 in FP8); blocks hold the heads of a group |
| `vllm_fa3_fp8` | the same, without a window | blocks hold the heads of a group; tiles stay |
| `fa4_bf16`, `fa4_fp8` | pages of 128 keys | no pairs of CTAs: other columns of 2^x by the polynomial at D = 128 |

So one query of FlashAttention-3 in BF16, which decoding has, is computed with 176 keys per tile from a contiguous
cache and with 128 from pages of any size. vLLM's fork in BF16, which is not in the catalogue, has 160 and 128.

## What is exact

Each kernel has the bits of an [oracle in fractions](../lowprec/oracle/attention.py): outputs and log-sum-exps of
random rows with several tiles, with and without a causal mask, and 19 wrong rules (another order of tiles, offset,
threshold, rounding, order of the sum) that give other bits. The rules were read from the sources in the table, twice:
a second implementation, written from the sources without knowledge of this one, has the same bits in all 109 760
outputs and 1109 log-sum-exps of 384 cases (masks, groups of heads, NaN, infinities), and its smallest cases are tests.
No recording of a GPU's attention has confirmed them yet.

Where a compiler decides between one rounding and two, the fields follow compiled kernels: fa3-fwd 0.0.3 and vllm 0.33.0
(its FlashAttention-2 and 3) from PyPI, disassembled, and FlashAttention-4 compiled with CUTLASS DSL 4.6.2 for sm_100a.
In these `row_sum * scale + p`, `maximum * scale - 8` and `maximum * scale + log(sum)` are one FFMA each
(`QuadSum(fused=...)`, `fused_shift`, `fused_lse`); FlashAttention-4 rounds the first one twice. Another compiler may
contract otherwise: the fields can be changed.

Not determined by them:

- `ex2.approx` (MUFU.EX2), the reciprocal and the logarithm of NVIDIA's GPUs: correctly rounded. PTX ISA 9.1 bounds the
  errors of `ex2.approx` and of the reciprocal at 2 ulp, so the hardware's float32 results can differ in their last
  bits, and a result in BF16 where it is close to a boundary between two numbers. FlashAttention-4's polynomial is
  exact.
- whether the operations of a sink and of the combination of split keys are contracted: rounded as their sources write
  them.
- the order of the products within one instruction: the accumulators add them exactly.

`undecided=True` computes which outputs are affected: bounds are propagated from each 2^x through P, the row sums and
the tensor core's sums to the output. Every function within the documented errors gives the same bits for the others:

```python
>>> q, k, v = (lp.round_to(rng.standard_normal((n, 64)), "bfloat16") for n in (64, 2048, 2048))
>>> found = lp.attention(q, k, v, kernel="fa3_bf16", undecided=True)
>>> print(f"{{found.undecided.mean():.1%}} of the outputs in BF16 depend on undocumented bits")
0.3% of the outputs in BF16 depend on undocumented bits

```

## Gradients

`lp.attention_grad(q, k, v, dout)` is FlashAttention-2's deterministic backward pass: P and dS in BF16, dK and dV in the
tensor core over the tiles of queries from the last, dQ by tiles of keys in one buffer per thread block, which are added
in increasing order. Outputs in float32 have the bits of an
[oracle in fractions](../lowprec/oracle/attention_backward.py), and four wrong rules do not. The default backward pass
of the library adds to dQ atomically: its bits differ from run to run. Heads of a group are summed by torch outside
of the kernel, so that the gradients of keys and values are given for each query head.

Not included: the backward passes of FlashAttention-3 and 4.
"""
