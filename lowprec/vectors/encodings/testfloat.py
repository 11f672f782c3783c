"""testfloat: lines of hexadecimal words, inputs and then results, as Berkeley TestFloat's testfloat_gen prints them."""

from __future__ import annotations

from ..vectors import VectorSet
from .encoding import Encoding


def write(s: VectorSet) -> bytes:
    """Return a set as lines of words and nothing else."""
    return "".join(f"{line}\n" for line in s.lines()).encode()


ENCODING = Encoding("testfloat", ".txt", "programs that read lines: hexadecimal inputs, then results", write)
