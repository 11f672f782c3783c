"""Quantizers beside the vendors' own code where it is installed: torchao, modelopt, compressed-tensors; DeepGEMM.

It takes ``pip install torch torchao nvidia-modelopt compressed-tensors``. How many elements were compared is printed.
DeepGEMM's and TransformerEngine's arithmetic is spelled in torch here: their packages need a GPU.
"""

import contextlib
import functools
import io
import json
import os
import warnings
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from peers import missing, peer

import lowprec as lp
from lowprec.board import compare, environments
from lowprec.board.adapters import modelopt, torchao
from lowprec.board.adapters.harness import Operation
from lowprec.board.causes import rules_of
from lowprec.board.inputs import inputs as board_inputs
from lowprec.study.run.fingerprint import host

pytestmark = pytest.mark.peers
F32 = NDArray[np.float32]
Theirs = tuple[Any, Any, Any]  # codes, scales and, where there are two levels, the tensor's scale


def quiet(name: str) -> Any:
    """Import a talkative package; torch has to be there."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    peer("torch")
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        return peer(name)


@functools.cache
def inputs() -> list[F32]:
    rng = np.random.default_rng(11)
    x = rng.standard_normal((1024, 1024)).astype(np.float32)
    log = np.exp(2 * rng.standard_normal((512, 1024))) * rng.choice([-1, 1], (512, 1024))
    wide = x[:256] * np.exp2(rng.integers(-30, 30, (256, 1024)))
    brain = [a.astype(ml_dtypes.bfloat16).astype(np.float32) for a in (x, log, wide)]
    return [*brain, x, wide.astype(np.float32)]


def tensor(x: F32) -> Any:
    return peer("torch").from_numpy(np.array(x))


def fp8(t: Any) -> NDArray[np.uint8]:
    return np.asarray(t.contiguous().view(peer("torch").uint8).numpy())


def nibbles(packed: Any) -> NDArray[np.uint8]:
    return lp.unpack(packed.numpy().reshape(-1), 4, 2 * packed.numel())


def deepgemm(t: Any, power: bool, divide: bool) -> Theirs:
    """DeepGEMM's arithmetic, or DeepSeek-V3's, which divides."""
    torch = peer("torch")
    tiles = t.view(t.shape[0], -1, 128)
    s = tiles.abs().amax(2).clamp(1e-4) / 448.0
    if power:
        word = s.view(torch.int32)
        s = (((word >> 23) + ((word & 0x7FFFFF) != 0)).clamp(1, 254).to(torch.int32) << 23).view(torch.float32)
    y = tiles / s.unsqueeze(2) if divide else tiles * (1.0 / s.unsqueeze(2))
    return fp8(y.clamp(-448, 448).to(torch.float8_e4m3fn)), s.numpy(), None


#: What a quantizer here is elsewhere: the function and what it is given.
ELSEWHERE: list[tuple[str, Callable[..., Theirs], dict[str, Any]]] = [
    (name + "_ue8m0" * power, deepgemm, {"power": power, "divide": name != "deepgemm"})
    for power in (False, True) for name in ("deepgemm", "dsv3_inference")
]  # fmt: skip
#: Operations of the conformance board's adapters; "MXFP4" of modelopt makes -0 of every zero, and Float8Tensor has a
#: scale per row of any length.
ADAPTED = [
    (module, operation) for module in (torchao, modelopt) for operation in module.OPERATIONS
    if operation.quantizes and operation.inputs != "tiles/128" and operation.entry != "mxfp4_modelopt"
    and operation.function is not torchao.float8_tensor
]  # fmt: skip


def answer_of(called: Callable[..., Any], /, *args: Any, **options: Any) -> Any:
    """Call a function of an adapter; skip the test if a package is missing that its package does not require."""
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return called(*args, **options)
    except ModuleNotFoundError as problem:
        missing(str(problem.name), problem)


@pytest.mark.parametrize(("module", "operation"), ADAPTED, ids=[f"{m.VERSIONS[0]} {o.name}" for m, o in ADAPTED])
def test_operations_of_packages(module: ModuleType, operation: Operation) -> None:
    quiet(module.VERSIONS[0].replace("nvidia-", ""))
    q = compare.quantizer_of(operation)
    for x in inputs():
        answer, ours = answer_of(operation.function, x, **operation.arguments), lp.quantize(x, q)
        scale = answer["scale"] if "scale" in answer else lp.decode(answer["scale_codes"], q.scale_format)
        wrong = np.argwhere(ours.scale != scale.reshape(ours.scale.shape))
        assert not wrong.size, wrong[:3]
        assert (ours.codes == answer["codes"].reshape(x.shape)).all()
    print(f"{operation.name}: {sum(x.size for x in inputs())} elements compared, 0 differ")  # noqa: T201


@pytest.mark.parametrize(
    ("package", "operation"),
    [(package, operation) for package, module in environments.packages().items() for operation in module.OPERATIONS],
    ids=lambda part: part if isinstance(part, str) else part.name,
)
def test_cells_of_the_board(package: str, operation: Operation) -> None:
    """The board's inputs hold -0, blocks of zeros, subnormals, Inf and NaN."""
    board = json.loads((Path(__file__).parents[2] / "reference_data" / "board.json").read_text())
    try:
        installed, known = version(package), board["packages"][package]["versions"][package]
    except PackageNotFoundError:
        pytest.skip(f"needs {package}")
    if installed != known:
        pytest.skip(f"{package} {installed} is not the board's {known}")
    cpu = board["packages"][package]["host"]["cpu"]
    if operation.inputs.startswith(("products", "hadamard")) and host()["cpu"] != cpu:
        pytest.skip(f"the order of sums may differ from that on the board's {cpu}")
    if operation.inputs.startswith("hadamard") and not peer("torch").cpu._is_avx512_bf16_supported():
        pytest.skip("needs VDPBF16PS, by which the board's CPU multiplies")
    quiet("torch")
    x = board_inputs(operation.inputs)[:: operation.step]
    found = compare.cell(operation, answer_of(operation.run, x), rules_of(package, operation.name))
    (cell,) = (c for c in board["cells"] if (c["package"], c["operation"]) == (package, operation.name))
    assert found == {name: cell[name] for name in found}


