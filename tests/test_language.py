"""Phrases that prose must not use: docstrings, comments and pages are plain English in the terms of the field."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# Why a reader must read them twice, and what English has instead. Each pattern is case sensitive and sees one line.
PHRASES = {
    "a what-clause in place of a noun: name the thing": (
        r"\b(of|from|for|with|to|than|by|on|as|and|or|[Rr]eturns?|takes?) what\b",
        r"(^|[\"“(]|: |\. )What (?!if|is\?)",
    ),
    "say, tell: functions return and check, data specify, commands print": (
        r"\b([Ss]ays?|[Ss]aid|[Tt]ells?|[Tt]old)\b",
    ),
    # "has no" states possession, "there are none" refers to a plural before it: both are English.
    "is no: is not a": (
        r"(?<!there )\b(is|are|was|were|be) (no (?!longer|more|matter)|none\b|nothing\b)",
        r"\b(holds?|has|have|had) (none|nothing)\b",
    ),
    "is needed, is possible: must be, allowed": (
        r"\b(is|are) (needed|possible)\b",
        r"\bneeded (is|are)\b|\ballowed is\b|\bknown are\b",
    ),
    "so many, a row a product: the number of, one per": (
        r"\bso (many|much)\b",
        r"\b(bits|bytes|nats|values|tokens|rows|one|number) a (value|byte|token|second|step|row|tile|layer)\b",
    ),
    "stand, lie: is, is listed, is stored, runs along": (
        r"\b(stands?|stood|standing|lies?|lay|lying)\b(?! (for|in for|out)\b)",
    ),
    # "4 bytes apart" is a distance.
    "beside, apart, aside, alike: in addition to, separately, equal": (
        r"(?<!`)\b(beside|besides|aside|alike|likewise)\b",
        r"(?<!bytes )(?<!codes )(?<!octaves )(?<!`PANEL` )\bapart\b",
    ),
    "inverted order, pro-forms: subject before verb, each docstring names its object": (
        r"\bSo (is|are|do|does|did) |\bTold is\b|\b[Dd]oe?s? the same\b|\b[Aa]s there\b|\bReturn (that|those) of\b",
    ),
    "make of, become of, come out: convert, compute, the result is": (
        r"\bma(kes?|de) of\b|\bbec(omes?|ame) of\b|\bc(omes?|ame) (out|about)\b",
    ),
    "go on, anew, once more: resume, re-": (r"\b(go(es|ing)?|went) on\b|(?<!-)\banew\b|\bafresh\b|\bonce more\b",),
    "everyday words for terms: integer, custom, caller": (
        r"\bwhole numbers?\b|\b([Ss]ome|[Nn]o|[Aa]ny)body\b|\bother people\b|\bat hand\b|\bin one stroke\b",
        r"\bby chance\b|\bwithout chance\b|\bby itself\b|\bof (one's|its|their|our|your) own\b(?! \w)",
    ),
}
# Lines with a phrase in each part of the repository; a number here only goes down.
CEILING = {
    "lowprec/diagnose": 0, "lowprec": 1, "docs": 0, "README.md": 0, "CONTRIBUTING.md": 0, "ablations": 0,
    "benchmarks": 0, "reference_data": 0,
}  # fmt: skip
# Quotes published reports and registered expectations, which do not change.
FOLDERS = ("lowprec", "docs", "ablations", "benchmarks", "reference_data")
QUOTED = {"docs/ablations.md", "docs/board.md", "docs/open.md"}


def _prose(path: Path) -> Iterator[tuple[int, str]]:
    """Yield numbered lines: of a page all, of a source those of comments and of strings that are statements."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        yield from enumerate(text.splitlines(), 1)
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines = enumerate(node.value.value.splitlines(), node.lineno)
            yield from ((i, line) for i, line in lines if not line.lstrip().startswith((">>>", "...")))


@pytest.mark.slow
def test_phrases_do_not_come_back() -> None:
    """A reason with its line is printed; rewrite the sentence, so that it is read once."""
    patterns = {why: re.compile("|".join(parts)) for why, parts in PHRASES.items()}
    folders = (p for name in FOLDERS for p in (ROOT / name).rglob("*") if p.suffix in (".py", ".md"))
    lines: dict[str, list[str]] = {part: [] for part in CEILING}
    for path in [*folders, ROOT / "README.md", ROOT / "CONTRIBUTING.md"]:
        name = path.relative_to(ROOT).as_posix()
        if name in QUOTED or "/generated/" in name or "/results/" in name:
            continue
        part = next(part for part in CEILING if name == part or name.startswith(f"{part}/"))
        for number, line in _prose(path):
            for why in (why for why, pattern in patterns.items() if pattern.search(line)):
                lines[part].append(f"{name}:{number}: {why}: {line.strip()}")
    above = [line for part in CEILING if len(lines[part]) > CEILING[part] for line in lines[part]]
    assert not above, "\n".join(above)
