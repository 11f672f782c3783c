"""Speed of the trainer and of the same model in plain PyTorch: ``python benchmarks/train_torch.py [CONFIG]``.

The PyTorch model is written as one writes it for eager float32 on a CPU: `torch.nn.functional` throughout, a loop over
the experts, fused attention, `torch.optim.AdamW`. Before anything is timed, its loss must equal lowprec's float64 loss
on the same weights and bytes to six digits, and its gradient's norm too. Each side is timed in separate processes,
which take turns, because idle threads of one library disturb the other. Both use all cores, or
``--threads``; with one thread, the clock is CPU time, which other work affects less.
"""

import json
import statistics
import time

import click
import numpy as np
from common import Table, child, machine_line

from lowprec.moe.model.config import MoEConfig, configs

PEAK = 2e-3


def torch_model(config: MoEConfig, params: dict, biases: dict):
    """Return (loss function of bytes, parameters, function that moves the biases), all of torch tensors."""
    import torch
    from torch.nn import functional

    weights = {name: torch.tensor(value, requires_grad=True) for name, value in params.items()}
    selection = {name: torch.tensor(value) for name, value in biases.items()}
    heads, nope, rope, width = config.heads, config.nope_dim, config.rope_dim, config.value_dim
    powers = torch.arange(0, rope, 2, dtype=torch.float64) / rope
    angles = torch.outer(torch.arange(config.sequence, dtype=torch.float64), config.rope_theta**-powers)
    turn = torch.polar(torch.ones_like(angles), angles).to(torch.complex64)[:, None]
    loads = {}

    def norm(x, name):
        return functional.rms_norm(x, x.shape[-1:], weights[name], config.norm_eps)

    def linear(x, name):
        return functional.linear(x, weights[name])

    def rotate(x):
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], rope // 2, 2))
        return torch.view_as_real(pairs * turn).reshape(x.shape)

    def attention(x, name):
        batch, sequence, _ = x.shape
        q = linear(norm(linear(x, f"{name}.wq_a"), f"{name}.q_norm"), f"{name}.wq_b")
        q = q.view(batch, sequence, heads, nope + rope)
        latent, k_rope = linear(x, f"{name}.wkv_a").split([config.kv_rank, rope], dim=-1)
        kv = linear(norm(latent, f"{name}.kv_norm"), f"{name}.wkv_b").view(batch, sequence, heads, nope + width)
        k_rope = rotate(k_rope[:, :, None]).expand(-1, -1, heads, -1)
        q = torch.cat([q[..., :nope], rotate(q[..., nope:])], dim=-1).transpose(1, 2)
        k = torch.cat([kv[..., :nope], k_rope], dim=-1).transpose(1, 2)
        v = kv[..., nope:].transpose(1, 2)
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return linear(out.transpose(1, 2).reshape(batch, sequence, -1), f"{name}.wo")

    def feed_forward(x, name):
        return linear(functional.silu(linear(x, f"{name}.w1")) * linear(x, f"{name}.w3"), f"{name}.w2")

    def experts(x, name):
        sequence = x.shape[1]
        scores = torch.sigmoid(linear(x, f"{name}.gate"))
        with torch.no_grad():
            biased = (scores + selection[f"{name}.gate"]).unflatten(-1, (config.expert_groups, -1))
            judged = biased.topk(config.top_k // config.topk_groups, dim=-1).values.sum(-1)
            kept = torch.zeros_like(judged, dtype=torch.bool)
            kept.scatter_(-1, judged.topk(config.topk_groups, dim=-1).indices, True)
            biased = biased.masked_fill(~kept[..., None], -torch.inf).flatten(-2)
            chosen = biased.topk(config.top_k, dim=-1).indices
            best = scores.topk(config.top_k, dim=-1).indices
            uses = functional.one_hot(best, config.experts).sum((1, 2)) * (config.experts / config.top_k / sequence)
        gates = scores.gather(-1, chosen)
        gates = (gates / gates.sum(-1, keepdim=True) * config.route_scale).flatten(0, 1)
        share = (scores / scores.sum(-1, keepdim=True)).mean(1)
        balance = config.balance_alpha * (uses * share).sum(-1).mean()
        flat, chosen = x.flatten(0, 1), chosen.flatten(0, 1)
        loads[f"{name}.gate"] = torch.bincount(chosen.flatten(), minlength=config.experts)
        out = feed_forward(flat, f"{name}.shared")
        for e in range(config.experts):
            token, slot = torch.where(chosen == e)
            out = out.index_add(0, token, feed_forward(flat[token], f"{name}.experts.{e}") * gates[token, slot, None])
        return out.view_as(x), balance

    def loss(tokens):
        x, balance = functional.embedding(tokens[:, :-1], weights["embed"]), 0.0
        for i in range(config.layers):
            x = x + attention(norm(x, f"layers.{i}.attn_norm"), f"layers.{i}.attn")
            normed = norm(x, f"layers.{i}.ffn_norm")
            if i < config.dense_layers:
                x = x + feed_forward(normed, f"layers.{i}.ffn")
            else:
                update, more = experts(normed, f"layers.{i}.ffn")
                x, balance = x + update, balance + more
        logits = linear(norm(x, "norm"), "head")
        return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()), balance

    @torch.no_grad()
    def balance_experts():
        for name, load in loads.items():
            selection[name] += config.bias_update_speed * torch.sign(load.float().mean() - load.float())

    return loss, weights, balance_experts


