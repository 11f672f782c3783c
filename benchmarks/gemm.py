"""Speed of the emulated matrix products, bits asserted first: ``python benchmarks/gemm.py [--quick] [--threads N]``.

Every case is first compared with the integer reference on a corner of the result, then timed in rounds in which all
candidates alternate with our float32 product in fixed order and NumPy's float32 matmul. Every rate has three
references: our float32 product, NumPy's, and the FMA peak of this thread. Only ratios within a run are meaningful;
those to NumPy depend on the kernels that its BLAS chose, which are printed. Absolute rates on a shared machine are not
meaningful. ``--avx2`` computes as on a machine without AVX-512, including BLAS. One thread is timed by its CPU time,
several by the wall clock.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import host
from common import Table, child, interleaved, machine_line, peak_memory, write_between_markers
from gemm_cases import (
    AMD_CUBE,
    AMD_MACHINES,
    CUBE,
    HALF_MACHINES,
    LATENCY,
    PEERS,
    REFERENCE_CUBE,
    REUSED,
    SCALED_MACHINES,
    SHAPES,
    SPLIT_SHAPES,
    SPLITS,
    WIDE_MACHINES,
    Shape,
    Work,
    float32_product,
    fp8_product,
    kernels,
    numpy_product,
    on,
    peer_product,
    scaled_product,
    split_product,
    wide_product,
)  # fmt: skip

Row = dict[str, Any]
FLOAT32 = "float32, fixed order"


class Options(NamedTuple):
    quick: bool = False
    threads: int = 1

    @property
    def rounds(self) -> int:
        return 3 if self.quick else 9

    @property
    def clock(self) -> Callable[[], float]:
        return time.thread_time if self.threads == 1 else time.perf_counter


def yardsticks(shape: Shape) -> dict[str, Work]:
    """Return the reference operations that are timed with every case."""
    return {FLOAT32: float32_product(shape), "numpy": numpy_product(shape)}


# --- measurements: each returns rows of plain data --------------------------------------------------------------------


def fp8(options: Options) -> list[Row]:
    """Hopper FP8 with promotion, packing included, and the float32 product in fixed order, compared with NumPy."""
    rows = []
    for shape in (CUBE, SHAPES[3]) if options.quick else SHAPES:
        product = fp8_product(shape)
        works = {name: on(name, product) for name in kernels()}
        works |= yardsticks(shape)
        rows.append({"shape": str(shape), "work": shape.work, **interleaved(works, options.rounds, options.clock)})
    return rows


def wide(options: Options) -> list[Row]:
    """Machines of 22 to 25 fraction bits, or with float16 results: one chain on codes, packing included."""
    import lowprec as lp

    rows = []
    for machine in WIDE_MACHINES[:3] if options.quick else WIDE_MACHINES:
        product = wide_product(machine, CUBE)
        works = {name: on(name, product) for name in kernels()} | yardsticks(CUBE)
        times = interleaved(works, options.rounds // 3 * 2, options.clock)
        unit = lp.accumulators[machine]
        rows.append({"machine": machine, "L": unit.group_size, "F": unit.fraction_bits, "work": CUBE.work, **times})
    return rows


def amd(options: Options) -> list[Row]:
    """AMD's matrix cores: one chain on codes, packing included, compared with their compiled references."""
    rows = []
    for machine in AMD_MACHINES[-2:] if options.quick else AMD_MACHINES:
        slow = on("reference", wide_product(machine, REFERENCE_CUBE))
        works = {"kernel": wide_product(machine, AMD_CUBE), "reference": slow} | yardsticks(AMD_CUBE)
        rows.append({"machine": machine, "work": AMD_CUBE.work, **interleaved(works, options.rounds, options.clock)})
        rows[-1]["reference"] *= AMD_CUBE.work / REFERENCE_CUBE.work
    return rows


