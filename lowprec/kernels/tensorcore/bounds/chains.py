"""Bounds on the errors of chains and estimates of their mean squares, output by output.

Tiles of outputs are followed through all chains, block by block; docs/tolerances.md has the proofs.
"""

from typing import NamedTuple

import numpy as np

from lowprec._jit import kernel
from lowprec.kernels.tensorcore.bounds.operand import exponent, power_below
from lowprec.kernels.tensorcore.reference.exact import fma64

U, TINY = 2.0**-24, 2.0**-149  # half an ulp of float32, relative, and the spacing of its subnormals
ROWS, WIDTH = 16, 128  # outputs of a tile: its sums stay in the cache

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

# Offsets in a row of `state`: it has `WIDTH` numbers of each kind, one per output.
EXACT, MOST, VARIANCE, PEAK, TOTAL, TOTAL_MOST, TOTAL_VARIANCE, SIZES, AFTER = (i * WIDTH for i in range(9))
BEFORE, BEYOND, INSIDE, HIGHEST, LARGEST, SIZE, TOP, ADDED, SQUARES = (i * WIDTH for i in range(9, 18))
ALL_LARGEST, ALL_SIZE, ALL_SUM, ALL_USUAL, USUAL_SQUARES, NUMBERS = (i * WIDTH for i in range(18, 24))


@kernel
def _add_products(x, y, tile, start, stop, state, to):
    """Add the products of a tile's rows and columns, k = start .. stop, to the numbers at offset `to` of `state`."""
    top, bottom, column, width = tile
    at = np.uintp(column)
    for r in range(bottom - top):
        d, k = state[r, to : to + WIDTH], start
        while k + 4 <= stop:
            x0, x1, x2, x3 = x[top + r, k], x[top + r, k + 1], x[top + r, k + 2], x[top + r, k + 3]
            for j in range(width):
                c = at + np.uintp(j)
                total = fma64(x1, y[k + 1, c], fma64(x0, y[k, c], d[j]))
                d[j] = fma64(x3, y[k + 3, c], fma64(x2, y[k + 2, c], total))
            k += 4
        while k < stop:
            x0 = x[top + r, k]
            for j in range(width):
                d[j] = fma64(x0, y[k, at + np.uintp(j)], d[j])
            k += 1


@kernel
def _count_below(x, y, lowest_x, lowest_y, tile, b, start, stop, limits, counts):
    """Count the products of a block with a bit below 2^limit, for each output's limit."""
    top, bottom, column, width = tile
    at, zero, one = np.uintp(column), np.float32(0), np.float32(1)
    for r in range(bottom - top):
        lowest, found = lowest_x[top + r, b], 0
        for j in range(width):
            counts[r, j] = zero
            found |= 1 if lowest + lowest_y[b, at + np.uintp(j)] < limits[r, j] else 0
        k = start if found else stop
        while k + 4 <= stop:
            x0, x1, x2, x3 = x[top + r, k], x[top + r, k + 1], x[top + r, k + 2], x[top + r, k + 3]
            for j in range(width):
                c, least = at + np.uintp(j), limits[r, j]
                some = (one if x0 + y[k, c] < least else zero) + (one if x1 + y[k + 1, c] < least else zero)
                more = (one if x2 + y[k + 2, c] < least else zero) + (one if x3 + y[k + 3, c] < least else zero)
                counts[r, j] += some + more
            k += 4
        while k < stop:
            x0 = x[top + r, k]
            for j in range(width):
                counts[r, j] += one if x0 + y[k, at + np.uintp(j)] < limits[r, j] else zero
            k += 1


@kernel
def _find_units(e, rows, width, state, limits):
    """Find the largest power of two of each output's terms, and the exponent of its unit."""
    for r in range(rows):
        s = state[r]
        for j in range(width):
            top = s[LARGEST + j] if e.form == ALIGNED else s[SIZE + j]
            if e.form != SPLIT:
                top = max(top, s[BEFORE + j])
            top = power_below(max(top, e.least))
            s[TOP + j] = top
            limits[r, j] = np.float32(exponent(top * e.unit))


