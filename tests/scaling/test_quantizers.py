"""Quantizers as they are used: how vendors' differ, rounding, both directions, state, files, bad input."""

import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

import lowprec as lp
from lowprec.scaling.hadamard import TE_SIGNS
from lowprec.scaling.quantizer import ARITHMETICS, SPECIALS

F32 = NDArray[np.float32]
STATELESS = [name for name in lp.quantizers if lp.quantizers[name].history is None]


def normal(shape: tuple[int, ...], seed: int = 0, brain: bool = False) -> F32:
    x = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return x.astype(ml_dtypes.bfloat16).astype(np.float32) if brain else x


# Shares of codes that differ from dsv3's on bfloat16 N(0, 1) in 8192 tiles: between these.
SHARES = {"dsv32_inference": (9e-4, 1.3e-3), "deepgemm": (4e-4, 7e-4), "te_block_fp32": (2.5e-4, 5e-4)}


@pytest.mark.parametrize("name", SHARES)
def test_quantizers_differ_on_bfloat16_by_the_known_shares_and_not_on_float32(name: str) -> None:
    x = normal((1024, 1024), brain=True)
    reference = lp.quantize(x, quantizer="dsv3_inference")
    other = lp.quantize(x, quantizer=name)
    share = float((reference.codes != other.codes).mean())
    assert SHARES[name][0] < share < SHARES[name][1], share
    assert 0.3 < float((reference.scale != other.scale).mean()) < 0.6 or name == "deepgemm"
    y = normal((1024, 1024))
    assert (lp.quantize(y, quantizer="dsv3_inference").codes != lp.quantize(y, quantizer=name).codes).mean() < 3e-6


def test_tilekernels_codes_and_scales_come_from_different_quotients() -> None:
    """Scales are DeepGEMM's, codes TransformerEngine's; with powers of two all is DeepGEMM's."""
    x = normal((256, 1024), brain=True)
    ours, gemm = (lp.quantize(x, quantizer=name) for name in ("tilekernels", "deepgemm"))
    te = lp.quantize(x, quantizer="te_block_fp32")
    assert np.array_equal(ours.scale, gemm.scale)
    assert np.array_equal(ours.codes, te.codes)
    assert (ours.scale != te.scale).any()
    assert (ours.codes != gemm.codes).any()
    assert np.array_equal(lp.quantize_dequantize(x, quantizer="tilekernels"), ours.dequantize())
    rows, columns = lp.quantize_both(x, quantizer="tilekernels")
    assert np.array_equal(rows.codes, ours.codes)
    assert np.array_equal(columns.codes, lp.quantize(np.ascontiguousarray(x.T), quantizer="tilekernels").codes)
    tiny = np.full((1, 128), 3e-5, np.float32)  # below the floor
    q = lp.quantize(tiny, quantizer="tilekernels")
    floor = np.float32(1e-4)
    assert q.scale.item() == floor / np.float32(448)
    assert q.codes[0, 0] == lp.encode(tiny[0, :1] * (np.float32(448) / floor), "e4m3fn").item()
    with pytest.raises(ValueError, match="goes with fp32 scales"):
        lp.Quantizer(division="max/amax", scale="ue8m0")


def test_vendors_of_nvfp4_differ_as_known() -> None:
    x = normal((1024, 1024), brain=True)
    te, ao, mo = (lp.quantize(x, quantizer=f"nvfp4_{vendor}") for vendor in ("te", "torchao", "modelopt"))
    assert (te.scale == ao.scale).all()
    assert (te.scale == mo.scale).all()
    assert 1e-4 < (te.codes != ao.codes).mean() < 5e-4
    assert 6e-4 < (te.codes != mo.codes).mean() < 1.5e-3
    spread = np.concatenate([np.full((1, 16), 0.03, np.float32), np.full((1, 16), 1000, np.float32)], 1)
    assert lp.quantize(spread, quantizer="nvfp4_te").scale[0, 0] == 0.013671875
    assert lp.quantize(spread, quantizer="nvfp4_torchao").scale[0, 0] == 0.015625
    error = [
        float(np.sqrt(np.mean((lp.quantize_dequantize(x, quantizer=r) - x) ** 2))) for r in ("nvfp4", "nvfp4_4over6")
    ]
    assert np.allclose(error, (0.0952, 0.0883), atol=2e-4)


