"""The page of the conformance board, from its record."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from importlib.resources import files
from string import Template
from types import ModuleType
from typing import Any

from ..cast.casts import decode
from ..format.catalogue import formats
from ..scaling.quantizer import quantizers
from .calculation import calculation, number, short
from .causes import CAUSES
from .environments import packages

Cell = Mapping[str, Any]
_PAGE = Template(files(__package__).joinpath("page.md").read_text(encoding="utf-8"))
_SECTION = Template("""## $name

$about

$versions; Python $python, $cpu, $date. `pip install $needs`

$table

$examples""")
_EXAMPLE = Template("""### $name: $title

Operation $operation$report. Theirs $theirs, ours $ours$by_hand.

```python
$code
```

Prints `$prints`. `$own` is lowprec's call.
""")


def _table(header: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    header = list(header)
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in lines)


def _result(cell: Cell) -> list[str]:
    """Return the verdict of a cell, its counts, its causes, and the simplest input with a difference."""
    if "error" in cell:
        return [f"could not run: {cell['error']}", *[""] * 5]
    compared, differ = cell["compared"], cell["differ"]
    total, causes = sum(compared.values()), Counter(cell["causes"]) + Counter({"?": cell["unexplained"]})
    counts = [f"{differ[name]:,} of {n:,}" if n else "" for name, n in compared.items()]
    verdict = f"{causes.total():,} of {total:,} differ" if causes else f"equal on {total:,}"
    first = cell["smallest"][0] if cell["smallest"] else None
    return [
        verdict, *counts, ", ".join(f"{label} {n:,}" for label, n in causes.items()),
        f"{_words(cell, first)}: {_answer(first['theirs'])} / {_answer(first['ours'])}" if first else "",
    ]  # fmt: skip


def _words(cell: Cell, example: Mapping[str, Any]) -> str:
    """Return a short form of an input: the value, or the largest magnitude of a block."""
    if "amax" in example:
        return f"amax {example['amax']}"
    return f"0x{example['x']['0']:X}" if "fill" not in example else "block"


def _code(answer: Mapping[str, str]) -> str:
    """Return an answer's code, or its value if the code has 32 bits."""
    return answer["code"] if len(answer["code"]) < 10 else short(number(answer["code"]))


def _answer(answer: Mapping[str, str]) -> str:
    return _code(answer) + (f", {short(number(answer['scale']))}" if "scale" in answer else "")


def _ours(cell: Cell) -> str:
    """Return the call of lowprec that corresponds to an operation, applied to `x`."""
    kind, _, name = cell["inputs"].partition("/")
    options = "".join(f", {key}={value!r}" for key, value in cell["options"].items())
    match kind:
        case "casts":
            return f'lp.encode(x, "{cell["entry"]}"{options})'
        case "codes":
            return f'lp.decode(x, "{cell["entry"]}")'
        case "nibbles":
            return f'lp.pack(lp.encode(x, "{cell["entry"]}"), 4)'
        case "hadamard":
            return f'lp.round_to(lp.hadamard(x{options}), "{cell["entry"]}")'
        case "products":
            addend = "".join(f", np.full((64, 8), np.float32({value!r}))" for value in cell["options"].values())
            formats_ = f'a_format="{name}", b_format="{name}"'
            return f'lp.mma(x[0, :64], x[0, 64:]{addend}, accumulator="{cell["entry"]}", {formats_})'
    changes = f".with_({options[2:]})" if options else ""
    return f'lp.quantize(x, lp.quantizers["{cell["entry"]}"]{changes})'


def _input(cell: Cell, example: Mapping[str, Any], copies: int) -> str:
    """Return lines of Python that create an input, with copies of a block."""
    kind, _, name = cell["inputs"].partition("/")
    words = example.get("x")
    if words is None:
        index = f"[{example['source']}]" if kind == "tensors" else f"[:{128 * (example['source'] // 128 + 1)}]"
        return f'from lowprec.board.inputs import inputs\n\nx = inputs("{cell["inputs"]}"){index}'
    if kind == "codes":
        return f"x = np.array([{words['0']}], np.{formats[name].code_dtype})"
    if kind == "casts":
        return f"x = np.full(64, 0x{words['0']:08X}, np.uint32).view(np.float32)"
    shapes = {"tensors": (16, 64), "products": (1, 72, 32), "nibbles": (1, 32)}
    shape, dtype = shapes.get(kind) or (copies, int(name)), "uint8" if kind == "products" else "uint32"
    made = f"x = np.full({shape}, 0x{example['fill']:X}, np.{dtype})"
    if words:
        places = ", ".join(f"{at}: 0x{word:08X}" for at, word in words.items())
        made += f"\nfor i, bits in {{{places}}}.items():\n    {'x[:, i]' if copies > 1 else 'x.flat[i]'} = bits"
    return made if kind == "products" else f"{made}\nx = x.view(np.float32)"


