"""A toy policy gradient: rollouts in FP8 for a BF16 trainer, with importance weights and without."""

import copy

import numpy as np

import lowprec as lp
from lowprec.plot.style import NEUTRAL, PALETTE
from lowprec.study import Claims, ClaimSetting, ErrorArm, Expectation
from lowprec.study.report.sheet import Figure, label_ends, panels

PROMPT, WRITTEN, BATCH, STEPS, SPAN = 24, 8, 64, 40, 10
RATE, CAP = 1e-3, 2.0
REWARDED = np.frombuffer(b"aeiou", np.uint8)
EVALUATED = 8  # batches of prompts, of the trained policy
NOISE = {"injected_error": "noise=0.5"}
#: Rollout's recipe and changes of its forward products, whether gradients have importance weights, and color of each
#: arm; the trainer's recipe is bf16.
ARMS = {
    "parity": ("bf16", {}, False, NEUTRAL),
    "perturb": ("bf16", {}, False, NEUTRAL),
    "FP8": ("dsv3", {}, False, PALETTE[0]),
    "FP8, weights": ("dsv3", {}, True, PALETTE[0]),
    "FP4": ("fp4_naive", {}, False, PALETTE[1]),
    "noise": ("bf16", NOISE, False, PALETTE[2]),
    "noise, weights": ("bf16", NOISE, True, PALETTE[2]),
}
REWARD, GAIN = "reward of the trained policy, %", "reward minus that with parity, points"
FIRST, LAST = "mean |log ratio|, first steps", "mean |log ratio|, last steps"


def span(first: int) -> str:
    """Return the name of the mean reward of a span of steps."""
    return f"reward of steps {first + 1} to {first + SPAN}, %"


SPANS = [span(first) for first in range(0, STEPS, SPAN)]


def log_probabilities(model, tokens):
    """Return log p of every next byte, float64 [sequences, bytes - 1, vocabulary]."""
    with model.recipe.evaluating():
        logits = model.predictions(tokens)[0].astype(np.float64)
    logits -= logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def write(model, text, rng):
    """Continue prompts from a text; return the sequences, log q of the bytes written, and the reward of each."""
    starts = rng.integers(len(text) - PROMPT, size=BATCH)
    tokens = np.zeros((BATCH, PROMPT + WRITTEN), np.uint8)
    tokens[:, :PROMPT] = text[starts[:, None] + np.arange(PROMPT)]
    quantiles, chosen = rng.random((BATCH, WRITTEN)), []
    for i in range(WRITTEN):
        log_q = log_probabilities(model, tokens[:, : PROMPT + i + 1])[:, -1]
        below = np.exp(log_q).cumsum(1)
        byte = np.minimum((below < quantiles[:, i, None] * below[:, -1:]).sum(1), log_q.shape[1] - 1)
        tokens[:, PROMPT + i] = byte
        chosen.append(log_q[np.arange(BATCH), byte])
    return tokens, np.stack(chosen, 1), np.isin(tokens[:, PROMPT:], REWARDED).mean(1)


def train(trainer, rollout, weighted, seed):
    """Train with REINFORCE; return the mean reward of the rollouts and the mean absolute log ratio of every step."""
    rng, model = np.random.default_rng([seed, 1]), trainer.model
    rewards, differences = [], []
    for step in range(STEPS):
        model.recipe.begin_step(trainer.steps + step)
        sampler = model.with_recipe(rollout)
        sampler.recipe.begin_step(trainer.steps + step)
        tokens, log_q, reward = write(sampler, trainer.corpus.train, rng)
        written = tokens[:, PROMPT:, None].astype(np.int64)
        log_p = np.take_along_axis(log_probabilities(model, tokens)[:, PROMPT - 1 :], written, -1)[..., 0]
        advantage = np.zeros((BATCH, tokens.shape[1] - 1))
        advantage[:, PROMPT - 1 :] = (reward - reward.mean())[:, None]
        if weighted:
            advantage[:, PROMPT - 1 :] *= np.minimum(np.exp(log_p - log_q), CAP)
        trainer.optimizer.update(model.loss_and_grads(tokens, advantage)[1], RATE)
        rewards.append(float(reward.mean()))
        differences.append(float(np.abs(log_p - log_q).mean()))
    return rewards, differences


def rewards(seeds: int) -> dict[tuple[str, str], list[float]]:
    """Mean reward of every span of steps, and of the trained policy in BF16; log ratios of the first and last span."""
    from lowprec.parity.expect import trained_miniature  # compiles, and listing studies does not

    found: dict[tuple[str, str], list[float]] = {}
    for seed in range(seeds):
        trained, parity = trained_miniature(seed), 0.0
        for arm, (recipe, changes, weighted, _) in ARMS.items():
            trainer = copy.deepcopy(trained)
            if arm == "perturb":
                trainer.perturb()
            rollout = lp.recipes[recipe].with_(fprop=changes)
            steps, differences = train(trainer, rollout, weighted, seed)
            rng = np.random.default_rng([seed, 2])
            held_out = [write(trainer.model, trainer.corpus.held_out, rng)[2] for _ in range(EVALUATED)]
            reward = 100 * float(np.mean(held_out))
            parity = reward if arm == "parity" else parity
            values = dict(zip(SPANS, 100 * np.reshape(steps, (-1, SPAN)).mean(1), strict=True)) | {
                REWARD: reward, GAIN: reward - parity,
                FIRST: np.mean(differences[:SPAN]), LAST: np.mean(differences[-SPAN:]),
            }  # fmt: skip
            for metric, value in values.items():
                found.setdefault((metric, arm), []).append(float(value))
    return found


