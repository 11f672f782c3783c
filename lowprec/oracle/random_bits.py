"""Random word of (seed, index) in Python integers: four keys from Philox4x32-10, mixed in by three rounds."""

from __future__ import annotations

import functools

_MASK = 0xFFFFFFFF


@functools.lru_cache(maxsize=1 << 10)
def random_keys(seed: int, index_hi: int) -> tuple[int, int, int, int]:
    """Return Philox4x32-10's output for the counter (index_hi, 0, 0, 0) and the key (low and high half of the seed)."""
    c = (index_hi & _MASK, 0, 0, 0)
    k = (seed & _MASK, seed >> 32 & _MASK)
    for _ in range(10):
        p, q = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = (q >> 32 ^ c[1] ^ k[0], q & _MASK, p >> 32 ^ c[3] ^ k[1], p & _MASK)
        k = (k[0] + 0x9E3779B9 & _MASK, k[1] + 0xBB67AE85 & _MASK)
    return c


def random_word(seed: int, index: int) -> int:
    """Return the 32-bit random word that stochastic operations take for an element.

    Parameters
    ----------
    seed, index : int
        Integers below 2^64.

    Examples
    --------
    >>> hex(random_word(1, 0)), hex(random_word(1, 1))
    ('0x6db921d3', '0xb728663d')
    """
    keys, lo = random_keys(seed, index >> 32), index & _MASK
    x = lo ^ keys[0]
    x = (x ^ x >> 17) * 0xED5AD4BB & _MASK
    x = x + keys[1] & _MASK
    x = (x ^ x >> 11) * 0xAC4C1B51 & _MASK
    x ^= keys[2]
    x = (x ^ x >> 15) * 0x31848BAB & _MASK
    x = x + keys[3] & _MASK
    return x ^ x >> 14 ^ lo
