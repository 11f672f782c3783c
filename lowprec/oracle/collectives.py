"""All-reduces as programs of ranks that exchange messages, after the sources, for any type of number and addition.

Every function takes the inputs of all ranks, lists of one number for each element, and an addition, and returns the
results of all ranks. Nothing is shared with the trees of `lowprec.collective`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
Add = Callable[[T, T], T]


def gloo(inputs: list[list[T]], add: Add[T], itemsize: int, segment_bytes: int = 1 << 20) -> list[list[T]]:
    """Return the result of the ring in pytorch/gloo, gloo/allreduce.cc: segments go to the rank before."""
    size, elements = len(inputs), len(inputs[0])
    out = [list(x) for x in inputs]
    if size == 1:
        return out
    most, total = itemsize * max(1, segment_bytes // itemsize), elements * itemsize
    segments = -(-max(-(-total // most), 2 * size) // size) * size
    length = (-(-total // segments) + itemsize - 1) // itemsize
    each = segments // size

    def span(segment: int) -> range:
        start = segment % segments * length
        return range(min(start, elements), min(start + length, elements))

    for i in range(segments - each):
        arrived = [[out[(rank + 1) % size][k] for k in span((rank + 2) * each + i)] for rank in range(size)]
        for rank in range(size):
            for k, value in zip(span((rank + 2) * each + i), arrived[rank], strict=True):
                out[rank][k] = add(out[rank][k], value)
    for i in range(segments - each):
        for rank in range(size):
            for k in span((rank + 1) * each + i):
                out[rank][k] = out[(rank + 1) % size][k]
    return out


def openmpi_ring(inputs: list[list[T]], add: Add[T]) -> list[list[T]]:
    """Return the result of ompi_coll_base_allreduce_intra_ring: blocks go to the next rank."""
    size, count = len(inputs), len(inputs[0])
    out = [list(x) for x in inputs]
    early, split = -(-count // size), count % size or size
    starts = [block * early - max(0, block - split) for block in range(size)]
    starts.append(count)
    for k in range(1, size):
        for rank in range(size):
            block = (rank - k) % size  # arrives from the rank before, which had it at the step before
            for i in range(starts[block], starts[block + 1]):
                out[rank][i] = add(out[(rank - 1) % size][i], out[rank][i])
    for block in range(size):
        for i in range(starts[block], starts[block + 1]):
            total = out[(block - 1) % size][i]
            for mine in out:
                mine[i] = total
    return out


def openmpi_recursive_doubling(inputs: list[list[T]], add: Add[T]) -> list[list[T]]:
    """Return the result of ompi_coll_base_allreduce_intra_recursivedoubling: partners exchange all elements."""
    size = len(inputs)
    out = [list(x) for x in inputs]
    power = 1 << size.bit_length() - 1
    extra = size - power
    for rank in range(1, 2 * extra, 2):
        out[rank] = list(map(add, out[rank - 1], out[rank]))
    active = [*range(1, 2 * extra, 2), *range(2 * extra, size)]
    distance = 1
    while distance < power:
        before = [list(x) for x in out]
        for new, rank in enumerate(active):
            low, high = sorted((rank, active[new ^ distance]))
            out[rank] = list(map(add, before[low], before[high]))
        distance <<= 1
    for rank in range(0, 2 * extra, 2):
        out[rank] = out[rank + 1]
    return out


def openmpi_rabenseifner(inputs: list[list[T]], add: Add[T]) -> list[list[T]]:
    """Return the result of ompi_coll_base_allreduce_intra_redscat_allgather: partners exchange halves of windows."""
    size, count = len(inputs), len(inputs[0])
    out = [list(x) for x in inputs]
    power = 1 << size.bit_length() - 1
    extra = size - power
    for rank in range(0, 2 * extra, 2):
        out[rank] = list(map(add, out[rank + 1], out[rank]))
    active = [*range(0, 2 * extra, 2), *range(2 * extra, size)]
    windows = {rank: (0, count) for rank in active}
    mask = 1
    while mask < power:
        before = {rank: list(out[rank]) for rank in active}
        for new, rank in enumerate(active):
            partner = active[new ^ mask]
            start, stop = windows[rank]
            middle = start + (stop - start) // 2
            windows[rank] = (start, middle) if rank < partner else (middle, stop)
            for i in range(*windows[rank]):
                out[rank][i] = add(before[partner][i], before[rank][i])
        mask <<= 1
    total = list(inputs[0])
    for rank in active:
        total[slice(*windows[rank])] = out[rank][slice(*windows[rank])]
    return [total] * size


def openmpi_linear(inputs: list[list[T]], add: Add[T]) -> list[list[T]]:
    """Return the result of ompi_coll_base_reduce_intra_basic_linear at rank 0, which is sent to all."""
    total = list(inputs[-1])
    for mine in inputs[-2::-1]:
        total = list(map(add, mine, total))
    return [total] * len(inputs)


def nccl_ring(inputs: list[list[T]], add: Add[T]) -> list[list[T]]:
    """Return the result of runRing, NVIDIA/nccl, src/device/all_reduce.h, with chunks that differ by one element."""
    size, count = len(inputs), len(inputs[0])
    edges = [chunk * (count // size) + min(chunk, count % size) for chunk in range(size + 1)]
    buffers: list[list[T]] = [list(inputs[rank]) for rank in range(size)]
    for j in range(2, size + 1):
        sent = [list(x) for x in buffers]
        for rank in range(size):
            chunk = (rank + size - j) % size
            for i in range(edges[chunk], edges[chunk + 1]):
                buffers[rank][i] = add(inputs[rank][i], sent[rank - 1][i])
    total = list(inputs[0])
    for rank in range(size):
        span = slice(edges[rank], edges[rank + 1])
        total[span] = buffers[rank][span]
    return [total] * size


def _children(ranks: int, rank: int) -> tuple[int, int]:
    """Return the children by ncclGetBtree, NVIDIA/nccl, src/graph/trees.cc, with -1 for a missing one."""
    bit = 1
    while bit < ranks and not bit & rank:
        bit <<= 1
    if rank == 0:
        return -1, bit >> 1 if ranks > 1 else -1
    low = bit >> 1
    first, second = (rank - low, rank + low) if low else (-1, -1)
    while second >= ranks:
        second = rank + low if low else -1
        low >>= 1
    return first, second


def nccl_tree(inputs: list[list[T]], add: Add[T]) -> list[list[T]]:
    """Return the result of the trees of ncclGetDtree, each with half of the elements."""
    size, count = len(inputs), len(inputs[0])

    def total(rank: int, i: int, real: Callable[[int], int]) -> T:
        value = inputs[real(rank)][i]
        for child in _children(size, rank):
            if child >= 0:
                value = add(value, total(child, i, real))
        return value

    half = -(-count // 2)
    first = [total(0, i, lambda rank: rank) for i in range(half)]
    if size % 2:
        second = [total(0, i, lambda rank: (rank + 1) % size) for i in range(half, count)]
    else:
        second = [total(0, i, lambda rank: size - 1 - rank) for i in range(half, count)]
    return [first + second] * size
