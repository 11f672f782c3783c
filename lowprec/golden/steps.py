"""C statements for the sums of an instruction's summation tree; each sum is exact and then rounded once."""

from __future__ import annotations

from collections.abc import Iterator

from ..order.summation_tree import KindSpecific, ProductLeaf, SingleRounding, SumNode
from ..tensorcore.accumulator import Accumulator
from ..tensorcore.kinds.exact import ExactSum
from ..tensorcore.kinds.ibm import ChunkedSum

_ROUNDINGS = {"nearest": "TO_NEAREST", "odd": "TO_ODD"}
_FLUSHES = {"": "KEEP", "x86": "FLUSH_UNBOUNDED", "cdna2": "FLUSH_AFTER", "odd": "FLUSH_BEFORE"}


def roundings(accumulator: Accumulator) -> Iterator[SingleRounding]:
    """Yield the roundings of an instruction's sums."""
    for node, _ in accumulator.instruction("C", 0).listed():
        if isinstance(node, SumNode) and isinstance(node.how, SingleRounding):
            yield node.how


def steps(name: str, accumulator: Accumulator) -> dict[str, object]:
    """Return the template fields of an instruction: its C statements, and the number of its sums.

    Products beyond `k` are +0. In a sum that flushes subnormals, every term is flushed before it is added. x86 has one
    exception, its fused multiply-add: a product that is added to a sum, not to another product, stays exact.
    """
    lines: list[str] = []
    items = accumulator.instruction("C", 0).listed()
    results: dict[int, str] = {}  # C names of the sums, by position

    def terms(node: SumNode, positions: list[int]) -> list[str]:
        """Return the statements that add a node's terms."""
        how = node.how
        flush = f"{name}_{_FLUSHES[how.flushes]}" if isinstance(how, SingleRounding) else f"{name}_KEEP"
        alone = (
            isinstance(how, SingleRounding)
            and how.flushes == "x86"
            and not all(isinstance(item, ProductLeaf) for item in node.of)
        )
        own: list[str] = []
        for item, position in zip(node.of, positions, strict=True):
            if isinstance(item, str):
                own.append(f"{name}_add_number(&s, {'c' if item == 'C' else '0'}, {flush});")
            elif isinstance(item, ProductLeaf):
                stop = "k" if isinstance(accumulator, ExactSum) else str(item.ks[-1] + 1)
                flush_product = f"{name}_KEEP" if alone else flush
                call = f"{name}_add_product(&s, a, b, k, {{}}, {item.exponent}, {flush_product});"
                if stop != "k" and len(item.ks) == 1:
                    own.append(call.format(item.ks[0]))
                else:
                    own.append(f"for (i = {item.ks[0]}; i < {stop}; i++) {call.format('i')}")
            elif isinstance(item.how, KindSpecific):
                own.append(f"{name}_add_aligned(&s, a, b, k);")
            else:
                own.append(f"{name}_add_number(&s, {results[position]}, {flush});")
        return own

    for i, (node, positions) in enumerate(items):
        if not isinstance(node, SumNode) or isinstance(node.how, KindSpecific):
            continue
        assert isinstance(node.how, SingleRounding)
        how, results[i] = node.how, f"r[{len(results)}]"
        lines.extend([f"s = {name}_empty();", *terms(node, positions)])
        zero, saturates = int(how.zeros == "+0"), int(how.saturates)
        way = f"{name}_{_ROUNDINGS[how.rounding]}, {name}_{_FLUSHES[how.flushes]}"
        lines.append(f"{results[i]} = {name}_round(&s, {way}, {zero}, {saturates}); /* {', '.join(node.does)} */")
    loops = any(line.startswith("for") for line in lines)
    body = "\n".join(
        f"  {line}" for line in (*(["int i;"] if loops else []), *lines, f"return {results[len(items) - 1]};")
    )
    return {"STEPS": body, "SUMS": len(results)}


def chunks(name: str, accumulator: ChunkedSum) -> dict[str, object]:
    """Return the template fields of a chunk: the format of its sum, and the sum's addition to C."""
    fmt, running = accumulator.chunk_format, accumulator.rounded_sum == "running"
    add = [f"s = {name}_empty();", *(f"{name}_add_number(&s, {x}, {name}_KEEP);" for x in ("c", "part"))]
    add.append(f"return {name}_round(&s, {name}_TO_NEAREST, {name}_KEEP, 0, 0);")
    return {
        "CHUNK_FRACTION": fmt.mantissa_bits, "CHUNK_EMIN": fmt.emin, "CHUNK_MAX": hex(fmt.max_code),
        "CHUNK_SUBNORMALS": int(fmt.subnormals), "CHUNK_START": "c" if running else "0",
        "CHUNK_RETURN": "\n".join(f"  {line}" for line in (["return part;"] if running else add)),
    }  # fmt: skip
