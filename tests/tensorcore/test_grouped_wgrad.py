"""`grouped_wgrad`: one call for all experts against one `gemm` each."""

from dataclasses import replace

import numpy as np
import pytest
from floats import normal
from gemms import assert_same
from refusals import refusals

import lowprec as lp
from lowprec.tensorcore.grouped import group_offsets, grouped_wgrad

COUNTS = [130, 0, 1, 128, 77]
# machine, granularity, quantizer options
KINDS = {
    "hopper_fp8": "e4m3fn 1x128",
    "blackwell_mxf8": "e5m2 1x32 ue8m0",
    "blackwell_mxf4_16": "e2m1fn 1x16 ue8m0",
}


def operands(machine: str, align: int, gap: float = 0.0) -> tuple[lp.Quantized, lp.Quantized, list[np.ndarray]]:
    """Tokens laid out by expert, and each expert's own [tokens, N] and [tokens, M]."""
    spec = KINDS[machine]
    rng = np.random.default_rng(5)
    starts, total = group_offsets(COUNTS, align), int(group_offsets(COUNTS, align)[-1])
    dy, x = (np.full((rows, total), gap, np.float32) for rows in (20, 36))
    parts = []
    for start, count in zip(starts, COUNTS, strict=False):
        values = [rng.standard_normal((len(side), count)).astype(np.float32) for side in (dy, x)]
        dy[:, start : start + count], x[:, start : start + count] = values
        parts.append([lp.quantize(v, spec) for v in values])
    return *(lp.quantize(side, spec) for side in (dy, x)), parts


@pytest.mark.parametrize("machine", KINDS)
@pytest.mark.parametrize("align", [128, 256])
def test_every_expert_has_its_own_product(machine: str, align: int) -> None:
    dy, x, parts = operands(machine, align)
    c = normal(6, 5, 20, 36)
    for addend in (None, c):
        got = grouped_wgrad(dy, x, COUNTS, c=addend, align=align, accumulator=machine)
        each = [
            lp.gemm(*pair, None if addend is None else addend[e], accumulator=machine) for e, pair in enumerate(parts)
        ]
        assert_same(got, np.stack(each))
    assert np.array_equal(got[1], c[1])


def test_what_lies_between_runs_is_not_read() -> None:
    dy, x, _ = operands("hopper_fp8", 128)
    want = grouped_wgrad(dy, x, COUNTS)
    for q in (dy, x):
        outside = np.ones(q.shape[1], bool)
        for start, count in zip(group_offsets(COUNTS), COUNTS, strict=False):
            outside[start : start + count] = False
        assert outside.any()
        q.codes[:, outside] = 0x7F
    assert_same(grouped_wgrad(dy, x, COUNTS), want)
    assert grouped_wgrad(dy, x, np.zeros(0, int)).shape == (0, 20, 36)


def names():
    dy, x, _ = operands("hopper_fp8", 128)
    short = replace(x, codes=x.codes[:, :-1])
    return {"dy": dy, "x": x, "short": short, "counts": COUNTS, "wgrad": grouped_wgrad, "group_offsets": group_offsets}


test_refused = refusals([
    ("wgrad(dy, x, [10_000])", "grouped_wgrad: runs must end within K=640, got 10000 with align=128"),
    ("wgrad(dy, x, [5, 5], align=32)", "grouped_wgrad: runs must begin at dy's blocks of 128, got align=32"),
    ("wgrad(dy, x, counts, c=np.zeros((1, 2)))", r"grouped_wgrad: c must have shape \(5, 20, 36\), got \(1, 2\)"),
    ("wgrad(dy, x, [1.5])", r"group_offsets: counts must be integers >= 0, one per expert, got array\(\[1.5\]\)"),
    ("group_offsets([1], align=0)", "group_offsets: align must be an integer >= 1, got 0"),
    ("wgrad(dy, short, counts)", r"dy and x must be matrices \[N, K\] and \[M, K\], got shapes \(20, 640\) and"),
], names)  # fmt: skip
