"""Matrix products beside mmaemu, where it is installed: FP8 as cuBLASLt sums it on Hopper and Ada, bit for bit."""

import sys
import warnings
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from machine_inputs import FAMILIES, Codes, tile
from numpy.typing import NDArray
from peers import bits_of, peer, sampled, tensor

import lowprec as lp
from lowprec.oracle import FLOAT32, FORMATS

pytestmark = pytest.mark.peers


@pytest.fixture(scope="module")
def mmaemu() -> ModuleType:
    return peer("mmaemu")


PROFILES = {"hopper": ("hopper_fp8", "contiguous"), "ada": ("ada_fp8", "serial")}
FP8 = ("e4m3fn", "e5m2")


def chain(a: Codes, b: Codes, machine: str, names: tuple[str, str], promote: bool) -> NDArray[np.float32]:
    """One chain over all of K, or float32 sums of chains of 128."""
    unit = lp.accumulators[machine]
    unit = unit.with_(promote_every=128) if promote else unit
    return lp.mma(a, b, accumulator=unit, a_format=names[0], b_format=names[1])


def split(k: int, parts: int, scheme: str) -> list[NDArray[np.int64]]:
    """K indices of each part: runs of 128 on Hopper; every `parts`-th run of 64 on Ada."""
    if scheme == "contiguous":
        runs = (k + 127) // 128
        run = (runs + parts - 1) // parts * 128
        return [np.arange(min(s * run, k), min((s + 1) * run, k)) for s in range(parts)]
    index = np.arange(k)
    return [index[index // 64 % parts == s] for s in range(parts)]


def combined(parts: list[NDArray[np.float32]], scheme: str) -> NDArray[np.float32]:
    """Float32 additions, in the order of the library."""
    with np.errstate(invalid="ignore"):
        if scheme != "pairwise":
            total = parts[0]
            for p in parts[1:]:
                total = total + p
            return total
        half, total = -(-len(parts) // 2), parts[-1]
        for i in range(half):
            total = total + (parts[i] + parts[i + half] if i + half < len(parts) - 1 else parts[i])
        return total


def mmaemu_bits(mmaemu: ModuleType, a: Codes, b: Codes, names: tuple[str, str], **how: Any) -> Codes:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return bits_of(mmaemu.accumulate(tensor(a, names[0]), tensor(b, names[1]), **how))


def canonical(array: NDArray[np.float32]) -> Codes:
    return np.where(np.isnan(array), np.uint32(0x7FFFFFFF), array.view(np.uint32))


@pytest.mark.parametrize("parts", [1, 2, 3, 5])
@pytest.mark.parametrize("fast", [True, False], ids=["fast", "slow"])
@pytest.mark.parametrize("profile", PROFILES)
def test_products_of_mmaemu(profile, fast, parts, mmaemu, capsys):
    machine, scheme = PROFILES[profile]
    schemes = ["none"] if parts == 1 else [scheme, "pairwise"] if profile == "ada" else [scheme]
    count = 0
    pairs = [(x, y) for x in FP8 for y in FP8]
    shapes = ((9, 17, 96), (16, 16, 640), (5, 7, 1040), (33, 20, 208))
    for which, names, family, shape in sampled("mmaemu", schemes, pairs, FAMILIES, shapes, phase=parts):
        x = tile(family, (FORMATS[names[0]], FORMATS[names[1]], FLOAT32), shape)
        how = {"use_fast_accum": fast, "profile": profile, "splitk": (parts, which) if parts > 1 else 1}
        theirs = mmaemu_bits(mmaemu, x.a, x.b, names, **how)
        pieces = split(shape[2], parts, which)
        ours = combined([chain(x.a[:, p].copy(), x.b[:, p].copy(), machine, names, not fast) for p in pieces], which)
        assert np.array_equal(canonical(ours), theirs), f"{which}, {names}, {x.name}"
        count += theirs.size
    with capsys.disabled():
        sys.stdout.write(f"\nmmaemu {profile}, {'fast' if fast else 'slow'}, {parts} parts: {count} outputs, 0 differ")


def quantized(codes: Codes, name: str, scale: float) -> Any:
    """Codes with one scale for the whole matrix."""
    empty = lp.quantize(np.ones(codes.shape, np.float32), f"{name} tensor")
    return replace(empty, codes=codes, scale=np.array([[scale]], np.float32))


OUTPUTS = ("float32", "bfloat16", "float16")


@pytest.mark.parametrize("out", OUTPUTS)
@pytest.mark.parametrize("fast", [True, False], ids=["fast", "slow"])
def test_scaled_products_of_mmaemu(fast: bool, out: str, mmaemu: ModuleType) -> None:
    """`gemm` in cuBLASLt's order on Hopper: split K, one factor at the end, two roundings."""
    import torch

    library = "cublaslt_fast" if fast else "cublaslt"
    pairs = [("e4m3fn", "e4m3fn"), ("e4m3fn", "e5m2"), ("e5m2", "e4m3fn")]
    for (i, names), (j, family) in sampled("mmaemu", enumerate(pairs), enumerate(FAMILIES), phase=OUTPUTS.index(out)):
        x = tile(family, (FORMATS[names[0]], FORMATS[names[1]], FLOAT32), (16, 32, 16 * (5 * i + 3 * j + 1)))
        parts = 1 + j % 4 if x.a.shape[1] > 512 else 1
        scales = [np.float32(s) for s in ((0.37, 1.9), (2.0**-70, 2.0**-60 * 1.3), (1e-3, 0.25))[(i + j) % 3]]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = mmaemu.scaled_mm(
                tensor(x.a, names[0]), tensor(x.b, names[1]).T, *(torch.tensor(float(s)) for s in scales),
                out_dtype=getattr(torch, out), use_fast_accum=fast, profile="hopper",
                splitk=(parts, "contiguous") if parts > 1 else 1,
            )  # fmt: skip
        theirs = result.float().numpy()
        qa, qb = (quantized(c, n, float(s)) for c, n, s in zip((x.a, x.b), names, scales, strict=True))
        ours = lp.gemm(qa, qb, accumulator="hopper_fp8", library=library, split_k=parts, out_format=out)
        assert np.array_equal(canonical(ours), canonical(theirs)), f"{names}, {x.name}, {parts} parts, {scales}"


@pytest.mark.parametrize("profile", PROFILES)
def test_long_products_of_mmaemu(profile: str, mmaemu: ModuleType) -> None:
    machine, _ = PROFILES[profile]
    names = ("e4m3fn", "e5m2")
    x = tile("narrow", (FORMATS["e4m3fn"], FORMATS["e5m2"], FLOAT32), (128, 256, 4096))
    for (fast,) in sampled("mmaemu", (True, False), phase=list(PROFILES).index(profile)):
        theirs = mmaemu_bits(mmaemu, x.a, x.b, names, use_fast_accum=fast, profile=profile, splitk=1)
        assert np.array_equal(chain(x.a, x.b, machine, names, not fast).view(np.uint32), theirs)
