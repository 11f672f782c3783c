"""Hold a capture of tensor cores or of special functions against the emulator, bit for bit.

    python reference_data/capture/verify.py FILE.npz            # a table: case, outputs, mismatches; some minutes
    python reference_data/capture/verify.py --oracle FILE.npz   # every 64th output against the exact oracle instead
    python reference_data/capture/verify.py --make FILE.npz     # a file of the emulator's own, to try the path

The exit code is 1 if any bit differs. `lowprec` must be installed, or PYTHONPATH name the checkout.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from capture import check, collect, collect_digests, describe
from capture_cases import INSTRUCTIONS, Codes, Instruction
from capture_file import Capture, CaptureError, Group, load
from capture_special import BINARY, CONVERSIONS, FUNCTIONS, MANTISSA, OCTAVES, digest_of

import lowprec as lp
from lowprec import oracle
from lowprec.special.mufu import CudaFunction, MufuFunction

Model = Callable[[Codes], Codes]
SPECIAL = {*FUNCTIONS, *CONVERSIONS, *BINARY}

#: Names in the catalogue of formats.
FORMATS = {"e4m3": "e4m3fn", "e5m2": "e5m2", "f16": "float16", "bf16": "bfloat16", "tf32": "tf32", "f32": "float32"}
EVERY = 64  #: outputs of which the oracle computes one


def machine_of(instruction: Instruction) -> str:
    """Return the name of the accumulator: Hopper's own FP8 path is wgmma's alone, mma.sync computes FP8 in halves."""
    fp8 = instruction.a.dtype is np.uint8
    middle = "_mma" if fp8 and instruction.unit == "mma" else ""
    return f"hopper_{'fp8' if fp8 else instruction.a.name}{middle}{'_f16' if instruction.c.name == 'f16' else ''}"


def tiles(instruction: Instruction, a: Codes, b: Codes, c: Codes) -> Codes:
    """Compute d of tiles a, b [tiles, 64, K], c [tiles, 64, 64] with `lowprec.mma`."""
    return np.stack([by_mma(instruction, *tile) for tile in zip(a, b, c, strict=True)])


def promoted(a: Codes, b: Codes, scale_a: Codes, scale_b: Codes) -> Codes:
    """Compute the GEMM with promotion every 128 with `lowprec.gemm`; return bits."""
    blocks = scale_b if (scale_b != scale_b[:1]).any() else scale_b[:1]
    operands = [
        lp.Quantized(codes, np.ascontiguousarray(scale), lp.formats["e4m3fn"], lp.Granularity.parse(granularity))
        for codes, scale, granularity in ((a, scale_a, "1x128"), (b, blocks, _granularity(blocks)))
    ]
    return lp.gemm(*operands, accumulator="hopper_fp8", promote_every=128).view(np.uint32)


def _granularity(scale: Codes) -> str:
    return "128x128" if len(scale) == 1 else "1x128"


def by_mma(instruction: Instruction, a: Codes, b: Codes, c: Codes) -> Codes:
    """Compute d [M, N] of one tile, as words like those of c."""
    floats = np.float32 if c.dtype == np.uint32 else np.float16
    d = lp.mma(
        a >> instruction.a.shift, b >> instruction.b.shift, c.view(floats), accumulator=machine_of(instruction),
        a_format=FORMATS[instruction.a.name], b_format=FORMATS[instruction.b.name],
    )  # fmt: skip
    return d.view(c.dtype)


def by_oracle(instruction: Instruction, a: Codes, b: Codes, c: Codes) -> Codes:
    """Compute every 64th word of d with the oracle."""
    rule = oracle.ACCUMULATORS[machine_of(instruction)].rule
    fa, fb = (oracle.FORMATS[FORMATS[fmt.name]] for fmt in (instruction.a, instruction.b))
    rows, columns = ((x >> fmt.shift).tolist() for x, fmt in ((a, instruction.a), (b, instruction.b)))
    start, n = c.ravel().tolist(), len(b)
    places = range(0, len(start), EVERY)
    dots = [rule.dot(rows[place // n], columns[place % n], start[place], fa, fb) for place in places]
    return np.array(dots, c.dtype)


def promoted_by_oracle(a: Codes, b: Codes, scale_a: Codes, scale_b: Codes) -> Codes:
    """Compute every 64th word of the GEMM with the oracle."""
    bits_a, bits_b = scale_a.view(np.uint32).tolist(), scale_b.view(np.uint32).tolist()
    dots = []
    for place in range(0, len(a) * len(b), EVERY):
        i, j = divmod(place, len(b))
        scales = list(zip(bits_a[i], bits_b[j], strict=True))
        row, column = a[i].tolist(), b[j].tolist()
        dots.append(oracle.promoted_dot(row, column, scales, 128, oracle.HOPPER_FP8, oracle.E4M3FN, oracle.E4M3FN))
    return np.array(dots, np.uint32)


@dataclass(frozen=True)
class Row:
    """One case of one instruction."""

    instruction: str
    case: str
    k: int
    outputs: int
    mismatches: int
    first: str = ""


def compare(capture: Capture, exactly: bool = False) -> Iterator[Row]:
    """Yield one row for every case of a capture; `exactly`: against the oracle, every 64th output.

    Raises
    ------
    CaptureError
        If it holds an instruction that is not known here.
    """
    every = EVERY if exactly else 1
    for group in capture.groups:
        arrays = group.arrays
        if group.instruction == "digests":
            if not exactly:
                yield from _compare_digests(arrays["x"], arrays["d"])
            continue
        if group.instruction == "promoted":
            expected = (promoted_by_oracle if exactly else promoted)(*(arrays[key] for key in ("a", "b", "sa", "sb")))
            yield _row(group, group.cases[0], expected, arrays["d"].ravel()[::every])
            continue
        if group.name.endswith("/digests") and group.instruction in MODELS:
            yield from _compare_octaves(group, range(OCTAVES)[::every])
        if group.instruction in SPECIAL:
            continue
        if group.instruction not in INSTRUCTIONS:
            raise CaptureError(f"{group.name}: unknown instruction {group.instruction!r}")
        for index, case in enumerate(group.cases):
            a, b, c, recorded = (arrays[key][index] for key in "abcd")
            expected = (by_oracle if exactly else by_mma)(INSTRUCTIONS[group.instruction], a, b, c)
            yield _row(group, case, expected, recorded.ravel()[::every])


def _compare_octaves(group: Group, octaves: Iterable[int]) -> Iterator[Row]:
    """Yield a row for each octave of a special function."""
    bits = int(group.arrays["x"][0])
    words = np.arange(1 << bits, dtype=np.uint32) << np.uint32(MANTISSA - bits)
    for top in octaves:
        results = MODELS[group.instruction](np.uint32(top << MANTISSA) + words)
        wrong = not np.array_equal(digest_of(results), group.arrays["d"][top])
        yield Row(group.instruction, f"words {top << MANTISSA:#010x}", 0, len(words), wrong * len(words))


def _mufu(function: str, flush: bool = True) -> Model:
    compute = MufuFunction(function, flush)
    return lambda words: compute(words.view(np.float32)).view(np.uint32)


def _cuda(function: Literal["exp", "log"]) -> Model:
    """Return a function of CUDA's library; all NaN have one word."""
    compute = CudaFunction(function)

    def words_of(words: Codes) -> Codes:
        with np.errstate(all="ignore"):
            y = compute(words.view(np.float32))
        return np.where(np.isnan(y), np.uint32(0x7FFFFFFF), y.view(np.uint32))

    return words_of


