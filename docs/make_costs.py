"""Generate the page of costs from the catalogues."""

from __future__ import annotations

from pages import table

from lowprec.codec import codecs
from lowprec.costs import (
    decode_limit,
    hardware,
    kv_cache_bytes,
    models,
    node_traffic,
    published,
    training_flops,
    uniform_nodes,
)


def number(value: float, digits: int = 2) -> str:
    """Format a number with a fixed number of decimals, or without decimals if it is an integer."""
    return f"{value:,.0f}" if float(value).is_integer() and abs(value) >= 1000 else f"{value:.{digits}f}"


def page() -> str:
    """Return docs/costs.md."""
    shapes = []
    for name in models:
        shape = models[name]
        flops = [number(training_flops(shape, method=method) / 1e9) for method in ("consistent", "paper")]
        caches = [number(kv_cache_bytes(shape, codec), 0) for codec in ("bf16", "fp8_1x128", "nvfp4")]
        billions = [f"{count / 1e9:.2f}" for count in (shape.parameters, shape.active_parameters)]
        shapes.append((f"`{name}`", *billions, *caches, *flops, shape.source))
    machines = [
        (f"`{name}`", f"{gpu.bandwidth / 1e9:g}", f"{(gpu.effective_bandwidth or 0) / 1e9:g}", gpu.gpus_per_node,
         f"{gpu.peak_flops / 1e12:g}", gpu.source)
        for name, gpu in ((name, hardware[name]) for name in hardware)
    ]  # fmt: skip
    wires = []
    for name in sorted(codecs, key=lambda name: -codecs[name].bits_per_value):
        limits = [decode_limit("deepseek_v3", gpu, "fp8_1x128", name) for gpu in hardware]
        cells = [cell for limit in limits for cell in (f"{limit.all_to_all_s * 1e6:.2f}", f"{limit.tokens_per_s:.1f}")]
        wires.append((f"`{name}`", f"{codecs[name].bits_per_value:g}", *cells))
    nodes = []
    for words, count in (
        ("one row for each expert", 8.0), ("8 nodes, any experts", uniform_nodes(256, 8, 8).mean),
        ("4 of 8 nodes, at most", 4.0), ("4 of 8 nodes, any experts in them", uniform_nodes(256, 8, 8, 4).mean),
    ):  # fmt: skip
        cost = node_traffic(nodes_per_token=count)
        nodes.append((words, f"{count:.3f}", f"{cost.scale_out_s * 1e3:.2f}", f"{cost.scale_up_s * 1e3:.2f}"))
    claims = [
        (
            item.source,
            item.quantity,
            f"{item.published:g}",
            f"{item.compute():.6g}",
            "yes" if item.agrees else "**no**",
            item.note,
        )
        for item in published
    ]
    return f"""# Costs

These tables estimate what a format saves, from the shape of a model and the bandwidth of a machine: bytes of caches and
messages, operations of training, time of exchanges, and the decoding speed that they allow. The formulas are those of
"Insights into DeepSeek-V3" (arXiv 2505.09343); the docstrings of `lowprec/costs/` contain them.

    lowprec costs                                             # models: parameters, KV cache, training
    lowprec costs --model mine.toml --kv-codec nvfp4          # any model, any codec
    lowprec costs all-to-all --hardware gb200_nvl72           # exchange, TPOT and tokens/s for every combine codec
    lowprec costs all-to-all --dispatch-codec 8 --combine-codec 16 --dim 7000  # the paper's: bits without scales
    lowprec costs nodes                                       # traffic with and without node-limited routing
    lowprec costs published                                   # published and computed numbers

```python
>>> from lowprec.costs import decode_limit
>>> limit = decode_limit("deepseek_v3", "h800_ib400", dispatch="fp8_1x128", combine="logfmt10")
>>> f"{{limit.all_to_all_s * 1e6:.1f}} us per layer, {{limit.tokens_per_s:.1f}} tokens/s"
'95.5 us per layer, 85.8 tokens/s'

```

To describe another model, write a TOML file, or a dictionary with the same keys (`ModelShape.from_dict`). Experts,
biases and latent attention are optional:

```toml
dim = 1024
layers = 24
vocabulary = 32000
dense_width = 2816
[attention]
kind = "grouped"        # or "latent": heads, q_rank, kv_rank, nope_dim, rope_dim, value_dim
heads = 16
kv_heads = 4
head_dim = 64
```

A machine has a `bandwidth` in bytes per second and direction. `effective_bandwidth`, `scale_up_bandwidth`,
`effective_scale_up_bandwidth`, `gpus_per_node`, `peak_flops` and `latency` are optional.

## Models

Bytes of KV cache per token; training at a sequence length of 4096, causal.

{
        table(
            (
                "model",
                "parameters (B)",
                "active (B)",
                "KV, BF16",
                "KV, FP8 1x128",
                "KV, NVFP4",
                "GFLOPs per token",
                "the paper's formula",
                "source",
            ),
            shapes,
        )
    }

## Machines

{table(("machine", "GB/s", "measured GB/s", "GPUs per node", "peak TFLOPS, BF16", "source"), machines)}

## DeepSeek-V3: decoding speed by combine codec

Dispatch in FP8 with float32 scales, 32 tokens per GPU, 9 copies of each, 61 layers, two micro-batches; µs are for both
exchanges of a layer.

{table(("combine", "bits per value", *(f"{name}, {what}" for name in hardware for what in ("µs", "tokens/s"))), wires)}

## DeepSeek-V3: nodes per token

One direction of 4096 tokens of one GPU in FP8, at the measured bandwidths. On random scores, V3's router (which ranks
groups by their best two experts) uses 3.97 of its 4 nodes; `measured_nodes` computes this from the decisions of any
router.

{table(("routing", "nodes per token", "between nodes, ms", "within, ms"), nodes)}

## Published and computed numbers

Two numbers are equal if they differ by less than one unit of the last printed digit, or by at most 3 % for DeepEP's
measurements. A note explains each number that does not agree.

{table(("source", "quantity", "published", "computed", "equal", "note"), claims)}
"""
