"""The command line: what it prints, how fast it answers, and that every mistake gets one clear line."""

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
from click.testing import CliRunner
from fake_trainer import FAKE

import lowprec
from lowprec.cli import app as cli
from lowprec.study import names
from lowprec.study.report import style
from lowprec.study.run import runner as runner_module

ROOT = Path(lowprec.__file__).parent.parent
SMALL = [
    "--set",
    "checkpoint_steps=10",
    "--set",
    "warmup_steps=2",
    "--set",
    "branch_steps=8",
    "--seeds",
    "2",
    "--checkpoints",
    "1",
    "--jobs",
    "0",
]


def run(*arguments):
    return CliRunner().invoke(cli.cli, [str(argument) for argument in arguments])


def refused(*arguments, match=""):
    """Run a command that must be refused: exit code 2, one line on stderr, nothing on stdout."""
    result = run(*arguments)
    assert result.exit_code == 2, (result.output, result.exception)
    assert result.stdout == ""
    message = result.stderr.strip()
    assert len(message.splitlines()) == 1, result.stderr
    assert message.startswith("error: ")
    assert match in message, message
    return message


@pytest.fixture
def fake(monkeypatch):
    monkeypatch.setattr("lowprec.study.run.backend.BACKEND", FAKE)


@pytest.fixture
def matrix(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.random.Generator(np.random.PCG64(0)).standard_normal((32, 256)).astype(np.float32))
    return path


# --- starting up -----------------------------------------------------------------------------------------------------


def fresh(code, *arguments):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], env=environment, capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "arguments", [["--help"], ["ablate", "--help"], ["ablate", "--list"], ["formats"], ["--version"]]
)
def test_light_commands_load_nothing_heavy(arguments):
    code = (
        "import sys; from click.testing import CliRunner; from lowprec.cli.app import cli\n"
        "result = CliRunner().invoke(cli, sys.argv[1:]); assert result.exit_code == 0, result.output\n"
        "print(*sorted({'numba', 'pandas', 'scipy', 'matplotlib', 'llvmlite'} & set(sys.modules)))"
    )
    assert fresh(code, *arguments).split() == []


def test_help_answers_at_once():
    times = []
    for _ in range(3):  # processor time: on a busy machine even an empty interpreter starts slowly
        before = os.times()
        subprocess.run([sys.executable, "-m", "lowprec", "--help"], cwd=ROOT, check=True, capture_output=True)
        after = os.times()
        times.append(sum(after[2:4]) - sum(before[2:4]))
    assert min(times) < 0.2


