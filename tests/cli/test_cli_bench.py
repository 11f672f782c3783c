"""`lowprec bench`: its tables, its JSON and CSV, and what it refuses."""

import csv
import io
import json

import numpy as np
import pytest
from click.testing import CliRunner

from lowprec.cli.app import cli
from lowprec.moe.model.model import Model
from lowprec.moe.run import profile as measure
from lowprec.moe.run.profile import PHASES, PhaseClock, phases

SMALL = 'base = "nano"\nlayers = 1\ndense_layers = 0\nexperts = 4\nbatch = 2\nsequence = 64\n'


def run(tmp_path, *arguments, config=SMALL):
    path = tmp_path / "small.toml"
    path.write_text(config)
    return CliRunner().invoke(cli, ["bench", *map(str, arguments), "--config", str(path)], env={"COLUMNS": "160"})


def test_train_prints_speed_memory_and_phases(tmp_path):
    done = run(tmp_path, "train", "--steps", "1", "--warmup", "1", "--json")
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)
    assert [row["recipe"] for row in rows] == ["bf16", "dsv3"]
    for row in rows:
        assert row["config"] == "small"
        assert row["tokens/s"] == pytest.approx(128e3 / row["ms/step"])
        assert 1 < row["peak MiB"] < 500
        assert all(row[f"{name}, ms"] >= 0 for name in PHASES)
        assert all(row[f"{name}, ms"] > 0 for name in ("fprop", "dgrad", "wgrad", "attention", "norms", "optimizer"))
    assert rows[0]["quantize, ms"] == 0 < rows[1]["quantize, ms"]


def test_train_on_screen_has_two_tables(tmp_path):
    (tmp_path / "mine.toml").write_text('base = "bf16"\nname = "of_a_file"\n')
    done = run(tmp_path, "train", "--steps", "1", "--warmup", "1", "--recipe", tmp_path / "mine.toml")
    assert done.exit_code == 0, done.output
    assert all(
        word in done.stdout for word in ("of_a_file", "tokens/s", "page faults/step", "residual stream", "optimizer")
    )


def test_memory_counts_bytes_by_policy(tmp_path):
    done = run(tmp_path, "memory", "--rounds", "0", "--kinds", "--csv", "--recipe", "dsv3")
    assert done.exit_code == 0, done.output
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert [row["policy"] for row in rows] == ["keep", "norms", "up_projections", "probabilities", "swiglu", "dsv3"]
    by_policy = {row["policy"]: float(row["bytes/token"]) for row in rows}
    assert by_policy["dsv3"] < min(v for k, v in by_policy.items() if k != "dsv3") < by_policy["keep"]
    kinds = [name for name in rows[0] if name not in list(rows[0])[:5]]
    for row in rows:
        assert sum(float(row[kind]) for kind in kinds) == pytest.approx(float(row["bytes/token"]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("train", "--recipe", "bf61"), "did you mean 'bf16'"),
        (("train", "--json", "--csv"), "--json and --csv exclude each other"),
        (("memory", "--policy", "norm"), "did you mean 'norms'"),
        (("memory", "--recipe", "dsv3"), "the 100 inputs of layers.0.attn.wkv_b are not whole tiles"),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path, arguments, message):
    done = run(tmp_path, *arguments, config=SMALL + ("kv_rank = 100\n" if "dsv3" in arguments else ""))
    assert done.exit_code == 2
    assert len(done.output.splitlines()) == 1
    assert message in done.output


def test_a_phase_stops_the_one_around_it(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(measure.time, "thread_time", lambda: now[0])
    clock = PhaseClock()

    def work(seconds):
        now[0] += seconds

    inner = clock.timed("norms", lambda: work(3.0))
    outer = clock.timed("attention", lambda: (work(1.0), inner(), work(0.5)))
    work(0.25)
    outer()
    spent = clock.lap()
    assert (spent["norms"], spent["attention"], spent["rest"]) == (3.0, 1.5, 0.25)
    assert sum(spent.values()) == now[0]
    assert sum(clock.lap().values()) == 0.0


def test_timing_leaves_no_trace_even_after_an_error():
    model = Model("nano", "bf16")
    tokens = np.zeros((1, 9), np.uint8)
    before = model.loss(tokens)
    norm, linear = type(model._norm), type(model.recipe.linear("head"))
    methods = norm.forward, linear.fprop
    with phases(model):
        assert model.loss(tokens) == before
        assert norm.forward is not methods[0]
        assert linear.fprop is not methods[1]
    assert (norm.forward, linear.fprop) == methods
    with pytest.raises(TypeError, match="tokens: NoneType"), phases(model):
        model.loss(None)
    assert (norm.forward, linear.fprop) == methods
