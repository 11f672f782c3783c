"""The order that an accumulator's page draws is the order in which it sums."""

import itertools

import numpy as np
import pytest

import lowprec as lp
from lowprec.oracle import FORMATS
from lowprec.tensorcore.order import Products, Sum
from lowprec.tensorcore.product import BlockScales, Product

NAMES = [name for name in lp.accumulators if lp.accumulators[name].output != "float64"]


def bits(name: str, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Return one chain of two instructions, all scales 1, as bits."""
    accumulator = lp.accumulators[name]
    fmt = lp.formats[accumulator.default_format]
    scales = None
    if accumulator.scale_format is not None:
        one = lp.encode(np.ones((1, -(-a.shape[1] // accumulator.scale_block))), accumulator.scale_format)
        scales = BlockScales(*(np.repeat(one, len(x), axis=0) for x in (a, b)))
    out = accumulator.rule.reference(accumulator, Product(fmt, fmt, a, b, c.astype(accumulator.dtype), scales=scales))
    return out.view(f"uint{8 * out.itemsize}")


def operands(name: str, k: int, rows: int = 24) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    accumulator = lp.accumulators[name]
    rng = np.random.default_rng(7)
    fmt = lp.formats[accumulator.default_format]
    spread = min(6, fmt.emax - 1)
    a, b = (
        lp.encode(rng.standard_normal((rows, k)) * np.exp2(rng.integers(-spread, spread + 1, (rows, k)) / 2), fmt)
        for _ in range(2)
    )
    return a, b, rng.standard_normal((rows, rows)).astype(np.float32)


@pytest.mark.parametrize("name", NAMES)
def test_products_of_one_box_may_be_permuted(name):
    order = lp.accumulators[name].rule.order(lp.accumulators[name])
    boxes = list(order.products())
    k = 1 + max(itertools.chain.from_iterable(box.ks for box in boxes))
    assert sorted(itertools.chain.from_iterable(box.ks for box in boxes)) == list(range(k)), "every product once"
    a, b, c = operands(name, k)
    rng = np.random.default_rng(1)
    permuted = np.arange(k)
    for box in boxes:
        permuted[list(box.ks)] = rng.permutation(box.ks)
    np.testing.assert_array_equal(bits(name, a, b, c), bits(name, a[:, permuted], b[:, permuted], c))


@pytest.mark.parametrize("name", [name for name in NAMES if lp.accumulators[name].kind != "exact"])
def test_the_first_and_the_second_instruction_are_told_apart(name):
    """Exchanging products between two boxes changes bits: the drawing has no box too few."""
    boxes = list(lp.accumulators[name].rule.order(lp.accumulators[name]).products())
    k = 1 + max(itertools.chain.from_iterable(box.ks for box in boxes))
    a, b, c = operands(name, k)
    exchanged = np.arange(k)
    first, last = min(box.ks[0] for box in boxes), max(box.ks[-1] for box in boxes)
    exchanged[[first, last]] = last, first
    assert (bits(name, a, b, c) != bits(name, a[:, exchanged], b[:, exchanged], c)).any()


def test_c_enters_once_in_every_order():
    def names(item):
        if isinstance(item, str):
            return [item]
        return [] if isinstance(item, Products) else [name for inner in item.of for name in names(inner)]

    assert {name: names(lp.accumulators[name].rule.order(lp.accumulators[name])).count("C") for name in NAMES} == (
        dict.fromkeys(NAMES, 1)
    )


def test_a_drawing_says_what_is_in_its_tree():
    svg = lp.accumulators["hopper_fp8"].with_(fraction_bits=20, output="float32").drawing()
    assert "20 fraction bits kept" in svg
    assert "cut to float32" in svg
    assert FORMATS
    assert isinstance(lp.accumulators["exact"].rule.order(lp.accumulators["exact"]), Sum)
