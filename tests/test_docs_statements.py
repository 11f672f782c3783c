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


STATEMENTS = {
    "commands": (r"(?:`|^    |/)lowprec +([a-z][^`\n#|]*)", lambda page, line: wrong(line) is None),
    # A page is also read without the site: no page of its alone.
    "links": (r"\]\(([^)#\s]+)", lambda page, link: "://" in link or (page.parent / link).exists()),
    "programs": (r"python ((?:[\w-]+/)+\w+\.py)", lambda page, name: (ROOT / name).is_file()),
    "names": (
        r"(?<![\w/.])(?:lowprec|lp)((?:\.[A-Za-z_]\w*)+)",
        lambda page, name: found(["lowprec", *name[1:].split(".")]),
    ),
}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
@pytest.mark.parametrize("kind", STATEMENTS)
def test_what_a_page_names_is_there(kind, page):
    pattern, is_there = STATEMENTS[kind]
    said = set(re.findall(pattern, page.read_text(encoding="utf-8"), re.MULTILINE))
    assert sorted(each for each in said if not is_there(page, each)) == []


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
    tops = {path.name for path in ROOT.iterdir()} - {"build", "dist", "runs"}  # what commands make
    named = {word for word in re.findall(r"`([\w./-]+/[\w./-]*)`", text) if word.split("/")[0] in tops}
    assert len(named) > 20
    assert sorted(name for name in named if not (ROOT / name).exists()) == []
