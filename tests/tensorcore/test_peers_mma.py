"""`mma` and `gemm` beside MMA-Sim and mmaemu, where they are installed, bit for bit.

MMA-Sim takes ``pip install mmasim`` and a C++ compiler. The number of outputs compared is printed.
"""

import sys
import warnings
from collections import Counter
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from floats import bits
from machine_inputs import ADDENDS, FAMILIES, Codes, Tile, dtype_of, tile
from numpy.typing import NDArray
from peers import bits_of, peer, sampled, tensor

import lowprec as lp
from lowprec.oracle import ACCUMULATORS, E8M0FNU, FLOAT16, FLOAT32, FLOAT64, FORMATS, UE4M3, Fields

pytestmark = pytest.mark.peers

FORMAT_OF = {
    "f64": "float64", "f32": "float32", "tf32": "float32", "xf32": "float32", "f16": "float16", "bf16": "bfloat16",
    "e4m3": "e4m3fn", "e5m2": "e5m2", "e3m2": "e3m2fn", "e2m3": "e2m3fn", "e2m1": "e2m1fn",
    "fp8": "e4m3fnuz", "bf8": "e5m2fnuz",
}  # fmt: skip
FLOATS = {2: np.float16, 4: np.float32, 8: np.float64}


@pytest.fixture(scope="module")
def mmasim() -> ModuleType:
    for module in ("nv_ptx.isa_mma", "nv_ptx.isa_wgmma", "nv_ptx.isa_tcgen05mma", "amd.isa_mfma"):
        peer(f"mmasim.{module}")
    return peer("mmasim")


# MMA-Sim's instructions, and ours


class Instruction:
    """What the name of an instruction says, and which of our machines it is."""

    def __init__(self, kind: str, arch: str, name: str) -> None:
        self.kind, self.arch, self.name = kind, arch, name
        if kind == "MFMA":
            self._read_amd(name)
        else:
            self._read_nvidia(name.split("."))
        self.formats = FORMAT_OF[self.a], FORMAT_OF[self.b]

    def _read_amd(self, name: str) -> None:
        words = name.split("_")
        self.d = self.c = words[0]
        kinds = ("bf16", "xf32", "f64", "f32", "f16", "fp8", "bf8")
        self.b = tail = next(kind for kind in kinds if name.removesuffix("_1k").endswith(kind))
        self.a = words[-2] if words[-2] in ("fp8", "bf8") else tail
        shape = words[1].removesuffix(tail)
        self.m, self.n, self.k = map(int, shape.split("x"))
        operand = {"fp8": "fp8", "bf8": "fp8"}.get(self.a, self.a) + "_1k" * name.endswith("_1k")
        self.machine = "fp64" if self.a == "f64" else f"{self.arch.lower()}_{operand}"
        self.changes: dict[str, Any] = {}
        self.scale = None

    def _read_nvidia(self, words: list[str]) -> None:
        shape, kind = words[0], next((w.removeprefix("kind::") for w in words if "kind" in w), "")
        self.m, rest = int(shape[1:].split("n")[0]), shape.split("n")[1]
        self.n, self.k = map(int, rest.split("k"))
        block = next((int(w.removeprefix("block")) for w in words if w.startswith("block")), 0)
        self.scale = (words[-1], block) if block else None
        types = [w for w in words[1:] if w in FORMAT_OF]
        self.d, self.a, self.b = types[:3]
        self.c = types[3] if len(types) > 3 else self.d
        chip = {"Ada Lovelace": "ada", "RTX Blackwell": "rtx_blackwell"}.get(self.arch, self.arch.lower())
        if (self.arch, shape) == ("Turing", "m8n8k4"):
            chip = "volta"
        fp8 = self.a in ("e4m3", "e5m2", "e3m2", "e2m3", "e2m1")
        operand = "fp8" if fp8 else self.a
        if self.scale:
            operand = {"mxf8f6f4": "mxf8", "mxf4": "mxf4", "mxf4nvf4": "mxf4" if block == 32 else "mxf4_16"}[kind]
            operand = "nvfp4" if self.scale[0] == "ue4m3" else operand
        self.machine = "fp64" if self.a == "f64" else f"{chip}_{operand}{'_f16' * (self.d == 'f16')}"
        # An instruction shorter than the unit is not filled with zeros, which would take part in the alignment.
        group = getattr(ACCUMULATORS[self.machine].rule, "group", 1)
        self.changes = {"group_size": self.k} if self.k < group else {}

    @property
    def types(self) -> str:
        scale = f" {self.scale[0]}/{self.scale[1]}" if self.scale else ""
        return f"{self.kind} {self.arch} {self.d}.{self.a}.{self.b}.{self.c}{scale}{' 1k' * self.name.endswith('1k')}"

    @property
    def c_format(self) -> Fields:
        return {"f16": FLOAT16, "f32": FLOAT32, "f64": FLOAT64}[self.c]


