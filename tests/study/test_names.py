"""A name that becomes a file leads out of no folder; what is data is never executed, what is a program says so."""

import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from toys import SMALL, ablation, make

import lowprec as lp
from lowprec._files import safe_name
from lowprec.cli import app as cli
from lowprec.recipe import load_recipe
from lowprec.study import Arm, Claims, SameWeights, load, run_study
from lowprec.study.kinds.catalogue import report
from lowprec.study.kinds.errors.study import ErrorArm, ErrorFigure, ErrorSetting, ErrorStudy
from lowprec.study.kinds.tensors.study import TensorStudy
from lowprec.study.report.document import Document, Figure
from lowprec.study.run.store import StudyError

EVIL = ("../../evil", "/evil", "..", ".", "", "a/b", "a\\b", "a\0b", "a\n", "-rf", "a b", "é", "x" * 101, 3, None)


@pytest.mark.parametrize("name", EVIL)
def test_names_that_would_lead_elsewhere(name):
    with pytest.raises(ValueError, match="letters, digits and") as caught:
        safe_name("study", name)
    assert "\n" not in str(caught.value)
    assert "\0" not in str(caught.value)


@pytest.mark.parametrize("name", ["../../evil", "/evil", "a\0b", "a\n", ""])
def test_every_kind_of_study_checks_its_name(name):
    size = ErrorSetting(1, 1, 1)
    reference = (Arm("a", role="reference"),)
    made = [
        lambda: ablation(name=name),
        lambda: SameWeights(name, "?", reference),
        lambda: Claims(name, "?", (), (), dict),
        lambda: ErrorStudy(name, "?", "", "", (ErrorArm("e4m3fn", "E4M3", "FP8"),), ("normal",), size, size),
        lambda: TensorStudy(name, "?", "", "", (), (), None, None),
        lambda: Arm(name),
        lambda: Figure("title", name),
    ]
    for make_it in made:
        with pytest.raises(ValueError, match=r"name .*: letters, digits and"):
            make_it()


def test_a_figure_that_would_be_written_elsewhere():
    figure = ErrorFigure("/../../evil", list, list, "")
    size = ErrorSetting(1, 1, 1)
    with pytest.raises(ValueError, match=r"figure name .fine/\.\./\.\./evil"):
        ErrorStudy(
            "fine", "?", "", "", (ErrorArm("e4m3fn", "E4M3", "FP8"),), ("normal",), size, size, figures=(figure,)
        )


# --- on reading ------------------------------------------------------------------------------------------------------


def everything(folder):
    return {path: path.is_file() and path.read_bytes() for path in sorted(folder.rglob("*")) if path.name != ".lock"}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("place", ["study", "arm"])
@pytest.mark.parametrize("name", ["../../evil", "evil", "a\0b", "a\nb"])
def test_a_study_file_cannot_make_a_report_write_elsewhere(tmp_path, place, name):
    folder = run_study(make(tmp_path / "runs"), jobs=0).folder
    name = str(tmp_path / name) if name == "evil" else name
    content = json.loads((folder / "study.json").read_text())
    (content["ablation"] if place == "study" else content["ablation"]["arms"][1])["name"] = name
    (folder / "study.json").write_text(json.dumps(content))
    before = everything(tmp_path)
    with pytest.raises(StudyError, match=r"study\.json is damaged, .*letters, digits and"):
        report(folder)
    result = CliRunner().invoke(cli.cli, ["report", str(folder)])
    assert (result.exit_code, len(result.stderr.strip().splitlines())) == (2, 1)
    assert everything(tmp_path) == before


@pytest.mark.parametrize("stem", ["../secret", "/etc/secret"])
def test_a_document_cannot_make_a_page_read_elsewhere(tmp_path, stem):
    (tmp_path / "secret.svg").write_text("<svg>secret</svg>")
    folder = tmp_path / "a"
    folder.mkdir()
    Document("a", "?", "T1", (Figure("title", "fine"),)).write(folder)
    text = (folder / "document.json").read_text()
    (folder / "document.json").write_text(text.replace('"fine"', json.dumps(stem)))
    with pytest.raises(StudyError, match=r"document\.json cannot be used: figure name"):
        Document.read(folder)
    (folder / "document.json").write_text('{"parts": 3}')
    with pytest.raises(StudyError, match=r"document\.json cannot be used"):
        Document.read(folder)


