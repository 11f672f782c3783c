"""Shares of a trainer-rollout difference: formats, accumulator, attention, cache, norms, router, transfers, head."""

import math

import numpy as np

import lowprec as lp
from lowprec.plot.style import NEUTRAL, PALETTE
from lowprec.study import Claims, ClaimSetting, ErrorArm, Expectation
from lowprec.study.report.sheet import Figure, panels

TOKENS, WHOLE = 4096, "all"
#: Short names of the parts of `lp.expect`, the arms.
PARTS = {
    "operands (formats, scales)": "operands", "accumulator": "accumulator", "attention": "attention",
    "KV cache": "KV cache", "norms": "norms", "router": "router", "dispatch, combine": "transfers", "head": "head",
    "log-softmax": "log-softmax",
}  # fmt: skip
CACHE = {"kv": "fp8_1x128"}
#: Parts of a rollout that differ from a trainer without any FP8.
OTHERS = {"norm": "vllm_rms_norm_16", "router": "float32", "head": "bfloat16", "log_softmax": "bfloat16"}
FP8 = CACHE | {"attention": "fa3_fp8", "combine": "fp8_1x128"}
#: Trainer, rollout, and size of the largest logits (None: that of the model, some 5) of each setting.
SETTINGS = {
    "FP8": (("bf16", {}), ("dsv3", {}), None),
    "FP8 and cache": (("bf16", {}), ("dsv3", CACHE), None),
    "every part": (("bf16", {"head": "float32"}), ("dsv3", FP8 | OTHERS), None),
    "FP8 trainer": (("te_block", {}), ("dsv4", CACHE), None),
    "BF16": (("bf16", {"head": "float32"}), ("bf16", {"attention": "fa3_bf16"} | OTHERS), None),
    "BF16, logits of 20": (("bf16", {"head": "float32"}), ("bf16", {"attention": "fa3_bf16"} | OTHERS), 20.0),
}


def shares(seeds: int) -> dict[tuple[str, str], list[float]]:
    """Mean absolute difference of log-probabilities, and that of each part alone and without it, in % of the whole."""
    from lowprec.moe.data.corpus import held_out_windows  # these compile, and listing studies does not
    from lowprec.parity.expect import Passes, trained_miniature
    from lowprec.parity.side import explicit, mixed

    found: dict[tuple[str, str], list[float]] = {}
    for seed in range(seeds):
        trainer = trained_miniature(seed)
        tokens = held_out_windows(trainer.corpus, trainer.config.sequence, seeds * TOKENS)[seed::seeds]
        observed = np.arange(tokens[:, 1:].size), tokens[:, 1:].reshape(-1)
        passes = Passes(trainer.model, tokens, None)
        for setting, (train, rollout, size) in SETTINGS.items():
            a, b = (explicit(lp.Side.of(recipe, **parts), trainer.config) for recipe, parts in (train, rollout))
            logits = passes.logits(a)
            passes.shift = 0.0 if size is None else size - float(np.median(logits.max(1)))
            p = passes.log_probabilities(a, logits)[observed]
            whole = float(np.abs(passes(b)[observed] - p).mean())
            found.setdefault((f"{setting}, difference", WHOLE), []).append(whole)
            squares = 0.0
            for part, arm in PARTS.items():
                alone, left = mixed(a, b, part), mixed(b, a, part)
                if (alone, left) == (a, b):
                    continue
                if alone is not None:  # None: the accumulator does not take the other side's operands
                    share = 100 * float(np.abs(passes(alone)[observed] - p).mean()) / whole
                    squares += share**2
                    found.setdefault((f"{setting}, alone", arm), []).append(share)
                if left is not None:
                    share = 100 * (1 - float(np.abs(passes(left)[observed] - p).mean()) / whole)
                    found.setdefault((f"{setting}, left out", arm), []).append(share)
            found.setdefault((f"{setting}, root of squares", WHOLE), []).append(math.sqrt(squares))
    return found


def figure(values, size):
    """Return the figure of the shares: one panel for each setting."""
    kinds = {"alone": PALETTE[0], "left out": NEUTRAL}
    rows = [
        {"setting": setting, "arm": arm, "kind": kind, "seed": seed, "share_percent": share}
        for setting in SETTINGS for kind in kinds for arm in PARTS.values()
        for seed, share in enumerate(values.get((f"{setting}, {kind}", arm), ()))
    ]  # fmt: skip
    arms = list(PARTS.values())

    def draw(sheet, top):
        for axes, setting in zip(
            panels(sheet, top, 2, 3, head=0.30, foot=0.56, left=0.11, hspace=0.32, wspace=0.08), SETTINGS, strict=True
        ):
            for place, arm in enumerate(arms):
                for shift, (kind, color) in zip((-0.17, 0.17), kinds.items(), strict=True):
                    each = values.get((f"{setting}, {kind}", arm))
                    if each:
                        middle = float(np.mean(each))
                        axes.barh(place + shift, middle, height=0.32, color=color)
                        axes.plot([min(each), max(each)], [place + shift] * 2, color="#202020", linewidth=1)
            axes.set_yticks(range(len(arms)), arms)
            axes.set_ylim(len(arms) - 0.4, -0.6)
            axes.set_xlim(-12, 112)
            axes.set_title(
                f"{setting}: {np.mean(values[f'{setting}, difference', WHOLE]):.3f}",
                fontsize=9.5, loc="left", color="#202020", pad=7,
            )  # fmt: skip
            if setting in list(SETTINGS)[3:]:
                axes.set_xlabel("% of the whole difference")

    top = max(arms, key=lambda arm: np.mean(values.get(("every part, alone", arm), 0)))
    most = np.mean(values["every part, alone", top])
    small = (
        f"{size}, {TOKENS:,} tokens each; blue: only this part differs, gray: decrease if this part is equal; lines: "
        "smallest and largest of the seeds; number: mean |log p_rollout - log p_train|"
    )
    title = f"If every part differs, {top} alone makes {most:.0f} % of the difference"
    return Figure(title, "mismatch_shares", rows, draw, small, height=6.0, csv="mismatch_shares_figure")


