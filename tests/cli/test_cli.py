"""The command line: how fast it answers, what ablations print and write, and what is refused before the work."""

import csv
import importlib
import json
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import click
import numpy as np
import pytest
from command_line import refused, rows, run

import lowprec
from lowprec import _jit
from lowprec.cli import app
from lowprec.cli import warm as cli_warm
from lowprec.study import names
from lowprec.study.report import sheet
from lowprec.study.run import runner

ROOT = Path(lowprec.__file__).parent.parent
SMALL = [
    "--set", "checkpoint_steps=10", "--set", "warmup_steps=2", "--set", "branch_steps=8", "--seeds", "2",
    "--checkpoints", "1", "--jobs", "0",
]  # fmt: skip
ABLATE = ["ablate", "fp8_vs_bf16", "--quick", *SMALL]


def python(*arguments):
    """Return what a fresh process prints."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True).stdout


# --- starting up -----------------------------------------------------------------------------------------------------


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "line", ["--help", "ablate --help", "formats", "--version"]
)  # arms of replay hold accumulators
def test_light_commands_load_nothing_heavy(line):
    code = (
        "import sys; from click.testing import CliRunner; from lowprec.cli.app import cli\n"
        "result = CliRunner().invoke(cli, sys.argv[1:]); assert result.exit_code == 0, result.output\n"
        "print(*sorted({'numba', 'pandas', 'scipy', 'matplotlib', 'llvmlite'} & set(sys.modules)))"
    )
    assert python("-c", code, *line.split()).split() == []


def test_module_and_script_are_one():
    shown = python("-m", "lowprec", "--help")
    assert shown.startswith("Usage: lowprec [OPTIONS] COMMAND [ARGS]...")
    assert "..." not in shown.partition("Commands:")[2]  # every command is described in full
    for command in ("ablate", "cast", "formats", "gemm", "info", "logfmt", "quantize", "report", "train"):
        assert f"\n  {command} " in shown


@pytest.mark.slow
def test_info():
    found = {row["name"]: row["value"] for row in rows("info")}
    assert (found["lowprec"], found["numpy"]) == (lowprec.__version__, np.__version__)
    assert {"cpu", "features", "cores", "threads", "kernel cache", "code"} <= found.keys()


def test_every_command_is_listed():
    """One that is defined and not in the list of app.py would be there for nobody."""
    listed = set(app.cli.commands.values())
    listed |= {value for group in listed if isinstance(group, click.Group) for value in group.commands.values()}
    for module in pkgutil.iter_modules([str(Path(app.__file__).parent)], "lowprec.cli."):
        for name, value in vars(importlib.import_module(module.name)).items():
            if isinstance(value, click.Command) and not isinstance(value, click.Group):
                assert value in listed, f"{module.name}.{name}"


def test_bugs_are_not_dressed_as_mistakes(monkeypatch):
    def bug(*args, **kwargs):
        raise AssertionError("internal")

    monkeypatch.setattr("lowprec.study.run.fingerprint.host", bug)
    assert isinstance(run("info", code=1).exception, AssertionError)
    assert isinstance(run("--traceback", "formats", "e4m3fx", code=1).exception, KeyError)


# --- ablations -------------------------------------------------------------------------------------------------------


@pytest.mark.ci
def test_what_trainings_take_is_said_before_them(tmp_path):
    plan = ("ablate", "--plan", "--json", "--out", tmp_path)
    result = run(*plan, "scaling", "wire_cost", "--quick", "--set", "cells=nano-150-*", "--checkpoints", "3")
    (printed,) = result.stderr.splitlines()
    assert printed.startswith("timing a training step and a forward pass of every recipe")
    (row,) = json.loads(result.stdout)
    assert (row["study"], row["model"], row["checkpoint_steps"], row["checkpoints"]) == ("scaling", "nano", "150", 3)
    assert (row["runs_to_do"], row["checkpoints_to_do"]) == (7 * 3, 3)
    assert row["arms_core_min"] > row["checkpoints_core_min"] > 0
    part = ("--set", "cells=tiny-300-stdlib", "--seeds", "1")  # which the quick size has not
    (row,) = json.loads(run(*plan, "scaling", *part).stdout)
    assert (row["size"], row["model"], row["runs_to_do"]) == ("full", "tiny", 7 * 4)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_list(fake):
    listed = rows("ablate", "--list")
    arms = {row["name"]: row["arms"] for row in listed}
    places = [(row["tier"], row["name"]) for row in listed]
    assert places == sorted(places)
    assert sorted(arms) == sorted(names())
    assert "dsv3_no_promotion" in arms["fp8_vs_bf16"]
    assert "fp22_128" in arms["accumulation"]


@pytest.mark.slow
def test_an_ablation_from_start_to_report(fake, tmp_path):
    result = run(*ABLATE, "--out", tmp_path)
    folder = tmp_path / "fp8_vs_bf16-quick"
    names = {path.name for path in folder.iterdir() if path.is_file() and not path.name.startswith(".")}
    figures = {f"fp8_vs_bf16{kind}.{ending}" for kind in ("", "_pairs", "_cost") for ending in ("png", "svg", "csv")}
    written = {"report.md", "table.csv", "summary.json", "study.json", "report.html"}
    before_runs = {"study.json", "registered.json"}
    assert names == figures | written | before_runs
    for name in names - before_runs:
        assert f"wrote {folder / name}" in result.stderr
    for arm in ("bf16_again", "perturb", "dsv3", "fp4_naive"):  # those that the quick size leaves out are not run
        assert f"• {arm}" in result.stdout
    assert "![" in (folder / "report.md").read_text()
    # The report alone gives the same again, and resuming does nothing but that.
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert run("report", folder).stdout == result.stdout == run(*ABLATE, "--out", tmp_path).stdout
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


@pytest.mark.slow
def test_an_ablation_for_machines(fake, tmp_path):
    result = run(*ABLATE, "--out", tmp_path, "--no-plot", "--json")
    assert {arm["arm"] for arm in json.loads(result.stdout)["arms"]} >= {"dsv3", "fp4_naive"}
    result = run("report", tmp_path / "fp8_vs_bf16-quick", "--no-plot", "--csv")
    assert next(row["arm"] for row in csv.DictReader(result.stdout.splitlines())) == "bf16_again"
    assert not list(tmp_path.glob("**/*.png"))


@pytest.mark.slow
def test_an_irreproducible_study_fails_loudly(fake, tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_IRREPRODUCIBLE", "1")
    printed = run(*ABLATE, "--out", tmp_path, "--no-plot", code=1).stderr
    assert "error: bf16_again is NOT bit-identical to bf16" in printed
    assert (tmp_path / "fp8_vs_bf16-quick/report.md").exists()


def test_an_ablation_file_is_a_name_of_the_command(tmp_path):
    source = (ROOT / "ablations/fp8_vs_bf16.py").read_text()
    (tmp_path / "mine.py").write_text(source.replace('name="fp8_vs_bf16"', 'name="mine"'))
    listed = run("ablate", tmp_path / "mine.py", "--list", "--json")
    assert [row["name"] for row in json.loads(listed.output)] == ["mine"]


@pytest.mark.slow
def test_listing_ablations_compiles_nothing():
    code = (
        "import sys; from lowprec.study import catalogue; [catalogue.load(name) for name in catalogue.names()]\n"
        "print('numba' in sys.modules)"
    )
    assert python("-c", code).split() == ["False"]


def test_ctrl_c_is_quiet(fake, tmp_path, monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "run_study", interrupted)
    result = run(*ABLATE, "--out", tmp_path, "--no-plot", code=130)
    assert result.stderr.splitlines()[-1] == "stopped; what was finished is kept"
    assert "Traceback" not in result.output


# --- mistakes that are found before the work -------------------------------------------------------------------------


def test_an_output_folder_that_cannot_be_written_is_refused_before_the_work(fake, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(runner, "compile_kernels", lambda *work, **options: pytest.fail("work began"))
    result = run(*ABLATE, "--out", tmp_path / "file", code=2)
    assert "cannot be written: Not a directory" in result.stderr.splitlines()[-1]
    assert "Traceback" not in result.output
    refused("train", "--steps", "1", "--out", tmp_path / "file" / "sub", match="cannot be written")


@pytest.mark.slow
def test_missing_matplotlib_is_said_before_the_work(fake, tmp_path, monkeypatch):
    monkeypatch.setattr(sheet, "find_spec", lambda name: None)
    refused("ablate", "--quick", "--out", tmp_path / "out", *SMALL, match="pip install 'lowprec[plot]'")
    refused("report", tmp_path, match="pip install 'lowprec[plot]'")
    assert not (tmp_path / "out").exists()
    run(*ABLATE, "--no-plot", "--out", tmp_path / "out")


@pytest.mark.slow
def test_other_runs_in_the_folder_are_refused(fake, tmp_path):
    ablate = [*ABLATE, "--no-plot", "--out", tmp_path]
    run(*ablate)
    result = run(*ablate, "--set", "branch_steps=9", code=2)
    assert "schedule.total_steps: 8 then, 9 now" in (message := result.stderr.splitlines()[-1])
    assert "--restart" in message
    assert "Traceback" not in result.output
    run("report", tmp_path, "--no-plot")
    run(*ablate, "--set", "branch_steps=9", "--restart")
    assert (tmp_path / "fp8_vs_bf16-quick.1/study.json").exists()
    run("report", tmp_path, "--no-plot")  # what was moved aside is left alone


@pytest.mark.slow
@pytest.mark.parametrize("work", [cli_warm._cast, cli_warm._quantize, cli_warm._multiply, cli_warm._encode])
def test_every_part_of_warm_finds_what_it_runs(work):
    work()


def test_warm_says_where_kernels_are(monkeypatch):
    monkeypatch.setattr(cli_warm, "_WORK", {"nothing": lambda: None})
    assert run("warm").stdout.startswith("0 functions compiled; kernels are in ")
    monkeypatch.setattr(_jit, "cache_folder", None)
    assert "no folder for kernels can be written" in run("warm", code=1).stdout
