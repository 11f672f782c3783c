"""Generate the page of codecs from the catalogues."""

from __future__ import annotations

from pages import table

from lowprec.codec import codecs
from lowprec.codec.reductions import all_reduces


def page() -> str:
    """Return docs/codecs.md."""
    rows = []
    for name in codecs:
        codec = codecs[name]
        size = codec.row_bytes(7168)
        rows.append((f"`{name}`", f"{codec.bits_per_value:g}", f"{size:,}", f"{size / 14336:.3f}", codec.description))
    sums = [
        (
            f"`{name}`",
            *(f"{all_reduces[name].snr_loss(ranks):.2f}" for ranks in (2, 8, 32, 128)),
            all_reduces[name].source,
        )
        for name in all_reduces
    ]
    return f"""# Codecs

A codec encodes rows of values as bytes, and decodes them: for dispatch and combine of a Mixture of Experts, their
backward directions, activations saved for the backward pass, or a KV cache. `lowprec codecs` lists all codecs;
`lowprec error --dist gauss --format NAME` measures the error of one. The fields `dispatch`, `combine`, `dispatch_grad`,
`combine_grad`, `saved_attention_output` and `saved_swiglu_input` of a recipe take the name of a codec.

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

Bits per value are for whole tiles of bfloat16 numbers, bytes for a row of 7168.

{table(("codec", "bits per value", "bytes of 7168", "relative to BF16", "description"), rows)}

To define a codec, use `BlockCodec("mine", "e3m4", tile=32, scale_format="e8m0fnu")`, `LogFMTCodec("six", 6, tile=64)`,
`CastCodec("half", "float16")`, or any object with the same members (`lowprec.codec.Codec`).

## Reductions with encoded messages

`lowprec.codec.reductions.combine_low_latency` and `combine_normal` add the outputs of experts as DeepEP's kernels do.
`all_reduce(shards, codec, algorithm)` encodes every message with a codec. For independent values on R ranks, the SQNR
of the sum is lower than that of the codec by (dB):

{table(("algorithm", "R = 2", "8", "32", "128", "description"), sums)}

`tests/codec/test_reductions.py` requires the emulation to agree within 0.2 dB. The error of each codec by kind of data
is in [error_atlas](../ablations/results/error_atlas.md), its error against its time in
[wire_cost](../ablations/results/wire_cost.md).
"""
