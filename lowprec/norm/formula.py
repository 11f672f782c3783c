"""Formulas of float32 values, in which each operation is rounded; a value is known, or has two bounds."""

from __future__ import annotations

import ast
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..order.exact import fused_multiply_add

Floats = NDArray[np.float32]
_BINARY: dict[type[ast.operator], Callable[[Floats, Floats], Floats]] = {
    ast.Add: np.add, ast.Sub: np.subtract, ast.Mult: np.multiply, ast.Div: np.divide,
}  # fmt: skip


class Span(NamedTuple):
    """Smallest and largest value that an expression may have; both are the same array if the value is known."""

    low: Floats
    high: Floats

    @classmethod
    def of(cls, x: Floats) -> Span:
        """Return the span of a known value."""
        return cls(x, x)

    @classmethod
    def around(cls, values: Sequence[Floats]) -> Span:
        """Return the span of an expression's possible values; it is unbounded where only some of these are NaN."""
        if len(values) == 1:
            return cls.of(values[0])
        nan = np.isnan(np.broadcast_arrays(*values))
        low, high = functools.reduce(np.minimum, values), functools.reduce(np.maximum, values)
        mixed = nan.any(axis=0) & ~nan.all(axis=0)
        return cls(np.where(mixed, -np.inf, low).astype(np.float32), np.where(mixed, np.inf, high).astype(np.float32))

    @property
    def ends(self) -> tuple[Floats, ...]:
        """The bounds and the value between them that is closest to 0, or the value if it is known.

        Where a bound is infinite, the third value shows what the bounds hide: 0 * inf is NaN, 0 times a number is not.
        """
        if self.low is self.high:
            return self[:1]
        return self.low, self.high, np.clip(np.zeros_like(self.low), self.low, self.high)


Function = Callable[..., Span]


def monotone(function: Callable[..., Floats]) -> Function:
    """Extend a function to spans; it must be monotonic in each argument while the others are fixed."""

    def of_spans(*spans: Span) -> Span:
        return Span.around([function(*values) for values in itertools.product(*(span.ends for span in spans))])

    return of_spans


def bilinear(function: Callable[[Floats, Floats], Floats]) -> Function:
    """Extend a sum of products to spans: the smallest products of elements are added, and the largest ones."""

    def of_spans(a: Span, b: Span) -> Span:
        pairs = [np.broadcast_arrays(*pair) for pair in itertools.product(a.ends, b.ends)]
        if len(pairs) == 1:
            return Span.of(function(a.low, b.low))
        left, right = map(np.stack, zip(*pairs, strict=True))
        products = left.astype(np.float64) * right  # exact
        nan = np.isnan(products)
        mixed, found = nan.any(axis=0) & ~nan.all(axis=0), []
        for choose, limit in ((np.argmin, -np.inf), (np.argmax, np.inf)):
            at = choose(products, axis=0)[None]
            x, y = (np.take_along_axis(each, at, 0)[0] for each in (left, right))
            found.append(function(np.where(mixed, np.float32(limit), x), np.where(mixed, np.float32(1), y)))
        return Span.around(found)

    return of_spans


def _divide(a: Span, b: Span) -> Span:
    found = monotone(np.divide)(a, b)
    if b.low is b.high:
        return found
    across = (b.low <= 0) & (b.high >= 0)  # between such bounds, a quotient has a pole
    return Span(
        np.where(across, np.float32(-np.inf), found.low), np.where(across, np.float32(np.inf), found.high)
    )  # fmt: skip


#: Functions available in every formula; each rounds its result once.
FUNCTIONS: dict[str, Function] = {
    "fma": monotone(lambda *x: fused_multiply_add(*np.broadcast_arrays(*x))),
    "sqrt": monotone(np.sqrt),
    "max": monotone(lambda x: x.max(axis=-1, keepdims=True)),
}


class Assignment(NamedTuple):
    """Expression, and the names to which its values are assigned."""

    names: tuple[str, ...]
    value: ast.expr