def test_module_and_script_are_one():
    shown = subprocess.run(
        [sys.executable, "-m", "lowprec", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert shown.stdout.startswith("Usage: lowprec [OPTIONS] COMMAND [ARGS]...")
    assert "..." not in shown.stdout.partition("Commands:")[2]  # every command is described in full
    for command in ("ablate", "cast", "formats", "gemm", "info", "logfmt", "quantize", "report", "train"):
        assert f"\n  {command} " in shown.stdout


# --- ablations -------------------------------------------------------------------------------------------------------


@pytest.mark.ci
def test_what_trainings_take_is_said_before_them(tmp_path):
    size = ("--quick", "--set", "cells=nano-150-*", "--checkpoints", "3")
    result = run("ablate", "scaling", "wire_cost", "--plan", "--json", "--out", tmp_path, *size)
    (said,) = result.stderr.splitlines()
    assert said.startswith("timing a training step and a forward pass of every recipe")
    (row,) = json.loads(result.stdout)
    assert (row["study"], row["model"], row["steps before"], row["checkpoints"]) == ("scaling", "nano", "150", 3)
    assert (row["runs to do"], row["checkpoints to do"]) == (7 * 3, 3)
    assert row["core min, arms"] > row["core min, checkpoints"] > 0
    part = ("--set", "cells=tiny-300-stdlib", "--seeds", "1")  # which the quick size has not
    (row,) = json.loads(run("ablate", "scaling", "--plan", "--json", "--out", tmp_path, *part).stdout)
    assert (row["size"], row["model"], row["runs to do"]) == ("full", "tiny", 7 * 4)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_list(fake):
    result = run("ablate", "--list", "--json")
    rows = json.loads(result.stdout)
    arms = {row["name"]: row["arms"] for row in rows}
    places = [(row["tier"], row["name"]) for row in rows]
    assert places == sorted(places)
    assert sorted(arms) == sorted(names())
    assert "dsv3_no_promotion" in arms["fp8_vs_bf16"]
    assert "fp22_128" in arms["accumulation"]


@pytest.mark.slow
def test_an_ablation_from_start_to_report(fake, tmp_path):
    result = run("ablate", "fp8_vs_bf16", "--quick", "--out", tmp_path, *SMALL)
    assert result.exit_code == 0, result.output
    folder = tmp_path / "fp8_vs_bf16-quick"
    names = {path.name for path in folder.iterdir() if path.is_file() and not path.name.startswith(".")}
    figures = {f"fp8_vs_bf16{kind}.{ending}" for kind in ("", "_pairs", "_cost") for ending in ("png", "svg", "csv")}
    written = {"report.md", "table.csv", "summary.json", "study.json", "document.json", "report.html"}
    before_runs = {"study.json", "registered.json"}
    assert names == figures | written | before_runs
    for name in names - before_runs:
        assert f"wrote {folder / name}" in result.stderr
    for arm in ("bf16_again", "perturb", "dsv3", "fp4_naive"):  # those that the quick size leaves out are not run
        assert f"• {arm}" in result.stdout
    assert "![" in (folder / "report.md").read_text()
    # The report alone gives the same again, and resuming does nothing but that.
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    again = run("report", folder)
    resumed = run("ablate", "fp8_vs_bf16", "--quick", "--out", tmp_path, *SMALL)
    assert again.stdout == result.stdout == resumed.stdout
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


@pytest.mark.slow
def test_an_ablation_for_machines(fake, tmp_path):
    result = run("ablate", "fp8_vs_bf16", "--quick", "--out", tmp_path, "--no-plot", "--json", *SMALL)
    assert result.exit_code == 0, result.output
    assert {arm["arm"] for arm in json.loads(result.stdout)["arms"]} >= {"dsv3", "fp4_naive"}
    result = run("report", tmp_path / "fp8_vs_bf16-quick", "--no-plot", "--csv")
    assert next(row["arm"] for row in csv.DictReader(result.stdout.splitlines())) == "bf16_again"
    assert not list(tmp_path.glob("**/*.png"))


def test_an_irreproducible_study_fails_loudly(fake, tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_IRREPRODUCIBLE", "1")
    result = run("ablate", "fp8_vs_bf16", "--quick", "--out", tmp_path, "--no-plot", *SMALL)
    assert result.exit_code == 1
    assert "error: bf16_again is NOT bit-identical to bf16" in result.stderr
    assert (tmp_path / "fp8_vs_bf16-quick/report.md").exists()


def test_an_ablation_file_runs_by_itself(tmp_path):
    source = (ROOT / "ablations/fp8_vs_bf16.py").read_text()
    path = tmp_path / "mine.py"
    path.write_text(source.replace('name="fp8_vs_bf16"', 'name="mine"'))
    shown = subprocess.run(
        [sys.executable, str(path), "--list", "--json"], capture_output=True, text=True, check=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
    )  # fmt: skip
    assert [row["name"] for row in json.loads(shown.stdout)] == ["mine"]


def test_ctrl_c_is_quiet(fake, tmp_path, monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(runner_module, "run_study", interrupted)
    result = run("ablate", "fp8_vs_bf16", "--quick", "--out", tmp_path, "--no-plot", *SMALL)
    assert result.exit_code == 130
    assert result.stderr.splitlines()[-1] == "stopped; what was finished is kept"
    assert "Traceback" not in result.output


# --- numbers ---------------------------------------------------------------------------------------------------------


def test_info():
    rows = {row["name"]: row["value"] for row in json.loads(run("info", "--json").stdout)}
    assert rows["lowprec"] == lowprec.__version__
    assert rows["numpy"] == np.__version__
    assert {"cpu", "features", "cores", "threads", "kernel cache", "code"} <= rows.keys()


# --- mistakes --------------------------------------------------------------------------------------------------------


@pytest.mark.sampled(10)
@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["abalte"], "No such command 'abalte'"),
        (["--jsn"], "(see lowprec --help)"),
        (["bench", "tran"], "(see lowprec bench --help)"),
        (["train", "--steps", "1", "--out", "run", "--json", "--csv"], "--json and --csv exclude each other"),
        (["ablate", "fp8_vs_fb16"], "unknown ablation 'fp8_vs_fb16': did you mean 'fp8_vs_bf16'?"),
        (["ablate", "nowhere.py"], "no such ablation file: 'nowhere.py'"),
        (["ablate", "--set", "branch_step=3"], "unknown setting 'branch_step': did you mean 'branch_steps'"),
        (["ablate", "--set", "branch_steps"], "--set branch_steps: KEY=VALUE is needed"),
        (["ablate", "--set", "branch_steps=-1"], "branch_steps=-1: a whole number from 1 to 1000000000 is needed"),
        (["ablate", "--set", "learning_rate=inf"], "learning_rate=inf: a finite number > 0 is needed"),
        (["ablate", "--set", "config=nanu"], "unknown model configuration 'nanu'"),
        (["ablate", "scaling", "--set", "cells=nano"], "cells='nano': 'nano' is no cell; there are nano-300-stdlib"),
        (["ablate", "wire_cost", "--plan"], "only studies that train arms (T3, T4) are planned"),
        (["ablate", "--seeds", "0"], "0 is not in the range x>=1"),
        (["ablate", "--jobs", "two"], "'two' is not a valid integer"),
        (["ablate", "--data", "missing.txt"], "missing.txt': no such file"),
        (["report", "nowhere"], "nowhere: no such folder"),
        (["report", "."], "holds no study"),
        (["train", "--steps", "0"], "0 is not in the range x>=1"),
        (["train", "--config", "nano", "--steps", str(2**64)], f"steps={2**64}: a whole number from 1 to 1000000000"),
        (["train", "--recipe", "dsv33"], "unknown recipe 'dsv33': did you mean 'dsv3'"),
        (["train", "--config", "nanu"], "unknown model configuration 'nanu': did you mean 'nano'"),
        (["train", "--config", "nano", "--learning-rate", "nan"], "learning_rate=nan: a finite number > 0"),
        (["train", "--memory", "dsv4"], "unknown memory policy 'dsv4': did you mean 'dsv3'"),
        (["train", "--memory", "all"], "unknown memory policy 'all': known: keep, norms, up_projections"),
        (["train", "--data", "missing.txt"], "missing.txt': no such file"),
        (["formats", "e4m3fx"], "unknown format 'e4m3fx': did you mean 'e4m3fn'"),
        (["formats", "--grid"], "--grid needs a format"),
        (["formats", "float16", "--grid"], "--grid is for formats of at most 8 bits, float16 has 16"),
        (["formats", "--json", "--csv"], "--json and --csv exclude each other"),
        (["cast", "0.1", "--to", "e4m3fx"], "unknown format 'e4m3fx'"),
        (["cast", "0.1.2", "--to", "e4m3fn"], "'0.1.2' is not a number"),
        (["cast", "--to", "e4m3fn"], "Missing argument"),
        (["cast", "1"], "--to FORMAT is needed"),
        (["cast", "1", "--too", "e4m3fn"], "no such option: '--too'"),
        (["cast", "1e400", "--to", "e4m3fn"], "'1e400' does not fit float64"),
        (["cast", "0x1p5000", "--to", "e4m3fn"], "'0x1p5000' does not fit float64"),
        (["quantizers", "nvfp5_te"], "unknown quantizer 'nvfp5_te': did you mean 'nvfp4_te'"),
        (["accumulators", "hoper_fp8"], "unknown accumulator 'hoper_fp8': did you mean 'hopper_fp8'"),
        (["costs", "nodes", "--dim", "7"], "--dim changes nothing in the table nodes; it is for wire"),
        (["costs", "wire", "--tokens", "0"], "0 is not in the range x>=1"),
        (["quantize", "{wide}"], "2 values do not fit float32, the first is -1e+300"),
        (["quantize", "{untyped}"], "this holds |V2, bytes without a type"),
        (["gemm", "{matrix}", "{matrix}", "--promote-every", "never"], "never: a whole number, auto or none"),
        (["gemm", "{matrix}", "{matrix}", "--format", "bfloat16", "--promote-every", "128"], "bfloat16 has no scales"),
        (["logfmt", "{unusual}"], "unusual.npy: NaN or Inf at [1, 2]; --nonfinite poison"),
        (["error", "{unusual}", "--format", "bf16"], "unusual.npy: errors_of: 1 of 12 values are NaN"),
        (["check", "{text}", "--values", "{matrix}"], "text.npy: not an .npz with the arrays codes and scale"),
        (["check", "{matrix}", "--values", "{matrix}"], "as lowprec quantize --out writes it: a single array"),
        (["check", "{scales}", "--values", "{matrix}"], "scales.npz: it holds scale; an .npz with"),
        (["check", "{floats}", "--values", "{matrix}"], "floats.npz: codes are float64, uint8"),
        (["quantize", "missing.npy"], "missing.npy: No such file"),
        (["quantize", "{matrix}", "--granularity", "1x7x3"], "granularity='1x7x3': rows x columns such as"),
        (["quantize", "{matrix}", "--to", "e4m3fx"], "unknown format 'e4m3fx'"),
        (["quantize", "{matrix}", "--scale", "fp33"], "'fp33' is not one of"),
        (["quantize", "{matrix}", "--out", "nowhere/q.npz"], "nowhere/q.npz: the folder"),
        (["gemm", "{matrix}", "{other}"], "K differs"),
        (["gemm", "{matrix}", "{matrix}", "--accumulator", "hooper_fp8"], "did you mean 'hopper_fp8'"),
        (["gemm", "{matrix}", "{matrix}", "--promote-every", "-3"], "promote_every=-3: a whole number >= 1 or None"),
        (["logfmt", "{matrix}", "--bits", "77"], "bits=77: a whole number from 3 to 16"),
        (["logfmt", "{matrix}", "--tile", "0"], "tile=0: a whole number from 1 to 2147483647"),
        (["logfmt", "{matrix}", "--tile", str(2**40)], "tile=1099511627776: a whole number from 1 to 2147483647"),
        (["logfmt", "{matrix}", "--tile", "9" * 40, "--out", "z"], "a whole number from 1 to 2147483647"),
        (["logfmt", "{matrix}", "--tile", "1.5"], "'1.5' is not a valid integer"),
        (["logfmt", "{matrix}", "--mode", "deepep", "--bits", "8"], "mode 'deepep' is what it is, with bits 10"),
        (["logfmt", "{matrix}", "--rounding", "up"], "'up' is not one of"),
        (["logfmt", "{text}"], "not a .npy file of numbers"),
        (["logfmt", "{words}"], "a .npy file of real numbers is needed"),
        (["quantize", "{empty}"], "the array is empty"),
        (["quantize", "{cube}"], "2 dimensions are needed"),
    ],
)
def test_mistakes_get_one_line_and_leave_nothing(arguments, match, tmp_path, matrix, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.npy").write_text("hello")
    np.save(tmp_path / "words.npy", np.array(["a", "b"]))
    np.save(tmp_path / "other.npy", np.ones((4, 255), np.float32))
    np.save(tmp_path / "empty.npy", np.ones((0, 4), np.float32))
    np.save(tmp_path / "cube.npy", np.ones((2, 2, 2), np.float32))
    np.save(tmp_path / "wide.npy", np.array([[1.0, -1e300, 1e300, np.inf]]))
    np.save(tmp_path / "untyped.npy", np.ones((2, 2), lowprec.formats["bfloat16"].code_dtype).view("V2"))
    np.save(tmp_path / "unusual.npy", np.where(np.arange(12) == 6, np.nan, 1.0).reshape(3, 4))
    np.savez(tmp_path / "scales.npz", scale=np.ones((1, 1)))
    np.savez(tmp_path / "floats.npz", codes=np.ones((32, 256)), scale=np.ones((32, 2)))
    before = sorted(path.name for path in tmp_path.iterdir())
    arrays = ("text", "words", "other", "empty", "cube", "wide", "untyped", "unusual")
    named = {name: f"{name}.npy" for name in arrays} | {"matrix": matrix.name}
    named |= {name: f"{name}.npz" for name in ("scales", "floats")}
    refused(*(argument.format(**named) for argument in arguments), match=match)
    assert sorted(path.name for path in tmp_path.iterdir()) == before


@pytest.mark.slow
def test_short_or_empty_text_is_refused(tmp_path):
    for name, text in (("empty.txt", ""), ("short.txt", "too short")):
        (tmp_path / name).write_text(text)
        message = refused("ablate", "--quick", "--data", tmp_path / name, "--out", tmp_path / "out")
        assert name in message
        assert "needed" in message
    assert not (tmp_path / "out").exists()


def test_an_output_folder_that_cannot_be_written_is_refused_before_the_work(fake, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(runner_module, "warm", lambda tasks: pytest.fail("work began"))
    message = refused_after_intro("ablate", "fp8_vs_bf16", "--quick", "--out", tmp_path / "file", *SMALL)
    assert "cannot be written: Not a directory" in message
    assert "cannot be written" in refused("train", "--steps", "1", "--out", tmp_path / "file" / "sub")


def refused_after_intro(*arguments):
    result = run(*arguments)
    assert result.exit_code == 2
    assert "Traceback" not in result.output
    return result.stderr.strip().splitlines()[-1]


@pytest.mark.slow
def test_missing_matplotlib_is_said_before_the_work(fake, tmp_path, monkeypatch):
    monkeypatch.setattr(style, "find_spec", lambda name: None)
    refused("ablate", "--quick", "--out", tmp_path / "out", *SMALL, match="pip install 'lowprec[plot]'")
    refused("report", tmp_path, match="pip install 'lowprec[plot]'")
    assert not (tmp_path / "out").exists()
    assert run("ablate", "fp8_vs_bf16", "--quick", "--no-plot", "--out", tmp_path / "out", *SMALL).exit_code == 0


@pytest.mark.slow
def test_other_runs_in_the_folder_are_refused(fake, tmp_path):
    assert run("ablate", "fp8_vs_bf16", "--quick", "--no-plot", "--out", tmp_path, *SMALL).exit_code == 0
    other = [*SMALL, "--set", "branch_steps=9"]
    message = refused_after_intro("ablate", "fp8_vs_bf16", "--quick", "--no-plot", "--out", tmp_path, *other)
    assert "schedule.total_steps: 8 then, 9 now" in message
    assert "--fresh" in message
    assert run("report", tmp_path, "--no-plot").exit_code == 0
    assert run("ablate", "fp8_vs_bf16", "--quick", "--no-plot", "--fresh", "--out", tmp_path, *other).exit_code == 0
    assert (tmp_path / "fp8_vs_bf16-quick.1/study.json").exists()
    assert run("report", tmp_path, "--no-plot").exit_code == 0  # what was moved aside is left alone


def test_bugs_are_not_dressed_as_mistakes(monkeypatch):
    def bug(*args, **kwargs):
        raise AssertionError("internal")

    monkeypatch.setattr("lowprec.study.run.fingerprint.host", bug)
    assert isinstance(run("info").exception, AssertionError)


def test_traceback_on_demand():
    assert isinstance(run("--traceback", "formats", "e4m3fx").exception, KeyError)


def test_every_command_is_listed():
    """One that is defined and not in the list of app.py would be there for nobody."""
    listed = set(cli.cli.commands.values())
    for module in pkgutil.iter_modules([str(Path(cli.__file__).parent)], "lowprec.cli."):
        for name, value in vars(importlib.import_module(module.name)).items():
            if isinstance(value, click.Command) and not isinstance(value, click.Group):
                inside = any(value in group.commands.values() for group in listed if isinstance(group, click.Group))
                assert value in listed or inside, f"{module.name}.{name}"
