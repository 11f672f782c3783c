"""Random words as a function of (seed, index), independent of chunks, threads and order.

The function is part of the definition of stochastic operations and must not change. With ``index = 2^32 hi + lo``:

1. four key words ``k0..k3`` are the output of Philox4x32-10 (Salmon et al., SC 2011) for the counter
   ``(hi, 0, 0, 0)`` and the key ``(seed mod 2^32, seed div 2^32)``;
2. ``lo`` passes through three rounds of xor-shift and multiplication (the constants of Wellons' ``triple32``), with a
   key word mixed in before each and one after the last; finally ``lo`` itself is added by xor, so that words repeat as
   often as independent ones.

Philox alone, with four words per call, takes four times as long per word in 32-bit lanes, because its wide products do
not vectorize well. Keys depend only on `hi`, so a loop over 2^32 indices computes them once (`key_runs`).
"""

import numpy as np

from lowprec._jit import kernel

U = np.uint32
U64 = np.uint64


@kernel
def random_keys(seed_lo, seed_hi, index_hi):
    """Return the four key words of a seed for indices from ``2^32 * index_hi``: one call of Philox4x32-10."""
    c0, c1, c2, c3 = U(index_hi), U(0), U(0), U(0)
    k0, k1 = U(seed_lo), U(seed_hi)
    for _ in range(10):
        p = U64(c0) * U64(0xD2511F53)
        q = U64(c2) * U64(0xCD9E8D57)
        c0, c1, c2, c3 = (
            U(U(U(q >> U64(32)) ^ c1) ^ k0),
            U(q & U64(0xFFFFFFFF)),
            U(U(U(p >> U64(32)) ^ c3) ^ k1),
            U(p & U64(0xFFFFFFFF)),
        )
        k0, k1 = U(k0 + U(0x9E3779B9)), U(k1 + U(0xBB67AE85))
    return c0, c1, c2, c3


@kernel
def keyed_word(keys, index_lo):
    """Return the random word of an index, given the `random_keys` of its seed and high half."""
    k0, k1, k2, k3 = keys
    lo = U(index_lo)
    # A key that is mixed in by xor can be xor-shifted separately, once for all indices of a loop.
    x = U(U(lo ^ U(lo >> U(17))) ^ U(k0 ^ U(k0 >> U(17))))
    x = U(U(x * U(0xED5AD4BB)) + k1)
    x = U(U(x ^ U(x >> U(11))) * U(0xAC4C1B51))
    x = U(U(x ^ U(x >> U(15))) ^ U(k2 ^ U(k2 >> U(15))))
    x = U(x * U(0x31848BAB))
    x = U(x + k3)
    return U(U(x ^ U(x >> U(14))) ^ lo)


@kernel
def random_word(seed_lo, seed_hi, index_lo, index_hi):
    """Return the random word of (seed, index), each given as 32-bit halves."""
    return keyed_word(random_keys(seed_lo, seed_hi, index_hi), index_lo)


@kernel
def key_runs(start, size):
    """Return the number of parts with common keys in `size` indices from `start`; `key_run` returns one part.

    Only these two functions depend on where keys change. (A generator would be simpler, but Numba loses generators that
    it loads from its disk cache.)
    """
    first, last = np.int64(start) >> np.int64(32), (np.int64(start) + np.int64(size) - np.int64(1)) >> np.int64(32)
    return last - first + np.int64(1) if size > 0 else np.int64(0)


@kernel
def key_run(start, size, part):
    """Return ``(a, b, hi, lo)`` of a part: the indices ``start + a .. start + b``, and the halves of the first."""
    first = np.int64(start)
    hi = (first >> np.int64(32)) + np.int64(part)
    a = max(np.int64(0), (hi << np.int64(32)) - first)
    b = min(np.int64(size), ((hi + np.int64(1)) << np.int64(32)) - first)
    return a, b, U(hi), U((first + a) & np.int64(0xFFFFFFFF))


@kernel
def fill_words(out, seed_lo, seed_hi, start):
    """Write the words of indices `start`, ``start + 1``, ... to uint32 `out`; `start` is below 2^63."""
    for p in range(key_runs(start, out.size)):
        a, b, hi, lo = key_run(start, out.size, p)
        part, keys = out[a:b], random_keys(seed_lo, seed_hi, hi)
        for i in range(part.size):
            part[i] = keyed_word(keys, U(lo + U(i)))
