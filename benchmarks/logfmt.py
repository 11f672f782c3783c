"""Nanoseconds a value of LogFMT, one thread: ``python benchmarks/logfmt.py [--markdown benchmarks/README.md]``.

Before a case is timed, its codes are compared with a count of the thresholds at or below each value, its values with
the grid, and both on one and on three threads.
"""

from __future__ import annotations

from pathlib import Path

import click
import ml_dtypes
import numpy as np
from common import Table, interleaved, machine_line, write_between_markers

import lowprec as lp
from lowprec.logfmt import DeepEPMessage, LogFMT, encode

TILES = {
    "Gaussian": lambda rng, n: rng.standard_normal(n),
    "Laplace": lambda rng, n: rng.laplace(size=n),
    "t(3)": lambda rng, n: rng.standard_t(3, n),
    "uniform": lambda rng, n: rng.uniform(-1, 1, n),
    "log-normal(2)": lambda rng, n: rng.lognormal(0, 2, n),
}


def check_bits(z: LogFMT, x: np.ndarray) -> None:
    """End the run if a code or a value is not the definition's; looks at every 50th tile."""
    values, top = z.decode(), (1 << (z.bits - 1)) - 1
    codes = np.arange(top + 1, dtype=z.codes.dtype)
    for tile in range(0, z.amax.shape[-1], 50):
        part = slice(128 * tile, 128 * tile + 128)
        ends = z.amin[tile : tile + 1], z.amax[tile : tile + 1]
        grid = LogFMT(codes, *ends, z.bits, top + 1).decode().astype(np.float64)
        wanted = np.searchsorted(grid[:-1] + grid[1:], 2 * np.abs(x[part].astype(np.float64)), side="right")
        same = np.array_equal(z.codes[part] & top, wanted) and np.array_equal(np.abs(values[part]), grid[wanted])
        if not same:
            raise SystemExit(f"LogFMT-{z.bits}: tile {tile} differs from the definition")


def check_threads(x: np.ndarray, bits: int, mode: str) -> LogFMT | DeepEPMessage:
    results = []
    for threads in (3, 1):
        lp.set_num_threads(threads)
        z = encode(x, bits, variant=mode)
        results.append((z.codes.tobytes(), z.decode().tobytes()))
    if results[0] != results[1]:
        raise SystemExit(f"LogFMT-{bits} {mode}: one thread and three differ")
    return z


def measure(elements: int, rounds: int) -> list[Table]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(elements).astype(np.float32)
    out, magnitudes = np.empty_like(x), np.abs(x)
    works = {
        "copyto": lambda: np.copyto(out, x),
        "log2 and exp2": lambda: np.exp2(np.log2(magnitudes, out=out), out=out),
    }
    encoded: dict[str, LogFMT | DeepEPMessage] = {}
    for bits in (4, 6, 8, 9, 10, 12, 14):
        z = encoded[f"LogFMT-{bits}"] = check_threads(x, bits, "paper")
        assert isinstance(z, LogFMT)
        check_bits(z, x)
    tokens = (x.reshape(-1, 1024) * 0.1).astype(ml_dtypes.bfloat16)
    z = encoded["LogFMT-10 as DeepEP"] = check_threads(tokens, 10, "deepep")
    if not z.encoded_chunks.all():
        raise SystemExit("DeepEP: a chunk fell back")
    for name, z in encoded.items():
        mode = "deepep" if isinstance(z, DeepEPMessage) else "paper"
        given, bits = (tokens, 10) if mode == "deepep" else (x, z.bits)
        works[f"{name}, encode"] = lambda given=given, bits=bits, mode=mode: encode(given, bits, variant=mode)
        works[f"{name}, decode"] = lambda z=z: z.decode(out=out.reshape(z.shape))
        works[f"{name}, pack"] = lambda z=z: z.pack()
    lp.set_num_threads(1)
    seconds = interleaved(works, rounds)

    def cell(work: str) -> str:
        return f"{1e9 * seconds[work] / elements:.2f}"

    speeds = Table(
        "LogFMT, ns a value, Gaussian tiles of 128, 1 thread",
        ("", "encode", "decode", "pack"),
        [(name, *(cell(f"{name}, {work}") for work in ("encode", "decode", "pack"))) for name in encoded],
        f"{elements} values, the thread's CPU time, medians of {rounds} rounds that take turns. Beside them: np.copyto "
        f"{cell('copyto')}, np.log2 and np.exp2 of the same array {cell('log2 and exp2')}.",
    )
    rows = []
    for name, draw in TILES.items():
        y = draw(rng, elements).astype(np.float32)
        z = check_threads(y, 8, "paper")
        works = {"encode": lambda y=y: encode(y, 8), "decode": lambda z=z: z.decode(out=out)}
        for rounding in ("log", "logmean", "stochastic"):
            works[rounding] = lambda y=y, rounding=rounding: encode(y, 8, rounding=rounding)
        lp.set_num_threads(1)
        seconds = interleaved(works, rounds)
        rows.append((name, *(cell(work) for work in works)))
    kinds = Table(
        "LogFMT-8 on other tiles and with other roundings, ns a value",
        ("tiles", "encode", "decode", "encode, log", "encode, logmean", "encode, stochastic"),
        rows,
    )
    return [speeds, kinds]


@click.command()
@click.option("--elements", default=1 << 20, show_default=True, help="Values of an array, a multiple of 1024.")
@click.option("--rounds", default=15, show_default=True)
@click.option("--markdown", type=click.Path(path_type=Path), help="Also write the tables between this file's markers.")
def main(elements: int, rounds: int, markdown: Path | None) -> None:
    """Time encoding, decoding and packing after comparing bits."""
    line = machine_line()
    tables = measure(elements, rounds)
    for table in tables:
        table.show()
    if markdown:
        write_between_markers(markdown, "logfmt", "\n\n".join([f"{line}.", *(table.markdown() for table in tables)]))


if __name__ == "__main__":
    main()
