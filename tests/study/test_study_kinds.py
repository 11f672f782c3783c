"""Kinds of studies: what each must have, and that one of one's own is run by the same command."""

import importlib
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from contract import MeasuringContract, TrainingContract, command

from lowprec.study import Ablation, catalogue
from lowprec.study.kinds import catalogue as kinds
from lowprec.study.kinds.kind import MeasuringKind, TrainingKind
from lowprec.study.report.parts import Table
from lowprec.study.report.results import Results

HERE = Path(kinds.__file__).parent


def test_every_folder_is_a_kind_and_is_listed():
    folders = {path.parent.name for path in HERE.glob("*/kind.py")}
    assert folders == {path.name for path in HERE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert {type(kind).__module__.split(".")[-2] for kind in kinds.KINDS.values()} == folders
    assert all(name == kind.name for name, kind in kinds.KINDS.items())
    assert len({kind.study for kind in kinds.KINDS.values()}) == len(folders)


@pytest.mark.parametrize("kind", kinds.KINDS.values(), ids=lambda kind: kind.name)
def test_a_kind_keeps_the_contract_of_what_trains_or_of_what_measures(kind):
    assert isinstance(kind, TrainingKind) != isinstance(kind, MeasuringKind)
    contract = TrainingContract if isinstance(kind, TrainingKind) else MeasuringContract
    files = [path for path in Path(__file__).parent.glob("test_*.py") if "\nclass TestContract(" in path.read_text()]
    modules = [importlib.import_module(path.stem) for path in files]
    found = [module for module in modules if kinds.kind_of(module.TOY.study) is kind]
    assert found
    assert all(issubclass(module.TestContract, contract) for module in found)


@pytest.mark.parametrize(
    ("protocol", "missing"), [(TrainingKind, "plan, results|plan and results"), (MeasuringKind, "measure")]
)
def test_what_a_kind_lacks_is_said(protocol, missing):
    class Half(protocol):
        name, study = "half", dict

    with pytest.raises(TypeError, match=f"abstract methods? '?({missing})|{missing}"):
        Half()


@dataclass(frozen=True)
class Size:
    seeds: int


@dataclass(frozen=True)
class Counting:
    name: str = "counting"
    question: str = "How many?"
    arms: tuple = ()
    quick: Size = Size(1)
    full: Size = Size(2)
    tier: str = "T1"


class CountingKind(MeasuringKind[Counting, Size]):
    name, study = "counting", Counting

    def measure(self, study, setting, folder, *, command="", progress=None):
        folder.mkdir(parents=True, exist_ok=True)
        count = setting.seeds
        shown = Table(("count",), [(str(count),)])
        return Results(study, folder, count, [f"{count}, {command}"], json={"count": count}, shown=[shown], holds=False)


def test_a_kind_of_ones_own_is_run_by_the_command(tmp_path, monkeypatch):
    monkeypatch.setattr(catalogue, "load", lambda name: Counting())
    with pytest.raises(TypeError, match="Counting 'counting' is of no kind of study; there are Ablation, Meas"):
        kinds.kind_of(Counting())
    monkeypatch.setattr(kinds, "KINDS", dict(kinds.KINDS))
    kinds.register(CountingKind())
    arguments = ["ablate", "counting", "--seeds", "7", "--no-plot", "--out", tmp_path]
    shown = command(*arguments)
    assert (shown.exit_code, shown.stdout.split()[-1]) == (1, "7")  # a published figure was not reproduced
    text = (tmp_path / "counting-full/report.md").read_text()
    assert text == "# counting\n\nHow many?\n\n7, lowprec ablate counting\n"


@pytest.mark.slow
def test_listing_imports_no_kind():
    """What runs and draws is imported when a study is run."""
    assert Ablation.__module__ == "lowprec.study.kinds.branches.ablation"
    code = (
        "import sys; from lowprec.study import catalogue; [catalogue.load(name) for name in catalogue.names()]\n"
        "print(*(name for name in sys.modules if name.startswith('lowprec.study') and name.endswith('.kind')))"
    )
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert shown.stdout.split() == []