def test_ocp_floor_saturates_and_round_up_does_not() -> None:
    x = np.zeros((1, 32), np.float32)
    x[0, 0] = 500.0
    values = {rule: lp.quantize_dequantize(x, quantizer=f"mxfp8_{rule}")[0, 0] for rule in ("floor", "rceil", "ceil")}
    assert values == {"floor": 448.0, "rceil": 512.0, "ceil": 512.0}


# What one value does to a block of ones: what the block decodes to, elsewhere and there.
@pytest.mark.parametrize("name", STATELESS)
def test_special_blocks_decode_as_stated(name: str) -> None:
    q = lp.quantizers[name]
    for value, case in ((np.nan, q.nan), (np.inf, q.inf)):
        x = np.ones((32, 256), np.float32)
        x[17, 200] = value
        y = lp.quantize_dequantize(x, None, "1x16" if q.granularity != "tensor" else None, quantizer=name)
        block = y[17, 192:208]
        if case == "nan":
            assert np.isnan(block).all(), (name, value)
        elif q.hadamard is None:
            assert np.isnan(block[8]) if np.isnan(value) else block[8] > 0
            assert not np.isnan(np.delete(block, 8)).any()
    zeros = np.zeros((16, 256), np.float32)
    minus = lp.quantize_dequantize(-zeros, quantizer=name)
    assert (minus == 0).all()
    if q.hadamard is None and q.format != "mxint8":
        assert np.signbit(minus).all() == (q.negative_zero == "keep"), name
    assert (lp.quantize_dequantize(zeros, quantizer=name) == 0).all()
    top = np.full((16, 256), np.finfo(np.float32).max, np.float32)
    if q.hadamard is None and q.arithmetic != "alone":  # one level reaches no further than 448 * 6
        assert (lp.quantize_dequantize(top, quantizer=name) > 1e38).all(), name


@pytest.mark.parametrize("name", ["dsv3_inference", "mxfp8_rceil", "nvfp4_te", "mxint8", "te_current"])
def test_stochastic_rounding_is_unbiased_and_belongs_to_the_index(name: str, keep_threads: None) -> None:
    x = normal((64, 512), 3)
    first = lp.quantize(x, quantizer=name, rounding="stochastic", seed=5, offset=(1 << 32) - 9000)
    lp.set_num_threads(3)
    again = lp.quantize(x, quantizer=name, rounding="stochastic", seed=5, offset=(1 << 32) - 9000)
    assert first.codes.tobytes() == again.codes.tobytes()
    if name != "te_current" and name != "nvfp4_te":  # no scale of the tensor: the lower half on its own is the same
        half = lp.quantize(x[32:], quantizer=name, rounding="stochastic", seed=5, offset=(1 << 32) - 9000 + 32 * 512)
        assert (half.codes == first.codes[32:]).all()
    grid = lp.quantize(x, quantizer=name).scale
    mean = np.mean([lp.quantize_dequantize(x, quantizer=name, rounding="stochastic", seed=s) for s in range(64)], 0)
    near = lp.quantize_dequantize(x, quantizer=name)
    assert np.abs(mean - x).mean() < 0.5 * np.abs(near - x).mean()
    assert abs(float((mean - x).mean())) < 4 * float(np.abs(near - x).mean()) / np.sqrt(64 * x.size)
    assert (lp.quantize(x, quantizer=name, rounding="stochastic", seed=1).scale == grid).all()


def test_other_roundings_are_those_of_the_cast() -> None:
    x = normal((8, 256))
    for rounding in ("toward_zero", "up", "nearest_away", "to_odd"):
        for granularity in ("1x128", "128x1"):
            q = lp.quantize(x, "e4m3fn", granularity, rounding=rounding)
            spread = np.repeat(q.scale, 128, 1) if granularity == "1x128" else np.repeat(q.scale, 8, 0)[:8]
            assert (q.codes == lp.encode(x / spread, "e4m3fn", rounding=rounding)).all()


