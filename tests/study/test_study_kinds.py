"""Kinds of studies: what each must have, and that one of one's own is run by the same command."""

import importlib
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
from contract import MeasuringContract, TrainingContract, command

from lowprec.study import MeasuredStudy, PlannedStudy, Results, Size, Table, catalogue, count

CLASSES = sorted(
    {*catalogue.STUDIES.values(), *(type(catalogue.load(name)) for name in catalogue.names())}, key=lambda cls: cls.kind
)


def test_classes_are_listed_by_kind():
    assert all(name == cls.kind for name, cls in catalogue.STUDIES.items())
    assert len({cls.kind for cls in CLASSES}) == len(CLASSES)
    kept = [cls for cls in CLASSES if issubclass(cls, PlannedStudy)]
    assert kept == [cls for cls in kept if catalogue.STUDIES.get(cls.kind) is cls], (
        "STUDIES of lowprec/study/catalogue.py"
    )


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.kind)
def test_a_kind_keeps_the_contract_of_what_trains_or_of_what_measures(cls):
    assert issubclass(cls, PlannedStudy) != issubclass(cls, MeasuredStudy)
    contract = TrainingContract if issubclass(cls, PlannedStudy) else MeasuringContract
    files = [path for path in Path(__file__).parent.glob("test_*.py") if "\nclass TestContract(" in path.read_text()]
    modules = [importlib.import_module(path.stem) for path in files]
    found = [module for module in modules if type(module.TOY.study) is cls]
    wanted = f"a test of its own, with a study TOY of this class and `class TestContract({contract.__name__})`"
    assert found, f"{cls.__name__} needs {wanted}: see tests/study/test_claims.py"
    assert all(issubclass(module.TestContract, contract) for module in found)


@pytest.mark.parametrize(("base", "missing"), [(PlannedStudy, "plan.*results"), (MeasuredStudy, "measure")])
def test_what_a_kind_lacks_is_said(base, missing):
    with pytest.raises(TypeError, match=f"abstract methods? .*{missing}"):
        type("Half", (base,), {})(name="half", question="?", arms=(), quick=None, full=None)


@dataclass(frozen=True)
class Number(Size):
    seeds: int = count()


@dataclass(frozen=True)
class Thing:
    name: str


@dataclass(frozen=True, kw_only=True)
class Counting(MeasuredStudy):
    kind: ClassVar[str] = "counting"

    def measure(self, size, folder, *, command="", progress=None):
        folder.mkdir(parents=True, exist_ok=True)
        shown = Table(("count",), [(str(size.seeds),)])
        json = {"count": size.seeds}
        return Results(self, folder, size.seeds, [f"{size.seeds}, {command}"], json=json, shown=[shown], holds=False)


def test_a_kind_of_ones_own_is_run_by_the_command(tmp_path, monkeypatch):
    mine = Counting(name="counting", question="How many?", arms=(Thing("one"),), quick=Number(1), full=Number(2))
    monkeypatch.setattr(catalogue, "load", lambda name: mine)
    arguments = ["ablate", "counting", "--seeds", "7", "--no-plot", "--out", tmp_path]
    shown = command(*arguments)
    assert (shown.exit_code, shown.stdout.split()[-1]) == (1, "7")  # a published figure was not reproduced
    text = (tmp_path / "counting-full/report.md").read_text()
    assert text == "# counting\n\nHow many?\n\n7, lowprec ablate counting\n"


def test_the_kind_on_the_page_runs(tmp_path):
    page = (Path(__file__).parents[2] / "docs/own.md").read_text(encoding="utf-8")
    (block,) = (block for block in page.split("```") if "MeasuredStudy" in block and "kind =" in block)
    (tmp_path / "kept.py").write_text(block.removeprefix("python\n"))
    shown = command("ablate", tmp_path / "kept.py", "--set", "most=32", "--no-plot", "--csv", "--out", tmp_path)
    # Of 1 to 32, E4M3 has 1 to 16 and the even numbers above; E5M2 has 1 to 8, then every second and every fourth.
    assert shown.stdout == "format,kept %\ne4m3fn,75.0\ne5m2,50.0\nbfloat16,100.0\n"
    assert json.loads((tmp_path / "kept-full/summary.json").read_text())["shares"]["e5m2"] == 0.5
    assert "report.md is complete" in command("report", tmp_path / "kept-full", "--no-plot").stderr


def test_runs_of_a_kind_of_ones_own_are_reported_once_it_is_registered(tmp_path, monkeypatch):
    (tmp_path / "study.json").write_text('{"kind": "mine"}')
    assert "written by another version of lowprec (kind 'mine')" in command("report", tmp_path).stderr
    found = []
    read = classmethod(lambda cls, content: found.append(content) or (cls, 0))
    mine = type("Mine", (PlannedStudy,), {"kind": "mine", "from_json": read, "results": lambda size, folder: folder})
    monkeypatch.setattr(catalogue, "STUDIES", dict(catalogue.STUDIES))
    catalogue.register(mine)
    assert catalogue.results(tmp_path) == tmp_path
    assert found == [{"kind": "mine"}]


@pytest.mark.slow
def test_listing_imports_nothing_that_reports():
    """What draws and reports is imported when a study is run."""
    code = (
        "import sys; from lowprec.study import catalogue; [catalogue.load(name) for name in catalogue.names()]\n"
        "print(*(name for name in sys.modules if name.startswith('lowprec.study') and name.endswith('results')))"
    )
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert shown.stdout.split() == []
