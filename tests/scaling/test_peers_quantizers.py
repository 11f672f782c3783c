"""Quantizers beside the vendors' own code where it is installed: torchao, modelopt, compressed-tensors; DeepGEMM.

It takes ``pip install torch torchao nvidia-modelopt compressed-tensors``. How many elements were compared is printed.
DeepGEMM's and TransformerEngine's arithmetic is spelled in torch here: their packages need a GPU.
"""

import contextlib
import io
import os
from types import ModuleType, SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from peers import peer

import lowprec as lp

pytestmark = pytest.mark.peers
F32 = NDArray[np.float32]


@pytest.fixture(scope="module")
def torch() -> ModuleType:
    return peer("torch")


def quiet(name: str) -> ModuleType:
    """Import a talkative package."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        return peer(name)


def inputs() -> list[F32]:
    rng = np.random.default_rng(11)
    x = rng.standard_normal((1024, 1024)).astype(np.float32)
    log = np.exp(2 * rng.standard_normal((512, 1024))) * rng.choice([-1, 1], (512, 1024))
    wide = x[:256] * np.exp2(rng.integers(-30, 30, (256, 1024)))
    brain = [a.astype(ml_dtypes.bfloat16).astype(np.float32) for a in (x, log, wide)]
    return [*brain, x, wide.astype(np.float32)]


def report(name: str, count: int, note: str = "") -> None:
    print(f"{name}: {count} elements compared, 0 differ{note}")  # noqa: T201


def tensor(torch: Any, x: F32) -> Any:
    return torch.from_numpy(np.array(x))


def fp8(t: Any) -> NDArray[np.uint8]:
    import torch

    return np.asarray(t.contiguous().view(torch.uint8).numpy())


@pytest.mark.parametrize("power", [False, True])
def test_deepgemm_arithmetic_in_torch(torch: Any, power: bool) -> None:
    count = 0
    for x in inputs():
        t = tensor(torch, x)
        tiles = t.view(t.shape[0], -1, 128)
        s = tiles.abs().amax(2).clamp(1e-4) / 448.0
        if power:
            word = s.view(torch.int32)
            s = (((word >> 23) + ((word & 0x7FFFFF) != 0)).clamp(1, 254).to(torch.int32) << 23).view(torch.float32)
        for name, y in (("deepgemm", tiles * (1.0 / s.unsqueeze(2))), ("dsv3_inference", tiles / s.unsqueeze(2))):
            q = lp.quantize(x, quantizer=name + "_ue8m0" * power)
            assert (q.scale == s.numpy()).all()
            assert (q.codes == fp8(y.clamp(-448, 448).to(torch.float8_e4m3fn)).reshape(x.shape)).all(), name
            count += x.size
    report(f"DeepGEMM and DeepSeek-V3, ue8m0={power}", count)


@pytest.mark.parametrize("mode", ["FLOOR", "CEIL", "EVEN", "RCEIL"])
def test_torchao_mx(torch: Any, mode: str) -> None:
    quiet("torchao.prototype.mx_formats.mx_tensor")
    from torchao.prototype.mx_formats.mx_tensor import ScaleCalculationMode, to_mx

    count = 0
    kinds = {"mxfp8": torch.float8_e4m3fn, "mxfp8_e5m2": torch.float8_e5m2}
    for x in inputs():
        for name, kind in kinds.items():
            scale, codes = to_mx(tensor(torch, x), kind, 32, getattr(ScaleCalculationMode, mode))
            q = lp.quantize(x, quantizer=f"{name}_{mode.lower()}")
            theirs = lp.decode(fp8(scale).reshape(q.scale.shape), "e8m0fnu")
            assert (q.scale == theirs).all(), (name, np.argwhere(q.scale != theirs)[:3])
            assert (q.codes == fp8(codes)).all(), name
            count += x.size
    report(f"torchao MX {mode}", count)


@pytest.mark.parametrize(("name", "kind"), [("mxfp6_e2m3", "fp6_e2m3"), ("mxfp6_e3m2", "fp6_e3m2"), ("mxfp4", None)])
def test_torchao_narrow_mx(torch: Any, name: str, kind: str | None) -> None:
    quiet("torchao.prototype.mx_formats.mx_tensor")
    from torchao.prototype.mx_formats.mx_tensor import ScaleCalculationMode, to_mx

    count = 0
    for x in inputs():
        for mode in ("FLOOR", "RCEIL"):
            elements = torch.float4_e2m1fn_x2 if kind is None else kind
            scale, codes = to_mx(tensor(torch, x), elements, 32, getattr(ScaleCalculationMode, mode))
            q = lp.quantize(x, quantizer=f"{name}_{mode.lower()}")
            assert (q.scale == lp.decode(fp8(scale).reshape(q.scale.shape), "e8m0fnu")).all()
            theirs = codes.numpy() if kind else lp.unpack(codes.numpy().reshape(-1), 4, x.size).reshape(x.shape)
            assert (q.codes == theirs).all()
            count += x.size
    report(f"torchao {name}", count)


def test_torchao_nvfp4(torch: Any) -> None:
    quiet("torchao.prototype.mx_formats.nvfp4_tensor")
    from torchao.prototype.mx_formats.nvfp4_tensor import nvfp4_quantize, per_tensor_amax_to_scale

    count = 0
    for x in inputs():
        t = tensor(torch, x)
        for name, g in (("nvfp4_torchao", per_tensor_amax_to_scale(t.abs().max())), ("nvfp4_torchao_one_level", None)):
            scale, packed = nvfp4_quantize(t, 16, g)
            q = lp.quantize(x, quantizer=name)
            assert q.tensor_scale is None or q.tensor_scale == g.numpy()
            assert (lp.encode(q.scale, "e4m3fn") == fp8(scale).reshape(q.scale.shape)).all()
            assert (q.codes == lp.unpack(packed.numpy().reshape(-1), 4, x.size).reshape(x.shape)).all()
            count += x.size
    report("torchao NVFP4", count)


def test_torchao_tensorwise_fp8(torch: Any) -> None:
    quiet("torchao.float8.float8_utils")
    from torchao.float8.float8_utils import amax_to_scale, to_fp8_saturated

    count = 0
    for x in inputs():
        t = tensor(torch, x)
        m = amax_to_scale(t.abs().max(), torch.float8_e4m3fn)
        q = lp.quantize(x, quantizer="torchao_fp8")
        assert (q.codes == fp8(to_fp8_saturated(t * m, torch.float8_e4m3fn))).all()
        assert q.scale[0, 0] == (1.0 / m).numpy()
        count += x.size
    report("torchao tensorwise FP8", count)


def test_modelopt_nvfp4(torch: Any) -> None:
    quiet("modelopt.torch.quantization.qtensor.nvfp4_tensor")
    from modelopt.torch.quantization.qtensor.nvfp4_tensor import NVFP4QTensor

    count = 0
    for x in inputs():
        packed, scale, g = NVFP4QTensor.quantize(tensor(torch, x), 16)
        q = lp.quantize(x, quantizer="nvfp4_modelopt")
        assert q.tensor_scale == g.numpy()
        assert (lp.encode(q.scale, "e4m3fn") == fp8(scale).reshape(q.scale.shape)).all()
        theirs = lp.unpack(packed._quantized_data.numpy().reshape(-1), 4, x.size).reshape(x.shape)
        assert (q.codes == theirs).all()
        count += x.size
    report("modelopt NVFP4", count)


def test_modelopt_mxfp8(torch: Any) -> None:
    quiet("modelopt.torch.quantization.qtensor.mxfp8_tensor")
    from modelopt.torch.quantization.qtensor.mxfp8_tensor import MXFP8QTensor

    count = 0
    for x in inputs():
        theirs, scale = MXFP8QTensor.quantize(tensor(torch, x))
        q = lp.quantize(x, quantizer="mxfp8_rceil")
        assert (q.scale == lp.decode(scale.numpy(), "e8m0fnu")).all()
        assert (q.codes == fp8(theirs._quantized_data)).all()
        count += x.size
    report("modelopt MXFP8", count)


def test_modelopt_mxfp8_just_above_powers_of_two(torch: Any) -> None:
    """Its logarithm is float32's: just above 1.75 * 2^k = 448 * 2^(k - 8) its exponent is one too small."""
    quiet("modelopt.torch.quantization.qtensor.mxfp8_tensor")
    from modelopt.torch.quantization.qtensor.mxfp8_tensor import MXFP8QTensor

    edge = (np.float32(1.75) * np.exp2(np.arange(-110, 120))).astype(np.float32)
    amax = np.concatenate([edge, np.nextafter(edge, np.float32(0)), np.nextafter(edge, np.float32(np.inf))])
    x = np.repeat(amax[:, None], 32, 1)
    scale = MXFP8QTensor.quantize(tensor(torch, x))[1].numpy()
    exact = lp.quantize(x, quantizer=lp.quantizers["mxfp8_rceil"].with_(arithmetic="amax/max"))
    wrong = (exact.scale != lp.decode(scale, "e8m0fnu"))[:, 0]
    assert wrong.any()
    assert (amax[wrong] > np.repeat(edge[None], 3, 0).reshape(-1)[wrong]).all()
    print(f"modelopt MXFP8: {wrong.sum()} of {edge.size} scales one step too low just above 1.75 * 2^k")  # noqa: T201


