"""Error of gradients summed over 8 to 16,384 ranks, by algorithm and by format of a hop."""

import math

import ml_dtypes
import numpy as np

import lowprec as lp
from lowprec.plot.style import NEUTRAL, PALETTE
from lowprec.study import Claims, ClaimSetting, ErrorArm, Expectation
from lowprec.study.report.sheet import Figure, label_ends, panels

ELEMENTS, RANKS, MOST = 512, (8, 32, 96, 384, 2048, 16384), 16384
#: Deviation of the part of the gradients that is equal on all ranks; that of each rank's own part is 1.
DATA = {"noise": 0.0, "signal": 0.1}
BF16, FP16, FP8 = ml_dtypes.bfloat16, np.float16, ml_dtypes.float8_e4m3fn
#: Algorithm, format of a hop, and color of each arm.
ARMS = {
    "BF16 ring": ("nccl_ring", BF16, PALETTE[0]),
    "BF16 double tree": ("nccl_tree", BF16, PALETTE[1]),
    "BF16 doubling": ("openmpi_recursive_doubling", BF16, PALETTE[2]),
    "BF16 Rabenseifner": ("openmpi_rabenseifner", BF16, PALETTE[2]),
    "BF16 NVLS": ("nccl_nvls", BF16, PALETTE[3]),
    "BF16 one-shot": ("one_shot", BF16, PALETTE[3]),
    "FP16 ring": ("nccl_ring", FP16, PALETTE[0]),
    "FP16 double tree": ("nccl_tree", FP16, PALETTE[1]),
    "FP16 NVLS": ("nccl_nvls", FP16, PALETTE[3]),
    "FP8 ring": ("nccl_ring", FP8, PALETTE[0]),
    "FP8 double tree": ("nccl_tree", FP8, PALETTE[1]),
    "FP8 NVLS": ("nccl_nvls", FP8, PALETTE[3]),
    "float32 ring": ("nccl_ring", np.float32, NEUTRAL),
}  # fmt: skip
DASHES = {"BF16": "-", "FP16": (0, (5, 1.5)), "FP8": (0, (1, 1)), "float32": "-"}
SHOWN = [name for name in ARMS if name not in ("BF16 Rabenseifner", "BF16 one-shot")]  # the others have their lines


def metric(data: str, ranks: int) -> str:
    """Return the name of the error of a kind of gradients at a number of ranks."""
    return f"{data}, {ranks} ranks"


def errors(seeds: int) -> dict[tuple[str, str], list[float]]:
    """Error of the sum relative to the exact one in percent, and the exponent of its growth from 96 ranks on."""
    found: dict[tuple[str, str], list[float]] = {}
    for seed in range(seeds):
        for data, deviation in DATA.items():
            rng = np.random.default_rng([seed, round(10 * deviation)])
            equal = np.float32(deviation) * rng.standard_normal(ELEMENTS, dtype=np.float32)
            gradients = rng.standard_normal((MOST, ELEMENTS), dtype=np.float32) + equal
            for ranks in RANKS:
                shards = gradients[:ranks]
                exact = shards.sum(axis=0, dtype=np.float64)
                for arm, (algorithm, dtype, _) in ARMS.items():
                    out = lp.collectives[algorithm].all_reduce(shards.astype(dtype)).astype(np.float64)
                    error = 100 * float(np.linalg.norm(out - exact) / np.linalg.norm(exact))
                    found.setdefault((metric(data, ranks), arm), []).append(error)
    for data in DATA:
        for arm in ARMS:
            ends = zip(found[metric(data, 96), arm], found[metric(data, MOST), arm], strict=True)
            found[f"growth, {data}", arm] = [math.log(last / first) / math.log(MOST / 96) for first, last in ends]
    return found


def figure(values, size):
    """Return the figure of error against ranks: one panel for each kind of gradients."""
    rows = [
        {"data": data, "arm": arm, "ranks": ranks, "seed": seed, "error_percent": error}
        for data in DATA for arm in ARMS for ranks in RANKS
        for seed, error in enumerate(values[metric(data, ranks), arm])
    ]  # fmt: skip
    ring, once = (np.mean(values[metric("signal", MOST), arm]) for arm in ("BF16 ring", "BF16 NVLS"))

    def draw(sheet, top):
        found = panels(sheet, top, 1, 2, head=0.30, foot=0.56, right=0.84, wspace=0.1)
        for axes, (data, deviation) in zip(found, DATA.items(), strict=True):
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            ends = []
            for arm in SHOWN:
                color, line = ARMS[arm][2], DASHES[arm.split()[0]]
                each = np.array([values[metric(data, ranks), arm] for ranks in RANKS])
                axes.fill_between(RANKS, each.min(1), each.max(1), color=color, alpha=0.16, linewidth=0)
                axes.plot(RANKS, each.mean(1), color=color, linestyle=line, linewidth=1.8)
                ends.append((float(each[-1].mean()), arm, color))
            axes.set_xticks(RANKS, [f"{ranks:,}" for ranks in RANKS])
            axes.minorticks_off()
            axes.set_xlabel("ranks")
            title = f"a part of deviation {deviation:g} is equal on all ranks" if deviation else "independent gradients"
            axes.set_title(title, fontsize=9.5, loc="left", color="#202020", pad=7)
        found[0].set_ylabel("error of the sum (%)")
        label_ends(found[-1], ends)

    small = (
        f"{size}, {ELEMENTS} elements, deviation 1 on each rank; lines: mean over seeds, bands: smallest and largest; "
        "Rabenseifner's line is that of doubling, one-shot's that of NVLS"
    )
    title = f"With a common part, a BF16 ring over {MOST:,} ranks is off by {ring:.0f} %, NVLS by {once:.2f} %"
    return Figure(title, "reduction_ranks", rows, draw, small, csv="reduction_ranks_figure")


