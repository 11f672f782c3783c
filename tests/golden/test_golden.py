"""Golden models: generated C compiled with all warnings as errors, and compared with the exact oracle."""

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from peers import missing
from tools import command

import lowprec as lp
from lowprec import oracle
from lowprec.golden.export import TEMPLATES, Exported, ExportError, c_cast, c_header, c_quantizer, sv_dpi
from lowprec.oracle import ACCUMULATORS, FORMATS, Scales
from lowprec.oracle.quantizers import quantize
from lowprec.scaling.rules import AmaxRule
from lowprec.tensorcore.kinds.sequential import SequentialSum

NAMES = [name for name in lp.accumulators if type(lp.accumulators[name]) in TEMPLATES
         and lp.accumulators[name].dtype != np.float64]  # fmt: skip
CASTS = [name for name in lp.formats if type(lp.formats[name]) is lp.Format and lp.formats[name].signed
         and lp.formats[name].has_zero and not lp.formats[name].is_integer]  # fmt: skip
QUANTIZED = [
    name for name in lp.quantizers
    if isinstance(rule := lp.quantizers[name].rule, AmaxRule) and lp.quantizers[name].scale_format.name == "e8m0fnu"
    and rule.scale_calculation in ("floor", "ceil", "even", "even_1bit", "amax*(1/max)")
    and lp.quantizers[name].rounding.name == "nearest_even" and not lp.quantizers[name].format.is_integer
]  # fmt: skip
STRICT = ["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wsign-conversion", "-Wshadow", "-Werror"]

needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler, cc")


