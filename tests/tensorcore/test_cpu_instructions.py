"""CPUs' dot products compared with instructions: this CPU's VDPBF16PS and TDPBF16PS, and BFDOT as qemu-user runs it."""

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import lowprec as lp

Codes = NDArray[np.uint16]
Bits = NDArray[np.uint32]
Instruction = Callable[[Codes, Codes, Bits], Bits]  # a [n, 2], b [n, 2], c [n]

X86 = r"""
#include <immintrin.h>
#include <stdint.h>
void dot(const uint16_t *a, const uint16_t *b, const float *c, float *d, long n) {
    for (long i = 0; i < n; i += 16) {
        __m512i x = _mm512_loadu_si512(a + 2 * i), y = _mm512_loadu_si512(b + 2 * i);
        _mm512_storeu_ps(d + i, _mm512_dpbf16_ps(_mm512_loadu_ps(c + i), (__m512bh)x, (__m512bh)y));
    }
}
void convert(const float *x, uint16_t *y, long n) {
    for (long i = 0; i < n; i += 16)
        _mm256_storeu_si256((__m256i *)(y + i), (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(x + i)));
}
"""

AMX = r"""
#include <immintrin.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>
int allowed(void) { return !syscall(SYS_arch_prctl, 0x1023, 18); }  /* ARCH_REQ_XCOMP_PERM, tile data */
void dot(const uint16_t *a, const uint16_t *b, float *d, long m, long n, long k) {
    struct { uint8_t palette, row, reserved[14]; uint16_t bytes[16]; uint8_t rows[16]; } shape = {1};
    uint16_t pairs[16][32];
    for (int t = 0; t < 3; t++) shape.bytes[t] = 64, shape.rows[t] = 16;
    _tile_loadconfig(&shape);
    for (long i = 0; i < m; i += 16)
        for (long j = 0; j < n; j += 16) {
            _tile_loadd(0, d + i * n + j, 4 * n);
            for (long l = 0; l < k; l += 32) {
                for (int c = 0; c < 16; c++)
                    for (int x = 0; x < 32; x++) pairs[x / 2][2 * c + x % 2] = b[(j + c) * k + l + x];
                _tile_loadd(1, a + i * k + l, 2 * k);
                _tile_loadd(2, pairs, 64);
                _tile_dpbf16ps(0, 1, 2);
            }
            _tile_stored(0, d + i * n + j, 4 * n);
        }
    _tile_release();
}
"""

ARM = r"""
#include <arm_neon.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
int main(void) {
    uint32_t n;
    if (fread(&n, 4, 1, stdin) != 1) return 1;
    uint16_t *a = malloc(4 * n), *b = malloc(4 * n);
    float *c = malloc(4 * n);
    if (fread(a, 4, n, stdin) != n || fread(b, 4, n, stdin) != n || fread(c, 4, n, stdin) != n) return 1;
    for (uint32_t i = 0; i < n; i += 4) {
        bfloat16x8_t x = (bfloat16x8_t)vld1q_u16(a + 2 * i), y = (bfloat16x8_t)vld1q_u16(b + 2 * i);
        vst1q_f32(c + i, vbfdotq_f32(vld1q_f32(c + i), x, y));
    }
    return fwrite(c, 4, n, stdout) != n;
}
"""


def compiled(folder: Path, compiler: str, source: str, *options: str) -> Path:
    """Compile C, or skip where there is no compiler that knows the instructions."""
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler}")
    (folder / "dot.c").write_text(source)
    done = subprocess.run(
        [compiler, "-O1", *options, "-o", folder / "dot", folder / "dot.c"], capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"{compiler} does not compile the instructions: {done.stderr[:200]}")
    return folder / "dot"


def pointer(x: NDArray[np.generic]) -> ctypes.c_void_p:
    return x.ctypes.data_as(ctypes.c_void_p)


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    if "avx512_bf16" not in flags:
        pytest.skip("this CPU has no avx512_bf16")
    folder = tmp_path_factory.mktemp("x86")
    return ctypes.CDLL(str(compiled(folder, "cc", X86, "-mavx512f", "-mavx512vl", "-mavx512bf16", "-shared", "-fPIC")))


