"""Cost as work grows: products, casts, models and experts, in one figure: ``python benchmarks/growth.py``.

Each curve is the cost of one unit of its work (a multiply-add, a number) against the cost where the curve is lowest: a
level line means cost proportional to the work, a rising one means faster growth. Products and casts are timed in rounds
that alternate with a reference (our float32 product, a copy of the same bytes); training steps of two recipes
alternate.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from common import Table, interleaved, machine_line, write_between_markers
from gemm_cases import CUBE, Shape, Work, float32_product, fp8_product

Row = dict[str, Any]
RECIPES = ("bf16", "dsv3")
MODELS = ("nano", "pilot", "tiny", "small")
EXPERTS = (1, 2, 4, 8, 16, 32, 64)


class Options(NamedTuple):
    quick: bool = False
    full: bool = False

    @property
    def rounds(self) -> int:
        return 3 if self.quick else 9


# --- measurements -----------------------------------------------------------------------------------------------------


def products(options: Options) -> list[Row]:
    """hopper_fp8 and float32 as the cube or K alone grows, and two threads against one."""
    import lowprec as lp

    def threads(count: int, product: Work) -> Work:
        def run() -> Any:
            lp.set_num_threads(count)
            return product()

        return run

    def apart(product: Work) -> Work:
        """Return two copies in separate threads, which show the speed available at this moment."""
        return lambda: [future.result() for future in [pool.submit(product) for _ in range(2)]]

    pool = ThreadPoolExecutor(2)
    rows = []
    cubes = (256, 512, 1024) if options.quick else (256, 512, 1024, 2048, 4096)
    depths = (128, 1024) if options.quick else (128, 256, 512, 1024, 4096, 16384, 65536)
    shapes = [Shape(n, n, n) for n in cubes] + [Shape(256, 256, k, "K") for k in depths]
    for shape in [*shapes, Shape(8192, 8192, 8192)] if options.full else shapes:
        product, ours = fp8_product(shape), float32_product(shape)
        rounds = options.rounds if shape.work < 1 << 36 else 3 if shape.work < 1 << 39 else 1
        cpu = interleaved({"one": threads(1, product), "float32": threads(1, ours)}, rounds)
        both = {"one": threads(1, product), "two": threads(2, product), "apart": threads(1, apart(product))}
        wall = interleaved(both, rounds, time.perf_counter)
        rows.append(
            {"shape": str(shape), "m": shape.m, "k": shape.k, "work": shape.work, **cpu,
             "two": wall["one"] / wall["two"], "apart": 2 * wall["one"] / wall["apart"]}
        )  # fmt: skip
    lp.set_num_threads(1)
    return rows


def casts(options: Options) -> list[Row]:
    """Casts and a quantizer from 2^10 numbers on, with `out=`, compared with a copy of the same bytes."""
    import numpy as np
    from casts import copies

    import lowprec as lp

    lp.set_num_threads(1)
    rows = []
    for places in range(10, (22 if options.quick else 28) + 1, 3):
        x = np.random.default_rng(0).standard_normal((1 << (places - 10), 1024), dtype=np.float32)
        y, codes, q = np.ones_like(x), np.ones(x.shape, np.uint8), lp.quantize(x, "te_block")
        works: dict[str, tuple[int, Work]] = {
            "encode e4m3fn": (5, lambda x=x, c=codes: lp.encode(x, "e4m3fn", out=c)),
            "decode": (5, lambda y=y, c=codes: lp.decode(c, "e4m3fn", out=y)),
            "round_to": (8, lambda x=x, y=y: lp.round_to(x, "e4m3fn", out=y)),
            "quantize, te_block 1x128": (5, lambda x=x, q=q: lp.quantize(x, "te_block", out=q)),
        }
        repeats = 1 << max(0, 18 - places)

        def repeated(work: Work, repeats: int = repeats) -> Work:
            return lambda: [work() for _ in range(repeats)]

        timed = {name: repeated(work) for name, (_, work) in works.items()}
        timed |= {name: repeated(work) for name, work in copies(x.size).items()}
        seconds = interleaved(timed, options.rounds if places < 26 else 3)
        row: Row = {"numbers": x.size}
        for name, (size, _) in works.items():
            row[name] = seconds[name] / repeats
            row[f"{name}, copy"] = seconds[f"np.copyto, {size} bytes"] / repeats
        rows.append(row)
    return rows


def models(options: Options) -> list[Row]:
    """Training steps of the named models, then of pilot with more and more experts."""
    from lowprec.moe.model.config import configs

    named = [configs[name] for name in (MODELS[:2] if options.quick else MODELS)]
    pilot = configs["pilot"]
    more = [
        replace(pilot, name=f"pilot, {n} experts", experts=n, top_k=min(2, n), expert_groups=1, topk_groups=1)
        for n in ((1, 8) if options.quick else EXPERTS)
    ]
    return [_steps(config, 2 if options.quick else 5) for config in (*named, *more)]


def _steps(config: Any, steps: int) -> Row:
    """Return medians of a step's time by recipe: of one thread, its own, and how much faster two are by the clock."""
    from train import trainer

    import lowprec as lp
    from lowprec.moe.data.sources import load_corpus

    runs = {name: trainer(config, name, load_corpus("stdlib")) for name in RECIPES}
    ways: dict[str, tuple[int, Callable[[], float]]] = {
        "": (1, time.thread_time), ", one": (1, time.perf_counter), ", two": (2, time.perf_counter)
    }  # fmt: skip
    seconds: dict[str, list[float]] = {f"{name}{way}": [] for name in RECIPES for way in ways}
    for i in range(steps + 2):
        for way, (threads, clock) in ways.items():
            lp.set_num_threads(threads)
            for name, run in runs.items():
                start = clock()
                run.step()
                if i >= 2:
                    seconds[f"{name}{way}"].append(clock() - start)
    lp.set_num_threads(1)
    counts, tokens = config.parameter_counts(), config.batch * config.sequence
    sizes = {"total": counts.total, "experts": config.experts, "work": 3 * counts.active * tokens}
    return {"model": config.name, **sizes} | {name: statistics.median(times) for name, times in seconds.items()}