def _conversion(fmt: str, nan: int) -> Model:
    """Return the conversion of x in the low and of -x in the high half of a word; NaN has one code."""

    def convert(words: Codes) -> Codes:
        codes = (lp.encode(x, fmt, policy="ocp_sat") if nan == 0x7F else lp.encode(x, fmt) for x in _signs(words))
        low, high = (np.where(words & 0x7FFFFFFF > 0x7F800000, nan, x).astype(np.uint32) for x in codes)
        return low | high << np.uint32(nan.bit_length() + 1)

    return convert


def _signs(words: Codes) -> tuple[Codes, Codes]:
    return words.view(np.float32), (words ^ np.uint32(1 << 31)).view(np.float32)


def _to_tf32(words: Codes) -> Codes:
    """Return TF32 numbers, rounded to nearest with ties away from zero; infinities and NaN lose their low bits."""
    finite = words & 0x7F800000 != 0x7F800000
    return (words + np.where(finite, np.uint32(1 << 12), np.uint32(0))) & np.uint32(0xFFFFE000)


#: Special functions and conversions that lowprec computes, on words.
MODELS: dict[str, Model] = {
    **{f"{name}.approx.ftz.f32": _mufu(name) for name in ("ex2", "lg2", "rcp", "rsqrt", "sqrt")},
    **{f"{name}.approx.f32": _mufu(name, False) for name in ("ex2", "lg2", "rsqrt", "sqrt", "tanh")},
    "expf": _cuda("exp"), "logf": _cuda("log"),
    "cvt.rn.satfinite.e4m3x2.f32": _conversion("e4m3fn", 0x7F),
    "cvt.rn.satfinite.e5m2x2.f32": _conversion("e5m2", 0x7F),
    "cvt.rn.bf16x2.f32": _conversion("bfloat16", 0x7FFF), "cvt.rn.f16x2.f32": _conversion("float16", 0x7FFF),
    "cvt.rna.tf32.f32": _to_tf32,
}  # fmt: skip