def expect(words, of, arm, low, high, over="", published=None):
    """Return an expectation."""
    return Expectation(words, of, arm, over, expected=(low, high), published=published)


ablation = Claims(
    name="reduction_ranks",
    question="How far off are gradients summed over 8 to 16,384 ranks, by algorithm and format of a hop?",
    published="the error of a BF16 ring grows with the root of the ranks, and a one-shot sum in float32 has none of "
    "that; a 7B model trained with BF16 reductions on 96 GPUs, but not on 384",
    source="NVIDIA/Megatron-LM 6199, NVIDIA/nccl 1026, ByteDance-Seed/VeOmni 1167, pytorch/pytorch 106395",
    arms=tuple(ErrorArm(name) for name in ARMS),
    values=errors,
    figure=figure,
    quick=ClaimSetting(2),
    full=ClaimSetting(8),
    expectations=(
        expect("a BF16 ring grows with the root of its ranks", "growth, noise", "BF16 ring", 0.45, 0.55,
               published=(0.45, 0.55)),
        expect("with a common part it grows faster", "growth, signal", "BF16 ring", 0.6, 0.85),
        expect("a one-shot sum does not grow", "growth, noise", "BF16 one-shot", -0.02, 0.02, published=(-0.02, 0.02)),
        expect("nor with a common part", "growth, signal", "BF16 one-shot", -0.02, 0.02, published=(-0.02, 0.02)),
        expect("a double tree hardly grows", "growth, noise", "BF16 double tree", 0.02, 0.15),
        expect("a BF16 ring costs 1 % at 96 ranks", metric("noise", 96), "BF16 ring", 1.0, 1.35),
        expect("and twice that at 384", metric("noise", 384), "BF16 ring", 2.0, 2.6),
        expect("and 15 % at 16,384", metric("noise", MOST), "BF16 ring", 12.0, 18.0),
        expect("a common part stops being added", metric("signal", MOST), "BF16 ring", 30.0, 65.0),
        expect("a double tree costs the root of 1.5 times its levels", metric("noise", MOST), "BF16 double tree",
               0.65, 0.95),
        expect("recursive doubling that of its levels", metric("noise", MOST), "BF16 doubling", 0.55, 0.72),
        expect("Rabenseifner's order is the same", metric("noise", MOST), "BF16 Rabenseifner", 1.0, 1.0,
               over="BF16 doubling"),
        expect("also at 384", metric("signal", 384), "BF16 Rabenseifner", 1.0, 1.0, over="BF16 doubling"),
        expect("NVLS costs two roundings", metric("noise", MOST), "BF16 NVLS", 0.21, 0.26),
        expect("FP16 has an eighth", metric("noise", 384), "FP16 ring", 0.11, 0.14, over="BF16 ring"),
        expect("FP8 costs a third at 384 ranks", metric("noise", 384), "FP8 ring", 25.0, 60.0),
        expect("and nearly all at 16,384", metric("noise", MOST), "FP8 ring", 75.0, 110.0),
        expect("a double tree keeps most of FP8's sum", metric("noise", 384), "FP8 double tree", 7.0, 13.0),
        expect("NVLS keeps FP8's own error", metric("noise", 384), "FP8 NVLS", 3.2, 4.3),
        expect("a float32 ring is good to 6 digits", metric("noise", MOST), "float32 ring", 1.5e-4, 3.5e-4),
    ),
    notes="Gradients are normal with a deviation of 1 on each rank; signal adds a part of deviation 0.1 that is equal "
    "on all ranks, and is as large as the noise in the sum over 100 ranks. They are rounded to the format of a hop, "
    "and the sum is compared with that of the unrounded gradients in float64. FP8 is E4M3 without scales, added in "
    "float16. The orders are those of NCCL's and Open MPI's sources for one channel; NVLS stands for one switch, "
    "which no installation has for more than some hundred ranks, and one-shot rounds its float32 sum to BF16, which "
    "exchanges in BF16 with a float32 result do not. Real gradients have elements of very different sizes, and a "
    "training's stability is not measured. Ranges were written before any run. Cost: quick 30 seconds of a core, full "
    "2 minutes.",
)  # fmt: skip