def test_both_directions() -> None:
    x = normal((96, 160), brain=True)
    for name in ("dsv3_inference", "mxfp8_rceil", "nvfp4_te", "nvfp4_te_rht", "te_current"):
        rows, columns = lp.quantize_both(x, quantizer=name)
        turned = lp.quantize(np.ascontiguousarray(x.T), quantizer=name)
        assert (rows.codes == lp.quantize(x, quantizer=name).codes).all()
        assert (columns.codes == turned.codes).all(), name
        assert (columns.scale == turned.scale).all(), name
    with pytest.raises(ValueError, match=r"a matrix is needed, not shape \(2, 2, 2\)"):
        lp.quantize_both(np.ones((2, 2, 2)), "e4m3fn")


def test_requantized_is_quantized_from_the_values() -> None:
    q = lp.quantize(normal((200, 300)), quantizer="dsv3_inference_ue8m0")
    r = lp.requantize(q, "128x1")
    wanted = lp.quantize(q.dequantize(), None, "128x1", quantizer="dsv3_inference_ue8m0")
    assert (str(r.granularity), r.scale_kind) == ("128x1", "ue8m0")
    assert r.quantizer == lp.quantizers["dsv3_inference_ue8m0"].with_(granularity="128x1")
    assert (r.codes == wanted.codes).all()
    assert (r.scale == wanted.scale).all()


def test_arrays_are_used_again() -> None:
    x, y = normal((64, 256)), normal((64, 256), 1)
    q = lp.quantize(x, quantizer="mxfp4_floor")
    r = lp.quantize(y, quantizer="mxfp4_floor", out=q)
    assert r.codes is q.codes
    assert (r.codes == lp.quantize(y, quantizer="mxfp4_floor").codes).all()
    with pytest.raises(ValueError, match=r"needed are uint8 codes \(64, 256\) and scales \(64, 2\)"):
        lp.quantize(x, "e4m3fn", out=q)
    with pytest.raises(ValueError, match="out is float64"):
        lp.quantize_dequantize(x, quantizer="mxfp4_floor", out=np.zeros((64, 256)))


def test_hadamard_cancels_in_a_product_and_has_te_signs() -> None:
    x, w = normal((32, 64)), normal((16, 64), 1)
    product = lp.hadamard(x).astype(np.float64) @ lp.hadamard(w).astype(np.float64).T
    assert np.allclose(product, x.astype(np.float64) @ w.astype(np.float64).T, atol=1e-5)
    assert (np.sign(lp.hadamard(np.eye(16, dtype=np.float32))[:, 0]) == TE_SIGNS).all()
    assert np.allclose(lp.hadamard(lp.hadamard(x, 64, 9), 64, 9, inverse=True), x, atol=1e-6)
    q = lp.quantize(x, quantizer="nvfp4_te_rht")
    assert (q.codes == lp.quantize(lp.round_to(lp.hadamard(x), "bfloat16"), quantizer="nvfp4_te").codes).all()
    plain = lp.quantize(x, quantizer=lp.quantizers["nvfp4_te_rht"].with_(transform_format=None))
    assert (plain.codes == lp.quantize(lp.hadamard(x), quantizer="nvfp4_te").codes).all()
    assert (plain.codes != q.codes).any()
    for bad, message in (((x, 12), "a power of two"), ((x, 32), "is for size 16, not 32"), ((x, 16, -1), "signs=-1")):
        with pytest.raises(ValueError, match=message):
            lp.hadamard(*bad)
    with pytest.raises(ValueError, match="60 values along the axis"):
        lp.hadamard(x[:, :60])


def test_delayed_scaling_follows_its_history() -> None:
    state = lp.DelayedScaling(lp.quantizers["te_delayed"].with_(history=3), margin=1)
    amaxes, scales = [4.0, 1.0, 2.0, 0.5, np.inf, 0.5, 0.5], []
    for amax in amaxes:
        q = state.quantize(np.array([[amax / 2, -amax]], np.float32))
        scales.append(float(q.scale[0, 0]))
        state.end_step()
    f = [float(np.float32(1) / np.float32(np.float32(224) / np.float32(a))) for a in (4.0, 2.0)]
    assert scales == [1.0, f[0], f[0], f[0], f[1], f[1], f[1]]  # the step with Inf changes nothing for three steps
    other = lp.DelayedScaling(lp.quantizers["te_delayed"].with_(history=3), margin=1)
    other.load_state_dict(state.state_dict())
    x = normal((4, 4))
    assert (other.quantize(x).codes == state.quantize(x).codes).all()
    recent = lp.DelayedScaling(algorithm="most_recent")
    recent.quantize(np.full((1, 1), 4.0))
    recent.end_step()
    recent.quantize(np.full((1, 1), 1.0))
    recent.end_step()
    assert recent.multiplier == 448
    with pytest.raises(ValueError, match="a history of 3 steps"):
        other.load_state_dict(recent.state_dict())
    with pytest.raises(ValueError, match="'dsv3_inference' has no history"):
        lp.DelayedScaling("dsv3_inference")
    with pytest.raises(ValueError, match="algorithm='mean'"):
        lp.DelayedScaling(algorithm="mean")
    with pytest.raises(ValueError, match="'te_delayed' has a state"):
        lp.quantize(x, quantizer="te_delayed")


