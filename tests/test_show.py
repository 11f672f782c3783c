"""Objects show themselves: one line as text, and HTML that is well formed, escaped, and holds their numbers."""

import functools
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import lowprec as lp

_X = np.random.default_rng(0).standard_normal((4, 256)).astype(np.float32)


def _identified():
    a, b = lp.encode(_X, "e4m3fn"), lp.encode(-_X, "e4m3fn")
    return lp.identify(a, b, None, lp.mma(a, b, accumulator="ada_fp8"), a_format="e4m3fn", b_format="e4m3fn")


OBJECTS: dict[str, Callable[[], Any]] = {
    **{
        f"{kind} {name}": functools.partial(catalogue.__getitem__, name)
        for kind, catalogue in (("format", lp.formats), ("accumulator", lp.accumulators), ("recipe", lp.recipes))
        for name in catalogue
    },
    "own format": lambda: lp.Format("<b>&", exponent_bits=2, mantissa_bits=1, source="<script>"),
    "quantized": lambda: lp.quantize(_X, "e4m3fn 1x128"),
    "quantized with a tensor scale": lambda: lp.quantize(_X, "nvfp4_te"),
    "compared": lambda: lp.compare(_X, _X),
    "checked": lambda: lp.check(lp.quantize(_X, "mxfp8_floor"), _X, "mxfp8"),
    "identified": _identified,
}


@pytest.mark.parametrize("name", ["checked", "identified"])
def test_the_sentence_is_a_property(name):
    found = OBJECTS[name]()
    assert isinstance(found.sentence, str)
    assert found.sentence in repr(found)


def parsed(html: str) -> ElementTree.Element:
    return ElementTree.fromstring(f"<div>{html}</div>")


@pytest.mark.parametrize("name", OBJECTS)
def test_html_is_well_formed(name):
    root = parsed(OBJECTS[name]()._repr_html_())
    assert root.find(".//{*}table") is not None or root.find(".//{*}svg") is not None
    assert root.find(".//{*}script") is None


@pytest.mark.parametrize(
    ("shape", "shown"),
    [((), "scalar"), ((5,), "5"), ((2, 256), "2x256"), ((2, 3, 4), "2x3x4"), ((0,), "0"), ((3, 0), "3x0")],
)
@pytest.mark.parametrize("spec", ["e4m3fn 1x128", "mxfp8_floor", "nvfp4_te"])
def test_every_shape_of_quantized_is_shown(shape, shown, spec):
    q = lp.quantize(np.ones(shape, np.float32), spec)
    assert f"{q.format.name} {shown}, {q.granularity} with {q.scale_format} scales" in repr(q)
    cells = [cell.text for cell in parsed(q._repr_html_()).findall(".//{*}td")]
    assert cells[cells.index("shape") + 1] == shown.replace("x", " x ")


@pytest.mark.parametrize("name", lp.recipes)
def test_a_recipe_is_one_line(name):
    assert len(repr(lp.recipes[name])) < 200
    assert "\n" not in repr(lp.recipes[name])
    assert name in repr(lp.recipes[name])


@pytest.mark.parametrize("name", [name for name in lp.formats if lp.formats[name].bits <= 8])
def test_every_positive_value_has_a_tick(name):
    fmt = lp.formats[name]
    values = {float(v) for v in fmt.values() if v > 0 and np.isfinite(v)}
    ticks = [line for line in parsed(fmt._repr_html_()).findall(".//{*}line") if line.get("class") == "tick"]
    assert len(ticks) == 2 * len(values)


def test_a_precision_map_has_a_cell_for_every_product():
    text = "".join(parsed(lp.recipes["dsv3"]._repr_html_()).itertext())
    assert text.count("e4m3fn x e4m3fn") >= 3
    assert "hopper_fp8, promoted every 128" in text


def test_numbers_are_those_of_the_object():
    q = lp.quantize(_X, "e4m3fn 1x128")
    text = "".join(parsed(q._repr_html_()).itertext())
    assert "8.25" in text
    assert f"{q.nbytes:,}" in text
