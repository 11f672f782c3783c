"""
LogFMT for communication
========================

In a Mixture of Experts, each token is sent over the network to its experts and back. **LogFMT** encodes logarithms. For
each tile of 128 values it sends the smallest and the largest magnitude, and divides the range between them into equal
steps of the logarithm. All values of a tile then have the same relative error.
"""

import numpy as np

import lowprec as lp

x = lp.round_to(np.random.default_rng(0).standard_normal((64, 7168), dtype=np.float32), "bfloat16")
z = lp.logfmt.encode(x, bits=8, tile=128)
print(f"{z.bits_per_value} bits per value, {lp.sqnr(z.decode(), x):.1f} dB, {z.pack().nbytes:,} bytes for {x.shape}")

# %%
# Comparison with other formats of about eight and ten bits. Where a curve is flat, small values are as precise as large
# ones:

axes = lp.plot.relative_errors(x, ["fp8_1x128", "logfmt8", "logfmt10", "bf16"])

# %%
# A codec produces bytes. The receiver decodes them to the values that `decode` returns here, bit for bit.

codec = lp.codecs["logfmt10"]
wire = codec.encode(x)
data = wire.to_bytes()
print(len(data) == wire.nbytes, np.array_equal(codec.from_bytes(data, x.shape).decode(), wire.decode()))

# %%
# Estimated decoding speed, from the shape of the model and the bandwidth of the network:

for combine in ("bf16", "logfmt10", "fp8_1x128"):
    limit = lp.costs.decode_limit("deepseek_v3", "h800_ib400", dispatch="fp8_1x128", combine=combine)
    print(
        f"combine in {combine:>9}: {limit.all_to_all_s * 1e6:6.1f} us per exchange, {limit.tokens_per_s:.1f} tokens/s"
    )