@pytest.mark.parametrize(
    "name", ["dsv3_inference", "te_block", "mxfp6_e2m3_floor", "mxfp4_floor", "nvfp4_te", "mxint8"]
)
def test_saved_and_loaded(name: str, tmp_path: Path) -> None:
    x = normal((3, 7, 50))
    x[1, 2, 3] = np.nan
    q = lp.quantize(x, quantizer=name)
    q.save(tmp_path / "q.npz")
    r = lp.Quantized.load(tmp_path / "q.npz")
    assert (r.codes == q.codes).all()
    assert r.codes.dtype == q.codes.dtype
    assert r.scale.tobytes() == q.scale.tobytes()
    assert r.dequantize().tobytes() == q.dequantize().tobytes()
    assert (repr(r), r.quantizer) == (repr(q), q.quantizer)
    assert (lp.requantize(r, "32x1").codes == lp.requantize(q, "32x1").codes).all()
    assert [p.name for p in tmp_path.iterdir()] == ["q.npz"]


def test_damaged_and_foreign_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "q.npz"
    mine = lp.Format(name="mine", exponent_bits=3, mantissa_bits=3)
    saved = lp.quantize(normal((4, 64)), mine, "1x32", scale="ue8m0")
    saved.save(path)
    assert lp.Quantized.load(path).format == mine
    whole = path.read_bytes()
    refused = 0
    for at in range(0, len(whole), 37):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        try:
            loaded = lp.Quantized.load(path)
        except ValueError as error:
            assert "q.npz" in str(error)  # noqa: PT017
            refused += 1
        else:  # dates and other fields of the archive that carry nothing
            assert loaded.codes.tobytes() == saved.codes.tobytes()
            assert loaded.scale.tobytes() == saved.scale.tobytes()
    assert refused > 5
    first = whole.index(b"PK\x01\x02")  # its directory: 8 bytes on, what says encrypted; 10, how it is compressed
    for at in (first + 8, first + 10):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(ValueError, match=r"damaged: .*(encrypted|compression)"):
            lp.Quantized.load(path)
    path.write_bytes(whole[:200])
    with pytest.raises(ValueError, match="damaged"):
        lp.Quantized.load(path)
    np.savez(path, a=np.ones(3))
    with pytest.raises(ValueError, match="not a file of a quantized matrix"):
        lp.Quantized.load(path)
    np.save(tmp_path / "x.npy", np.ones(3))
    with pytest.raises(ValueError, match="not a file of a quantized matrix"):
        lp.Quantized.load(tmp_path / "x.npy")
    text = whole.replace(b'"version": 3', b'"version": 9')
    path.write_bytes(text)
    with pytest.raises(ValueError, match=r"damaged|version 9"):
        lp.Quantized.load(path)
    header = np.frombuffer(b'{"kind": "lowprec.Quantized", "version": 9}', np.uint8)
    np.savez(path, header=header, codes=np.zeros(1), scales=np.zeros(1))
    with pytest.raises(ValueError, match="version 9 of the file; this program reads version 3"):
        lp.Quantized.load(path)
    with pytest.raises(FileNotFoundError):
        lp.Quantized.load(tmp_path / "none.npz")


