"""Generate the page of collectives from the catalogue."""

from __future__ import annotations

from pages import table

import lowprec as lp


def page() -> str:
    """Return docs/collectives.md."""
    rows, losses = [], []
    for name, c in ((name, lp.collectives[name]) for name in lp.collectives):
        sums = "float32, rounded once" if c.wide_sums else "each rounded"
        rows.append((f"`{name}`", type(c).__name__, sums, c.source, c.validated_against or "source only"))
        if not c.validated_against and c.source != "user-defined" and not name.startswith("openmpi"):
            losses.append((f"`{name}`", *(f"{c.snr_loss(ranks):.2f}" for ranks in (2, 8, 32, 128))))
    return f"""# Collectives

An all-reduce adds arrays of several ranks. Which rank adds what, in which order, and where a sum is rounded, differs
between libraries, algorithms, numbers of ranks and sizes of arrays, and so do the bits. `lp.collectives` holds the
algorithms; `lowprec` computes their bits from the arrays of all ranks, in one process:

```python
>>> import numpy as np, lowprec as lp
>>> shards = np.random.default_rng(0).standard_normal((4, 1000), dtype=np.float32)
>>> gloo, openmpi = lp.collectives["gloo"], lp.collectives["openmpi"]
>>> int((gloo.all_reduce(shards) != openmpi.all_reduce(shards)).sum())
322
>>> for index in (0, 400, 999):
...     print(gloo.order(4, 1000, index))
sum(x[3::-1])
sum(x[0], x[3:0:-1])
sum(x[2::-1], x[3])
>>> print(openmpi.order(4, 1000))
(x[0] + x[1]) + (x[2] + x[3])

```

`x[r]` is the element of rank r. `order` returns an [`Order`](orders.md), which draws itself and has the bits of the
element for any data. `reduce_scatter` returns the same sums in equal parts, as PyTorch's gloo does; an all-gather adds
nothing. `shards` may be float64, float32, float16, bfloat16 or FP8 (E4M3FN, E5M2); sums have the same type.

{table(("name", "class", "sums of 16 and 8 bits", "source", "compared with"), rows)}

- `gloo` is what `torch.distributed` takes for CPU tensors: a ring whose start depends on the chunk. The
  elements are cut into a multiple of R of equal segments of at most 1 MiB, at least two for each of the R ranks.
- `openmpi` takes another algorithm by the number of ranks and bytes: `lp.collectives["openmpi"].choose(ranks, count,
  itemsize)` returns it. From 128 ranks on, Open MPI reduces and broadcasts for some sizes; this is not described, and
  refused.
- `nccl_ring` and `nccl_tree` round every sum to the type of the elements; FP8 is added in float16 and rounded to FP8,
  with saturation. These are the sums of one channel: NCCL numbers the ranks of a ring by the topology, and deals
  elements out to channels and chunks by its tuning, so that which element gets which order is not known from outside.
  `nccl_tree` is that of one GPU per node.
- `two_level`, `one_shot` and `two_step` start their sums at +0; the sum of -0 and -0 is then +0.

A new algorithm is an object of one of these classes with other fields, or a subclass of
`lowprec.collective.collective.Collective` with `parts`: the elements, and a tree of additions for each part of them.

## Messages with a codec

With a codec, every message is encoded and decoded, and sums are in float32: `lp.collectives["ring"].all_reduce(shards,
"fp8_1x128")`. Elements are then rows. A recipe's `all_reduce`, such as `16 ring fp8_1x128`, names ranks, algorithm and
codec. For independent values on R ranks, the SQNR of the sum is lower than that of the codec by (dB):

{table(("algorithm", "R = 2", "8", "32", "128"), losses)}

## What is verified

- `gloo`: PyTorch's gloo in real processes, 2 to 5 and 8 ranks, in float32, float64, float16 and bfloat16, sizes from
  1 to 70,003 and beyond the limit of a segment, with subnormal, infinite and NaN inputs, all-reduce and reduce-scatter:
  0 outputs differ (`tests/frameworks/test_torch_collectives.py`).
- `openmpi`: Open MPI 4.1.4 through mpi4py, the same ranks and sizes, in float32 and float64: 0 outputs differ
  (`tests/collective/test_peers_collectives.py`).
- Every algorithm of a library, NCCL's too: programs of ranks that exchange messages, written from the sources, in exact
  arithmetic (`lowprec/oracle/collectives.py`); rules close to the right ones give other sums.
- Noise of the codecs: within 0.2 dB of the table.

NaN is the positive quiet NaN here; libraries return one of the inputs' NaNs. Sums within a network switch are in no
published order.
"""
