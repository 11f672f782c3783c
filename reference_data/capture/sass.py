"""Which instructions of the units a compiled capture program really uses, read from its machine code.

    python reference_data/capture/sass.py [FILE.cubin]

Needs nvcc when no file is given, and no disassembler: an instruction of these GPUs is 16 bytes, and its low twelve bits
name it (values read off nvdisasm's listing for sm_90a).
"""

from __future__ import annotations

import re
import struct
import sys
import tempfile
from collections import Counter
from pathlib import Path

from capture_build import compile_program

OPCODES = {0x9F3: "QGMMA", 0x9F0: "HGMMA", 0x23C: "HMMA", 0x23E: "F2FP", 0x223: "FFMA", 0x220: "FMUL", 0x221: "FADD",
           0x230: "HADD2", 0x308: "MUFU"}  # fmt: skip
UNITS = {"QGMMA", "HGMMA", "HMMA", "MUFU"}


def sections(elf: bytes) -> dict[str, bytes]:
    """Return the sections of a 64-bit ELF file by name."""
    if elf[:5] != b"\x7fELF\x02":
        raise ValueError("not a 64-bit ELF file; nvcc -cubin makes one")
    (start,) = struct.unpack_from("<Q", elf, 0x28)
    size, count, names = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", elf, start + i * size) for i in range(count)]
    table = headers[names][4]
    return {
        elf[table + h[0] : elf.index(b"\0", table + h[0])].decode(): elf[h[4] : h[4] + h[5]]
        for h in headers
        if h[1] != 8  # a section without content
    }


def kernels(cubin: bytes) -> dict[str, Counter[str]]:
    """Count the instructions of interest in each kernel."""
    found = {}
    for name, code in sections(cubin).items():
        if name.startswith(".text."):
            known = re.search(
                r"\d((?:Wgmma|Mma)\w+?F(?:32|16))EE|8(promoted)E|7specialINS_\d+(\w+?)EEE|\d((?:div|red|bulk)_\w+?)EPK",
                name,
            )
            label = next(filter(None, known.groups())) if known else name
            words = (low & 0xFFF for low, _ in struct.iter_unpack("<QQ", code))
            found[label] = Counter(OPCODES[word] for word in words if word in OPCODES)
    return dict(sorted(found.items()))


def expected(kernel: str) -> set[str]:
    """Return which of `UNITS` a kernel has to use, and no other."""
    if kernel in ("Logf", "red_add", "bulk_add") or kernel.startswith(("To", "Round")):
        return set()
    if kernel == "promoted" or kernel.startswith("WgmmaE"):
        return {"QGMMA"}
    return {"HGMMA"} if kernel.startswith("Wgmma") else {"HMMA"} if kernel.startswith("Mma") else {"MUFU"}


def main() -> None:
    """Print the table; exit with 1 if a kernel takes another path than it should."""
    if len(sys.argv) > 1:
        cubin = Path(sys.argv[1]).read_bytes()
    else:
        with tempfile.TemporaryDirectory() as folder:
            cubin = compile_program(Path(folder), cubin=True).read_bytes()
    wrong = False
    for kernel, counts in kernels(cubin).items():
        used = set(counts) & UNITS
        wrong |= used != expected(kernel)
        listing = "  ".join(f"{name} {count}" for name, count in sorted(counts.items()))
        sys.stdout.write(f"{kernel:<14} {'ok' if used == expected(kernel) else 'WRONG':<6} {listing}\n")
    sys.exit(wrong)


if __name__ == "__main__":
    main()
