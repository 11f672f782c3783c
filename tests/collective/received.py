"""Comparison of all-reduces in real processes with those of the catalogue."""

from pathlib import Path

import ml_dtypes
import numpy as np

import lowprec as lp


def differing(folder: Path, ranks: int, collective: str) -> tuple[int, int]:
    """Return how many numbers that ranks received differ, of how many; NaN is one number."""
    files = [np.load(folder / f"{ranks}_{rank}.npz") for rank in range(ranks)]
    wrong = total = 0
    for key in files[0].files:
        kind, name, count = key.split()
        if kind == "in":
            continue
        dtype = np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)
        given = np.array([file[f"in {name} {count}"] for file in files]).view(dtype)
        got = np.array([file[key] for file in files]).view(dtype)
        if kind == "part":
            wanted = lp.collectives[collective].reduce_scatter(given)
        else:
            wanted = np.broadcast_to(lp.collectives[collective].all_reduce(given), got.shape)
        bits = f"u{dtype.itemsize}"
        same = got.view(bits) == np.ascontiguousarray(wanted).view(bits)
        wrong += int((~same & ~(np.isnan(got) & np.isnan(wanted))).sum())
        total += got.size
    return wrong, total
