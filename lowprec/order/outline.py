"""Text and drawings of orders: elements of constant stride that are added one by one are shown as a slice."""

from __future__ import annotations

from collections.abc import Sequence

from .summation_tree import ProductLeaf, SumNode
from .summation_tree import drawing as tree_drawing

_BOXES = 400  # largest number of boxes in a legible drawing
_LEAST_SLICE = 3  # smallest number of elements in a slice


class _Rounded(int):
    """Index of an element with a product that is rounded before it is added."""


_AT_ONCE = ("add in one operation",)


def _sum(terms: Sequence[SumNode | str], at_once: bool = False) -> SumNode:
    """Return the sum of terms that are added one by one from left to right, or in one operation."""
    return SumNode(_AT_ONCE if at_once else ("add",) if len(terms) == 2 else ("add from the top",), tuple(terms))


def expression(n: int, steps: Sequence[Sequence[int]]) -> str:
    """Return an order as text.

    ``sum(x[0:4], x[8:12])`` adds elements one by one, from left to right; ``+`` adds the results on both sides;
    ``fused(...)`` adds its terms in one operation; ``round(x[4:8])`` marks rounded products among fused ones.

    Examples
    --------
    >>> expression(6, [(0, 1), (6, 2), (7, 3), (4, 5), (8, 9)])
    'sum(x[0:4]) + (x[4] + x[5])'
    """
    return _text(_outline(n, steps))


def _text(node: SumNode | ProductLeaf | str) -> str:
    if not isinstance(node, SumNode):
        return str(node)
    if node.does is _AT_ONCE:
        return f"fused({', '.join(map(_text, node.of))})"
    head, elements = "", list[str]()
    for term in node.of:
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
    tree = outline if isinstance(outline, SumNode) else SumNode(("result",), (outline,))
    if (boxes := len(tree.listed())) > _BOXES:
        raise ValueError(f"drawing: order must have at most {_BOXES} boxes, got {boxes}; print it instead")
    return tree_drawing(tree, title)


def _outline(n: int, steps: Sequence[Sequence[int]]) -> SumNode | str:
    """Return nested sums; each begins with the partial sum on the longest path of its subtree.

    The recursion follows only branches off the longest paths, so its depth is at most log2(n).
    """
    size = [1] * n
    for terms in steps:
        size.append(sum(size[term] for term in terms))

    def term_of(node: int) -> int | SumNode | str:
        if node < n:
            return node
        return _Rounded(steps[node - n][0]) if len(steps[node - n]) == 1 else outline(node)

    def outline(node: int) -> SumNode | str:
        if node >= n and len(steps[node - n]) == 1:
            return _slices([_Rounded(steps[node - n][0])], n)[0]
        others: list[int] = []
        while node >= n and len(steps[node - n]) == 2:
            first, second = steps[node - n]
            if size[second] > size[first]:
                first, second = second, first
            others.append(second)
            node = first
        head: int | SumNode | str = node
        is_fused = node >= n and len(steps[node - n]) == 1
        if is_fused:  # the first product is always rounded, and is not marked before products that are not
            head = steps[node - n][0] if others and others[-1] < n else _Rounded(steps[node - n][0])
        elif node >= n:
            head = _sum(_slices([term_of(t) for t in steps[node - n]], n), at_once=True)
        terms = [head, *(term_of(t) for t in reversed(others))]
        if not is_fused and _steps_back(terms):  # the first two elements in either order
            terms[:2] = terms[1::-1]
        parts = _slices(terms, n)
        return parts[0] if terms[0] == parts[0] else _sum(parts)

    return outline(n + len(steps) - 1)


def _steps_back(terms: Sequence[int | SumNode | str]) -> bool:
    first = [term for term in terms[:3] if isinstance(term, int)]
    return len(first) == 3 and first[0] - first[1] == first[2] - first[0]


def _slices(terms: Sequence[int | SumNode | str], n: int) -> list[SumNode | str]:
    """Return terms with elements as ``x[i]``, and three or more of constant stride as a slice."""
    parts: list[SumNode | str] = []
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
            if not isinstance(term, type(first)) or (len(run) > 1 and term - run[-1] != run[1] - run[0]):
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
