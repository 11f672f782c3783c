"""hex: what Verilog's $readmemh reads, one vector a word, with the widths in comments."""

from __future__ import annotations

from ..vectors import VectorSet, spread
from .encoding import Encoding, comments, stem


def write(s: VectorSet) -> bytes:
    """Return a set as lines of one number: the first input highest, word 0 of a field lowest in it."""
    fields = (*s.inputs, *s.results)
    width = sum(field.bits * field.count for field in fields)
    lines = [comments(s, "//"), f"// reg [{width - 1}:0] {stem(s)} [0:{len(s) - 1}];\n"]
    top = width
    for field in fields:
        low = top - field.bits * field.count
        each = f", {field.count} words of {field.bits} bits, the first lowest" if field.count > 1 else ""
        side = "input" if field in s.inputs else "result"
        lines.append(f"// {side} {field.name} = vector[{top - 1}:{low}]{each}\n")
        top = low
    digits = -(-width // 4)
    for vector in s.vectors:
        number = 0
        words = list(vector.inputs + vector.results)
        for field in fields:
            part, words = words[: field.count], words[field.count :]
            for word in reversed(part):
                number = number << field.bits | word
        lines.append(f"{number:0{digits}x} // {vector.label}\n")
    assert len(spread(fields)) == len(s.vectors[0].inputs + s.vectors[0].results)
    return "".join(lines).encode()


ENCODING = Encoding("hex", ".hex", "Verilog's $readmemh: a vector a word, widths in comments", write)