def compiled(folder: Path, header: Exported, functions: str, *flags: str) -> ctypes.CDLL:
    """Compile functions that use a header into a library; every warning is an error."""
    (folder / f"{header.name}.h").write_text(header.text)
    (folder / f"{header.name}.c").write_text(f'#include "{header.name}.h"\n{functions}\n')
    out = folder / f"{header.name}.so"
    options = ["-O1", "-fsanitize=undefined", "-fno-sanitize-recover=all", "-shared", "-fPIC", *STRICT]
    run = subprocess.run(
        ["cc", *(flags or ("-std=c99",)), *options, "-o", out, folder / f"{header.name}.c"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    return ctypes.CDLL(str(out))


def product(header: Exported, stored: str) -> str:
    a, b = (f"uint{8 * f.code_dtype.itemsize}_t" for f in (header.a, header.b))
    scales = ", sa + i * blocks, sb + i * blocks" if "const uint8_t *sa" in header.text else ""
    arrays = f"const {a} *a, const {b} *b, const uint8_t *sa, const uint8_t *sb"
    rows = f"{arrays}, const {stored} *c, {stored} *d, int n, int k, int blocks"
    unused = "" if scales else "  (void)sa; (void)sb; (void)blocks;\n"
    return (
        f"int run_selftest(void);\nint run_selftest(void) {{ return {header.name}_selftest(); }}\n"
        f"void dots({rows});\nvoid dots({rows}) {{\n  int i;\n{unused}"
        f"  for (i = 0; i < n; i++) d[i] = {header.name}(a + i * k, b + i * k{scales}, k, c[i]);\n}}"
    )


def codes(rng: np.random.Generator, fmt: lp.Format, shape: tuple[int, ...], kind: int) -> NDArray[Any]:
    """Any codes; ordinary numbers; subnormals and small numbers; zeros of both signs among ordinary numbers."""
    if kind == 0:
        return rng.integers(0, 1 << fmt.bits, shape, dtype=np.uint64).astype(fmt.code_dtype)
    x = rng.standard_normal(shape) * (fmt.smallest_normal if kind == 2 else 2.0 ** rng.integers(-3, 4, shape))
    out = np.asarray(lp.encode(x, fmt)).astype(fmt.code_dtype)
    if kind == 3:
        out[rng.random(shape) < 0.6] = 0
        out[rng.random(shape) < 0.2] = fmt.sign_mask
    return out


def scale_codes(
    rng: np.random.Generator, accumulator: lp.Accumulator, shape: tuple[int, int], kind: int
) -> NDArray[np.uint8]:
    """Any codes of scales, those around 1, small ones, large ones; none without scales."""
    fmt, block = accumulator.scale_format, accumulator.scale_block
    if fmt is None:
        return np.empty((shape[0], 0), np.uint8)
    one, bound = int(lp.encode(1.0, fmt)), fmt.max_code + 1
    low, high = ((0, 256), (one - 20, one + 20), (0, 12), (bound - 20, bound))[kind]
    return rng.integers(low, high, (shape[0], shape[1] // block)).astype(np.uint8)


@needs_cc
@pytest.mark.sampled(1, default=46)
@pytest.mark.parametrize("name", NAMES)
def test_generated_c_is_the_oracle(name: str, tmp_path: Path) -> None:
    accumulator = lp.accumulators[name]
    header, stored = c_header(name), accumulator.stored_format
    library = compiled(tmp_path, header, product(header, f"uint{stored.bits}_t"))
    assert library.run_selftest() == 0
    rng, n = np.random.default_rng(7), 12
    rule, read = ACCUMULATORS[name].rule, accumulator.multiplied(header.a)
    drop = header.a.bits - read.bits
    for kind in range(4):
        block = accumulator.scale_block or 1
        for k in sorted({-(-k // block) * block for k in (1, header.step + 1, 2 * header.step)}):
            a, b = (codes(rng, header.a, (n, k), kind) for _ in "ab")
            sa, sb = (scale_codes(rng, accumulator, (n, k), kind) for _ in "ab")
            c = codes(rng, stored, (n,), kind)
            got = np.empty(n, c.dtype)
            library.dots(*(x.ctypes.data_as(ctypes.c_void_p) for x in (a, b, sa, sb, c, got)), n, k, sa.shape[1])
            for i in range(n):
                fmt, scaling = FORMATS[read.name], ACCUMULATORS[name].scales
                scales = None if scaling is None else Scales(sa[i].tolist(), sb[i].tolist(), *scaling)
                want = rule.dot((a[i] >> drop).tolist(), (b[i] >> drop).tolist(), int(c[i]), fmt, fmt, scales)
                if accumulator.has_canonical_nan and want & (stored.sign_mask - 1) > (stored.inf_code or 0):
                    want = stored.sign_mask - 1
                assert int(got[i]) == want, (kind, k, a[i], b[i], hex(c[i]), hex(got[i]), hex(want))


@pytest.mark.slow
@needs_cc
@pytest.mark.parametrize(
    ("name", "formats", "changes"),
    [
        ("hopper_fp8", ("e5m2", "e4m3fn"), {"align": "floor", "zero_exponent": None}),
        ("hopper_fp8", ("e5m2", "e4m3fn"),
         {"align": "nearest", "fraction_bits": 40, "group_size": 64, "output_format": "float32"}),
        ("hopper_fp8", ("dl8", "dl16"), {"group_size": 1, "fraction_bits": 3}),
        ("rdna4_f16", ("dl16", "dl8"), {}), ("cdna1_bf16", ("dl16", "dl8"), {}),
        ("aiu_dl8", ("dl16", "e5m2"), {"rounded_sum": "running"}),
        ("aiu_dl8", ("dl8", "float16"), {"chunk_format": "bfloat16"}),
    ],
)  # fmt: skip
def test_modified_accumulators_are_exported_too(
    name: str, formats: tuple[str, str], changes: dict[str, Any], tmp_path: Path
) -> None:
    accumulator = lp.accumulators[name].with_(**changes, input_formats=(), name="mine")
    header = c_header(accumulator, *formats, vectors=0)
    library = compiled(tmp_path, header, product(header, "uint32_t"))
    rng, n, k = np.random.default_rng(8), 300, 40
    for kind in range(4):
        a, b = (codes(rng, fmt, (n, k), kind) for fmt in (header.a, header.b))
        c = codes(rng, lp.formats["float32"], (n,), kind)
        got = np.empty(n, np.uint32)
        library.dots(*(x.ctypes.data_as(ctypes.c_void_p) for x in (a, b, a, b, c, got)), n, k, 0)
        want = [
            lp.mma(a[i : i + 1], b[i : i + 1], c[i : i + 1, None].view(np.float32), accumulator=accumulator,
                   a_format=formats[0], b_format=formats[1]).view(np.uint32).item()
            for i in range(n)
        ]  # fmt: skip
        assert np.array_equal(got, np.array(want, np.uint32))


@needs_cc
@pytest.mark.parametrize("name", ["hopper_fp8", "cdna3_fp8", "rdna4_f16_wave32", "cdna1_bf16"])
def test_headers_compile_as_cpp(name: str, tmp_path: Path) -> None:
    header = c_header(name)
    stored = f"uint{lp.accumulators[name].stored_format.bits}_t"
    text = f'extern "C" {{\n{product(header, stored)}\n}}'
    assert compiled(tmp_path, header, text, "-x", "c++", "-std=c++17").run_selftest() == 0


@needs_cc
def test_vectors_are_those_of_the_fields(tmp_path: Path) -> None:
    """A changed accumulator under a catalogue's name has no vectors; formats are read by their fields too."""
    changed = lp.accumulators["hopper_fp8"].with_(fraction_bits=7, name="hopper_fp8")
    for given in (changed, changed.with_(name="mine")):
        header = c_header(given)
        assert "_selftest() has no vectors and returns 0." in header.text
        assert "static const" not in header.text
    with lp.accumulators.scoped(hopper_fp8=changed):
        assert "no vectors" in c_header("hopper_fp8").text
    assert "the number of the 10 embedded vectors" in c_header("hopper_fp8").text
    header = c_header("exact", "e3m4")
    assert compiled(tmp_path, header, product(header, "uint32_t")).run_selftest() == 0


@needs_cc
def test_zeros_far_below_other_terms(tmp_path: Path) -> None:
    """A zero C is not shifted by more than 63 places, which C does not define, and a name cannot end the comment."""
    accumulator = lp.accumulators["hopper_fp8"].with_(zero_exponent=-8000, name="mine */ int x; /*")
    header = c_header(accumulator)
    library = compiled(tmp_path, header, product(header, "uint32_t"))
    a, got = np.zeros((1, 32), np.uint8), np.empty(1, np.uint32)
    for start in (0, 1, 0x80000000, 0x7F7FFFFF):
        c = np.array([start], np.uint32)
        library.dots(*(x.ctypes.data_as(ctypes.c_void_p) for x in (a, a, a, a, c, got)), 1, 32, 0)
        wanted = lp.mma(a, a, c[:, None].view(np.float32), accumulator=accumulator).view(np.uint32)
        assert got[0] == wanted.item()


def test_a_wrong_constant_fails_the_selftest(tmp_path: Path) -> None:
    """The embedded vectors distinguish: one bit less in the alignment changes some of them."""
    header = c_header("hopper_fp8", vectors=40)
    wrong = header._replace(text=header.text.replace("_FRACTION_BITS = 13", "_FRACTION_BITS = 12"))
    assert wrong.text != header.text
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler, cc")
    assert compiled(tmp_path, wrong, product(wrong, "uint32_t")).run_selftest() > 0


@needs_cc
@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", CASTS)
def test_generated_casts_are_the_oracle(name: str, tmp_path: Path) -> None:
    try:
        header = c_cast(name)
    except ExportError as error:
        pytest.skip(str(error))
    fmt = lp.formats[name]
    code_type = f"uint{8 * fmt.code_dtype.itemsize}_t"
    args = f"const uint32_t *x, {code_type} *y, uint32_t *z, int n"
    library = compiled(
        tmp_path, header, f"void cast({args});\nvoid cast({args}) {{\n  int i;\n  for (i = 0; i < n; i++) {{ "
        f"y[i] = {header.name}_encode(x[i]); z[i] = {header.name}_decode(y[i]); }}\n}}",
    )  # fmt: skip
    rng = np.random.default_rng(9)
    x = np.concatenate([np.arange(1 << 16, dtype=np.uint32) << 16, rng.integers(0, 1 << 32, 50_000, dtype=np.uint32)])
    y, z = np.empty(x.size, fmt.code_dtype), np.empty(x.size, np.uint32)
    library.cast(*(v.ctypes.data_as(ctypes.c_void_p) for v in (x, y, z)), x.size)
    values = x.view(np.float32)
    assert np.array_equal(y, lp.encode(values, fmt))
    assert np.array_equal(z.view(np.float32), lp.decode(y, fmt), equal_nan=True)
    for i in rng.integers(0, x.size, 40):
        if np.isfinite(values[i]) and fmt.bits <= 8:
            assert int(y[i]) == oracle.encode(float(values[i]), fmt), (name, hex(x[i]))


@needs_cc
@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", QUANTIZED)
def test_generated_quantizers_are_the_oracle(name: str, tmp_path: Path) -> None:
    header = c_quantizer(name)
    rng, n, k = np.random.default_rng(12), 60, header.step
    x = rng.standard_normal((n, k)) * 2.0 ** rng.integers(-12, 3, (n, k)) * 2.0 ** rng.integers(-120, 120, (n, 1))
    values = x.astype(np.float32)
    values[:12, 0] = np.exp2(rng.integers(-126, 127, 12)) * (2 - 2.0 ** -rng.integers(1, 24, 12))  # near powers of two
    values[12:18] = np.float32(1e-44) * rng.integers(-3, 4, (6, k))
    values[18:20], values[20:22, 3], values[22, 5], values[23, :2] = 0.0, np.inf, np.nan, (np.nan, -np.inf)
    values[24:26, 1] = np.finfo(np.float32).max
    codes, scales = quantized(header, tmp_path, values)
    wanted, factors, _ = quantize(values, name)
    assert np.array_equal(codes, wanted)
    assert np.array_equal(lp.decode(scales, "e8m0fnu"), factors[:, 0], equal_nan=True)


@pytest.mark.slow
@needs_cc
def test_chains_of_1024_products(tmp_path: Path) -> None:
    """A tree as deep as its group is long is exported and drawn."""
    for name in ("arm_bf16", "amx_bf16", "avx512_bf16"):
        accumulator = lp.accumulators[name].with_(group_size=1024, name="mine")
        assert "<svg" in accumulator._repr_html_()
        assert c_header(accumulator).step == 1024
    header = c_header(accumulator)
    library = compiled(tmp_path, header, product(header, "uint32_t"))
    rng = np.random.default_rng(11)
    a, b = (codes(rng, header.a, (2, 1024), 1) for _ in "ab")
    c, got = codes(rng, lp.formats["float32"], (2,), 1), np.empty(2, np.uint32)
    library.dots(*(x.ctypes.data_as(ctypes.c_void_p) for x in (a, b, a, b, c, got)), 2, 1024, 0)
    wanted = [lp.mma(a[i : i + 1], b[i : i + 1], c[i : i + 1, None].view(np.float32), accumulator=accumulator,
                     a_format=header.a, b_format=header.b).view(np.uint32).item() for i in (0, 1)]  # fmt: skip
    assert got.tolist() == wanted


def quantized(header: Exported, folder: Path, x: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.uint8]]:
    """Return codes and scales of blocks by a generated quantizer."""
    args = f"const uint32_t *x, uint{8 * header.a.code_dtype.itemsize}_t *y, uint8_t *s, int n"
    library = compiled(
        folder, header, f"void blocks({args});\nvoid blocks({args}) {{\n  int i;\n  for (i = 0; i < n; i++) "
        f"s[i] = {header.name}(x + {header.step} * i, y + {header.step} * i);\n}}",
    )  # fmt: skip
    codes, scales = np.empty(x.shape, header.a.code_dtype), np.empty(len(x), np.uint8)
    library.blocks(*(v.ctypes.data_as(ctypes.c_void_p) for v in (x, codes, scales)), len(x))
    return codes, scales


@needs_cc
@pytest.mark.parametrize(
    "changes",
    [{"zero_block": "smallest"}, {"zero_block": "largest", "inf_block": "one"}, {"inf_block": "smallest"}],
)
def test_changed_quantizers_are_right(changes: dict[str, Any], tmp_path: Path) -> None:
    q = lp.quantizers["mxfp8_floor"].with_(**changes, min_scale_exponent=-126, name="mine")
    x = np.random.default_rng(0).standard_normal((5, 32)).astype(np.float32)
    x[0], x[1, 3], x[2, 1], x[3] = 0, np.inf, np.nan, 1e-44
    codes, scales = quantized(c_quantizer(q), tmp_path, x)
    wanted = lp.quantize(x, q)
    assert np.array_equal(codes, wanted.codes)
    assert np.array_equal(lp.decode(scales, "e8m0fnu"), wanted.scale[:, 0], equal_nan=True)


@pytest.mark.parametrize(
    "changes",
    [{"nan_block": "one"}, {"nan_block": "largest"}, {"inf_block": "smallest_normal"}, {"zero_block": "rule"},
     {"zero_block": "nan"}, {"format": "bfloat16"}, {"format": "float16"}],
)  # fmt: skip
def test_quantizers_without_a_template_are_refused(changes: dict[str, str]) -> None:
    with pytest.raises(ExportError, match=r"elements of at most 8 bits, nan_block='nan', inf_block of .* got mine: "):
        c_quantizer(lp.quantizers["mxfp8_floor"].with_(**changes, name="mine"))


def test_what_cannot_be_exported_says_why() -> None:
    class MySum(SequentialSum):
        """A kind of one's own."""

    with pytest.raises(ExportError, match=r"must be of a kind with a C template .*, got mine, a MySum"):
        c_header(MySum("mine"))
    with pytest.raises(ExportError, match="must take no scales for a DPI-C package, got blackwell_mxf8"):
        sv_dpi(c_header("blackwell_mxf8", vectors=0), "blackwell_mxf8")
    with pytest.raises(ExportError, match="results must be float32, FP22 or float16, got float64"):
        c_header("fp64")
    with pytest.raises(ExportError, match=r"at most 12 significant bits .* got float32 and float32 for "):
        c_header(lp.accumulators["cdna2_f16"].with_(input_formats=()), "float32")
    with pytest.raises(ExportError, match="scale_format must be a format with subnormals or without zero, got dl8"):
        c_header(lp.accumulators["blackwell_nvfp4"].with_(scale_format="dl8"))
    with pytest.raises(ExportError, match="must not promote"):
        c_header(lp.accumulators["hopper_fp8"].with_(promote_every=128))
    with pytest.raises(ExportError, match="must be a signed floating-point format with a zero, got e8m0fnu"):
        c_cast("e8m0fnu")
    with pytest.raises(ExportError, match="policy must not raise errors, got strict"):
        c_cast("e4m3fn", lp.policies["ocp_sat"].with_(name="strict", overflow="raise"))
    with pytest.raises(ExportError, match=r"scales must be E8M0, calculated by floor, .*, got nvfp4_te"):
        c_quantizer("nvfp4_te")
    with pytest.raises(ExportError, match=r"quantizer must round elements .* to nearest even, .* got mxfp4_gguf"):
        c_quantizer("mxfp4_gguf")
    with pytest.raises(ExportError, match="must be a signed floating-point format with a zero, got mxint8"):
        c_quantizer("mxint8")
    with pytest.raises(ValueError, match="operands must be of e4m3fn, e5m2"):
        c_header("hopper_fp8", "float16")


def test_command_writes_files(tmp_path: Path) -> None:
    output = command("golden", "rdna3_f16", "--language", "sv-dpi", "--out", str(tmp_path / "rtl"))
    assert output.splitlines() == [
        str(tmp_path / "rtl" / f"lp_rdna3_f16{end}") for end in (".h", "_pkg.sv", "_dpi.c")
    ]  # fmt: skip
    package = (tmp_path / "rtl" / "lp_rdna3_f16_pkg.sv").read_text()
    assert package == sv_dpi(c_header("rdna3_f16"), "rdna3_f16")[0]
    assert "localparam int GROUP = 2, A_BITS = 16, B_BITS = 16, C_BITS = 32;" in package
    assert command("golden", "e5m2").startswith("/* Casts between float32 and e5m2")
    assert command("golden", "mxfp8_floor").startswith("/* mxfp8_floor: quantizes a block of 32 float32 numbers")
    assert "--out must be a folder for lp_rdna3_f16.h, " in command(
        "golden", "rdna3_f16", "--language", "sv-dpi", code=2
    )
    assert "NAME must be an accumulator" in command("golden", "e5m2", "--a-format", "e5m2", code=2)
    assert "NAME must be a format with --policy" in command("golden", "rdna3_f16", "--policy", "ieee", code=2)
    assert "unknown" in command("golden", "hoper_fp8", code=2)


BENCH = """module bench;
  import {id}_pkg::*;
  bit [GROUP*A_BITS-1:0] a;
  bit [GROUP*B_BITS-1:0] b;
  bit [C_BITS-1:0] c, d, want;
  integer file, wrong = 0, read;
  initial begin
    if ({id}_dpi_selftest() != 0) $display("selftest");
    file = $fopen("vectors.hex", "r");
    while ($fscanf(file, "%h %h %h %h", a, b, c, want) == 4) begin
      {id}_dpi(a, b, c, d);
      read = read + 1;
      if (d != want) wrong = wrong + 1;
    end
    $display("%0d of %0d differ", wrong, read);
    $finish;
  end
endmodule
"""


@pytest.mark.peers
@pytest.mark.parametrize("name", ["hopper_fp8", "rdna4_f16_wave32", "hopper_f16_f16"])
def test_dpi_pair_under_verilator(name: str, tmp_path: Path) -> None:
    if shutil.which("verilator") is None:
        missing("Verilator", "apt-get install verilator")
    header, accumulator = c_header(name), lp.accumulators[name]
    package, wrapper = sv_dpi(header, name)
    stored = accumulator.stored_format
    rng, n = np.random.default_rng(10), 400
    a, b = (codes(rng, fmt, (n, header.step), i) for i, fmt in enumerate((header.a, header.b)))
    c = codes(rng, stored, (n,), 1)

    def packed(row: NDArray[Any], bits: int) -> str:
        return f"{sum(int(code) << (bits * i) for i, code in enumerate(row)):x}"

    lines = []
    for i in range(n):
        start = c[i : i + 1, None].view(accumulator.dtype)
        want = lp.mma(a[i : i + 1], b[i : i + 1], start, accumulator=name).view(c.dtype).item()
        lines.append(f"{packed(a[i], header.a.bits)} {packed(b[i], header.b.bits)} {int(c[i]):x} {want:x}")
    files = {
        "vectors.hex": "\n".join(lines), f"{header.name}.h": header.text, f"{header.name}_pkg.sv": package,
        f"{header.name}_dpi.c": wrapper, "bench.sv": BENCH.format(id=header.name),
    }  # fmt: skip
    for file, text in files.items():
        (tmp_path / file).write_text(text)
    build = ["verilator", "--binary", "--top-module", "bench", "-Wno-WIDTH", "-CFLAGS", f"-I{tmp_path}"]
    sources = [f"{header.name}_pkg.sv", "bench.sv", f"{header.name}_dpi.c"]
    subprocess.run([*build, *sources], cwd=tmp_path, check=True, capture_output=True)
    run = subprocess.run([tmp_path / "obj_dir" / "Vbench"], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert f"0 of {n} differ" in run.stdout
    assert "selftest" not in run.stdout