def snippet(module: ModuleType, cell: Cell, example: Mapping[str, Any]) -> str:
    """Return a program that shows the package's answer for an example: its function, the input, and a call."""
    name = cell["call"].partition("(")[0]
    needed, code = [getattr(module, name)], ""
    for function in needed:
        used = [getattr(module, word) for word in re.findall(r"\b(\w+)\(", inspect.getsource(function))
                if inspect.isfunction(getattr(module, word, None))]  # fmt: skip
        needed += [f for f in used if f not in needed]
        code = f"{inspect.getsource(function).rstrip()}\n\n\n{code}"
    code = code.replace("  # fmt: skip", "")
    code = re.sub(r"( -> [\w\[\], ]+)(?=:\n)", "", re.sub(r": (?:Any|Answer|str|bool|int|float)(?=[,) =])", "", code))
    key = "codes" if example["prints"].startswith("0x") else "values"
    parts = [f'{"hex" if key == "codes" else "float"}(np.ravel(y["{key}"])[{example["at"]}])']
    if "stored" in example:
        how = "hex" if example["stored"] == "scale_codes" else "float"
        parts.append(f'{how}(np.ravel(y["{example["stored"]}"])[{example["block"]}])')
    lines = [
        "import numpy as np",
        "",
        "",
        code.rstrip(),
        "",
        "",
        _input(cell, example, getattr(module, "COPIES", 1)),
        f"y = {cell['call']}",
    ]
    return "\n".join([*lines, f"print({', '.join(parts)})"])


def _example(module: ModuleType, cell: Cell, example: Mapping[str, Any]) -> str:
    """Return the section of one example: input, program, both answers, and the calculation."""
    label, package = example["cause"], cell["package"]
    causes = [CAUSES[letter] for letter in label.split("+") if letter in CAUSES]
    reports = [cause.links[package] for cause in causes if package in cause.links]
    documents = [cause.documents[package] for cause in causes if package in cause.documents]
    hand, value = _by_hand(cell, example), [short(number(example["value"]))] if "value" in example else []
    explanation = "".join(f". {text}" for text in [*([f"By hand: {hand}"] if hand else []), *documents])
    return _EXAMPLE.substitute(
        name=package, title=", ".join(f"{letter}, {CAUSES[letter].title}" for letter in label.split("+")
                                      if letter in CAUSES) or "not explained",
        operation=", x = ".join([cell["operation"], *value]),
        report="".join(f"; reported: {_link(text)}" for text in reports),
        theirs=_long(cell, example["theirs"]), ours=_long(cell, example["ours"]), by_hand=explanation,
        code=snippet(module, cell, example), prints=example["prints"], own=_ours(cell),
    )  # fmt: skip


def _long(cell: Cell, answer: Mapping[str, str]) -> str:
    """Return an answer as text, with the values of its code and its scale."""
    kind, text = cell["inputs"].partition("/")[0], f"`{_code(answer)}`"
    if len(answer["code"]) < 10 and kind != "nibbles":
        q = quantizers[cell["entry"]].with_(**cell["options"]) if "scale" in answer else None
        f = q.format if q is not None else formats[cell["entry"]]
        code = int(answer["code"], 16)
        text += f" ({short(decode(code, f))})" if code < 1 << f.bits else ""
    return text + (f" with scale {short(number(answer['scale']))}" if "scale" in answer else "")


def _by_hand(cell: Cell, example: Mapping[str, Any]) -> str:
    kind = cell["inputs"].partition("/")[0]
    if kind in ("blocks", "tiles", "tensors"):
        q = quantizers[cell["entry"]].with_(**cell["options"])
        return calculation(None, q.format, q.scale_format.name, dict(example))
    if kind == "casts":
        return calculation(formats[cell["entry"]], None, "", {"x": [f"0x{example['x']['0']:08X}"]})
    return ""


