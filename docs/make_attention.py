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
                f"{t.keys} (D <= {t.head_dim}" + (f", Dv = {t.value_dim})" if t.value_dim else ")") for t in a.key_tiles
            ),
            type(a.row_sum).__name__, f"2^{a.p_offset} P in {a.p_format.name}", f"{a.rescale_threshold:g}",
            {None: "all tiles", 1: "one tile"}.get(a.promote_every, f"{a.promote_every} tiles"),
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
        "PV summed over",
        "options",
        "source",
    )
    return f"""# Attention kernels

An attention kernel fuses two matrix products, S = Q K^T and O = P V, with a softmax between them, and iterates over
tiles of keys. P is the matrix of probabilities before they are divided by their sum. `lp.attention` emulates the
forward pass of FlashAttention 2, 3 and 4 and of vLLM's fork. No recording of a GPU has confirmed these bits yet; see
[what is verified](#verification-and-assumptions).

Every choice that affects the bits is a field of the kernel's description: the tile sizes, the accumulators of both
products, the rule for the running maximum, the order in which a row of P is summed, the format and scale of P, and
the number of tiles over which the tensor core accumulates O. The example measures the effect of the last one:

```python
>>> import numpy as np, lowprec as lp
>>> rng = np.random.default_rng(0)
>>> q, k, v = (lp.round_to(rng.standard_normal((n, 128)), "e4m3fn") for n in (4, 8192, 8192))
>>> v = lp.round_to(v + 1, "e4m3fn")                                  # values whose mean is not zero
>>> bf16 = lp.attention(q, k, v, kernel="fa3_bf16", out_format="float32").out
>>> for name in ("fa3_fp8", "vllm_fa3_fp8"):
...     out = lp.attention(q, k, v, kernel=name, out_format="float32").out
...     print(f"{{name}}: {{(out * bf16).sum() / (bf16 * bf16).sum() - 1:+.1%}}")
fa3_fp8: -10.0%
vllm_fa3_fp8: -0.1%

```

The printed number is the gain error: how much smaller the outputs are on average than those of the BF16 kernel. Both
FP8 kernels are FlashAttention-3 on Hopper. The kernel of Dao-AILab accumulates O over all 8192 keys in the tensor
core, whose FP8 sums keep 14 significant bits and are truncated. vLLM's fork accumulates each tile separately and adds
it to O in float32. The [tutorial](gallery/plot_attention.py) shows the effect on a long context.

To model another kernel, change a field:

```python
>>> lagging = lp.attentions["fa4_fp8"].with_(rescale_threshold=4.0)     # until flash-attention issue 2694
>>> int(lp.attention(q * 2, k, v, kernel=lagging).saturated.sum()) > 0   # values of P above the largest of E4M3
True

```

| parameter | effect on the bits |
| --- | --- |
| `descale=(q, k, v)` | scales of q, k and v, as numbers or one per sequence and KV head, as callers of FP8 kernels \
pass them. Those of q and k multiply the scores, that of v the output |
| `splits=8` | computes eight ranges of tiles separately, and merges them by their log-sum-exps as the library's \
combine kernel does (`Combine`). The number changes the result; schedulers derive it from batch size and GPU |
| `causal=`, `window=` | select the tiles, and in some kernels their size |
| `page_size=` | size of the [pages of a KV cache](#pages-of-a-kv-cache), which can change the tiles |
| `softcap=`, `sinks=` | for the kernels that have them: see *options* in the table |

With grouped-query attention, k and v have fewer heads than q; each group of query heads uses one KV head.

On the command line, `lowprec attentions` lists the kernels, and `lowprec attention Q.npy K.npy V.npy --kernel NAME`
computes one.

## Catalogue

The columns, for head dimension D of queries and keys, and Dv of values:

- *keys per tile*: size of a tile of keys (kBlockN) without a mask. Causal and sliding-window kernels may have other
  sizes (`key_tiles`).
- *row sum*: with `QuadSum`, four threads add the keys 2t and 2t + 1 of every eight, and their sums are added at the
  end, (t0 + t2) + (t1 + t3). With `PackedPairSum`, one thread adds eight interleaved chains.
- *P*: format of P, and the power of two that multiplies it.
- *threshold*: the running maximum is kept, and O is not rescaled, while a new maximum exceeds it by at most this
  number in units of log2.
- *PV summed over*: number of tiles that the tensor core accumulates before the sum is added to O in float32.

{table(names, rows)}

A rule of each library (`schedule`) normalizes the mask as the library's wrapper does, and decides which tiles a block
of queries visits:

- In vLLM's fork, the tiles of a window start at the first key that a block sees.
- Short blocks of queries have smaller tiles.
- In FlashAttention-4, a polynomial computes a part of the exponentials. This part depends on head dimension, mask,
  number of rows, and query heads per KV head.

A NaN in V reaches all rows of the blocks that visit its tile, even at masked positions (0 x NaN).

Each entry is one configuration of its library:

- `flash2` is the kernel without splits and with the tiles of an A100. FlashAttention-2's wrapper splits keys for
  small batches (`flash2_splitkv`), and GPUs of compute capability 8.6 and 8.9 have other tiles at D = 128.
- FlashAttention-3 entries have row-major V.
- FlashAttention-4 is compiled for sm_100; its kernel for sm_103 has no polynomial.

### Pages of a KV cache

Tiles take keys in their logical order, whatever their pages. But a kernel may copy pages in another way than
contiguous keys, with other tiles, and then the bits of the output change:

| kernel | copied as contiguous keys are (by TMA) | otherwise |
| --- | --- | --- |
| `flash2_splitkv` | multiples of 256 keys, in vLLM's fork of 16: addresses only | refused; `flash2` has no pages |
| `fa3_bf16`, `fa3_fp8` | pages of whole tiles, and more queries x heads of a group than rows of a block | other \
tiles (128 keys instead of 176 in BF16 at D = 128, 160 instead of 224 in FP8); blocks hold the heads of a group |
| `vllm_fa3_fp8` | the same, without a window | blocks hold the heads of a group; tiles stay |
| `fa4_bf16`, `fa4_fp8` | pages of 128 keys | no pairs of CTAs: other columns of 2^x by the polynomial at D = 128 |

So one query of FlashAttention-3 in BF16, which decoding has, is computed with 176 keys per tile from a contiguous
cache and with 128 from pages of any size. vLLM's fork in BF16, which is not in the catalogue, has 160 and 128.

## Verification and assumptions

Outputs and log-sum-exps of each kernel match an [oracle in exact rational
arithmetic](../lowprec/oracle/attention.py), bit for bit, on random rows with several tiles, with and without a causal
mask. The tests detect each of 19 deliberately wrong rules (another order of tiles, offset, threshold, rounding, order
of the sum). Which tiles a block of queries loads, and where a kernel checks for rows without a maximum, are compared
with [the loops of the sources](../lowprec/oracle/attention_tiles.py), with NaN in masked values and rows whose scores
are all -Inf. The rules were read from the sources in the table, twice: a second implementation, written from the
sources without knowledge of the first, has the same bits in all 109,760 outputs and 1,109 log-sum-exps of 384 cases
(masks, groups of heads, NaN, infinities). Its smallest cases are tests. **No recording of a GPU's attention has
confirmed them yet.**

Where a compiler decides whether a multiplication and an addition become one FMA, the fields follow compiled kernels:
fa3-fwd 0.0.3 and vllm 0.33.0 (its FlashAttention-2 and 3) from PyPI, disassembled, and FlashAttention-4 compiled with
CUTLASS DSL 4.6.2 for sm_100a. In these, `row_sum * scale + p`, `maximum * scale - 8` and `maximum * scale + log(sum)`
are one FMA each (`QuadSum(fused=...)`, `fused_shift`, `fused_lse`), except that FlashAttention-4 multiplies and adds
separately in the first. For another compiler, change these fields.

The compiled code leaves three points open. lowprec assumes:

- **`ex2.approx`, reciprocal and logarithm** are rounded correctly. The hardware does not round them correctly: PTX
  ISA 9.1 bounds the errors of `ex2.approx` and of the reciprocal at 2 ulp. Its float32 results can differ in their
  last bits, and a BF16 result near a rounding boundary can differ. FlashAttention-4's polynomial consists of FMAs and
  is reproduced bit for bit.
- **Sinks and combination of splits** are computed without FMAs, as their sources are written.
- **The order of products within one instruction** has no effect: the accumulators of these kernels add aligned and
  truncated terms in fixed point.

`undecided=True` computes which outputs the first point affects. It propagates the documented error bounds of 2^x and
of the reciprocal to the output. All other outputs have the same bits for every implementation within these bounds:

```python
>>> q, k, v = (lp.round_to(rng.standard_normal((n, 64)), "bfloat16") for n in (64, 2048, 2048))
>>> found = lp.attention(q, k, v, kernel="fa3_bf16", undecided=True)
>>> print(f"{{found.undecided.mean():.1%}} of the outputs in BF16 depend on undocumented bits")
0.3% of the outputs in BF16 depend on undocumented bits

```

## PyTorch on a CPU

`torch_cpu_flash_f32` and `torch_cpu_flash_bf16` are PyTorch's flash attention on a CPU with AVX-512, which anyone can
compare without a GPU. For 4 to 800 queries, 12 to 1100 keys and 12 to 256 channels, with and without a causal mask,
NaN, infinities and subnormals, 0 of 305,624 outputs and 0 of 5,642 log-sum-exps differ from PyTorch 2.13.0 (MKL 2024.2,
one thread, an AMD CPU). Digests of eight such outputs are tests, and an
[oracle](../lowprec/oracle/attention_cpu.py) has the same bits.

The vector functions of PyTorch and glibc's `expf` and `logf` are public. Two rules are measured, since no source gives
them: MKL computes a matrix product by chains of at most 192 products (two equal ones up to 384), and the sum of a BF16
row has two accumulators. Smaller products, with fewer than 4 queries in a block, 12 keys in a tile or 12 channels, have
other orders; `undecided=True` marks these outputs. Other CPUs and versions may have other orders. A mask other than a
square causal one raises an error.

In BF16, PyTorch's fast exp returns -0 for NaN. A row with a score of +Inf therefore returns 0, not NaN:

```python
>>> q, k, v = (np.ones((4, 32), np.float32), np.ones((32, 32), np.float32), np.ones((32, 32), np.float32))
>>> k[3, 0], names = np.inf, ("torch_cpu_flash_f32", "torch_cpu_flash_bf16")
>>> [float(lp.attention(q, k, v, kernel=name).out[0, 0]) for name in names]
[nan, 0.0]

```

## Gradients

`lp.attention_grad(q, k, v, dout)` emulates FlashAttention-2's deterministic backward pass. P and dS are BF16. The
tensor core accumulates dK and dV over the tiles of queries, in reverse order. Each thread block writes its part of dQ
to a separate buffer, and the buffers are added in increasing order. (The library's default backward pass adds to dQ
atomically, so its bits differ from run to run.) Float32 results match an [oracle in exact rational
arithmetic](../lowprec/oracle/attention_backward.py), and the tests detect four deliberately wrong rules.

With grouped-query attention, the library's wrapper sums dK and dV over the query heads of a group in torch;
`attention_grad` returns them for each query head.

Not included: the backward passes of FlashAttention-3 and 4.
"""
