"""The README's examples run and print what it says; what all pages name is there: commands, options, files, names."""

import doctest
import importlib
import importlib.util
import json
import re
from pathlib import Path

import click
import pytest

import lowprec as lp
from lowprec.cli.app import cli

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_example(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    test = doctest.DocTestParser().get_doctest(EXAMPLES[number], {}, f"README example {number}", str(README), 0)
    assert test.examples, "an example without a prompt would never run"
    runner = doctest.DocTestRunner(optionflags=flags)
    report: list[str] = []
    with lp.formats.scoped(), lp.quantizers.scoped():  # what an example registers goes with it
        runner.run(test, out=report.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(report)


def test_it_is_a_front_door() -> None:
    """Findings, speed and evidence have pages of their own in docs/."""
    text = README.read_text()
    assert len(EXAMPLES) >= 3
    assert len(text.splitlines()) <= 130
    assert len(text.split()) <= 1100
    assert len(re.findall(r"^\|[-:| ]+\|$", text, flags=re.MULTILINE)) <= 3, "tables"
    commands = re.findall(r"^python3 -m venv .*$", text, flags=re.MULTILINE)
    assert ["pytest" in command for command in commands].count(True) == len(commands) - 1 == 1


def test_one_sum_of_14_bits_on_every_page() -> None:
    """The same operands and the same error wherever it is shown, with the word that it is of positive numbers."""
    start, tutorial = ((ROOT / "docs" / name).read_text() for name in ("start.md", "gallery/plot_8_own_machine.py"))
    operands = "rng.random((64, 4096), np.float32), rng.random((128, 4096), np.float32)"
    for text in (README.read_text(), start, tutorial, lp.gemm.__doc__):
        assert operands in text
        assert re.search("positive", text, re.I)
        assert len(re.findall(r"rng\.random\(\(", text)) == 2
    for text in (README.read_text(), start):
        assert "\nNone 7.90%\n128 0.06%\n" in text
    assert "['0.06%', '7.90%']" in lp.gemm.__doc__
    ((sums, quantization),) = re.findall(r"^sum (.*), quantization (.*)$", start, re.M)
    text = " ".join(README.read_text().split())
    assert f"the accumulation error is {sums} (rms) and the quantization error {quantization}" in text


def test_numbers_are_those_of_their_pages() -> None:
    """What the README quotes stands, to the digit, in the page that its command writes."""
    readme, docs = README.read_text(), ROOT / "docs"
    speed, exactness = (docs / "speed.md").read_text(), (docs / "exactness.md").read_text()
    (ratios,) = re.findall(r"([\d.]+x) to ([\d.]+x) the speed of lowprec's float32 product", " ".join(readme.split()))
    assert all(f"{ratio})" in speed.partition("\n## ")[0] for ratio in ratios)
    assert "| 1.31 [1.11, 1.52] |" in (docs / "findings.md").read_text()
    assert "1.31 [1.11, 1.52] times" in " ".join(readme.split())
    assert "0 of 240,000" in readme
    assert "| 240,000 | 0 |" in exactness
    for study, arm, words in (
        ("from_scratch", "dsv3", ("+0.333 %", "[+0.027, +0.638]")),
        ("from_scratch", "fp4_naive", ("+2.444 %", "[+1.842, +3.045]")),
        ("from_scratch", "perturb", ("0.850 %",)),
        ("from_scratch_switch", "dsv3", ("+0.119 %", "[-0.104, +0.342]")),
    ):
        results = json.loads((ROOT / "ablations" / "results" / f"{study}.json").read_text())
        (sentence,) = (found["sentence"] for found in results["arms"] if found["arm"] == arm)
        for quoted in words:
            assert quoted in sentence
            assert quoted.replace(" %", "%") in readme


# --- what pages say is there ------------------------------------------------------------------------------------------


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
    links = set(re.findall(pattern, page.read_text(encoding="utf-8"), re.MULTILINE))
    assert sorted(each for each in links if not is_there(page, each)) == []


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
