"""`tolerance`: bounds and expected errors of a product in an arithmetic, and the verdict on a result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._arrays import as_float32, as_real, check_matmul, check_shape
from .._checks import brief_repr, check_choice, check_int, check_optional_int
from .._fpenv import with_default_fpenv
from ..cast.casts import round_to
from ..format.catalogue import formats
from ..scaling.quantized import Quantized
from ..tensorcore.accumulator import Accumulator
from ..tensorcore.catalogue import accumulators
from ..tensorcore.engines.selection import plan_for
from ..tensorcore.library import gemm_libraries
from ..tensorcore.operands import check_is_quantized, check_quantized, promotion_interval
from .checksum import Values
from .faults import named
from .product import Errors, Order, Product, errors_of

Flags = NDArray[np.bool_]
_SAMPLED = 1 << 15  # outputs to sample, at least
Kind = Literal["equal", "inside", "unlike", "impossible"]
OrderOfK = Literal["chains", "any"]


class AtolRtol(NamedTuple):
    """Arguments of ``allclose`` against the exact product.

    Attributes
    ----------
    atol, rtol : float
        Smallest pair: rtol is half an ulp of the result's format, atol what that leaves.
    probability : float
        Probability that a correct result of this shape is refused; 0: proven.
    """

    atol: float
    rtol: float
    probability: float


@dataclass(frozen=True)
class Verdict:
    """Verdict on a result.

    Attributes
    ----------
    kind : {"equal", "inside", "unlike", "impossible"}
        ``equal``: the bits of the emulation. ``inside``: errors as those of the arithmetic in any order. ``unlike``:
        possible, but errors of another size. ``impossible``: some outputs are beyond the proven bound.
    outside : int
        Number of outputs beyond the bound, or with NaN or Inf in the wrong place.
    worst : tuple of int
        Row and column of the largest error relative to the expected one.
    error, allowed : float
        Error there, and the proven bound.
    p : float
        Probability of errors this large or larger by the arithmetic.
    cause : str
        Fault that gives this result, or "".
    """

    kind: Kind
    outside: int
    worst: tuple[int, int]
    error: float
    allowed: float
    p: float
    cause: str = ""

    def __bool__(self) -> bool:
        return self.kind in ("equal", "inside")

    def __str__(self) -> str:
        place, named = f"[{self.worst[0]}, {self.worst[1]}]", f" It is what this does: {self.cause}." * bool(self.cause)
        if self.kind == "equal":
            return "bits equal"
        if self.kind == "inside":
            return "inside what this arithmetic does in some order"
        if self.kind == "unlike":
            return (
                f"possible but unlike this arithmetic (p = {self.p:.1g}): at {place} off by {self.error:.3g}, "
                f"proven bound {self.allowed:.3g}.{named}"
            )
        return (
            f"impossible: {self.outside} outputs are beyond what rounding can do; the worst, at {place}, is off by "
            f"{self.error:.3g}, where at most {self.allowed:.3g} is possible.{named}"
        )


@dataclass(frozen=True, eq=False, repr=False)
class Tolerance:
    """Bounds and expected errors of a product in an arithmetic; see `tolerance`.

    Attributes
    ----------
    exact : float64 array [M, N]
        Product without rounding, within 2^-50 of the sum of magnitudes.
    bound : float64 array [M, N]
        Proven bound on the error of a result in its format; inf where a sum may overflow.
    low, high : float64 arrays [M, N]
        Smallest and largest possible results.
    expected : float64 array [M, N]
        Root mean square error: the model of independent roundings, scaled to the errors of the samples.
    bias : float
        Gain error of the emulation: truncation makes magnitudes smaller.
    samples : tuple of float
        Root mean square error of the emulation and of each sampled order, relative to the model before it was scaled.
    products : tuple of Product
        One per accumulator.
    """

    exact: Values
    bound: Values
    low: Values
    high: Values
    expected: Values
    bias: float
    samples: tuple[float, ...]
    products: tuple[Product, ...]
    _scale: Values
    _results: tuple[NDArray[np.float32], ...]
    _tails: float
    _drift: float

    def __repr__(self) -> str:
        m, n = self.exact.shape
        return (
            f"Tolerance({m}x{n}: bound up to {_largest(self.bound):.3g}, expected {_mean(self.expected):.3g}, "
            f"gain {self.bias:+.2g})"
        )

    def test(self, got: ArrayLike, *, name_faults: bool = True) -> Verdict:
        """Judge a result.

        Parameters
        ----------
        got : array_like, shape (M, N)
            Result to judge: values of the format `out_format`.
        name_faults : bool
            Whether to look for the fault, among ``lowprec.testing.faults``, that gives a result that is not accepted.

        Returns
        -------
        Verdict
            True if the result is accepted: its bits are equal, or its errors are those of the arithmetic.

        Raises
        ------
        ValueError
            If the shape differs, or values are not of the format.
        """
        d = self._checked(got)
        if any(np.array_equal(d, result, equal_nan=True) for result in self._results):
            return Verdict("equal", 0, (0, 0), 0.0, 0.0, 1.0)
        outside, finite = self._outside(d)
        p, z = self._probability(d, finite)
        ranked = np.where(outside, np.inf, z)
        worst = np.unravel_index(int(np.argmax(ranked)), d.shape)
        place = int(worst[0]), int(worst[1])
        with np.errstate(invalid="ignore"):
            error = float(abs(d[place] - self.exact[place]))
        kind: Kind = "impossible" if outside.any() else "inside" if p > _LEAST_P else "unlike"
        cause = ""
        if kind in ("unlike", "impossible") and name_faults:
            cause = named(self.products[0], self.expected, d)
        return Verdict(kind, int(outside.sum()), place, error, float(self.bound[place]), p, cause)

    def atol_rtol(self, probability: float = 0.0) -> AtolRtol:
        """Return the smallest atol and rtol that accept every correct result.

        Parameters
        ----------
        probability : float
            Probability that a correct result is refused, by the model of independent roundings; 0: the proven bound.
        """
        rtol = _half(self.products[0])
        if probability > 0:
            likely = _quantile(probability / max(self.exact.size, 1)) * self._scale + rtol * np.abs(self.exact)
            allowed = np.fmin(likely, self.bound)
        else:
            allowed = self.bound
        left = np.where(np.isfinite(allowed), allowed - rtol * np.abs(self.exact), 0.0)
        return AtolRtol(float(np.max(left, initial=0.0)), rtol, probability)

    # --- parts of a test ----------------------------------------------------------------------------------------------

    def _checked(self, got: ArrayLike) -> Values:
        d = as_real("tolerance: got", got).astype(np.float64)
        check_shape("tolerance", "got", d, self.exact.shape)
        target = formats.get(self.products[0].options["out_format"])
        wrong = np.isfinite(d) & (round_to(d, target) != d)
        if wrong.any():
            raise ValueError(
                f"tolerance: got must hold values of out_format={target}, got {float(d[wrong][0])!r} among "
                f"{int(wrong.sum())} others"
            )
        return d

    def _outside(self, d: Values) -> tuple[Flags, Flags]:
        """Return which outputs are impossible, and which are judged by their size."""
        judged = np.isfinite(self.bound) & np.isfinite(self.exact)
        special = ~np.isfinite(self.exact) & np.isfinite(self.bound + 1) | np.isnan(self.exact)
        with np.errstate(invalid="ignore"):
            places = special & ~((d == self.exact) | (np.isnan(d) & np.isnan(self.exact)))
            beyond = judged & ~((d >= self.low) & (d <= self.high))
        return places | beyond, judged & np.isfinite(d)

    def _probability(self, d: Values, judged: Flags) -> tuple[float, Values]:
        """Return the probability of errors as large as those of a result, and the errors relative to the expected.

        A result in a narrow format shows an error z only if it exceeds the distance t to the next number that is
        rounded otherwise: a normal z with E[z^2; z > t] <= t phi(t) + exp(-t^2 / 2) / 2 on either side, phi being its
        density. Sums of squares, limited to c, exceed their mean by Bernstein's inequality.
        """
        with np.errstate(invalid="ignore", divide="ignore"):
            off, below, above = _before_rounding(d, self.exact, self.products[0])
            z, *ends = (np.nan_to_num(np.abs(x) / self._scale, nan=0.0, posinf=_HUGE) for x in (off, below, above))
        z[~judged] = 0.0
        mean, square = np.zeros(d.shape), np.zeros(d.shape)
        for t in ends:
            tail, density = np.exp(-np.square(np.minimum(t, 30)) / 2), np.minimum(t, 30)
            mean += density * tail / math.sqrt(2 * math.pi) + tail / 2
            square += (density**3 + 3 * density) * tail / math.sqrt(2 * math.pi) + 1.5 * tail
        excess = np.minimum(np.square(z), _MOST) - mean
        found = [2 * d.size * _tail(float(z.max(initial=0.0)) / self._tails)]
        for axis, count in ((None, 1), (0, d.shape[1]), (1, d.shape[0])):
            over = np.maximum(excess.sum(axis=axis), 0.0)
            powers = np.square(over) / 2 / (square.sum(axis=axis) + _MOST * over / 3 + 1e-300)
            found.append(count * float(np.exp(-np.max(powers, initial=0.0))))
        signed = float((np.sign(off) * np.sign(self.exact) * np.minimum(z, 4.0))[judged].sum())
        drift = max(abs(signed) - self._drift * float(mean[judged].sum()), 0.0)
        found.append(2 * math.exp(-(drift**2) / 2 / (float(mean[judged].sum()) + 4 * drift / 3 + 1e-300)))
        return min(1.0, *found), z


#: Smallest probability that is accepted; margin of the model; limits of an error and of its square in sums.
_LEAST_P, _MARGIN, _HUGE, _MOST = 1e-6, 1.25, 1e9, 16.0


def _tail(x: float) -> float:
    return math.erfc(x / math.sqrt(2)) / 2


def _quantile(p: float) -> float:
    """Return the number that a standard normal number exceeds in magnitude with a probability."""
    low, high = 0.0, 40.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if 2 * _tail(middle) > p else (low, middle)
    return max(high, 1.0)


def _pair(values: tuple[ArrayLike, ArrayLike]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    if not isinstance(values, tuple | list) or len(values) != 2:
        raise ValueError(f"tolerance: values must be a pair of arrays, those of a and of b, got {brief_repr(values)}")
    return as_float32("tolerance", values[0]), as_float32("tolerance", values[1])


def _largest(x: Values) -> float:
    return float(np.max(x[np.isfinite(x)], initial=0.0))


def _mean(x: Values) -> float:
    finite = x[np.isfinite(x)]
    with np.errstate(over="ignore"):
        return float(np.sqrt(np.square(finite).mean())) if finite.size else 0.0


def _half(product: Product) -> float:
    target = formats.get(product.options["out_format"])
    return 2.0 ** -(target.mantissa_bits + 1)


def _before_rounding(d: Values, exact: Values, product: Product) -> tuple[Values, Values, Values]:
    """Return the distance from the exact number to the nearest that is rounded to a result, and to its neighbours'.

    The latter are the distances to the next numbers below and above that are rounded otherwise than the exact one.
    """
    target = formats.get(product.options["out_format"])
    if target.same_codes(formats["float32"]):
        return d - exact, np.zeros(d.shape), np.zeros(d.shape)
    right = round_to(exact, target).astype(np.float64)
    found = []
    for x in (d, right):
        mantissa, power = np.frexp(np.nan_to_num(np.abs(x), posinf=0.0))
        ulp = np.ldexp(1.0, np.maximum(power - 1, target.emin) - target.mantissa_bits)
        # Below a power of two, numbers are twice as dense.
        inner = np.where((mantissa == 0.5) & (power - 1 > target.emin), ulp / 4, ulp / 2)
        found.append((np.where(x > 0, inner, ulp / 2), np.where(x < 0, inner, ulp / 2)))
    low, high = found[0]
    off = d - exact
    shown: Values = np.where(off > 0, np.maximum(off - low, 0.0), np.minimum(off + high, 0.0))
    low, high = found[1]
    return shown, np.maximum(exact - right + low, 0.0), np.maximum(right - exact + high, 0.0)


@with_default_fpenv
def tolerance(
    a: Quantized,
    b: Quantized,
    c: ArrayLike | None = None,
    *,
    accumulator: str | Accumulator | Sequence[str | Accumulator] = "hopper_fp8",
    order: OrderOfK = "chains",
    orders: int | None = None,
    seed: int = 0,
    values: tuple[ArrayLike, ArrayLike] | None = None,
    **options: Any,
) -> Tolerance:
    """Bound the error of a product ``alpha * A @ B.T + beta * C`` in a named arithmetic.

    Parameters
    ----------
    a, b : Quantized, shapes (M, K) and (N, K)
        Operands of the product.
    c : array_like, shape (M, N), optional
        Addend.
    accumulator : str, Accumulator, or a sequence of them
        Summation rule, or several: a result of any of them is accepted.
    order : {"chains", "any"}
        Orders of K that a right kernel may have. ``chains``: the chains of `lowprec.gemm`, added in any order; ``any``:
        the products within a scale, and the scales within a split, in any order, for which the bound is larger.
    orders : int, optional
        Number of sampled orders; default: 2 to 32, fewer for large products.
    seed : int
        Seed of the orders.
    values : pair of array_like, optional
        Values before quantization: with them, an operand that was not quantized can be named.
    **options
        Further arguments of `lowprec.gemm`: `promote_every`, `out_format`, `library`, `alpha`, `beta`, `split_k`.

    Returns
    -------
    Tolerance
        Exact product, proven bound and expected error of every output; `Tolerance.test` judges a result.

    Raises
    ------
    ValueError
        If shapes do not match, or an accumulator does not take the operands.
    TypeError
        If an operand is not `Quantized`, or an option is unknown.

    Notes
    -----
    docs/tolerances.md has proofs and measurements.

    Examples
    --------
    >>> import numpy as np, lowprec as lp
    >>> rng = np.random.default_rng(0)
    >>> a, b = (lp.quantize(rng.standard_normal((n, 512), np.float32), "e4m3fn 1x128") for n in (32, 48))
    >>> t = lp.tolerance(a, b, out_format="bfloat16")
    >>> d = lp.gemm(a, b, out_format="bfloat16")
    >>> print(t.test(d))
    bits equal
    >>> print(t.test(lp.round_to(d * np.float32(1.05), "bfloat16")).kind)
    impossible
    """
    several = [accumulator] if isinstance(accumulator, str | Accumulator) else list(accumulator)
    if not several:
        raise ValueError("tolerance: accumulator must be one or more, got none")
    unknown = options.keys() - {"promote_every", "out_format", "library", "alpha", "beta", "split_k"}
    if unknown:
        raise TypeError(f"tolerance: unknown option {min(unknown)!r}; see lowprec.gemm")
    orders, seed = check_optional_int("tolerance", "orders", orders, 0), check_int("tolerance", "seed", seed, 0)
    for name, q in (("a", a), ("b", b)):
        check_is_quantized("tolerance", name, q)
    check_matmul("tolerance", a.shape, b.shape)
    options = {"out_format": "float32", **options}
    sources = None if values is None else _pair(values)
    products = tuple(Product(a, b, c, {**options, "accumulator": accumulators.get(each)}, sources) for each in several)
    check_choice("tolerance", "order", order, ("chains", "any"))
    found = [_errors(product, order == "any") for product in products]
    exact, target = found[0].exact, formats.get(options["out_format"])
    most = np.maximum.reduce([each.most for each in found])
    variance = np.maximum.reduce([each.variance for each in found])
    if orders is None:
        orders = min(max(_SAMPLED // max(found[0].exact.size, 1), 2), 32)
    rngs = [np.random.default_rng([seed, i]) for i in range(orders)]
    moved = [pair for rng in rngs if (pair := reordered(products[0], rng, order)) is not None]
    wide = [p.result(out_format="float32") for p in products]
    wide += [p.result(a=x, b=y, out_format="float32") for p in products for x, y in moved]
    judged = np.isfinite(exact) & np.isfinite(most)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        scores = [_mean(np.sqrt(np.nan_to_num(np.square(d - exact) / variance)[judged])) for d in wide]
        margin = _MARGIN * max(scores) / max(float(np.median(scores)), 1e-300) if judged.any() else 1.0
        scale = np.sqrt(variance) * (max(scores) * margin if judged.any() else 1.0)
        relative = [np.nan_to_num((d - exact) / scale)[judged] for d in wide]
        low, high = (round_to(exact + sign * most, target).astype(np.float64) for sign in (-1, 1))
        rounding = _half(products[0]) * np.abs(exact) / math.sqrt(3) * (not target.same_codes(formats["float32"]))
        error, size = (wide[0] - exact)[judged], exact[judged]
        bound = np.maximum(high - exact, exact - low)
    power = float(np.square(size).sum())
    bias = float((error * size).sum()) / power if power else 0.0
    signs = np.sign(exact[judged])
    tails = max(float(np.abs(z).max(initial=0.0)) for z in relative) / _quantile(1 / max(exact.size, 2))
    drift = max(abs(float((z * signs).mean())) if z.size else 0.0 for z in relative)
    return Tolerance(
        exact, np.where(np.isnan(exact), np.nan, bound), low, high, np.hypot(scale, rounding), bias, tuple(scores),
        products, scale, tuple(p.result() for p in products), max(tails, 1.0), drift,
    )  # fmt: skip


def _errors(product: Product, any_order: bool) -> Errors:
    options, shape = product.options, (product.a.shape[0], product.b.shape[0])
    for name, q in (("a", product.a), ("b", product.b)):
        check_quantized(name, q, options["accumulator"])
    addend, beta = None, float(options.get("beta", 1.0))
    if product.c is not None and beta != 0:
        c = as_real("tolerance: c", product.c)
        check_shape("tolerance", "c", c, shape)
        addend = (c.astype(np.float32) * np.float32(beta)).astype(np.float64)
    return errors_of(product.a, product.b, _order(product, any_order), addend)


def _order(product: Product, any_order: bool = False) -> Order:
    options = product.options
    library, split = gemm_libraries.get(options.get("library", "deepgemm")), options.get("split_k")
    return Order(
        options["accumulator"], library, options.get("promote_every", "auto"),
        library.split_k if split is None else check_int("tolerance", "split_k", split, 1),
        formats.get(options["out_format"]), float(options.get("alpha", 1.0)), any_order,
    )  # fmt: skip


def reordered(
    product: Product, rng: np.random.Generator, order: OrderOfK = "chains"
) -> tuple[Quantized, Quantized] | None:  # fmt: skip
    """Return the operands with K in another order that a right kernel may have, or None if there is only one."""
    a, b, plan = product.a, product.b, _order(product)
    k, way = a.shape[1], plan_for(plan.accumulator, a.format, b.format)
    spans = [min(q.granularity.columns or k, k) for q in (a, b)]
    every = promotion_interval("tolerance", a, b, way, plan.library, plan.promote_every)
    wide, narrow = max(*spans, 1), max(min(spans), 1)
    unit = narrow if order == "any" else (every or k) * (2 if plan.library.k_order == "interleaved" else 1)
    if k == 0 or wide % narrow or (order == "chains" and unit >= k):
        return None
    at, part = np.arange(k), plan.part(k)
    for start in range(0, k, part):
        stop = min(start + part, k)
        size = min(max(wide, unit) if order == "chains" and wide < k else wide, stop - start)
        starts = np.arange(start, stop, size)
        starts[: (stop - start) // size] = rng.permutation(starts[: (stop - start) // size])
        inside = [_permuted(np.arange(i, min(int(i) + size, stop)), min(unit, size), rng, order) for i in starts]
        at[start:stop] = np.concatenate(inside)

    def moved(q: Quantized, span: int) -> Quantized:
        codes = np.ascontiguousarray(q.codes[:, at])
        return replace(q, codes=codes, scale=np.ascontiguousarray(q.scale[:, at[::span] // span]), quantizer=None)

    return moved(a, spans[0]), moved(b, spans[1])


def _permuted(at: NDArray[np.intp], unit: int, rng: np.random.Generator, order: OrderOfK) -> NDArray[np.intp]:
    """Permute the indices within every unit, or whole units; a short last one stays where it is."""
    units = [at[i : i + unit] for i in range(0, len(at), unit)]
    if order == "any":
        return np.concatenate([rng.permutation(each) for each in units])
    full = len(at) // unit
    return np.concatenate([units[i] for i in (*rng.permutation(full), *range(full, len(units)))])