_ALLOWED = (
    ast.Assign, ast.BinOp, ast.UnaryOp, ast.USub, ast.Call, ast.Name, ast.Constant, ast.Tuple, ast.expr_context,
    *_BINARY,
)  # fmt: skip
_ARGUMENTS = {"fma": 3, "dot": 2, "dot_rows": 2}  # of the other functions: 1


def _is_allowed(node: ast.AST) -> bool:
    return isinstance(node, _ALLOWED) and (not isinstance(node, ast.Constant) or type(node.value) in (int, float))


def _is_plain(line: ast.Assign) -> bool:
    """Return whether a line assigns one expression, which is not a tuple, to a name or to several names."""
    parts = getattr(line.targets[0], "elts", line.targets)
    return (
        len(line.targets) == 1
        and all(isinstance(part, ast.Name) for part in parts)
        and not any(isinstance(node, ast.Tuple) for node in ast.walk(line.value))
    )


@functools.cache
def parse(caller: str, text: str) -> tuple[Assignment, ...]:
    """Return the assignments of formulas, one per line.

    Raises
    ------
    ValueError
        If a line is not an assignment of an expression of ``+ - * /``, calls, names and numbers.
    """
    try:
        found = ast.parse(text).body
    except SyntaxError as error:
        raise ValueError(f"{caller}: formulas must be assignments, got {error.text!r}") from None
    lines = []
    for line in found:
        if not isinstance(line, ast.Assign) or not _is_plain(line) or not all(map(_is_allowed, ast.walk(line))):
            raise ValueError(
                f"{caller}: formulas must be assignments of + - * /, calls, names and numbers, got "
                f"{ast.unparse(line)!r}"
            )
        target = line.targets[0]
        parts = target.elts if isinstance(target, ast.Tuple) else [target]
        lines.append(Assignment(tuple(map(ast.unparse, parts)), line.value))
    return tuple(lines)


def evaluate(
    caller: str, text: str, values: Mapping[str, Span], functions: Mapping[str, Callable[..., Any]]
) -> dict[str, Span]:
    """Return the values of all names after the formulas are evaluated in turn.

    Raises
    ------
    ValueError
        If a formula is malformed, or uses a name or a function that is not defined.
    """
    known = dict(values)

    def value(node: ast.expr) -> Span:
        found = values_of(node)
        if len(found) != 1:
            raise ValueError(f"{caller}: moments must be assigned to two names, got {ast.unparse(node)!r}")
        return found[0]

    def values_of(node: ast.expr) -> tuple[Span, ...]:
        if isinstance(node, ast.Constant):
            return (Span.of(np.full((1, 1), node.value, np.float32)),)
        if isinstance(node, ast.Name):
            if node.id not in known:
                raise ValueError(f"{caller}: names must be {', '.join(known)}, got {node.id!r}")
            return (known[node.id],)
        if isinstance(node, ast.UnaryOp):
            return (monotone(np.negative)(value(node.operand)),)
        if isinstance(node, ast.BinOp):
            a, b = value(node.left), value(node.right)
            return (_divide(a, b) if isinstance(node.op, ast.Div) else monotone(_BINARY[type(node.op)])(a, b),)
        assert isinstance(node, ast.Call)
        name = ast.unparse(node.func)
        if name not in functions:
            raise ValueError(f"{caller}: functions must be {', '.join(functions)}, got {name!r}")
        if len(node.args) != (count := _ARGUMENTS.get(name, 1)):
            raise ValueError(f"{caller}: number of arguments of {name} must be {count}, got {ast.unparse(node)!r}")
        found = functions[name](*map(value, node.args))
        return (found,) if isinstance(found, Span) else found

    for names, expression in parse(caller, text):
        found = values_of(expression)
        if len(names) != len(found):
            raise ValueError(
                f"{caller}: names assigned by {ast.unparse(expression)} must be {len(found)}, got {', '.join(names)}"
            )
        known.update(zip(names, found, strict=True))
    return known
