"""Regenerate pages, drawings and reference data that are stale because their inputs changed.

    python docs/refresh.py                      regenerate all stale files
    python docs/refresh.py --check              list stale files without writing; exit with 1 if there are any
    python docs/refresh.py formats.md           this file only
    python docs/refresh.py --rewrite FILE       recompute all entries of a file of reference data: a decision
    python docs/refresh.py --studies runs       first copy the finished studies of a folder into ablations/results
    python docs/refresh.py --figures            first draw the figures of published studies of branches again

A page is the result of a function. A record is a JSON file of entries by name that tests compare with. Existing entries
of a record are never changed automatically; new entries are added, and entries of removed names are dropped.

The inputs of a file are not listed anywhere: its function runs in a separate process, which records the modules that it
imports, the files that it reads and the folders that it lists. build/refresh.json stores their hashes. Without that
file, everything is regenerated.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import importlib
import importlib.metadata
import json
import multiprocessing
import os
import platform
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
STATE = ROOT / "build" / "refresh.json"
COMMAND = "python docs/refresh.py"
#: Files of entries by name. `entries()` of a module in the same folder returns functions that compute the entries.
RECORDS = {
    "reference_data/definitions.json": "make_definitions",
    "reference_data/quantizer_vectors.json": "make_quantizer_vectors",
    "reference_data/golden_losses.json": "make_golden_losses",
    "reference_data/vector_digests.json": "make_vector_digests",
}
#: Files with the function that returns their text; files that others read come first.
PAGES = {
    "reference_data/README.md": "make_hashes.page",
    "docs/formats.md": "make_formats.page",
    "docs/accumulators.md": "make_accumulators.page",
    "docs/attention.md": "make_attention.page",
    "docs/quantizers.md": "make_quantizers.page",
    "docs/codecs.md": "make_codecs.page",
    "docs/collectives.md": "make_collectives.page",
    "docs/costs.md": "make_costs.page",
    "docs/recipes.md": "make_recipes.page",
    "docs/ablations.md": "make_ablations.page",
    "docs/open.md": "make_open.page",
    "ablations/results/pooled.csv": "make_pooled.data",
    "docs/findings.md": "make_pooled.findings",
    "docs/normal.md": "make_pooled.normal",
    "README.md": "make_pooled.readme",
    "docs/vectors.md": "make_vectors.page",
    "docs/board.md": "make_board.page",
    "docs/architecture.md": "make_architecture.page",
    "docs/architecture.svg": "make_architecture.drawing",
}
#: Files that this program does not generate: the reason, and the command that does.
BY_HAND = {
    "reference_data/board.json": "installs packages: lowprec board --record FILE --page docs/board.md",
    "tests/costs.json": "measured: pytest -n auto --dist loadfile -m 'not exhaustive and not peers' --costs=write",
    "tests/oracle_digests.txt": "hours, and stale it costs time alone: the same with --oracle=write",
    "ablations/registered.json": "a decision: lowprec register NAME",
    "ablations/results": f"hours of training: lowprec ablate NAME, then {COMMAND} --studies runs",
    "benchmarks/growth.svg": "timed: python benchmarks/growth.py --figure benchmarks/growth.svg",
    "lowprec/kernels/logfmt/tables.py": "constants: python reference_data/make_logfmt_tables.py > FILE",
    "docs/tiny_dsv3.png": "an hour: lowprec train --config tiny --recipe dsv3 --steps 500 --schedule deepseek",
}
PATHS = (ROOT, ROOT / "docs", ROOT / "reference_data")
Keys = tuple[str, ...]
_MISSING = object()


# --- The current text of a file---------------------------------------------------------------------------------------


class Made(NamedTuple):
    """Generated text of a file, a note on it, and its inputs."""

    text: str
    note: str
    inputs: dict[str, str]


def page(target: str) -> str:
    """Return the current text of a page."""
    module, function = PAGES[target].split(".")
    text: str = getattr(importlib.import_module(module), function)()
    return text


def record(target: str, *, rewrite: bool = False, compute: bool = True) -> tuple[str, str]:
    """Return the text of a record and its new or changed entries; without `compute`, new entries are null."""
    module = importlib.import_module(RECORDS[target])
    entries: Mapping[Keys, Callable[[], Any]] = module.entries()
    file = ROOT / target
    old = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    known = {keys: value for keys in entries if (value := _find(old, keys)) is not _MISSING}
    todo = [keys for keys in entries if rewrite or keys not in known]
    found = dict(zip(todo, _computed([entries[keys] for keys in todo]), strict=True)) if compute else {}
    data: dict[str, Any] = {}
    for keys in entries:
        place = data
        for key in keys[:-1]:
            place = place.setdefault(key, {})
        place[keys[-1]] = found.get(keys, known.get(keys))
    words = [" ".join(keys) for keys in todo if keys not in known or found.get(keys) != known[keys]]
    write = getattr(module, "written", lambda data: json.dumps(data, indent=1) + "\n")
    more = f" and {len(words) - 8} more" * (len(words) > 8)
    return write(data), f"entries: {', '.join(words[:8])}{more}" * bool(words)


def _find(data: Any, keys: Keys) -> Any:
    for key in keys:
        data = data.get(key, _MISSING) if isinstance(data, dict) else _MISSING
    return data


def _computed(entries: list[Callable[[], Any]]) -> list[Any]:
    """Compute entries, in several processes if there are many."""
    workers = min(os.cpu_count() or 1, len(entries) // 8)
    if workers < 2:
        return [_plain(entry) for entry in entries]
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        return list(pool.map(_plain, entries, chunksize=4))


def _plain(entry: Callable[[], Any]) -> Any:
    """Compute an entry in JSON types."""
    return json.loads(json.dumps(entry()))


def make(target: str, rewrite: bool, compute: bool) -> Made:
    """Generate a file's text in this process, which must do nothing else, and record what is read."""
    seen: set[str] = set()

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        # Imports list folders with os.listdir, searches for files with os.scandir.
        if event in ("open", "os.scandir") and isinstance(arguments[0], str | os.PathLike):
            seen.add(os.path.abspath(os.fspath(arguments[0])))

    sys.addaudithook(note)
    sys.path[:0] = map(str, PATHS)
    text, words = record(target, rewrite=rewrite, compute=compute) if target in RECORDS else (page(target), "")
    seen.update(file for module in tuple(sys.modules.values()) if (file := getattr(module, "__file__", None)))
    paths = {os.path.relpath(path, ROOT) for path in seen} - {target}
    return Made(text, words, {path: digest for path in sorted(paths) if (digest := digest_of(path))})