@pytest.mark.parametrize(("name", "function", "options"), ELSEWHERE)
def test_quantizers_are_those_of_packages(name: str, function: Callable[..., Theirs], options: dict[str, Any]) -> None:
    for x in inputs():
        codes, scale, g = function(tensor(x), **options)
        q = lp.quantize(x, name)
        assert q.tensor_scale is None or q.tensor_scale == g
        wrong = np.argwhere(q.scale != scale.reshape(q.scale.shape))
        assert not wrong.size, wrong[:3]
        assert (q.codes == codes.reshape(x.shape)).all()
    print(f"{function.__name__} {name}: {sum(x.size for x in inputs())} elements compared, 0 differ")  # noqa: T201


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # as modelopt is imported
@pytest.mark.filterwarnings("ignore:transformers .* is not tested with:UserWarning")  # by the first import of modelopt
def test_modelopt_mxfp8_just_above_powers_of_two() -> None:
    """Its logarithm is float32's: just above 1.75 * 2^k = 448 * 2^(k - 8) its exponent is one too small."""
    edge = (np.float32(1.75) * np.exp2(np.arange(-110, 120))).astype(np.float32)
    amax = np.concatenate([edge, np.nextafter(edge, np.float32(0)), np.nextafter(edge, np.float32(np.inf))])
    x = np.repeat(amax[:, None], 32, 1)
    scale = lp.decode(modelopt.mxfp8(x)["scale_codes"], "e8m0fnu")
    exact = lp.quantize(x, lp.quantizers["mxfp8_rceil"].with_(scale_calculation="amax/max"))
    wrong = (exact.scale != scale)[:, 0]
    assert wrong.any()
    assert (amax[wrong] > np.repeat(edge[None], 3, 0).reshape(-1)[wrong]).all()
    print(f"modelopt MXFP8: {wrong.sum()} of {edge.size} scales one step too low just above 1.75 * 2^k")  # noqa: T201