def test_an_ablation_file_cannot_be_run_into_another_folder(tmp_path):
    source = (
        "from types import SimpleNamespace as S\n"
        "ablation = S(name='../../evil', tier='T1', question='?', arms=(), quick=1, full=1)\n"
    )
    (tmp_path / "mine.py").write_text(source)
    with pytest.raises(ValueError, match=r"study name '\.\./\.\./evil'"):
        load(str(tmp_path / "mine.py"))
    before = everything(tmp_path)
    result = CliRunner().invoke(cli.cli, ["ablate", str(tmp_path / "mine.py"), "--out", str(tmp_path / "a" / "b")])
    assert result.exit_code == 2
    assert everything(tmp_path) == before


# --- data is never executed ------------------------------------------------------------------------------------------


class Bomb:
    """Leaves a file where it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.write_text, (self.path, "executed")


def member(bomb):
    content = io.BytesIO()
    np.save(content, np.array([bomb], dtype=object), allow_pickle=True)
    return content.getvalue()


@pytest.mark.slow
def test_pickled_arrays_are_refused_in_one_line_and_not_executed(tmp_path):
    bomb = Bomb(tmp_path / "executed")
    (tmp_path / "one.npy").write_bytes(member(bomb))
    names = ("header", "__header__", "codes", "scale", "scales")
    run = tmp_path / "run"
    run.mkdir()
    for path in (tmp_path / "many.npz", run / "checkpoint.npz"):
        with zipfile.ZipFile(path, "w") as archive:
            for name in names:
                archive.writestr(f"{name}.npy", member(bomb))
    one, many = str(tmp_path / "one.npy"), str(tmp_path / "many.npz")
    train = ["train", "--config", "nano", "--steps", "1", "--data", "synthetic", "--out", str(run), "--resume"]
    commands = (["quantize", one, "e4m3fn"], ["quantize", many, "e4m3fn"], ["check", one, many], train)
    for command in commands:
        result = CliRunner().invoke(cli.cli, command)
        assert result.exit_code == 2, (command, result.output, result.exception)
        told = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
        assert len(told) == 1, result.stderr
    with pytest.raises(ValueError, match="not a file of a quantized matrix"):
        lp.Quantized.load(many)
    assert not (tmp_path / "executed").exists()


def test_what_looks_like_a_program_in_data_stays_text(tmp_path):
    """TOML and study.json hold text: nothing in them is evaluated or imported."""
    program = f"__import__('pathlib').Path({str(tmp_path / 'executed')!r}).touch()"
    recipe = tmp_path / "mine.toml"
    recipe.write_text(f'name = "mine"\nbase = "bf16"\ndescription = {json.dumps(program)}\n')
    assert load_recipe(str(recipe)).description == program
    folder = run_study(make(tmp_path / "runs", question=program, setting=SMALL), jobs=0).folder
    report(folder, plot=False)
    assert not (tmp_path / "executed").exists()


def test_no_module_of_ours_unpickles():
    root = Path(lp.__file__).parent
    for path in root.rglob("*.py"):
        text = path.read_text()
        assert "allow_pickle=True" not in text, path
        assert "import pickle" not in text, path
        for line in text.splitlines():
            if "np.load(" in line or "read_array(" in line:
                assert "allow_pickle=False" in line, (path, line)


def test_ablation_files_are_said_to_be_programs():
    assert "programs" in " ".join(CliRunner().invoke(cli.cli, ["ablate", "--help"]).output.split())
    root = Path(lp.__file__).parents[1]
    for name in ("SECURITY.md", "ablations/README.md"):
        assert "never executed" in " ".join((root / name).read_text().split()), name