def _compare_digests(seeds: Codes, recorded: Codes) -> Iterator[Row]:
    """Yield a row for each seed, in which every wrong digest counts as one output."""
    for seed, digests in zip(seeds.tolist(), recorded, strict=True):
        wrong = (collect_digests(tiles, promoted, [seed])[0].arrays["d"][0] != digests).any(axis=1)
        first = f"groups {np.flatnonzero(wrong).tolist()}" if wrong.any() else ""
        yield Row("digests", f"seed {seed}", 0, len(wrong), int(wrong.sum()), first)


def _row(group: Group, case: str, expected: Codes, recorded: Codes) -> Row:
    wrong = np.flatnonzero(expected.ravel() != recorded)
    first = ""
    if wrong.size:
        at, digits = int(wrong[0]), 2 * recorded.itemsize
        first = f"output {at}: recorded {recorded[at]:0{digits}x}, emulated {expected.ravel()[at]:0{digits}x}"
    return Row(group.instruction, case, group.arrays["a"].shape[-1], expected.size, int(wrong.size), first)


def make(seed: int = 0, **only: tuple[str, ...]) -> Capture:
    """Return a capture of the emulator's own; `only` restricts what `collect` asks."""
    meta = {"source": "emulator", "gpu": f"lowprec {lp.__version__}", **describe(seed), "check": "not a GPU"}
    return Capture(meta, collect(tiles, promoted, seed, **only))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Hold a capture against the emulator, bit for bit.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--oracle", action="store_true", help="compare every 64th output with the exact oracle")
    parser.add_argument("--make", action="store_true", help="write a file of the emulator's own instead")
    options = parser.parse_args()
    try:
        if options.make:
            check(tiles, promoted, 0)
            make().save(options.file)
            return
        capture = load(options.file)
        meta = capture.meta
        sys.stdout.write(f"{options.file}: {meta['source']}, {meta['gpu']}, {meta['check']}\n\n")
        sys.stdout.write(f"{'instruction':<22}{'case':<26}{'K':>5}{'outputs':>9}{'mismatches':>12}\n")
        outputs = mismatches = 0
        for row in compare(capture, options.oracle):
            line = f"{row.instruction:<22}{row.case:<26}{row.k:>5}{row.outputs:>9}{row.mismatches:>12}  {row.first}"
            sys.stdout.write(f"{line.rstrip()}\n")
            outputs, mismatches = outputs + row.outputs, mismatches + row.mismatches
    except (CaptureError, OSError) as error:
        sys.exit(f"error: {error}")
    sys.stdout.write(f"\n{outputs} outputs, {mismatches} mismatches\n")
    sys.exit(mismatches > 0)


if __name__ == "__main__":
    main()
