"""The capture of tensor cores: it compiles to the right instructions, asks what it should, and checks its files."""

import functools
import importlib
import re
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lowprec as lp
from lowprec import oracle
from lowprec.special.mufu import MufuFunction, MufuQuotient
from lowprec.special.reciprocal import flushed

FOLDER = Path(__file__).parents[2] / "reference_data" / "capture"


sys.path.insert(0, str(FOLDER))
capture, capture_build, cases, capture_file, sass, special, verify = map(
    importlib.import_module,
    ("capture", "capture_build", "capture_cases", "capture_file", "sass", "capture_special", "verify"),
)
sys.path.remove(str(FOLDER))

needs_nvcc = pytest.mark.skipif(capture_build.nvcc() is None, reason="needs nvcc, which is not installed here")
FP8 = "wgmma.f32.e4m3.e4m3"
SMALL = ("C alone, edges", "cancellation, C near", "NaN and Inf, C edges", "chain of 4")


# --- the program -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return capture_build.compile_program(tmp_path_factory.mktemp("library"))  # every warning is an error


@pytest.mark.slow
@needs_nvcc
def test_machine_code_takes_the_right_path(tmp_path: Path) -> None:
    kernels = sass.kernels(capture_build.compile_program(tmp_path, cubin=True).read_bytes())
    functions = special.FUNCTIONS + special.CONVERSIONS + special.BINARY
    assert len(kernels) == len(cases.INSTRUCTIONS) + 1 + len(functions)
    for name, counts in kernels.items():
        assert set(counts) & sass.UNITS == sass.expected(name), name
    found = (("WgmmaE4E5F16", "QGMMA"), ("WgmmaTf32F32", "HGMMA"), ("MmaE4E4F32", "HMMA"), ("MmaE4E4F32", "F2FP"),
             ("MmaE4E4F32", "FADD"), ("MmaE5E4F16", "HADD2"))  # fmt: skip
    assert all(kernels[name][word] for name, word in found)
    # FP8 through mma.sync: bytes become halves, two products of sixteen for each of eight columns, C is added last.
    assert kernels["MmaE4E4F32"]["HMMA"] == 2 * kernels["MmaF16F32"]["HMMA"]
    assert not kernels["MmaF16F32"]["F2FP"]
    # Promotion: a rounded product of the scales and one fused multiply-add for each of a thread's 32 outputs.
    assert kernels["promoted"]["FMUL"] == kernels["promoted"]["FFMA"] == 32


@pytest.mark.slow
@needs_nvcc
def test_program_and_driver_name_the_same_instructions(library: Path) -> None:
    program = capture.Program(library)
    program.code.capture_name.restype = capture.ctypes.c_char_p
    names = [name.decode() for name in map(program.code.capture_name, range(100)) if name]
    assert sorted(names) == sorted(cases.INSTRUCTIONS)


@needs_nvcc
def test_self_check_on_a_gpu_or_a_refusal_without(library, tmp_path, monkeypatch):
    program = capture.Program(library)
    try:
        program.device()
    except capture_file.CaptureError as error:  # there is no Hopper GPU
        out = tmp_path / "x.npz"
        monkeypatch.setattr(sys, "argv", ["capture.py", str(out), "--library", str(library)])
        with pytest.raises(SystemExit, match=f"(?s)^error: .*{re.escape(str(error))}"):
            capture.main()
        assert not out.exists()
        for name in special.FUNCTIONS:  # the program knows all of them
            with pytest.raises(capture_file.CaptureError, match=rf"^{name}: (?!invalid argument)"):
                program.special(name, 0, 1, 128)
        with pytest.raises(capture_file.CaptureError, match=r"^ex3: invalid argument"):
            program.special("ex3", 0, 1, 128)
    else:  # then the layouts must be right
        assert "are right" in capture.check(program.tiles, program.promoted, 0)
        assert "are near" in special.check(program.special)


def test_without_nvcc_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture_build, "nvcc", lambda: None)
    with pytest.raises(capture_file.CaptureError, match="nvcc is not installed"):
        capture_build.compile_program(tmp_path)


