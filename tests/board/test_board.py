"""The committed board is today's: entries, lowprec's answers, the oracle's; and packages that cannot be run."""

import itertools
import json
import os
import re
import sys
import types
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tools import command

import lowprec as lp
from lowprec._files import locked, make_folder
from lowprec.board import causes, compare, environments, page, record
from lowprec.board.adapters.harness import Operation, nibbles
from lowprec.board.calculation import number, short
from lowprec.board.inputs import bfloat16_count, digest, inputs
from lowprec.board.prediction import Prediction, Rule, predict
from lowprec.board.rules import divided_by, zero_signs
from lowprec.registry import UnknownNameError

FILE = Path(__file__).parents[2] / "reference_data" / "board.json"
COMMAND = "lowprec board --record reference_data/board.json --page docs/board.md"
BOARD = json.loads(FILE.read_text(encoding="utf-8"))
CELLS = {(cell["package"], cell["operation"]): cell for cell in BOARD["cells"]}
RAN = {key: cell for key, cell in CELLS.items() if "error" not in cell}
OPERATIONS = {(name, operation.name): operation
              for name, module in environments.packages().items() for operation in module.OPERATIONS}  # fmt: skip


def test_cells_are_the_adapters_operations() -> None:
    assert set(CELLS) == set(OPERATIONS), f"run: {COMMAND}"
    for key, operation in OPERATIONS.items():
        check_facts(key, operation)


def check_facts(key: tuple[str, str], operation: Operation) -> None:
    facts = record.facts(key[0], operation)
    assert facts == {name: CELLS[key][name] for name in facts}, f"run: {COMMAND} {key[0]}"


def check_answers(key: tuple[str, str], operation: Operation) -> None:
    mine = compare.ours(operation)
    found = digest([mine[name] for name in sorted(mine)])
    for same in (key, *(other for other in RAN if asked(OPERATIONS[other]) == asked(operation))):
        assert found == RAN[same]["ours_sha256"], f"run: {COMMAND} {same[0]}"


def asked(operation: Operation) -> tuple[Any, ...]:
    """What decides lowprec's answer, which several packages are compared with."""
    return operation.inputs, operation.step, operation.entry, repr(operation.options)


@pytest.mark.parametrize("check", [check_facts, check_answers])
def test_a_changed_cell_needs_a_new_board(check: Callable[[tuple[str, str], Operation], None]) -> None:
    key = ("ml_dtypes", "cast e4m3fn")
    check(key, OPERATIONS[key])
    changed = replace(OPERATIONS[key], options={"policy": "ml_dtypes", "rounding": "toward_zero"})
    with pytest.raises(AssertionError, match=r"run: lowprec board .* ml_dtypes"):
        check(key, changed)


def input_of(operation: Operation, example: dict[str, Any]) -> np.ndarray | None:
    """The input of an example that is written out."""
    kind, _, width = operation.inputs.partition("/")
    if "x" not in example or kind not in ("casts", "blocks"):
        return None
    x = np.full((1, 1 if kind == "casts" else int(width)), example.get("fill", 0), np.uint32)
    x[0, [int(at) for at in example["x"]]] = list(example["x"].values())
    return x.view(np.float32)


@pytest.mark.sampled(60)
@pytest.mark.parametrize("key", RAN, ids=": ".join)
def test_examples_show_todays_answers(key: tuple[str, str]) -> None:
    """Lowprec's answer on every input that the page shows, and the package's by the rules of its causes."""
    operation = OPERATIONS[key]
    for example in RAN[key]["smallest"]:
        if (x := input_of(operation, example)) is None:
            continue
        ours, rules = predicted(operation, x, ()), causes.rules_of(*key)
        letters = example["cause"].split("+")
        assert shown(ours, example, "ours") == example["ours"], f"run: {COMMAND} {key[0]}"
        if letters != ["?"]:
            theirs = [predicted(operation, x, some) for some in itertools.product(*[
                [rule for letter, rule in rules if letter == wanted] for wanted in letters])]  # fmt: skip
            assert example["theirs"] in [shown(p, example, "theirs") for p in theirs], f"run: {COMMAND} {key[0]}"


def predicted(operation: Operation, x: np.ndarray, chosen: Sequence[Rule]) -> Prediction:
    if operation.inputs.startswith("casts"):
        p = Prediction(x, lp.encode(x, operation.entry, **operation.options), lp.formats[operation.entry])
    else:
        q = lp.quantize(x, compare.quantizer_of(operation))
        p = predict(x, q.codes, compare.quantizer_of(operation), q.scale[:, 0], np.abs(x).max(1))
    with np.errstate(all="ignore"):
        for rule in chosen:
            p = rule(p)
    return p


