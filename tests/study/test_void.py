"""A verdict whose control or repeat failed, or whose runs are incomplete, is void wherever it is printed."""

import csv
import json

import fake_trainer
import pytest
from click.testing import CliRunner
from toys import make

from lowprec.cli import app as cli
from lowprec.study import Expectation, run_study
from lowprec.study.kinds.branches import cost_figure, curves, forest
from lowprec.study.kinds.branches.summary import summarize
from lowprec.study.kinds.catalogue import report
from lowprec.study.run.store import StudyError, read_json, write_json

EXPECTATIONS = (
    Expectation("as good", "total_percent", "dsv3", expected=(-100.0, 100.0)),
    Expectation("as balanced", "max_violation", "dsv3", over="bf16", expected=(0.0, 100.0)),
)
#: What a verdict in favour of an arm looks like.
PRAISE = (
    "equivalent to bf16",
    "cheapest arm within",
    "Largest training effect",
    ": worse than",
)
#: Of a study with each fault: a part of the reason.
FAULTS = {
    "control": "fp4_naive (positive control) is NOT detected",
    "repeat": "again is NOT bit-identical to bf16",
    "reference": "bf16/c0-s1 has 19 of 20 rows in metrics.csv",
    "control's run": "fp4_naive/c1-s0 has 0 of 20 rows in metrics.csv",
    "repeat's run": "again/c0-s0 has 7 of 20 rows in metrics.csv",
}


def cut(path, rows, extra=""):
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[: rows + 1]) + extra)


def made(folder, fault, monkeypatch):
    """Return the folder of a study with a fault."""
    if fault == "control":
        monkeypatch.setitem(fake_trainer.DAMAGE, "fp4_naive", 0.0)
    path = run_study(make(folder, expectations=EXPECTATIONS), jobs=0).folder
    if fault == "repeat":
        record = read_json(path / "again/c0-s0/run.json")
        write_json(path / "again/c0-s0/run.json", record | {"weights": "other"})
    if fault == "reference":
        cut(path / "bf16/c0-s1/metrics.csv", 19)
    if fault == "control's run":
        (path / "fp4_naive/c1-s0/metrics.csv").unlink()
    if fault == "repeat's run":
        cut(path / "again/c0-s0/metrics.csv", 7, "8,1.")
    return path


@pytest.fixture(params=FAULTS)
def faulty(request, tmp_path, monkeypatch):
    return made(tmp_path, request.param, monkeypatch), FAULTS[request.param]


@pytest.fixture
def costly(monkeypatch):
    """Give the arms costs, so that the figure of costs is drawn: the treatment is cheaper than the reference."""
    spent = {"bf16": 16.0, "dsv3": 8.0, "fp4_naive": 4.0}

    def bits(study, arm):
        return dict.fromkeys(cost_figure.COSTS, spent.get(arm.recipe_name, 16.0))

    monkeypatch.setattr(cost_figure, "_costs", bits)


def test_a_valid_study_says_what_it_says(tmp_path, costly):
    study = summarize(run_study(make(tmp_path, expectations=EXPECTATIONS), jobs=0).folder)
    assert study.broken == []
    assert study.arm("dsv3").verdict == "equivalent"
    assert "dsv3: equivalent to bf16" in curves.title(study)
    assert "dsv3 is the cheapest arm within the margin" in cost_figure.title(study)
    assert [item.outcome for item in study.findings] == ["as expected", "as expected"]


@pytest.mark.sampled(1)
def test_no_verdict_of_a_faulty_study_stands(faulty):
    folder, reason = faulty
    study = summarize(folder)
    assert len(study.broken) == 1
    assert study.broken[0].startswith(reason)
    for item in study.arms:
        if item.arm.role != "repeat":
            assert item.verdict == f"void: {study.broken[0]}"
    assert study.findings[0].outcome == f"void: {study.broken[0]}"


