"""What every kind of study keeps: classes of tests, which the file of each kind runs with a toy study."""

import csv
import io
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner
from fake_trainer import FAKE
from toys import SMALL, ablation, snapshot

from lowprec.cli import app
from lowprec.study import Claim, Measured, catalogue, run_study
from lowprec.study.run.store import StudyError, read_json, write_json


@dataclass(frozen=True)
class Toy:
    """A small study of one kind, and what can happen to its folder.

    Attributes
    ----------
    study, setting, backend
        What is run.
    outcomes : tuple of str
        What its expectations come to.
    lost : tuple of str
        Runs that, once removed, leave nothing to report; `unfinished` is what is then printed.
    damage : mapping of str to callable
        What makes a folder's verdicts void, by the beginning of the reason.
    praise : tuple of str
        What verdicts in favour of an arm look like.
    """

    study: Any
    setting: Any
    backend: Any = None
    outcomes: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    unfinished: str = "runs are not finished"
    damage: Mapping[str, Callable[[Path], object]] = field(default_factory=dict)
    praise: tuple[str, ...] = ("as expected |", "neither |")

    def plan(self, folder, **changes):
        return replace(self.study, **changes).plan(self.setting, Path(folder), backend=self.backend)

    def run(self, folder, jobs=0):
        return run_study(self.plan(folder), jobs=jobs).folder

    def measure(self, folder, plot=True):
        return self.study.measure(self.setting, folder, command="here").write(plot)


def branches(*more, setting=SMALL, backend=FAKE, **changes):
    """Return branches by the fake trainer: the usual arms and more."""
    return Toy(ablation(*more, **changes), setting, backend)


def command(*arguments):
    return CliRunner().invoke(app.cli, [str(argument) for argument in arguments])


# --- damage ----------------------------------------------------------------------------------------------------------


def cut(name, rows, extra=""):
    """Return what leaves so many rows of a table."""

    def damage(folder):
        lines = (folder / name).read_text().splitlines(keepends=True)
        (folder / name).write_text("".join(lines[: rows + 1]) + extra)

    return damage


def gone(name):
    """Return what removes a file."""
    return lambda folder: (folder / name).unlink()


def replaced(name, old, new):
    """Return what replaces the first of some words in a file."""

    def damage(folder):
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new, 1))

    return damage


def edited(name, change):
    """Return what changes fields of JSON files; fields of a field are changed in place."""

    def damage(folder):
        paths = sorted(folder.glob(name))
        assert paths
        for path in paths:
            content = read_json(path)
            merged = {key: {**content[key], **new} if isinstance(new, dict) else new for key, new in change.items()}
            write_json(path, content | merged)

    return damage


def same_results(pattern, arm, other):
    """Return what gives runs of an arm the results of another one's."""

    def damage(folder):
        paths = [path for path in folder.glob(f"{pattern}{arm}/*/*") if path.name != "checkpoint.npz"]
        assert paths
        for path in paths:
            theirs = path.parents[2] / other / path.parent.name / path.name
            if path.name != "run.json":
                shutil.copy(theirs, path)
            elif theirs.exists():
                own, kept = read_json(path), ("name", "fingerprint", "forward", "steps")
                write_json(path, read_json(theirs) | {key: own[key] for key in kept if key in own})

    return damage


def refused(folder, match):
    """Neither the report nor the command over a folder says anything but why not, nor writes a file."""
    before = snapshot(folder.parent)
    with pytest.raises(StudyError, match=match):
        catalogue.report(folder)
    shown = command("report", folder)
    assert (shown.exit_code, len(shown.stderr.strip().splitlines())) == (2, 1)
    assert snapshot(folder.parent) == before