def instructions(mmasim: ModuleType, kind: str, arch: str) -> list[str]:
    where = {"MMA": "nv_ptx.isa_mma.mma", "MMABlockScale": "nv_ptx.isa_mma.mma_block_scale",
             "WGMMA": "nv_ptx.isa_wgmma.wgmma", "TCGen05MMA": "nv_ptx.isa_tcgen05mma.tcgen05mma",
             "TCGen05MMABlockScale": "nv_ptx.isa_tcgen05mma.tcgen05mma_block_scale"}  # fmt: skip
    if kind == "MFMA":
        return list(dict.fromkeys(peer("mmasim.amd.isa_mfma").arch_mfma_suffix[arch]))
    module, _, prefix = where[kind].rpartition(".")
    return list(dict.fromkeys(getattr(peer(f"mmasim.{module}"), f"{prefix}_shape_and_type")[arch]))


KINDS = [
    *(("MMA", arch) for arch in ("Volta", "Turing", "Ampere", "Ada Lovelace", "Hopper", "Blackwell", "RTX Blackwell")),
    ("MMABlockScale", "RTX Blackwell"), ("WGMMA", "Hopper"), ("TCGen05MMA", "Blackwell"),
    ("TCGen05MMABlockScale", "Blackwell"), ("MFMA", "CDNA1"), ("MFMA", "CDNA2"), ("MFMA", "CDNA3"),
]  # fmt: skip


def scale_codes(rng: np.random.Generator, fmt: Fields, shape: tuple[int, int], mode: int) -> NDArray[np.uint8]:
    e8m0, e4m3 = ((121, 134), (0, 256), (0, 70), (170, 256)), ((40, 72), (0, 256), (0, 12), (100, 128))
    ranges = e8m0 if fmt == E8M0FNU else e4m3
    return rng.integers(*ranges[mode], shape).astype(np.uint8)


def operands(x: Instruction, family: str, addend: str, m: int, n: int) -> Tile:
    """A tile; TF32 operands are float32 with low bits set, which the unit does not look at."""
    names = ["tf32" if t in ("tf32", "xf32") else FORMAT_OF[t] for t in (x.a, x.b)]
    made = tile(family, (FORMATS[names[0]], FORMATS[names[1]], x.c_format), (m, n, x.k), addend, 27)
    if names[0] != "tf32":
        return made
    rng = np.random.default_rng(5)
    wide = [(s.astype(np.uint32) << 13) | rng.integers(0, 1 << 13, s.shape).astype(np.uint32) for s in (made.a, made.b)]
    return Tile(made.name, wide[0], wide[1], made.c)