def figure(values, size):
    """Return the figure of the reward by step, and of its difference from parity in the last steps."""
    kinds = (*SPANS, REWARD, GAIN)
    rows = [
        {"metric": metric, "arm": arm, "seed": seed, "value": value}
        for metric in kinds for arm in ARMS for seed, value in enumerate(values[metric, arm])
    ]  # fmt: skip
    gains = {arm: float(np.mean(values[GAIN, arm])) for arm in ARMS}

    def draw(sheet, top):
        left, right = panels(sheet, top, 1, 2, head=0.30, foot=0.56, left=0.08, right=0.97, wspace=0.72, share_y=False)
        middles = [first + SPAN / 2 for first in range(0, STEPS, SPAN)]
        ends = []
        for arm, (*_, weighted, color) in ARMS.items():
            means = [float(np.mean(values[metric, arm])) for metric in SPANS]
            left.plot(middles, means, color=color, linestyle=(0, (4, 1.5)) if weighted else "-", linewidth=1.8)
            ends.append((means[-1], arm, color))
        left.set_xlabel("step of the policy gradient")
        left.set_title("reward of rollouts (%)", fontsize=9.5, loc="left", color="#202020", pad=7)
        label_ends(left, ends)
        shown = [arm for arm in ARMS if arm != "parity"]
        right.axvline(0, color=NEUTRAL, linewidth=1)
        for place, arm in enumerate(shown):
            each = values[GAIN, arm]
            right.plot(each, [place] * len(each), "|", color=ARMS[arm][-1], markersize=8, alpha=0.6)
            right.plot([gains[arm]], [place], "o", color=ARMS[arm][-1], markersize=6)
        right.set_yticks(range(len(shown)), shown)
        right.set_ylim(len(shown) - 0.5, -0.5)
        right.set_title("reward after training (points)", fontsize=9.5, loc="left", color="#202020", pad=7)
        right.set_xlabel("minus that of parity")

    small = f"{size}; lines and points: means over seeds, ticks: seeds"
    plain, weighted = gains["FP8"], gains["FP8, weights"]
    title = f"After FP8 rollouts the reward differs by {plain:+.1f} points, with importance weights {weighted:+.1f}"
    return Figure(title, "policy_gradient", rows, draw, small, csv="policy_gradient_figure")


def expect(words, metric, arm, low, high, over="", minus=""):
    """Return an expectation."""
    return Expectation(words, metric, arm, over, minus=minus, expected=(low, high))


ablation = Claims(
    name="policy_gradient",
    question="Does a rollout in FP8 change what a policy gradient learns, with importance weights or without?",
    published="a run with different kernels in sampler and trainer earned less reward over 100 steps than a run with "
    "bit-identical log-probabilities; importance weights capped at 2 are a common correction",
    source="vLLM's article of 2025-11-10 on bitwise consistent training; modelscope/ms-swift 6678",
    arms=tuple(ErrorArm(name) for name in ARMS),
    values=rewards,
    figure=figure,
    quick=ClaimSetting(2),
    full=ClaimSetting(6),
    expectations=(
        expect("before it learns, a fifth of the bytes are vowels", SPANS[0], "parity", 18.0, 25.0),
        expect("the policy learns", REWARD, "parity", 28.0, 42.0),
        expect("a changed weight is the floor", GAIN, "perturb", -1.5, 1.5),
        expect("FP8 rollouts differ by a percent of probability", FIRST, "FP8", 0.008, 0.025),
        expect("also when the policy has learned", LAST, "FP8", 0.008, 0.03),
        expect("they do not change what is learned", GAIN, "FP8", -1.5, 1.5),
        expect("with weights neither", GAIN, "FP8, weights", -1.5, 1.5),
        expect("so weights change nothing", REWARD, "FP8, weights", -1.5, 1.5, minus="FP8"),
        expect("FP4 rollouts differ by 4 times as much", FIRST, "FP4", 3.0, 8.0, over="FP8"),
        expect("and still do not change what is learned", GAIN, "FP4", -2.0, 2.0),
        expect("noise of half a product does", GAIN, "noise", -10.0, -1.0),
        expect("weights give part of it back", REWARD, "noise, weights", 0.0, 8.0, minus="noise"),
    ),
    notes=f"Model nano after 400 steps of BF16 on the Python standard library. Each of {STEPS} steps samples {WRITTEN} "
    f"bytes after {BATCH} prompts of {PROMPT} bytes; the reward is the share of lowercase vowels in them. The gradient "
    f"is REINFORCE's with the batch's mean reward as baseline, for one AdamW step at a rate of {RATE:g}. The trainer "
    "computes in bf16; a rollout samples in bf16 (parity: bit-identical log-probabilities), in dsv3, in "
    "fp4_naive, or in bf16 with noise of half its size in every product of linear layers (the control). With weights, "
    f"each byte's gradient is multiplied by min(p / q, {CAP:g}). All arms of a seed have equal initial weights, "
    "prompts and uniform numbers, so bytes differ only where a quantile falls between two distributions; perturb is "
    "parity with one weight multiplied by 1 + 2^-7. The trained policy writes after held-out prompts in bf16. The "
    "reward is simple and dense, and each rollout serves one update: collapse after thousands of steps, long answers "
    "and stale rollouts are not in it. Length and learning rate were chosen from one curve of parity and one of FP4 "
    "with other random numbers, before the ranges were written. Cost: quick 15 minutes of a core, full 45.",
)  # fmt: skip
