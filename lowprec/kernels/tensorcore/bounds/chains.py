"""Bounds on the errors of chains and estimates of their mean squares, output by output.

Tiles of outputs are followed through all chains, block by block; docs/tolerances.md has the proofs.
"""

from typing import NamedTuple

import numpy as np

from lowprec._jit import kernel, variant
from lowprec.kernels.tensorcore.bounds.operand import WIDTH, Operand, Scope, exponent, power_below
from lowprec.kernels.tensorcore.bounds.tile import COLUMNS, COUNTED, ROWS, add_products, count_below
from lowprec.kernels.vectors import aligned_f64

U, TINY = 2.0**-24, 2.0**-149  # half an ulp of float32, relative, and the spacing of its subnormals

#: Forms of `BlockError`: proportional to magnitudes, aligned terms, FP8 as two float16 instructions, AMD's floors.
LINEAR, ALIGNED, SPLIT, FLOORED = range(4)


class BlockError(NamedTuple):
    """Coefficients of the error that a block of n instructions adds to a running sum, by form.

    The unit of the last three forms is `unit` times the largest power of two of the terms, which is at least `least`.
    A product loses bits only if it has a bit below the unit.

    * ``LINEAR``: ``(1 + relative)^n (relative size + n (carried inside + absolute))``.
    * ``ALIGNED``: `cut` units for a nonzero C and for each product that loses bits, at most `terms` of them, plus
      `last` times the largest power of two of the sum, which is at least `normal`.
    * ``SPLIT``: `relative` times the sum of magnitudes if a product loses bits, plus `last` times the result (half an
      ulp), plus `absolute`.
    * ``FLOORED``: a unit for each product that loses bits, three for their sum if there are any, two for a nonzero C,
      plus `cut` times the largest power of two, plus `last` times the result, plus `absolute`.
    """

    form: int
    unit: float = 0.0
    least: float = 0.0
    terms: float = 0.0
    cut: float = 0.0
    last: float = 0.0
    normal: float = 0.0
    relative: float = 0.0
    carried: float = 0.0
    absolute: float = 0.0


class Plan(NamedTuple):
    """Division of K into chains and blocks, with the numbers that their bounds require.

    Attributes
    ----------
    edges, first : int64 arrays [blocks + 1], [chains + 1]
        Edges of the blocks in K, and index of each chain's first block.
    steps, growth : float64 arrays [blocks]
        Number n of instructions, and ``(1 + relative)^n``.
    rescaled : bool array [blocks]
        Whether the running sum is multiplied by the ratio of two scales before a block.
    exact : bool array [chains]
        Whether the multiplication by a chain's scale is exact.
    scopes : int64 array [chains, 2]
        Ranges of K from which a chain may take its products; empty if chains have a fixed order.
    scope_is_scaled : bool
        Whether the products of these ranges include their scales.
    factor : float
        Power of two that multiplies the results of chains.
    again : float
        Relative error of the multiplication by a ratio of scales.
    highest : float
        Magnitude of a running sum from which its bound is infinite.
    roundings : int
        Roundings of a chain's scaled result before it is added, if its scale is not a power of two.
    values_alone : bool
        Whether values were multiplied by their scales and rounded to float32 before the product.
    """

    edges: np.ndarray
    first: np.ndarray
    steps: np.ndarray
    growth: np.ndarray
    rescaled: np.ndarray
    exact: np.ndarray
    scopes: np.ndarray
    scope_is_scaled: bool
    factor: float
    again: float
    highest: float
    roundings: int
    values_alone: bool


# --- blocks ----------------------------------------------------------------------------------------------------------

FORM = None  # placeholder that `variant` replaces

OUTPUTS = ROWS * WIDTH  # of a tile
# Offsets of the kinds of numbers in a tile's state; no distance is a multiple of 4 KiB, at which stores delay loads.
# Variances are sums of the squares of the bounds of uniform errors, three times the variances of these.
EXACT, MOST, VARIANCE, PEAK, AFTER, BEFORE, LARGEST, SIZE = (i * (OUTPUTS + 40) for i in range(8))
TOTAL, TOTAL_MOST, TOTAL_VARIANCE, SIZES = (i * (OUTPUTS + 40) for i in range(8, 12))
ALL_LARGEST, ALL_SIZE, ALL_SUM, ALL_USUAL, NUMBERS = (i * (OUTPUTS + 40) for i in range(12, 17))