@pytest.fixture(scope="session")
def amx(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    if "amx_bf16" not in flags:
        pytest.skip("this CPU has no amx_bf16")
    folder = tmp_path_factory.mktemp("amx")
    loaded = ctypes.CDLL(str(compiled(folder, "cc", AMX, "-mamx-tile", "-mamx-bf16", "-shared", "-fPIC")))
    if not loaded.allowed():
        pytest.skip("the system does not allow tiles")
    return loaded


@pytest.fixture
def vdpbf16ps(library: ctypes.CDLL) -> Instruction:
    def dot(a: Codes, b: Codes, c: Bits) -> Bits:
        d = np.empty_like(c)
        library.dot(pointer(a), pointer(b), pointer(c), pointer(d), ctypes.c_long(c.size))
        return d

    return dot


@pytest.fixture(scope="session")
def bfdot(tmp_path_factory: pytest.TempPathFactory) -> Instruction:
    if shutil.which("qemu-aarch64") is None:
        pytest.skip("no qemu-aarch64 (qemu-user)")
    folder = tmp_path_factory.mktemp("arm")
    program = compiled(folder, "aarch64-linux-gnu-gcc", ARM, "-static", "-march=armv8.6-a+bf16")

    def dot(a: Codes, b: Codes, c: Bits) -> Bits:
        data = np.uint32(c.size).tobytes() + a.tobytes() + b.tobytes() + c.tobytes()
        done = subprocess.run(["qemu-aarch64", "-cpu", "max", program], input=data, capture_output=True, check=True)
        return np.frombuffer(done.stdout, np.uint32)

    return dot


def bf16(rng: np.random.Generator, shape: tuple[int, ...], low: int, high: int) -> Codes:
    """Codes with exponent fields from `low` up to `high`, any sign."""
    code = rng.integers(low, high, shape) << 7 | rng.integers(0, 128, shape) | rng.integers(0, 2, shape) << 15
    return code.astype(np.uint16)


def float_bits(rng: np.random.Generator, shape: tuple[int, ...], low: int, high: int) -> Bits:
    fraction = np.where(rng.random(shape) < 0.3, 0, rng.integers(0, 1 << 23, shape))
    return (rng.integers(low, high, shape) << 23 | fraction | rng.integers(0, 2, shape) << 31).astype(np.uint32)


#: Exponent fields of a, b and c.
FAMILIES = {
    "any bits": ((0, 256), (0, 256), (0, 256)),
    "near 1": ((115, 135), (115, 135), (110, 140)),
    "every shift": ((100, 150), (100, 150), (90, 160)),
    "tiny products": ((40, 80), (40, 80), (0, 30)),
    "subnormal operands": ((0, 3), (90, 240), (0, 60)),
    "at the least normal number": ((58, 67), (58, 67), (0, 4)),
    "at the largest": ((180, 200), (180, 200), (245, 255)),
}


def operands(family: str, rng: np.random.Generator, m: int) -> tuple[Codes, Codes, Bits]:
    """a [m, 2], b [m, 2] and c [m, m]."""
    of_a, of_b, of_c = FAMILIES[family]
    a, b = bf16(rng, (m, 2), *of_a), bf16(rng, (m, 2), *of_b)
    if family == "near 1":  # products that cancel, too
        a[::2, 1], b[::2, 1] = a[::2, 0], b[::2, 0] ^ 0x8000
    return a, b, float_bits(rng, (m, m), *of_c)


def compare(instruction: Instruction, accumulator: str, family: str, seeds: int, m: int = 128) -> int:
    """Compare every kernel with the instruction; return how many outputs were compared."""
    count = 0
    for seed in range(seeds):
        a, b, c = operands(family, np.random.default_rng([seed, list(FAMILIES).index(family)]), m)
        wide_a, wide_b = (np.ascontiguousarray(x).reshape(-1, 2) for x in (a.repeat(m, 0), np.tile(b, (m, 1))))
        theirs = instruction(wide_a, wide_b, np.ascontiguousarray(c.reshape(-1)))
        nan = np.isnan(theirs.view(np.float32))
        for kernel in ("auto", "reference") if seed < 2 else ("auto",):
            with lp.use_kernel(kernel):
                ours = lp.mma(a, b, c.view(np.float32), accumulator=accumulator).reshape(-1)
            wrong = np.flatnonzero((ours.view(np.uint32) != theirs) & ~(nan & np.isnan(ours)))
            assert wrong.size == 0, (
                f"{family}, {kernel}: {wrong.size} of {c.size} differ; a {wide_a[wrong[0]]}, b {wide_b[wrong[0]]}, "
                f"c {c.reshape(-1)[wrong[0]]:#x}: {ours.view(np.uint32)[wrong[0]]:#x}, not {theirs[wrong[0]]:#x}"
            )
        count += c.size
    return count


def compare_tiles(amx: ctypes.CDLL, family: str, seeds: int, m: int) -> None:
    """Compare chains of two TDPBF16PS with a C [m, m]."""
    of_a, of_b, of_c = FAMILIES[family]
    for seed in range(seeds):
        rng = np.random.default_rng([seed, list(FAMILIES).index(family), 64])
        a, b, c = bf16(rng, (m, 64), *of_a), bf16(rng, (m, 64), *of_b), float_bits(rng, (m, m), *of_c)
        if family == "near 1":  # products of even and of odd k that cancel
            a[:, 2::4], b[:, 2::4] = a[:, ::4], b[:, ::4] ^ 0x8000
        theirs = c.copy()
        amx.dot(pointer(a), pointer(b), pointer(theirs), *map(ctypes.c_long, (m, m, 64)))
        nan = np.isnan(theirs.view(np.float32))
        for kernel in ("auto", "reference") if seed < 2 else ("auto",):
            with lp.use_kernel(kernel):
                ours = lp.mma(a, b, c.view(np.float32), accumulator="amx_bf16")
            wrong = np.argwhere((ours.view(np.uint32) != theirs) & ~(nan & np.isnan(ours)))
            assert not wrong.size, f"{family}, {kernel}: {len(wrong)} of {c.size} differ, first {wrong[0]}"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("family", FAMILIES)
def test_lane_chains_are_tdpbf16ps(amx: ctypes.CDLL, family: str) -> None:
    compare_tiles(amx, family, 2, 128)


@pytest.mark.exhaustive
@pytest.mark.parametrize("family", FAMILIES)
def test_four_million_of_tdpbf16ps(amx: ctypes.CDLL, family: str) -> None:
    compare_tiles(amx, family, 16, 512)


BOTH = pytest.mark.parametrize(
    ("instruction", "accumulator"), [("vdpbf16ps", "avx512_bf16"), ("bfdot", "arm_bf16")], ids=["VDPBF16PS", "BFDOT"]
)


@pytest.mark.sampled(8)
@BOTH
@pytest.mark.parametrize("family", FAMILIES)
def test_a_machine_is_the_instruction(instruction, accumulator, family, request):
    assert compare(request.getfixturevalue(instruction), accumulator, family, 4) == 4 * 128 * 128


@pytest.mark.exhaustive
@BOTH
@pytest.mark.parametrize("family", FAMILIES)
def test_four_million_of_each(instruction, accumulator, family, request):
    assert compare(request.getfixturevalue(instruction), accumulator, family, 64, 256) == 1 << 22


def test_what_is_tiny_after_rounding_is_flushed(vdpbf16ps: Instruction) -> None:
    """2^-126 - k 2^-153: to 24 bits with an unbounded exponent, k <= 4 rounds to 2^-126; subnormal, k <= 8 would."""
    least = np.float32(2.0**-126)
    for k in range(1, 12):
        a, b = (lp.encode([[x, 0.0]], "bfloat16") for x in (-k * 2.0**-76, 2.0**-77))
        ours = lp.mma(a, b, [[least]], accumulator="avx512_bf16").item()
        assert ours == (least if k <= 4 else 0)
        theirs = vdpbf16ps(a.repeat(16, 0), b.repeat(16, 0), np.full(16, least.view(np.uint32)))
        assert theirs.view(np.float32)[0] == ours


def test_a_chain_is_its_instructions(vdpbf16ps: Instruction) -> None:
    """K = 64 is 32 instructions, each taking the previous D as its C."""
    rng = np.random.default_rng(5)
    a, b = bf16(rng, (48, 64), 115, 135), bf16(rng, (32, 64), 115, 135)
    d: Bits = np.zeros(48 * 32, np.uint32)
    for k in range(0, 64, 2):
        x, y = (np.ascontiguousarray(z[:, k : k + 2]) for z in (a, b))
        d = vdpbf16ps(x.repeat(32, 0), np.tile(y, (48, 1)), d)
    assert np.array_equal(lp.mma(a, b, accumulator="avx512_bf16").view(np.uint32).reshape(-1), d)


@pytest.mark.parametrize(("family", "fields"), [
    ("any bits", (0, 256)), ("subnormal", (0, 2)), ("beside ties", (1, 255)), ("at the largest", (253, 256)),
])  # fmt: skip
def test_vcvtneps2bf16_is_bfloat16_of_flushed_values(library, family, fields):
    """To nearest even; a subnormal is the zero of its sign, and a NaN keeps its payload's upper bits, made quiet."""
    rng = np.random.default_rng(9)
    x = float_bits(rng, (1 << 20,), *fields)
    if family == "beside ties":
        x = x & 0xFFFF0000 | rng.choice(np.array([0x7FFF, 0x8000, 0x8001], np.uint32), x.size)
    theirs = np.empty(x.size, np.uint16)
    library.convert(pointer(x), pointer(theirs), ctypes.c_long(x.size))
    magnitude = x & 0x7FFFFFFF
    values = np.where(magnitude < 0x00800000, x & 0x80000000, x).astype(np.uint32).view(np.float32)
    ours = lp.encode(values, "bfloat16")
    nan = magnitude > 0x7F800000
    assert np.array_equal(theirs[~nan], ours[~nan])
    assert np.array_equal(theirs[nan], (x[nan] >> 16 | 0x40).astype(np.uint16))
    plain = lp.encode(x.view(np.float32), "bfloat16")
    assert np.array_equal(plain, ours) == (family in ("beside ties", "at the largest"))  # subnormals tell them apart
