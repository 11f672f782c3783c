"""The order that an accumulator's page draws is the order in which it sums."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from floats import bits
from test_machines import multiply, operands

import lowprec as lp
from lowprec._values import compared_fields
from lowprec.oracle import FORMATS
from lowprec.oracle.ieee import ieee_sum
from lowprec.oracle.values import Exact, decode, encode, floor_log2, max_code, nearest
from lowprec.order.summation_tree import ProductLeaf, SingleRounding, SumNode
from lowprec.tensorcore.kinds import KINDS
from lowprec.tensorcore.kinds.ibm import ChunkedSum
from lowprec.tensorcore.problem import GemmProblem

NAMES = [name for name in lp.accumulators if lp.accumulators[name].dtype != np.float64]


def exchanged(name, places):
    """Return which bits of a chain of two instructions change as its products are rearranged."""
    a, b, c = operands(name, 24, 24, len(places))
    c = c.astype(lp.accumulators[name].dtype)
    with lp.use_kernel("reference"):
        return bits(multiply(name, a, b, c)) != bits(multiply(name, a[:, places], b[:, places], c))


@pytest.mark.parametrize("name", NAMES)
def test_products_of_one_box_may_be_permuted(name):
    """And exchanging products between two boxes changes bits: the drawing has no box too few."""
    boxes = [box.ks for box in lp.accumulators[name].order().products()]
    places = np.arange(1 + max(itertools.chain(*boxes)))
    assert sorted(set(itertools.chain(*boxes))) == places.tolist(), "every product, in each phase"
    rng, permuted = np.random.default_rng(1), places.copy()
    for box in boxes:
        permuted[list(box)] = rng.permutation(box)
    assert not exchanged(name, permuted).any()
    if name != "exact":
        places[[0, -1]] = places[[-1, 0]]
        assert exchanged(name, places).any()


def test_c_enters_once_in_every_order():
    def names(item):
        if isinstance(item, str):
            return [item]
        return [] if isinstance(item, ProductLeaf) else [name for inner in item.of for name in names(inner)]

    assert {name: names(lp.accumulators[name].order()).count("C") for name in NAMES} == (dict.fromkeys(NAMES, 1))


def test_a_drawing_says_what_is_in_its_tree():
    svg = lp.accumulators["hopper_fp8"].with_(fraction_bits=20, output_format="float32").drawing()
    assert "20 fraction bits kept" in svg
    assert "cut to float32" in svg
    assert FORMATS
    assert isinstance(lp.accumulators["exact"].order(), SumNode)


# The same trees as data: computed in fractions, they give the bits.

# ChunkedSum rounds twice, in a step of its own: test_ibm.py compares it with the oracle.
COMPUTED = [kind for kind in KINDS if not hasattr(kind, "fraction_bits") and kind is not ChunkedSum]
_LEAST = Fraction(1, 1 << 126)


def _zero_like(value: Exact) -> Exact:
    return -0.0 if math.copysign(1, value) < 0 else Fraction(0)


def _tiny(value: Exact) -> bool:
    return math.isfinite(value) and abs(Fraction(value)) < _LEAST


def _rounded(how: SingleRounding, values: list[Exact]) -> Exact:
    """Add exactly and round once."""
    if how.flushes:
        values = [_zero_like(v) if _tiny(v) else v for v in values]
    total = ieee_sum([(v, Fraction(1)) for v in values[1:]], values[0])
    if total == 0 and how.zeros == "+0":
        return Fraction(0)
    if how.rounding == "odd":
        return total if math.isnan(total) or math.isinf(total) else _odd(total)
    fmt = FORMATS[how.output]
    if how.flushes == "x86" and math.isfinite(total) and total != 0 and abs(total) < 2 * _LEAST:
        near = nearest(total, 149) / Fraction(1 << 149) if abs(total) >= _LEAST else _unbounded(total)
        return _zero_like(total) if abs(near) < _LEAST else near
    found = decode(encode(total, fmt, "saturate" if how.saturates else "nonsaturate"), fmt)
    return _zero_like(found) if how.flushes == "cdna2" and _tiny(found) else found


def _unbounded(value: Fraction) -> Fraction:
    places = 23 - floor_log2(abs(value))
    return Fraction(nearest(abs(value), places), 1 << places) * (1 if value > 0 else -1)


def _odd(value: Exact) -> Exact:
    if value == 0 or abs(value) < _LEAST:
        return _zero_like(value)
    if abs(value) >= 1 << 128:
        return math.copysign(math.inf, value)
    places = 23 - floor_log2(abs(value))
    scaled = abs(value) * Fraction(2) ** places
    whole = math.floor(scaled)
    return (whole if whole == scaled else whole | 1) * Fraction(2) ** -places * (1 if value > 0 else -1)


def computed(tree: SumNode, products: list[Exact], c: Exact) -> Exact:
    """Return what a tree makes of products and C; products beyond the last are +0."""
    values: list[Exact] = []
    for item in tree.of:
        if isinstance(item, SumNode):
            values.append(computed(item, products, c))
        elif isinstance(item, ProductLeaf):
            some = [products[k] if k < len(products) else Fraction(0) for k in item.ks]
            values += [x if x == 0 or not math.isfinite(x) else x * Fraction(2) ** item.exponent for x in some]
        else:
            values.append(c if item == "C" else Fraction(0))
    assert isinstance(tree.how, SingleRounding)
    return _rounded(tree.how, values)


def _exact(x: float) -> Exact:
    return x if not math.isfinite(x) or math.copysign(1, x) < 0 == x else Fraction(x)


def _product(x: Exact, y: Exact) -> Exact:
    return ieee_sum([(x, y)], -0.0)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"group_size": 1},
        {"group_size": 5},
        {"group_size": 8, "lanes": 4},
        {"saturate": True},
        {"output_format": "float16"},
    ],
)
@pytest.mark.parametrize("kind", COMPUTED, ids=lambda kind: kind.__name__)
def test_a_tree_computes_the_bits(kind: type, changes: dict) -> None:
    base = next(lp.accumulators[name] for name in NAMES if type(lp.accumulators[name]) is kind).with_(input_formats=())
    try:
        machine = base.with_(**{k: v for k, v in changes.items() if k in compared_fields(kind)})
    except ValueError:
        pytest.skip(f"{kind.__name__} has no {changes}")
    rng, k = np.random.default_rng(3), 11
    c_format = FORMATS[machine.dtype.name]
    a, b = (rng.integers(0, 256, (14, k), dtype=np.uint8) for _ in "ab")
    a[:3], b[:3] = a[:3] & 0x83, b[:3] & 0x83  # subnormals
    a[3:6] = np.where(rng.random((3, k)) < 0.9, 0x80, a[3:6])  # negative zeros, mostly
    for side in (a[4:], b):
        side[(side & 0x7F) >= 0x7C] &= 0x83  # few rows with NaN and Inf
    edges = [0, 1, 3, max_code(c_format), max_code(c_format) - 1]
    top = 1 << c_format.width
    c = rng.integers(0, 2 * top, (14, 14)).astype(np.uint32)
    c[:, :5], c[:, 5:10] = edges, [edge | top for edge in edges]
    start = c.astype(np.uint16 if machine.dtype == "float16" else np.uint32).view(machine.dtype)
    e5m2 = lp.formats["e5m2"]
    got = machine.reference(GemmProblem(a, b, e5m2, e5m2, start)).astype(machine.dtype)
    bits_ = got.view(f"u{got.itemsize}")
    trees = machine.chain(k)
    x_values, y_values = (machine.values(side, e5m2).tolist() for side in (a, b))
    for i, j in itertools.product(range(14), repeat=2):
        products = [_product(_exact(x), _exact(y)) for x, y in zip(x_values[i], y_values[j], strict=True)]
        state = decode(int(start.view(bits_.dtype)[i, j]), c_format)
        for tree in trees:
            state = computed(tree, products, state)
        wanted = encode(state, c_format, "nonsaturate")
        assert wanted == bits_[i, j] or (math.isnan(state) and np.isnan(got[i, j])), (i, j)


@pytest.mark.parametrize("group", [1, 2, 3, 6, 16])
def test_halves_take_their_products_as_the_tree_says(group: int) -> None:
    machine = lp.accumulators["hopper_fp8_mma"].with_(input_formats=(), group_size=group)
    step = machine.step()
    k = 3 * step
    ks = [place for tree in machine.chain(k) for item in tree.products() for place in item.ks]
    codes = np.arange(k, dtype=np.uint8)[None, :]  # every value once
    taken = machine.as_halves(codes, lp.formats["e4m3fn"])
    np.testing.assert_array_equal(taken[0], lp.encode(lp.decode(codes, "e4m3fn"), "float16")[0][ks])