def test_layout_of_shared_memory_follows_from_the_descriptor() -> None:
    """Core matrices of 8 x 16 bytes at SBO and LBO are where the kernel puts row and half of k."""
    text = (FOLDER / "capture.cu").read_text()
    assert "LBO = 1024, SBO = 128;" in text
    assert "units[TILE * half + row]" in text
    for row, half in np.ndindex(64, 2):
        assert 16 * (64 * half + row) == half * 1024 + (row // 8) * 128 + (row % 8) * 16


# --- what is asked ---------------------------------------------------------------------------------------------------


@functools.cache
def _operands(name: str, case: str) -> tuple[Any, Any, Any]:
    return cases.build(cases.INSTRUCTIONS[name], next(c for c in cases.CASES if c.name == case), 0)


def _witnesses(name: str, operands: tuple[Any, Any, Any]) -> Any:
    """Return what `mma` gives, of which the oracle must give some as well."""
    instruction = cases.INSTRUCTIONS[name]
    fast = verify.by_mma(instruction, *operands)
    assert fast.dtype == operands[2].dtype
    assert np.array_equal(fast.ravel()[:: verify.EVERY], verify.by_oracle(instruction, *operands))
    return fast


@pytest.mark.sampled(4)
@pytest.mark.sampled(3, default=6)
@pytest.mark.parametrize("name", sorted(cases.INSTRUCTIONS))
def test_whole_numbers_are_exact_on_every_machine(name: str) -> None:
    """The self-check must not refuse a right GPU."""
    instruction = cases.INSTRUCTIONS[name]
    *operands, exact = cases.build_integers(instruction, 3)
    assert np.array_equal(_witnesses(name, operands), cases.encode_integers(instruction.c, exact))


@pytest.mark.parametrize("fmt", list(cases.FIELDS.values()), ids=list(cases.FIELDS))
def test_fields_are_those_of_the_formats(fmt: Any) -> None:
    ours = oracle.fields(lp.formats[verify.FORMATS[fmt.name]])
    assert (fmt.exponent_bits, fmt.mantissa_bits, fmt.bias) == (ours.exponent_bits, ours.mantissa_bits, ours.bias)
    assert fmt.largest == oracle.max_code(ours)
    values = np.arange(-64, 65)
    codes = cases.encode_integers(fmt, values[np.abs(values) <= 8])
    assert [oracle.decode(int(code), ours) for code in codes] == list(range(-8, 9))


def test_cases_contain_what_their_names_say() -> None:
    a, b, c = _operands(FP8, "NaN and Inf, C edges")
    assert [((side & 0x7F) == 0x7F).any(1).sum() for side in (a, b)] == [32, 32]
    assert {0x80000000, 0x3FF, 0x3F8003FF, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0xFFFFFFFF} <= set(c.ravel().tolist())
    a, b, _ = _operands("wgmma.f32.e5m2.e5m2", "subnormal, C tiny")
    assert all(((side & 0x7F) < 4).all() for side in (a, b))
    assert (a & 3).any()
    assert not (_operands(FP8, "C alone, edges")[0] & 0x7F).any()
    a, _, _ = _operands("wgmma.f32.tf32.tf32", "wide")
    assert a.dtype == np.uint32
    assert (a & 0x1FFF).any(), "low bits that the unit ignores must occur"
    assert _operands(FP8, "chain of 4")[0].shape == (64, 128)
    for case in ("ladder, C near", "cancellation, C near"):
        assert len(np.unique(verify.tiles(cases.INSTRUCTIONS[FP8], *(x[None] for x in _operands(FP8, case))))) > 2000


@pytest.mark.parametrize(("name", "case", "wrong", "enough"), [
    *((FP8, "ladder, C near", wrong, 100)
      for wrong in ({"group_size": 16}, {"fraction_bits": 12}, {"fraction_bits": 14}, {"output_format": "float32"})),
    *((f"wgmma.{name}", None, {"zero_exponent": zeros}, 20)  # the first question
      for name, zeros in (("f16.f16.f16", -22), ("f16.f16.f16", None), ("f32.bf16.bf16", -134), ("f32.bf16.bf16", None),
                          ("f32.tf32.tf32", -134))),
], ids=str)  # fmt: skip
def test_questions_tell_wrong_machines_apart(name, case, wrong, enough):
    instruction = cases.INSTRUCTIONS[name]
    a, b, c = _operands(name, case or cases.cases_of(instruction)[0].name)
    unit = lp.accumulators[verify.machine_of(instruction)]
    d, e = (lp.mma(a, b, c.view(unit.dtype), accumulator=x) for x in (unit, unit.with_(**wrong)))
    assert np.count_nonzero(d != e) > enough


# --- files -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made() -> Any:
    return verify.make(
        7, instructions=(FP8, "wgmma.f32.e5m2.e4m3"), names=SMALL, gemms=("1x128 by 128x128", "far scales")
    )


def test_round_trip_has_no_mismatch(made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    made.save(tmp_path / "x.npz")
    loaded = capture_file.load(tmp_path / "x.npz")
    assert (loaded.meta["source"], loaded.meta["seed"], len(loaded.meta["program"])) == ("emulator", 7, 64)
    rows = list(verify.compare(loaded))
    assert len(rows) == 2 * len(SMALL) + 2
    assert sum(row.outputs for row in rows) == 2 * len(SMALL) * 64 * 64 + 2 * 128 * 128
    assert not any(row.mismatches for row in rows)
    monkeypatch.setattr(sys, "argv", ["verify.py", str(tmp_path / "x.npz")])
    with pytest.raises(SystemExit) as stopped:
        verify.main()
    assert stopped.value.code == 0
    assert capsys.readouterr().out.endswith("65536 outputs, 0 mismatches\n")


@pytest.mark.parametrize(
    "name", ["wgmma.f32.e5m2.e4m3", "wgmma.f16.e5m2.e5m2", "wgmma.f32.tf32.tf32", "wgmma.f16.f16.f16"]
)
def test_nan_and_infinity_come_out_as_words(name):
    fast = _witnesses(name, _operands(name, "NaN and Inf, C edges"))
    infinity = cases.INSTRUCTIONS[name].c.largest + 1
    assert {(1 << 8 * fast.itemsize - 1) - 1, infinity} <= set(fast.ravel().tolist())


@pytest.mark.slow
def test_the_oracle_is_a_second_witness(made: Any) -> None:
    rows = list(verify.compare(made, exactly=True))
    assert sum(row.outputs for row in rows) == (2 * len(SMALL) * 64 * 64 + 2 * 128 * 128) // verify.EVERY
    assert not any(row.mismatches for row in rows)


def test_one_wrong_bit_is_found(made: Any) -> None:
    d = made.groups[0].arrays["d"]
    d[1, 5, 9] ^= 1 << 10
    rows = list(verify.compare(made))
    d[1, 5, 9] ^= 1 << 10
    assert [row.mismatches for row in rows] == [0, 1, *[0] * (len(rows) - 2)]
    assert f"output {5 * 64 + 9}: recorded" in rows[1].first


def test_changed_operands_and_other_files_are_refused(made: Any, tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    made.save(path)
    with np.load(path) as data:
        arrays = dict(data)
    key = next(key for key in arrays if key.endswith("/a"))
    arrays[key][0, 0, 0] ^= 1
    np.savez(path, **arrays)
    with pytest.raises(capture_file.CaptureError, match="not those that were recorded"):
        capture_file.load(path)
    for write in (lambda: path.write_bytes(b"PK"), lambda: np.savez(path, x=np.zeros(3))):
        write()
        with pytest.raises(capture_file.CaptureError, match="no capture, or damaged"):
            capture_file.load(path)


def test_a_wrong_layout_is_refused() -> None:
    """Two groups of eight rows exchanged, or one value of k missing: the self-check sees both."""

    def integers(instruction: Any, a: Any, b: Any, c: Any) -> Any:
        x, y, z = map(_values, (instruction.a, instruction.b, instruction.c), (a, b, c))
        exact = np.einsum("tik,tjk->tij", x, y) + z
        return cases.encode_integers(instruction.c, exact.astype(np.int64)).astype(c.dtype)

    def exchanged(instruction: Any, a: Any, b: Any, c: Any) -> Any:
        return integers(instruction, a[:, np.r_[8:16, 0:8, 16:64]], b, c)

    def shortened(instruction: Any, a: Any, b: Any, c: Any) -> Any:
        return integers(instruction, np.where(np.arange(a.shape[2]) == 3, 0, a), b, c)

    assert "sums of whole numbers are right" in capture.check(integers, verify.promoted, 0)
    for mistake in (exchanged, shortened):
        with pytest.raises(capture_file.CaptureError, match=r"do not lie as they should.*wgmma\.f16\.e4m3"):
            capture.check(mistake, verify.promoted, 0)
    with pytest.raises(capture_file.CaptureError, match="the GEMM with promotion"):
        capture.check(integers, lambda *x: verify.promoted(x[0][::-1].copy(), *x[1:]), 0)


def _values(fmt: Any, words: Any) -> Any:
    """Values of codes of small integers."""
    codes = words.astype(np.int64) >> fmt.shift
    known = np.arange(-64, 65) if fmt.mantissa_bits > 7 else np.arange(-8, 9)
    table = dict(zip(cases.encode_integers(fmt, known).tolist(), known.tolist(), strict=True))
    return np.vectorize(table.__getitem__, otypes=[np.int64])(codes)


def test_damaged_machine_code_is_refused() -> None:
    with pytest.raises(ValueError, match="not a 64-bit ELF file"):
        sass.sections(struct.pack("<4s12x", b"PK"))


# --- special functions -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the capture that the program writes in a dry run."""
    path = tmp_path_factory.mktemp("special") / "trial.npz"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["capture_special.py", str(path), "--dry"])
        special.main()
    return capture_file.load(path)


def test_dry_run_has_the_digests_of_all_functions(trial: Any) -> None:
    groups = {group.name: group.arrays["d"] for group in trial.groups}
    name = "rcp.approx.ftz.f32"
    assert {group.instruction for group in trial.groups} == set(special.FUNCTIONS)
    words = special.stand_in(name, 127 << 23, 1 << 15, 256)
    np.testing.assert_array_equal(groups[f"{name}/digests"][127], special.digest_of(words))
    for name in special.PAIRS:
        np.testing.assert_array_equal(groups[f"{name}/pairs"] & 0xFFFF, groups[f"{name}/pairs"][::-1] >> 16)


@pytest.fixture(scope="module")
def recorded() -> Any:
    """Return the digests of an H200's special functions."""
    return {group.name: group for group in capture_file.load(FOLDER / "h200_special.npz").groups}


@pytest.mark.sampled(0, default=5)
@pytest.mark.parametrize("name", verify.MODELS)
def test_special_functions_have_the_bits_of_an_h200(name: str, recorded: Any) -> None:
    octaves = [0, 127, 255, 382] if "cvt" not in name else [120, 255]
    rows = list(verify._compare_octaves(recorded[f"{name}/digests"], octaves))
    assert [row.mismatches for row in rows] == [0] * len(octaves)


@pytest.mark.slow
def test_correctly_rounded_functions_differ_from_an_h200(recorded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "ex2.approx.ftz.f32"
    monkeypatch.setitem(verify.MODELS, name, lambda w: special.stand_in(name, int(w[0]), 1, len(w)))
    assert [row.mismatches for row in verify._compare_octaves(recorded[f"{name}/digests"], [126])] == [1 << 23]


def test_functions_of_two_numbers_follow_from_others(recorded: Any) -> None:
    """Quotients are products with a reciprocal; L2 adds without subnormal numbers, bulk copies with them."""
    rcp = MufuFunction("rcp")
    rules = {
        "div.approx.ftz.f32": lambda x, y: flushed(flushed(x) * rcp(y)),
        "div.full.ftz.f32": MufuQuotient().divide,
        "red.global.add.f32": lambda x, y: flushed(flushed(x) + flushed(y)),
        "cp.reduce.async.bulk.add.f32": lambda x, y: x + y,
    }
    for name, rule in rules.items():
        x, y = special.operands(name, 0)
        with np.errstate(all="ignore"):
            want = rule(x, y).astype(np.float32)
        got = recorded[f"{name}/binary"].arrays["d"].view(np.float32)
        assert len(got) == 1 << 16
        assert ((got.view(np.uint32) == want.view(np.uint32)) | (np.isnan(got) & np.isnan(want))).all(), name


@pytest.mark.parametrize(("name", "fmt"), [("f16x2", "float16"), ("bf16x2", "bfloat16")])
def test_tanh_of_pairs_is_rounded_toward_zero(name: str, fmt: str, recorded: Any) -> None:
    codes = np.arange(1 << 16, dtype=np.uint16)
    y = MufuFunction("tanh")(lp.decode(codes, fmt))
    want = np.where(np.isnan(y), 0x7FFF, lp.encode(y, fmt, rounding="toward_zero"))
    np.testing.assert_array_equal(recorded[f"tanh.approx.{name}/pairs"].arrays["d"] & 0xFFFF, want)


@pytest.mark.sampled(2, default=4)
@pytest.mark.parametrize("name", cases.INSTRUCTIONS)
def test_tensor_cores_of_an_h200_have_lowprec_s_bits(name: str) -> None:
    whole = capture_file.load(FOLDER / "h200_tensor_cores.npz")
    groups = [group for group in whole.groups if group.instruction == name]
    rows = list(verify.compare(capture_file.Capture(whole.meta, groups)))
    assert sum(row.outputs for row in rows) >= 10 * 4096
    assert [row for row in rows if row.mismatches] == []


@pytest.mark.parametrize("name", ["wgmma.f16.f16.f16", "wgmma.f32.bf16.bf16", "wgmma.f32.tf32.tf32"])
def test_an_h200_decides_what_zeros_count_as(name: str) -> None:
    whole = capture_file.load(FOLDER / "h200_tensor_cores.npz")
    group = next(group for group in whole.groups if group.instruction == name)
    arrays = {key: x[:1] for key, x in group.arrays.items()}  # two terms among zeros
    tile = capture_file.Capture(whole.meta, [capture_file.Group(group.name, name, group.cases[:1], arrays)])
    machine = lp.accumulators[verify.machine_of(cases.INSTRUCTIONS[name])]
    for change, is_right in ((0, True), (-1, False), (1, False)):
        other = machine.with_(zero_exponent=machine.zero_exponent + change)
        with lp.accumulators.scoped({machine.name: other}):
            (row,) = verify.compare(tile)
        assert (row.mismatches == 0) == is_right


@pytest.mark.sampled(0, default=1)
@pytest.mark.parametrize("first", range(0, 200, 5))
def test_digests_of_further_seeds_agree(first: int) -> None:
    whole = capture_file.load(FOLDER / "h200_tensor_cores.npz")
    arrays = {key: x[first : first + 5] for key, x in whole.groups[-1].arrays.items()}
    group = capture_file.Group("digests", "digests", ["seeds"], arrays)
    rows = list(verify.compare(capture_file.Capture(whole.meta, [group])))
    assert [(row.outputs, row.mismatches) for row in rows] == [(51, 0)] * 5


@pytest.mark.parametrize("name", special.FUNCTIONS)
def test_a_wrong_special_function_is_refused(name: str) -> None:
    def wrong(asked: str, *words: int) -> Any:
        found = special.stand_in(asked, *words)
        return found if asked != name else np.roll(found, 64) if name not in special.PAIRS else found >> 16

    assert special.check(special.stand_in) == "2816 results are near the functions' values"
    with pytest.raises(capture_file.CaptureError, match=rf"'{re.escape(name)} \(\d+ of 128\)'\]"):
        special.check(wrong)
