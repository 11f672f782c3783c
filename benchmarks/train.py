"""Bytes a second of the trainer on one thread, in BF16 and in exact FP8: ``python benchmarks/train.py``.

Before a case is timed, its first step is made on one and on two threads and must give the same bits.
"""

import statistics
import time

import click
from rich.console import Console
from rich.table import Table

import lowprec as lp
from lowprec.moe.data.corpus import Corpus
from lowprec.moe.data.sources import load_corpus
from lowprec.moe.model.config import MoEConfig
from lowprec.moe.run.train import Schedule, Trainer


def trainer(config: MoEConfig | str, recipe: str, corpus: Corpus) -> Trainer:
    return Trainer(config, recipe, corpus, seed=0, schedule=Schedule(peak_lr=2e-3, warmup_steps=5, total_steps=100))


def check_bits(config: str, recipe: str, corpus: Corpus) -> None:
    first = []
    for threads in (1, 2):
        lp.set_num_threads(threads)
        record = trainer(config, recipe, corpus).step()
        first.append((record.loss.hex(), record.grad_norm.hex()))
    if first[0] != first[1]:
        raise SystemExit(f"{config} {recipe}: one thread gives {first[0]}, two give {first[1]}")


@click.command()
@click.option("--steps", default=5, show_default=True, help="Timed steps, after three that are not.")
@click.argument("configs", nargs=-1)
def main(steps: int, configs: tuple[str, ...]) -> None:
    """Time training steps of CONFIGS (nano, pilot and tiny by default), interleaved; medians of CPU time."""
    corpus = load_corpus("stdlib")
    table = Table("config", "bf16, bytes/s", "dsv3, bytes/s", "dsv3 step / bf16 step")
    for config in configs or ("nano", "pilot", "tiny"):
        runs = {}
        for recipe in ("bf16", "dsv3"):
            check_bits(config, recipe, corpus)
            runs[recipe] = trainer(config, recipe, corpus)
        lp.set_num_threads(1)
        seconds: dict[str, list[float]] = {recipe: [] for recipe in runs}
        for i in range(steps + 3):
            for recipe, run in runs.items():
                begin = time.thread_time()
                run.step()
                if i >= 3:
                    seconds[recipe].append(time.thread_time() - begin)
        step = {recipe: statistics.median(times) for recipe, times in seconds.items()}
        size = runs["bf16"].config.batch * runs["bf16"].config.sequence
        rates = [f"{size / step[recipe]:,.0f}" for recipe in runs]
        table.add_row(config, *rates, f"{step['dsv3'] / step['bf16']:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
