"""Hold a capture against the emulator, bit for bit.

    python reference_data/capture/verify.py FILE.npz            # a table: case, outputs, mismatches
    python reference_data/capture/verify.py --make FILE.npz     # a file of the emulator's own, to try the path

Instructions whose machine `lowprec.mma` has are compared in full; others with the exact oracle, every 16th output.
The exit code is 1 if any bit differs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from capture import check, collect, describe
from capture_cases import FIELDS, INSTRUCTIONS, Codes, Fields, Instruction
from capture_file import Capture, CaptureError, Group, load

import lowprec as lp
from lowprec import oracle

#: Names in the catalogue of formats.
FORMATS = {"e4m3": "e4m3fn", "e5m2": "e5m2", "f16": "float16", "bf16": "bfloat16", "tf32": "tf32", "f32": "float32"}
EVERY = 16


def machine_of(instruction: Instruction) -> str:
    """Return the name of the accumulator: Hopper's own FP8 path is wgmma's alone, mma.sync computes FP8 in halves."""
    fp8 = instruction.a.dtype is np.uint8
    middle = "_mma" if fp8 and instruction.unit == "mma" else ""
    return f"hopper_{'fp8' if fp8 else instruction.a.name}{middle}{'_f16' if instruction.c.name == 'f16' else ''}"


def emulated(instruction: Instruction) -> bool:
    """Tell whether `lowprec.mma` has the instruction's machine; the oracle has them all."""
    return machine_of(instruction) in lp.accumulators


def tiles(instruction: Instruction, a: Codes, b: Codes, c: Codes) -> Codes:
    """Compute d of tiles a, b [tiles, 64, K], c [tiles, 64, 64] with `lowprec.mma`, or the oracle where it must."""
    answer = _by_mma if emulated(instruction) else _by_oracle
    return np.stack([answer(instruction, *tile) for tile in zip(a, b, c, strict=True)])


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


def _by_mma(instruction: Instruction, a: Codes, b: Codes, c: Codes) -> Codes:
    floats = np.float32 if c.dtype == np.uint32 else np.float16
    d = lp.mma(
        a >> instruction.a.shift, b >> instruction.b.shift, c.view(floats), accumulator=machine_of(instruction),
        a_format=FORMATS[instruction.a.name], b_format=FORMATS[instruction.b.name],
    )  # fmt: skip
    return d.view(c.dtype)


def _by_oracle(instruction: Instruction, a: Codes, b: Codes, c: Codes, every: int = 1) -> Codes:
    name = machine_of(instruction)
    known = oracle.MACHINES.get(name) or oracle.MACHINES[name.replace("hopper_f16", "hopper_fp16")]
    rule = known.rule
    fa, fb = (oracle.FORMATS[FORMATS[fmt.name]] for fmt in (instruction.a, instruction.b))
    rows, columns = ((x >> fmt.shift).tolist() for x, fmt in ((a, instruction.a), (b, instruction.b)))
    start, n = c.ravel().tolist(), len(b)
    places = range(0, len(start), every)
    dots = [rule.dot(rows[place // n], columns[place % n], start[place], fa, fb) for place in places]
    out = np.array(dots, c.dtype)
    return out.reshape(c.shape) if every == 1 else out


@dataclass(frozen=True)
class Row:
    """One case of one instruction."""

    instruction: str
    case: str
    k: int
    outputs: int
    mismatches: int
    witness: str
    first: str = ""


def compare(capture: Capture) -> Iterator[Row]:
    """Yield one row for every case of a capture.

    Raises
    ------
    CaptureError
        If it holds an instruction that is not known here.
    """
    for group in capture.groups:
        if group.instruction == "promoted":
            arrays = group.arrays
            expected = promoted(arrays["a"], arrays["b"], arrays["sa"], arrays["sb"])
            yield _row(group, group.cases[0], expected, arrays["d"], "gemm", FIELDS["f32"])
            continue
        if group.instruction not in INSTRUCTIONS:
            raise CaptureError(f"{group.name}: unknown instruction {group.instruction!r}")
        instruction = INSTRUCTIONS[group.instruction]
        for index, case in enumerate(group.cases):
            a, b, c, recorded = (group.arrays[key][index] for key in "abcd")
            if emulated(instruction):
                yield _row(group, case, _by_mma(instruction, a, b, c), recorded, "mma", instruction.c)
            else:
                expected = _by_oracle(instruction, a, b, c, EVERY)
                yield _row(group, case, expected, recorded.ravel()[::EVERY], "oracle", instruction.c)


def _row(group: Group, case: str, expected: Codes, recorded: Codes, witness: str, fmt: Fields) -> Row:
    wrong = np.flatnonzero(expected.ravel() != recorded.ravel())
    first = ""
    if wrong.size:
        digits = np.dtype(fmt.dtype).itemsize * 2
        at = int(wrong[0])
        first = f"output {at}: recorded {recorded.ravel()[at]:0{digits}x}, emulated {expected.ravel()[at]:0{digits}x}"
    k = group.arrays["a"].shape[-1]
    return Row(group.instruction, case, k, expected.size, int(wrong.size), witness, first)


def make(seed: int = 0, **only: tuple[str, ...]) -> Capture:
    """Return a capture of the emulator's own; `only` restricts what `collect` asks."""
    meta = {"source": "emulator", "gpu": f"lowprec {lp.__version__}", **describe(seed), "check": "not a GPU"}
    return Capture(meta, collect(tiles, promoted, seed, **only))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Hold a capture against the emulator, bit for bit.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--make", action="store_true", help="write a file of the emulator's own instead")
    options = parser.parse_args()
    try:
        if options.make:
            check(tiles, promoted, 0)
            make(gemms=("1x128 by 1x128",)).save(options.file)
            return
        capture = load(options.file)
        sys.stdout.write(
            f"{options.file}: {capture.meta['source']}, {capture.meta['gpu']}, {capture.meta['check']}\n\n"
        )
        sys.stdout.write(f"{'instruction':<22}{'case':<26}{'K':>5}{'outputs':>9}{'mismatches':>12}  by\n")
        outputs = mismatches = 0
        for row in compare(capture):
            sys.stdout.write(f"{row.instruction:<22}{row.case:<26}{row.k:>5}{row.outputs:>9}{row.mismatches:>12}  "
                             f"{row.witness}{'  ' + row.first if row.first else ''}\n")  # fmt: skip
            outputs, mismatches = outputs + row.outputs, mismatches + row.mismatches
    except (CaptureError, OSError) as error:
        sys.exit(f"error: {error}")
    sys.stdout.write(f"\n{outputs} outputs, {mismatches} mismatches\n")
    sys.exit(mismatches > 0)


if __name__ == "__main__":
    main()