def scaled(options: Options) -> list[Row]:
    """Machines that take scales inside the instruction, by `gemm`; and FP8 mma.sync's halves, one chain on codes."""
    rows = []
    for machine in SCALED_MACHINES:
        for shape in (CUBE,) if options.quick else (CUBE, *SHAPES[3:]):
            product = scaled_product(machine, shape)
            works = {name: on(name, product) for name in kernels()} | yardsticks(shape)
            times = interleaved(works, options.rounds, options.clock)
            rows.append({"machine": machine, "shape": str(shape), "work": shape.work, **times})
    for machine in HALF_MACHINES:
        product = wide_product(machine, CUBE)
        works = {name: on(name, product) for name in kernels()} | yardsticks(CUBE)
        times = interleaved(works, options.rounds // 3 * 2, options.clock)
        rows.append({"machine": machine, "shape": str(CUBE), "work": CUBE.work, **times})
    return rows


def reuse(options: Options) -> list[Row]:
    """Time saved by packing an operand once."""
    rows = []
    for machine in ("hopper_fp8", *SCALED_MACHINES):
        for shape in REUSED[-1:] if options.quick else REUSED:
            works = {"anew": scaled_product(machine, shape), "kept": scaled_product(machine, shape, packed=True)}
            rows.append({"machine": machine, "shape": str(shape), **interleaved(works, options.rounds, options.clock)})
    return rows


def splits(options: Options) -> list[Row]:
    """Splits of K, compared with the same product in one part."""
    rows = []
    for shape in SPLIT_SHAPES[:1] if options.quick else SPLIT_SHAPES:
        works = {name: split_product(name, shape) for name in ("cublaslt_fast", *SPLITS)}
        rows.append({"shape": str(shape), **interleaved(works, 2 * options.rounds + 1, options.clock)})
    return rows


def latency(options: Options) -> list[Row]:
    """Time of one small call."""
    product = fp8_product(LATENCY)
    works = {f"hopper_fp8, {name}": on(name, product) for name in kernels()}
    works["hopper_bf16"] = on(kernels()[0], wide_product("hopper_bf16", LATENCY))
    works |= {FLOAT32: float32_product(LATENCY), "numpy": numpy_product(LATENCY)}
    times = interleaved(works, max(options.rounds, 9), options.clock)
    return [{"call": name, "seconds": seconds} for name, seconds in times.items()]


def memory(options: Options) -> list[Row]:
    """Peak memory of one product, and the size of its operands and result; each in a separate process."""
    shapes = [CUBE] if options.quick else [CUBE, Shape(4096, 512, 4096), Shape(4096, 4096, 4096)]
    machines = ("hopper_fp8", "hopper_bf16")
    return [child(__file__, "--child", "memory", m, *map(str, s[:3])) for s in shapes for m in machines]


def memory_child(machine: str, *sides: str) -> Row:
    from lowprec import _threads as scratch

    shape = Shape(*map(int, sides))
    make: Callable[[Shape], Work] = fp8_product if machine == "hopper_fp8" else lambda s: wide_product(machine, s)
    make(Shape(64, 128, 128))()
    product = make(shape)
    inputs = (shape.m + shape.n) * shape.k * (1 if machine == "hopper_fp8" else 2)
    above = peak_memory(product, scratch.release_scratch)
    held = inputs + 4 * shape.m * shape.n
    return {"machine": machine, "shape": str(shape), "held": held, "peak": inputs + above}


def compilation(options: Options) -> list[Row]:
    """CPU time of the first calls, without and with the cache on disk."""
    with tempfile.TemporaryDirectory() as folder:
        names = ("cold", "warm")
        return [{"cache": name, **child(__file__, "--child", "compile", LOWPREC_CACHE_DIR=folder)} for name in names]


def compile_child() -> Row:
    start = time.process_time()
    import numpy as np

    import lowprec as lp

    seconds = {"import": time.process_time() - start}
    x = np.ones((64, 128), np.float32)
    start = time.process_time()
    qa, qb, half = lp.quantize(x, "e4m3fn 1x128"), lp.quantize(x, "e4m3fn 128x128"), lp.encode(x, "bfloat16")
    seconds["quantize, encode"] = time.process_time() - start
    for name, work in {
        "hopper_fp8": lambda: lp.gemm(qa, qb),
        FLOAT32: lambda: lp.matmul_f32(x, x),
        "hopper_bf16": lambda: lp.mma(half, half, accumulator="hopper_bf16"),
    }.items():
        start = time.process_time()
        work()
        seconds[name] = time.process_time() - start
    return seconds


def other_blas(options: Options) -> Row:
    """NumPy with OpenBLAS's AVX-512 kernels against hopper_fp8, in a separate process."""
    arguments = ["--child", "blas", str(options.threads), str(options.rounds)]
    return child(__file__, *arguments, OPENBLAS_CORETYPE="SkylakeX")  # type: ignore[no-any-return]


def blas_child(threads: str, rounds: str) -> Row:
    works = {"ours": fp8_product(CUBE), "numpy": numpy_product(CUBE)}
    return interleaved(works, int(rounds), Options(threads=int(threads)).clock)


def peers(options: Options) -> list[Row]:
    """Other emulators of the same chain (hopper_fp8, no scales), where they are installed."""
    rows = []
    for name, shape in PEERS.items():
        if pair := peer_product(name):
            times = interleaved(dict(zip(("theirs", "ours"), pair, strict=True)), 3, time.perf_counter)
            rows.append({"peer": name, "shape": str(shape), "work": shape.work, **times})
    return rows


PARTS = {
    "fp8": fp8, "wide": wide, "amd": amd, "scaled": scaled, "reuse": reuse, "splits": splits, "latency": latency,
    "memory": memory, "compilation": compilation, "peers": peers,
}  # fmt: skip
CHILDREN = {"memory": memory_child, "compile": compile_child, "blas": blas_child}


# --- tables -----------------------------------------------------------------------------------------------------------


def tables(found: Row, options: Options) -> list[Table]:
    """Return the results as tables."""
    names = found["kernels"]
    how = "1 thread, its CPU time" if options.threads == 1 else f"{options.threads} threads, wall clock"

    peak = found["peak"]

    def rate(row: Row, name: str) -> str:
        speed = row["work"] / row[name]
        words = f"{speed / 1e9:.1f} ({speed / peak:.0%})"
        return words if name == FLOAT32 else f"{words} {row[FLOAT32] / row[name]:.2f}x"

    shares = (
        f"in brackets the share of this thread's FMA peak, {peak / 1e9:.1f}, then the ratio to float32, fixed order"
    )

    out = []
    if rows := found.get("fp8"):
        columns = ["M x N x K", *(f"hopper_fp8, {n}" for n in names), FLOAT32, "NumPy float32"]
        cells = [[row["shape"], *(rate(row, n) for n in (*names, FLOAT32, "numpy"))] for row in rows]
        note = f"GMAC/s, {how}; {shares}. Promoted every 128, scales 1x128 and 128x128 (wgrad 1x128), packing included."
        if "blas" in found:
            ours, theirs = (CUBE.work / found["blas"][n] / 1e9 for n in ("ours", "numpy"))
            note += (
                f" With OPENBLAS_CORETYPE=SkylakeX NumPy does {theirs:.1f} at 1024^3 and hopper_fp8 in the same run "
                f"{ours:.1f} ({ours / theirs:.2f}x)."
            )
        out.append(Table("FP8 and float32", columns, cells, note))
    if rows := found.get("wide"):
        columns = ["Machine", "L", "F", *names, FLOAT32, "NumPy float32"]
        cells = [
            [str(row[n]) for n in ("machine", "L", "F")] + [rate(row, n) for n in (*names, FLOAT32, "numpy")]
            for row in rows
        ]
        note = f"GMAC/s, {how}; {shares}; raw codes, packing included."
        out.append(Table("Wider machines, 1024 x 1024 x 1024", columns, cells, note))
    if rows := found.get("amd"):
        cells = [
            [row["machine"], rate(row, "kernel"), f"{row['work'] / row['reference'] / 1e9:.2f}",
             f"{row['reference'] / row['kernel']:.0f}x", *(rate(row, n) for n in (FLOAT32, "numpy"))] for row in rows
        ]  # fmt: skip
        note = f"GMAC/s, {how}; {shares}; raw codes, packing included. The references run at {REFERENCE_CUBE}."
        columns = ["Machine", "kernel", "reference", "times it", FLOAT32, "NumPy float32"]
        out.append(Table(f"Matrix cores of AMD, {AMD_CUBE}", columns, cells, note))
    if rows := found.get("scaled"):
        columns = ["Machine", "M x N x K", *names, FLOAT32, "NumPy float32"]
        cells = [[row["machine"], row["shape"], *(rate(row, n) for n in (*names, FLOAT32, "numpy"))] for row in rows]
        note = (
            f"GMAC/s, {how}; {shares}. A in tiles of 1x32 (nvfp4: 1x16), B in blocks of 32x32 "
            "(16x16; wgrad: tiles), scales and packing included; fp8_mma: raw codes, one chain."
        )
        out.append(Table("Scales inside the instruction, and FP8 mma.sync", columns, cells, note))
    if rows := found.get("reuse"):
        cells = [
            [row["machine"], row["shape"], f"{row['anew'] * 1e3:.2f}", f"{row['kept'] * 1e3:.2f}",
             f"{1 - row['kept'] / row['anew']:.0%}"] for row in rows
        ]  # fmt: skip
        columns = ["Machine", "M x N x K", "ms", "ms, B packed by prepack_b", "saved"]
        out.append(Table(f"An operand that is packed once, {how}", columns, cells))
    if rows := found.get("splits"):
        cells = [[row["shape"], *(f"{row[name] / row['cublaslt_fast']:.2f}" for name in SPLITS)] for row in rows]
        note = f"{how}: time of a float32 product of bfloat16 numbers, relative to the same product in one part."
        out.append(Table("Splits of K", ["M x N x K", *SPLITS], cells, note))
    if rows := found.get("latency"):
        cells = [[row["call"], f"{row['seconds'] * 1e6:.0f}"] for row in rows]
        out.append(Table(f"One call of {LATENCY}, {how}", ["Call", "microseconds"], cells))
    if rows := found.get("memory"):
        cells = [
            [row["machine"], row["shape"], *(f"{row[n] / 2**20:.0f}" for n in ("held", "peak")),
             f"{row['peak'] / row['held']:.1f}x"] for row in rows
        ]  # fmt: skip
        columns = ["Machine", "M x N x K", "operands and result, MB", "peak, MB", "ratio"]
        out.append(Table("Peak memory", columns, cells))
    if rows := found.get("compilation"):
        parts = [name for name in rows[0] if name != "cache"]
        cells = [[row["cache"], *(f"{row[n]:.2f}" for n in parts), f"{sum(row[n] for n in parts):.2f}"] for row in rows]
        out.append(Table("First calls in a process, seconds of CPU time", ["Cache", *parts, "all"], cells))
    if rows := found.get("peers"):
        cells = [
            [row["peer"], row["shape"], *(f"{row['work'] / row[n] / 1e9:.3g}" for n in ("theirs", "ours")),
             f"{row['theirs'] / row['ours']:.0f}x"] for row in rows
        ]  # fmt: skip
        columns = ["Package", "M x N x K", "its GMAC/s", "ours", "ratio"]
        out.append(Table("Peers: the same chain, the same bits", columns, cells))
    return out


def main() -> None:
    """Parse the command line, measure, and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer shapes and rounds")
    parser.add_argument("--avx2", action="store_true", help="compute as a machine with AVX2 and FMA alone would")
    parser.add_argument("--threads", type=int, default=1, help="threads of both NumPy's BLAS and ours")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="parts to run")
    parser.add_argument("--json", action="store_true", help="print plain data instead of tables")
    parser.add_argument("--markdown", type=Path, help="write the tables between this file's markers as well")
    parser.add_argument("--marker", default="gemm", help="name of the markers (default: %(default)s)")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.threads < 1:
        parser.error(f"--threads must be >= 1, got {arguments.threads}")
    if arguments.avx2 and any(os.environ.get(name) != value for name, value in host.AVX2.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **host.AVX2})
    if arguments.child:
        what, *rest = arguments.child
        print(json.dumps(CHILDREN[what](*rest)))
        return
    # Before NumPy is imported; children inherit it.
    for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "LOWPREC_NUM_THREADS"):
        os.environ[variable] = str(arguments.threads)
    options = Options(arguments.quick, arguments.threads)
    found: Row = {"machine": machine_line(), "threads": options.threads, "kernels": kernels()}
    found |= {"host": host.lines(), "peak": host.fma_peak()}
    for part in arguments.only:
        print(f"{part} ...", file=sys.stderr, flush=True)
        found[part] = PARTS[part](options)
        if part == "fp8" and not arguments.avx2:
            found["blas"] = other_blas(options)
    made = tables(found, options)
    if arguments.json:
        print(json.dumps(found))
    else:
        print("\n".join([found["machine"], *found["host"]]))
        for table in made:
            table.show()
    if arguments.markdown:
        text = "\n\n".join([". ".join([found["machine"], *found["host"]]) + ".", *(table.markdown() for table in made)])
        write_between_markers(arguments.markdown, arguments.marker, text)


if __name__ == "__main__":
    main()
