"""The command line: what it prints, how fast it answers, and that every mistake gets one clear line."""

import csv
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import lowprec
from lowprec import cli
from lowprec.study import plans, style
from lowprec.study import runner as runner_module

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
    lines = result.stderr.strip().splitlines()
    message = lines[-1]
    if not message.startswith("Error: "):  # click's own, after its usage lines
        assert len(lines) == 1, result.stderr
        assert message.startswith("error: ")
    assert match in message, message
    return message


@pytest.fixture
def fake(monkeypatch):
    monkeypatch.setattr(plans, "BACKEND", "fake_trainer")


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


@pytest.mark.parametrize(
    "arguments", [["--help"], ["ablate", "--help"], ["ablate", "--list"], ["formats"], ["--version"]]
)
def test_light_commands_load_nothing_heavy(arguments):
    code = (
        "import sys; from click.testing import CliRunner; from lowprec import cli\n"
        "result = CliRunner().invoke(cli.cli, sys.argv[1:]); assert result.exit_code == 0, result.output\n"
        "print(*sorted({'numba', 'pandas', 'scipy', 'matplotlib', 'llvmlite'} & set(sys.modules)))"
    )
    assert fresh(code, *arguments).split() == []


def test_help_answers_at_once():
    times = []
    for _ in range(5):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "lowprec", "--help"], cwd=ROOT, check=True, capture_output=True)
        times.append(time.perf_counter() - start)
    bare = []
    for _ in range(3):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", "pass"], check=True)
        bare.append(time.perf_counter() - start)
    # 0.2 s is the promise; a busy machine may start even an empty interpreter slowly.
    assert min(times) < 0.2 + min(bare)


