"""
LogFMT on the wire
==================

In a Mixture of Experts each token travels over the network to its experts and back. **LogFMT** sends logarithms: of
each tile of 128 values the smallest and the largest magnitude, and between them equal steps of the logarithm. All
values of a tile then have the same relative error.
"""

import numpy as np

import lowprec as lp

x = lp.round_to(np.random.default_rng(0).standard_normal((64, 7168), dtype=np.float32), "bfloat16")
z = lp.logfmt.encode(x, bits=8, tile=128)
print(f"{z.bits_per_value} bits a value, {lp.sqnr(z.decode(), x):.1f} dB, {z.pack().nbytes:,} bytes for {x.shape}")

# %%
# Against other formats of about eight and ten bits. Where a curve is flat, small values are as good as large ones:

axes = lp.plot.errors(x, ["fp8_1x128", "logfmt8", "logfmt10", "bf16"])

# %%
# Every codec is bytes: what is decoded on the other side is what `decode` says here, bit for bit.

codec = lp.codecs["logfmt10"]
wire = codec.encode(x)
data = wire.to_bytes()
print(len(data) == wire.nbytes, np.array_equal(codec.from_bytes(data, x.shape).decode(), wire.decode()))

# %%
# What it buys on a machine, from the model's shape and the network's bandwidth:

for combine in ("bf16", "logfmt10", "fp8_1x128"):
    limit = lp.costs.decode_limit("deepseek_v3", "h800_ib400", dispatch="fp8_1x128", combine=combine)
    print(f"combine in {combine:>9}: {limit.exchange_s * 1e6:6.1f} us an exchange, {limit.tokens_per_s:.1f} tokens/s")