# --- The inputs of a file ------------------------------------------------------------------------------------------


@functools.cache
def digest_of(path: str) -> str:
    """Return a digest of a file of the project, or of a folder's names; empty for paths outside of its sources."""
    parts, there = Path(path).parts, ROOT / path
    if any(part.startswith((".", "__pycache__")) for part in parts[:-1]) or parts[:1] in ((), ("build",), ("runs",)):
        return ""
    if there.is_dir():
        names = sorted(p.name for p in there.iterdir() if not p.name.startswith((".", "__pycache__")))
        return hashlib.sha256("\0".join(names).encode()).hexdigest()[:16]
    return hashlib.sha256(there.read_bytes()).hexdigest()[:16] if there.is_file() else "none"


@functools.cache
def packages() -> str:
    """Return the versions of the packages that compute."""
    names = ("numpy", "numba", "ml_dtypes", "scipy")
    return " ".join((platform.python_version(), *(f"{name} {importlib.metadata.version(name)}" for name in names)))


def is_fresh(target: str, state: Mapping[str, Any]) -> bool:
    """Return whether a file and all of its inputs are unchanged since it was last found correct."""
    known = state.get(target)
    return (
        bool(known)
        and known["packages"] == packages()
        and known["digest"] == digest_of(target)
        and all(digest_of(path) == digest for path, digest in known["inputs"].items())
    )


# --- The command ----------------------------------------------------------------------------------------------------


def refresh(targets: list[str], *, check: bool = False, rewrite: bool = False) -> bool:
    """Regenerate stale files, or with `check` only list them; return whether nothing was stale or failed."""
    state: dict[str, Any] = json.loads(STATE.read_text(encoding="utf-8")) if STATE.exists() else {}
    good, fresh = True, 0
    for target in targets:
        if not rewrite and is_fresh(target, state):
            fresh += 1
            continue
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            try:
                made = pool.submit(make, target, rewrite, not check).result()
            except Exception as error:
                good = False
                say("cannot", target, f"{type(error).__name__}: {error}")
                continue
        file = ROOT / target
        if stale := not file.exists() or file.read_text(encoding="utf-8") != made.text:
            good = good and not check
            say("stale" if check else "made", target, made.note)
            if not check:
                file.write_text(made.text, encoding="utf-8")
                digest_of.cache_clear()
        else:
            fresh += 1
        if not (check and stale):
            state[target] = {"packages": packages(), "digest": digest_of(target), "inputs": made.inputs}
            STATE.parent.mkdir(exist_ok=True)
            STATE.write_text(json.dumps(state, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(f"fresh    {fresh} of {len(targets)} files\n")
    return good


def say(what: str, target: str, note: str) -> None:
    """Print one line about a file."""
    sys.stdout.write(f"{what:8} {target}{f': {note}' * bool(note)}\n")
    sys.stdout.flush()


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("files", nargs="*", metavar="FILE", help="these alone, by name or path; all if none is given")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a file is stale")
    parser.add_argument("--rewrite", action="store_true", help="recompute entries that are recorded already")
    parser.add_argument("--studies", type=Path, metavar="RUNS", help="take the finished studies of a folder first")
    parser.add_argument("--figures", action="store_true", help="draw the figures of studies from their numbers first")
    given = parser.parse_args(arguments)
    known = [*RECORDS, *PAGES]
    chosen = [target for target in known if not given.files or {target, Path(target).name} & {*given.files}]
    if unknown := [file for file in given.files if not any(file in (target, Path(target).name) for target in known)]:
        parser.error(f"no made file {', '.join(unknown)}; there are {', '.join(known)}")
    if given.rewrite and not given.files:
        parser.error("--rewrite changes what tests are held to: name the files")
    if given.studies or given.figures:
        sys.path[:0] = map(str, PATHS)
    if given.studies:
        for file in importlib.import_module("make_ablations").collect(given.studies):
            say("taken", str(file.relative_to(ROOT)), "")
    if given.figures:
        for file in importlib.import_module("make_figures").draw_all():
            say("drawn", str(file.relative_to(ROOT)), "")
    good = refresh(chosen, check=given.check, rewrite=given.rewrite)
    if not given.files:
        for target, why in BY_HAND.items():
            say("by hand", target, why)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
