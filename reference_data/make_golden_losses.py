"""golden_losses.json: the first losses of short training runs, as exact hexadecimal floats.

Nothing here depends on the Python or NumPy version: text and initial weights come from raw Philox words by integer and
IEEE arithmetic. To be made again only when the definition of a recipe, the model or the optimizer is meant to change.
"""

import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from lowprec.moe.data.corpus import Corpus, corpus_from_bytes
from lowprec.moe.model.config import MoEConfig, configs
from lowprec.moe.run.train import Schedule, Trainer
from lowprec.recipe import recipes

FILE = Path(__file__).with_name("golden_losses.json")

#: A model in which every tile is ragged: 48 and 40 columns, 20 outputs of wkv_a, runs of tokens of any length. A step
#: has 256 tokens, so that weight gradients are sums long enough to be promoted.
MICRO = MoEConfig(
    "micro", dim=48, layers=3, dense_layers=1, heads=2, nope_dim=12, rope_dim=4, value_dim=10, q_rank=24, kv_rank=16,
    experts=8, top_k=2, expert_groups=4, topk_groups=2, expert_width=40, dense_width=56, sequence=32, batch=8,
    allow_partial_tiles=True,
)  # fmt: skip

STEPS = 10
#: (configuration, recipe, steps): every recipe whose bits are the same everywhere.
RUNS = [
    *(("micro", recipe, STEPS) for recipe in recipes if recipe != "float64"), ("nano", "bf16", 2), ("nano", "dsv3", 2),
]  # fmt: skip


def text() -> Corpus:
    """Return 200,000 bytes that follow one of four successors at each step: something to learn in a few steps."""
    words = np.random.Philox(key=2026).random_raw(200_000)
    successors = np.random.Philox(key=6202).random_raw(256 * 4) >> np.uint64(56)
    byte, out = 0, bytearray()
    for choice in (words >> np.uint64(62)).tolist():
        byte = int(successors[4 * byte + choice])
        out.append(byte)
    return corpus_from_bytes("synthetic", bytes(out), held_out=20_000)


def trainer(config: str, recipe: str) -> Trainer:
    """Return a trainer whose initial weights are sums of uniform numbers, drawn in the same way for ever."""
    shape = MICRO if config == "micro" else configs[config]
    made = Trainer(shape, recipe, text(), seed=0, schedule=Schedule(peak_lr=4e-3, warmup_steps=2, total_steps=100))
    for name, weight in made.model.params.items():
        if weight.ndim == 2:
            words = np.random.Philox(key=zlib.crc32(name.encode())).random_raw(weight.size)
            pieces = [((words >> np.uint64(16 * i)) & np.uint64(0xFFFF)).astype(np.float64) for i in range(4)]
            # Four uniform numbers of standard deviation 65536 / sqrt(12) each.
            sums = pieces[0] + pieces[1] + pieces[2] + pieces[3] - 131070.0
            weight[...] = (sums * (shape.init_std * np.sqrt(3.0) / 65536.0)).reshape(weight.shape)
    return made


def losses(config: str, recipe: str, steps: int) -> dict[str, list[str] | str]:
    """Return losses and gradient norms of a run's steps and its validation loss after them, in hexadecimal."""
    run = trainer(config, recipe)
    records = [run.step() for _ in range(steps)]
    return {
        "losses": [record.loss.hex() for record in records],
        "grad_norms": [record.grad_norm.hex() for record in records],
        "validation": run.evaluate(n_bytes=512).hex(),
    }


def entries() -> dict[tuple[str, ...], Callable[[], object]]:
    """Return how to compute a run's numbers, by configuration and recipe."""
    return {(f"{config}/{recipe}",): partial(losses, config, recipe, steps) for config, recipe, steps in RUNS}