def batches(config: MoEConfig):
    """Return the step's bytes by number."""
    from lowprec.moe.data.corpus import batches
    from lowprec.moe.data.sources import load_corpus

    return batches(load_corpus("stdlib"), 0, config.batch, config.sequence)


def torch_seconds(config: MoEConfig, steps: int, threads: int | None) -> list[float]:
    """Check the loss and the gradient, then return the seconds of each step."""
    import torch

    from lowprec.moe.model.model import Model

    if threads is not None:
        torch.set_num_threads(threads)
    ours, data = Model(config, "float64", seed=0), batches(config)
    loss, weights, balance_experts = torch_model(config, ours.params, ours.biases)
    tokens = [torch.tensor(np.asarray(data[i]), dtype=torch.long) for i in range(steps)]
    cross_entropy, balance = loss(tokens[0])
    (cross_entropy + balance).backward()
    want, gradients = ours.loss_and_grads(np.asarray(data[0]))
    norm = np.sqrt(sum(float((g**2).sum()) for g in gradients.values()))
    got = np.sqrt(sum(float((w.grad.double() ** 2).sum()) for w in weights.values()))
    if abs(cross_entropy.item() / want - 1) > 1e-6 or abs(got / norm - 1) > 1e-5:
        raise SystemExit(f"PyTorch's loss {cross_entropy.item()} and norm {got}, lowprec's are {want} and {norm}")

    decay = [w for w in weights.values() if w.ndim > 1]
    rest = [w for w in weights.values() if w.ndim == 1]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], lr=PEAK, betas=(0.9, 0.95)
    )
    seconds, clock = [], time.process_time if threads == 1 else time.perf_counter
    for batch in tokens:
        begin = clock()
        optimizer.zero_grad(set_to_none=True)
        cross_entropy, balance = loss(batch)
        (cross_entropy + balance).backward()
        torch.nn.utils.clip_grad_norm_(weights.values(), 1.0)
        optimizer.step()
        balance_experts()
        cross_entropy.item()
        seconds.append(clock() - begin)
    return seconds


def our_seconds(config: MoEConfig, recipe: str, steps: int, threads: int | None) -> list[float]:
    """Return the seconds of each step."""
    import lowprec as lp
    from lowprec.moe.data.sources import load_corpus
    from lowprec.moe.run.train import Schedule, Trainer

    if threads is not None:
        lp.set_num_threads(threads)
    schedule = Schedule(peak_lr=PEAK, warmup_steps=5, total_steps=max(steps, 5))
    trainer = Trainer(config, recipe, load_corpus("stdlib"), seed=0, schedule=schedule)
    seconds, clock = [], time.process_time if threads == 1 else time.perf_counter
    for _ in range(steps):
        begin = clock()
        trainer.step()
        seconds.append(clock() - begin)
    return seconds


@click.command()
@click.option("--steps", default=8, show_default=True, help="Timed steps in a round, after three that are not.")
@click.option("--rounds", default=3, show_default=True, help="Processes of each side.")
@click.option("--threads", type=int, help="Threads of both sides; all cores by default.")
@click.option("--side", hidden=True, help="torch, or a recipe: time this one and print its seconds.")
@click.argument("config", default="tiny")
def main(steps: int, rounds: int, threads: int | None, side: str | None, config: str) -> None:
    """Time training steps of CONFIG in PyTorch eager float32, in exact BF16 and in exact FP8."""
    shape = configs[config]
    if side is not None:
        seconds = (
            torch_seconds(shape, steps + 3, threads)
            if side == "torch"
            else our_seconds(shape, side, steps + 3, threads)
        )
        print(json.dumps(statistics.median(seconds[3:])))
        return
    sides = {"torch": "PyTorch eager, float32", "bf16": "lowprec bf16, exact", "dsv3": "lowprec dsv3, exact FP8"}
    options = [f"--steps={steps}", config] + ([] if threads is None else [f"--threads={threads}"])
    medians: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name in sides:
            medians[name].append(child(__file__, f"--side={name}", *options))
    best = {name: min(values) for name, values in medians.items()}
    rows = [
        [
            sides[name],
            f"{1e3 * seconds:.0f}",
            f"{shape.batch * shape.sequence / seconds:,.0f}",
            f"{best['torch'] / seconds:.2f}",
        ]
        for name, seconds in best.items()
    ]
    note = f"Best of {rounds} medians of {steps} steps. {machine_line()}"
    Table(f"One training step of {config}", ("", "ms", "bytes/s", "speed over PyTorch"), rows, note).show()


if __name__ == "__main__":
    main()