def check_files(found, folder):
    """What a report says it wrote is there and whole."""
    written = {path.name for path in found.files}
    assert written >= {"report.md", "summary.json", "report.html"}
    for path in found.files:
        content = path.read_bytes()
        assert content.endswith(b"IEND\xaeB`\x82" if path.suffix == ".png" else b"\n" if path.suffix != ".svg" else b"")
        if path.suffix == ".csv":
            assert len({len(row) for row in csv.reader(io.StringIO(content.decode()))}) == 1, path
        elif path.suffix == ".json":
            json.loads(content, parse_constant=pytest.fail)
        elif path.suffix == ".svg":
            assert ElementTree.fromstring(content).tag.endswith("svg")
    assert (folder / "report.md").read_text() == found.markdown()
    assert found.summary_file == folder / "summary.json"
    for figure in found.figures:
        drawn = figure.draw is not None
        assert ({f"{figure.stem}.png", f"{figure.stem}.svg"} <= written) == drawn
        assert (f"]({figure.stem}.png)" in found.markdown()) == drawn
    assert (folder / "report.html").read_text().count("<svg") == sum(path.suffix == ".svg" for path in found.files)


class TrainingContract:
    """Of kinds whose runs are trained: plans, resumption, reports, and what voids or refuses them."""

    @pytest.mark.slow
    def test_a_plan_writes_nothing_and_names_every_run_once(self, toy, tmp_path):
        planned = toy.plan(tmp_path / "toy")
        assert not list(tmp_path.iterdir())
        names = [task.name for task in planned.tasks]
        assert len(set(names)) == len(names)
        assert {task.start_name for task in planned.arms} - {""} == {task.name for task in planned.checkpoints}
        assert {task.study for task in planned.arms} == {tmp_path / "toy"}
        other = toy.plan(tmp_path / "other", name="other")
        assert [task.folder.path for task in other.checkpoints] == [task.folder.path for task in planned.checkpoints]

    def test_finished_runs_are_never_done_again(self, toy, finished):
        before = snapshot(finished.parent)
        toy.run(finished)
        assert snapshot(finished.parent) == before

    @pytest.mark.slow
    def test_lost_runs_are_missed_and_done_again_with_the_same_bits(self, toy, copied, reported):
        tables = {path: text for path, text in snapshot(copied.parent).items() if path.suffix == ".csv"}
        for name in toy.lost:
            shutil.rmtree(copied / name)
        shutil.rmtree(copied.parent / "checkpoints")
        refused(copied, toy.unfinished)
        toy.run(copied)
        again = snapshot(copied.parent)
        needed = {path: text for path, text in tables.items() if path in again or path.is_relative_to(copied)}
        assert needed.items() <= again.items()
        assert catalogue.report(copied, plot=False).markdown(plot=False) == reported.markdown(plot=False)

    @pytest.mark.slow
    def test_reports_are_whole_and_say_what_came_out(self, toy, finished, reported):
        check_files(reported, finished)
        assert reported.table_csv() == (finished / "table.csv").read_text()
        assert [item.outcome for item in reported.outcome.findings] == [*toy.outcomes]
        assert not reported.invalid_reasons
        content = read_json(finished / "summary.json")
        assert [item["outcome"] for item in content["findings"]] == [*toy.outcomes]
        assert content["ablation"] == toy.study.name
        text = (finished / "report.md").read_text()
        assert f"# {toy.study.name}\n\n{toy.study.question}\n" in text
        assert all(f"| {words} |" in text for words in toy.outcomes)
        assert not any(word in text for word in ("nan]", "n/a"))

    @pytest.mark.slow
    def test_damage_voids_every_verdict(self, toy, copied, damage):
        toy.damage[damage](copied)
        found = catalogue.report(copied)
        assert not found.invalid_reasons or found.invalid_reasons[0].startswith(damage)
        assert {item.outcome.partition(f": {damage}")[0] for item in found.outcome.findings} == {"void"}
        titles = [figure.title for figure in found.figures if figure.draw is not None]
        assert titles
        assert all(f"void: {damage.lower()}" in title.lower() for title in titles)
        screen = command("report", copied, "--no-plot")
        assert screen.exit_code == bool(found.invalid_reasons)
        assert not found.invalid_reasons or f"error: {damage}" in screen.stderr
        texts = {name: (copied / name).read_text() for name in ("report.md", "summary.json", "report.html")}
        for name, text in {**texts, "screen": screen.stdout}.items():
            assert damage in " ".join(text.replace("&#x27;", "'").split()), name
            assert not any(word in text for word in toy.praise), name
        content = json.loads(texts["summary.json"])
        assert content["trustworthy"] is False
        assert all(item["outcome"].startswith(f"void: {damage}") for item in content["findings"])

    def test_runs_of_something_else_are_not_mixed(self, toy, copied):
        edited(f"{toy.lost[0]}/run.json", {"fingerprint": {"code": "another"}})(copied)
        refused(copied, "mixes runs that cannot be compared: .* in code: .*another")
        before = snapshot(copied.parent)
        with pytest.raises(StudyError, match=r"holds runs of other code: .* \(code: 'another' then.*--restart keeps"):
            toy.run(copied)
        assert snapshot(copied.parent) == before

    def test_a_study_file_with_a_name_that_leads_elsewhere_is_refused(self, toy, copied):
        edited("study.json", {"ablation": {"name": "../../evil"}})(copied)
        refused(copied, r"study\.json is damaged, .*at most 100 letters, digits and")


