"""The study with the real trainer, a few steps long."""

import os
from pathlib import Path

import pytest
import small_trainer
from toys import results

import lowprec
from lowprec.study import Ablation, Arm, Setting, plan, run_study
from lowprec.study.kinds.branches.summary import summarize

SMALL = Setting(config="nano", checkpoint_steps=2, branch_steps=2, checkpoints=1, seeds=1, warmup_steps=1)
ABLATION = Ablation(
    name="small",
    question="Does it run?",
    arms=(
        Arm("bf16", role="reference"),
        Arm("again", role="repeat"),
        Arm("perturb", role="floor"),
        Arm("dsv3", recipe="dsv3"),
        Arm("fp4_naive", recipe="fp4_naive", role="control"),
    ),
    quick=SMALL,
    full=SMALL,
)


@pytest.mark.ci
def test_two_threads_here_and_single_thread_workers_give_the_same_bits(tmp_path, monkeypatch):
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(Path(__file__).parents[1]), str(Path(lowprec.__file__).parent.parent)])
    )
    before = lowprec.get_num_threads()
    lowprec.set_num_threads(2)
    try:
        here = run_study(plan(ABLATION, SMALL, tmp_path / "here", backend=small_trainer.SMALL), jobs=0)
    finally:
        lowprec.set_num_threads(before)
    workers = run_study(plan(ABLATION, SMALL, tmp_path / "workers", backend=small_trainer.SMALL), jobs=2)
    assert results(here.folder) == results(workers.folder)
    study = summarize(workers.folder)
    assert study.arm("again").verdict == "bit-identical"
    assert (study.parameters, study.active_parameters, study.tokens_per_step) == (1433216, 843392, 2048)
    # One weight by 2^-7, and another precision, change the outcome; all arms start from the same loss or near it.
    assert study.arm("perturb").own.mean != 0.0
    assert study.arm("dsv3").own.mean not in (0.0, study.arm("perturb").own.mean)
    first = {item.arm.name: item.runs[0].curve[0] for item in study.arms}
    assert first["again"] == study.reference[0].curve[0]
    assert abs(first["perturb"] / first["again"] - 1) < 1e-3
    assert abs(first["dsv3"] / first["again"] - 1) < 1e-2
