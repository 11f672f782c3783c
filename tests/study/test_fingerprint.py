"""Runs of something else are not mixed, and what makes a run's numbers is in the hash."""

import ast
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from contract import branches, edited
from fake_trainer import FAKE
from toys import SMALL, snapshot

from lowprec._code import EXECUTE_RUNS, NOT_NUMERICS, code_hash, makes_numbers
from lowprec.study import plan, run_study
from lowprec.study.kinds.branches.summary import summarize
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
        ("schedule.peak: 0.002 then, 0.001", {"learning_rate": 1e-3}),
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
    planned = plan(TOY.study, changed, copied, data="other" if setting == {} else "stdlib", backend=FAKE)
    with pytest.raises(StudyError, match=f"{what}[^\\n]*--fresh[^\\n]*$"):
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
        f"changed, or where they lie (code: 'other' then, {code_hash()!r} now), so these runs cannot go on; --fresh "
        "keeps them as toy.1 and starts afresh, another --out keeps both"
    )
    assert snapshot(copied) == before
    run_study(plan(TOY.study, replace(SMALL, branch_steps=21), copied, backend=FAKE), jobs=0, fresh=True)
    kept = snapshot(copied.with_name("toy.1"))
    assert {copied / path.relative_to(copied.with_name("toy.1")): text for path, text in kept.items()} == before
    assert RunFolder(copied / "bf16/c0-s0").rows() == 21


# --- what is in the hash ---------------------------------------------------------------------------------------------

#: What a run's code imports and is not in the hash: it writes, describes or shows what was computed.
KEEPS_BOOKS = {
    "_code", "_files", "_show", "format/picture", "recipe/picture", "study/design/modules", "study/run/fingerprint",
    "study/run/store", "tensorcore/order",
}  # fmt: skip


def test_every_source_that_is_named_exists():
    """A renamed file would leave the hash, or enter it, unseen."""
    copied = tomllib.loads((rooms.PACKAGE.parent / "pyproject.toml").read_text())
    copied = copied["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    places = {f"{target.removeprefix('lowprec/')}/": rooms.PACKAGE.parent / source for source, target in copied.items()}
    for name in NOT_NUMERICS + EXECUTE_RUNS:
        path = places.get(name, rooms.PACKAGE / (name if name.endswith("/") else f"{name}.py"))
        assert path.is_dir() if name.endswith("/") else path.is_file(), name


@pytest.mark.slow
def test_all_that_a_run_executes_is_in_the_hash():
    graph = {name.removeprefix("lowprec.").replace(".", "/"): used for name, used in rooms.file_graph().items()}
    todo, seen = [*EXECUTE_RUNS], set()
    while todo:
        name = todo.pop()
        if name in seen or name not in graph:
            continue
        seen.add(name)
        if name not in KEEPS_BOOKS:
            assert makes_numbers(name), f"{name} takes part in runs: its changes must start them afresh"
            todo += [used.removeprefix("lowprec.").replace(".", "/") for used in graph[name]]
    assert {"moe/run/trainer", "kernels/cast/rounding", "study/run/tasks"} <= seen


@pytest.mark.slow
def test_every_sort_of_run_is_in_the_hash():
    for path in rooms.files():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and "Task" in [node.name, *map(ast.unparse, node.bases)]:
                name = path.relative_to(rooms.PACKAGE).with_suffix("").as_posix()
                assert name in EXECUTE_RUNS, f"{node.name} is executed by workers: EXECUTE_RUNS has to name {name}"
