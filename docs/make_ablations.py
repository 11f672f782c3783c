"""The page of studies, from ablations/results.

`collect` takes the finished studies of a folder of runs there: their report, its first figures, and in one small JSON
file each what the page says of them.
"""

from __future__ import annotations

import json
import re
import shutil
import textwrap
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import registrations
from pages import table

from lowprec.study import Cell, load
from lowprec.study.analysis.findings import is_as_expected, not_detected, void_title

RESULTS = Path(__file__).parents[1] / "ablations" / "results"
#: Figures of a report that the repository does without: they are large, and the command draws them again.
LEFT_OUT = ("_layers", "_cost")
#: The questions, and the studies that ask them.
QUESTIONS = {
    "FP8 as DeepSeek-V3 trains in it, against BF16": ("fp8_vs_bf16", "from_scratch", "from_scratch_switch"),
    "Which way it goes with size, training and text": ("scaling",),
    "Output gradients in 128 x 128 blocks": ("blockwise_dgrad", "blockwise_dgrad_training"),
    "Accumulation in 14 bits, and promotion to FP32": ("accumulation", "promotion", "replay", "injected"),
    "E4M3 or E5M2": ("gradient_format",),
    "Granularity of scales": ("granularity",),
    "Scales of earlier steps": ("delayed_scaling",),
    "Quantized twice; scales that are powers of two": ("double_quantization",),
    "SwiGLU's inputs kept in FP8": ("swiglu_cache", "swiglu_cache_training"),
    "The wire: dispatch and combine": ("combine_format", "combine_format_training", "error_atlas", "wire_cost"),
    "LogFMT on every residual branch": ("residual_format", "residual_format_training"),
    "The KV cache in eight bits": ("kv_cache_format",),
    "Multi-token prediction: drafts accepted": ("mtp_acceptance",),
    "Gradients of many ranks, added in few bits": ("gradient_reduction", "gradient_reduction_training"),
    "One flipped bit, and a checksum that sees it": ("silent_corruption",),
    "LogFMT: the space to round in": ("logfmt_rounding",),
    "The optimizer's states": ("optimizer_formats",),
    "What is kept out of FP8": ("unprotected", "unprotected_training"),
    "The router's precision": ("router_precision",),
    "MXFP8: which way its scales are rounded": ("mx_scale_rounding",),
    "Recipes of libraries": ("recipes",),
    "NVFP4 and MXFP4": ("fp4_formats", "fp4_training"),
    "NVFP4 without one of its ingredients": ("nvfp4_ingredients",),
    "NVFP4 backward: MS-EDEN or stochastic rounding": ("quartet_ii",),
    "Four bits, but for the end": ("fp4_tail",),
    "A bound on amax": ("amax_floor",),
    "SwiGLU's aligned outliers": ("swiglu_alignment",),
    "Node-limited routing": ("routing_groups",),
    "FP8 parameters": ("fp8_parameters",),
    "Load balancing": ("load_balancing",),
    "Forward or backward": ("forward_or_backward",),
}
INTRODUCTION = """\
# Ablations: what was asked, expected and found

Written by `python docs/refresh.py` from [ablations/results](../ablations/results), where the whole report of
every study lies. Each question is a file of [ablations](../ablations/README.md), which also says what the tiers and the
verdicts mean. What was expected was registered before the first run, in `ablations/registered.json` (until 2026-11-22
by committing the file: those entries were made from its history). What was amended since, with its reason, stands at
its study. Whether that happened, or what was published, or both or neither, is computed from the whole 90 % interval of
what was found; where it lies across the end of a range, that is not resolved.

{neither}

{care}
"""
CARE = (
    "Read with care: these models have {models}. A difference that needs outliers of a long training, sums of "
    "thousands of terms or dozens of layers cannot show in them, and `equivalent` says nothing about larger ones. T1 "
    "and T2 have no noise of training: the same bits each time. In T3 and T4 every mean stands beside its interval, "
    "and `at the floor` means that it is no larger than what a factor of 1 + 2^-7 on one weight does. At full size, "
    "branches of pilot that start after 800 steps share their four checkpoints (seeds 0 to 3) in all studies: effects "
    "of two studies are not independent samples of checkpoints."
)


# --- from runs to results --------------------------------------------------------------------------------------------


