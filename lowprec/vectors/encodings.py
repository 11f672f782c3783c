"""Encodings of vector sets: functions from a set to the bytes of a file.

The data encodings are here; `encoding_c` and `encoding_mlir` write programs.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .._files.npy import npz_bytes
from ..registry import Registry
from . import encoding_c, encoding_mlir
from .vectors import Field, VectorSet, Words, split_words


@dataclass(frozen=True)
class Encoding:
    """An encoding of vector sets.

    Attributes
    ----------
    name : str
        Name of the encoding.
    suffix : str
        Suffix of its file names.
    about : str
        Programs that read it.
    write : callable
        Returns the bytes of a set. Raises a ValueError if the encoding cannot represent it.
    """

    name: str
    suffix: str
    about: str
    write: Callable[[VectorSet], bytes]


def _named(fields: tuple[Field, ...], words: Words) -> dict[str, str]:
    return {
        field.name: f"0x{field.hex(part[0])}" if field.count == 1 else " ".join(map(field.hex, part))
        for field, part in zip(fields, split_words(words, fields), strict=True)
    }


def _json(s: VectorSet) -> bytes:
    """Return a set as JSON: a header, then one object per vector, each on one line, with words in hexadecimal."""
    rows = (
        json.dumps({**_named(s.inputs, v.inputs), **_named(s.results, v.results), "label": v.label}, ensure_ascii=True)
        for v in s.vectors
    )
    header = json.dumps(s.header(), indent=1, ensure_ascii=True)
    return ('{"header": ' + header + ',\n"vectors": [\n' + ",\n".join(rows) + "\n]}\n").encode()


def _npz(s: VectorSet) -> bytes:
    """Return a set as an .npz archive with one array per field. The bytes do not depend on the machine or the time."""
    arrays = {name: s[name] for name in s.field_names}
    kinds, numbers = s.numbered_labels()
    arrays["label"] = np.array(numbers, np.uint32)
    text = json.dumps({**s.header(), "labels": kinds}, ensure_ascii=True).encode()
    arrays["header"] = np.frombuffer(text, np.uint8)
    return npz_bytes(arrays)


def _hex(s: VectorSet) -> bytes:
    """Return a set as one hexadecimal number per line: the first input and the last word of a field come first."""
    fields = (*s.inputs, *s.results)
    width = sum(field.bits * field.count for field in fields)
    lines = [s.comments("//"), f"// reg [{width - 1}:0] {s.stem} [0:{len(s) - 1}];\n"]
    top = width
    for field in fields:
        low = top - field.bits * field.count
        each = f", {field.count} words of {field.bits} bits, the first lowest" if field.count > 1 else ""
        side = "input" if field in s.inputs else "result"
        lines.append(f"// {side} {field.name} = vector[{top - 1}:{low}]{each}\n")
        top = low
    for vector in s.vectors:
        number = 0
        for field, part in zip(fields, split_words(vector.inputs + vector.results, fields), strict=True):
            for word in reversed(part):
                number = number << field.bits | word
        lines.append(f"{number:0{-(-width // 4)}x} // {vector.label}\n")
    return "".join(lines).encode()


def _testfloat(s: VectorSet) -> bytes:
    """Return a set as lines of input words, then result words, as printed by Berkeley TestFloat's testfloat_gen."""
    return "".join(f"{line}\n" for line in s.lines()).encode()


encodings: Registry[Encoding] = Registry("encoding", Encoding)
"""The encodings by name."""
for _encoding in (
    Encoding("json", ".json", "scripts: one object per vector, hexadecimal strings", _json),
    Encoding("npz", ".npz", "NumPy: an array a field; header is JSON in bytes, label counts into its labels", _npz),
    Encoding("hex", ".hex", "Verilog's $readmemh: a vector a word, widths in comments", _hex),
    Encoding("testfloat", ".txt", "programs that read lines: hexadecimal inputs, then results", _testfloat),
    Encoding("c", ".h", "C: arrays, and a main that tests LOWPREC_FUNCTION with -DLOWPREC_SELF_TEST", encoding_c.write),
    Encoding("mlir", ".mlir", "MLIR: FileCheck tests of arith.truncf and arith.extf", encoding_mlir.write),
):
    encodings.register(_encoding.name, _encoding)
