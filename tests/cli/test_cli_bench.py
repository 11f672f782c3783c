"""`lowprec bench`: its tables, its JSON and CSV, and what it refuses."""

import numpy as np
import pytest
from command_line import csv_rows, rows, run

from lowprec.cli.output import key_of
from lowprec.moe.model.model import Model
from lowprec.moe.run import profile as measure
from lowprec.moe.run.profile import PHASES, PhaseTimer, phases

SMALL = 'base = "nano"\nlayers = 1\ndense_layers = 0\nexperts = 4\nbatch = 2\nsequence = 64\n'


@pytest.fixture
def config(tmp_path):
    (tmp_path / "small.toml").write_text(SMALL)
    return ("--config", tmp_path / "small.toml")


def test_train_prints_speed_memory_and_phases(config):
    found = rows("bench", "train", "--steps", "1", "--warmup", "1", *config)
    assert [row["recipe"] for row in found] == ["bf16", "dsv3"]
    for row in found:
        assert row["config"] == "small"
        assert row["tokens_per_second"] == pytest.approx(128e3 / row["step_ms"])
        assert 1 < row["peak_memory_mib"] < 500
        assert all(row[f"{key_of(name)}_ms"] >= 0 for name in PHASES)
        assert all(
            row[f"{key_of(name)}_ms"] > 0 for name in ("fprop", "dgrad", "wgrad", "attention", "norms", "optimizer")
        )
    assert found[0]["quantize_ms"] == 0 < found[1]["quantize_ms"]


def test_train_on_screen_has_two_tables(config, tmp_path):
    (tmp_path / "mine.toml").write_text('base = "bf16"\nname = "of_a_file"\n')
    train = ("bench", "train", "--steps", "1", "--warmup", "1", "--recipe", tmp_path / "mine.toml", *config)
    shown = run(*train, env={"COLUMNS": "160"}).stdout
    words = ("of_a_file", "tokens per second", "page faults per step", "residual stream", "optimizer")
    assert [word for word in words if word not in shown] == []


def test_memory_counts_bytes_by_policy(config):
    found = csv_rows("bench", "memory", "--repeats", "0", "--by-kind", "--recipe", "dsv3", *config)
    assert [row["policy"] for row in found] == ["none", "norms", "up_projections", "probabilities", "swiglu", "dsv3"]
    by_policy = {row["policy"]: float(row["bytes_per_token"]) for row in found}
    assert by_policy["dsv3"] < min(v for k, v in by_policy.items() if k != "dsv3") < by_policy["none"]
    kinds = [name for name in found[0] if name not in list(found[0])[:5]]
    for row in found:
        assert sum(float(row[kind]) for kind in kinds) == pytest.approx(float(row["bytes_per_token"]))


def test_a_phase_stops_the_one_around_it(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(measure.time, "thread_time", lambda: now[0])
    clock = PhaseTimer()

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
    with (
        pytest.raises(TypeError, match=r"tokens must be a uint8 array \[batch, sequence \+ 1\], got NoneType"),
        phases(model),
    ):
        model.loss(None)
    assert (norm.forward, linear.fprop) == methods
