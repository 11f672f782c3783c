"""FlashAttention's, FlashInfer's and FlashMLA's own kernels on an H200 have lowprec's bits."""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import lowprec as lp
from lowprec.special.exp2 import RoundedExp2
from lowprec.special.reciprocal import RoundedReciprocal

FOLDER = Path(__file__).parents[2] / "reference_data" / "capture"
sys.path.insert(0, str(FOLDER))
recorded = importlib.import_module("attention_cases")
sys.path.remove(str(FOLDER))

DIGESTS = json.loads((FOLDER / "h200_attention.json").read_text())["cases"]
CASES = [*(case for kernel in recorded.KERNELS for case in recorded.cases(kernel)), *recorded.FLASHINFER]


def attend(case: Any, kernel: Any) -> tuple[Any, Any]:
    """Return the words of the output [B, M, H, D] and of the log-sum-exp [B, H, M]."""
    *codes, scales = case.operands()
    dtype = ml_dtypes.float8_e4m3fn if case.kernel.is_fp8 else ml_dtypes.bfloat16
    q, k, v = (x.view(dtype).astype(np.float32).transpose(0, 2, 1, 3) for x in codes)
    found = lp.attention(
        q, k, v, kernel=kernel, causal=case.kernel.causal, scale=case.scale, splits=case.splits,
        descale=tuple(scales) if case.kernel.is_fp8 else None, out_format=case.kernel.out_format,
    )  # fmt: skip
    out = np.ascontiguousarray(found.out.transpose(0, 2, 1, 3))
    return lp.encode(out, case.kernel.out_format).astype(np.uint16), found.lse.view(np.uint32)


@pytest.mark.sampled(2, default=16)
@pytest.mark.parametrize("case", CASES, ids=[case.key for case in CASES])
def test_a_kernel_has_the_bits_of_the_gpu(case: Any) -> None:
    digests = DIGESTS[case.key]
    assert recorded.digest_of(*case.operands()) == digests["operands"]
    out, lse = attend(case, lp.attentions[case.kernel.entry])
    assert (recorded.digest_of(out), recorded.digest_of(lse)) == (digests["out"], digests["lse"])


@pytest.mark.sampled(1, default=3)
@pytest.mark.parametrize("kernel", recorded.KERNELS, ids=[kernel.name for kernel in recorded.KERNELS])
def test_correctly_rounded_functions_have_other_bits(kernel: Any) -> None:
    """The substitutes on GPUs without recordings differ in outputs or log-sum-exps."""
    case = next(case for case in recorded.cases(kernel) if case.keys == 300)
    out, lse = attend(case, lp.attentions[kernel.entry].with_(exp2=RoundedExp2(), reciprocal=RoundedReciprocal()))
    digests = DIGESTS[case.key]
    assert (recorded.digest_of(out), recorded.digest_of(lse)) != (digests["out"], digests["lse"])


@pytest.mark.slow
@pytest.mark.sampled(0, default=1)
@pytest.mark.parametrize("case", recorded.FLASHMLA, ids=[case.key for case in recorded.FLASHMLA])
def test_decoding_has_the_bits_of_the_gpu(case: Any) -> None:
    out, lse = [], []
    for q, k, valid in case.operands():
        q, k = (x.view(ml_dtypes.bfloat16).astype(np.float32) for x in (q, k))
        options: dict[str, Any] = (
            {"kernel": "flashmla_fp8", "mask": valid} if case.nope else {"kernel": "flashmla_dense"}
        )
        found = lp.attention(
            q.transpose(1, 0, 2), k[None], k[None, :, :512], causal=case.causal, scale=case.scale, **options
        )
        out.append(lp.encode(found.out.transpose(1, 0, 2)[:, :: case.step], "bfloat16").astype(np.uint16))
        lse.append(found.lse.T[:, :: case.step].copy().view(np.uint32))
    digests = DIGESTS[case.key]
    assert recorded.digest_of(*(x for operands in case.operands() for x in operands)) == digests["operands"]
    assert (recorded.digest_of(np.array(out)), recorded.digest_of(np.array(lse))) == (digests["out"], digests["lse"])
