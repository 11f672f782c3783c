"""Quantizers as they are used: how vendors' differ, stochastic rounding, both directions, state, worked examples."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from tools import command

import lowprec as lp
from lowprec.scaling.hadamard import TE_SIGNS
from lowprec.scaling.rules import SPECIALS, scale_calculations

F32 = NDArray[np.float32]


def normal(shape: tuple[int, ...], seed: int = 0, brain: bool = False) -> F32:
    x = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return x.astype(ml_dtypes.bfloat16).astype(np.float32) if brain else x


# Shares of codes that differ from dsv3's on bfloat16 N(0, 1) in 8192 tiles: between these.
SHARES = {"dsv32_inference": (9e-4, 1.3e-3), "deepgemm": (4e-4, 7e-4), "te_block_fp32": (2.5e-4, 5e-4)}


@pytest.mark.parametrize("name", SHARES)
def test_quantizers_differ_on_bfloat16_by_the_known_shares_and_not_on_float32(name: str) -> None:
    x = normal((1024, 1024), brain=True)
    reference = lp.quantize(x, "dsv3_inference")
    other = lp.quantize(x, name)
    share = float((reference.codes != other.codes).mean())
    assert SHARES[name][0] < share < SHARES[name][1], share
    assert 0.3 < float((reference.scale != other.scale).mean()) < 0.6 or name == "deepgemm"
    y = normal((1024, 1024))
    assert (lp.quantize(y, "dsv3_inference").codes != lp.quantize(y, name).codes).mean() < 3e-6


def test_tilekernels_codes_and_scales_come_from_different_quotients() -> None:
    """Scales are DeepGEMM's, codes TransformerEngine's; with powers of two all is DeepGEMM's."""
    x = normal((256, 1024), brain=True)
    ours, gemm = (lp.quantize(x, name) for name in ("tilekernels", "deepgemm"))
    te = lp.quantize(x, "te_block_fp32")
    assert [np.array_equal(ours.scale, other.scale) for other in (gemm, te)] == [True, False]
    assert [np.array_equal(ours.codes, other.codes) for other in (gemm, te)] == [False, True]


def test_vendors_of_nvfp4_differ_as_known() -> None:
    x = normal((1024, 1024), brain=True)
    te, ao, mo = (lp.quantize(x, f"nvfp4_{vendor}") for vendor in ("te", "torchao", "modelopt"))
    assert (te.scale == ao.scale).all()
    assert (te.scale == mo.scale).all()
    assert 1e-4 < (te.codes != ao.codes).mean() < 5e-4
    assert 6e-4 < (te.codes != mo.codes).mean() < 1.5e-3
    error = [float(np.sqrt(np.mean((lp.quantize_dequantize(x, r) - x) ** 2))) for r in ("nvfp4", "nvfp4_4over6")]
    assert np.allclose(error, (0.0952, 0.0883), atol=2e-4)


@pytest.mark.parametrize("name", ["dsv3_inference", "mxfp8_rceil", "nvfp4_te", "mxint8", "te_current"])
def test_stochastic_rounding_is_unbiased_and_belongs_to_the_index(name: str, keep_threads: None) -> None:
    x, how = normal((64, 512), 3), {"spec": name, "rounding": "stochastic"}
    first = lp.quantize(x, seed=5, offset=(1 << 32) - 9000, **how)
    lp.set_num_threads(3)
    assert first == lp.quantize(x, seed=5, offset=(1 << 32) - 9000, **how)
    if name not in ("te_current", "nvfp4_te"):  # no scale of the tensor: the lower half on its own is the same
        half = lp.quantize(x[32:], seed=5, offset=(1 << 32) - 9000 + 32 * 512, **how)
        assert (half.codes == first.codes[32:]).all()
    assert (first.scale == lp.quantize(x, name).scale).all()
    mean = np.mean([lp.quantize_dequantize(x, seed=s, **how) for s in range(64)], 0)
    near = np.abs(lp.quantize_dequantize(x, name) - x).mean()
    assert np.abs(mean - x).mean() < 0.5 * near
    assert abs(float((mean - x).mean())) < 4 * float(near) / np.sqrt(64 * x.size)