#: Quantity at the points of an axis, by its label.
TICKS: dict[str, Callable[[dict[str, list[Row]]], dict[float, str]]] = {
    "multiply-adds a step": lambda found: {
        row["work"]: f"{row['model']}\n{row['work'] / 1e9:.1f}G" for row in found["models"] if row["model"] in MODELS
    },
    "experts": lambda found: {row["experts"]: str(row["experts"]) for row in found["models"]},
}
PARTS = {"products": products, "casts": casts, "models": models}


# --- tables and figure ------------------------------------------------------------------------------------------------


def tables(found: dict[str, list[Row]]) -> list[Table]:
    """Return the measurements as tables."""
    made = {"products": _product_table, "casts": _cast_table, "models": _model_table}
    return [made[part](rows) for part, rows in found.items()]


def _product_table(rows: Sequence[Row]) -> Table:
    base = next(row["one"] / row["work"] for row in rows if row["shape"] == str(CUBE))
    cells = [
        [row["shape"], f"{row['work'] / row['one'] / 1e9:.1f}", f"{row['float32'] / row['one']:.2f}x",
         f"{row['one'] / row['work'] / base - 1:+.0%}", f"{row['two']:.2f}x", f"{row['apart']:.2f}x"]
        for row in rows
    ]  # fmt: skip
    columns = [
        "M x N x K", "GMAC/s", "of float32", "cost per MAC against 1024^3", "2 threads", "2 products at once"
    ]  # fmt: skip
    note = (
        "One thread's CPU time; the last two by the wall clock. The gain of two independent products shows how free "
        "the second core was."
    )
    return Table("hopper_fp8 from small to large", columns, cells, note)


def _cast_table(rows: Sequence[Row]) -> Table:
    names = [name for name in rows[0] if f"{name}, copy" in rows[0]]
    cells = [
        [f"2^{row['numbers'].bit_length() - 1}"]
        + [f"{row[n] / row['numbers'] * 1e9:.2f} ({row[f'{n}, copy'] / row[n]:.2f}x)" for n in names]
        for row in rows
    ]
    note = (
        "One thread, its CPU time, `out=` given (ratio to np.copyto of the same bytes). Below 2^16 calls cost, above "
        "2^22 memory."
    )
    return Table("Casts as arrays grow, ns a number", ["numbers", *names], cells, note)


def _model_table(rows: Sequence[Row]) -> Table:
    cells = [
        [row["model"], f"{row['total'] / 1e6:.2f}M", f"{row['work'] / 1e9:.1f}"]
        + [f"{row[n] * 1e3:.0f} ({row[n] / row['work'] * 1e12:.0f})" for n in RECIPES]
        + [f"{row['dsv3'] / row['bf16']:.2f}", *(f"{row[f'{n}, one'] / row[f'{n}, two']:.2f}x" for n in RECIPES)]
        for row in rows
    ]
    columns = [
        "model", "parameters", "G multiply-adds", *(f"{n}, ms (ps a multiply-add)" for n in RECIPES), "dsv3 / bf16",
        *(f"{n}, 2 threads" for n in RECIPES),
    ]  # fmt: skip
    note = (
        "A step of 2048 bytes. Multiply-adds are 3 x active parameters x bytes, attention's own not counted. With more "
        "experts as many parameters are used, but each expert sees fewer bytes, and the optimizer has more to do. One "
        "thread's CPU time; two threads by the clock."
    )
    return Table("Training steps as models grow", columns, cells, note)