def test_module_and_script_are_one():
    shown = subprocess.run(
        [sys.executable, "-m", "lowprec", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert shown.stdout.startswith("Usage: lowprec [OPTIONS] COMMAND [ARGS]...")
    assert "..." not in shown.stdout.partition("Commands:")[2]  # every command is described in full
    for command in ("ablate", "cast", "formats", "gemm", "info", "logfmt", "quantize", "report", "train"):
        assert f"\n  {command} " in shown.stdout


# --- ablations -------------------------------------------------------------------------------------------------------


def test_list(fake):
    result = run("ablate", "--list", "--json")
    rows = json.loads(result.stdout)
    arms = {row["name"]: row["arms"] for row in rows}
    places = [(row["tier"], row["name"]) for row in rows]
    assert places == sorted(places)
    assert "dsv3_no_promotion" in arms["fp8_vs_bf16"]
    assert "fp22_128" in arms["accumulation"]


def test_an_ablation_from_start_to_report(fake, tmp_path):
    result = run("ablate", "fp8_vs_bf16", "--quick", "--out", tmp_path, *SMALL)
    assert result.exit_code == 0, result.output
    folder = tmp_path / "fp8_vs_bf16-quick"
    names = {path.name for path in folder.iterdir() if path.is_file() and not path.name.startswith(".")}
    figures = {f"fp8_vs_bf16{kind}.{ending}" for kind in ("", "_pairs", "_cost") for ending in ("png", "svg", "csv")}
    written = {"report.md", "table.csv", "summary.json", "study.json", "document.json", "report.html"}
    assert names == figures | written
    for name in names - {"study.json"}:
        assert f"wrote {folder / name}" in result.stderr
    for arm in ("bf16_again", "perturb", "dsv3", "dsv3_no_promotion", "fp4_naive"):
        assert f"• {arm}" in result.stdout
    assert "![" in (folder / "report.md").read_text()
    # The report alone gives the same again, and resuming does nothing but that.
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    again = run("report", folder)
    resumed = run("ablate", "fp8_vs_bf16", "--quick", "--out", tmp_path, *SMALL)
    assert again.stdout == result.stdout == resumed.stdout
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


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


def test_formats():
    rows = {row["name"]: row for row in json.loads(run("formats", "--json").stdout)}
    assert rows["e4m3fn"]["max"] == 448.0
    assert list(rows) == lowprec.formats.names()
    facts = {
        row["property"]: row["value"] for row in csv.DictReader(run("formats", "e5m2", "--csv").stdout.splitlines())
    }
    assert facts["smallest_subnormal"] == repr(2.0**-16)
    grid = json.loads(run("formats", "e4m3fn", "--grid", "--json").stdout)
    assert [row["code"] for row in grid] == [f"0x{16 * i:02x}" for i in range(16)]
    assert grid[7]["+e"] == 448.0
    assert grid[7]["+f"] == "nan"
    assert grid[8]["+1"] == -(2.0**-9)


def test_cast():
    rows = json.loads(run("cast", "0.1", "-448", "1e9", "0x1p-9", "nan", "--to", "e4m3fn", "--json").stdout)
    assert [row["code"] for row in rows] == ["0x1d", "0xfe", "0x7e", "0x01", "0x7f"]
    assert [row["in e4m3fn"] for row in rows] == [0.1015625, -448.0, 448.0, 2.0**-9, "nan"]
    assert rows[0]["bits"] == "00011101"
    assert "0.10156" in run("cast", "0.1", "--to", "e4m3fn").stdout


def test_info():
    rows = {row["name"]: row["value"] for row in json.loads(run("info", "--json").stdout)}
    assert rows["lowprec"] == lowprec.__version__
    assert rows["numpy"] == np.__version__
    assert {"cpu", "features", "cores", "threads", "kernel cache", "code"} <= rows.keys()


def test_quantize(matrix, tmp_path):
    out = tmp_path / "q.npz"
    row = json.loads(run("quantize", matrix, "--granularity", "1x128", "--out", out, "--json").stdout)[0]
    x = np.load(matrix)
    q = lowprec.quantize(x, "e4m3fn", granularity="1x128")
    assert row["shape"] == "32x256"
    assert row["bits per value"] == q.bits_per_value
    assert row["sqnr"] == pytest.approx(
        10 * np.log10(np.sum(x.astype("f8") ** 2) / np.sum((x - q.dequantize()) ** 2.0))
    )
    with np.load(out) as saved:
        assert np.array_equal(saved["codes"], q.codes)
        assert np.array_equal(saved["scale"], q.scale)


def test_gemm(matrix, tmp_path):
    out = tmp_path / "d.npy"
    rows = json.loads(run("gemm", matrix, matrix, "--promote-every", "128", "--out", out, "--json").stdout)
    x = np.load(matrix)
    qa, qb = lowprec.quantize(x, "e4m3fn", granularity="1x128"), lowprec.quantize(x, "e4m3fn", granularity="128x128")
    assert np.load(out).tobytes() == lowprec.gemm(qa, qb, accumulator="hopper_fp8", promote_every=128).tobytes()
    assert rows[0]["sqnr"] > rows[1]["sqnr"]


def test_logfmt(matrix):
    row = json.loads(run("logfmt", matrix, "--bits", "8", "--json").stdout)[0]
    assert row["bits per value"] == lowprec.logfmt.encode(np.load(matrix), bits=8).bits_per_value
    assert row["sqnr"] > 20


def test_logfmt_in_another_mode_and_rounding(tmp_path):
    x = np.random.default_rng(0).standard_normal((2, 1024)).astype(np.float32) * np.float32(0.1)
    np.save(tmp_path / "x.npy", x)
    row = json.loads(run("logfmt", str(tmp_path / "x.npy"), "--mode", "deepep", "--json").stdout)[0]
    assert row["bits per value"] == 10.25
    out = tmp_path / "x.logfmt"
    run("logfmt", str(tmp_path / "x.npy"), "--bits", "6", "--rounding", "stochastic", "--seed", "5", "--out", str(out))
    sent = lowprec.logfmt.encode(x, 6, rounding="stochastic", seed=5)
    assert lowprec.logfmt.from_bytes(out.read_bytes()).decode().tobytes() == sent.decode().tobytes()


# --- mistakes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["abalte"], "No such command 'abalte'"),
        (["ablate", "fp8_vs_fb16"], "unknown ablation 'fp8_vs_fb16': did you mean 'fp8_vs_bf16'?"),
        (["ablate", "nowhere.py"], "no such ablation file: 'nowhere.py'"),
        (["ablate", "--set", "branch_step=3"], "unknown setting 'branch_step': did you mean 'branch_steps'"),
        (["ablate", "--set", "branch_steps"], "--set branch_steps: KEY=VALUE is needed"),
        (["ablate", "--set", "branch_steps=-1"], "branch_steps must be a whole number of at least 1, not -1"),
        (["ablate", "--set", "learning_rate=inf"], "learning_rate must be positive and finite, not inf"),
        (["ablate", "--set", "config=nanu"], "unknown model configuration 'nanu'"),
        (["ablate", "--seeds", "0"], "0 is not in the range x>=1"),
        (["ablate", "--jobs", "two"], "'two' is not a valid integer"),
        (["ablate", "--data", "missing.txt"], "missing.txt': no such file"),
        (["report", "nowhere"], "nowhere: no such folder"),
        (["report", "."], "holds no study"),
        (["train", "--steps", "0"], "0 is not in the range x>=1"),
        (["train", "--recipe", "dsv4"], "unknown recipe 'dsv4': did you mean 'dsv3'"),
        (["train", "--config", "nanu"], "unknown model configuration 'nanu': did you mean 'nano'"),
        (["train", "--config", "nano", "--learning-rate", "nan"], "nan"),
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
        (["quantize", "missing.npy"], "missing.npy: No such file"),
        (["quantize", "{matrix}", "--granularity", "1x7x3"], "1x7x3"),
        (["quantize", "{matrix}", "--to", "e4m3fx"], "unknown format 'e4m3fx'"),
        (["quantize", "{matrix}", "--scale", "fp33"], "'fp33' is not one of"),
        (["quantize", "{matrix}", "--out", "nowhere/q.npz"], "does not exist"),
        (["gemm", "{matrix}", "{other}"], "K differs"),
        (["gemm", "{matrix}", "{matrix}", "--accumulator", "hooper_fp8"], "did you mean 'hopper_fp8'"),
        (["gemm", "{matrix}", "{matrix}", "--promote-every", "-3"], "-3"),
        (["logfmt", "{matrix}", "--bits", "77"], "77"),
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
    before = sorted(path.name for path in tmp_path.iterdir())
    named = {name: f"{name}.npy" for name in ("text", "words", "other", "empty", "cube")} | {"matrix": matrix.name}
    refused(*(argument.format(**named) for argument in arguments), match=match)
    assert sorted(path.name for path in tmp_path.iterdir()) == before


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


def test_missing_matplotlib_is_said_before_the_work(fake, tmp_path, monkeypatch):
    monkeypatch.setattr(style, "find_spec", lambda name: None)
    refused("ablate", "--quick", "--out", tmp_path / "out", *SMALL, match="pip install 'lowprec[plot]'")
    refused("report", tmp_path, match="pip install 'lowprec[plot]'")
    assert not (tmp_path / "out").exists()
    assert run("ablate", "fp8_vs_bf16", "--quick", "--no-plot", "--out", tmp_path / "out", *SMALL).exit_code == 0


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

    monkeypatch.setattr("lowprec.study.store.machine", bug)
    assert isinstance(run("info").exception, AssertionError)


def test_traceback_on_demand():
    assert isinstance(run("--traceback", "formats", "e4m3fx").exception, KeyError)