def expect(words, setting, quantity, arm, low, high):
    """Return an expectation."""
    return Expectation(words, f"{setting}, {quantity}", arm, expected=(low, high))


ablation = Claims(
    name="mismatch_shares",
    question="Of a trainer-rollout difference, what is format, accumulator, attention, cache, norm, router, head?",
    published="mean differences of 0.0413 with a BF16 trainer and 0.0666 with an FP8 trainer, in steps of 0.125; BF16 "
    "logits make steps of 0.03125 that dominate narrow tolerances",
    source="radixark/miles 2722, AI-Hypercomputer/maxtext 5231",
    arms=tuple(ErrorArm(name) for name in (WHOLE, *PARTS.values())),
    values=shares,
    figure=figure,
    quick=ClaimSetting(2),
    full=ClaimSetting(6),
    expectations=(
        expect("FP8 operands cost a percent of probability", "FP8", "difference", WHOLE, 0.005, 0.02),
        expect("they are nearly all of it", "FP8", "alone", "operands", 85, 105),
        expect("the accumulator is none of it", "FP8", "left out", "accumulator", -4, 4),
        expect("nor is FP8 dispatch, since operands are FP8", "FP8", "left out", "transfers", -4, 6),
        expect("a cache adds half as much as operands", "FP8 and cache", "alone", "KV cache", 30, 70),
        expect("operands stay the largest part", "FP8 and cache", "alone", "operands", 70, 95),
        expect("an exact cache saves less than its size", "FP8 and cache", "left out", "KV cache", 4, 30),
        expect("parts add as independent errors", "FP8 and cache", "root of squares", WHOLE, 90, 112),
        expect("FP8 attention is the largest part", "every part", "alone", "attention", 45, 85),
        expect("operands are next", "every part", "alone", "operands", 30, 70),
        expect("then the cache", "every part", "alone", "KV cache", 15, 50),
        expect("a log-softmax in BF16 is like it", "every part", "alone", "log-softmax", 15, 55),
        expect("BF16 logits are less", "every part", "alone", "head", 10, 40),
        expect("norms hardly count", "every part", "alone", "norms", 2, 20),
        expect("nor does the router", "every part", "alone", "router", 1, 20),
        expect("the accumulator counts for nothing here", "every part", "left out", "accumulator", -3, 3),
        expect("eight parts add as independent errors", "every part", "root of squares", WHOLE, 85, 115),
        expect("four-bit experts are most of it", "FP8 trainer", "left out", "operands", 45, 90),
        expect("another accumulator flips FP8 roundings", "FP8 trainer", "alone", "accumulator", 5, 50),
        expect("a cache is less than experts", "FP8 trainer", "alone", "KV cache", 10, 60),
        expect("without FP8, the log-softmax is most", "BF16", "alone", "log-softmax", 60, 95),
        expect("and BF16 logits the second", "BF16", "alone", "head", 30, 75),
        expect("norms are visible", "BF16", "alone", "norms", 4, 35),
        expect("and the router", "BF16", "alone", "router", 2, 35),
        expect("attention in BF16 is small", "BF16", "alone", "attention", 1, 25),
        expect("logits of 20 make the difference of FP8", "BF16, logits of 20", "difference", WHOLE, 0.025, 0.06),
        expect("half is their rounding", "BF16, logits of 20", "alone", "head", 50, 88),
        expect("half that of the log-sum-exp", "BF16, logits of 20", "alone", "log-softmax", 60, 92),
        expect("and norms vanish", "BF16, logits of 20", "alone", "norms", 0, 10),
    ),
    notes="Model nano (3 blocks of width 128), 400 steps of BF16 on the Python standard library; each seed has its own "
    "weights and its own held-out text, and trainer and rollout have equal weights and tokens. Alone: only this part "
    "is the rollout's; left out: decrease if this part is the trainer's. Both are in % of the whole mean absolute "
    "difference of log-probabilities; shares alone do not add to 100, since independent errors add by squares. Some "
    "combinations do not exist: an FP8 tensor core takes no BF16 operands, and Hopper's none in E2M1. FP8: BF16 "
    "trainer, DeepSeek-V3's recipe in the rollout. Every part: also an FP8 cache, FlashAttention-3 in FP8, FP8 "
    "combine, vLLM's RMSNorm in 16 bits, a router in float32, and logits and log-softmax in BF16, against float32 and "
    "float64. FP8 trainer: te_block, and dsv4 with an FP8 cache. BF16: as every part, with attention in BF16 and "
    "without FP8. Depth, outliers and long contexts of large models are not in it, nor are other weights. Ranges were "
    "written before any run of the study, when single numbers of `lowprec expect` for one checkpoint were known. "
    "Cost: quick 2 minutes of a core, full 6.",
)  # fmt: skip
