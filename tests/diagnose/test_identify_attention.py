"""`identify_attention`: kernels, fields that differ, layouts, twins, and dumps that nothing explains."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lowprec as lp
from lowprec.attn.operands import quantize_operands
from lowprec.diagnose.identify import attention
from lowprec.diagnose.identify.attention_result import AttentionFit

Arrays = list[np.ndarray[Any, Any]]


def dump(kernel: Any, seed: int = 0, m: int = 5, n: int = 150, d: int = 16, heads: int = 2, **options: Any) -> Arrays:
    """Return operands [1, heads, tokens, D] with one key head, outputs and log-sum-exps."""
    rng, kernel = np.random.default_rng(seed), lp.attentions.get(kernel)
    shapes = (1, heads, m, d), (1, 1, n, d), (1, 1, n, d)
    q, k, v = (lp.round_to(rng.standard_normal(shape), kernel.operands) for shape in shapes)
    found = lp.attention(q, k, v, kernel=kernel, **options)
    return [q, k, v, found.out, found.lse]


def test_sageattention_is_found_with_the_scales_of_its_threads() -> None:
    q, k, v = np.random.default_rng(0).standard_normal((3, 1, 2, 40, 64))
    *operands, descale = quantize_operands(q, k[:, :1] + 3, v[:, :1], lp.attentions["sage2pp"])
    made = lp.attention(*operands, kernel="sage2pp", descale=descale)
    found = lp.identify_attention(*operands, made.out, made.lse, descale=descale)
    assert [fit.kernel.name for fit in found.explaining] == ["sage2pp"]
    assert [fit.kernel.name for fit in found.ranking[:2]] == ["sage2pp", "sage2"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fa3_bf16", "fa4_fp8", "sdpa_math"])
def test_the_kernel_of_the_catalogue_is_found(name: str) -> None:
    found = lp.identify_attention(*dump(name, m=12, d=64, causal=name == "fa4_fp8"))
    assert found.explaining[0].kernel is lp.attentions[name]
    assert found.sentence.startswith(f"{name} reproduces all 1536 outputs; 24 of 24 log-sum-exps are equal")
    assert found.options["causal"] == (name == "fa4_fp8")
    assert repr(name) in found.lines()[0]


def test_twins_are_named_and_heads_after_tokens_are_recognized() -> None:
    """With one tile and one split, both kernels of FlashAttention-2 are the same."""
    *arrays, lse = dump("flash2", n=60, d=64)
    found = lp.identify_attention(*(np.swapaxes(x, 1, 2) for x in arrays), lse)
    assert found.sentence.startswith("flash2 and flash2_splitkv fit equally and reproduce all 640 outputs")
    assert "axes are bmhd" in found.assumed


@pytest.mark.slow
def test_a_changed_field_is_found_and_written_as_python() -> None:
    kernel = lp.attentions["fa3_fp8"].with_(promote_every=2)
    arrays = dump(kernel, n=700, m=2, heads=1)
    found = lp.identify_attention(*arrays)
    assert found.explaining[0].kernel == kernel
    assert "lp.attentions['fa3_fp8'].with_(promote_every=2)" in found.lines()[0]
    replayed = eval(found.lines()[0], {"lp": lp, **dict(zip("qkv", arrays, strict=False))})
    assert np.array_equal(replayed.out, arrays[3])


@pytest.mark.slow
def test_outputs_within_the_documented_errors_are_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    """An output that is undecided may have other bits; one that is not may not."""
    monkeypatch.setattr(attention, "_derived", lambda _: iter(()))
    q, k, v, out, _ = dump("flash2", m=64, n=170)
    options: dict[str, Any] = {"kernel": "flash2", "causal": False}
    bounds = lp.attention(q, k, v, undecided=True, **options).undecided
    assert bounds is not None
    for of, explained in ((bounds, True), (~bounds, False)):
        place, other = tuple(np.argwhere(of)[0]), out.copy()
        bits = other.view(np.uint32)
        bits[place] += 1 << 16  # the next number of bfloat16
        found = lp.identify_attention(q, k, v, other, causal=False)
        fit = next(fit for fit in found.ranking if fit.kernel is lp.attentions["flash2"])
        assert (fit.differing, fit.wrong == 0) == (1, explained)


@pytest.mark.slow
def test_codes_are_numbers() -> None:
    q, k, v, out, lse = dump("fa3_fp8", n=40)
    codes = [lp.encode(x, "e4m3fn") for x in (q, k, v)]
    words = lp.encode(out, "bfloat16").view("V2")  # as np.load returns bfloat16
    assert lp.identify_attention(*codes, words, lse).ranking == lp.identify_attention(q, k, v, out, lse).ranking


@pytest.mark.slow
def test_what_nothing_explains_names_the_nearest_kernel() -> None:
    q, k, v, out, lse = dump("sdpa_math", m=12)
    out[0, 0, 3] *= np.float32(1.25)
    found = lp.identify_attention(q, k, v, out, lse)
    assert found.sentence.startswith("no kernel reproduces the 384 outputs; nearest is sdpa_math, which gives 368")
    assert not found.explaining


def test_a_kernel_of_the_first_key_head_only_is_the_nearest() -> None:
    rng = np.random.default_rng(0)
    q, k, v = (lp.round_to(rng.standard_normal((2, n, 16)), "e4m3fn") for n in (32, 300, 300))
    found = lp.attention(q, k, v, kernel="fa3_fp8")
    found.out[1] /= 2
    ranked = lp.identify_attention(q, k, v, found.out, causal=False)
    assert ranked.sentence == (
        "no kernel reproduces the 1024 outputs; nearest is fa3_fp8, which gives 512; it explains the first key head, "
        "not all heads"
    )
    assert any(0 < fit.wrong < 512 for fit in ranked.ranking[1:])


def test_kernels_compared_with_fewer_heads_rank_by_fractions() -> None:
    kernel = lp.attentions["fa3_fp8"]
    first, whole = (AttentionFit(kernel, n, 0, wrong, 0, wrong) for n, wrong in ((64, 20), (256, 40)))
    assert sorted([first, whole], key=attention._order) == [whole, first]


def test_sinks_are_in_the_attention_that_outputs_must_be_near() -> None:
    *arrays, lse = dump("vllm_fa3_fp8", sinks=[9.0, 8.0])
    found = lp.identify_attention(*arrays, lse, sinks=[9.0, 8.0])
    assert found.explaining[0].kernel is lp.attentions["vllm_fa3_fp8"]
    with pytest.raises(ValueError, match="o must be near the attention"):
        lp.identify_attention(*arrays, lse, sinks=[0.0, 0.0])


def test_all_sequences_must_be_near() -> None:
    arrays = [np.concatenate([x, x]) for x in dump("fa3_fp8", n=20)]
    arrays[3][1] *= -1
    with pytest.raises(ValueError, match="o must be near the attention"):
        lp.identify_attention(*arrays)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"o": np.ones((1, 2, 5, 16), np.float32)}, "o must be near the attention of q, k and v, got a relative"),
        (
            {"o": np.ones((1, 2, 5, 8), np.float32)},
            r"q, k, v and o must be \(B, H, M, D\), .*, got \(1, 2, 5, 16\)",
        ),
        ({"v": np.ones((3, 16), np.float32)}, "must have the same 2 to 4 axes"),
        ({"lse": np.ones(3, np.float32)}, r"lse must be of shape \(1, 2, 5\), got \(3,\)"),
        ({"lse": np.ones((1, 5, 2), np.float32)}, r"lse must be of shape \(1, 2, 5\), got \(1, 5, 2\)"),
        ({"seconds": -1}, "identify_attention: seconds must be a finite number >= 0, got -1"),
        ({"window": (1,)}, r"window must be two integers, left and right, got \(1,\)"),
        ({"splits": 0}, "splits must be an integer >= 1, got 0"),
        ({"o": np.full((1, 2, 5, 16), np.nan, np.float32)}, "o must be near .* a relative error of inf"),
        ({"descale": 0.5}, "descale must be three scales, .*, got 1"),
        ({"descale": np.array(0.5)}, "descale must be three scales, .*, got 1"),
        ({"layout": "mbhd"}, "layout must be 'bhmd' or 'bmhd', got 'mbhd'"),
        ({"softcap": -1}, "softcap must be a finite number > 0, got -1"),
    ],
)
def test_bad_dumps_are_refused(changes: dict[str, Any], message: str) -> None:
    arrays = dict(zip(("q", "k", "v", "o", "lse"), dump("fa3_bf16", n=20), strict=True))
    with pytest.raises(ValueError, match=message):
        lp.identify_attention(**{**arrays, **changes})
