"""The board as a Markdown page."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Mapping
from typing import Any

from ..format.catalogue import formats
from ..scaling.quantizer import quantizers
from .adapters import harness
from .calculation import calculation, number, short
from .causes import CAUSES
from .environments import packages

Cell = Mapping[str, Any]


def _table(header: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    header = list(header)
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in lines)


def _equal(cell: Cell) -> str:
    """Return the verdict of a cell, with the numbers of inputs."""
    if "error" in cell:
        return f"could not run: {cell['error']}"
    compared, differ = cell["compared"], cell["differ"]
    unit = "values" if cell["inputs"].startswith(("casts", "codes")) else "blocks"
    total = sum(compared.values())
    wrong = sum(differ[name] for name in compared)
    if not wrong and not differ["zero_signs"]:
        return f"equal on {total:,} {unit}"
    signs = f", {differ['zero_signs']:,} signs of zeros" if differ["zero_signs"] else ""
    return f"{wrong:,} of {total:,} {unit} differ{signs}"


def _counts(cell: Cell) -> list[str]:
    """Return differences of each group of inputs with its size."""
    if "error" in cell:
        return ["", "", ""]
    return [f"{cell['differ'][name]:,} of {n:,}" if n else "" for name, n in cell["compared"].items()]


def _ours(cell: Cell) -> str:
    """Return lowprec's call on `x`."""
    options = "".join(f", {name}={value!r}" for name, value in cell["options"].items())
    if cell["inputs"].startswith("casts"):
        return f'lp.encode(x, "{cell["entry"]}"{options})'
    if cell["inputs"].startswith("codes"):
        return f'lp.decode(x, "{cell["entry"]}")'
    changes = f".with_({options[2:]})" if options else ""
    return f'lp.quantize(x, lp.quantizers["{cell["entry"]}"]{changes})'


def _input(cell: Cell, example: Mapping[str, Any]) -> str:
    """Return lines that make an input."""
    kind, _, name = cell["inputs"].partition("/")
    bits = example.get("x")
    if kind == "codes":
        return f"x = np.array({bits}, np.{formats[name].code_dtype})"
    if kind == "casts":
        return f"x = np.array([{bits[0]}], np.uint32).view(np.float32)  # {short(number(bits[0]))}"  # type: ignore[index]
    if bits is None:
        return f'x = inputs("{cell["inputs"]}")[{example["source"]}]  # from lowprec.board.inputs import inputs'
    shape = {"tensors": (16, 64), "tiles": (128, 128)}.get(kind, (1, int(name or 0)))
    width = math.prod(shape)
    words = [int(word, 16) for word in bits.values()]
    if len(words) == width and len(set(words)) == 1:
        made = f"x = np.full({shape}, 0x{words[0]:08X}, np.uint32).view(np.float32)"
    else:
        places = ", ".join(f"{at}: {word}" for at, word in bits.items())
        made = f"x = np.zeros({shape}, np.uint32)\nfor i, bits in {{{places}}}.items():\n    x.flat[i] = bits\n"
        made += "x = x.view(np.float32)"
    return made


def _example(cell: Cell, example: Mapping[str, Any]) -> list[str]:
    """Return the lines of one example: input, calls with answers, and the calculation."""
    theirs, ours = example["theirs"], example["ours"]
    both = ["code {code}" + (", scale {scale}" if "scale" in theirs else "") for _ in range(2)]
    at = f" at element {example['at']}" if "at" in example else ""
    q = None if cell["inputs"].startswith(("casts", "codes")) else quantizers[cell["entry"]].with_(**cell["options"])
    entry = formats[cell["entry"]] if cell["inputs"].startswith("casts") else None
    known = "" if cell["inputs"].startswith("codes") else calculation(
        entry, q.format if q else None, q.scale_format.name if q else "", dict(example)
    )  # fmt: skip
    return [
        f"{example['region'].capitalize()}{at}: theirs {both[0].format(**theirs)}; ours {both[1].format(**ours)}."
        + (f" {known}." if known else ""),
        "",
        "```python",
        _input(cell, example),
        f"{cell['call']}  # {cell['package']}",
        f"{_ours(cell)}  # lowprec",
        "```",
        "",
    ]


