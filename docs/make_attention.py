"""Generate the page of attention kernels from the catalogue."""

from __future__ import annotations

from pages import table

import lowprec as lp
from lowprec.attn.tiles import list_tiles


def factor_of(kernel: lp.AttentionKernel) -> str:
    """Return the factor of P."""
    return f"{kernel.p_scale:g}" if kernel.p_scale != 1 else f"2^{kernel.p_offset:g}"


def page() -> str:
    """Return docs/attention.md."""
    rows = [
        (
            f"`{name}`", " and ".join(dict.fromkeys((a.operands.name, a.values_format.name))),
            " and ".join(f"`{core}`" for core in dict.fromkeys((a.scores.name, a.values.name))),
            ", ".join(list_tiles(a.key_tiles)),
            type(a.row_sum).__name__, f"{factor_of(a)} P in {a.p_format.name}", f"{a.rescale_threshold:g}",
            "all" if a.promote_every is None else a.promote_every,
            ", ".join(n for n, has in (("splits", a.combine), ("sinks", a.sink), ("softcap", a.softcap),
                                       ("gradients", a.gradient_tiles)) if has),
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
        "tiles per sum of PV",
        "options",
    )
    files: dict[str, list[str]] = {}
    for name in lp.attentions:
        files.setdefault(lp.attentions[name].source, []).append(f"`{name}`")
    sources = "\n".join(f"- {', '.join(entries)}: {source}" for source, entries in files.items())
    return f"""# Attention kernels

An attention kernel fuses two matrix products, S = Q K^T and O = P V, with a softmax between them, and iterates over
tiles of keys. P is the matrix of probabilities before they are divided by their sum. `lp.attention` emulates the
forward pass of FlashAttention 2, 3 and 4, of vLLM's fork, of FlashInfer in FP8, of FlashMLA's decoding, of
SageAttention 2, 2++ and 3, of Triton's tutorial, and of PyTorch on a CPU. An H200 has confirmed the bits of
FlashAttention 2 and 3, FlashMLA and FlashInfer; see [what is verified](#verification-and-assumptions).

Every choice that affects the bits is a field of the kernel's description:

- the tile sizes;
- the [accumulator](accumulators.md) of each product, the model of how an instruction adds its products;
- the rule for the running maximum;
- the order in which a row of P is summed;
- the format and scale of P;
- the number of key tiles that are accumulated in the tensor core before the sum is added to O in float32.

The example measures the effect of the last one:

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

The printed number is the gain error: the slope of a regression through the origin of the FP8 outputs on the BF16
outputs, minus 1. Both FP8 kernels are FlashAttention-3 on Hopper. The upstream kernel (Dao-AILab) accumulates O over
all 8192 keys in the tensor core, whose FP8 sums keep 14 significant bits and are truncated. vLLM's fork accumulates
each tile separately and adds it to O in float32. A [tutorial](gallery/plot_attention.py) shows the effect on a long
context; [another one](gallery/plot_attention_row.py) computes one row step by step.

To model another kernel, change a field:

```python
>>> lagging = lp.attentions["fa4_fp8"].with_(rescale_threshold=4.0)  # the old maximum stays until it grows by 2^4
>>> int(lp.attention(q * 2, k, v, kernel=lagging).saturated.sum()) > 0  # number of values of P above E4M3's maximum
True

```

| parameter | effect on the bits |
| --- | --- |
| `descale=(q, k, v)` | scales of q, k and v, as callers of FP8 kernels pass them: each is one number, or one number \
per sequence and KV head. Those of q and k multiply the scores, that of v the output. Only kernels of 8 bits take \
them; [SageAttention's](#sageattention) have other shapes |
| `splits=8` | splits the key tiles into eight ranges, computes each separately, and merges them by their log-sum-exps \
as the library's combine kernel does (`Combine`). The number of splits changes the result; the libraries choose it \
from the batch size and the GPU |
| `causal=`, `window=` | select the tiles, and in some kernels their size |
| `mask=` | hides any keys, in the kernels of [PyTorch on a CPU](#pytorch-on-a-cpu), which also compute hidden scores |
| `page_size=` | size of the [pages of a KV cache](#pages-of-a-kv-cache), which can change the tiles |
| `softcap=`, `sinks=` | for the kernels that have them: see *options* in the [catalogue](#catalogue) |

With grouped-query attention, k and v have fewer heads than q; each group of query heads uses one KV head.

On the command line, `lowprec attentions` lists the kernels, and `lowprec attention Q.npy K.npy V.npy --kernel NAME`
computes one. `lowprec.torch.attention` and `lowprec.jax.attention` take float32 operands, quantize them, and leave the
padding of a `mask=` out.

## Catalogue

The columns, for head dimension D of queries and keys, and Dv of values:

- *keys per tile*: size of a tile of keys (kBlockN) without a mask. The first size in a cell whose condition holds is
  used; a condition without Dv also requires Dv <= D. Causal and sliding-window kernels may have other sizes
  (`key_tiles`).
- *row sum*: order in which the values of a row of P are added. `QuadSum`: thread t of four (t = 0 to 3) adds keys 8i +
  2t and 8i + 2t + 1; the threads' sums s are added at the end, (s0 + s2) + (s1 + s3). `PackedPairSum`: in each tile,
  one thread has eight partial sums c, of keys i with i mod 8 = 0 to 7, and adds them as ((c0 + c2) + (c4 + c6)) + ((c1
  + c3) + (c5 + c7)). `LaneSum`: vectors of 16 keys are added, and then the 16 lanes, 8 to 8, 4 to 4, and so on.
  `QuadPairSum`: the threads of `QuadSum` add keys 8i + 2t and 8i + 2t + 1 first; the threads' sums are added as (s0 +
  s1) + (s2 + s3). `QuadQuartetSum`: the same, but four keys of sixteen are added first, ((p[16i + 2t] + p[16i + 2t +
  1]) + p[16i + 2t + 8]) + p[16i + 2t + 9]. `QuadTileSum`: the threads of `QuadSum` add the keys of a tile to 0, one FMA
  joins each thread's sum with that of earlier tiles, and the total is that of `QuadPairSum`. `QuadTotalSum`: the
  threads of `QuadSum` add the keys of one tile, and the tile's total is added to the sum of earlier tiles.
  `QuadOctetSum`: thread t adds keys 8t to 8t + 7 of every 32; the total is that of `QuadPairSum`. The sums of
  `QuadQuartetSum` and `QuadTotalSum` start from 1, the others from 0.
- *accumulator*: of Q K^T and of P V, if they differ. SageAttention's scores are integers, which float32 sums represent.
- *P*: format of P, and the factor that multiplies it. A power of two also multiplies the sum of a row, and cancels.
  FlashInfer's 448 does not: V's scale is divided by it.
- *threshold*: O is rescaled only if the new row maximum exceeds the old one by more than this number, in log2 units;
  otherwise the old maximum is kept. FlashAttention-4 has 8 in BF16. In FP8 it had 4 until flash-attention issue 2694:
  values of P could exceed E4M3's maximum.
- *tiles per sum of PV*: number of key tiles that the tensor core accumulates before the sum is added to O in float32.

{table(names, rows)}

Sources of the rules, read at the versions that [the catalogue's file](../lowprec/attn/catalogue.py) names:

{sources}

The field `schedule` has each library's rules for the mask and for the tiles that a block of queries visits. They differ
in these points:

- In vLLM's fork, the tiles of a sliding window start at the first key that a block of queries sees, not at a multiple
  of the tile size. If queries x query heads per KV head is at most 64, tiles are smaller: at D = 128, 96 keys instead
  of 192. It is compiled for sequences of different lengths only, so that query blocks hold all heads of a group.
- FlashAttention-4 computes some of the exponentials with a polynomial on the FMA units instead of `ex2.approx`. Which
  columns of a tile these are depends on the head dimension, the mask, the number of rows, and the query heads per KV
  head.
- FlashInfer's FP8 kernel comes from FlashAttention-3's, with other tiles and without packed groups of heads. It never
  promotes PV either. It multiplies P by 448 after its sum, and divides V's scale by 448. The scales of Q and K multiply
  the softmax scale before log2(e) does; the library takes a scale of Q per query head, `descale` has one per KV head.
  Its log-sum-exp is to base 2.
- FlashMLA's two warpgroups compute tiles in pairs, each for one half of the columns of V. The first warpgroup adds P0
  V0, rescales, and adds P1 V1; the second adds P1 V1 first, and then round(P0 b) V0, where b is the second tile's
  factor. So the two halves of an output have different roundings. Scores of every second tile are summed from channel
  256 on, and hidden keys have the score -1e33 ([the formulas](../lowprec/attn/paired.py)). It takes D = 576 and Dv =
  512 only.
- Triton's kernel visits tiles from the first key, and its maximum includes the scale. With a causal mask, the tiles
  from a block's first query on are masked: an FMA scales the scores and adds -1e6 to those of hidden keys, and the
  maximum is subtracted from its rounded result; in all other tiles, scaling and subtraction are one FMA. So hidden
  keys have weight where all visible scores, times log2(e), are near -1e6 or below. Each output is divided by the sum
  (`div.full.f32`), and the log-sum-exp is to base 2, with `log2f` of CUDA's library.

A NaN in V reaches all rows of the blocks that visit its tile, even at masked positions (0 x NaN).

Each entry is one configuration of its library:

- `flash2` is the kernel without splits and with the tiles of an A100. FlashAttention-2's wrapper splits keys for
  small batches (`flash2_splitkv`, which has the tiles of `flash2` with one split). GPUs of compute capability 8.6 and
  8.9 have other tiles at D = 128. On an H100 or H200, the same kernels use Hopper's tensor cores and special functions:
  `flash2_hopper`, `flash2_splitkv_hopper`.
- FlashAttention-3 entries have row-major V (the head dimension is contiguous). With column-major V, the library has
  other tiles.
- `flashmla_dense` is the decoding kernel on Hopper. The library takes D = 576 and Dv = 512 only, and reads V from the
  first 512 channels of K: pass `v=k[..., :512]`. Its scheduler divides the tiles of all sequences among the SMs;
  `splits` divides those of each sequence into equal parts.
- `flashmla_fp8` is the sparse decoding kernel on Hopper, with D = 576 (V3.2) or 512 and Dv = 512. Each query has its
  own keys: call it with one query, its selected keys in the order of the indices, and `mask` for indices of -1. The
  kernel dequantizes the FP8 cache to BF16, as the codecs `flashmla_v32` and `flashmla_model1` do
  (`lowprec.attn.operands.round_trip_cache`); both products are BF16. Tiles have 64 keys, each thread adds the keys of
  a tile before it adds them to the sum, and the maximum includes the scale. A sink is part of the divisor only.
  With splits, the library adds the sink when it combines them; here, sinks with splits raise an error.
- FlashAttention-4 is compiled for sm_100; its kernel for sm_103 does not use a polynomial.
- `triton_fused` is the forward pass of Triton's tutorial on fused attention on Hopper, in FP16 and without warp
  specialization. The tutorial tunes its tiles when it runs; the entry has one of its configurations, 128 queries and 64
  keys, and `with_(key_tiles=...)` gives others. The number of keys must be a multiple of the tile, and with a causal
  mask equal that of queries. In a last block of fewer than 128 queries, the kernel then also reads hidden keys and
  values of the next head, and writes its rows there. Here they are omitted: that has other bits only if such a value
  is not finite, or hidden keys have weight.

### Pages of a KV cache

Tiles always follow the logical order of the keys. But a kernel may copy pages on another path than contiguous keys,
with other tile sizes, and then the bits of the output change:

| kernel | page sizes that change no bits | other page sizes |
| --- | --- | --- |
| `flash2` | none: the kernel does not support pages | raise an error |
| `flash2_splitkv` | multiples of 256 keys (FlashAttention-2 in vLLM's fork, which is not in the catalogue: of 16) | \
raise an error |
| `fa3_bf16`, `fa3_fp8` | multiples of the tile, which TMA copies, if queries x query heads per KV head exceeds the \
rows of a query block | other tiles: at D = 128, 128 keys instead of 176 in BF16, and 160 instead of 224 in FP8. Query \
blocks hold all heads of a group (PackGQA) |
| `vllm_fa3_fp8` | all | none |
| `flashinfer_fp8` | at D = 64: all | other tiles: 128 keys instead of 192 at D = 128, 64 instead of 128 at D = 256 |
| `flashmla_dense` | 64 keys, which is the tile | raise an error |
| `triton_fused` | none: the kernel does not support pages | raise an error |
| `flashmla_fp8` | not applicable: keys are selected one by one | raise an error |
| `fa4_bf16`, `fa4_fp8` | 128 keys, which is the tile | the kernel does not use pairs of CTAs; without a mask, at \
D = 128, the polynomial then computes the exponentials of other columns |

Decoding has one query per sequence, so FlashAttention-3 in BF16 at D = 128 uses 176 keys per tile with a contiguous
cache and 128 with a paged one, whatever the page size. (The BF16 kernel of vLLM's fork, which is not in the catalogue,
uses 160 and 128.)

## Verification and assumptions

Outputs and log-sum-exps of each kernel match an [oracle in exact rational
arithmetic](../lowprec/oracle/attention/forward.py), bit for bit, on random rows with several tiles, with and without a
causal mask. The tests detect each of 22 deliberately wrong rules (another order of tiles, offset, threshold, rounding,
order of the sum), 15 for [FlashMLA](../lowprec/oracle/attention/pairs.py), 14 for
[Triton](../lowprec/oracle/attention/triton.py), 18 for
[SageAttention 2's threads](../lowprec/oracle/attention/sage.py) and ten for [SageAttention
3](../lowprec/oracle/attention/sage3.py). [The loops of the
sources](../lowprec/oracle/attention/tiles.py) check two more rules: which tiles a block of queries loads, and where a
kernel tests for rows that are all -Inf; masked values are NaN there. The rules were read from the sources in the table,
twice: a second implementation, written from the sources without knowledge of the first, has the same bits in all
109,760 outputs and 1,109 log-sum-exps of 384 cases (masks, groups of heads, NaN, infinities), of SageAttention 2 in
3,154,496 outputs, 33,461 log-sum-exps and 18,051,200 quantized numbers of 249 cases, of SageAttention 3 in 206,784
outputs and 10,870,056 quantized numbers and scales of 180 cases (with two divisions as nvcc compiles them, see
[below](#sageattention-3)), and of FlashMLA's sparse decoding in 274,944 outputs and 537 log-sum-exps of 200 cases. Of
442 cases of FlashInfer
(8,277,632 outputs), nine differ: with pages and a window, FlashInfer loads V of tile 0 for the last tile. All keys of
that tile are hidden, so only a NaN in V shows the difference; lowprec loads the V that belongs to the tile. The
smallest of these cases are part of the test suite.

**The libraries' kernels ran on an H200**, compiled from their sources with nvcc 13.0. None of 13,000,192 outputs and
105,920 log-sum-exps of `flash2_hopper`, `flash2_splitkv_hopper`, `fa3_bf16`, `fa3_fp8`, `flashinfer_fp8`,
`flashmla_dense` and `flashmla_fp8` differ from lowprec's, if all NaN count as one: several head sizes, causal and not,
outliers, NaN, split keys of FlashAttention 2 (`pytest -m "" tests/attn/test_h200.py`). None of 2,853,888 more outputs
of FlashMLA, with sinks and splits, differed; the repository does not have them. Gradients, vLLM's fork, softcaps, sinks
of other kernels and the entries for other GPUs were not compared.

Whether the compiler contracts a multiplication and an addition into one FMA was read from compiled kernels: fa3-fwd
0.0.3 and vllm 0.33.0 (its FlashAttention-2 and 3) from PyPI, disassembled, and FlashAttention-4 compiled with CUTLASS
DSL 4.6.2 for sm_100a. In these, `row_sum * scale + p`, `maximum * scale - 8` and `maximum * scale + log(sum)` are one
FMA each (fields `QuadSum(fused=...)`, `fused_shift`, `lse`), except that FlashAttention-4 does not fuse
`row_sum * scale + p`. For another compiler, change these fields. FlashMLA's kernel in vllm 0.33.0 has the order of
channels, of additions and of products that its source has, and one FMA each for `score * scale - maximum` and for
`row_sum * scale + sum`. But vLLM compiles it without `--use_fast_math`, so it divides exactly and keeps subnormals;
the entry has the flags of the library's own setup.py.

`triton_fused` follows PTX and SASS of Triton 3.6.0 for sm_90: eleven compilations for D = 64, 128 and 256, with tiles
of 64 x 32 to 128 x 128, causal and not, with block pointers and with tensor descriptors. All have the same operations
in the same order. The same kernel in Triton's interpreter computes with NumPy, so its products and sums have another
order. Where all of them are exact and sums are powers of two, none of its 168,896 outputs and 1,588 log-sum-exps differ
from lowprec's, and none of 8,192 outputs of rows in which a hidden key has the largest score. Of 458,752 random
outputs, 5,274 differ by rounding. `log2f` has the bits of the function in NVIDIA's libdevice for 1,258,291,200 numbers.
This kernel was not compared with a GPU.

[Test vectors](test_vectors.md) check another emulator against the oracle, and name the wrong rule that explains its
answers: `lowprec vectors write attention/fa3_fp8`, then `lowprec vectors compare`.

Two assumptions concern all kernels; the sections on SageAttention list further ones:

- **`ex2.approx`, `tanh.approx`, reciprocal and logarithm**: entries for Hopper have [the bits of its
  functions](exactness.md#hopper-on-an-h200). Those for other GPUs compute the correctly rounded result. The hardware
  does not: PTX ISA 9.1 only bounds the errors of `ex2.approx` and of the reciprocal at 2 ulp. Float32 outputs of such a
  GPU can therefore differ in their last bits, and BF16 outputs near a rounding boundary can differ.
  (FlashAttention-4's polynomial consists of FMAs and is reproduced bit for bit.) If another GPU has Hopper's functions,
  `kernel.with_(exp2=MufuExp2(), reciprocal=MufuReciprocal())`, both from `lowprec.special.mufu`, computes its bits.
- **Sinks** are computed without FMAs, as their sources are written. This was not checked in compiled kernels.

The order of products within one instruction is not an assumption: the accumulators of these kernels add aligned and
truncated terms in fixed point, so the bits do not depend on the order.

`undecided=True` marks the outputs that the first assumption can change. It propagates the documented error bounds of
2^x and of the reciprocal to the output. All other outputs have the same bits for every implementation within these
bounds:

```python
>>> q, k, v = (lp.round_to(rng.standard_normal((n, 64)), "bfloat16") for n in (64, 2048, 2048))
>>> found = lp.attention(q, k, v, kernel="flash2", undecided=True)
>>> print(f"{{found.undecided.mean():.1%}} of the outputs in BF16 depend on undocumented rounding")
0.4% of the outputs in BF16 depend on undocumented rounding

```

## SageAttention

`sage2` and `sage2pp` are SageAttention 2 and 2++ for GPUs of compute capability 8.9 (`pv_accum_dtype` "fp32+fp32" and
"fp32+fp16"). Q and K are INT8, V is E4M3. The tensor core adds the products of P and V of one tile; in `sage2pp`, these
sums are FP16, and V is scaled to at most 2.25 so that they do not overflow. Each tile's sum is added to O in float32.

`lowprec.attn.operands.quantize_operands` computes operands and scales as the library does; `lowprec.torch.attention`
and `lowprec.jax.attention` call it:

```python
>>> from lowprec.attn.operands import quantize_operands
>>> q, k, v = (rng.standard_normal((1, 2, 200, 64)).astype(np.float32) for _ in "qkv")
>>> *operands, descale = quantize_operands(q, k + 4, v, lp.attentions["sage2pp"])
>>> [x.shape for x in descale], lp.attention(*operands, kernel="sage2pp", descale=descale).out.shape
([(1, 2, 64), (1, 2, 16), (1, 2, 64)], (1, 2, 200, 64))

```

- First, K's mean over the tokens is subtracted, which changes no probability. The library adds the scores of the mean
  to the log-sum-exp; `lp.attention` returns that of its operands, and the functions for torch and JAX that of q and
  k.
- `ThreadScales` (`qk_quant_gran` "per_thread", the default) has one scale for the rows of a warp's 32 queries, and for
  the keys of a tile, that a thread of the tensor core holds. `WarpScales` ("per_warp") has one per warp and per tile:
  `lp.attentions["sage2"].with_(scales=WarpScales())`, from `lowprec.attn.scales`. V has one scale per channel.
- The maximum includes the scale and the offset: m = max(m, max(S) s - 8.807), which starts at -5,000,000, and P = 2^(S
  s - m). In the last two tiles, the scores are multiplied by the scales of Q and K and rounded before the maximum is
  found; in all others, s is the product of all scales. Hidden keys have the score -5,000,000.
- A channel of V that is zero has an infinite inverse scale: its output is NaN.

D and Dv must be equal and at most 128. SageAttention does not support windows, and aligns a causal mask at the first
key, which is the mask of `causal=True` only for as many keys as queries. Other cases raise an error.

Besides `ex2.approx`, the reciprocal and the logarithm, these are not public: the order in which `torch.mean` adds the
keys (here the sum is rounded once), the divisions of the quantizers (`div.full` in Triton, `div.approx` in CUDA; here
correctly rounded), rows beyond the last in a group of rows (undefined in Triton; here zeros), and the order of the
scores of K's mean in the log-sum-exp (here one after the other). NaN in Q or K is the integer 0. Operands are rounded
to BF16 first; the library also takes FP16. nvcc 13.0 compiles the rescaling of a thread's sum and of O, and the
addition after it, to one FMA each (at D = 64 without a mask and D = 128 with a causal mask).

## SageAttention 3

`sage3_fp4` is SageAttention 3 for GPUs of compute capability 12.0 (`sageattn3_blackwell`). Q, K, V and P are FP4 (E2M1)
with one E4M3 scale per 16 numbers, which the tensor core applies (NVFP4). D and Dv must both be 64 or 128, and each
query head has its own key head.

- The mean over all tokens is subtracted from K, and from every 128 queries their own mean
  (`BlockScales(queries=128)`; None is `per_block_mean=False`). The products of the means and K, in BF16, are the
  addends of the scores: the sums in the tensor core start from them. They are the fourth array of `descale`.
- P is multiplied by 448 x 6 = 2688, so that the scale of a block of 16 keys is at most 448. P is divided by the
  unrounded scale; the tensor core multiplies by the scale in E4M3. Blocks in which 2688 P is at most 6 x 2^-10 become
  zero, while the sum has all of P.
- The first tile of a block of queries compares its scores with 0: the array of maxima is a new tensor of CUTLASS, which
  is zero. So the maximum is at least 0, and blocks of 16 negative scores have the scale of a score of 0.

Two lines of the library give other results than it means, and `sage3_fp4` has its results:

- **The mask compares columns of the tensor core's result instead of keys.** K is permuted, so column 8i + 2t + e of
  32 holds key 8t + 2i + e. With a causal mask, query 4 sees keys 0, 1, 8, 9 and 16. Without one, if N is not a
  multiple of 32, some of the last keys are hidden, and padded zeros count as keys.
- **With a causal mask, the second tile of a block of queries is missing from the output**, but not from the sum: the
  output is updated under `if (masking_step > 0)`, and there is only step 0.

Users have reported the error of the causal mode
([#340](https://github.com/thu-ml/SageAttention/issues/340)), and a copy in FastVideo was corrected
([#1506](https://github.com/hao-ai-lab/FastVideo/pull/1506)). Two fields of the schedule select the meant rules:

```python
>>> from lowprec.attn.attention import softmax_attention
>>> library = lp.attentions["sage3_fp4"]
>>> meant = library.with_(schedule=library.schedule.with_(hides_columns=False, omits_second=False))
>>> q, k, v = (rng.standard_normal((1, 1, 256, 64)).astype(np.float32) for _ in "qkv")
>>> exact = softmax_attention(q, k, v, causal=True)[..., 128:, :]
>>> for kernel in (library, meant):
...     *operands, descale = quantize_operands(q, k, v, kernel)
...     out = lp.attention(*operands, kernel=kernel, descale=descale, causal=True).out[..., 128:, :]
...     print(f"{{np.sqrt(((out - exact) ** 2).mean() / (exact ** 2).mean()):.0%}}")
104%
20%

```

The remaining 20% are the error of FP4. Which operations are fused, the start from zero, and two divisions (``amax /
6`` is a product with 1/6 in float32, P / scale a product with the reciprocal) were read from the code that nvcc 13.0
generates for sm_120a with CUTLASS at 7107b05, at D = 64 without a mask and D = 128 with a causal mask. The latter has
no product P V for the second tile. The means' order of additions and the products of the means are not public; here
the sums are rounded once, and the products are added one after the other in float32. The library returns no
log-sum-exp; `lse` is computed as in SageAttention 2. A causal mask with unequal numbers of queries and keys raises an
error.

## PyTorch on a CPU

`torch_cpu_flash_f32` and `torch_cpu_flash_bf16` are PyTorch's flash attention on a CPU with AVX-512, which anyone can
compare without a GPU. 0 of 305,624 outputs and 0 of 5,642 log-sum-exps differ from PyTorch 2.13.0 (MKL 2024.2, one
thread, an AMD CPU). The cases have 4 to 800 queries, 12 to 1100 keys and 12 to 256 channels, some with a causal mask,
NaN, infinities or subnormals. Digests of eight such outputs are tests, and an
[oracle](../lowprec/oracle/attention/cpu.py) has the same bits.

The vector functions of PyTorch and glibc's `expf` and `logf` are public. Two rules are measured, since no source gives
them: MKL adds at most 192 products in one chain (for K of 193 to 384, in two chains of equal length), and the sum of a
BF16 row has two accumulators. Smaller products, with fewer than 4 queries in a block, 12 keys in a tile or 12 channels,
have other orders; `undecided=True` marks these outputs. Other CPUs and versions may have other orders. `mask=`
takes any mask. A window, and `causal=True` with other numbers of keys than queries, raise an error.

`sdpa_math` is PyTorch's attention by single operations (`SDPBackend.MATH`), to which it falls back if no fused kernel
takes the operands. Q and K are each multiplied by the square root of the scale, masks are added to the scores, the
softmax is that of `torch.softmax` (with SLEEF's exponential), and P is divided by its sum before the product with V. It
computes in float32, for BF16 operands too: pass `out_format="bfloat16"` for their output. For 4 to 200 queries, 12 to
1100 keys and 1 to 420 channels, several heads, masks, a negative scale, NaN, infinities, subnormals and strided
operands, 0 of 2.2 million outputs differ from PyTorch 2.13.0 with one thread; with two threads, 57 have other bits. A
product of fewer than 400 multiplications per matrix also has another order; `undecided=True` marks its outputs.

PyTorch returns no log-sum-exp here; `lse` is the maximum plus the logarithm of the sum. Its `is_causal` is aligned to
the first key and `causal=True` to the last; with as many queries as keys, they are the same mask.

In BF16, PyTorch's fast exp returns -0 for NaN. A row with a score of +Inf therefore returns 0, not NaN:

```python
>>> q, k, v = (np.ones((4, 32), np.float32), np.ones((32, 32), np.float32), np.ones((32, 32), np.float32))
>>> k[3, 0], names = np.inf, ("torch_cpu_flash_f32", "torch_cpu_flash_bf16")
>>> [float(lp.attention(q, k, v, kernel=name).out[0, 0]) for name in names]
[nan, 0.0]

```

## Gradients

`lp.attention_grad(q, k, v, dout)` emulates the deterministic backward passes of FlashAttention-2 (`flash2`) and
FlashAttention-3 (`fa3_bf16`). P and dS are BF16, and the tensor core accumulates dK and dV over the tiles of queries.

| | FlashAttention-2 | FlashAttention-3 |
| --- | --- | --- |
| tiles of queries | from the last to the first | from the first to the last |
| dQ | each thread block adds to its own buffer; the buffers are added in increasing order | tiles of keys are added \
to one sum, from the first to the last, or from the last with a causal mask |
| dK and dV of a group of heads | returned for each query head: the library's wrapper adds them in torch | added in \
float32, in increasing order of heads |
| queries per tile at D = 128 | 64 | 80 without a mask, else 64 |
| largest D | 256 | 192 |

(The libraries' default backward passes add to dQ atomically, so their bits differ from run to run.) Float32 results
match an [oracle in exact rational arithmetic](../lowprec/oracle/attention/backward.py), also with causal masks,
windows, subnormal numbers, infinities and NaN, and the tests detect twelve deliberately wrong rules.
FlashAttention-3's additions in global memory keep subnormal numbers, as `cp.reduce.async.bulk.add` of an H200 does.

Both libraries compile with `--use_fast_math`: subnormal operands and results of float32 operations are zero there, but
not those of the tensor cores. The tensor cores also multiply the padding of the last tiles, and P = 0 of hidden keys,
with infinities: such gradients are NaN.

Not included: the backward pass of FlashAttention-4.
"""