def test_modelopt_four_over_six() -> None:
    """Scales and codes once a block has chosen; the choice there is made of 126 scales in calibration, not of two."""
    torch, nvfp4 = peer("torch"), quiet("modelopt.torch.quantization.qtensor.nvfp4_tensor").NVFP4QTensor
    count = rounded = raised = 0
    four_over_six = lp.quantizers["nvfp4_4over6_mse"]
    for x in inputs():
        q, six = lp.quantize(x, four_over_six), lp.quantize(x, four_over_six.with_(four_over_six=None))
        t = tensor(x)
        amax = t.view(x.shape[0], -1, 16).abs().amax(-1)
        chosen = SimpleNamespace(
            block_sizes={-1: 16, "four_over_six": True},
            global_amax=t.abs().max(),
            _amax=torch.where(torch.from_numpy(q.scale != six.scale), amax * 1.5, amax),
        )
        scale, g = nvfp4.get_weights_scaling_factor_from_quantizer(chosen, t)
        packed = nvfp4.quantize(t.clone(), 16, scale, g)[0]
        theirs = nibbles(packed._quantized_data).reshape(x.shape)
        scales = lp.decode(fp8(scale).reshape(q.scale.shape), "e4m3fn")
        low = scales != q.scale
        assert (q.scale[low] == 0).all()
        assert (scales[low] == 2.0**-9).all()
        raised += int(low.sum())
        rounded += int((q.codes != theirs)[~np.repeat(low, 16, 1)].sum())  # x / (s * g) there, x * (1 / (s * g)) here
        count += x.size
    assert rounded <= 10
    print(f"modelopt four over six: {count} elements compared, {rounded} differ, {raised} scales 2^-9 for 0")  # noqa: T201


GFLOAT = {"mxfp8": "e4m3", "mxfp8_e5m2": "e5m2", "mxfp6_e2m3": "e2m3", "mxfp6_e3m2": "e3m2", "mxfp4": "e2m1",
          "mxint8": "int8"}  # fmt: skip


@pytest.mark.parametrize("name", GFLOAT)
def test_gfloat_mx_blocks(name: str) -> None:
    peer("gfloat")
    from gfloat import BlockFormatInfo, compute_scale_amax, formats, quantize_block

    elements = getattr(formats, f"format_info_ocp_{GFLOAT[name]}")
    info = BlockFormatInfo(name, elements, 32, formats.format_info_ocp_e8m0)
    quantizer = name if name == "mxint8" else f"{name}_floor"
    count = differ = 0
    for x in inputs():
        part = x[:16, :512]
        ours = lp.quantize_dequantize(part, quantizer).reshape(-1, 32)
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


def test_compressed_tensors_scales() -> None:
    torch, utils = peer("torch"), quiet("compressed_tensors.quantization.utils.mxfp_utils")
    amax = np.arange(0x80, 0x7F80, dtype=np.uint16).view(ml_dtypes.bfloat16).astype(np.float32)
    amax = amax[(amax > 2.0**-117) & (amax < 2.0**127)][:, None]  # not clamped there: exponents within E8M0
    for bits, name, rule in (
        (8, "mxfp8_even_1bit", "even_1bit"),
        (4, "mxfp4_floor", "even"),
        (6, "mxfp6_e2m3_floor", "even"),
    ):
        theirs = utils.generate_mx_scales(torch.from_numpy(amax).to(torch.bfloat16), bits).float().numpy()
        ours = lp.quantize(amax, lp.quantizers[name].with_(granularity="1x1", scale_calculation=rule)).scale
        assert (ours == np.exp2(theirs - 127)).all(), name
    print(f"compressed-tensors MX scales: {3 * amax.size} compared, 0 differ")  # noqa: T201