@kernel
def _add_products(x, y, top, start, stop, state, source, target):
    """Write the numbers of kind `source`, plus the products of a tile with k = start .. stop, as kind `target`."""
    x_at, y_at = np.intp(x.ctypes.data) + 8 * (start * WIDTH + top), np.intp(y.ctypes.data) + 8 * start * WIDTH
    for j in range(0, WIDTH, COLUMNS):
        at = np.intp(state.ctypes.data) + 8 * j
        add_products(x_at, y_at + 8 * j, at + 8 * source, at + 8 * target, np.intp(8 * WIDTH), stop - start)


@kernel
def _count(x, y, top, start, stop, limits, counts):
    """Count the exponents k = start .. stop of a tile's products that are below each output's limit."""
    x_at, y_at = np.intp(x.ctypes.data) + 2 * (start * WIDTH + top), np.intp(y.ctypes.data) + 2 * start * WIDTH
    for j in range(0, WIDTH, COUNTED):
        limits_at, counts_at = np.intp(limits.ctypes.data) + 2 * j, np.intp(counts.ctypes.data) + 2 * j
        count_below(x_at, y_at + 2 * j, limits_at, counts_at, np.intp(2 * WIDTH), stop - start)


def _count_below(e, x, y, top, b, start, stop, state, limits, counts):
    """Count the products of a block that have a bit below each output's unit."""
    for i in range(OUTPUTS):
        unit = _power(e, state[BEFORE + i], state[LARGEST + i], state[SIZE + i]) * e.unit
        limits[i] = exponent(unit)
    _count(x.lowest, y.lowest, top, b, b + 1, limits, counts)
    found = 0
    for i in range(OUTPUTS):
        found |= counts[i]
    if found:
        _count(x.bits, y.bits, top, start, stop, limits, counts)


def _power(e, before, largest, size):
    """Return the largest power of two of an output's terms."""
    top = largest if FORM == ALIGNED else size
    return power_below(max(top if FORM == SPLIT else max(top, before), e.least))


def _error(e, growth, steps, products, lossy, before, beyond, inside, largest, size):
    """Return the error that a block adds, and its variance, from the number of products that lose bits."""
    if FORM == LINEAR:
        of_products, of_sums = e.relative * size, e.carried * inside
        added = growth * (of_products + steps * (of_sums + e.absolute))
        return added, of_products * of_products / products + steps * (of_sums * of_sums)
    top = _power(e, before, largest, size)
    unit, c = top * e.unit, 1.0 if before > 0 else 0.0  # a C of 0 loses nothing
    if FORM == ALIGNED:
        terms = min(lossy, e.terms) + c
        lost = terms * unit * e.cut
        rounded = e.last * power_below(max(beyond + lost, e.normal))
        return lost + rounded, terms * (unit * unit) + rounded * rounded
    if FORM == SPLIT:
        lost = e.relative * size if lossy > 0 else 0.0
        rounded = e.last * (beyond + lost)
        return lost + rounded + e.absolute, lost * lost / products + rounded * rounded
    terms = lossy + (3.0 if lossy > 0 else 0.0) + 2 * c
    lost = terms * unit + e.cut * top
    rounded = e.last * (beyond + lost) + e.absolute
    return lost + rounded, terms * (unit * unit) + rounded * rounded


@kernel
def _rescale(x, y, top, b, again, in_any_order, state):
    """Multiply the running sums by the ratio of the last block's scale and this one's."""
    for r in range(ROWS):
        before, now = x[b - 1, top + r], x[b, top + r]
        for j in range(WIDTH):
            i = r * WIDTH + j
            scale = now * y[b, j]
            ratio = before * y[b - 1, j] / scale
            exact, most = state[EXACT + i] * ratio, state[MOST + i] * ratio
            sums = (state[ALL_SIZE + i] + state[ALL_SUM + i]) / (2 * scale) if in_any_order else abs(exact)
            state[EXACT + i], state[MOST + i] = exact, most + again * (sums + most)
            state[VARIANCE + i] = state[VARIANCE + i] * (ratio * ratio) + (again * exact) * (again * exact)


@kernel
def _set_magnitudes(x, y, top, b, state):
    """Write the magnitudes of the running sums before a block, and of its products."""
    for r in range(ROWS):
        largest, norm = x.tops[b, top + r], x.norms[b, top + r]
        for j in range(WIDTH):
            i = r * WIDTH + j
            state[BEFORE + i] = abs(state[EXACT + i]) + state[MOST + i]
            state[LARGEST + i] = largest * y.tops[b, j]
            state[SIZE + i] = norm * y.norms[b, j]