def shown(p: Prediction, example: dict[str, Any], caller: str) -> dict[str, str]:
    code = p.codes[0, example["at"]]
    found = {"code": f"0x{int(code):02X}"}
    with np.errstate(all="ignore"):
        if len(example[caller]["code"]) == 10:
            value = lp.decode(code, p.format) * p.scale[0]
            found["code"] = example[caller]["code"] if np.isnan(value) else f"0x{np.float32(value).view(np.uint32):08X}"
    if "scale" in example[caller]:
        known = number(example[caller]["scale"])
        nan = np.isnan(p.scale[0]) and np.isnan(known)
        if known == 0 or not np.isfinite(known):  # codes that such a scale multiplies are not compared
            found["code"] = example[caller]["code"]
        found["scale"] = example[caller]["scale"] if nan else f"0x{np.float32(p.scale[0]).view(np.uint32):08X}"
    return found


@pytest.mark.sampled(2, default=40)
@pytest.mark.parametrize("key", {asked(OPERATIONS[key]): key for key in RAN}.values(), ids=": ".join)
def test_all_of_lowprecs_answers_are_those_of_the_board(key: tuple[str, str]) -> None:
    check_answers(key, OPERATIONS[key])


def test_the_oracle_agrees_on_every_cell() -> None:
    for key, cell in RAN.items():
        assert cell["oracle"].get("differ", 0) == 0, key
        assert cell["oracle"].get("values", 0) or cell["inputs"].startswith("codes"), key


def test_every_difference_is_explained_or_counted() -> None:
    for key, cell in RAN.items():
        differs = sum(cell["differ"][name] for name in cell["compared"])
        explained = sum(cell["causes"].values())
        assert explained + cell["unexplained"] >= differs, key
        assert bool(cell["smallest"]) == bool(explained + cell["unexplained"]), key
        letters = {letter for label in cell["causes"] for letter in label.split("+")}
        assert letters <= {letter for letter, _ in causes.rules_of(*key)}, key
        assert letters <= {letter for e in cell["smallest"] for letter in e["cause"].split("+")}, key


def test_a_rule_counts_what_it_predicts_and_nothing_else() -> None:
    """Answers with two causes in some blocks, one in others, and one answer that no rule gives."""
    q = lp.quantizers["mxfp4_floor"]
    operation = Operation("MX", _double, "blocks/32", "mxfp4_floor")
    x = inputs("blocks/32")
    ours = lp.quantize(x, q)
    p = predict(x, ours.codes, q, ours.scale[:, 0], np.abs(x).max(1))
    half, signs = partial(divided_by, divisor=2.0**-126), partial(zero_signs, kind="positive")
    with np.errstate(all="ignore"):
        both = signs(half(p))
    codes = both.codes.copy()
    codes[40_000, 3] ^= 1
    cell = compare.cell(operation, {"codes": codes, "scale": both.scale}, [("F", half), ("M", signs)])
    assert cell["unexplained"] == 1
    assert set(cell["causes"]) == {"F", "M", "F+M"}
    alone = compare.cell(operation, {"codes": codes, "scale": both.scale}, [("F", half)])
    assert alone["causes"] == {"F": cell["causes"]["F"]}
    assert alone["unexplained"] == 1 + cell["causes"]["M"] + cell["causes"]["F+M"]


def test_unknown_inputs_are_refused() -> None:
    with pytest.raises(ValueError, match="key must begin with casts"):
        inputs("rows/16")


@pytest.mark.parametrize("key", ["casts/e4m3fn", "blocks/16", "tensors"])
def test_inputs_hold_what_peers_get_wrong(key: str) -> None:
    x = inputs(key)
    rows = x.reshape(len(x), -1)
    assert len(rows) > bfloat16_count(key) > 500
    assert (x.view(np.uint32) == 0x80000000).any()
    assert ((x != 0) & (np.abs(x) < 2.0**-126)).any()
    assert np.isinf(x).any()
    assert np.isnan(x).any()
    assert key.startswith("casts") or (rows == 0).all(1).any()


def test_nibbles() -> None:
    assert nibbles(np.array([[0x21, 0xF3]], np.uint8)).tolist() == [[1, 2, 3, 15]]


# --- packages that cannot be run --------------------------------------------------------------------------------------


