"""Effect of load balancing and multi-token prediction on a small model: ``python benchmarks/architecture.py``.

Each arm differs from the configuration in the fields named, is trained in BF16 on the standard library from the same
seeds, and reports how uneven the experts' loads are and the validation loss. Numbers of a few hundred steps of a small
model show that the mechanisms work, not what they are worth at scale.
"""

import dataclasses
import statistics

import click
from common import Table, machine_line

from lowprec.moe.data.sources import load_corpus
from lowprec.moe.model.config import MoEConfig, configs
from lowprec.moe.run.schedule import Schedule
from lowprec.moe.run.train import Trainer, default_rate

ARMS = {
    "no balancing": {"bias_update_speed": 0.0, "balance_alpha": 0.0},
    "bias and a small sequence-wise loss (the default)": {},
    "bias alone": {"balance_alpha": 0.0},
    "sequence-wise loss alone, alpha 0.0001": {"bias_update_speed": 0.0},
    "sequence-wise loss alone, alpha 0.01": {"bias_update_speed": 0.0, "balance_alpha": 0.01},
    "the default and a byte further": {"mtp_depth": 1},
}


def run(config: MoEConfig, steps: int, seed: int) -> tuple[list[float], float, float]:
    """Return the excess of the busiest expert by step, the validation loss, and the last loss of a byte further."""
    schedule = Schedule(default_rate(config), min(steps // 10, 50), steps, "linear_to_zero")
    trainer = Trainer(config, "bf16", load_corpus("stdlib"), seed=seed, schedule=schedule)
    excess = [trainer.step().max_violation for _ in range(steps)]
    return excess, trainer.evaluate(), trainer.model.mtp_loss


@click.command()
@click.option("--config", default="nano", show_default=True)
@click.option("--steps", default=300, show_default=True)
@click.option("--seeds", default=2, show_default=True)
def main(config: str, steps: int, seeds: int) -> None:
    """Train every arm and print one row for each: means over the seeds."""
    rows = []
    parts = [(0, 20), (steps // 3 - 10, steps // 3 + 10), (steps - 20, steps)]
    for name, changes in ARMS.items():
        shape = dataclasses.replace(configs[config], **changes)
        runs = [run(shape, steps, seed) for seed in range(seeds)]
        means = [statistics.mean(statistics.mean(excess[a:b]) for excess, *_ in runs) for a, b in parts]
        further = f"{statistics.mean(r[2] for r in runs):.3f}" if shape.mtp_depth else "-"
        rows.append([name, *(f"{m:.2f}" for m in means), f"{statistics.mean(r[1] for r in runs):.4f}", further])
        print(" | ".join(rows[-1]), flush=True)
    heads = ("arm", *(f"MaxVio, steps {a + 1}-{b}" for a, b in parts), "validation, nats/byte", "a byte further")
    note = f"{config}, {steps} steps of 2048 bytes, {seeds} seeds, BF16. {machine_line()}"
    Table("Load balancing and multi-token prediction", heads, rows, note).show()


if __name__ == "__main__":
    main()
