"""Text and drawings of orders: elements of constant stride that are added one by one are shown as a slice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .summation_tree import SumNode
from .summation_tree import drawing as tree_drawing

_BOXES = 400  # largest number of boxes in a legible drawing
_LEAST_SLICE = 3  # smallest number of elements in a slice


class _Rounded(int):
    """Index of an element with a product that is rounded before it is added."""


class _Sum(NamedTuple):
    """Terms that are added one by one from left to right, or in one operation."""

    terms: tuple[_Sum | str, ...]
    at_once: bool = False


def expression(n: int, steps: Sequence[Sequence[int]]) -> str:
    """Return an order as text.

    ``sum(x[0:4], x[8:12])`` adds elements one by one, from left to right; ``+`` adds the results on both sides;
    ``fused(...)`` adds its terms in one operation; ``round(x[4:8])`` marks rounded products among fused ones.

    Examples
    --------
    >>> expression(6, [(0, 1), (6, 2), (7, 3), (4, 5), (8, 9)])
    'sum(x[0:4]) + (x[4] + x[5])'
    """
    outline = _outline(n, steps)
    return outline if isinstance(outline, str) else _text(outline)


def _text(node: _Sum | str) -> str:
    if isinstance(node, str):
        return node
    if node.at_once:
        return f"fused({', '.join(map(_text, node.terms))})"
    head, elements = "", list[str]()
    for term in node.terms:
        if isinstance(term, str):
            elements.append(term)
            continue
        left = _one_by_one(head, elements)
        head = f"{_bracketed(left)} + {_bracketed(_text(term))}" if left else _text(term)
        elements = []
    return _one_by_one(head, elements)


def _one_by_one(head: str, elements: Sequence[str]) -> str:
    """Return, as text, a partial sum to which elements are added one by one."""
    terms = [head] * bool(head) + list(elements)
    if not elements or (len(terms) == 1 and ":" not in terms[0]):
        return "".join(terms)
    if len(terms) == 2 and not any(":" in element for element in elements):
        return f"{_bracketed(terms[0])} + {terms[1]}"
    return f"sum({', '.join(terms)})"


def _bracketed(text: str) -> str:
    depth = 0
    for char in text:
        depth += (char in "([") - (char in ")]")
        if char == " " and depth == 0:
            return f"({text})"
    return text


def drawing(n: int, steps: Sequence[Sequence[int]], title: str) -> str:
    """Return an order as an SVG.

    Raises
    ------
    ValueError
        If the drawing would have more than 400 boxes.
    """
    outline = _outline(n, steps)
    boxes = _boxes(outline)
    if boxes > _BOXES:
        raise ValueError(f"drawing: order must have at most {_BOXES} boxes, got {boxes}; print it instead")
    tree = _tree(outline)
    return tree_drawing(tree if isinstance(tree, SumNode) else SumNode(("result",), (tree,)), title)


def _tree(node: _Sum | str) -> SumNode | str:
    if isinstance(node, str):
        return node
    does = "add in one operation" if node.at_once else "add" if len(node.terms) == 2 else "add from the top"
    return SumNode((does,), tuple(map(_tree, node.terms)))


def _boxes(node: _Sum | str) -> int:
    return 1 if isinstance(node, str) else 1 + sum(map(_boxes, node.terms))


def _outline(n: int, steps: Sequence[Sequence[int]]) -> _Sum | str:
    """Return nested sums; each begins with the partial sum on the longest path of its subtree.

    The recursion follows only branches off the longest paths, so its depth is at most log2(n).
    """
    size = [1] * n
    for terms in steps:
        size.append(sum(size[term] for term in terms))

    def term_of(node: int) -> int | _Sum | str:
        if node < n:
            return node
        return _Rounded(steps[node - n][0]) if len(steps[node - n]) == 1 else outline(node)

    def outline(node: int) -> _Sum | str:
        if node >= n and len(steps[node - n]) == 1:
            return _slices([_Rounded(steps[node - n][0])], n)[0]
        others: list[int] = []
        while node >= n and len(steps[node - n]) == 2:
            first, second = steps[node - n]
            if size[second] > size[first]:
                first, second = second, first
            others.append(second)
            node = first
        head: int | _Sum | str = node
        is_fused = node >= n and len(steps[node - n]) == 1
        if is_fused:  # the first product is always rounded, and is not marked before products that are not
            head = steps[node - n][0] if others and others[-1] < n else _Rounded(steps[node - n][0])
        elif node >= n:
            head = _Sum(tuple(_slices([term_of(t) for t in steps[node - n]], n)), at_once=True)
        terms = [head, *(term_of(t) for t in reversed(others))]
        if not is_fused and _steps_back(terms):  # the first two elements in either order
            terms[:2] = terms[1::-1]
        parts = _slices(terms, n)
        return parts[0] if terms[0] == parts[0] else _Sum(tuple(parts))

    return outline(n + len(steps) - 1)


def _steps_back(terms: Sequence[int | _Sum | str]) -> bool:
    first, second, third = (*terms, "", "", "")[:3]
    if not (isinstance(first, int) and isinstance(second, int) and isinstance(third, int)):
        return False
    return first - second == third - first


def _slices(terms: Sequence[int | _Sum | str], n: int) -> list[_Sum | str]:
    """Return terms with elements as ``x[i]``, and three or more of constant stride as a slice."""
    parts: list[_Sum | str] = []
    at = 0
    while at < len(terms):
        first = terms[at]
        if not isinstance(first, int):
            parts.append(first)
            at += 1
            continue
        run = [first]
        for place in range(at + 1, len(terms)):
            term = terms[place]
            if not isinstance(term, int) or type(term) is not type(first):
                break
            if len(run) > 1 and term - run[-1] != run[1] - run[0]:
                break
            run.append(term)
        text = f"x[{first}]"
        if len(run) >= _LEAST_SLICE:
            stride = run[1] - run[0]
            stop = min(run[-1] + stride, n) if stride > 0 else run[-1] - 1
            text = f"x[{first}:{stop if stop >= 0 else ''}{'' if stride == 1 else f':{stride}'}]"
        parts.append(f"round({text})" if isinstance(first, _Rounded) else text)
        at += len(run) if len(run) >= _LEAST_SLICE else 1
    return parts