def _package(name: str, facts: Mapping[str, Any], cells: list[Cell]) -> str:
    if "error" in facts:
        return f"## {name}\n\nCould not run: {facts['error']}.\n"
    module, host = packages()[name], facts["host"]
    header = ("operation", "lowprec", "result", "all bfloat16", "adversarial", "Inf, NaN", "causes", "theirs / ours")
    rows = ([cell["operation"], f"`{_ours(cell)}`", *_result(cell)] for cell in cells)
    shown: dict[str, tuple[Cell, Mapping[str, Any]]] = {}
    for cell in cells:
        for example in cell.get("smallest", ()):
            shown.setdefault(example["cause"], (cell, example))
    return _SECTION.substitute(
        name=name, about=(module.__doc__ or "").strip(), python=host["python"], cpu=host["cpu"], date=host["date"],
        versions=", ".join(f"{other} {version}" for other, version in facts["versions"].items()),
        needs=" ".join(f"'{_pinned(need, facts['versions'])}'"
                       for needs in (module.NEEDS, *getattr(module, "THEN", ())) for need in needs),
        table=_table(header, rows), examples="\n".join(_example(module, *pair) for pair in shown.values()),
    )  # fmt: skip


def _pinned(need: str, versions: Mapping[str, str]) -> str:
    """Return a requirement pinned to the version in the record."""
    version = versions.get(need.partition("[")[0], "").partition("+")[0]
    return f"{need}=={version}" if version else need


def _link(text: str) -> str:
    """Return the text with its first word, owner/repository#number, as a link."""
    report, _, rest = text.partition(" ")
    repository, _, at = report.partition("#")
    return f"[{report}](https://github.com/{repository}/issues/{at}) {rest}".rstrip()


def page(board: Mapping[str, Any]) -> str:
    """Return the page of a board.

    Parameters
    ----------
    board : mapping
        Content of board.json.
    """
    cells: list[Cell] = board["cells"]
    ran = [cell for cell in cells if "error" not in cell]
    unexplained = sum(cell["unexplained"] for cell in ran)
    text = _PAGE.substitute(
        packages=len(board["packages"]), cells=len(cells), ran=len(ran), summary=_summary(board), causes=_causes(ran),
        values=f"{sum(sum(cell['compared'].values()) for cell in ran):,}",
        equal=sum(not cell["smallest"] for cell in ran), unexplained=f"{unexplained:,}",
        asked=f"{sum(cell['oracle'].get('values', 0) for cell in ran):,}",
        wrong=sum(cell["oracle"].get("differ", 0) for cell in ran),
        different=f"{unexplained + sum(sum(cell['causes'].values()) for cell in ran):,}",
        sections="\n".join(_package(name, facts, [cell for cell in cells if cell["package"] == name])
                           for name, facts in board["packages"].items()),
    )  # fmt: skip
    return text.rstrip() + "\n"


def _causes(ran: list[Cell]) -> str:
    lines = []
    for letter, cause in CAUSES.items():
        count: Counter[str] = Counter()
        for cell in ran:
            count[cell["package"]] += sum(n for label, n in cell["causes"].items() if letter in label.split("+"))
        if count := +count:
            caller = ", ".join(f"{package} {n:,}" for package, n in sorted(count.items()))
            lines.append(f"**{letter}: {cause.title}** ({caller}). {cause.rule[0].upper()}{cause.rule[1:]}.")
            lines[-1] += f" By hand: {cause.calculation}." * bool(cause.calculation)
    return "\n\n".join(lines)


def _summary(board: Mapping[str, Any]) -> str:
    rows = []
    for name, facts in board["packages"].items():
        own = [cell for cell in board["cells"] if cell["package"] == name]
        ran = [cell for cell in own if "error" not in cell]
        equal, version = sum(not cell["smallest"] for cell in ran), facts.get("versions", {}).get(name, "")
        open_ = sum(cell["unexplained"] for cell in ran)
        rows.append([name, version, facts.get("host", {}).get("date", ""), len(own), equal, open_, len(own) - len(ran)])
    return _table(("package", "version", "date", "cells", "equal", "unexplained", "could not run"), rows)
