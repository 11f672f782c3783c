"""Reference pages from the catalogues: one page per format, accumulator and recipe, and tables for the others."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

import make_accumulators
import make_recipes
from pages import table

import lowprec as lp
from lowprec.format.picture import picture
from lowprec.recipe.picture import precision_map
from lowprec.registry import Registry
from lowprec.tensorcore.accumulator import Accumulator
from lowprec.vectors.recordings import OUTPUTS, RECORDINGS

from .links import links


def pages() -> Iterator[tuple[str, str]]:
    """Yield all pages of the reference."""
    yield from _folder(
        "formats", lp.formats, _format, "Formats", "Formats of a few bits and their values.", _format_row
    )
    yield from _entries("accumulators", lp.accumulators, _accumulator)
    listed = links(make_accumulators.page("/generated/accumulators"), "docs/accumulators.md")
    yield "generated/accumulators/index.md", listed + _toctree(lp.accumulators)
    yield from _folder(
        "recipes",
        lp.recipes,
        _recipe,
        "Training recipes",
        "The precision of everything in a training run.",
        _recipe_row,
    )
    yield "generated/configurations.md", _configurations()


def _folder(
    folder: str, catalogue: Registry[Any], page: Any, title: str, about: str, row: Any
) -> Iterator[tuple[str, str]]:
    """Yield one page per entry, and an index."""
    yield from _entries(folder, catalogue, page)
    rows = [(f"[{name}](/generated/{folder}/{name}.md)", *row(catalogue[name])) for name in catalogue]
    yield (
        f"generated/{folder}/index.md",
        f"# {title}\n\n{about}\n\n{table(('name', *row(None)), rows)}\n{_toctree(catalogue)}",
    )


def _entries(folder: str, catalogue: Registry[Any], page: Any) -> Iterator[tuple[str, str]]:
    """Yield one page per entry."""
    for name in catalogue:
        others = catalogue.aliases(name)
        called = f"\n\nAlso called {', '.join(f'`{other}`' for other in others)}." if others else ""
        yield f"generated/{folder}/{name}.md", f"# {name}{called}\n\n{page(name, catalogue[name])}"


def _toctree(names: Iterable[str]) -> str:
    listing = "\n".join(names)
    return f"\n```{{toctree}}\n:hidden:\n\n{listing}\n```\n"


def _drawn(svg: str) -> str:
    return f"```{{raw}} html\n<figure>{svg}</figure>\n```\n"


def _format_row(fmt: Any) -> tuple[object, ...]:
    if fmt is None:
        return "bits", "largest", "smallest positive", "source"
    return fmt.bits, f"{fmt.max:g}", f"{fmt.smallest_subnormal:g}", fmt.source


def _format(name: str, fmt: lp.Format) -> str:
    codes = ", ".join(
        f"{what} is `{code:#x}`" for what, code in (("Inf", fmt.inf_code), ("NaN", fmt.nan_code)) if code is not None
    )
    facts = (
        ("bits", f"{fmt.bits}: sign {int(fmt.signed)}, exponent {fmt.exponent_bits}, mantissa {fmt.mantissa_bits}"),
        ("bias", fmt.bias), ("largest, lowest", f"{fmt.max:g}, {fmt.min:g}"),
        ("smallest normal, smallest positive", f"{fmt.smallest_normal:g}, {fmt.smallest_subnormal:g}"),
        ("step above 1", f"{fmt.eps:g}"), ("special codes", codes or "none"),
        ("-0", "yes" if fmt.has_negative_zero else "no"), ("source", fmt.source),
    )  # fmt: skip
    return (
        f"{_drawn(picture(fmt))}\n{table(('', name), facts)}\n\n`lowprec formats {name} --codes` prints every value; "
        f"`lowprec cast 0.3 --to {name}` rounds a number to it. Rounding and overflow: [roundings "
        "and policies](/formats.md).\n"
    )


def _accumulator(name: str, entry: Accumulator) -> str:
    facts = [
        ("multiplies", ", ".join(f.name for f in entry.input_formats) or "any format"),
        ("kind", f"`{type(entry).__name__}`: {entry.summary}"),
        ("products in one instruction", entry.step()),
        ("fraction bits kept when terms are aligned", getattr(entry, "fraction_bits", "none cut")),
        ("format of the result and of C", entry.output_format.name),
    ]  # fmt: skip
    if entry.scale_format is not None:
        facts.append(
            ("scales inside the instruction", f"{entry.scale_format}, one for {entry.scale_block} codes along K")
        )
    evidence = [
        ("source of the rule", entry.source),
        ("recorded on", _recorded(name) or "no hardware; its source alone"),
        ("independent oracle", f"`lowprec.oracle.{entry.oracle_class}`, exact rational arithmetic that shares no code"),
        ("checked by", f"`pytest tests/oracle tests/tensorcore -k {name}`"),
    ]
    bound = entry.step_error()
    return (
        f"## Order of summation\n\n{_drawn(entry.drawing())}\n"
        "Two successive instructions: C is the addend, D the result. Products in one box are summed at once, so that "
        "their order changes no bit (`tests/tensorcore/test_order.py` permutes them).\n\n"
        f"{table(('', name), facts)}\n\n"
        f"The error of one instruction is at most {bound.relative:.3g} times the sum of its terms' magnitudes plus "
        f"{bound.absolute:.3g}.\n\n## Evidence\n\n{table(('', 'evidence'), evidence)}\n\n## Use it\n\n"
        f"    lowprec accumulators {name}\n    lowprec mma dump.npz --accumulator {name}\n\n"
        f'`lowprec.mma(a, b, c, accumulator="{name}")` computes one chain from raw codes, `lowprec.gemm` a product '
        "with scales; `lowprec.accumulators[...].with_(fraction_bits=20)` is a hypothetical variant.\n"
    )


def _recorded(name: str) -> str:
    """Return the recordings of real GPUs that the tests compare with an accumulator; empty if there are none."""
    found = [item for item in RECORDINGS if lp.accumulators.listed(item.accumulator) == name]
    gpus = [f"{item.gpu} ({item.operand}{'' if item.has_c else ', C = 0'})" for item in found]
    outputs = f"{OUTPUTS * len(found):,} outputs of {', '.join(gpus)}, arXiv:2512.07004, without a difference"
    return f"{outputs}: [what was compared](/exactness.md)" if found else ""


def _recipe_row(entry: Any) -> tuple[object, ...]:
    return ("description", "source") if entry is None else (entry.description, entry.source)


def _recipe(name: str, entry: lp.Recipe) -> str:
    return (
        f"{make_recipes.introduction(entry)}\n\n{_drawn(precision_map(entry))}\n"
        f"As a table: `lowprec recipes {name}`, or [all of them](/recipes.md). As a file to change: "
        f"`lowprec recipes {name} --toml`. To train with it: `lowprec train --recipe {name}`.\n"
    )


def _configurations() -> str:
    entries = [lp.configs[name] for name in lp.configs]
    rows = [
        (f"`{field.name}`", *(getattr(entry, field.name) for entry in entries))
        for field in dataclasses.fields(entries[0]) if field.name != "name"
    ]  # fmt: skip
    return (
        "# Configurations\n\nShapes of the models to train, small versions of DeepSeek-V3. [The "
        "API](/generated/api/moe.rst) and [the trainer](/training.md) describe the fields; a TOML file defines "
        "another configuration.\n\n"
        f"{table(('field', *(entry.name for entry in entries)), rows)}\n"
    )
