"""Trees of an accumulator's summation order, for drawings, for a test that evaluates them, and for `identify`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .._markup import svg_box, svg_document, svg_text

_LINE, _GAP, _BETWEEN = 15, 12, 46  # heights of a text line, of gaps between boxes, and of gaps between columns
_LETTER = 6.6  # width of a letter


@dataclass(frozen=True)
class ProductLeaf:
    """Products that are added in one operation: their order does not affect its bits.

    Attributes
    ----------
    ks : tuple of int
        Indices of the products along K.
    exponent : int
        Power of two that multiplies the products.
    """

    ks: tuple[int, ...]
    exponent: int = 0

    @property
    def words(self) -> tuple[str, ...]:
        """Label in a drawing."""
        first, last = self.ks[0], self.ks[-1]
        if len(self.ks) == 1:
            return (f"a[{first}] b[{first}]",)
        if self.ks == tuple(range(first, last + 1)):
            return (f"{len(self.ks)} products", f"k = {first} to {last}")
        shown = ", ".join(map(str, self.ks[:4]))
        return (f"{len(self.ks)} products", f"k = {shown} ... {last}")


@dataclass(frozen=True)
class SingleRounding:
    """Exact sum of the terms, rounded once.

    Attributes
    ----------
    output : str
        Format of the result.
    rounding : {"nearest", "odd", "truncate"}
        Rounding of the sum: to nearest even, to odd, or toward zero.
    flushes : {"", "x86", "cdna2", "odd"}
        Rule by which subnormal terms and results are flushed to zero.
    saturates : bool
        Whether a finite sum above the largest number gives that number.
    zeros : {"+0", "ieee"}
        Sign of a sum that is exactly zero: always plus, or minus if all terms are -0.
    """

    output: str = "float32"
    rounding: str = "nearest"
    flushes: str = ""
    saturates: bool = False
    zeros: str = "ieee"


@dataclass(frozen=True)
class AlignedAddition:
    """Sum of terms that are aligned to the largest exponent, truncated and added exactly; then the output is rounded.

    The attributes are those of an `Accumulator`, plus `operands`: the format to which operands are converted, or "".
    """

    fraction_bits: int
    align: str
    output: str
    zero_exponent: int | None
    operands: str = ""


@dataclass(frozen=True)
class KindSpecific:
    """Operation of one kind of accumulator, identified by its name and the numbers that affect the bits."""

    name: str
    numbers: tuple[int, ...]
    #: Whether two products of operands of up to 8 bits, plus +0, are rounded once to nearest.
    rounds_pairs: bool = False
    #: Fraction bits kept below the largest exponent; None: no such truncation.
    kept: int | None = None
    #: Operation for terms without bits below those; None: an exact sum.
    uncut: KindSpecific | None = None
    #: Whether only the first term, a float32 number, is truncated in this way.
    cuts_first: bool = False


@dataclass(frozen=True)
class SumNode:
    """Node of the tree: one hardware operation on its terms.

    Attributes
    ----------
    does : tuple of str
        Description of the operation, one line per step.
    of : tuple of SumNode, ProductLeaf or str
        Terms: sums, products, and C and +0 by name.
    how : SingleRounding, AlignedAddition or KindSpecific
        The operation as data.
    """

    does: tuple[str, ...]
    of: tuple[SumNode | ProductLeaf | str, ...]
    how: SingleRounding | AlignedAddition | KindSpecific = SingleRounding()

    def listed(self) -> list[tuple[SumNode | ProductLeaf | str, list[int]]]:
        """Return all nodes and leaves, each after its terms and with their positions; without recursion."""
        found: list[tuple[SumNode | ProductLeaf | str, list[int]]] = []
        frames: list[tuple[SumNode | ProductLeaf | str, Iterator[SumNode | ProductLeaf | str], list[int]]]
        frames = [(self, iter(self.of), [])]
        while frames:
            item, rest, positions = frames[-1]
            if (inner := next(rest, None)) is not None:
                frames.append((inner, iter(inner.of if isinstance(inner, SumNode) else ()), []))
                continue
            frames.pop()
            if frames:
                frames[-1][2].append(len(found))
            found.append((item, positions))
        return found

    def products(self) -> Iterator[ProductLeaf]:
        """Yield the products among the terms, in order of addition."""
        return (item for item, _ in self.listed() if isinstance(item, ProductLeaf))


def drawing(order: SumNode, title: str) -> str:
    """Return a drawing of a tree as SVG, with the terms on the left and the result on the right.

    Examples
    --------
    >>> drawing(SumNode(("add",), ("C", ProductLeaf((0,)))), "two terms")[:4]
    '<svg'
    """
    items = order.listed()
    places, heights, rights, middles = list[int](), list[float](), list[float](), list[float]()
    for item, terms in items:
        places.append(1 + max(places[i] for i in terms) if terms else 0)
        heights.append(max(sum(heights[i] for i in terms) + _GAP * (len(terms) - 1), _height(item)))
    widths = [0.0] * (places[-1] + 1)
    for place, (item, _) in zip(places, items, strict=True):
        widths[place] = max(widths[place], _LETTER * max(map(len, _words(item))) + 14)
    tops = [4.0] * len(items)
    for i in reversed(range(len(items))):
        below = tops[i]
        for term in items[i][1]:
            tops[term] = below
            below += heights[term] + _GAP
    parts: list[str] = []
    for i, (item, terms) in enumerate(items):
        left = sum(widths[: places[i]]) + _BETWEEN * places[i] + 4
        width, own = widths[places[i]], _height(item)
        middle = (middles[terms[0]] + middles[terms[-1]]) / 2 if terms else tops[i] + 4 + own / 2
        rights.append(left + width)
        middles.append(middle)
        for right, at in ((rights[term], middles[term]) for term in terms):
            bend = (right + left) / 2
            parts.append(f'<path class="line" d="M{right:.1f},{at:.1f} C{bend:.1f},{at:.1f} {bend:.1f},{middle:.1f} '
                         f'{left:.1f},{middle:.1f}"/>')  # fmt: skip
        kind = "box" if isinstance(item, SumNode) else "warm" if isinstance(item, str) else "in"
        parts.append(svg_box(left, middle - own / 2, width, own, kind))
        for j, line in enumerate(_words(item)):
            parts.append(svg_text(left + 7, middle - own / 2 + 15 + _LINE * j, line, "" if j == 0 else "small"))
    parts.sort(key=lambda part: not part.startswith("<path"))  # draw lines before boxes
    parts.append(svg_text(rights[-1] + 8, middles[-1] + 4, "= D", "bold"))
    return svg_document(parts, rights[-1] + 44, heights[-1] + 12, title)


def _words(item: SumNode | ProductLeaf | str) -> tuple[str, ...]:
    return (item,) if isinstance(item, str) else item.words if isinstance(item, ProductLeaf) else item.does


def _height(item: SumNode | ProductLeaf | str) -> float:
    return _LINE * len(_words(item)) + 8
