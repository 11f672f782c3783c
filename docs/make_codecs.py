"""The page of codecs, from the catalogues."""

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
        rows.append((f"`{name}`", f"{codec.bits_per_value:g}", f"{size:,}", f"{size / 14336:.3f}", codec.about))
    sums = [
        (
            f"`{name}`",
            *(f"{all_reduces[name].snr_loss(ranks):.2f}" for ranks in (2, 8, 32, 128)),
            all_reduces[name].source,
        )
        for name in all_reduces
    ]
    return f"""# Codecs

A codec turns rows of values into the bytes that travel or wait, and back: dispatch and combine of a Mixture of
Experts, their backward directions, activations kept for the backward pass, a KV cache. `lowprec codecs` lists them;
`lowprec error --dist gauss --format NAME` measures one; a recipe names them (`dispatch`, `combine`, `dispatch_grad`,
`combine_grad`, `cache_attention_output`, `cache_swiglu_input`).

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

Bytes are those of the rows one after another; a row is the scales (or ends) of its tiles, then its codes, least
significant bit first, padded to a whole byte with zeros. NVFP4 has 4 bytes, the scale of the tensor, before its first
row. Nothing else is sent: the receiver knows the shape. `from_bytes` refuses (`WireError`) every other length, scales
that are negative or infinite, codes that are no numbers where their scale is one, ends out of order, and padding that
is not zero; whatever it accepts, `to_bytes` gives back bit for bit. A tile with NaN or infinity arrives as NaN (casts
keep both; DeepEP's own format turns NaN into 0).

Bits are those of whole tiles of bfloat16 numbers, bytes those of a row of 7168.

{table(("codec", "bits per value", "bytes of 7168", "of BF16", "what it is"), rows)}

One's own codec is `BlockCodec("mine", "e3m4", tile=32, scale_format="e8m0fnu")`, `LogFMTCodec("six", 6, tile=64)`,
`CastCodec("half", "float16")`, or any object with the same members (`lowprec.codec.Codec`).

## Sums over the wire

`lowprec.codec.reductions.combine_low_latency` and `combine_normal` add experts' outputs as DeepEP's kernels do;
`all_reduce(shards, codec, algorithm)` sends every message through a codec. With independent values on R ranks, the
sum's SQNR lies below that of the codec by (dB):

{table(("algorithm", "R = 2", "8", "32", "128", "what it is"), sums)}

`tests/codec/test_reductions.py` holds the emulation to these within 0.2 dB. What each codec loses on which data:
[error_atlas](../ablations/results/error_atlas.md); against its time: [wire_cost](../ablations/results/wire_cost.md).
"""