def _package(name: str, facts: Mapping[str, Any], cells: list[Cell]) -> list[str]:
    versions = ", ".join(f"{other} {version}" for other, version in facts.get("versions", {}).items())
    host = facts.get("host", {})
    lines = [f"## {name}", ""]
    if "error" in facts:
        return [*lines, f"Could not run: {facts['error']}.", ""]
    module = packages()[name]
    functions = [function for _, function in inspect.getmembers(module, inspect.isfunction)
                 if function.__module__ == module.__name__ and not function.__name__.startswith("_")]  # fmt: skip
    needs = " ".join(f"'{need}'" for need in module.NEEDS)
    lines += [
        f"{(module.__doc__ or '').strip()}", "",
        f"{versions}; Python {host['python']}, {host['cpu']}, {host['date']}. `pip install {needs}`", "",
        "<details><summary>The functions that are called</summary>", "", "```python", "import numpy as np", "",
        "\n".join(inspect.getsource(function) for function in functions).replace(" -> Answer", "").strip(), "```", "",
        "</details>", "",
        _table(
            ("operation", "lowprec", "result", "all bfloat16", "adversarial", "Inf, NaN", "causes", "issue"),
            ([cell["operation"], f"`{cell['entry']}`" + "".join(f", {k}={v}" for k, v in cell["options"].items()),
              _equal(cell), *_counts(cell), ", ".join(cell["causes"]), _link(cell["issue"])] for cell in cells),
        ), "",
    ]  # fmt: skip
    for cell in cells:
        if cell.get("smallest"):
            lines += [f"### {name}: {cell['operation']}", ""]
            for example in cell["smallest"]:
                lines += _example(cell, example)
    return lines


def _link(issue: str) -> str:
    if not issue:
        return ""
    repository, _, at = issue.partition("#")
    return f"[{issue}](https://github.com/{repository}/issues/{at})"


def page(board: Mapping[str, Any]) -> str:
    """Return the page of a board.

    Parameters
    ----------
    board : mapping
        Content of board.json.
    """
    cells: list[Cell] = board["cells"]
    ran = [cell for cell in cells if "error" not in cell]
    total = sum(sum(cell["compared"].values()) for cell in ran)
    asked = sum(cell["oracle"].get("values", 0) for cell in ran)
    equal = [cell for cell in ran if not cell["smallest"]]
    lines = [
        "# Conformance board", "",
        "Generated by `lowprec board`. Released packages on a CPU, compared with lowprec bit for bit:",
        f"{len(board['packages'])} packages, {len(cells)} cells, {len(ran)} of which ran, {total:,} values and blocks.",
        f"{len(equal)} cells are equal on everything, signs of zeros and NaN included. The oracle computed {asked:,} "
        f"values of these cells, among them every input that is shown: "
        f"{sum(cell['oracle'].get('differ', 0) for cell in ran)} differ from lowprec.", "",
        "A cell shows a difference between two rules. Which of them is right depends on the package's documentation or",
        "on a standard; a cause names such a document where there is one. Two counts are given for every cell: all",
        "bfloat16 values (for blocks: all 32,512 normal amaxes), which bfloat16 weights cannot leave, and adversarial",
        "inputs, next to thresholds. Signs of zeros are counted separately. A CPU's result does not imply a GPU's:",
        "`tensor / 6.0` is a division on the CPU and a product with 1/6 in CUDA.", "",
        "To reproduce a difference: install the package, paste the functions of its section, then the lines of the",
        "example. The answer is a dictionary: `codes` one per element, `scale` a float32 that multiplies them,",
        "`scale_codes` its code. Adapters that unpack four-bit codes use this function, too:", "",
        "```python", "from typing import Any", "", "import numpy as np", "",
        "import lowprec as lp  # for the second call only", "",
        inspect.getsource(harness.nibbles).strip(), "```", "",
        "## Packages", "",
        _table(("package", "version", "date", "cells", "equal", "could not run"), _summary(board)), "",
        "## Causes", "",
    ]  # fmt: skip
    for letter, cause in CAUSES.items():
        who = sorted({f"{cell['package']}" for cell in ran if letter in cell["causes"] and cell["smallest"]})
        if who:
            lines += [f"**{letter}: {cause.title}** ({', '.join(who)}). {cause.rule[0].upper()}{cause.rule[1:]}."]
            lines += [f"By hand: {cause.calculation}."] * bool(cause.calculation)
            lines += [f"Decided by {cause.decides}."] * bool(cause.decides)
            lines.append("")
    for name, facts in board["packages"].items():
        lines += _package(name, facts, [cell for cell in cells if cell["package"] == name])
    return "\n".join(lines).rstrip() + "\n"


def _summary(board: Mapping[str, Any]) -> Iterable[list[object]]:
    for name, facts in board["packages"].items():
        own = [cell for cell in board["cells"] if cell["package"] == name]
        ran = [cell for cell in own if "error" not in cell]
        equal = sum(not cell["smallest"] for cell in ran)
        version = facts.get("versions", {}).get(name, "")
        yield [name, version, facts.get("host", {}).get("date", ""), len(own), equal, len(own) - len(ran)]