class MeasuringContract:
    """Of kinds that are measured in one go: their files, their verdicts, and what cannot be asked of them."""

    @pytest.mark.slow
    def test_what_is_measured_is_written(self, toy, tmp_path):
        found = toy.measure(tmp_path / "toy")
        check_files(found, tmp_path / "toy")
        left = {path.name for path in (tmp_path / "toy").iterdir()} - {"registered.json"}
        assert {path.name for path in found.files} == left
        assert found.holds
        bare = toy.measure(tmp_path / "bare", plot=False).files
        assert {path.suffix for path in {*found.files} - {tmp_path / "toy" / path.name for path in bare}} <= {
            ".png", ".svg", ".html",
        }  # fmt: skip

    @pytest.mark.slow
    def test_the_command_says_what_it_writes_and_whether_figures_came_out(self, toy, tmp_path, monkeypatch):
        small = replace(toy.study, quick=toy.setting)
        name, folder = small.name, tmp_path / f"{small.name}-quick"
        monkeypatch.setattr("lowprec.study.catalogue.load", lambda name: small)
        told = command("ablate", name, "--quick", "--out", tmp_path)
        assert told.exit_code == 0, told.output
        assert f"lowprec ablate {name} --quick" in (folder / "report.md").read_text()
        for path in folder.iterdir():
            assert path.name == "registered.json" or f"wrote {path}" in told.stderr
        reported = command("report", tmp_path, "--no-plot")
        assert reported.exit_code == 0, reported.output
        if hasattr(small, "claims"):
            never = Claim("never", "nowhere", "1", lambda: Measured("0", 0.0, False))
            small = replace(small, claims=(*small.claims[:1], never))
        told = command("ablate", name, "--quick", "--seeds", 1, "--no-plot", "--json", "--out", tmp_path)
        assert told.exit_code == hasattr(small, "claims")
        assert json.loads(told.stdout) == read_json(folder / "summary.json")
        if hasattr(small, "claims"):
            assert {claim["claim"]: claim["agrees"] for claim in json.loads(told.stdout)["claims"]}["never"] == "NO"

    def test_what_trains_nothing_has_no_runs(self, toy, tmp_path, monkeypatch):
        assert not hasattr(toy.study, "plan")
        monkeypatch.setattr("lowprec.study.catalogue.load", lambda name: toy.study)
        for words, printed in (
            (["--set", "branch_steps=3"], "unknown setting 'branch_steps'"),
            (["--checkpoints", 2], "unknown setting 'checkpoints'"),
            (["--scheduler", "local"], f"--scheduler has no effect on {toy.study.name}, which trains nothing"),
        ):
            told = command("ablate", toy.study.name, "--out", tmp_path, *words)
            assert (told.exit_code, told.stdout) == (2, "")
            assert told.stderr.startswith(f"error: {printed}")
            assert len(told.stderr.splitlines()) == 1
        assert not list(tmp_path.iterdir())

    def test_a_folder_that_cannot_be_written_is_said(self, toy, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(StudyError, match="cannot be written"):
            toy.measure(tmp_path / "file")
