"""Kinds of accumulators are objects: each says all about itself, and nobody asks what it is called."""

import ast
from pathlib import Path

import pytest

import lowprec as lp
from lowprec import oracle
from lowprec.tensorcore.accumulator import kinds

PACKAGE = Path(lp.__file__).parent
ROOMS = ("tensorcore", "recipe", "cli")  # those that see accumulators


def asks_the_kind(node: ast.AST) -> bool:
    """Tell whether an expression is an attribute `kind`, other than that of a NumPy type."""
    return isinstance(node, ast.Attribute) and node.attr == "kind" and not ast.unparse(node.value).endswith("dtype")


@pytest.mark.parametrize("path", [p for room in ROOMS for p in sorted((PACKAGE / room).rglob("*.py"))], ids=str)
def test_nobody_compares_a_kind(path: Path) -> None:
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Compare):
            # Operand tables have a kind for each code, an array that is compared with an integer.
            words = [part for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str)]
            wrong = bool(words) and any(map(asks_the_kind, [node.left, *node.comparators]))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            part_of = node.func.attr in ("startswith", "endswith") and asks_the_kind(node.func.value)
            wrong = part_of or (node.func.attr == "get" and any(map(asks_the_kind, node.args)))
        else:
            wrong = False
        if wrong:
            found.append(ast.unparse(node))
    assert not found, f"ask accumulator.rule instead: {found}"


@pytest.mark.parametrize("name", kinds)
def test_a_kind_tells_its_words_and_its_oracle(name: str) -> None:
    kind = kinds[name]
    assert kind.name == str(kind) == name
    assert 10 < len(kind.words) < 120
    assert hasattr(oracle, kind.oracle), f"{name}: lowprec.oracle has no {kind.oracle}"
    assert any(lp.accumulators[key].rule is kind for key in lp.accumulators), f"no accumulator is of kind {name}"
    assert f"``{name}``" in str(lp.Accumulator.__doc__), f"Accumulator's docstring does not tell what {name} is"