BOTH = ("dsv3_inference", "mxfp8_rceil", "nvfp4_te", "nvfp4_te_rht", "te_current", "tilekernels")


@pytest.mark.parametrize("name", BOTH)
def test_both_directions(name: str) -> None:
    x = normal((96, 160), brain=True)
    rows, columns = lp.quantize_with_transpose(x, name)
    assert columns.quantizer == rows.quantizer
    assert rows == lp.quantize(x, name)
    turned = lp.quantize(np.ascontiguousarray(x.T), name)
    assert (columns.codes.tobytes(), columns.scale.tobytes()) == (turned.codes.tobytes(), turned.scale.tobytes())
    assert (columns.granularity, columns.tensor_scale) == (turned.granularity, turned.tensor_scale)


def test_requantized_is_quantized_from_the_values() -> None:
    q = lp.quantize(normal((200, 300)), "dsv3_inference_ue8m0")
    again = q.requantize("128x1")
    assert again == lp.quantize(q.dequantize(), "dsv3_inference_ue8m0 128x1")
    assert again.quantizer == lp.quantizers["dsv3_inference_ue8m0"].with_(granularity="128x1")


def test_arrays_are_used_again() -> None:
    x, y = normal((64, 256)), normal((64, 256), 1)
    q = lp.quantize(x, "mxfp4_floor")
    r = lp.quantize(y, "mxfp4_floor", out=q)
    assert r.codes is q.codes
    assert r == lp.quantize(y, "mxfp4_floor")


def test_hadamard_cancels_in_a_product_and_has_te_signs() -> None:
    x, w = normal((32, 64)), normal((16, 64), 1)
    assert np.allclose(lp.hadamard(x).astype(float) @ lp.hadamard(w).astype(float).T, x.astype(float) @ w.T, atol=1e-5)
    assert (np.sign(lp.hadamard(np.eye(16, dtype=np.float32))[:, 0]) == TE_SIGNS).all()
    assert np.allclose(lp.hadamard(lp.hadamard(x, 64, 9), 64, 9, inverse=True), x, atol=1e-6)
    turned = lp.hadamard(x)
    for fmt, y in (("bfloat16", lp.round_to(turned, "bfloat16")), (None, turned)):
        q = lp.quantize(x, lp.quantizers["nvfp4_te_rht"].with_(transform_format=fmt))
        assert (q.codes == lp.quantize(y, "nvfp4_te").codes).all()


def after(state: lp.DelayedScaling, amaxes: list[float]) -> list[float]:
    """Return the scales of matrices with these largest magnitudes, one a step."""
    scales = []
    for amax in amaxes:
        scales.append(state.quantize(np.array([[amax / 2, -amax]], np.float32)).scale.item())
        state.end_step()
    return scales


def test_delayed_scaling_follows_its_history() -> None:
    state, other = (
        lp.DelayedScaling(lp.quantizers["te_delayed"].with_(amax_history_len=3), margin=1) for _ in range(2)
    )
    f = [float(np.float32(1) / np.float32(np.float32(224) / np.float32(a))) for a in (4.0, 2.0)]
    # The step with Inf changes nothing for three steps.
    assert after(state, [4.0, 1.0, 2.0, 0.5, np.inf, 0.5, 0.5]) == [1.0, f[0], f[0], f[0], f[1], f[1], f[1]]
    other.load_state_dict(state.state_dict())
    assert other.quantize(normal((4, 4))) == state.quantize(normal((4, 4)))
    recent = lp.DelayedScaling(algorithm="most_recent")
    after(recent, [4.0, 1.0])
    assert recent.multiplier == 448


