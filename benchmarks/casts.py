"""Speed of casts relative to a copy of the same bytes, with other packages for comparison.

    python benchmarks/casts.py [--quick] [--markdown benchmarks/README.md]

Bits first: before anything is timed, codes and values are compared with ml_dtypes or the exact oracle.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from common import Table, machine_line, write_between_markers

import lowprec as lp
from lowprec import oracle
from lowprec.kernels.cast.random_bits import random_word
from lowprec.oracle import casts

N = 1 << 24
USER = lp.Format("e3m3", 3, 3, specials="fn", source="a user's own")
THEIRS = {"e4m3fn": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2, "bfloat16": ml_dtypes.bfloat16}
Work = Callable[[], object]


def check(x: np.ndarray) -> None:
    """Raise an error unless a sample of the timed operations has the right bits."""
    some = x[: 1 << 20]
    for name, dtype in THEIRS.items():
        codes = lp.encode(some, name, policy="ml_dtypes")
        assert np.array_equal(codes, some.astype(dtype).view(codes.dtype)), name
        values = lp.round_to(some, name, policy="ml_dtypes")
        assert np.array_equal(values, lp.decode(codes, name)), name
        assert np.array_equal(values, some.astype(dtype).astype(np.float32)), name
    few = some[:2000]
    fields = oracle.fields(USER)
    assert lp.encode(few, USER).tolist() == [casts.cast(v, fields) for v in few.tolist()]
    words = [int(random_word(np.uint32(5), np.uint32(0), np.uint32(i), np.uint32(0))) for i in range(few.size)]
    for name in ("e4m3fn", "bfloat16"):
        fields = oracle.fields(lp.formats[name])
        wanted = [casts.cast(v, fields, "A", "ocp_sat", w >> 8, 24) for v, w in zip(few.tolist(), words, strict=True)]
        assert lp.encode(few, name, rounding="stochastic", seed=5).tolist() == wanted, name


def interleaved(works: Mapping[str, Work], rounds: int, clock: Callable[[], float]) -> dict[str, float]:
    """Return the best seconds of each work; they take turns."""
    best = dict.fromkeys(works, float("inf"))
    for work in works.values():
        work()
    for _ in range(rounds):
        for name, work in works.items():
            start = clock()
            work()
            best[name] = min(best[name], clock() - start)
    return best


def ours(x: np.ndarray) -> dict[str, tuple[int, Work]]:
    """Timed operations, each with the bytes that it moves per number; outputs are preallocated."""
    y, works = np.ones(x.size, np.float32), {}
    for fmt in ("e4m3fn", "e5m2", "bfloat16", USER):
        f = lp.formats.get(fmt)
        codes = lp.encode(x, f)
        size = 4 + codes.itemsize
        works[f"encode {f.name}"] = size, lambda f=f, c=codes: lp.encode(x, f, out=c)
        works[f"decode {f.name}"] = size, lambda f=f, c=codes: lp.decode(c, f, out=y)
        works[f"round_to {f.name}"] = 8, lambda f=f: lp.round_to(x, f, out=y)
    codes = np.ones(x.size, np.uint8)
    works["encode e4m3fn, stochastic"] = 5, lambda: lp.encode(x, "e4m3fn", rounding="stochastic", seed=1, out=codes)
    works["round_to e4m3fn, stochastic"] = 8, lambda: lp.round_to(x, "e4m3fn", rounding="stochastic", seed=1, out=y)
    works["encode e4m3fn, up"] = 5, lambda: lp.encode(x, "e4m3fn", rounding="up", out=codes)
    return works


def copies(size: int) -> dict[str, Work]:
    """``np.copyto`` of as many bytes as a cast moves, half read and half written; every page was touched."""
    works = {}
    for each in (5, 6, 8):
        source, target = np.ones(size * each // 2, np.uint8), np.ones(size * each // 2, np.uint8)
        works[f"np.copyto, {each} bytes"] = lambda s=source, t=target: np.copyto(t, s)
    return works


def memory_table(x: np.ndarray, rounds: int) -> Table:
    """One thread by its CPU time, two threads by the clock, both against a copy of one thread."""
    mine, moves = ours(x), copies(x.size)
    works = {**moves, **{name: work for name, (_, work) in mine.items()}}
    seconds = {}
    for threads, clock in ((1, time.thread_time), (2, time.perf_counter)):
        lp.set_num_threads(threads)
        seconds[threads] = interleaved(works, rounds, clock)
    rows = []
    for name in works:
        size = mine[name][0] if name in mine else int(name.split()[1])
        copy = f"np.copyto, {size} bytes"
        one, two = seconds[1], seconds[2]
        rate = x.size / one[name] / 1e9
        ratio = "" if name == copy else f"{one[copy] / one[name]:.2f}x"
        gain = "" if name in moves else f"{one[name] / two[name]:.2f}x"
        rows.append((name, f"{rate:.2f}", ratio, gain))
    note = (
        f"{x.size} standard normals, `out=` given, best of {rounds} rounds in turns. One thread by its CPU time; two "
        "threads by the clock against one, where a neighbour's load and the shared memory bus show."
    )
    columns = ("work", "G numbers/s", "of a copy of the same bytes", "two threads")
    return Table("Casts against memory", columns, rows, note)


def peer_table(x: np.ndarray, rounds: int) -> Table:
    """Packages that cast too, as one calls them."""
    lp.set_num_threads(1)
    small = x[: 1 << 22]
    rows = []
    works: dict[str, Work] = {}
    for name, dtype in THEIRS.items():
        codes, there = lp.encode(small, name), small.astype(dtype)
        y = np.ones(small.size, np.float32)
        works[f"encode {name}|lowprec"] = lambda f=name, c=codes: lp.encode(small, f, out=c)
        works[f"decode {name}|lowprec"] = lambda f=name, c=codes, y=y: lp.decode(c, f, out=y)
        works[f"encode {name}|ml_dtypes"] = lambda c=there: np.copyto(c, small, casting="unsafe")
        works[f"decode {name}|ml_dtypes"] = lambda c=there, y=y: np.copyto(y, c)
    _add_torch(works, small)
    _add_gfloat(works, small)
    seconds = interleaved(works, rounds, time.thread_time)
    for name in works:
        work, package = name.split("|")
        size = 1 << 14 if package == "gfloat" else small.size
        rate = size / seconds[name] / 1e9
        base = seconds[f"{work}|lowprec"] / small.size * size
        rows.append((work, package, f"{rate:.3g}", "" if package == "lowprec" else f"{seconds[name] / base:.3g}x"))
    rows.sort(key=lambda row: (row[0], -float(row[2])))
    note = f"{small.size} numbers (gfloat: {1 << 14}), one thread, `out=` where a package has it."
    return Table("Peers", ("work", "package", "G numbers/s", "lowprec is faster by"), rows, note)


def _add_torch(works: dict[str, Work], x: np.ndarray) -> None:
    try:
        import torch
    except ImportError:
        return
    torch.set_num_threads(1)
    t = torch.from_numpy(x)
    for name, dtype in (("e4m3fn", torch.float8_e4m3fn), ("e5m2", torch.float8_e5m2), ("bfloat16", torch.bfloat16)):
        codes, values = t.to(dtype), torch.empty_like(t)
        works[f"encode {name}|torch"] = lambda c=codes: c.copy_(t)
        works[f"decode {name}|torch"] = lambda c=codes, y=values: y.copy_(c)


def _add_gfloat(works: dict[str, Work], x: np.ndarray) -> None:
    try:
        import gfloat
        from gfloat.formats import format_info_ocp_e4m3 as info
    except ImportError:
        return
    few = x[: 1 << 14].astype(np.float64)
    works["encode e4m3fn|gfloat"] = lambda: gfloat.encode_ndarray(info, gfloat.round_ndarray(info, few, sat=True))


def start_table() -> Table:
    """The first encode of a new process with a warm cache: CPU time and clock, interpreter and NumPy included."""
    script = (
        "import time; s = time.perf_counter(); import numpy, lowprec as lp; "
        "lp.encode(numpy.ones(10, 'f4'), 'e4m3fn'); print(time.perf_counter() - s, time.process_time())"
    )
    runs = [
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True) for _ in range(5)
    ]
    best: list[Any] = [min(float(run.stdout.split()[i]) for run in runs) for i in range(2)]
    row = ("import, first encode", f"{best[0]:.2f}", f"{best[1]:.2f}")
    return Table("First encode in a new process, warm cache", ("", "seconds", "CPU seconds"), [row], "Best of five.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="also write the tables between its markers")
    options = parser.parse_args()
    machine = machine_line()
    print(machine)
    x = np.random.default_rng(0).standard_normal(N, dtype=np.float32)
    check(x)
    rounds = 4 if options.quick else 15
    tables = [memory_table(x, rounds), peer_table(x, rounds), start_table()]
    for table in tables:
        table.show()
    if options.markdown:
        write_between_markers(options.markdown, "casts", "\n\n".join([machine, *(t.markdown() for t in tables)]))


if __name__ == "__main__":
    main()