def _double(x: Any) -> dict[str, Any]:
    return {"values": x}


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A package whose environment is this one, and whose name no index has."""
    module = types.ModuleType("lowprec.board.adapters.toy")
    module.__file__, module.__doc__ = __file__, "Toy."
    module.VERSIONS, module.ENVIRONMENT, module.NEEDS = ("numpy",), "toy", ("numpy",)  # type: ignore[attr-defined]
    module.OPERATIONS = [Operation("decode", _double, "codes/e2m1fn", "e2m1fn")]  # type: ignore[attr-defined]
    module._double = _double  # type: ignore[attr-defined]
    monkeypatch.setitem(environments.packages(), "toy", module)
    return module


def _update(tmp_path: Path, timeout: float = 60) -> dict[str, Any]:
    return record.update(
        ["toy"], tmp_path / "a" / "b.json", tmp_path / "b.md", tmp_path / "cache", timeout, list().append
    )


@pytest.mark.parametrize(
    ("start", "reason"),
    [
        ("raise SystemExit('no index has it')", "no index has it"),
        ("import a_package_that_is_not_there", "No module named 'a_package_that_is_not_there'"),
        ("import time; time.sleep(60)", "stopped after 0.5 s"),
    ],
)
def test_a_package_that_cannot_run_has_a_row_with_the_reason(
    start: str, reason: str, toy: types.ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environments, "_installed", lambda *_: sys.executable)
    monkeypatch.setattr(environments, "_START", f"{start}\n")
    board = _update(tmp_path, 0.5 if "sleep" in start else 60)
    assert [reason in cell["error"] for cell in board["cells"]] == [True]
    assert reason in (tmp_path / "b.md").read_text()


HARNESS = """
import json, sys, numpy as np
class harness:
    def versions(name):
        return {}
    def main(name, given, out):
        notes = dict(errors={}, versions={}, host=dict(python="3", cpu="", date=""))
        values = np.load(given + "/codes_e2m1fn.npy").astype("f4")
        np.savez(out, notes=json.dumps(notes), **{"decode|values": values})
"""


def test_the_command_counts_what_differs(
    toy: types.ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environments, "_installed", lambda *_: sys.executable)
    monkeypatch.setattr(environments, "_START", HARNESS)
    options = [x for name in ("record", "page", "cache") for x in (f"--{name}", tmp_path / name)]
    (row,) = json.loads(command("board", "toy", *options, "--json"))
    assert (row["package"], row["operation"], row["lowprec"]) == ("toy", "decode", "e2m1fn")
    assert (row["compared"], row["could_not_run"]) == (16, "")
    assert row["differ"] == 15  # the toy returns codes as values, and only 0 is right


def test_the_rest_goes_on_after_a_package_that_cannot_be_installed(
    toy: types.ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def install(folder: Path, *_: Any) -> str:
        if folder.name == "toy":
            raise environments.PackageError("no matching distribution")
        return sys.executable

    second = types.ModuleType("lowprec.board.adapters.second")
    vars(second).update({name: value for name, value in vars(toy).items() if name.isupper()}, _double=_double)
    second.ENVIRONMENT = "second"  # type: ignore[attr-defined]
    monkeypatch.setitem(environments.packages(), "second", second)
    monkeypatch.setattr(environments, "_installed", install)
    monkeypatch.setattr(environments, "_START", HARNESS)
    board = record.update(
        ["toy", "second"], tmp_path / "b.json", tmp_path / "b.md", tmp_path / "cache", 60, list().append
    )
    assert [cell.get("error") for cell in board["cells"]] == [None, "no matching distribution"]
    assert "Could not run: no matching distribution." in (tmp_path / "b.md").read_text()


def test_an_environment_in_use_gives_a_row_that_names_the_process(toy: types.ModuleType, tmp_path: Path) -> None:
    with locked(make_folder(tmp_path / "cache" / "toy")):
        board = _update(tmp_path)
    assert re.search(rf"toy' is in use by another process \(pid {os.getpid()}\)", board["cells"][0]["error"])
    assert "in use by another process" in (tmp_path / "b.md").read_text()


def test_answers_are_computed_once(toy: types.ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "_installed", lambda *_: sys.executable)
    monkeypatch.setattr(environments, "_START", HARNESS)
    first = _update(tmp_path)
    monkeypatch.setattr(environments, "_MAIN", "raise SystemExit('ran again')")
    assert _update(tmp_path) == first
    assert first["cells"][0]["differ"]["adversarial"] == 15  # only the code 0 is its value
    toy.NEEDS, toy.OPERATIONS[0] = (), replace(toy.OPERATIONS[0], step=2)  # type: ignore[attr-defined]
    assert "ran again" in _update(tmp_path)["cells"][0]["error"]


def test_an_unknown_package_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match=r"unknown package 'torhc'.*torch"):
        record.update(["torhc"], tmp_path / "b.json", tmp_path / "b.md", tmp_path, 1, print)
    assert not (tmp_path / "b.json").exists()


def test_a_program_of_the_page_is_complete(toy: types.ModuleType) -> None:
    """It runs alone and prints what the page says."""
    cell = {"call": "_double(x)", "inputs": "blocks/32", "package": "toy"}
    example = {"fill": 0, "x": {"3": 0x40400000}, "at": 3, "prints": "3.0"}
    program = page.snippet(sys.modules[__name__], cell, example)
    printed: list[str] = []
    exec(program, {"print": lambda *parts: printed.append(" ".join(map(str, parts)))})
    assert printed == [example["prints"]]


def test_numbers_are_short() -> None:
    assert [short(x) for x in (3 * 2.0**-128, -(2.0**-127), 448, np.float32(0.1), np.inf)] == [
        "3 * 2^-128", "-2^-127", "448", "0.100000001", "inf",
    ]  # fmt: skip
