"""Generate the page of vector sets from reference_data/vector_digests.json."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pages import table

FILE = Path(__file__).parents[1] / "reference_data" / "vector_digests.json"
Facts = Mapping[str, Any]


def _row(name: str, facts: Facts) -> tuple[object, ...]:
    total = facts["wrong rules told apart"] + len(facts["not"])
    apart = f"{facts['wrong rules told apart']} of {total}" + (
        f" (not: {', '.join(facts['not'])})" if facts["not"] else ""
    )
    return f"`{name}`", apart, f"{facts['vectors']:,}", f"{facts['json bytes']:,}", f"`{facts['sha256'][:16]}`"


def _gathered(format_: str, rows: Sequence[Facts]) -> tuple[object, ...]:
    """Return one table row for all roundings and policies of a format."""
    apart = sum(facts["wrong rules told apart"] for facts in rows)
    total = apart + sum(len(facts["not"]) for facts in rows)
    sizes = [facts["vectors"] for facts in rows], [facts["json bytes"] for facts in rows]
    spread = [f"{min(size):,}" if min(size) == max(size) else f"{min(size):,} to {max(size):,}" for size in sizes]
    return f"`{format_}/...`", f"{apart} of {total}", *spread, len(rows)


def page() -> str:
    """Return docs/vectors.md."""
    known: dict[str, Facts] = json.loads(FILE.read_text(encoding="utf-8"))
    families: dict[str, dict[str, Facts]] = defaultdict(dict)
    for name, facts in known.items():
        families[name.split("/")[0]][name] = facts
    head = ("set", "wrong rules detected", "vectors", "bytes of JSON", "sha256")
    parts = []
    for family, sets in families.items():
        parts.append(f"## {family}\n")
        if family in ("cast", "round", "cast_table"):
            by_format: dict[str, list[Facts]] = defaultdict(list)
            for name, facts in sets.items():
                by_format["/".join(name.split("/")[:2])].append(facts)
            parts.append(table((*head[:4], "sets"), [_gathered(*row) for row in by_format.items()], 3) + "\n")
        else:
            parts.append(table(head, [_row(*row) for row in sets.items()], 3) + "\n")
    apart = sum(facts["wrong rules told apart"] for facts in known.values())
    missed = sum(len(facts["not"]) for facts in known.values())
    largest = max(known.items(), key=lambda row: row[1]["json bytes"])
    text = "\n".join(parts)
    return f"""# Sizes and digests of vector sets

The sets that `lowprec vectors list` names, at level 1 with seed 0: {len(known):,} sets with
{sum(facts["vectors"] for facts in known.values()):,} vectors. The largest is `{largest[0]}`
with {largest[1]["json bytes"]:,} bytes of JSON. A wrong rule (of `lowprec/oracle/mutants.py`, or of the family) counts
as detected if at least two vectors fail under it: {apart:,} of {apart + missed:,} are. [Test
vectors](test_vectors.md) describes the sets. `reference_data/vector_digests.json` has all digests in full, including
those of each cast; `python docs/refresh.py` writes it.

{text}"""
