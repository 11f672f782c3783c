"""Callables with a known order: trees drawn at random, and how they lie."""

import random

import numpy as np

from lowprec.order.order import DTYPES, Order

FORMATS = tuple(DTYPES)


def steps_of(rng: random.Random, n: int) -> tuple[tuple[int, ...], ...]:
    """Return a random tree: of any two terms, or mostly of chains."""
    terms, found, chain = list(range(n)), [], rng.random() < 0.5
    rng.shuffle(terms)
    while len(terms) > 1:
        first = terms.pop(-1 if chain and rng.random() < 0.8 else rng.randrange(len(terms)))
        second = terms.pop(rng.randrange(len(terms)))
        found.append((first, second))
        terms.append(n + len(found) - 1)
    return tuple(found)


def order_of(seed: int, operands: int, most: int = 24) -> Order:
    """Return a random order of float32 elements: formats of the sums, fused products, sums from zero."""
    rng = random.Random(seed)
    n = rng.randint(2, most)
    sum_format = rng.choice(["float32", "float32", "float64", "bfloat16", "float16"])
    dtype = "float16" if sum_format == "float16" else "float32"
    some = {} if rng.random() < 0.6 or sum_format == "float16" else {"step_formats": tuple(
        (i, rng.choice(["float32", "float64"])) for i in range(n - 2) if rng.random() < 0.2)}  # fmt: skip
    fma = operands == 2 and sum_format == "float32" and rng.random() < 0.7
    out = sum_format if sum_format in ("float32", "float64") else "float32"
    return Order("planted", steps_of(rng, n), dtype=dtype, sum_format=sum_format, out_format=out,
                 fma=fma, from_zero=rng.random() < 0.5, **some)  # fmt: skip


def called(order: Order, operands: int):
    """Return an order as a callable."""
    return (lambda a, b: order.dot(a, b)) if operands == 2 else (lambda x: order.sum(x))


def one_by_one(x):
    return np.cumsum(x)[-1]
