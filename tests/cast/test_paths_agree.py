"""Casts of any format, rounding, policy and source type: what a kernel does for some is what the general path does.

Formats are drawn from every width up to 23 mantissa bits. The general path takes float64; exact rationals that share no
code with either are asked on a sample.
"""

import functools
import itertools
from collections.abc import Iterator
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from floats import bits
from numpy.typing import NDArray

import lowprec as lp
from lowprec import oracle
from lowprec.cast.streams import streams
from lowprec.format.policy import Policy
from lowprec.oracle import casts

F64 = NDArray[np.float64]
SPECIALS = ("ieee", "fn", "fnuz", "finite", "extended")
BELOW_HALF = (1 << 31) - 1
#: Words that the catalogue does not have: one way for each sign, a last bit that is set, ends that a sticky bit hides.
OWN_ROUNDINGS = (
    lp.Rounding("even above zero, down below", BELOW_HALF, (1 << 32) - 1, ties_even=True),
    lp.Rounding("even below zero", 0, BELOW_HALF, ties_even=True),
    lp.Rounding("ties toward zero", BELOW_HALF, BELOW_HALF),
    lp.Rounding("a word without a last bit", 1 << 30, 3 << 30, ties_even=True),
    lp.Rounding("nearly away", (1 << 32) - 2, (1 << 32) - 3),
    lp.Rounding("nearly away, even", (1 << 32) - 3, (1 << 32) - 2, ties_even=True),
)
ROUNDINGS = (*(lp.roundings[name] for name in lp.roundings), lp.Rounding.stochastic(3, "C"), *OWN_ROUNDINGS)
POLICIES = (
    *(lp.policies[name] for name in lp.policies),
    Policy("keeps", inf="keep"), Policy("signed", overflow="signed", inf="signed", negative_zero="positive"),
    Policy("nan", overflow="nan", nan="negative", negative_to_unsigned="round_zero"),
)  # fmt: skip
SEED, OFFSET = 7 << 33 | 5, 2**32 - 40


def formats(m: int) -> Iterator[lp.Format]:
    """Yield formats with so many mantissa bits: all widths of exponents, kinds of topmost codes, and extreme biases."""
    for e, specials, signed in itertools.product(range(1, 9), SPECIALS, (True, False)):
        usual = (1 << (e - 1)) - 1
        for bias in dict.fromkeys((usual, usual + 3, (1 << e) - 128, (1 << e) - 127, 130, 150 - m)):
            for only_normal in (False, True):
                lacks = {"has_zero" if m == 0 else "subnormals": not only_normal}
                try:
                    f = lp.Format(f"e{e}m{m}", e, m, bias, signed, specials, **lacks)
                except ValueError:
                    continue
                if not 12 < f.bits <= 16 or (f.emin >= -126 and f.has_subnormals):  # a table of 16 bits takes 0.2 s
                    yield f
    for specials, bias in itertools.product(("integer", "symmetric"), (1 - m, 0, 100)) if m else ():
        yield lp.Format(f"int{m + 1}", 0, m, bias, specials=specials)


def inputs(f: lp.Format, rng: np.random.Generator) -> F64:
    """Values of the format, points between neighbours and beside them, ends, tiny numbers, NaNs of several patterns."""
    top = f.max_code
    codes = {0, 1, 2, 3, top - 1, top, 1 << f.mantissa_bits, *rng.integers(0, top + 1, 12).tolist()}
    low = np.array([abs(f.value(c)) for c in sorted(codes) if 0 <= c < top])
    high = np.array([abs(f.value(c + 1)) for c in sorted(codes) if 0 <= c < top])
    points = [low + (high - low) * k / 16 for k in (0, 4, 8, 12)]
    tiny = f.smallest_subnormal * np.exp2(-np.array([1.0, 2, 3, 9, 24, 30, 31, 32, 33, 40, 60]))
    with np.errstate(over="ignore", under="ignore"):
        last = f.max * np.array([1.0, 1 + 2.0**-24, 1 + 2.0**-23, 1.03, 1.0625, 1.25, 1.5, 2, 4])
        near = np.concatenate([*points, last, tiny, 1.5 * tiny]).astype(np.float32)
        numbers = np.concatenate([near, np.nextafter(near, np.float32(0)), np.nextafter(near, np.float32(np.inf))])
    special = np.array([0, 1, 0x7FFFFF, 0x800000, 0x7F7FFFFF, 0x7F800000, 0x7FC00000, 0x7FFFFFFF], np.uint32)
    numbers = np.concatenate([numbers, special.view(np.float32)])
    return np.concatenate([numbers, -numbers]).astype(np.float64)


def sources(x: F64) -> Iterator[NDArray[np.generic]]:
    """Yield the numbers in types that other paths take, as far as they have them."""
    with np.errstate(over="ignore", invalid="ignore"):
        yield x.astype(np.float32)
        yield x.astype(np.float16)
        yield x.astype(ml_dtypes.bfloat16)
        whole = np.unique(np.rint(x[np.abs(x) < 2.0**53]))
    yield whole.astype(np.int64)
    yield whole[np.abs(whole) < 128].astype(np.int8)
    yield whole[(whole >= 0) & (whole < 65536)].astype(np.uint16)