@pytest.mark.sampled(1)
def test_every_title_of_a_faulty_study_says_why(faulty, costly):
    folder, reason = faulty
    study = summarize(folder)
    for title in (curves.title(study), forest.title(study), cost_figure.title(study)):
        assert f"VOID: {reason}" in title
        assert not any(word in title for word in PRAISE)


@pytest.mark.slow
def test_every_file_and_the_screen_of_a_faulty_study_say_void(faulty, costly):
    folder, reason = faulty
    written = report(folder)
    assert {path.name for path in written.files} >= {"toy.svg", "toy_pairs.svg", "toy_cost.svg", "report.html"}
    screen = CliRunner().invoke(cli.cli, ["report", str(folder), "--no-plot"])
    # A study that is too small to see its control is no fault; its verdicts are void all the same.
    assert screen.exit_code == (0 if "control) is" in reason else 1)
    assert screen.exit_code == 0 or f"error: {reason}" in screen.stderr
    texts = {"screen": screen.stdout, "csv": written.table_csv()}
    texts |= {name: (folder / name).read_text() for name in ("report.md", "summary.json", "table.csv", "report.html")}
    # The caption of the table explains what the words mean; a verdict would stand elsewhere.
    for name, text in texts.items():
        assert reason in text.replace("&#x27;", "'"), name
        for word in PRAISE:
            assert word not in text, (name, word)
    assert f", void: {reason}" in texts["screen"]
    rows = {row["arm"]: row["verdict"] for row in csv.DictReader(texts["csv"].splitlines())}
    assert rows["dsv3"].startswith(f"void: {reason}")
    content = json.loads(texts["summary.json"])
    assert content["trustworthy"] is False
    for item in content["arms"]:
        if item["role"] != "repeat":
            assert item["verdict"].startswith(f"void: {reason}")
            assert all(effect["verdict"].startswith("void") for effect in item["effects"].values())
    lines = [line for line in texts["report.md"].splitlines() if line.startswith("| dsv3 | dsv3 |")]
    assert lines
    assert lines[0].endswith("| void |")


def test_what_a_control_says_nothing_about_stands(tmp_path, monkeypatch):
    study = summarize(made(tmp_path, "control", monkeypatch))
    assert study.findings[1].outcome == "as expected"
    assert study.arm("again").verdict == "bit-identical"


@pytest.mark.slow
def test_of_a_treatment_that_is_cut_off_that_verdict_alone_is_void(tmp_path, costly, monkeypatch):
    folder = run_study(make(tmp_path, expectations=EXPECTATIONS), jobs=0).folder
    cut(folder / "dsv3/c0-s0/metrics.csv", 12)
    study = summarize(folder)
    assert study.void == ()
    assert study.broken[0].startswith("dsv3/c0-s0 has 12 of 20 rows")
    assert study.arm("dsv3").word == "void"
    assert study.arm("fp4_naive").verdict == "worse"
    assert "cheapest" not in cost_figure.title(study)
    assert "dsv3: void" in curves.title(study)
    assert "dsv3" not in forest.title(study)
    assert {item.outcome.partition(":")[0] for item in study.findings} == {"void"}
    report(folder)
    assert "inf" not in (folder / "report.md").read_text().split("| arm |")[1].split("Measured with")[0]


def test_a_run_whose_numbers_are_gone_is_named(tmp_path):
    folder = run_study(make(tmp_path), jobs=0).folder
    record = read_json(folder / "dsv3/c0-s0/run.json")
    del record["validation_loss"]
    write_json(folder / "dsv3/c0-s0/run.json", record)
    with pytest.raises(StudyError, match=r"dsv3/c0-s0/run.json is damaged \('validation_loss'\)"):
        summarize(folder)
    write_json(folder / "dsv3/c0-s0/run.json", record | {"validation_loss": 1.0})
    path = folder / "dsv3/c0-s0/metrics.csv"
    path.write_text(path.read_text().replace(",0.002,", ",O.002,"))
    with pytest.raises(StudyError, match=r"metrics\.csv is damaged"):
        summarize(folder)