@kernel
def _find_errors(e, rows, width, products, state, counts):
    """Compute the errors that a block adds, from units and the numbers of products that lose bits."""
    for r in range(rows):
        s = state[r]
        for j in range(width):
            lossy, unit = np.float64(counts[r, j]), s[TOP + j] * e.unit
            c = 1.0 if s[BEFORE + j] > 0 else 0.0  # a C of 0 loses nothing
            if e.form == ALIGNED:
                terms = min(lossy, e.terms) + c
                lost = terms * unit * e.cut
                rounded = e.last * power_below(max(s[BEYOND + j] + lost, e.normal))
                s[ADDED + j] = lost + rounded
                s[SQUARES + j] = (terms * (unit * unit) + rounded * rounded) / 3
            elif e.form == SPLIT:
                lost = e.relative * s[SIZE + j] if lossy > 0 else 0.0
                rounded = e.last * (s[BEYOND + j] + lost)
                s[ADDED + j] = lost + rounded + e.absolute
                s[SQUARES + j] = (lost * lost / products + rounded * rounded) / 3
            else:
                terms = lossy + (3.0 if lossy > 0 else 0.0) + 2 * c
                lost = terms * unit + e.cut * s[TOP + j]
                rounded = e.last * (s[BEYOND + j] + lost) + e.absolute
                s[ADDED + j] = lost + rounded
                s[SQUARES + j] = (terms * (unit * unit) + rounded * rounded) / 3


@kernel
def _find_linear_errors(e, growth, steps, rows, width, products, state):
    """Compute the errors that a block adds in proportion to the magnitudes of its products and sums."""
    for r in range(rows):
        s = state[r]
        for j in range(width):
            of_products, of_sums = e.relative * s[SIZE + j], e.carried * s[INSIDE + j]
            s[ADDED + j] = growth * (of_products + steps * (of_sums + e.absolute))
            s[SQUARES + j] = (of_products * of_products / products + steps * (of_sums * of_sums)) / 3


@kernel
def _rescale(x, y, tile, b, again, in_any_order, state):
    """Multiply the running sums by the ratio of the last block's scale and this one's."""
    top, bottom, column, width = tile
    at = np.uintp(column)
    for r in range(bottom - top):
        s, before, now = state[r], x[top + r, b - 1], x[top + r, b]
        for j in range(width):
            scale = now * y[b, at + np.uintp(j)]
            ratio = before * y[b - 1, at + np.uintp(j)] / scale
            exact, most = s[EXACT + j] * ratio, s[MOST + j] * ratio
            sums = (s[ALL_SIZE + j] + s[ALL_SUM + j]) / (2 * scale) if in_any_order else abs(exact)
            s[EXACT + j], s[MOST + j] = exact, most + again * (sums + most)
            s[VARIANCE + j] = s[VARIANCE + j] * (ratio * ratio) + (again * exact) * (again * exact) / 3


@kernel
def _set_magnitudes(tops_x, tops_y, norms_x, norms_y, tile, b, single, has_halves, state):
    """Write the magnitudes of the running sums before, after and inside a block, and of its products."""
    top, bottom, column, width = tile
    at = np.uintp(column)
    for r in range(bottom - top):
        s, largest, norm = state[r], tops_x[top + r, b], norms_x[top + r, b]
        for j in range(width):
            before, beyond, most = abs(s[EXACT + j]), abs(s[AFTER + j]), s[MOST + j]
            size = norm * norms_y[b, at + np.uintp(j)]
            inside = (before if single else (before + beyond + size) / 2) + most
            s[BEFORE + j], s[BEYOND + j], s[INSIDE + j] = before + most, beyond + most, inside
            s[HIGHEST + j] = max(max(inside, beyond + most), size if has_halves else 0.0)
            s[LARGEST + j], s[SIZE + j] = largest * tops_y[b, at + np.uintp(j)], size


