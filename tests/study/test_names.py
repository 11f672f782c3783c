"""A name that becomes a file leads out of no folder; what is data is never executed, what is a program says so."""

import functools
import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
from contract import branches, command, refused
from toys import ablation, make, snapshot

import lowprec as lp
from lowprec._files import safe_name
from lowprec.recipe import load_recipe
from lowprec.study import Arm, Claims, CountStudy, GradientComparison, MeasurementStudy, load, run_study
from lowprec.study.catalogue import report
from lowprec.study.report import page
from lowprec.study.report.sheet import Figure
from lowprec.study.tensors.formats import ErrorArm, ErrorSetting, ErrorStudy
from lowprec.study.tensors.gemms import TensorStudy

EVIL = ("../../evil", "/evil", "..", ".", "", "a/b", "a\\b", "a\0b", "a\n", "-rf", "a b", "é", "x" * 101, 3, None)


@pytest.mark.parametrize("name", EVIL)
def test_names_that_would_lead_elsewhere(name):
    with pytest.raises(ValueError, match="at most 100 letters, digits and") as caught:
        safe_name("study", name)
    assert "\n" not in str(caught.value)
    assert "\0" not in str(caught.value)


SIZE = ErrorSetting(1, 1, 1)
ERRORS = functools.partial(
    ErrorStudy, question="?", arms=(ErrorArm("e4m3fn", "E4M3", "FP8"),), data=("normal",),
    quick=SIZE, full=SIZE,
)  # fmt: skip
REFERENCE = (Arm("a", role="reference"),)
MADE = {
    "Ablation": lambda name: ablation(name=name),
    "MeasurementStudy": lambda name: MeasurementStudy(
        name=name, question="?", arms=REFERENCE, measurement=GradientComparison()
    ),
    "Claims": lambda name: Claims(name=name, question="?", arms=(), values=dict),
    "CountStudy": lambda name: CountStudy(
        name=name,
        question="?",
        arms=(),
        trials=dict,
        points=(),
        axis="x",
        success="y",
        control="a",
        quick=None,
        full=None,
    ),
    "ErrorStudy": lambda name: ERRORS(name=name),
    "TensorStudy": lambda name: TensorStudy(name=name, question="?", arms=(), data=(), quick=None, full=None),
    "Arm": Arm,
    "Figure": lambda name: Figure("title", name, []),
}


@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("name", ["../../evil", "/evil", "a\0b", "a\n", ""])
def test_everything_with_a_name_checks_it(made, name):
    with pytest.raises(ValueError, match="name must have at most 100 letters, digits and"):
        MADE[made](name)


# --- on reading ------------------------------------------------------------------------------------------------------

TOY = branches()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("place", ["study", "arm"])
@pytest.mark.parametrize("name", ["../../evil", "evil", "a\0b", "a\nb"])
def test_a_study_file_cannot_make_a_report_write_elsewhere(tmp_path, copied, place, name):
    name = str(tmp_path / name) if name == "evil" else name
    content = json.loads((copied / "study.json").read_text())
    (content["ablation"] if place == "study" else content["ablation"]["arms"][1])["name"] = name
    (copied / "study.json").write_text(json.dumps(content))
    refused(copied, r"study\.json is damaged, .*at most 100 letters, digits and")
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


@pytest.mark.parametrize("stem", ["../secret", "/etc/secret"])
def test_a_report_cannot_make_a_page_read_elsewhere(tmp_path, stem):
    (tmp_path / "secret.svg").write_text("<svg>secret</svg>")
    folder = tmp_path / "a"
    folder.mkdir()
    (folder / "report.md").write_text(f"# a\n\n![a finding]({stem}.png)\n")
    with pytest.raises(ValueError, match="figure name"):
        page.render(folder)


def test_an_ablation_file_cannot_be_run_into_another_folder(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from lowprec.study import Claims\nablation = Claims(name='../../evil', question='?', arms=(), values=dict)\n"
    )
    with pytest.raises(
        ValueError, match=r"study name must have at most 100 letters, digits and _ . \+ -, as it names a file,"
    ):
        load(str(tmp_path / "mine.py"))
    before = snapshot(tmp_path)
    assert command("ablate", tmp_path / "mine.py", "--out", tmp_path / "a" / "b").exit_code == 2
    assert snapshot(tmp_path) == before


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
    one, many = tmp_path / "one.npy", tmp_path / "many.npz"
    train = ["train", "--config", "nano", "--steps", "1", "--data", "synthetic", "--out", run, "--resume"]
    for words in (["quantize", one, "e4m3fn"], ["quantize", many, "e4m3fn"], ["check", one, many], train):
        result = command(*words)
        assert result.exit_code == 2, (words, result.output, result.exception)
        told = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
        assert len(told) == 1, result.stderr
    with pytest.raises(ValueError, match="not a file of a quantized matrix"):
        lp.Quantized.load(str(many))
    assert not (tmp_path / "executed").exists()


def test_what_looks_like_a_program_in_data_stays_text(tmp_path):
    """TOML and study.json hold text: nothing in them is evaluated or imported."""
    program = f"__import__('pathlib').Path({str(tmp_path / 'executed')!r}).touch()"
    recipe = tmp_path / "mine.toml"
    recipe.write_text(f'name = "mine"\nbase = "bf16"\ndescription = {json.dumps(program)}\n')
    assert load_recipe(str(recipe)).description == program
    folder = run_study(make(tmp_path / "runs", question=program), jobs=0).folder
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
