"""Operands of the GEMM benchmarks, and the proof of their bits that comes before any timing."""

from __future__ import annotations

import dataclasses
import importlib
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))  # the package of this checkout, installed or not

Work = Callable[[], Any]


class Shape(NamedTuple):
    m: int
    n: int
    k: int
    what: str = ""

    @property
    def work(self) -> int:
        return self.m * self.n * self.k

    def __str__(self) -> str:
        return f"{self.m} x {self.n} x {self.k}" + (f" ({self.what})" if self.what else "")


CUBE = Shape(1024, 1024, 1024)
SHAPES = [
    CUBE, Shape(256, 256, 4096), Shape(4096, 512, 4096),
    Shape(2048, 256, 640, "trainer, fprop"), Shape(2048, 640, 256, "its dgrad"), Shape(256, 640, 2048, "its wgrad"),
]  # fmt: skip
LATENCY = Shape(64, 64, 128)
WIDE_MACHINES = [
    "hopper_bf16", "hopper_f16", "hopper_tf32", "blackwell_fp8", "ampere_bf16", "volta_f16", "hopper_f16_f16",
    "hopper_fp8_f16",
]  # fmt: skip
AMD_MACHINES = ["cdna1_f16", "cdna1_bf16", "cdna2_f16", "cdna2_bf16", "cdna3_xf32", "cdna3_f16", "cdna3_fp8"]
AMD_CUBE = Shape(512, 512, 512)
REFERENCE_CUBE = Shape(128, 128, 128)  # what the compiled references of these are timed on
# machine -> quantizer of A, granularity of B's blocks
SCALED_MACHINES = {
    "blackwell_mxf8": ("mxfp8_rceil", "32x32"), "blackwell_mxf4": ("mxfp4_rceil", "32x32"),
    "blackwell_nvfp4": ("nvfp4_te", "16x16"),
}  # fmt: skip
HALF_MACHINES = ["hopper_fp8_mma", "hopper_fp8_mma_f16"]
SPLITS = ["cutlass_serial", "cutlass_workspace", "cutlass_sliced", "cutlass_stream_k", "det_gemm"]
SPLIT_SHAPES = [Shape(64, 64, 1024), Shape(512, 512, 512), Shape(128, 512, 2048), Shape(256, 256, 4096)]
REUSED = [Shape(2048, 256, 640, "trainer, fprop"), Shape(2048, 640, 256, "its dgrad"), Shape(64, 256, 640, "64 tokens")]
PEERS = {
    "mmaemu": Shape(256, 256, 1024), "mmasim": Shape(64, 64, 128), "mmasim, mxf8f6f4": Shape(128, 64, 128),
    "mmasim, mxf4nvf4": Shape(128, 64, 128),
}  # fmt: skip
# Peer -> our machine, its instruction, K of that, E8M0 or E4M3 scales from .. to
PEER_MACHINES = {
    "mmasim, mxf8f6f4": (
        "blackwell_mxf8", "m128n64k32.kind::mxf8f6f4.block32.f32.e4m3.e4m3.ue8m0", 32, "float8_e8m0fnu", (120, 134)
    ),
    "mmasim, mxf4nvf4": (
        "blackwell_nvfp4", "m128n64k64.kind::mxf4nvf4.block16.f32.e2m1.e2m1.ue4m3", 64, "float8_e4m3fn", (40, 72)
    ),
}  # fmt: skip
CORNER = 24  # rows and columns that are compared with the integer reference


def kernels() -> list[str]:
    """Return the kernels of this CPU, fastest first."""
    from lowprec.tensorcore.engines.selection import instruction_sets

    return list(instruction_sets("auto"))


def on(name: str, work: Work) -> Work:
    """Return the work, done with one kernel."""
    import lowprec as lp

    def run() -> Any:
        with lp.use_kernel(name):
            return work()

    return run


