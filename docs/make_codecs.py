"""Generate the page of codecs from the catalogues."""

from __future__ import annotations

from pages import table

from lowprec.codec import codecs


def page() -> str:
    """Return docs/codecs.md."""
    rows = []
    for name in codecs:
        codec = codecs[name]
        step = getattr(codec, "columns_multiple", 1)
        columns = 7168 if 7168 % step == 0 else step
        size = codec.row_bytes(columns)
        shown = f"{size:,}" if columns == 7168 else f"{size:,} of {columns:,}"
        share = f"{size / 2 / columns:.3f}"
        rows.append((f"`{name}`", f"{codec.bits_per_value:g}", shown, share, codec.description))
    return f"""# Codecs

A codec encodes rows of values as bytes, and decodes them: for dispatch and combine of a Mixture of Experts, their
backward directions, activations saved for the backward pass, or a KV cache. `lowprec codecs` lists all codecs;
`lowprec format-errors --dist gauss --format NAME` measures the error of one. The fields `dispatch`, `combine`,
`dispatch_grad`, `combine_grad`, `saved_attention_output` and `saved_swiglu_input` of a recipe take the name of a codec.

```python
>>> import numpy as np, lowprec as lp
>>> x = np.random.default_rng(0).standard_normal((4, 7168), dtype=np.float32)
>>> codec = lp.codecs["logfmt10"]
>>> wire = codec.encode(lp.round_to(x, "bfloat16"))
>>> data = wire.to_bytes()
>>> len(data), wire.nbytes, wire.bits_per_value
(36736, 36736, 10.25)
>>> np.array_equal(codec.from_bytes(data, x.shape).decode(), wire.decode())
True

```

The bytes of all rows follow one another. A row is the scales (in LogFMT, the ranges) of its tiles, then its codes,
least significant bit first, padded with zeros to a whole byte. NVFP4 has the scale of the tensor, 4 bytes, before its
first row. Nothing else is sent: the receiver knows the shape.

`from_bytes` raises `DecodeError` for any other length, negative or infinite scales, NaN codes with a scale that is not
NaN, ranges out of order, and padding that is not zero. It accepts only bytes that `to_bytes` reproduces bit for bit. A
tile with NaN or infinity decodes to NaN (casts preserve both; DeepEP's format converts NaN to 0).

Bits per value are for whole tiles of bfloat16 numbers, bytes for a row of 7168, or of
a token or page of the codec's own size. The layouts of FlashMLA's caches are those of its
[tests/quant.py](https://github.com/deepseek-ai/FlashMLA/blob/main/tests/quant.py): executed on 25,600 tokens of
bfloat16, it gives the same bytes (0 of 15,872,000 differ) and the same decoded values (0 of 13,926,400). In a page,
FlashMLA leaves the eighth byte of a token's scales and the bytes after the last scale unset; they are zero here.

{table(("codec", "bits per value", "bytes of 7168", "relative to BF16", "description"), rows)}

Attention from a cache: `quantize_operands` decodes keys and values from any codec, and gives the operands of a kernel:

```python
>>> from lowprec.attn.operands import quantize_operands
>>> q, k, v = np.random.default_rng(0).standard_normal((3, 1, 1, 256, 128), dtype=np.float32)
>>> kernel = lp.attentions["fa3_bf16"]
>>> def output(cache=None):
...     *operands, descale = quantize_operands(q, k, v, kernel, cache=cache)
...     return lp.attention(*operands, kernel=kernel, descale=descale, out_format="float32").out
>>> exact = output()
>>> for cache in ("int8_1x128", "logfmt8", "fp8_1x128", "nvfp4"):
...     print(f"{{cache}}: {{np.linalg.norm(output(cache) - exact) / np.linalg.norm(exact):.1%}}")
int8_1x128: 1.0%
logfmt8: 2.1%
fp8_1x128: 3.8%
nvfp4: 13.3%

```

To define a codec, use `BlockCodec("mine", "e3m4", tile=32, scale_format="e8m0fnu")`, `LogFMTCodec("six", 6, tile=64)`,
`CastCodec("half", "float16")`, or any object with the same members (`lowprec.codec.Codec`).

## Reductions with encoded messages

`lowprec.codec.reductions.combine_low_latency` and `combine_normal` add the outputs of experts as DeepEP's kernels do.
An [all-reduce](collectives.md) encodes every message with a codec: `lp.collectives["ring"].all_reduce(shards, codec)`.

The error of each codec by kind of data is in [error_atlas](../ablations/results/error_atlas.md), its error against its
time in [wire_cost](../ablations/results/wire_cost.md).
"""