def collect(runs: Path) -> list[Path]:
    """Take every finished study below `runs` into `RESULTS`, rather the full size than the quick; return the files."""
    written = []
    for name in sorted(_names()):
        sizes = (runs / f"{name}-{size}" for size in ("full", "quick"))
        folder = next((folder for folder in sizes if (folder / "summary.json").exists()), None)
        if folder is None:
            continue
        for old in RESULTS.iterdir():
            if _owner(old.stem) == name:
                old.unlink()
        report = (folder / "report.md").read_text(encoding="utf-8")
        for figure in sorted(folder.glob("*.svg")):
            if figure.stem.removeprefix(name) in LEFT_OUT:
                report = re.sub(rf"!\[[^\n]*\]\({figure.stem}\.png\)\n\n", "", report)
                continue
            report = report.replace(f"({figure.stem}.png)", f"({figure.name})")
            for file in (figure, *folder.glob(f"{figure.stem}.csv"), *folder.glob(f"{figure.stem}_figure.csv")):
                shutil.copy(file, RESULTS)
        (RESULTS / f"{name}.md").write_text(report, encoding="utf-8")
        target = RESULTS / f"{name}.json"
        target.write_text(json.dumps(essence(folder, name), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        written.append(target)
    return written


def essence(folder: Path, name: str) -> dict[str, Any]:
    """Return what the page needs of a study."""
    summary = _read(folder / "summary.json")
    study = load(name)
    runs = [_read(file) for pattern in ("*/*/run.json", "*/*/*/run.json") for file in folder.glob(pattern)]
    runs = [run for run in runs if "seconds" in run]  # the others were not finished, and are in no result
    host = runs[0]["host"] if runs else summary["host"]
    found = {
        "name": name,
        "tier": study.tier,
        "question": study.question,
        "published": getattr(study, "published", "") or getattr(study, "expected", ""),
        "source": getattr(study, "source", ""),
        "command": _command(folder, name, runs),
        "size": summary.get("size") or ", ".join(f"{k} {v}" for k, v in summary["setting"].items()),
        "core_seconds": round(_core_seconds(runs) if runs else summary["seconds"]),
        "host": {key: host[key] for key in ("cpu", "cores", "system")},
        "code": runs[0]["fingerprint"]["code"] if runs else "",
        "arms": [
            {
                "arm": item["arm"], "role": item["role"], "sentence": item["sentence"],
                "verdict": item["verdict"], "detected": item["detected"], "to_floor": item["to_floor"],
                "effects": {
                    name: [effect[f"{key}_percent"] for key in ("mean", "ci90_low", "ci90_high")]
                    for name, effect in item["effects"].items()
                },
            }
            for item in summary.get("arms", []) if "sentence" in item
        ],
        "told": summary.get("told", []),
        "expectations": _expectations(summary),
        "claims": [
            {key: item[key] for key in ("claim", "published", "ours", "agrees")} for item in summary.get("claims", [])
        ],
    }  # fmt: skip
    return found


def _command(folder: Path, name: str, runs: list[Any]) -> str:
    """Return the command that makes these runs: the size, the data, and what differs from the size's own setting."""
    quick, data = folder.name.endswith("-quick"), runs[0]["data"] if runs else "stdlib"
    file = folder / "study.json"
    ran = _read(file).get("setting", {}) if file.exists() else {}
    own = json.loads(json.dumps(vars(load(name).quick if quick else load(name).full), default=vars))
    changed = []
    for key, value in ran.items():
        if key == "cells":
            data = "stdlib"  # a cell says its own text
            value, own[key] = ([_cell(cell) for cell in cells] for cells in (value, own[key]))
        if value != own.get(key, value):
            said = ",".join(value) if isinstance(value, list) else value
            changed.append(f" --{key} {said}" if key in ("checkpoints", "seeds") else f" --set {key}={said}")
    return "".join((
        f"lowprec ablate {name}", " --quick" * quick, f" --data {data}" * (data != "stdlib"), *changed,
    ))  # fmt: skip


def _cell(cell: dict[str, Any]) -> str:
    return Cell(**cell).name


def _core_seconds(runs: list[Any]) -> float:
    """Return what the runs take on a core that does nothing else: each arm's quickest run times its runs."""
    seconds = defaultdict(list)
    for run in runs:
        seconds[run["name"].rpartition("/")[0]].append(run["seconds"] + run["evaluation_seconds"])
    return sum(min(times) * len(times) for times in seconds.values())


def _expectations(summary: dict[str, Any]) -> dict[str, Any]:
    """Return the report's table of expectations: its head and rows."""
    rows = summary["expectations"]
    return {"head": [*rows[0]] if rows else [], "rows": [[*row.values()] for row in rows]}


def _owner(stem: str) -> str:
    """Return the study whose file this is: the one with the longest name that it begins with."""
    return max((name for name in _names() if f"{stem}_".startswith(f"{name}_")), key=len, default="")


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _names() -> set[str]:
    return {name for studies in QUESTIONS.values() for name in studies}


# --- from results to the page ----------------------------------------------------------------------------------------


def page() -> str:
    """Return docs/ablations.md."""
    results = {file.stem: _read(file) for file in sorted(RESULTS.glob("*.json"))}
    blocks = [
        INTRODUCTION.format(
            neither=registrations.neither(results),
            care=textwrap.fill(CARE.format(models=_models(results.values())), 120),
        ),
        _overview(results),
    ]
    for question, studies in QUESTIONS.items():
        blocks.append(f"## {question}\n")
        blocks += [section(results[name]) if name in results else _not_run(name) for name in studies]
    return "\n".join(blocks)


def _models(results: Iterable[dict[str, Any]]) -> str:
    """Return the sizes of all models that were measured, once each."""
    named = re.compile(r"(\w+) model,.*?(\S+ active of \S+) parameters")
    sizes = sorted({found.groups() for r in results if (found := named.match(r["size"]))})
    return " or ".join(f"{size} parameters ({name})" for name, size in sizes)


def _overview(results: dict[str, Any]) -> str:
    rows = []
    for question, studies in QUESTIONS.items():
        for i, name in enumerate(studies):
            first = question if i == 0 else ""
            if name not in results:
                rows.append((first, f"[{name}](#{name})", load(name).tier, "not run", ""))
                continue
            item = results[name]
            cost = f"`{item['command']}`, {_minutes(item['core_seconds'])}"
            outcome = _outcome(item) + "; older code" * bool(registrations.since(item))
            rows.append((first, f"[{name}](#{name})", item["tier"], outcome, cost))
    hosts = {(r["host"]["cpu"], r["host"]["cores"]) for r in results.values()}
    where = "; ".join(f"{cpu}, {cores} cores" for cpu, cores in sorted(hosts))
    total = _minutes(sum(r["core_seconds"] for r in results.values()))
    head = ("question", "study", "tier", "came out as expected", "command, time of one core")
    note = f"Together {total} of one core at most, on {where}, two runs at a time, while other work ran beside them."
    return f"{table(head, rows)}\n\n{note}\n"


def _outcome(item: dict[str, Any]) -> str:
    outcomes = [row[-1] for row in item["expectations"]["rows"]]
    cells = []
    if outcomes:
        cells.append(f"{sum(map(is_as_expected, outcomes))} of {len(outcomes)}")
    if item["claims"]:
        cells.append(f"{sum(claim['agrees'] == 'yes' for claim in item['claims'])} of {len(item['claims'])} published")
    verdicts = [arm["verdict"].partition(":")[0] for arm in item["arms"] if arm["role"] == "treatment"]
    if _void(item):
        return "; ".join([*cells, "verdicts void"])
    counted = [f"{verdicts.count(word)} {word}" for word in dict.fromkeys(verdicts)]
    return "; ".join([*cells, *counted]) or "measured, nothing judged"


def _void(item: dict[str, Any]) -> list[str]:
    """Return why a study's verdicts are void: controls that it did not see, whenever it was made."""
    return [
        not_detected(arm["arm"])
        for arm in item["arms"]
        if arm["role"] == "control" and not arm.get("detected", arm["verdict"] == "worse")
    ]


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def _not_run(name: str) -> str:
    return f"### {name}\n\n{load(name).question}\n\nNot run yet at a size worth keeping.\n"


def _departure(item: dict[str, Any]) -> str:
    """Return in words where a published run is not of the full size that was registered, empty if it is."""
    options = re.findall(r"--(checkpoints|seeds) (\d+)", item["command"])
    if not options or "--quick" in item["command"]:
        return ""
    full = load(item["name"]).full
    changed = [f"{count} of {getattr(full, name)} {name}" for name, count in options]
    changed += ["a part of the cells"] * ("--set cells=" in item["command"])
    return f". A departure from the full size as registered: {' and '.join(changed)}"


def section(item: dict[str, Any]) -> str:
    """Return what the page says of one study, from its heading on."""
    lines = [f"### {item['name']}", "", item["question"], ""]
    if item["published"]:
        lines += [f"Published or expected: {item['published'].rstrip('.')} ({item['source']}).", ""]
    if reasons := _void(item):
        lines += [f"**{void_title(reasons)}** The sentences below say what was measured, and no verdict.", ""]
    if any("effects" not in arm for arm in item["arms"]):
        lines += ["*Measured before forward and training effect were told apart: the losses below are totals.*", ""]
    lines += [f"- {arm['sentence']}" for arm in item["arms"]]
    lines += [f"- {line}" for line in item.get("told", [])]
    if item["arms"] or item.get("told"):
        lines.append("")
    if item["expectations"]["rows"]:
        lines += [table(item["expectations"]["head"], item["expectations"]["rows"]), ""]
    lines += registrations.lines(item)
    if item["claims"]:
        rows = [(c["claim"], c["published"], c["ours"], c["agrees"]) for c in item["claims"]]
        lines += [table(("claim", "published", "here", "agrees"), rows), ""]
    size = item["size"].rstrip(".") + _departure(item)
    lines += [f"`{item['command']}`: {size}. [The whole report](../ablations/results/{item['name']}.md).", ""]
    if changed := registrations.since(item):
        lines += [f"**Older code.** {changed}", ""]
    return "\n".join(lines)