def values(shape: Shape) -> tuple[Any, Any]:
    """Normal numbers with some outliers, the same in every run: A [M, K] and B [N, K]."""
    import numpy as np

    rng = np.random.Generator(np.random.Philox([shape.m, shape.n, shape.k]))
    x, w = (rng.standard_normal((rows, shape.k), dtype=np.float32) for rows in (shape.m, shape.n))
    x[:, :: max(shape.k // 8, 1)] *= 30
    return x, w


def fp8_product(shape: Shape) -> Work:
    """Return a promoted hopper_fp8 product, checked: scales of 1x128 and 128x128, for wgrad both of 1x128."""

    import lowprec as lp

    x, w = values(shape)
    operands = (
        lp.quantize(x, "e4m3fn 1x128"),
        lp.quantize(w, f"e4m3fn {'1x128' if 'wgrad' in shape.what else '128x128'}"),
    )
    corners = []
    for q in operands:
        rows = q.granularity.block(q.shape)[0]
        corners.append(
            dataclasses.replace(q, codes=q.codes[:CORNER].copy(), scale=q.scale[: -(-CORNER // rows)].copy())
        )
    with lp.use_kernel("reference"):
        want = lp.gemm(*corners)

    def work() -> Any:
        return lp.gemm(*operands)

    check_on_all(work, want, f"hopper_fp8 {shape}")
    return work


def wide_product(machine: str, shape: Shape) -> Work:
    """Return one chain of a machine on raw codes, checked."""
    import numpy as np

    import lowprec as lp

    unit = lp.accumulators[machine]
    fmt = lp.formats["tf32"] if unit.accepts(lp.formats["tf32"]) else unit.default_format
    shrink = 0.125 if unit.dtype == np.float16 else 1.0  # else results overflow
    a, b = (lp.encode(operand * np.float32(shrink), fmt) for operand in values(shape))
    with lp.use_kernel("reference"):
        want = lp.mma(a[:CORNER], b[:CORNER], accumulator=machine, a_format=fmt, b_format=fmt)

    def work() -> Any:
        return lp.mma(a, b, accumulator=machine, a_format=fmt, b_format=fmt)

    check_on_all(work, want, f"{machine} {shape}")
    return work


def scaled_product(machine: str, shape: Shape, packed: bool = False) -> Work:
    """Return a product with scales inside the instruction, checked: tiles by square blocks, for wgrad both tiles.

    With `packed`, B is laid out beforehand.
    """

    import lowprec as lp

    x, w = values(shape)
    if machine == "hopper_fp8":
        a, b = lp.quantize(x, "e4m3fn 1x128"), lp.quantize(w, "e4m3fn 128x128")
    else:
        quantizer, square = SCALED_MACHINES[machine]
        a = lp.quantize(x, quantizer)
        b = lp.quantize(
            w, lp.quantizers.get(quantizer).with_(granularity=str(a.granularity) if "wgrad" in shape.what else square)
        )
    corners = []
    for q in (a, b):
        rows = q.granularity.block(q.shape)[0]
        corners.append(
            dataclasses.replace(q, codes=q.codes[:CORNER].copy(), scale=q.scale[: -(-CORNER // rows)].copy())
        )
    with lp.use_kernel("reference"):
        want = lp.gemm(*corners, accumulator=machine)
    operand = lp.prepack_b(b, machine) if packed else b

    def work() -> Any:
        return lp.gemm(a, operand, accumulator=machine)

    check_on_all(work, want, f"{machine} {shape}")
    return work


def float32_product(shape: Shape) -> Work:
    """Return the float32 product in fixed order, checked on some outputs by exact rational arithmetic."""
    import numpy as np

    import lowprec as lp
    from lowprec import oracle

    x, w = values(shape)
    d = lp.matmul_f32(x, w)
    for i, j in ((0, 0), (shape.m - 1, shape.n - 1)):
        a, b = (row.view(np.uint32).tolist() for row in (x[i], w[j]))
        want = oracle.sequential_f32(a, b, 0, oracle.FORMATS["float32"], oracle.FORMATS["float32"])
        same(d[i, j : j + 1], np.array([want], np.uint32).view(np.float32), f"matmul_f32 {shape}, ({i}, {j})")
    return lambda: lp.matmul_f32(x, w)


def split_product(library: str, shape: Shape) -> Work:
    """Return a float32 product of bfloat16 numbers with a library's split of K, checked: rows alone have its bits."""
    import numpy as np

    import lowprec as lp
    from lowprec.recipe.operands import as_quantized

    a, b = (as_quantized(np.ascontiguousarray(x), lp.formats["bfloat16"]) for x in values(shape))
    parts = 4 if lp.gemm_libraries[library].split_k_reduction in ("serial", "workspace") else None

    def work() -> Any:
        return lp.gemm(a, b, accumulator="float32", library=library, split_k=parts, out_format="bfloat16")

    corner = lp.gemm(
        a[:CORNER], b[:CORNER], accumulator="float32", library=library, split_k=parts, out_format="bfloat16"
    )
    same(np.ascontiguousarray(work()[:CORNER, :CORNER]), corner, f"{library} {shape}")
    return work


def numpy_product(shape: Shape) -> Work:
    """Return NumPy's float32 product of the same values."""
    x, w = values(shape)
    return lambda: x @ w.T


def peer_product(name: str) -> tuple[Work, Work] | None:
    """Return a peer's chain of hopper_fp8 and ours, of equal bits; None where the peer is not installed."""
    import numpy as np

    import lowprec as lp

    shape = PEERS[name]
    rng = np.random.Generator(np.random.Philox(7))
    if name in PEER_MACHINES:
        return _scaled_peer(name, shape, rng)
    a, b = (lp.encode(rng.standard_normal((n, shape.k), dtype=np.float32), "e4m3fn") for n in (shape.m, shape.n))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            torch = importlib.import_module("torch")
            torch.set_num_threads(1)  # more threads make small tiles slower
            x, y = (torch.from_numpy(codes).view(torch.float8_e4m3fn) for codes in (a, b))
            theirs = (_mmaemu if name == "mmaemu" else _mmasim)(torch, x, y)
        except Exception as problem:  # not installed, or without the compiler that mmasim needs
            print(f"{name} left out: {problem!r}", file=sys.stderr)
            return None
    same(theirs(), lp.mma(a, b), name)
    return theirs, lambda: lp.mma(a, b)


def _scaled_peer(name: str, shape: Shape, rng: Any) -> tuple[Work, Work] | None:
    """Return mmasim's chain of instructions that take scales, and ours."""
    import numpy as np

    import lowprec as lp

    machine, instruction, step, scale_type, (low, high) = PEER_MACHINES[name]
    unit = lp.accumulators[machine]
    fmt, block = lp.formats[unit.default_format], unit.scale_block
    codes = [lp.encode(rng.standard_normal((n, shape.k), dtype=np.float32), fmt) for n in (shape.m, shape.n)]
    scales = [rng.integers(low, high, (n, shape.k // block)).astype(np.uint8) for n in (shape.m, shape.n)]
    try:
        torch = importlib.import_module("torch")
        torch.set_num_threads(1)
        theirs = importlib.import_module("mmasim.nv_ptx").TCGen05MMABlockScale("Blackwell", instruction)
    except Exception as problem:
        print(f"{name} left out: {problem!r}", file=sys.stderr)
        return None
    if fmt.bits == 4:  # two to a byte, the first in the high half
        x, y = (torch.from_numpy((c[:, ::2] << 4 | c[:, 1::2]).astype(np.uint8)) for c in codes)
    else:
        x, y = (torch.from_numpy(c).view(torch.float8_e4m3fn) for c in codes)
    s, t = (torch.from_numpy(c).view(getattr(torch, scale_type)) for c in scales)
    each, per = step * x.shape[1] // shape.k, step // block

    def chain() -> Any:
        d = torch.zeros((shape.m, shape.n), dtype=torch.float32)
        for i in range(shape.k // step):
            k, b = slice(i * each, (i + 1) * each), slice(i * per, (i + 1) * per)
            d = theirs(x[:, k], y[:, k].T, d, s[:, b], t[:, b].T)
        return d.numpy()

    def ours() -> Any:
        return lp.mma(*codes, accumulator=machine, a_scale=scales[0], b_scale=scales[1])

    same(chain(), ours(), name)
    return chain, ours


def _mmaemu(torch: Any, x: Any, y: Any) -> Work:
    package = importlib.import_module("mmaemu")
    return lambda: package.accumulate(x, y, use_fast_accum=True, profile="hopper", splitk=1).numpy()


def _mmasim(torch: Any, x: Any, y: Any) -> Work:
    unit = importlib.import_module("mmasim.nv_ptx").WGMMA("Hopper", f"m64n{len(y)}k32.f32.e4m3.e4m3")

    def chain() -> Any:
        d = torch.zeros((len(x), len(y)), dtype=torch.float32)
        for k in range(0, x.shape[1], 32):
            d = unit(x[:, k : k + 32], y[:, k : k + 32].T, d)
        return d.numpy()

    return chain


def check_on_all(work: Work, want: Any, what: str) -> None:
    """Compare the first rows and columns of a product with `want` on every kernel; the fastest is in use afterwards."""
    import numpy as np

    for name in (*kernels(), "auto"):
        got = np.ascontiguousarray(on(name, work)()[: len(want), : want.shape[1]])
        same(got, want, f"{what}, {name}")


def same(got: Any, want: Any, what: str) -> None:
    """Raise an AssertionError if bits differ."""
    if got.tobytes() != want.tobytes():
        raise AssertionError(f"{what}: {(got != want).sum()} of {want.size} outputs differ")
