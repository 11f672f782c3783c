"""Kinds of accumulators are objects: each says all about itself, and nobody asks what it is called.

The fields that they name decide bits, and no others do.
"""

import ast
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lowprec as lp
from lowprec import oracle
from lowprec.tensorcore.accumulator import FLOAT64, kinds

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


# Fields

#: Another value of every field that a kind may or may not heed.
OTHERS: dict[str, tuple[Any, ...]] = {
    "group": (2, 4, 8, 16), "fraction_bits": (11, 5), "align": ("floor", "nearest"), "output": ("float16", "float32"),
    "zero_exponent": (3, -1), "run": (2, 4, 1), "promote_every": (64, 128),
}  # fmt: skip


def result(machine: lp.Accumulator, codes: np.ndarray, scales: dict[str, Any]) -> bytes:
    fmt = "e2m1fn" if scales else "e5m2"
    d = lp.mma(codes, codes[::-1], accumulator=machine, a_format=fmt, b_format=fmt, **scales)
    return d.astype(np.float32).tobytes()


@pytest.mark.parametrize("name", list(kinds))
def test_fields_that_decide_bits(name: str) -> None:
    base = next(m for m in (lp.accumulators[n] for n in lp.accumulators) if m.kind == name and m.output != FLOAT64)
    base = base.with_(inputs=())
    rng = np.random.default_rng(3)
    scales = {}
    if base.scale_format is not None:
        shape = (12, 256 // base.scale_block)
        scales = {side: rng.integers(0, 0x7E, shape).astype(np.uint8) for side in ("a_scale", "b_scale")}
    codes = rng.integers(0, 16 if scales else 0x4C, (12, 256), dtype=np.uint8)  # some float16 sums stay finite
    codes |= (rng.integers(0, 2, codes.shape) << 7).astype(np.uint8) if not scales else np.uint8(0)
    codes[::3] = np.where(rng.random((4, 256)) < 0.8, 0, codes[::3])
    own = result(base, codes, scales)
    for field, values in OTHERS.items():
        different = []
        for value in values:
            try:
                if (machine := base.with_(**{field: value})) != base.with_(**{field: getattr(base, field)}):
                    different.append(result(machine, codes, scales) != own)
            except ValueError:  # fields that do not go together
                continue
        if not different and field == "output":  # the other is float64, of other operands
            continue
        assert any(different) == (field in kinds[name].fields), f"{name}: {field}"