def test_modelopt_four_over_six(torch: Any) -> None:
    """Scales and codes once a block has chosen; the choice there is made of 126 scales in calibration, not of two."""
    quiet("modelopt.torch.quantization.qtensor.nvfp4_tensor")
    from modelopt.torch.quantization.qtensor.nvfp4_tensor import NVFP4QTensor

    count = rounded = raised = 0
    four_over_six = lp.quantizers["nvfp4_4over6_mse"]
    for x in inputs():
        q, six = lp.quantize(x, quantizer=four_over_six), lp.quantize(x, quantizer=four_over_six.with_(choice=None))
        t = tensor(torch, x)
        amax = t.view(x.shape[0], -1, 16).abs().amax(-1)
        chosen = SimpleNamespace(
            block_sizes={-1: 16, "four_over_six": True},
            global_amax=t.abs().max(),
            _amax=torch.where(torch.from_numpy(q.scale != six.scale), amax * 1.5, amax),
        )
        scale, g = NVFP4QTensor.get_weights_scaling_factor_from_quantizer(chosen, t)
        packed = NVFP4QTensor.quantize(t.clone(), 16, scale, g)[0]
        theirs = lp.unpack(packed._quantized_data.numpy().reshape(-1), 4, x.size).reshape(x.shape)
        scales = lp.decode(fp8(scale).reshape(q.scale.shape), "e4m3fn")
        low = scales != q.scale
        assert (q.scale[low] == 0).all()
        assert (scales[low] == 2.0**-9).all()
        raised += int(low.sum())
        rounded += int((q.codes != theirs)[~np.repeat(low, 16, 1)].sum())  # x / (s * g) there, x * (1 / (s * g)) here
        count += x.size
    assert rounded <= 10
    print(f"modelopt four over six: {count} elements compared, {rounded} differ, {raised} scales 2^-9 for 0")  # noqa: T201


