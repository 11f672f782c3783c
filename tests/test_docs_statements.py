"""What the pages say is there: commands with their options, files that they link to, names of the library."""

import importlib
import importlib.util
import re
from pathlib import Path

import click
import pytest

from lowprec.cli.app import cli

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *(ROOT / name / "README.md" for name in ("ablations", "benchmarks", "reference_data", "reference_data/capture")),
]  # fmt: skip
PAGE = pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())


def wrong(line: str) -> str | None:
    """Return what of a command line the program does not have."""
    command: click.Command = cli
    words = line.split()
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        name = words.pop(0)
        if name not in command.commands:
            return name
        command = command.commands[name]
    known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    return next(
        (o for o in re.findall(r"(?<![\\w-])--[a-z][a-z-]*", " ".join(words)) if o not in {*known, "--help"}), None
    )


def test_the_check_finds_what_is_not_there():
    assert wrong("bench trian") == "trian"
    assert wrong("report runs --jsn") == "--jsn"
    assert wrong("ablate fp8_vs_bf16 --quick --set branch_steps=80") is None


@PAGE
def test_commands_exist(page):
    text = page.read_text(encoding="utf-8")
    lines = re.findall(r"(?:`|^    |/)lowprec +([a-z][^`\n#|]*)", text, re.MULTILINE)
    assert {line: wrong(line) for line in lines if wrong(line)} == {}


@PAGE
def test_links_lead_to_files(page):
    links = re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8"))
    local = [link for link in links if "://" not in link]  # a page is also read without the site: no page of its alone
    assert [link for link in local if not (page.parent / link).exists()] == []


@PAGE
def test_programs_exist(page):
    programs = set(re.findall(r"python ((?:[\w-]+/)+\w+\.py)", page.read_text(encoding="utf-8")))
    assert [name for name in programs if not (ROOT / name).is_file()] == []


@PAGE
def test_names_exist(page):
    names = set(re.findall(r"(?<![\w/.])(?:lowprec|lp)((?:\.[A-Za-z_]\w*)+)", page.read_text(encoding="utf-8")))
    assert sorted(name for name in names if not found(["lowprec", *name[1:].split(".")])) == []


def found(parts: list[str]) -> bool:
    """Whether attributes, or the modules that catalogues of the same name hide, lead to a name."""
    if parts[1] in ("torch", "jax") and importlib.util.find_spec(parts[1]) is None:
        return True  # an adapter whose package is missing cannot be looked into
    for start in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:start]))
        except ImportError:
            continue
        for name in parts[start:]:
            value = getattr(value, name, None)
        if value is not None:
            return True
    return False


def test_files_that_contributing_names_are_there() -> None:
    """In backticks: paths with a folder, whose first part is one of the project's."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    text = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("PYTHONPATH"))
    tops = {path.name for path in ROOT.iterdir()} - {"build", "dist", "runs"}  # what commands make
    named = {word for word in re.findall(r"`([\w./-]+/[\w./-]*)`", text) if word.split("/")[0] in tops}
    assert len(named) > 20
    assert sorted(name for name in named if not (ROOT / name).exists()) == []