def test_the_catalogue_is_whole() -> None:
    """Every arithmetic and every special result is used by some entry, and every entry says where it is from."""
    entries = [lp.quantizers[name] for name in lp.quantizers]
    stored = {q.scale_format for q in entries}
    assert {(q.scale_format, q.rule.scale_calculation) for q in entries} == {
        (s, a) for s in stored for a in scale_calculations(s)
    }
    assert {case for q in entries for case in (q.rule.zero_block, q.rule.inf_block, q.rule.nan_block)} == {
        "rule",
        *SPECIALS,
    }
    assert all(q.source and q.source != "user-defined" for q in entries)
    assert [q.name for q in entries] == lp.quantizers.names()


@pytest.mark.slow
def test_the_command_line_finds_the_quantizer(tmp_path: Path) -> None:
    source, codes = tmp_path / "x.npy", tmp_path / "q.npz"
    np.save(source, normal((64, 512), brain=True))
    command("quantize", source, "deepgemm", "--out", codes)
    lines = command("check", codes, "--values", source, "--csv").splitlines()
    assert lines[1].startswith("deepgemm,0,0.0,0,0.0")
    assert lines[2].split(",")[0] in ("tilekernels", "dsv3_inference", "te_block_fp32", "dsv32_inference")
    differing = command("check", codes, "--values", source, "--quantizer", "dsv3_inference", code=1)
    assert "First codes that differ" in differing
    lp.quantize(np.load(source), "nvfp4_te").save(codes)
    assert command("check", codes, "--values", source, "--csv").splitlines()[1].startswith("nvfp4_te,0,")
    wrong = command("check", source, "--values", source, code=2)
    assert "x.npy: not an .npz with the arrays codes and scale" in wrong


TIES = [0.25, 0.75, -0.75, 1.75, 2.5, 3.5, 5, 6]
#: Name, how it is rounded, the first values of a row, their scale and codes.
FP4 = [
    ("dsv4_fp4", None, TIES, 1, "02a44667"), ("dsv4_fp4", None, [1.25 * v for v in TIES], 2, "01923456"),
    ("deepgemm_fp4", None, TIES, 1, "01934567"), ("deepgemm_fp4", None, [1.25 * v for v in TIES], 2, "01923456"),
    ("deepgemm_fp4", "nearest_even", [0.75, 6], 1, "27"), ("dsv41_kv_fp4", None, [], 2.0**-9, "0"),
    ("dsv41_kv_fp4", None, [1, 2, 3, -4, 0.5, 0.1, 6.2, 7], 1.125, "245e1077"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "rounding", "first", "scale", "codes"), FP4)
def test_fp4_by_hand(name: str, rounding: str | None, first: list[float], scale: float, codes: str) -> None:
    """Ties to even in the one, toward zero and without -0 in the other; a call's rounding goes before its own."""
    x = np.zeros((1, 16 if "kv" in name else 32), np.float32)
    x[0, : len(first)] = first
    q = lp.quantize(x, name, rounding=rounding)
    assert (q.scale.item(), "".join(f"{code:x}" for code in q.codes[0, : len(codes)])) == (scale, codes)


def test_deepseeks_fp4_and_deepgemms() -> None:
    """They differ in 61,173 of 2^20 bfloat16 codes."""
    x = lp.round_to(normal((1024, 1024)), "bfloat16")
    theirs, own, mx = (lp.quantize(x, name) for name in ("deepgemm_fp4", "dsv4_fp4", "mxfp4_rceil"))
    assert np.array_equal(own.codes, mx.codes)
    assert np.array_equal(own.scale, mx.scale)
    assert np.array_equal(own.scale, theirs.scale)
    assert np.count_nonzero(own.codes != theirs.codes) == 61_173
    assert np.count_nonzero(np.where(own.codes == 8, 0, own.codes) != theirs.codes) == 5_043
    assert not np.any(theirs.codes == 8)