GFLOAT = {
    "mxfp8_floor": "format_info_ocp_e4m3",
    "mxfp8_e5m2_floor": "format_info_ocp_e5m2",
    "mxfp6_e2m3_floor": "format_info_ocp_e2m3",
    "mxfp6_e3m2_floor": "format_info_ocp_e3m2",
    "mxfp4_floor": "format_info_ocp_e2m1",
    "mxint8": "format_info_ocp_int8",
}


@pytest.mark.parametrize("name", GFLOAT)
def test_gfloat_mx_blocks(name: str) -> None:
    peer("gfloat")
    from gfloat import BlockFormatInfo, compute_scale_amax, formats, quantize_block

    info = BlockFormatInfo(name, getattr(formats, GFLOAT[name]), 32, formats.format_info_ocp_e8m0)
    count = differ = 0
    for x in inputs():
        part = x[:16, :512]
        ours = lp.quantize_dequantize(part, quantizer=name).reshape(-1, 32)
        for block, mine in zip(part.reshape(-1, 32).astype(np.float64), ours, strict=True):  # log2 is right in float64
            theirs = quantize_block(info, block, compute_scale_amax).astype(np.float32)
            wrong = theirs != mine
            if name == "mxint8":  # -2 is an element there
                wrong &= ~((block < 0) & (np.abs(theirs) > np.abs(mine)))
            assert not wrong.any(), (block[wrong], theirs[wrong], mine[wrong])
            differ += int((theirs != mine).sum())
            count += 32
    assert bool(differ) == (name == "mxint8")
    print(f"gfloat {name}: {count} elements compared, {differ} differ{' by -2' * (differ > 0)}")  # noqa: T201


def test_compressed_tensors_scales(torch: Any) -> None:
    quiet("compressed_tensors.quantization.utils.mxfp_utils")
    from compressed_tensors.quantization.utils.mxfp_utils import generate_mx_scales

    amax = np.arange(0x80, 0x7F80, dtype=np.uint16).view(ml_dtypes.bfloat16).astype(np.float32)
    amax = amax[(amax > 2.0**-117) & (amax < 2.0**127)][:, None]  # not clamped there: exponents within E8M0
    for bits, name, rule in ((8, "mxfp8_even_1bit", None), (4, "mxfp4_floor", "even"), (6, "mxfp6_e2m3_floor", "even")):
        theirs = generate_mx_scales(torch.from_numpy(amax).to(torch.bfloat16), bits).float().numpy()
        ours = lp.quantize(amax, None, "1x1", quantizer=name, arithmetic=rule).scale
        assert (ours == np.exp2(theirs - 127)).all(), name
    report("compressed-tensors MX scales", 3 * amax.size)
