"""JSON: a header, then one object a vector on a line of its own, words in hexadecimal."""

from __future__ import annotations

import json

from ..vectors import Field, VectorSet, Words
from .encoding import Encoding


def _named(fields: tuple[Field, ...], words: Words) -> dict[str, str]:
    named: dict[str, str] = {}
    for field in fields:
        part, words = words[: field.count], words[field.count :]
        named[field.name] = f"0x{field.hex(part[0])}" if field.count == 1 else " ".join(map(field.hex, part))
    return named


def write(s: VectorSet) -> bytes:
    """Return a set as JSON."""
    rows = (
        json.dumps({**_named(s.inputs, v.inputs), **_named(s.results, v.results), "label": v.label}, ensure_ascii=True)
        for v in s.vectors
    )
    header = json.dumps(s.header(), indent=1, ensure_ascii=True)
    return ('{"header": ' + header + ',\n"vectors": [\n' + ",\n".join(rows) + "\n]}\n").encode()


ENCODING = Encoding("json", ".json", "scripts: one object a vector, hexadecimal strings", write)
