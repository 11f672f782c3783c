"""Recompute the tables of docs/findings.md from the CSVs in ablations/results, with NumPy and SciPy alone.

    python benchmarks/recompute.py        the tables of all studies of branches; exits with 1 on a difference

Means follow from `*_pairs.csv`, relative differences of every pair, and intervals from their spread between and within
checkpoints. A published interval also holds the sampling error of the held-out text, which the CSVs of these studies do
not have: it may be wider than the one here, or a twentieth narrower, since that part has degrees of freedom as well.
"""

import csv
import json
import math
import re
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
from scipy import optimize, stats

ROOT = Path(__file__).parents[1]
HERE, FINDINGS = ROOT / "ablations" / "results", ROOT / "docs" / "findings.md"
EFFECTS = {"forward": "rounding in the forward pass", "training": "training", "total": "both"}
SHARED = 0.25  # correlation of the squared differences of two arms that share their reference


def rows(name):
    """Return the rows of a CSV."""
    with open(HERE / name, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def squares(checkpoints):
    """Return mean, count, mean squares between and within checkpoints, and their degrees of freedom."""
    r, groups = np.concatenate(checkpoints), len(checkpoints)
    between = sum(group.size * (group.mean() - r.mean()) ** 2 for group in checkpoints)
    within = sum(((group - group.mean()) ** 2).sum() for group in checkpoints)
    above, below = groups - 1, r.size - groups
    return r.mean(), r.size, between / above, within / below if below else math.nan, above, below


def interval(own, others):
    """Return the 90 % interval of a mean, the ratio of mean squares drawn towards that of all arms."""
    mean, n, between, within, above, below = own
    shares = [
        (b / (a * b + c * w) * (a + c), w / (a * b + c * w) * (a + c))
        for _, _, b, w, a, c in others if c and a * b + c * w > 0
    ]  # fmt: skip
    arms = len(shares) / (1 + SHARED * (len(shares) - 1)) - 1 if shares else 0
    variance, df = between, above
    if below and arms > 0:
        ratio = max(1.0, sum(over for over, _ in shares) / sum(under for _, under in shares))
        prior = 1 / (1 / below + 1 / (arms * above) + 1 / (arms * below))
        variance, df = (prior * ratio * within + above * between) / (prior + above), prior + above
    half = stats.t.ppf(0.95, df) * math.sqrt(variance / n)
    return 100 * mean, 100 * (mean - half), 100 * (mean + half)


def study(name, baseline=""):
    """Return mean and interval of every arm and effect of a study, or of its difference from another arm."""
    found = defaultdict(lambda: defaultdict(dict))
    for row in rows(f"{name}_pairs.csv"):
        if not baseline or row["role"] in ("treatment", "control"):
            found[row["arm"], row["effect"]][row["checkpoint"]][row["seed"]] = float(row["r"])
    levels = {}
    for (arm, effect), groups in found.items():
        other = found.get((baseline, effect), {})
        parts = [
            np.array([r - other.get(c, {}).get(seed, 0.0) for seed, r in pairs.items()]) for c, pairs in groups.items()
        ]
        if arm != baseline:
            levels[arm, effect] = squares(parts)
    return {
        (arm, effect): interval(own, [other for (_, its), other in levels.items() if its == effect])
        for (arm, effect), own in levels.items()
    }


def pooled():
    """Yield the rows of pooled.csv for all studies together, from those of its groups."""
    parts = defaultdict(lambda: defaultdict(list))
    for row in rows("pooled.csv"):
        if row["model"] != "all":
            cell = (float(row["percent"]), float(row["error"]), int(row["pairs"]))
            parts[row["recipe"], row["effect"]][row["model"], row["text"]].append(cell)
    for key, groups in parts.items():
        of_groups = [
            np.average([cell[:2] for cell in cells], axis=0, weights=[cell[2] for cell in cells])
            for cells in groups.values()
        ]
        yield key, random_effects(*np.transpose(of_groups))


def random_effects(means, errors):
    """Return a mean over groups with its 90 % interval: Paule and Mandel's variance, Hartung and Knapp's interval."""
    df = len(means) - 1

    def excess(between):
        weights = 1 / (errors**2 + between)
        return weights @ (means - np.average(means, weights=weights)) ** 2 - df

    between = optimize.brentq(excess, 0, 100) if excess(0) > 0 else 0.0
    weights = 1 / (errors**2 + between)
    mean = np.average(means, weights=weights)
    half = stats.t.ppf(0.95, df) * math.sqrt(max(1, excess(between) / df + 1) / weights.sum())
    return mean, mean - half, mean + half


def differences():
    """Yield, in words, where what is published is not what follows from the pairs."""
    for file in sorted(HERE.glob("*_pairs.csv")):
        name = file.stem.removesuffix("_pairs")
        ours = study(name)
        for arm in json.loads((HERE / f"{name}.json").read_text(encoding="utf-8"))["arms"]:
            for effect, (mean, low, high) in arm["effects"].items():
                if (arm["arm"], effect) not in ours:  # a repeat, whose differences are 0
                    continue
                own, least, most = ours[arm["arm"], effect]
                wider = (high - low) / (most - least) if most > least else 1.0
                if abs(own - mean) > 1e-9 or not 0.95 < wider < 2.0:
                    yield f"{name} {arm['arm']} {effect}: {mean} [{low}, {high}], the pairs {own} [{least}, {most}]"
    for (recipe, effect), found in pooled():
        row = next(r for r in rows("pooled.csv") if (r["recipe"], r["effect"], r["model"]) == (recipe, effect, "all"))
        if not np.allclose(found, [float(row[key]) for key in ("percent", "low", "high")], rtol=1e-6):
            yield f"pooled {recipe} {effect}: {row}, its groups {found}"
    yield from _findings()


def _findings():
    """Yield cells of the tables in docs/findings.md that no study has published."""
    number = re.compile(r"([+-]\d\.\d{3}) % \[([+-]\d\.\d{3}), ([+-]\d\.\d{3})\]")
    text = FINDINGS.read_text(encoding="utf-8").partition("<!-- end of pooled -->")[2]
    for section in text.split("\n\n**"):
        names = re.findall(r"ablations\.md#(\w+)", section)
        if not names or not (HERE / f"{names[0]}_pairs.csv").exists():
            continue
        arms = json.loads((HERE / f"{names[0]}.json").read_text(encoding="utf-8"))["arms"]
        known = [effect for arm in arms for effect in arm["effects"].values()]
        if baseline := re.search(r"minus `(\w+)`'s", section):
            known += study(names[0], baseline.group(1)).values()
        for row in re.findall(r"^\| .*$", section, flags=re.MULTILINE):
            cells = (tuple(map(float, cell)) for cell in number.findall(row))
            yield from (f"{names[0]}: {cell} in docs/findings.md" for cell in cells if not _is_known(cell, known))


def _is_known(cell, known):
    """Return whether a mean is among the known ones, to its digits, and its ends within 8 % of the interval."""
    return any(
        abs(cell[0] - mean) < 6e-4 and np.allclose(cell[1:], ends, rtol=0, atol=6e-4 + 0.08 * (ends[1] - ends[0]))
        for mean, *ends in known
    )


def main():
    """Print the tables and their differences from the published ones."""
    for file in sorted(HERE.glob("*_pairs.csv")):
        found = study(file.stem.removesuffix("_pairs"))
        print(f"\n{file.stem.removesuffix('_pairs')}\n| arm | {' | '.join(EFFECTS.values())} |\n|---|---:|---:|---:|")
        for arm in dict.fromkeys(arm for arm, _ in found):
            cells = ("{:+.3f} % [{:+.3f}, {:+.3f}]".format(*found[arm, effect]) for effect in EFFECTS)
            print(f"| `{arm}` | {' | '.join(cells)} |")
    wrong = list(differences())
    print(*wrong, sep="\n", file=sys.stderr)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