@kernel
def _set_any(x, y, top, b, scaled, usual, state):
    """Write the magnitudes of a block of a chain that takes the products of a scope in any order.

    A partial sum is at most (sum of magnitudes + |sum|) / 2.
    """
    for r in range(ROWS):
        for j in range(WIDTH):
            i = r * WIDTH + j
            scale = x[b, top + r] * y[b, j] if scaled else 1.0
            if usual:
                state[BEFORE + i] = state[ALL_USUAL + i] / scale
            else:
                size = (state[ALL_SIZE + i] / scale + state[ALL_SUM + i] / scale) / 2
                state[BEFORE + i] = size + state[MOST + i]
                state[LARGEST + i] = state[ALL_LARGEST + i] / scale


def _add_usual(e, growth, steps, products, state, counts):
    """Add the squares of a block's usual errors, in a chain in any order."""
    for i in range(OUTPUTS):
        size = state[BEFORE + i]
        state[VARIANCE + i] += _error(
            e, growth, steps, products, np.float64(counts[i]), size, size, size, state[LARGEST + i],
            state[SIZE + i],
        )[1]  # fmt: skip


def _advance(e, growth, steps, products, values_alone, in_any_order, state, counts):
    """Replace the running sums by those after a block, and add its errors to theirs."""
    by_size, by_one = 2.01 * U, 2 * TINY * products
    for i in range(OUTPUTS):
        exact, after, most = state[EXACT + i], state[AFTER + i], state[MOST + i]
        before, size = state[BEFORE + i], state[SIZE + i]
        beyond = abs(after) + most
        inside = (abs(exact) if steps == 1 else (abs(exact) + abs(after) + size) / 2) + most
        highest = max(max(inside, beyond), size if FORM == SPLIT else 0.0)
        if in_any_order:
            beyond, inside, highest = before, before, max(highest, before)
        lossy = np.float64(counts[i])
        added, square = _error(
            e, growth, steps, max(products, 1.0), lossy, before, beyond, inside, state[LARGEST + i], size
        )
        if values_alone:
            most = most + by_size * size + by_one * (1 + size)
        most += added
        peak = highest + most
        state[PEAK + i] = state[PEAK + i] if peak <= state[PEAK + i] else peak  # NaN stays
        state[EXACT + i], state[MOST + i] = after, most
        state[VARIANCE + i] += 0.0 if in_any_order else square


def _add_block(x, y, plan, e, top, b, state, limits, counts):
    """Add a block to the running sums of a tile."""
    start, stop, any_order = plan.edges[b], plan.edges[b + 1], plan.scopes.size > 0
    products, growth, steps = np.float64(stop - start), plan.growth[b], plan.steps[b]
    if plan.rescaled[b]:
        _rescale(x.scales, y.scales, top, b, plan.again, any_order, state)
    _add_products(x.values, y.values, top, start, stop, state, EXACT, AFTER)
    _set_magnitudes(x, y, top, b, state)
    for usual in range(1 if any_order else 0, -1, -1):
        if any_order:
            _set_any(x.scales, y.scales, top, b, plan.scope_is_scaled, usual, state)
        if FORM != LINEAR:
            _count_below(e, x, y, top, b, start, stop, state, limits, counts)
        if usual:
            _add_usual(e, growth, steps, max(products, 1.0), state, counts)
    _advance(e, growth, steps, products, plan.values_alone, any_order, state, counts)


# --- chains ----------------------------------------------------------------------------------------------------------


@kernel
def _find_scope(x, y, start, stop, top, c, state):
    """Write the sums over all products of the scope of a chain, from which it may take any."""
    state[ALL_SIZE:] = 0.0
    _add_products(x.sizes, y.sizes, top, start, stop, state, ALL_SIZE, ALL_SIZE)
    _add_products(x.values, y.values, top, start, stop, state, ALL_SUM, ALL_SUM)
    _add_products(x.squares, y.squares, top, start, stop, state, ALL_USUAL, ALL_USUAL)
    for r in range(ROWS):
        largest = x.tops[c, top + r]
        for j in range(WIDTH):
            i = r * WIDTH + j
            total = state[ALL_SUM + i]
            state[ALL_LARGEST + i], state[ALL_SUM + i] = largest * y.tops[c, j], abs(total)
            state[ALL_USUAL + i] = np.sqrt(total * total / 3 + state[ALL_USUAL + i] / 6)