def test_a_quantizer_of_ones_own_works_everywhere() -> None:
    mine = lp.Quantizer(name="mine", format="e3m2fn", granularity="1x64", scale="ue8m0", arithmetic="ceil", source="us")
    x = normal((16, 128))
    q = lp.quantize(x, quantizer=mine)
    assert (q.quantizer, str(q.granularity)) == (mine, "1x64")
    assert (lp.quantize_dequantize(x, quantizer=mine) == q.dequantize()).all()
    assert np.frexp(q.scale)[0].tolist() == np.full(q.scale.shape, 0.5).tolist()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"scale": "fp16"}, "scale='fp16': 'fp32', 'ue8m0', 'e4m3' is needed"),
        ({"arithmetic": "floor"}, "Quantizer with fp32 scales: arithmetic='floor': 'amax/max', "),
        ({"scale": "e4m3", "arithmetic": "amax/max"}, "Quantizer with e4m3 scales: arithmetic='amax/max': 'folded', "),
        ({"bound": 500.0}, "bound=500.0: above 0 and at most E4M3's 448"),
        ({"choice": "mae"}, "choice='mae' goes with arithmetic='plain'"),
        ({"nan": "rule"}, "nan='rule': no arithmetic has a result there"),
        ({"zero": "two"}, "zero='two': 'rule', 'one'"),
        ({"hadamard": 12}, "hadamard=12: a power of two"),
        ({"transform_format": "bf17"}, "unknown format 'bf17'"),
        ({"transform_format": 16}, "transform_format must be None or a name in lowprec.formats, got 16"),
        ({"history": 0}, "history=0: 1 to 2^20 steps"),
        ({"smallest_exponent": -130}, "smallest_exponent=-130: a whole number from -127 to -126"),
        ({"format": "e4m3fm"}, "did you mean 'e4m3fn'"),
        ({"granularity": "1 x 128"}, "granularity='1 x 128'"),
    ],
)
def test_impossible_quantizers(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        lp.Quantizer(**fields)  # type: ignore[arg-type]
    assert message in str(caught.value)


def test_the_catalogue_is_whole() -> None:
    """Every arithmetic and every special result is used by some entry, and every entry says where it is from."""
    entries = [lp.quantizers[name] for name in lp.quantizers]
    assert {(q.scale, q.arithmetic) for q in entries} == {(s, a) for s, names in ARITHMETICS.items() for a in names}
    assert {case for q in entries for case in (q.zero, q.inf, q.nan)} == {"rule", *SPECIALS}
    assert all(q.source and q.source != "user-defined" for q in entries)
    assert [q.name for q in entries] == lp.quantizers.names()
    with pytest.raises(ValueError, match="unknown quantizer 'nvfp4_tee': did you mean 'nvfp4_te'"):
        lp.quantize([[1.0]], quantizer="nvfp4_tee")
    with pytest.raises(ValueError, match="fmt or quantizer is needed"):
        lp.quantize([[1.0]])
    with pytest.raises(ValueError, match="needs a seed"):
        lp.quantize([[1.0]], "e4m3fn", rounding="stochastic")


@pytest.mark.slow
def test_the_command_line_finds_the_quantizer(tmp_path: Path) -> None:
    from click.testing import CliRunner

    from lowprec.cli.app import cli

    runner = CliRunner()
    source, codes = str(tmp_path / "x.npy"), str(tmp_path / "q.npz")
    np.save(source, normal((64, 512), brain=True))
    made = runner.invoke(cli, ["quantize", source, "--quantizer", "deepgemm", "--out", codes])
    assert made.exit_code == 0, made.output
    found = runner.invoke(cli, ["check", codes, "--values", source, "--csv"])
    assert found.exit_code == 0, found.output
    lines = found.output.splitlines()
    assert lines[1].startswith("deepgemm,0,0.0,0,0.0")
    assert lines[2].split(",")[0] in ("tilekernels", "dsv3_inference", "te_block_fp32", "dsv32_inference")
    shown = runner.invoke(cli, ["check", codes, "--values", source, "--quantizer", "dsv3_inference"])
    assert shown.exit_code == 1, shown.output
    assert "First codes that differ" in shown.output
    lp.quantize(np.load(source), quantizer="nvfp4_te").save(codes)
    found = runner.invoke(cli, ["check", codes, "--values", source, "--csv"])
    assert found.output.splitlines()[1].startswith("nvfp4_te,0,")
    wrong = runner.invoke(cli, ["check", source, "--values", source])
    assert (wrong.exit_code, wrong.stdout) == (2, "")
    assert "x.npy: not an .npz with the arrays codes and scale" in wrong.stderr


@pytest.mark.parametrize("granularity", ["1x16", "1x24", "128x1", "16x16"])
@pytest.mark.parametrize("offset", [0, (1 << 32) - 200])
def test_a_random_word_belongs_to_an_index(granularity: str, offset: int) -> None:
    """Also where a row passes 2^32, the end of one set of keys."""
    x = normal((7, 500))
    q = lp.quantize(x, "e4m3fn", granularity, rounding="stochastic_c", seed=9, offset=offset)
    rows, columns = q.granularity.block((7, 500))
    scale = np.repeat(np.repeat(q.scale, rows, 0), columns, 1)[:7, :500]
    codes = lp.encode(x / scale, "e4m3fn", rounding="stochastic_c", seed=9, offset=offset)
    assert np.array_equal(q.codes, codes)


@pytest.mark.parametrize(
    ("changes", "error", "match"),
    [
        ({"format": "e4m3fx"}, ValueError, "unknown format 'e4m3fx': did you mean 'e4m3fn'"),
        ({"granularity": "1x"}, ValueError, "granularity='1x'"),
        ({"scale_kind": "fp33"}, ValueError, "scale_kind='fp33': one of fp32, ue8m0, e4m3"),
        ({"codes": np.ones((2, 256))}, TypeError, "codes is float64, needed is an ndarray of uint8"),
        ({"codes": [[1]]}, TypeError, "codes is list"),
        ({"scale": np.ones((2, 2))}, TypeError, "scale is float64, needed is an ndarray of float32"),
        (
            {"scale": np.ones((2, 3), np.float32)},
            ValueError,
            r"scale has shape \(2, 3\); codes \(2, 256\) .* have \(2, 2\)",
        ),
    ],
)
def test_codes_and_scales_of_ones_own_are_checked(changes, error, match):
    parts = {"codes": np.full((2, 256), 0x38, np.uint8), "scale": np.float32([[1, 2], [3, 4]])}
    parts |= {"format": "e4m3fn", "granularity": "1x128"}
    q = lp.Quantized(**parts)
    assert (q.format, q.granularity) == (lp.formats["e4m3fn"], lp.Granularity(1, 128))
    assert q.dequantize()[:, ::128].tolist() == [[1, 2], [3, 4]]
    with pytest.raises(error, match=match):
        lp.Quantized(**parts | changes)


@pytest.mark.parametrize("options", [{"tensor_amax": -1.0}, {"tensor_amax": np.nan}, {"multiplier": 0.0}])
def test_numbers_from_elsewhere_are_checked(options):
    ((name, value),) = options.items()
    with pytest.raises(ValueError, match=rf"{name}={value}"):
        lp.quantize(np.ones((1, 16), np.float32), quantizer="nvfp4", **options)


def test_what_is_not_quantized_is_refused():
    with pytest.raises(TypeError, match="requantize: ndarray is not Quantized"):
        lp.requantize(np.ones((2, 2)), "1x128")
    with pytest.raises(TypeError, match="format 'mine': a Format is needed, not 3"):
        lp.formats.register("mine", 3)
    with pytest.raises(ValueError, match=r"history=1\.5: a whole number or None"):
        lp.Quantizer(history=1.5)


@pytest.mark.parametrize("shape", [(0, 256), (256, 0), (0, 0), (0,), (3, 0, 128), ()])
@pytest.mark.parametrize("granularity", ["1x128", "128x128", "tensor"])
def test_empty_matrices_have_as_many_scales_as_blocks(shape: tuple[int, ...], granularity: str) -> None:
    q = lp.quantize(np.ones(shape, np.float32), "e4m3fn", granularity)
    again = lp.Quantized(q.codes, q.scale, "e4m3fn", granularity)
    assert again.dequantize().tobytes() == q.dequantize().tobytes()
    assert again.dequantize().shape == shape
    if len(shape) == 2:
        assert q.T.scale.shape == q.scale.T.shape


@pytest.mark.parametrize("signs", [{}, True, -1, 2**64, "of", 1.0, None, np.array([1, 2])], ids=str)
def test_signs_are_checked_whether_there_is_a_transform_or_not(signs):
    for options in ({}, {"hadamard": 16}):
        with pytest.raises(ValueError, match=r"signs="):
            lp.Quantizer(signs=signs, **options)


def test_a_seed_of_signs_is_no_truth_value():
    """A table of what was computed before must not answer for what would be refused."""
    x = np.ones((1, 16), np.float32)
    lp.hadamard(x, signs=1)
    for signs in (True, 1.0, {}, [1]):
        with pytest.raises(ValueError, match=r"hadamard: signs="):
            lp.hadamard(x, signs=signs)
    lp.quantize(x, "e4m3fn", amax_floor=1)
    with pytest.raises(ValueError, match=r"amax_floor=True"):
        lp.quantize(x, "e4m3fn", amax_floor=True)


@pytest.mark.parametrize("axis", [np.array([1, 2]), 2, "1", None], ids=str)
def test_an_axis_that_is_none_is_quoted(axis):
    with pytest.raises(ValueError, match=r"hadamard: axis=.*: -1, 0, 1 is needed"):
        lp.hadamard(np.ones((16, 16), np.float32), axis=axis)


@pytest.mark.parametrize("other", ["header", "codes", "scales"])
def test_a_part_of_a_file_that_is_no_array_is_refused(tmp_path: Path, other: str) -> None:
    lp.quantize(np.ones((2, 128), np.float32), "e4m3fn").save(tmp_path / "q.npz")
    with zipfile.ZipFile(tmp_path / "q.npz") as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(tmp_path / "other.npz", "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, b"no array at all" if name == f"{other}.npy" else content)
    with pytest.raises(ValueError, match=rf"other\.npz: .* damaged: {other} in it: no array"):
        lp.Quantized.load(tmp_path / "other.npz")


def fp4_row(*first: float, size: int = 32) -> F32:
    x = np.zeros((1, size), np.float32)
    x[0, : len(first)] = first
    return x


def test_deepseeks_fp4_and_deepgemms() -> None:
    """Ties to even in the one, toward zero and without -0 in the other: 61,173 of 2^20 bfloat16 codes."""
    row = fp4_row(0.25, 0.75, -0.75, 1.75, 2.5, 3.5, 5, 6)
    for name, wanted in (("dsv4_fp4", "02a44667"), ("deepgemm_fp4", "01934567")):
        for factor, scale, codes in ((1.0, 1.0, wanted), (1.25, 2.0, "01923456")):
            q = lp.quantize(row * np.float32(factor), quantizer=name)
            assert q.scale.item() == scale
            assert "".join(f"{code:x}" for code in q.codes[0, :8].tolist()) == codes
    x = np.random.default_rng(0).standard_normal((1024, 1024)).astype(np.float32)
    x = lp.round_to(x, "bfloat16")
    theirs, own, mx = (lp.quantize(x, quantizer=name) for name in ("deepgemm_fp4", "dsv4_fp4", "mxfp4_rceil"))
    assert np.array_equal(own.codes, mx.codes)
    assert np.array_equal(own.scale, mx.scale)
    assert np.array_equal(own.scale, theirs.scale)
    assert np.count_nonzero(own.codes != theirs.codes) == 61_173
    assert np.count_nonzero(np.where(own.codes == 8, 0, own.codes) != theirs.codes) == 5_043
    assert not np.any(theirs.codes == 8)


def test_a_quantizers_own_rounding_is_what_a_call_does_not_say() -> None:
    row = fp4_row(0.75, 6)
    assert lp.quantize(row, quantizer="deepgemm_fp4").codes[0, 0] == 1
    assert lp.quantize(row, quantizer="deepgemm_fp4", rounding="nearest_even").codes[0, 0] == 2
    assert lp.quantize_dequantize(row, quantizer="deepgemm_fp4")[0, 0] == 0.5


def test_a_file_keeps_a_rounding_of_ones_own(tmp_path: Path) -> None:
    q = lp.quantize(fp4_row(0.75, -0.1, 6), quantizer="deepgemm_fp4")
    q.save(tmp_path / "q.npz")
    back = lp.Quantized.load(tmp_path / "q.npz")
    assert back == q
    assert back.quantizer == lp.quantizers["deepgemm_fp4"]


def test_fp4_of_the_compressed_cache() -> None:
    q = lp.quantize(fp4_row(1, 2, 3, -4, 0.5, 0.1, 6.2, 7, size=16), quantizer="dsv41_kv_fp4")
    assert q.scale.item() == 1.125
    assert q.codes[0, :8].tolist() == [2, 4, 5, 14, 1, 0, 7, 7]
    assert lp.quantize(fp4_row(size=16), quantizer="dsv41_kv_fp4").scale.item() == 2.0**-9