def check(f: lp.Format, mode: lp.Rounding, policy: Policy, x: F64) -> None:
    """Compare every path with the codes of float64."""
    how = {"rounding": mode, "policy": policy, **({"seed": SEED, "offset": OFFSET} if mode.is_stochastic else {})}
    for source in sources(x):
        with np.errstate(invalid="ignore"):
            wide = source.astype(np.float64)
        codes = lp.encode(wide, f, **how)
        found = lp.encode(source, f, **how)
        wrong = np.flatnonzero(found != codes)
        assert not wrong.size, (
            f"{f!r} {mode!r} {policy.name}, {source.dtype}: {wrong.size} of {codes.size}; (input, found, float64's): "
            f"{[(source[i], hex(found[i]), hex(codes[i])) for i in wrong[:4]]}"
        )
        values = bits(lp.decode(codes, f))
        for one in (source, wide):
            assert np.array_equal(bits(lp.round_to(one, f, **how)), values), f"{f!r} {mode!r} {policy.name} round_to"
        if source.dtype == np.float32:
            in_place = source.copy()
            lp.round_to(in_place, f, out=in_place, **how)
            assert np.array_equal(bits(in_place), values), f"{f!r} {mode!r} {policy.name} in place"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("m", range(24))
def test_formats_of_every_width(m: int) -> None:
    """Each width of exponents with drawn formats, roundings and policies."""
    rng = np.random.default_rng([11, m])
    everything = list(formats(m))
    for e in range(9):
        some = [f for f in everything if f.exponent_bits == e]
        for _ in range(4 if some else 0):
            f = some[rng.integers(len(some))]
            check(f, ROUNDINGS[rng.integers(len(ROUNDINGS))], POLICIES[rng.integers(len(POLICIES))], inputs(f, rng))


@pytest.mark.sampled(11)
@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: p.name)
@pytest.mark.parametrize("m", [22, 23])
def test_every_rounding_and_policy_where_little_or_nothing_is_cut(m: int, policy: Policy) -> None:
    rng = np.random.default_rng(m)
    own = [lp.Format("e7", 7, m), lp.Format("fnuz", 7, m, 20, specials="fnuz"), lp.Format("e8", 8, m)]
    for i, mode in enumerate(ROUNDINGS):
        check(own[i % len(own)], mode, policy, inputs(own[i % len(own)], rng))
    for f in own:
        check(f, lp.roundings["nearest_even"], policy, inputs(f, rng))


def away_by_words(mode: lp.Rounding) -> casts.Away:
    """Return what the fields of a rounding without chance mean, in fractions."""

    def away(nu: Fraction, odd: bool, negative: bool, *_: object) -> bool:
        word = mode.negative_increment if negative else mode.positive_increment
        if word & 1:  # goes on with ones: all but a last one is added, and that too for odd codes
            total = nu + Fraction(word + 1, 1 << 32)
            return total > 1 or (total == 1 and mode.ties_even and odd)
        return nu + Fraction(word, 1 << 32) >= 1

    return away


@functools.cache
def preset_of(f: lp.Format) -> str:
    return "p3109_satnone" if f.specials == "extended" else "ocp_nonsat"


@pytest.mark.parametrize("m", range(24))
def test_a_sample_against_exact_rationals(m: int) -> None:
    rng = np.random.default_rng([5, m])
    everything = list(formats(m))
    if m == 0:  # code 0 is a number: -2^emin is no -0
        everything += [f for f in everything if f.signed and not f.has_zero] * 20
    for _ in range(16):
        f = everything[rng.integers(len(everything))]
        mode = ROUNDINGS[rng.integers(len(ROUNDINGS))]
        x = rng.permutation(inputs(f, rng))[:24].astype(np.float32)
        fields, preset, own = oracle.fields(f), preset_of(f), mode in OWN_ROUNDINGS
        how = {"seed": SEED, "offset": OFFSET} if mode.is_stochastic else {}
        if own:  # which way an own rounding overflows is the policy's question
            x = x[~(np.abs(x) >= f.max)]
            wanted = [casts.cast(v, fields, preset=preset, rule=away_by_words(mode)) for v in x.tolist()]
        else:
            named, count = mode.variant if mode.is_stochastic else mode.name, mode.random_bits
            words = streams["lowprec"].words(SEED, OFFSET, x.size).tolist()
            drawn = zip(x.tolist(), (word >> (32 - count) for word in words), strict=True)
            wanted = [casts.cast(v, fields, named, preset, r, count) for v, r in drawn]
        found = lp.encode(x, f, rounding=mode, policy=preset, **how)
        wrong = [(v, hex(c), hex(w)) for v, c, w in zip(x.tolist(), found, wanted, strict=True) if c != w]
        assert not wrong, (f, mode, preset, wrong[:5])


@pytest.mark.parametrize("signed_values", [[-(2.0**-31), 2.0**-31, -(2.0**-30), 2.0**-30]])
def test_numbers_of_a_format_without_zero_are_kept(signed_values: list[float]) -> None:
    f = lp.Format("s", 6, 0, specials="finite", has_zero=False)
    for name in lp.roundings:
        codes = lp.encode(signed_values, f, rounding=name, seed=1 if lp.roundings[name].is_stochastic else None)
        assert lp.decode(codes, f).tolist() == signed_values, name
    assert lp.encode([-0.0, -1e-30, 1e-30], f).tolist() == [64, 64, 0]
    assert lp.encode(f.values(), f).tolist() == [*range(128)]
