"""Generate the page of open questions: claims by status, and studies not yet run at their registered size."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from make_figures import is_quick
from pages import results, table

from lowprec.study import Ablation, load, names
from lowprec.study.analysis.findings import AS_PUBLISHED, NEITHER

ROOT = Path(__file__).parents[1]
REPRODUCED, CONTRADICTED = "reproduced", "contradicted"
STATUSES = (CONTRADICTED, "not resolved at this size", "not studied", REPRODUCED)
HEAD = """# Open questions

Generated from `ablations/claims.json` and `ablations/results` by `python docs/refresh.py`. {counted} of the claims that
this project started from: {words}.

- Whether FP8 from the first step of a training costs more than FP8 after a checkpoint: two studies with 16 and 54
  initial weights found +0.333 % [+0.027, +0.638] and +0.119 % [-0.104, +0.342]
  ([findings](findings.md)).
- Whether FP8's cost accumulates, saturates or heals over a longer training.
- How many fraction bits the sums of a long training need, which have 64k products and more: with sums of up to 2048,
  no difference of ten bits from float32 is shown, and seven are worse ([findings](findings.md)).
- Under which condition output gradients in blocks, or scales of earlier steps, make a training diverge.
- Whether what four bits cost falls with a model's size or with its learning rate.
- Anything about outliers that grow over billions of tokens, or about models a thousand times larger.
"""


def claims() -> list[dict[str, str]]:
    """Return the claims, each with the result of the range that tests it."""
    known, found = results(), []
    for item in json.loads((ROOT / "ablations" / "claims.json").read_text(encoding="utf-8")):
        if item["status"] not in STATUSES:
            raise ValueError(f"claim {item['claim']!r}: status {item['status']!r}; allowed are {', '.join(STATUSES)}")
        words = item.get("range")
        rows = [row for row in known[item["study"]]["expectations"]["rows"] if row[0] == words] if words else []
        if words and len(rows) != 1:
            raise ValueError(f"claim {item['claim']!r}: {item['study']} has no range {words!r}")
        for row in rows:
            reproduced, outside = row[-1].startswith(AS_PUBLISHED), row[-1] == NEITHER
            if (item["status"] == REPRODUCED and not reproduced) or (item["status"] == CONTRADICTED and not outside):
                raise ValueError(f"claim {item['claim']!r} is {item['status']}, but its range says {row[-1]!r}")
            text = f"{row[1]}: {row[4]}"
            item["found"] = f"{item['found']}; {text}" if item.get("found") else text
        found.append(item)
    return found


def quick_sizes() -> Iterator[tuple[str, ...]]:
    """Yield the studies of training that have run only at a quick size, with the cost of their full size."""
    for name, item in results().items():
        study = load(name) if name in names() else None
        if isinstance(study, Ablation) and is_quick(item):
            quick, hours = f"{item['core_seconds'] / 60:.0f} min", core_hours(study)
            yield f"[{name}](ablations.md#{name})", str(study.quick), quick, str(study.full), f"{hours:.1f} h"


def core_hours(study: Any) -> float:
    """Return the estimated CPU hours of a study's full size on one idle core."""
    return float(study.full.core_minutes(len(study.arms))) / 60


def not_run() -> Iterator[tuple[str, ...]]:
    """Yield the registered studies of training that have not run, with the cost of their full size."""
    for name in sorted({*names()} - {*results()}):
        study = load(name)
        yield f"[{name}](ablations.md#{name})", study.question, str(study.full), f"{core_hours(study):.1f} h"


def page() -> str:
    """Return docs/open.md."""
    found = claims()
    count = {status: sum(item["status"] == status for item in found) for status in STATUSES}
    words = ", ".join(f"{count[status]} {status}" for status in sorted(STATUSES, key=lambda one: -count[one]))
    parts = [HEAD.format(counted=f"Status of {len(found)}", words=words)]
    for status in STATUSES:
        rows = [
            (item["claim"], item["source"], item.get("found", ""),
             f"[{item['study']}](ablations.md#{item['study']})" if "study" in item else "")
            for item in found if item["status"] == status
        ]  # fmt: skip
        parts += [f"## {status.capitalize()}\n", table(("claim", "source", "here", "study"), rows) + "\n"]
    sizes = list(quick_sizes())
    total = sum(float(row[-1].split()[0]) for row in sizes)
    parts += [
        "## Studies at a quick size\n",
        f"{len(sizes)} studies of training have run only at their quick size; their numbers are published without a "
        f"verdict. All full sizes together take about {total:.0f} hours on one core.\n",
        table(("study", "quick size", "took, one core", "full size", "about"), sizes) + "\n",
        "## Registered, not run\n",
        table(("study", "question", "full size", "about, one core"), not_run()) + "\n",
    ]
    return "\n".join(parts)