def theirs_and_ours(x: Instruction, unit: Any, case: Tile, mode: int) -> tuple[Codes, Codes]:
    a, b, c = case.a, case.b, case.c
    more: dict[str, Any] = {}
    extra: list[Any] = []
    if x.scale:
        fmt = E8M0FNU if x.scale[0] == "ue8m0" else UE4M3
        rng = np.random.default_rng([mode, len(case.name)])
        sa, sb = (scale_codes(rng, fmt, (len(s), x.k // x.scale[1]), mode) for s in (a, b))
        more = {"a_scale": sa, "b_scale": sb}
        name = "e8m0fnu" if x.scale[0] == "ue8m0" else "e4m3fn"
        extra = [tensor(sa, name), tensor(sb.T.copy(), name)]
    if x.k == 64 and x.a == "e2m1":
        packed = [tensor((s[:, ::2] << 4 | s[:, 1::2]).astype(np.uint8), "uint8") for s in (a, b)]
    else:
        packed = [tensor(s, f) for s, f in zip((a, b), x.formats, strict=True)]
    c_name = {"f16": "float16", "f32": "float32", "f64": "float64"}[x.c]
    theirs = bits_of(unit(packed[0], packed[1].T, tensor(c, c_name), *extra))
    machine = lp.accumulators[x.machine]
    machine = machine.with_(**x.changes) if x.changes else machine
    more |= {"accumulator": machine, "a_format": x.formats[0], "b_format": x.formats[1]}
    return theirs, bits(lp.mma(a, b, c.view(FLOATS[c.dtype.itemsize]), **more))


def mixed(x: Instruction, m: int, n: int) -> Tile:
    """A tile whose rows come from all families."""
    tiles = [operands(x, family, "near", m, n) for family in FAMILIES]
    a, b, c = (np.empty_like(getattr(tiles[0], s)) for s in "abc")
    for i, t in enumerate(tiles):
        a[i :: len(tiles)], b[i :: len(tiles)], c[i :: len(tiles)] = (getattr(t, s)[i :: len(tiles)] for s in "abc")
    return Tile("mixed", a, b, c)


def differing(x: Instruction, theirs: Codes, ours: Codes) -> NDArray[np.bool_]:
    """Outputs whose bits differ, except for what is known of MMA-Sim.

    The NaN of float64 and of AMD's units is what the host's addition makes of it there: any NaN is as good as any.
    For CDNA3's FP8 it takes a NaN or infinite addend (of the first or of a later group) for one of exponent -1, and
    drops it where products are 2^25 or larger, so that NaN and infinity vanish: outputs that are not finite are
    left out there.
    """
    wrong = theirs != ours
    floats = FLOATS[ours.dtype.itemsize]
    nan = np.isnan(theirs.view(floats)) & np.isnan(ours.view(floats))
    if x.a == "f64" or x.kind == "MFMA":
        wrong &= ~nan
    if x.machine == "cdna3_fp8":
        wrong &= np.isfinite(ours.view(floats))
    return wrong


@pytest.mark.parametrize(("kind", "arch"), KINDS, ids=["-".join(x).replace(" ", "") for x in KINDS])
def test_every_instruction_of_mmasim(kind, arch, mmasim, capsys):
    """All families and addends for each combination of types, its shapes in turn; some rows of all for each shape."""
    package = peer("mmasim.amd" if kind == "MFMA" else "mmasim.nv_ptx")
    shapes: dict[str, list[Instruction]] = {}
    for name in instructions(mmasim, kind, arch):
        x = Instruction(kind, arch, name)
        if (x.d, x.c) != ("f32", "f16"):  # see the next test
            shapes.setdefault(x.types, []).append(x)
    outputs, wrong, first = Counter[str](), Counter[str](), {}
    for phase, (types, some) in enumerate(shapes.items()):
        units = {x.name: getattr(package, kind)(arch, x.name) for x in some}
        cases = [(x, mixed(x, len(FAMILIES), 8), 0) for (x,) in sampled("mmasim", some, phase=phase)]
        for i, j in sampled("mmasim", range(len(FAMILIES)), range(len(ADDENDS)), phase=phase):
            x = some[(2 * i + i // 5 + j) % len(some)]  # neighbours in a row, a column or a diagonal have other shapes
            made = operands(x, list(FAMILIES)[i], ADDENDS[j], min(x.m, 32), min(x.n, 32))
            cases.append((x, made, (5 * i + j) % 4))
        for x, case, mode in cases:
            unit = units[x.name]
            assert (unit.m, unit.n, unit.k) == (x.m, x.n, x.k)
            theirs, ours = theirs_and_ours(x, unit, case, mode)
            assert theirs.shape == ours.shape == case.c.shape
            bad = differing(x, theirs, ours)
            outputs[types] += ours.size
            wrong[types] += int(bad.sum())
            if bad.any() and types not in first:
                i, j = np.argwhere(bad)[0]
                first[types] = (
                    f"{x.name}, {case.name} ({i}, {j}): theirs {theirs[i, j]:#x}, ours {ours[i, j]:#x}, "
                    f"c {case.c[i, j]:#x}, a {case.a[i].tolist()}, b {case.b[j].tolist()}"
                )
    with capsys.disabled():
        for types, count in outputs.items():
            sys.stdout.write(f"\n{types:55} {len(shapes[types]):4} shapes {count:9} outputs {wrong[types]:6} differ")
    assert sum(outputs.values()) > 0
    assert not first, "\n".join(first.values())


@pytest.mark.parametrize("arch", ["Volta", "Turing"])
def test_a_float16_addend_to_float32_results(arch: str, mmasim: ModuleType) -> None:
    """`m8n8k4.f32.f16.f16.f16`: a normal float16 c is a float32 c; a subnormal one has the exponent -14."""
    x = Instruction("MMA", arch, "m8n8k4.f32.f16.f16.f16")
    unit = peer("mmasim.nv_ptx").MMA(arch, x.name)
    for family in FAMILIES:
        case = operands(x, family, "near", 8, 8)
        case.c[(case.c & 0x7C00) == 0] = 0
        theirs = bits_of(unit(tensor(case.a, "float16"), tensor(case.b, "float16").T, tensor(case.c, "float16")))
        with np.errstate(invalid="ignore"):
            c = case.c.view(np.float16).astype(np.float32)
        ours = lp.mma(case.a, case.b, c, accumulator="volta_f16", a_format="float16", b_format="float16")
        assert np.array_equal(ours.view(np.uint32), theirs), family


def test_what_is_known_of_mmasim(mmasim: ModuleType) -> None:
    """CDNA3's FP8, c = NaN beside a product of 2^26: MMA-Sim gives 2^26. If this fails, `differing` can be shorter."""
    unit = peer("mmasim.amd").MFMA("CDNA3", "f32_16x16x32_bf8_bf8")
    a, b = np.zeros((16, 32), np.uint8), np.zeros((16, 32), np.uint8)
    a[:, 0] = b[:, 0] = lp.encode(np.float32(2.0**13), "e5m2fnuz")
    nan = np.full((16, 16), 0x7FC00000, np.uint32)
    theirs = unit(tensor(a, "e5m2fnuz"), tensor(b, "e5m2fnuz").T, tensor(nan, "float32")).numpy()
    ours = lp.mma(a, b, nan.view(np.float32), accumulator="cdna3_fp8", a_format="e5m2fnuz", b_format="e5m2fnuz")
    assert np.all(theirs == 2.0**26)
    assert np.all(np.isnan(ours))


def test_the_instructions_are_read_right() -> None:
    x = Instruction("TCGen05MMABlockScale", "Blackwell", "m128n16k64.kind::mxf4nvf4.block16.f32.e2m1.e2m1.ue4m3")
    assert (x.machine, x.m, x.n, x.k, x.scale) == ("blackwell_nvfp4", 128, 16, 64, ("ue4m3", 16))
    x = Instruction("MFMA", "CDNA2", "f32_32x32x8bf16_1k")
    assert (x.machine, x.m, x.k, x.formats) == ("cdna2_bf16_1k", 32, 8, ("bfloat16", "bfloat16"))
    x = Instruction("MFMA", "CDNA3", "f32_16x16x32_bf8_fp8")
    assert (x.machine, x.formats, x.k) == ("cdna3_fp8", ("e5m2fnuz", "e4m3fnuz"), 32)
    x = Instruction("MMA", "Hopper", "m16n8k4.f32.tf32.tf32.f32")
    assert (x.machine, x.changes, dtype_of(x.c_format)) == ("hopper_tf32", {"group_size": 4}, np.dtype(np.uint32))


# --- mmaemu -----------------------------------------------------------------------------------------------------------


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
