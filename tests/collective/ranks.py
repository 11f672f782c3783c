"""All-reduces in real processes: run as a program by every rank, it writes the inputs and outputs of each call.

python ranks.py gloo FOLDER RANKS,RANKS        forks the processes; PyTorch's gloo on the loopback
mpirun -np RANKS python ranks.py mpi FOLDER    Open MPI, by mpi4py
"""

import os
import sys
from pathlib import Path

import numpy as np

# Elements: below the number of ranks, around chunks that differ by rank, around each limit of bytes, many.
SIZES = (1, 2, 3, 4, 5, 7, 9, 15, 21, 64, 1000, 1023, 1024, 2047, 2048, 4095, 4097, 16384, 32769, 65536, 70003)
SEGMENT = 1 << 20  # gloo's most bytes of a segment


def data(rank, count, dtype):
    """Return numbers over many binades, with -0, subnormal and infinite ones."""
    rng = np.random.default_rng((rank, count))
    x = np.float32(rng.standard_normal(count) * 2.0 ** rng.integers(-6, 7, count))
    special = np.array([-0.0, 2.0**-24, 6e4, -np.inf, np.nan, 1e-40], np.float32)
    x[rng.random(count) < 0.01] = special[rank % len(special)]
    with np.errstate(over="ignore"):
        return x.astype(dtype) if dtype is not None else x


def gloo(folder, numbers):
    """Fork the processes; each writes what it gave and received in every group."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    most, children = max(numbers), []
    for rank in range(most):
        if child := os.fork():
            children.append(child)
            continue
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=most)
        groups = {ranks: dist.new_group(range(ranks)) for ranks in numbers}
        types = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
        calls = [(dtype, count) for dtype in types for count in SIZES]
        for ranks, group in groups.items():
            if rank >= ranks:
                continue
            found = {}
            long = [(torch.float64, ranks * SEGMENT // 4 + 5)] if ranks < 4 else []
            for dtype, count in calls + long:
                name = str(dtype).removeprefix("torch.")
                x = torch.from_numpy(data(rank, count, None)).to(dtype)
                found[f"in {name} {count}"] = x.clone().view(torch.uint8).numpy()
                dist.all_reduce(x, group=group)
                found[f"out {name} {count}"] = x.view(torch.uint8).numpy()
                if count % ranks == 0:
                    x = torch.from_numpy(data(rank, count, None)).to(dtype)
                    part = torch.empty(count // ranks, dtype=dtype)
                    dist.reduce_scatter_tensor(part, x, group=group)
                    found[f"part {name} {count}"] = part.view(torch.uint8).numpy()
            np.savez(Path(folder, f"{ranks}_{rank}.npz"), **found)
        dist.barrier()
        dist.destroy_process_group()
        os._exit(0)
    sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))


def mpi(folder):
    """Write what this rank gave and received."""
    from mpi4py import MPI

    world, found = MPI.COMM_WORLD, {}
    rank, ranks = world.Get_rank(), world.Get_size()
    for dtype in (np.float32, np.float64):
        for count in SIZES:
            x = data(rank, count, dtype)
            out = np.empty_like(x)
            world.Allreduce(x, out)
            found[f"in {x.dtype} {count}"], found[f"out {x.dtype} {count}"] = x.view(np.uint8), out.view(np.uint8)
    np.savez(Path(folder, f"{ranks}_{rank}.npz"), **found)


if __name__ == "__main__":
    if sys.argv[1] == "gloo":
        gloo(sys.argv[2], [int(number) for number in sys.argv[3].split(",")])
    else:
        mpi(sys.argv[2])