def draw(found: dict[str, list[Row]], path: Path) -> None:
    """Draw the cost of a unit of work against the amount of work, relative to each curve's lowest point."""
    from matplotlib import pyplot

    from lowprec.plot.style import DASHES, STYLE, color

    curves = _curves(found)
    with pyplot.rc_context(STYLE):
        figure, axes = pyplot.subplots(1, len(curves), figsize=(2.9 * len(curves), 3.2), layout="constrained")
        for place, ((title, label), lines) in enumerate(curves.items()):
            ax = axes[place] if len(curves) > 1 else axes
            for i, (name, points) in enumerate(lines.items()):
                x, cost = zip(*sorted(points), strict=True)
                low = min(cost)
                ax.plot(
                    x,
                    [c / low for c in cost],
                    linestyle=DASHES[i],
                    marker="o",
                    markersize=3,
                    color=color(i),
                    label=name,
                )
            ax.set_xscale("log", base=2)
            if label in TICKS:
                ticks = TICKS[label](found)
                ax.set_xticks(list(ticks), list(ticks.values()))
                ax.minorticks_off()
            ax.set_yscale("log", base=2)
            ax.set_ylim(0.9, max(4.4, ax.get_ylim()[1]))
            ax.set_yticks([y for y in (1, 2, 4, 8, 16, 32, 64) if y <= ax.get_ylim()[1]])
            ax.yaxis.set_major_formatter(lambda y, _: f"{y:g}x")
            ax.set_title(title, fontsize=9.5)
            ax.set_xlabel(label)
            ax.grid(axis="y", color="#e6e6e6", linewidth=0.6)
            ax.legend(frameon=False, fontsize=8)
        (axes[0] if len(curves) > 1 else axes).set_ylabel("cost of one, against the cheapest")
        figure.savefig(path, metadata={"Date": None})
        pyplot.close(figure)


def _curves(found: dict[str, list[Row]]) -> dict[tuple[str, str], dict[str, list[tuple[float, float]]]]:
    """Return for each panel (title, label) its curves: points of size and cost of a unit of work."""
    curves: dict[tuple[str, str], dict[str, list[tuple[float, float]]]] = {}
    ways = {"one": "hopper_fp8", "float32": "float32"}
    if rows := found.get("products"):
        depths = [r for r in rows if "(K)" in r["shape"]]
        cubes = [r for r in rows if r not in depths]
        panels = {("Products, n x n x n", "n"): cubes, ("Products, 256 x 256 x K", "K"): depths}
        for panel, some in panels.items():
            curves[panel] = {name: [(r["k"], r[way] / r["work"]) for r in some] for way, name in ways.items()}
    if rows := found.get("casts"):
        names = [name for name in rows[0] if f"{name}, copy" in rows[0]]
        curves["Casts", "numbers"] = {name: [(r["numbers"], r[name] / r["numbers"]) for r in rows] for name in names}
    if rows := found.get("models"):
        named, more = [r for r in rows if r["model"] in MODELS], [r for r in rows if r["model"] not in MODELS]
        curves["Training steps, nano to small", "multiply-adds a step"] = {
            n: [(r["work"], r[n] / r["work"]) for r in named] for n in RECIPES
        }
        curves["Pilot's steps with more experts", "experts"] = {
            n: [(r["experts"], r[n] / r["work"]) for r in more] for n in RECIPES
        }
    return curves


def main() -> None:
    """Parse the command line, measure, print and draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer sizes and rounds")
    parser.add_argument("--full", action="store_true", help="products up to 8192^3, minutes each")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="parts to run")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write what was measured")
    parser.add_argument("--figure", type=Path, metavar="FILE", help="also draw it: .svg or .png")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="also write the tables between its markers")
    given = parser.parse_args()
    for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = "1"  # before NumPy is imported
    machine = machine_line()
    print(machine)
    found = {}
    for part in given.only:
        print(f"{part} ...", file=sys.stderr, flush=True)
        found[part] = PARTS[part](Options(given.quick, given.full))
    made = tables(found)
    for table in made:
        table.show()
    if given.json:
        given.json.write_text(json.dumps({"machine": machine, **found}, indent=1) + "\n")
    if given.figure:
        draw(found, given.figure)
    if given.markdown:
        write_between_markers(given.markdown, "growth", "\n\n".join([machine, *(t.markdown() for t in made)]))


if __name__ == "__main__":
    main()