@kernel
def _set_any(x, y, tile, b, scaled, usual, state):
    """Write the magnitudes of a block of a chain that takes the products of a scope in any order.

    A partial sum is at most (sum of magnitudes + |sum|) / 2.
    """
    top, bottom, column, width = tile
    at = np.uintp(column)
    for r in range(bottom - top):
        s = state[r]
        for j in range(width):
            scale = x[top + r, b] * y[b, at + np.uintp(j)] if scaled else 1.0
            size = s[ALL_USUAL + j] / scale
            if not usual:
                size = (s[ALL_SIZE + j] / scale + s[ALL_SUM + j] / scale) / 2 + s[MOST + j]
                s[LARGEST + j] = s[ALL_LARGEST + j] / scale
                s[USUAL_SQUARES + j] = s[SQUARES + j]
                s[HIGHEST + j] = max(s[HIGHEST + j], size)
            s[BEFORE + j], s[BEYOND + j], s[INSIDE + j] = size, size, size


@kernel
def _advance(rows, width, products, values_alone, in_any_order, state):
    """Replace the running sums by those after a block, and add its errors to theirs."""
    by_size, by_one = 2.01 * U, 2 * TINY * products
    for r in range(rows):
        s = state[r]
        for j in range(width):
            most = s[MOST + j]
            if values_alone:
                most = most + by_size * s[SIZE + j] + by_one * (1 + s[SIZE + j])
            most += s[ADDED + j]
            peak = s[HIGHEST + j] + most
            s[PEAK + j] = s[PEAK + j] if peak <= s[PEAK + j] else peak  # NaN stays
            more = s[USUAL_SQUARES + j] if in_any_order else s[SQUARES + j]
            s[EXACT + j], s[MOST + j], s[VARIANCE + j] = s[AFTER + j], most, s[VARIANCE + j] + more


@kernel
def _add_block(x, y, plan, e, tile, b, state, limits, counts):
    """Add a block to the running sums of a tile."""
    top, bottom, _, width = tile
    start, stop, rows, any_order = plan.edges[b], plan.edges[b + 1], bottom - top, plan.scopes.size > 0
    products = np.float64(max(stop - start, 1))
    if plan.rescaled[b]:
        _rescale(x.scales, y.scales, tile, b, plan.again, any_order, state)
    for r in range(rows):
        for j in range(width):
            state[r, AFTER + j] = state[r, EXACT + j]
    _add_products(x.values, y.values, tile, start, stop, state, AFTER)
    _set_magnitudes(x.tops, y.tops, x.norms, y.norms, tile, b, plan.steps[b] == 1, e.form == SPLIT, state)
    for i in range(2 if any_order else 1):
        if any_order:  # the usual magnitudes first, then the largest
            _set_any(x.scales, y.scales, tile, b, plan.scope_is_scaled, i == 0, state)
        if e.form == LINEAR:
            _find_linear_errors(e, plan.growth[b], plan.steps[b], rows, width, products, state)
        else:
            _find_units(e, rows, width, state, limits)
            _count_below(x.bits, y.bits, x.lowest, y.lowest, tile, b, start, stop, limits, counts)
            _find_errors(e, rows, width, products, state, counts)
    _advance(rows, width, stop - start, plan.values_alone, any_order, state)


# --- chains ----------------------------------------------------------------------------------------------------------