@kernel
def _end_chain(x, y, top, b, plan, c, state):
    """Multiply the results of a chain by its scale and add them to the totals."""
    roundings, alone = 0 if plan.exact[c] else plan.roundings, c == 0 and plan.exact[c]
    factor, highest = plan.factor, plan.highest
    for r in range(ROWS):
        for j in range(WIDTH):
            i = r * WIDTH + j
            scale = x[b, top + r] * y[b, j]
            most = state[MOST + i] if state[PEAK + i] < highest else np.inf
            exact, most = state[EXACT + i] * factor * scale, most * factor * scale
            variance, square = state[VARIANCE + i] * (factor * factor) * (scale * scale), (U * exact) * (U * exact)
            if roundings > 0:
                most, variance = most + (U * (abs(exact) + most) + TINY), variance + square
            if roundings > 1:
                most, variance = most + (U * (abs(exact) + most) + TINY), variance + square
            state[SIZES + i] += abs(exact) + most
            if not alone:
                exact, most = state[TOTAL + i] + exact, state[TOTAL_MOST + i] + most
                variance = state[TOTAL_VARIANCE + i] + variance
                most += U * (abs(exact) + most) + TINY
                variance += (U * exact) * (U * exact)
            state[TOTAL + i], state[TOTAL_MOST + i], state[TOTAL_VARIANCE + i] = exact, most, variance


@kernel
def _store(chains, top, column, state, exact, most, variance):
    """Store the results of a tile; the errors allow for any order in which the results of chains are added."""
    for r in range(min(ROWS, exact.shape[0] - top)):
        for j in range(min(WIDTH, exact.shape[1] - column)):
            at = r * WIDTH + j
            total, error = state[TOTAL + at], state[TOTAL_MOST + at]
            if chains > 1:
                error += chains * (U * (state[SIZES + at] + abs(total)) / 2 + TINY)
            exact[top + r, column + j], most[top + r, column + j] = total, error
            variance[top + r, column + j] = state[TOTAL_VARIANCE + at] / 3


@kernel
def _panel(x, i):
    """Return a panel of an operand."""
    return Operand(x.values[i], x.bits[i], x.tops[i], x.norms[i], x.lowest[i], x.scales[i])


def _chains(x, y, x_scope, y_scope, plan, e, exact, most, variance, first, stop):
    """Write the exact sums of ``A @ B.T``, bounds on their errors, and mean squares, for a range of panels of rows.

    Tiles of a pair of panels are followed in turn, chain by chain, so that a chain's part of the panels is cached.
    """
    tiles, any_order = WIDTH // ROWS, plan.scopes.size > 0
    states = aligned_f64(tiles * NUMBERS).reshape(tiles, NUMBERS)
    limits, counts = np.zeros(OUTPUTS, np.int16), np.zeros(OUTPUTS, np.int16)
    for i in range(first, stop):
        tiles = (min(exact.shape[0] - i * WIDTH, WIDTH) + ROWS - 1) // ROWS
        for j in range(y.values.shape[0]):
            rows, columns = _panel(x, i), _panel(y, j)
            states[:, TOTAL:ALL_LARGEST] = 0.0
            for c in range(plan.first.size - 1):
                for t in range(tiles):
                    state, top = states[t], t * ROWS
                    state[EXACT:AFTER] = 0.0
                    if any_order and (c == 0 or plan.scopes[c, 0] != plan.scopes[c - 1, 0]):
                        left = Scope(x_scope.sizes[i], x_scope.values[i], x_scope.squares[i], x_scope.tops[i])
                        right = Scope(y_scope.sizes[j], y_scope.values[j], y_scope.squares[j], y_scope.tops[j])
                        _find_scope(left, right, plan.scopes[c, 0], plan.scopes[c, 1], top, c, state)
                    for b in range(plan.first[c], plan.first[c + 1]):
                        _add_block(rows, columns, plan, e, top, b, state, limits, counts)
                    _end_chain(rows.scales, columns.scales, top, plan.first[c + 1] - 1, plan, c, state)
            for t in range(tiles):
                _store(plan.first.size - 1, i * WIDTH + t * ROWS, j * WIDTH, states[t], exact, most, variance)


def _of_form(name, form):
    """Return `_chains`, compiled for a form of `BlockError`."""
    names = {"FORM": form}
    for function in (_power, _error, _count_below, _add_usual, _advance, _add_block, _chains):
        names[function.__name__] = variant(function, f"{function.__name__}_{name}", **names)
    return names["_chains"]


#: Kernels by form of `BlockError`.
CHAINS = [
    _of_form("linear", LINEAR), _of_form("aligned", ALIGNED), _of_form("split", SPLIT), _of_form("floored", FLOORED),
]  # fmt: skip
