"""Writes reference_data/vector_digests.json: size and digest of every level-1 set, and the wrong rules it tells apart.

``PYTHONPATH=. python reference_data/make_vector_digests.py [FAMILY ...]``; about half an hour on two cores. With
families only theirs are made anew.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import sys
from pathlib import Path
from typing import Any

from digest import record

from lowprec.vectors.catalogue import families, split, vectors
from lowprec.vectors.encodings import encodings

FILE = Path(__file__).with_name("vector_digests.json")


def facts(name: str) -> dict[str, Any]:
    """Return what the table says of a set; a wrong rule is told apart by two vectors at least."""
    s = vectors(name)
    family, parts = split(name)
    killed, alive = 0, []
    for rule in family.rules(parts, {}):
        if rule.mutant:
            apart = (v for v in s.vectors if not s.same(v.results, rule.answer(v.inputs)))
            if len(list(itertools.islice(apart, 2))) == 2:
                killed += 1
            else:
                alive.append(rule.words)
    return {
        "vectors": len(s), "json bytes": len(encodings["json"].write(s)), "sha256": s.sha256,
        "wrong rules told apart": killed, "not": alive,
    }  # fmt: skip


def main(chosen: list[str]) -> None:
    """Write the file and its row of the table."""
    known = json.loads(FILE.read_text()) if FILE.exists() and chosen else {}
    names = [name for family in chosen or families.names() for name in families[family].listed()]
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        for name, found in zip(names, pool.imap(facts, names, chunksize=4), strict=True):
            known[name] = found
    order = {name: i for i, name in enumerate(n for f in families for n in families[f].listed())}
    rows = sorted(((n, k) for n, k in known.items() if n in order), key=lambda row: order[row[0]])
    FILE.write_text("{\n" + ",\n".join(f"{json.dumps(n)}: {json.dumps(k)}" for n, k in rows) + "\n}\n")
    record(FILE)


if __name__ == "__main__":
    main(sys.argv[1:])