@kernel
def _find_scope(x, y, start, stop, tile, c, state):
    """Write the sums over all products of the scope of a chain, from which it may take any."""
    top, bottom, column, width = tile
    at = np.uintp(column)
    state[:, ALL_SIZE:USUAL_SQUARES] = 0.0
    _add_products(x.sizes, y.sizes, tile, start, stop, state, ALL_SIZE)
    _add_products(x.values, y.values, tile, start, stop, state, ALL_SUM)
    _add_products(x.squares, y.squares, tile, start, stop, state, ALL_USUAL)
    for r in range(bottom - top):
        s, largest = state[r], x.tops[top + r, c]
        for j in range(width):
            total = s[ALL_SUM + j]
            s[ALL_LARGEST + j], s[ALL_SUM + j] = largest * y.tops[c, at + np.uintp(j)], abs(total)
            s[ALL_USUAL + j] = np.sqrt(total * total / 3 + s[ALL_USUAL + j] / 6)


@kernel
def _end_chain(x, y, tile, b, plan, c, state):
    """Multiply the results of a chain by its scale and add them to the totals."""
    top, bottom, column, width = tile
    at, roundings, alone = np.uintp(column), 0 if plan.exact[c] else plan.roundings, c == 0 and plan.exact[c]
    factor, highest = plan.factor, plan.highest
    for r in range(bottom - top):
        s = state[r]
        for j in range(width):
            scale = x[top + r, b] * y[b, at + np.uintp(j)]
            most = s[MOST + j] if s[PEAK + j] < highest else np.inf
            exact, most = s[EXACT + j] * factor * scale, most * factor * scale
            variance = s[VARIANCE + j] * (factor * factor) * (scale * scale)
            for _ in range(roundings):
                most += U * (abs(exact) + most) + TINY
                variance += (U * exact) * (U * exact) / 3
            s[SIZES + j] += abs(exact) + most
            if not alone:
                exact, most, variance = s[TOTAL + j] + exact, s[TOTAL_MOST + j] + most, s[TOTAL_VARIANCE + j] + variance
                most += U * (abs(exact) + most) + TINY
                variance += (U * exact) * (U * exact) / 3
            s[TOTAL + j], s[TOTAL_MOST + j], s[TOTAL_VARIANCE + j] = exact, most, variance


@kernel
def _store(chains, tile, state, exact, most, variance):
    """Store the results of a tile; the errors allow for any order in which the results of chains are added."""
    top, bottom, column, width = tile
    for r in range(bottom - top):
        s, i = state[r], top + r
        for j in range(width):
            total, error = s[TOTAL + j], s[TOTAL_MOST + j]
            if chains > 1:
                error += chains * (U * (s[SIZES + j] + abs(total)) / 2 + TINY)
            exact[i, column + j], most[i, column + j], variance[i, column + j] = total, error, s[TOTAL_VARIANCE + j]


@kernel
def chains(x, y, x_scope, y_scope, plan, e, exact, most, variance, first, stop):
    """Write the exact sums of rows `first` to `stop` of ``A @ B.T``, bounds on their errors, and mean squares."""
    state = np.zeros((ROWS, NUMBERS))
    limits, counts = np.zeros((ROWS, WIDTH), np.float32), np.zeros((ROWS, WIDTH), np.float32)
    columns, any_order = y.values.shape[1], plan.scopes.size > 0
    for top in range(first, stop, ROWS):
        for column in range(0, columns, WIDTH):
            tile = top, min(top + ROWS, stop), column, min(WIDTH, columns - column)
            state[:, TOTAL:AFTER] = 0.0
            for c in range(plan.first.size - 1):
                state[:, EXACT:TOTAL] = 0.0
                if any_order and (c == 0 or plan.scopes[c, 0] != plan.scopes[c - 1, 0]):
                    _find_scope(x_scope, y_scope, plan.scopes[c, 0], plan.scopes[c, 1], tile, c, state)
                for b in range(plan.first[c], plan.first[c + 1]):
                    _add_block(x, y, plan, e, tile, b, state, limits, counts)
                _end_chain(x.scales, y.scales, tile, plan.first[c + 1] - 1, plan, c, state)
            _store(plan.first.size - 1, tile, state, exact, most, variance)
