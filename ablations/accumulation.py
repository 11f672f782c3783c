"""Error of a GEMM caused by a tensor core's short accumulator, and reproduction of published figures."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import lowprec as lp
from lowprec.study import Claim, GemmArm, Measured, Operands, TensorSetting, TensorStudy
from lowprec.study.tensors.gemms import Errors, error_of, exact_product, quantized

DEEPSEEK = "DeepSeek-V3 technical report (arXiv:2412.19437), section 3.3.2"
B200 = "blackwell_fp8"


def normal(rng: np.random.Generator, shape: tuple[int, int]) -> NDArray[np.float32]:
    """Draw from the standard normal distribution."""
    return rng.standard_normal(shape, dtype=np.float32)


def positive(rng: np.random.Generator, shape: tuple[int, int]) -> NDArray[np.float32]:
    """Draw uniformly from 0 to 1."""
    return rng.random(shape, dtype=np.float32)


# --- published figures -----------------------------------------------------------------------------------------------


def k_4096(promote_every: int | None) -> list[float]:
    """Largest error over the mean magnitude of 256 x 256 outputs, for eight seeds."""
    errors = []
    for seed in range(8):
        rng = np.random.default_rng([4096, seed])
        a, b = (lp.encode(normal(rng, (256, 4096)), "e4m3fn") for _ in range(2))
        d = lp.gemm(quantized(a, "e4m3fn"), quantized(b, "e4m3fn"), promote_every=promote_every)
        errors.append(error_of(d, exact_product(a, b, "e4m3fn"))[0])
    return errors


def limited() -> Measured:
    """Measure without promotion."""
    errors = k_4096(None)
    mean = float(np.mean(errors))
    return Measured(
        f"{100 * mean:.1f} % ({100 * min(errors):.1f} to {100 * max(errors):.1f} %)", mean, 0.015 < mean < 0.025
    )


def promoted() -> Measured:
    """Measure with promotion every 128."""
    errors = k_4096(128)
    mean = float(np.mean(errors))
    words = f"{100 * mean:.3f} % ({100 * min(errors):.3f} to {100 * max(errors):.3f} %)"
    return Measured(words, mean, max(errors) < 0.001)


def qmma() -> Measured:
    """Mean squared error of 400 products of 128 x 128 x 128, in groups of 16 (Ada) and of 32 (Hopper)."""
    squares: dict[str, list[float]] = {"ada_fp8": [], "hopper_fp8": []}
    for seed in range(400):
        rng = np.random.default_rng([128, seed])
        a, b = (lp.encode(normal(rng, (128, 128)), "e5m2") for _ in range(2))
        exact = exact_product(a, b, "e5m2")
        for machine, found in squares.items():
            d = lp.mma(a, b, accumulator=machine, a_format="e5m2", b_format="e5m2")
            found.append(float(np.mean((d - exact) ** 2)))
    ada, hopper = (float(np.mean(found)) for found in squares.values())
    spread = float(np.std(squares["ada_fp8"], ddof=1))  # of one product; the published mean is one of 100
    words = f"{ada * 1e6:.4f}e-6 ± {spread / 20 * 1e6:.4f}e-6 (groups of 32: {hopper * 1e6:.3f}e-6)"
    return Measured(words, ada, abs(ada - 1.0270e-6) < 1.96 * spread * (1 / 100 + 1 / 400) ** 0.5)


def generations() -> Measured:
    """Share of bfloat16 outputs that differ between groups of 32 and of 16."""
    rng = np.random.default_rng(0)
    a, b = (lp.encode(40 * rng.standard_normal((n, 1920)).astype(np.float32), "e4m3fn") for n in (64, 5760))
    hopper, ada = (lp.encode(lp.mma(a, b, accumulator=m), "bfloat16") for m in ("hopper_fp8", "ada_fp8"))
    share = float(np.mean(hopper != ada))
    return Measured(f"{100 * share:.2f} %", share, abs(share - 0.08) < 0.005)


def cleared() -> Measured:
    """C alone, and sums: how many of the results have one of the low ten bits."""
    rng = np.random.default_rng(22)
    c = (
        rng.integers(0, 0x7F80_0000, (256, 256), dtype=np.uint32)
        | rng.integers(0, 2, (256, 256), dtype=np.uint32) << 31
    )
    nothing = np.zeros((256, 32), np.uint8)
    alone = lp.mma(nothing, nothing, c.view(np.float32)).view(np.uint32)
    kept = np.where(c << 1 >= 0x800, c & 0xFFFF_FC00, 0)  # a zero has no sign
    a, b = (lp.encode(normal(rng, (256, 512)), "e4m3fn") for _ in range(2))
    low = int(np.count_nonzero(lp.mma(a, b).view(np.uint32) & 0x3FF)) + int(np.count_nonzero(alone != kept))
    return Measured(f"{low} of {2 * c.size} results keep any", float(low), low == 0)


def fraction_bits(machine: str | lp.Accumulator) -> int:
    """Largest n for which 2^n + 1 - 2^n gives 1."""
    ones = [n for n in range(1, 31) if _survives(machine, n)]
    return max(ones, default=0)


def _survives(machine: str | lp.Accumulator, n: int) -> bool:
    # 2^n = 2^(n - low) * 2^low, with both factors e5m2; the 1 is 1 * 1.
    high, low = 2.0 ** (n - n // 2), 2.0 ** (n // 2)
    a, b = (lp.encode(np.array([row]), "e5m2") for row in ([high, 1.0, -high], [low, 1.0, low]))
    return bool(lp.mma(a, b, accumulator=machine, a_format="e5m2", b_format="e5m2")[0, 0] == 1.0)


def blackwell() -> Measured:
    """Fraction bits of three machines, measured by adding 1 to 2^n - 2^n."""
    found = {"B200": fraction_bits(B200), "Hopper": fraction_bits("hopper_fp8"), "Ada": fraction_bits("ada_fp8")}
    words = ", ".join(f"{name} {bits}" for name, bits in found.items())
    return Measured(words, float(found["B200"]), list(found.values()) == [25, 13, 13])


def discrepancy() -> Measured:
    """One dot product that distinguishes the generations; its exact value is -0.875."""
    a, b = (lp.encode(np.array([row]), "e5m2") for row in ([-(2.0**13), -0.5, -0.25, -0.125], [2.0**10, 1, 1, 1]))
    c = np.array([[2.0**23]], np.float32)
    found = [
        float(lp.mma(a, b, c, accumulator=machine, a_format="e5m2", b_format="e5m2")[0, 0])
        for machine in ("hopper_fp8", "ada_fp8", B200, "exact")
    ]
    words = "Hopper {}, Ada {}, B200 {}, exact {}".format(*found)
    return Measured(words, found[0], found == [0.0, 0.0, -0.75, -0.875])


def title(errors: Errors) -> str:
    """Return a title with the finding."""
    k = errors.setting.lengths[-1]
    data = errors.study.data[0].name
    without, with_ = (errors.of(data, arm, k).mean() for arm in ("fp22", "fp22_128"))
    worst = errors.of(errors.study.data[1].name, "fp22", k).mean()
    return (
        f"14-bit sums are off by {100 * without:.0f} % at K = {k} ({100 * worst:.0f} % of positive data); "
        f"promotion every 128 keeps {100 * with_:.2f} %"
    )


ablation = TensorStudy(
    name="accumulation",
    question="How far off are FP8 sums in a 14-bit accumulator, and what does promotion to FP32 buy?",
    expected="About 2 % at K = 4096 without promotion, below 0.1 % with it; positive data are worse, since "
    "truncation is always toward zero; 25 bits need no promotion.",
    source=DEEPSEEK,
    arms=(
        GemmArm("fp22", "FP22 (Hopper)", "hopper_fp8", role="control"),
        GemmArm("fp22_128", "FP22, every 128", "hopper_fp8", promote_every=128),
        GemmArm("bits25", "25 bits (B200)", B200),
        GemmArm("fp32", "FP32", "float32"),
        GemmArm("exact", "exact, rounded", "exact", role="reference"),
    ),
    data=(
        Operands("zero-mean", "zero-mean data: normal, e4m3", normal),
        Operands("positive", "positive data: uniform from 0 to 1, e4m3", positive),
    ),
    quick=TensorSetting(rows=64, seeds=3, lengths=(128, 512, 2048, 4096, 16384)),
    full=TensorSetting(rows=128, seeds=5, lengths=(128, 256, 512, 1024, 2048, 4096, 8192, 16384)),
    claims=(
        Claim("K = 4096, sums kept in the tensor core: largest error", DEEPSEEK, "nearly 2 %", limited),
        Claim("K = 4096, promoted to FP32 every 128: largest error", DEEPSEEK, "much better; no figure", promoted),
        Claim("RTX 4090, e5m2 128x128x128: mean squared error of 100 products",
              "MMA-Sim, compare_qmma_vs_hmma", "1.0270e-6", qmma),
        Claim("e4m3 64x5760x1920: bf16 outputs that differ, H100 and RTX 4060", "mmaemu, README", "about 8 %",
              generations),
        Claim("results with one of the low ten bits of a float32", "SageAttention2 (arXiv:2411.10958)", "none",
              cleared),
        Claim("fraction bits of FP8 sums on B200", "DeepGEMM, issue 176", "25", blackwell),
        Claim("2^23 - 2^23 - 0.5 - 0.25 - 0.125, in e5m2", "MMA-Sim (arXiv:2511.10909)",
              "Hopper 0.0, Ada 0.0, B200 -0.75", discrepancy),
    ),
    title=title,
    marks=(("zero-mean", 4096, 0.02, "DeepSeek-V3:\nnearly 2 %"),),
)  # fmt: skip
