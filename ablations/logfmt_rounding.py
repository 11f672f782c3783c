"""Whether LogFMT must round in linear space, and its accuracy compared with FP8 of the same size."""

import numpy as np

import lowprec as lp
from lowprec.measure import metrics
from lowprec.study import Claims, ErrorArm, Expectation, sources

CODECS = ("fp8_1x128", "e5m2_1x128", "logfmt8", "logfmt10", "bf16")
ROUNDINGS = ("linear", "log", "logmean")


def bias_and_noise(seeds: int) -> dict[tuple[str, str], float]:
    """Bias of the magnitude of 6-bit LogFMT, and noise of codecs, on normal tiles."""
    draws = [np.random.default_rng(seed).standard_normal((512, 1024), dtype=np.float32) for seed in range(seeds)]
    found = {}
    for rounding in ROUNDINGS:
        decoded = [lp.logfmt.encode(x, 6, 128, rounding=rounding).decode() for x in draws]
        pairs = list(zip(decoded, draws, strict=True))
        found["bias", rounding] = float(np.mean([abs(metrics.magnitude_bias(z, x)) for z, x in pairs]))
        found["noise", rounding] = float(np.mean([10 ** (-lp.sqnr(z, x) / 20) for z, x in pairs]))
    for name in CODECS:
        codec = lp.codecs[name]
        found["noise", name] = float(np.mean([10 ** (-lp.sqnr(codec.round_trip(x), x) / 20) for x in draws]))
    return found


ablation = Claims(
    name="logfmt_rounding",
    question="Does LogFMT have to round in linear space, and is it better than FP8 with as many bits?",
    published="rounding must be in linear space to be unbiased; LogFMT-8 is better than E4M3 and E5M2, LogFMT-10 like "
    "a BF16 combine",
    source=f"{sources.ISCA}, section 3.2",
    arms=tuple(ErrorArm(name) for name in (*ROUNDINGS, *CODECS)),
    values=bias_and_noise,
    expectations=(
        Expectation("linear rounding has the least noise", "noise", "linear", "log",
                    expected=(0.9, 1.0), published=(0.0, 1.0)),
        Expectation("but it is not without bias: values shrink, as s^2/12 against s^2/24 of the logarithm says", "bias",
                    "linear", "log", expected=(1.2, 2.5), published=(0.0, 1.0)),
        Expectation("LogFMT-8 has less noise than E4M3", "noise", "logfmt8", "fp8_1x128",
                    expected=(0.4, 0.7), published=(0.0, 1.0)),
        Expectation("and than E5M2", "noise", "logfmt8", "e5m2_1x128", expected=(0.2, 0.4), published=(0.0, 1.0)),
        Expectation("LogFMT-10 is near BF16, not equal to it", "noise", "logfmt10", "bf16",
                    expected=(1.5, 3.0), published=(0.5, 1.5)),
    ),
    notes="Ranges were written with the error theory at hand (bias of -s^2/12 and +s^2/24 for steps s of the natural "
    "logarithm), so they are a check of it.",
)  # fmt: skip
