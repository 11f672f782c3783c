"""vector_digests.json: size and digest of every level-1 set, and the wrong rules that it detects.

All of them take half an hour on two cores, those of a new format or accumulator less than a minute.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from lowprec.vectors.catalogue import families, split, vectors
from lowprec.vectors.encodings import encodings


def facts(name: str) -> dict[str, Any]:
    """Return the entry of a set; a wrong rule counts as detected if at least two vectors fail under it."""
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


def entries() -> dict[tuple[str, ...], Callable[[], object]]:
    """Return how to compute the facts of a set, by its name."""
    return {(name,): partial(facts, name) for family in families for name in families[family].listed()}


def written(data: Mapping[str, Any]) -> str:
    """Return the file: a line a set."""
    return "{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(known)}" for name, known in data.items()) + "\n}\n"
