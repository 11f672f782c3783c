"""Generate the page of accumulators from the catalogues."""

from __future__ import annotations

import dataclasses

from pages import table

import lowprec as lp
from lowprec.tensorcore.library import GemmLibrary


def page(folder: str = "") -> str:
    """Return docs/accumulators.md; with a folder, each name links to its page in that folder."""
    rows, kinds = [], dict[str, str]()
    for name in lp.accumulators:
        entry = lp.accumulators[name]
        kind, takes = type(entry), ", ".join(f.name for f in entry.input_formats) or "any"
        shown = f"[{name}]({folder}/{name}.md)" if folder else f"`{name}`"
        kinds[kind.__name__] = kind.summary
        bits = getattr(entry, "fraction_bits", "")
        group = entry.group_size if takes != "any" else ""
        result = entry.output_format.name
        rows.append((shown, takes, f"`{kind.__name__}`", group, bits, result, entry.validated_against))
    orders = []
    for name in lp.gemm_libraries:
        entry = lp.gemm_libraries[name]
        fields = [f for f in dataclasses.fields(GemmLibrary) if f.name not in ("name", "source")]
        own = {f.name: getattr(entry, f.name) for f in fields if getattr(entry, f.name) != f.default}
        orders.append((f"`{name}`", ", ".join(f"`{field}={value!r}`" for field, value in own.items()), entry.source))
    return f"""# Accumulators

A matrix product consists of long sums, and tensor cores differ in how they add. A textbook rounds after every addition.
A tensor core takes a *group* of products at once, aligns them with the largest, truncates bits too far below it (the
number of *fraction bits* sets the limit), adds the rest exactly, and rounds or truncates the sum to the format of the
result. An **accumulator** describes such a rule; registers, which PTX and CUTLASS call accumulators, hold its results.

NVIDIA's rule (`FusedSum`) in full: the exponent of a product is the sum of its operands' exponents; the significand of
the product is not normalized. A zero product or a zero C has the exponent `zero_exponent`. E is the largest exponent of
the group's products and of C, the sum so far. With F fraction bits, every term is truncated toward zero to a multiple
of 2^(E - F), and the terms are added exactly. The sum is truncated toward zero to FP22 or float32, or rounded to
nearest even to float16. Hopper's `wgmma` in FP8 has groups of 32, F = 13 and FP22; the result is the C of the next
group.

Three accumulators on the same sum of 4096 equal terms:

```python
>>> import numpy as np, lowprec as lp
>>> a = lp.encode(np.full((1, 4096), 0.1), "e4m3fn")         # 4096 codes of 0.1015625
>>> for name in ("exact", "hopper_fp8", "blackwell_fp8"):
...     print(name, lp.mma(a, a, accumulator=name, a_format="e4m3fn").item())
exact 42.25
hopper_fp8 38.7734375
blackwell_fp8 42.25
>>> lp.accumulators["hopper_fp8"].with_(fraction_bits=20)         # a hypothetical accumulator
FusedSum(name='hopper_fp8(fraction_bits=20)', input_formats=('e4m3fn', 'e5m2'), fraction_bits=20, zero_exponent=-133)

```

    lowprec accumulators hopper_fp8                      # one entry, with its source
    lowprec mma 0x38,0x3c 0x40,0x44 --accumulator hopper_fp8
    lowprec identify dump.npz --format e4m3fn            # which one produced these outputs?

How each kind adds:

{table(("kind", "summation"), [(f"`{kind}`", words) for kind, words in kinds.items()])}

Which accumulator is an instruction?

| instruction | accumulators |
| --- | --- |
| FP16 on a GPU from Volta to Blackwell and RTX Blackwell, BF16 and TF32 from Ampere on | `ampere_f16`, \
`ampere_bf16`, `ampere_tf32`, and `ampere_f16_f16` with float16 results; the first word is the generation |
| `wgmma.mma_async` m64nNk32 in FP8 (Hopper, sm_90) | `hopper_fp8`; with float16 results `hopper_fp8_f16` |
| `mma.sync` m16n8k32 in FP8 on Ada (sm_89) | `ada_fp8`, `ada_fp8_f16` |
| the same on Hopper and on Blackwell (sm_100) | `hopper_fp8_mma`, `blackwell_fp8_mma`, and `..._mma_f16` |
| the same on RTX Blackwell (sm_120) | `rtx_blackwell_fp8`, `rtx_blackwell_fp8_f16` |
| `tcgen05.mma` kind::f8f6f4 (sm_100) | `blackwell_fp8`, `blackwell_fp8_f16` |
| `tcgen05.mma` kind::mxf8f6f4, kind::mxf4 | `blackwell_mxf8`, `blackwell_mxf4` |
| `tcgen05.mma` kind::mxf4nvf4 with UE4M3 scales; with UE8M0 scales per 16 values | `blackwell_nvfp4`; \
`blackwell_mxf4_16` |
| `mma.sync` with block scales on RTX Blackwell | `rtx_blackwell_mxf8`, `rtx_blackwell_mxf4`, `rtx_blackwell_nvfp4` |
| MFMA of AMD's CDNA1 to CDNA3; CDNA4 is not included | `cdna1_f16`, ..., `cdna3_fp8` |
| WMMA of AMD's RDNA3 and RDNA4 | `rdna3_f16`, `rdna4_f16` (wave64), `rdna4_f16_wave32` |
| RISC-V's dot products in drafts: Zvdota as Spike computes it, for VLEN = 128 | `zvdota_fp8`, `zvdota_bf16` |
| RISC-V's matrix extension in draft, by its choices psm and rnd | `ime_bf16_rto`, `ime_bf16_frm`, `ime_bf16_xct`, \
`ime_bf16_rvbna` |
| MVMUL of Tenstorrent's Blackhole with float32 sums, in one or two fidelity phases; others are a field | \
`blackhole_bf16_lofi`, `blackhole_bf16_hifi2` |
| DL8 on IBM's AIU with DL16 sums, as IBM simulates it | `aiu_dl8` |

All accumulators follow. *Verified by* is the evidence for a rule; [what is exact](exactness.md) has the number of sums
compared. Of the results of an H200, the repository has a part (`reference_data/units`); counts are those of all. *Not
zero_exponent* means that the recordings agree with every value that was tried (published ones: from 40 below to 8 above
and none at all; those of the H200: from 3 below to 1 above): this field rests on the source of the rule alone. Two
products in float16 determine it. An H200 returns the first of these results; other GPUs have not been tried:

```python
>>> a, b = np.zeros((2, 1, 16), np.float16)
>>> a[0, :2], b[0, :2] = (2**-14, 2**-23), (2**-11, 2**-24)
>>> unit = lp.accumulators["hopper_f16_f16"]
>>> for other in (unit, unit.with_(zero_exponent=unit.zero_exponent - 1)):
...     print(lp.mma(a.view(np.uint16), b.view(np.uint16), accumulator=other).item())
0.0
5.960464477539063e-08

```

{table(("name", "multiplies", "kind", "group", "fraction bits", "result", "verified by"), rows)}

## Libraries

A GEMM library calls the tensor core many times. Bits depend on its order of operations as well: when a sum leaves the
tensor core (*promotion*), where scales are applied, and whether K is split. `lp.gemm(library=...)` takes a name, or a
description of your own kernel:

```python
>>> mine = lp.GemmLibrary("mine", promote_every=64, split_k=4)

```

| in the kernel | in the description |
| --- | --- |
| promotion after n products | `promote_every=n` |
| scales per tensor or row, applied once after all of K | `apply_scales_at="end"` |
| scales that are not multiplied first: at promotion A's, at the end B's comes first | `scales_one_by_one=True` |
| split-K: equal contiguous parts, in whole tiles, added in float32, in the result format, by a semaphore, or through \
a workspace | `split_k`, `split_tile`, `split_k_reduction` |
| sliced-K: warps of one block take pieces of K in turn | `slices`, `slice_length` |
| halves of K, down to short leaves | `split_k_reduction="tree"`, `split_tile` |
| two consumer warpgroups with one half of K each, added at the end | `split_k=2` |
| stream-K: blocks take equal numbers of tiles of K | `stream_k=(blocks, rows, columns)`, `split_tile` |
| other unequal parts of K | none: call `lp.gemm` with the operands of each part, and add the float32 results in the \
kernel's order; for equal parts this returns the bits of `split_k` |
| tile sizes in M and N, clusters, pipeline stages | none: they change no bits if the order along K stays the same |

{table(("name", "fields other than the defaults", "source"), orders)}

A library's number of parts depends on the sizes and the GPU: give it as `split_k`, or as the blocks of `stream_k`.
Entries without a count of an H200's results follow from the sources that are named and were not compared with a GPU.

Options of libraries for FP8 on Hopper:

| option | in lowprec |
| --- | --- |
| `torch._scaled_mm(..., use_fast_accum=False)`; `True` | `library="cublaslt"`; `"cublaslt_fast"` |
| CUTLASS schedules with `FP8FastAccum`; without | `promote_every=None`; `library="cutlass_2xacc"` |
| Triton's `tl.dot(..., max_num_imprecise_acc=n)`, n a multiple of 32 that divides BLOCK_K, results in float32 | \
`promote_every=n`; by default, Triton does not promote on Hopper |

The row of Triton follows its compiler's source (the lowering to WGMMA), and was not compared with a GPU.
"""
