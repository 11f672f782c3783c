"""A fuzzer over the command line: it prints what was asked for, or one line that says what was wrong."""

import os

import commands
import judge
import pytest
from click.testing import CliRunner
from draw import Draw

from lowprec.cli.app import cli

LINES = {line.name: line for line in commands.lines(cli)}
CALLS = {"short": 20, "long": 1500}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    commands.write_files(folder)
    return folder


@pytest.fixture
def alone(files, little_room, monkeypatch):
    """Stand among the files."""
    (files / "out").mkdir(exist_ok=True)
    monkeypatch.chdir(files)
    return little_room


DIFFERING = ("check", "convert", "identify")


def everything(files, alone):
    return [entry for entry in judge.listing(files, alone) if not entry[0].startswith(str(files / "out"))]


def check(words, files, alone):
    """Run one line and return its exit code."""
    before = everything(files, alone)
    done = CliRunner().invoke(cli, words)
    where = f"lowprec {' '.join(map(repr, words))}"
    unexpected = None if isinstance(done.exception, SystemExit) else done.exception
    assert unexpected is None, f"{where}: {type(unexpected).__name__}: {unexpected}"
    assert "Traceback" not in done.output, where
    assert done.exit_code in (0, 1, 2), f"{where}: {done.exit_code}"
    # 1 is an answer of these, which they print: something differs.
    if done.exit_code and not (done.exit_code == 1 and words[0] in DIFFERING and done.stdout):
        printed = [line for line in done.stderr.splitlines() if not line.startswith("note: ")]
        assert len(printed) == 1, f"{where}: {done.stderr}"
        assert printed[0].startswith("error: "), f"{where}: {printed[0]}"
        assert len(printed[0]) < 2000, where
    assert everything(files, alone) == before, f"{where}: wrote beside its folder"
    return done.exit_code


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", LINES)
def test_lines(name, files, alone):
    for i in range(CALLS["short"]):
        check(LINES[name].draw(Draw(f"{name} {i}")), files, alone)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", LINES)
def test_many_lines(name, files, alone):
    for i in range(int(os.environ.get("LOWPREC_FUZZ_LINES", CALLS["long"]))):
        check(LINES[name].draw(Draw(f"{name} {i}")), files, alone)
