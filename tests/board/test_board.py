"""The committed board is today's: entries, lowprec's answers, the oracle's; and packages that cannot be run."""

import json
import sys
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lowprec as lp
from lowprec.board import compare, environments, record
from lowprec.board.adapters.harness import Operation, nibbles
from lowprec.board.calculation import number, short
from lowprec.board.inputs import bfloat16_count, digest, inputs
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
        facts = record.facts(key[0], operation)
        assert facts == {name: CELLS[key][name] for name in facts}, f"run: {COMMAND} {key[0]}"


@pytest.mark.sampled(60)
@pytest.mark.parametrize("key", RAN, ids=": ".join)
def test_examples_show_todays_answers(key: tuple[str, str]) -> None:
    """Lowprec's codes and scales on every input that the page shows."""
    for example in RAN[key]["smallest"]:
        operation, x = OPERATIONS[key], example.get("x")
        kind, _, width = operation.inputs.partition("/")
        if kind == "casts":
            ours = lp.encode([number(x[0])], operation.entry, **operation.options)[0]
            assert f"0x{ours:02X}" == example["ours"]["code"], f"run: {COMMAND} {key[0]}"
        elif x is not None and kind == "blocks":
            block = np.zeros((1, int(width)), np.float32)
            block[0, [int(at) for at in x]] = [number(bits) for bits in x.values()]
            q = lp.quantize(block, compare.quantizer_of(operation))
            ours = example["ours"]
            scale = number(ours.get("scale", "0"))
            assert "scale" not in ours or same_bits(q.scale.flat[0], scale), f"run: {COMMAND} {key[0]}"
            value = q.dequantize()[0, example["at"]]
            code = f"0x{q.codes[0, example['at']]:02X}" if len(ours["code"]) == 4 else f"0x{value.view(np.uint32):08X}"
            assert code == ours["code"], f"run: {COMMAND} {key[0]}"


def same_bits(a: Any, b: Any) -> bool:
    return bool(compare.same(np.array([a]), np.array([b]))[0])


@pytest.mark.sampled(2, default=40)
@pytest.mark.parametrize("key", RAN, ids=": ".join)
def test_all_of_lowprecs_answers_are_those_of_the_board(key: tuple[str, str]) -> None:
    mine = compare.ours(OPERATIONS[key])
    assert digest([mine[name] for name in sorted(mine)]) == RAN[key]["ours_sha256"], f"run: {COMMAND} {key[0]}"


def test_the_oracle_agrees_on_every_cell() -> None:
    for key, cell in RAN.items():
        assert cell["oracle"].get("differ", 0) == 0, key
        assert cell["oracle"].get("values", 0) or cell["inputs"].startswith("codes"), key


def test_every_difference_has_an_example_and_a_cause() -> None:
    for key, cell in RAN.items():
        differs = any(cell["differ"].values())
        assert bool(cell["smallest"]) == differs, key
        assert bool(cell["causes"]) == differs, key


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
    board = _update(tmp_path, 0.5)
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


def test_numbers_are_short() -> None:
    assert [short(x) for x in (3 * 2.0**-128, -(2.0**-127), 448, np.float32(0.1), np.inf)] == [
        "3 * 2^-128", "-2^-127", "448", "0.100000001", "inf",
    ]  # fmt: skip
