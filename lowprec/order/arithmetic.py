"""Arithmetic of a tree of additions: formats of its sums and fused products that give the callable's bits."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .order import DTYPES, FLUSHED, FORMATS, FormatName, Order, Steps
from .probed import Probed, RevealError

Array = NDArray[Any]
#: Sums that are compared with a callable.
SAMPLES = 200
#: Kinds of samples that alternate.
KINDS = 6
_SMALLEST = 4
_LONG = 54  # distance in bits at which no format keeps a small term of a sum
# Distance in bits at which a format keeps a small term of a sum, and the formats after it do not.
_KEPT: tuple[tuple[int, FormatName], ...] = ((25, "float64"), (12, "float32"), (9, "float16"))
# Numbers with squares that are not exact in the format.
_INEXACT: dict[str, float] = {
    "float16": 1 + 2.0**-6,
    "bfloat16": 1 + 2.0**-4,
    "float32": 1 + 2.0**-12,
    "float64": 1 + 2.0**-27,
}


def samples(n: int, count: int, operands: int, dtype: np.dtype[Any], seed: int, kinds: int = KINDS) -> list[Array]:
    """Return inputs [count, n] for which different orders and formats of sums give different results.

    Rows alternate between the first `kinds` of: normal data; data over many binades; data of which one half cancels the
    other exactly, so that the result consists of rounding errors; mostly zeros; numbers around the smallest normal one;
    numbers around the largest one, with some Inf in every other row.
    """
    rng = np.random.default_rng(seed)
    spread = 4 if dtype == np.float16 else 12
    limits = np.finfo(dtype if dtype in (np.float16, np.float64) else np.float32)  # bfloat16's differ by half a percent
    rows = []
    for row in range(count):
        pair = [rng.standard_normal(n) for _ in range(operands)]
        kind = row % kinds
        if kind in (1, 2):
            pair[0] *= 2.0 ** rng.integers(-spread, spread, n)
        if kind == 2:
            places, half = rng.permutation(n), n // 2
            for x, sign in zip(pair, (-1, 1), strict=False):
                x[places[half : 2 * half]] = sign * x[places[:half]]
        if kind == 3:
            pair[0][rng.random(n) < 0.8] = 0.0
        if kind == _SMALLEST:
            pair[0] *= float(limits.smallest_normal) * 2.0 ** rng.integers(-6, 3, n)
        if kind > _SMALLEST:
            with np.errstate(over="ignore"):
                pair[0] *= float(limits.max) * 2.0 ** rng.integers(-6, -1, n)
            pair[0][rng.random(n) < (row // kinds % 2) / n] = np.inf
        rows.append(pair)
    with np.errstate(all="ignore"):
        return [np.array([pair[i] for pair in rows]).reshape(count, n).astype(dtype) for i in range(operands)]


def find_arithmetic(probed: Probed, order: Order, *, is_exact: bool, count: int, seed: int) -> Order:
    """Return the order with the formats and fused products that give the callable's bits on all samples.

    `validated_against` has the number of samples.

    Raises
    ------
    RevealError
        If no formats do, or if the callable returns different results for one input.
    """
    inputs, got = _answered(probed, samples(probed.n, count, probed.operands, probed.dtype, seed))
    again = np.array([probed(*vectors) for vectors in zip(*inputs, strict=True)])
    changed = np.flatnonzero(bits(got) != bits(again))
    if len(changed):
        row = int(changed[0])
        raise RevealError(
            f"reveal: {probed.name} must have one answer to one input, got {float(got[row])!r} and "
            f"{float(again[row])!r}",
            probed.evidence(*(x[row] for x in inputs), got=np.array([got[row], again[row]])),
        )
    from_zero = bool(np.copysign(1, probed(np.full(probed.n, -0.0))) > 0)
    order = order.with_(name=order.name, from_zero=from_zero)
    best, fewest = None, np.zeros(0, int)
    candidates = _candidates(probed, order, is_exact)
    flushing = [c for c in candidates if c.sum_format == "float32" and not c.step_formats and c.dtype in FLUSHED]
    for candidate in candidates + [c.with_(name=c.name, flush=True) for c in flushing]:
        with np.errstate(over="ignore"):
            mine = candidate.sum(inputs[0]) if len(inputs) == 1 else candidate.dot(inputs[0], inputs[1])
            mine = mine.astype(np.float64)
        wrong = np.flatnonzero(bits(mine) != bits(got))
        if not len(wrong):
            about = f"0 of {len(got)} sums of {probed.name} differ"
            return candidate.with_(name=order.name, validated_against=about)
        if best is None or len(wrong) < len(fewest):
            best, fewest, expected = candidate, wrong, mine
    assert best is not None
    row, got, expected = int(fewest[0]), got.tolist(), expected.tolist()
    raise RevealError(
        f"reveal: {probed.name} must be a sum in one order for all data, got other bits than its order in any format "
        f"for {len(fewest)} of {len(got)} samples: {got[row]!r} is {expected[row]!r} in {best.arithmetic}",
        probed.evidence(*(x[row] for x in inputs), got=got[row], expected=expected[row]) | {"order": best},
    )


def _answered(probed: Probed, inputs: Sequence[Array]) -> tuple[list[Array], Array]:
    """Return inputs and outputs, without inputs of extreme numbers for which the callable raises, as math.fsum does."""
    rows, got = [], []
    for row, vectors in enumerate(zip(*inputs, strict=True)):
        try:
            got.append(probed(*vectors))
        except RevealError as error:
            if error.__cause__ is None or row % KINDS <= _SMALLEST:
                raise
        else:
            rows.append(row)
    return [x[rows] for x in inputs], np.array(got)


def bits(x: Array) -> Array:
    """Return the bits of float64 numbers, with one bit pattern for all NaNs."""
    words: Array = np.where(np.isnan(x), np.nan, x).view(np.int64)
    return words


def _candidates(probed: Probed, order: Order, is_exact: bool) -> list[Order]:
    """Return the orders that agree with the results so far, one for each possible format of the last step."""
    named = functools.partial(order.with_, name=order.name)
    if is_exact:
        return [named(sum_format="exact")]
    if probed.n == 1:  # the format of a product is seen through the result alone
        return [named(sum_format=fmt) for fmt in sorted(FORMATS, key=lambda f: f != order.dtype)]
    steps, formats = order.steps, _step_formats(probed, order.steps)
    is_fused = _fused_products(probed, steps) if probed.operands == 2 else [False] * probed.n
    # Of two elements that are added, the first product is rounded, or the last one.
    last_of_two = {terms[1] for terms in steps if len(terms) == 2 and max(terms) < probed.n}
    fused = [_with_products(probed.n, steps, each)
             for each in (is_fused, [is_fused[k] and k not in last_of_two for k in range(probed.n)])]  # fmt: skip
    usual = Counter([*formats, order.out_format]).most_common(1)[0][0]
    found = []
    for last in sorted(FORMATS, key=lambda f: f != usual):
        each = [*formats, last]
        common = Counter(each).most_common(1)[0][0]
        plain = named(sum_format=common, step_formats=tuple(enumerate(each)))
        exact = all(is_fused) and all(DTYPES[f].itemsize >= 2 * probed.dtype.itemsize for f in each)
        product = common if exact else min(common, order.dtype, key=lambda f: DTYPES[f].itemsize)
        is_plain = probed.operands == 1 or exact or (not any(is_fused) and product == common)
        found += [plain] * is_plain
        if probed.operands == 2 and (exact or not is_plain):
            for written, numbers in fused if exact else fused[:1]:  # exact: only products that overflow or vanish show
                with_products = tuple((i, product if old is None else each[old]) for i, old in enumerate(numbers))
                found.append(plain.with_(name=order.name, steps=written, fma=True, step_formats=with_products))
    return found


def _leaves(n: int, steps: Steps) -> list[int]:
    """Return one element from the subtree of each term."""
    leaf = list(range(n))
    for terms in steps:
        leaf.append(leaf[terms[0]])
    return leaf


def _step_formats(probed: Probed, steps: Steps) -> list[FormatName]:
    """Return the format of each step except the last.

    The step adds a large and a small number, and the next step subtracts the large one: the small one is the result if
    the format of the step is wide enough.
    """
    n, leaf = probed.n, _leaves(probed.n, steps)
    parent = {term: terms for terms in steps for term in terms}
    large = 2.0**12 if probed.dtype == np.float16 else 1.0
    found: list[FormatName] = []
    for i, (first, second) in enumerate(steps[:-1]):
        outside = next(term for term in parent[n + i] if term != n + i)
        x = np.zeros(n)

        def keeps(bits: int, at: tuple[int, ...] = (leaf[first], leaf[second], leaf[outside]), x: Array = x) -> bool:
            x[list(at)] = large, large * 2.0**-bits, -large
            return probed(x) != 0

        found.append(next((fmt for bits, fmt in _KEPT if keeps(bits)), "bfloat16"))
        if found[-1] == "float64" and probed.dtype != np.float16 and keeps(_LONG):
            raise RevealError(
                f"reveal: {probed.name} must add in float64 or a narrower format, got a sum that keeps {_LONG} bits: "
                "that of long double, or of several numbers", probed.evidence(x, got=probed(x)),
            )  # fmt: skip
    return found


def _fused_products(probed: Probed, steps: Steps) -> list[bool]:
    """Return for each product whether it is fused: added without being rounded to the format of the elements.

    A square is added to the negative of the rounded square: the sum is zero if that square was also rounded.
    """
    n, leaf = probed.n, _leaves(probed.n, steps)
    root = _INEXACT[probed.dtype.name]
    rounded = float(probed.dtype.type(root * root))
    is_fused = [False] * n
    for terms in steps:
        for term in (t for t in terms if t < n):
            other = leaf[next(t for t in terms if t != term)]
            a, b = np.zeros(n), np.zeros(n)
            a[[term, other]], b[[term, other]] = [root, 1.0], [root, -rounded]
            is_fused[term] = probed(a, b) != 0
    return is_fused


def _with_products(n: int, steps: Steps, is_fused: Sequence[bool]) -> tuple[Steps, list[int | None]]:
    """Return the steps with a one-term step added for each rounded product, and the original number of each step."""
    found: list[tuple[int, ...]] = []
    numbers: list[int | None] = []
    renamed = list(range(n))
    for i, terms in enumerate(steps):
        ids = []
        for term in terms:
            if term < n and not is_fused[term]:
                found.append((term,))
                numbers.append(None)
                ids.append(n + len(found) - 1)
            else:
                ids.append(renamed[term])
        found.append(tuple(ids))
        numbers.append(i)
        renamed.append(n + len(found) - 1)
    return tuple(found), numbers
