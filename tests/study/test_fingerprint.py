"""Runs of something else are not mixed, and what makes a run's numbers is in the hash."""

import ast
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from contract import branches, edited
from fake_trainer import FAKE
from toys import SMALL, snapshot, summarize

from lowprec.definitions import code as _code
from lowprec.definitions.code import PACKAGE, ROOTS, code_hash, numeric_sources
from lowprec.study import run_study
from lowprec.study.run.fingerprint import differences
from lowprec.study.run.store import RunFolder, StudyError

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))  # `rooms` reads the imports for the drawing, too
import rooms

TOY = branches()


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("what", "setting"),
    [
        ("schedule.total_steps: 20 then, 21 now", {"branch_steps": 21}),
        ("schedule.peak_lr: 0.002 then, 0.001", {"learning_rate": 1e-3}),
        ("data: ", {}),
        ("code: 'something else' then, .* now", None),
        ("versions: 'something else' then, .* now", None),
        ("recipe: 'something else' then, .* now", None),
    ],
)
def test_runs_of_something_else_are_not_mixed(copied, what, setting):
    if setting is None:
        edited("dsv3/c0-s0/run.json", {"fingerprint": {what.partition(":")[0]: "something else"}})(copied)
    before = snapshot(copied)
    changed = replace(SMALL, **(setting or {}))
    planned = TOY.study.plan(changed, copied, data="other" if setting == {} else "stdlib", backend=FAKE)
    with pytest.raises(StudyError, match=f"{what}[^\\n]*--restart[^\\n]*$"):
        run_study(planned, jobs=0)
    assert snapshot(copied) == before


def test_differences_name_the_place():
    assert differences({"a": {"b": [1, 2]}, "c": 1}, {"a": {"b": [1, 3]}, "d": 1}) == [
        "a.b[1]: 2 then, 3 now", "c: 1 then, None now", "d: None then, 1 now",
    ]  # fmt: skip
    assert differences([1], [1, 2]) == [": [1] then, [1, 2] now"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("run", "key"),
    [("dsv3/c1-s1", "code"), ("bf16/c0-s1", "versions"), ("perturb/c0-s0", "data"), ("dsv3/c1-s0", "recipe")]
)  # fmt: skip
def test_a_report_over_mixed_runs_is_refused(copied, run, key):
    edited(f"{run}/run.json", {"fingerprint": {key: "another"}})(copied)
    words = f"mixes runs that cannot be compared: {run} differs from .* in {key}: .*another"
    with pytest.raises(StudyError, match=words):
        summarize(copied)


def test_what_other_code_made_starts_afresh_only_when_told_and_the_message_says_why(copied):
    edited("*/*/run.json", {"fingerprint": {"code": "other"}})(copied)
    before = snapshot(copied)
    with pytest.raises(StudyError) as caught:
        TOY.run(copied)
    assert str(caught.value) == (
        f"{copied} holds runs of other code: since they ran, lowprec's sources that make a run's numbers have "
        f"changed, or their paths (code: 'other' then, {code_hash()!r} now), so these runs cannot be resumed; "
        "--restart keeps them as toy.1 and starts over, another --out keeps both"
    )
    assert snapshot(copied) == before
    run_study(TOY.study.plan(replace(SMALL, branch_steps=21), copied, backend=FAKE), jobs=0, restart=True)
    kept = snapshot(copied.with_name("toy.1"))
    assert {copied / path.relative_to(copied.with_name("toy.1")): text for path, text in kept.items()} == before
    assert RunFolder(copied / "bf16/c0-s0").rows() == 21


# --- what is in the hash ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sources():
    return set(numeric_sources(PACKAGE))


@pytest.mark.slow
def test_what_computes_is_in_the_hash_and_what_shows_is_not(sources):
    inside = {
        "study/run/tasks", "study/run/branch", "study/measurements/gradients", "study/measurements/gemms",
        "moe/run/trainer", "moe/run/train", "recipe/catalogue", "kernels/cast/rounding", "tensorcore/mma",
        "bounds/checksum", "collective/kinds", "measure/spread", "cast/casts",
    }  # fmt: skip
    assert inside <= sources
    outside = (
        "study/report/",
        "study/analysis/",
        "study/branches/",
        "cli/",
        "plot/",
        "oracle/",
        "vectors/",
        "diagnose/",
        "costs/",
    )
    assert not {name for name in sources if name.startswith((*outside, "study/catalogue", "torch/"))}


@pytest.mark.parametrize(
    ("edit", "changes"),
    [
        ("kernels/cast/rounding", True), ("recipe/catalogue", True), ("study/run/store", True),
        ("study/measurements/faults", True), ("study/report/training", False), ("study/branches/figures", False),
        ("plot/style", False), ("cli/studies", False),
    ],
)  # fmt: skip
def test_an_edit_starts_runs_afresh_only_where_numbers_are_made(edit, changes, sources):
    assert (edit in sources) == changes
    assert (PACKAGE / f"{edit}.py").is_file()


def test_the_hash_follows_imports_of_every_form(tmp_path, monkeypatch):
    package = tmp_path / "lowprec"
    texts = {
        "__init__.py": "", "__init__.pyi": "from .lazy.file import thing as thing\n",
        "study/run/a.py": "import lowprec as lp\nfrom . import b\nif b:\n    from ...room.c import x\nlp.thing()\n",
        "study/run/b.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from lowprec.room import typed\n",
        "study/run/__init__.py": "", "room/__init__.py": "", "room/c.py": "import lowprec.room.d\n", "room/d.py": "",
        "room/typed.py": "", "room/unused.py": "", "lazy/__init__.py": "", "lazy/file.py": "thing = 1\n",
    }  # fmt: skip
    for name, text in texts.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    found = set(numeric_sources(package))
    assert {"study/run/a", "study/run/b", "room/c", "room/d", "lazy/file"} <= found
    assert not found & {"room/typed", "room/unused"}

    def hashed():
        code_hash.cache_clear()
        return code_hash()

    monkeypatch.setattr(_code, "PACKAGE", package)
    before = hashed()
    (package / "room/unused.py").write_text("1")
    assert hashed() == before
    (package / "room/d.py").write_text("1")
    assert hashed() != before
    code_hash.cache_clear()


@pytest.mark.slow
def test_every_work_stands_where_it_is_hashed():
    for path in rooms.files():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and {"Work", "Measurement"} & {*map(ast.unparse, node.bases)}:
                name = path.relative_to(rooms.PACKAGE).as_posix()
                assert name.startswith(ROOTS) or node.name == "StoredMeasurement", f"{node.name} is executed by workers"
