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

An all-reduce adds the arrays of several ranks. The library, the algorithm, the number of ranks and the size of the
arrays determine the order of the additions and the places where sums are rounded, and therefore the bits.
`lp.collectives` has the algorithms; `lowprec` computes their bits from the arrays of all ranks, in one process:

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

`x[r]` is the element of rank r. `order` returns an [`Order`](orders.md), which has a drawing and gives the bits of the
element for any data. `reduce_scatter` returns an equal part of the same sums for each rank, as PyTorch's gloo does.
`shards` may be float64, float32, float16, bfloat16 or FP8 (E4M3FN, E5M2); sums have the same type.

{table(("name", "class", "sums of 16 and 8 bits", "source", "compared with"), rows)}

- `gloo` is the backend of `torch.distributed` for CPU tensors: a ring that starts at another rank for each chunk. The
  elements are cut into a multiple of R of equal segments of at most 1 MiB, at least two for each of the R ranks.
- `openmpi` chooses an algorithm from the numbers of ranks and bytes: `lp.collectives["openmpi"].choose(ranks, count,
  itemsize)` returns it. From 128 ranks on, Open MPI uses a reduce and a broadcast for some sizes; lowprec does not
  implement this and raises an error.
- `nccl_ring` and `nccl_tree` round every sum to the type of the elements; FP8 is added in float16 and rounded to FP8,
  with saturation. They describe one channel. NCCL numbers the ranks of a ring by the topology, and assigns elements to
  channels and chunks by its tuning, so the order of a given element cannot be determined without a run of NCCL.
  `nccl_tree` is the tree for one GPU per node.
- `nccl_nvls` is the sum within the NVLink switch, rounded once. The order and the widths within the switch are not
  public: ranks are added one by one in float32, or for FP8 in float16. Where these sums are exact, every order has the
  same bits.
- `two_level`, `one_shot` and `two_step` start their sums at +0; the sum of -0 and -0 is therefore +0.

A new algorithm is an object of one of these classes with other fields, or a subclass of
`lowprec.collective.collective.Collective` with `parts`: the elements, and a tree of additions for each part of them.

## Messages with a codec

With a codec, every message is encoded and decoded, and sums are in float32: `lp.collectives["ring"].all_reduce(shards,
"fp8_1x128")`. Each rank then has rows, which are encoded whole. A recipe's `all_reduce`, such as `16 ring fp8_1x128`,
specifies the number of ranks, the algorithm and the codec. For independent values on R ranks, the SQNR of the sum is
lower than that of the codec by this number of dB:

{table(("algorithm", "R = 2", "8", "32", "128"), losses)}

## Errors at many ranks

In BF16 a ring over 384 ranks has an error of 2.3 %, over 16,384 ranks one of 15 %, or of 58 % if the ranks' gradients
have an equal part of a tenth of their deviation, because small terms are lost in a large partial sum. Trees stay below
1 %, and sums that are rounded once at 0.24 % ([study](ablations.md#reduction_ranks), [numbers with
intervals](findings.md)).

## What is verified

- `gloo`: PyTorch's gloo in real processes, 2 to 5 and 8 ranks, in float32, float64, float16 and bfloat16, sizes from
  1 to 70,003 and beyond the limit of a segment, with subnormal, infinite and NaN inputs, all-reduce and reduce-scatter:
  0 outputs differ (`tests/frameworks/test_torch_collectives.py`).
- `openmpi`: Open MPI 4.1.4 through mpi4py, the same ranks and sizes, in float32 and float64: 0 outputs differ
  (`tests/collective/test_peers_collectives.py`).
- Every algorithm of a library, including NCCL's: compared with programs of ranks that exchange messages, written from
  the sources, in exact arithmetic (`lowprec/oracle/collectives.py`). Rules close to the correct ones give other sums.
- Noise of the codecs: within 0.2 dB of the table.

NaN is the positive quiet NaN here; libraries return one of the inputs' NaNs. The order in which network switches add is
not published.
"""
