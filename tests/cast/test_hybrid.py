"""HiF8's hybrid rounding: published examples, and every float16 and many float32 by integers of their bits."""

import numpy as np
import pytest

import lowprec as lp
from lowprec.cast.hybrid import encode_hybrid
from lowprec.oracle import tables

T = tables.hif8()
POSITIVE = [v for v in T.numbers if v >= 0]
PLACES = {value: place for place, value in enumerate(POSITIVE)}
FLOAT32 = [(16.0, 0x41), (16.001, 0x40), (17.0, 0x41), (300.0, 0x61), (2.0**-20, 0x04), (32768.0, 0x6F),
           (-32768.0, 0xEF), (33000.0, 0x6E)]  # fmt: skip
FLOAT16 = [(16.0, 0x40), (17.0, 0x41), (18.015625, 0x40), (300.0, 0x61), (384.0, 0x61), (32768.0, 0x6E),
           (40000.0, 0x6F), (2.0**-24, 0x00), (2.0**-23, 0x01)]  # fmt: skip


@pytest.mark.parametrize(("dtype", "examples"), [(np.float32, FLOAT32), (np.float16, FLOAT16)])
def test_published_examples(dtype: type, examples: list[tuple[float, int]]) -> None:
    x = np.array([value for value, _ in examples], dtype)
    assert encode_hybrid(x, policy="ocp_nonsat").tolist() == [code for _, code in examples]


def hybrid(sign: int, e: int, fraction: int, bits: int, last: int, everywhere: bool) -> int:
    """Return the code of (1 + fraction / 2^bits) 2^e, by the rule as it reads."""
    size = abs(e)
    if size < 4 and not everywhere:
        return tables.cast((-1) ** sign * float(np.ldexp(1 + fraction / 2**bits, e)), T, "nearest_away", "ocp_nonsat")
    w = 3 if size < 4 else 2 if size < 8 else 1 if size < 16 else 0
    if e == -23:
        place = 0
        first = (fraction >> 10) + 8192 if bits == 23 else 2 + (fraction >> 9)
    else:
        value = (1 + (fraction >> bits - w) / 2**w) * 2.0**e
        place = PLACES[value]
        rest = fraction & ((1 << bits - w) - 1)
        first = rest >> (bits - w - (14 if bits == 23 else 2))
    place += first >= (fraction & 0x3FFF if bits == 23 else 2 * last + 1)
    code = 0x6F if place == len(POSITIVE) else T.codes[POSITIVE[place]]
    return code | sign << 7 if code else 0


@pytest.mark.slow
@pytest.mark.parametrize("everywhere", [False, True])
def test_every_float16(everywhere: bool) -> None:
    x = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    keep = (np.abs(x.astype(np.float32)) < 40960) & (np.abs(x.astype(np.float32)) >= 2.0**-23)
    x = x[keep]
    mantissa, exponent = np.frexp(np.abs(x.astype(np.float64)))
    wanted = [
        hybrid(int(word) >> 15, int(e) - 1, int((2 * m - 1) * 1024), 10, int(word) & 1, everywhere)
        for word, m, e in zip(x.view(np.uint16), mantissa, exponent, strict=True)
    ]
    assert encode_hybrid(x, everywhere=everywhere, policy="ocp_nonsat").tolist() == wanted


@pytest.mark.slow
def test_float32() -> None:
    rng = np.random.default_rng(4)
    bits = (rng.integers(104, 143, 20_000) << 23 | rng.integers(0, 1 << 23, 20_000)).astype(np.uint32)
    bits[::3] &= np.uint32(0xFFFC0000)
    bits |= rng.integers(0, 2, bits.size).astype(np.uint32) << np.uint32(31)
    bits = bits[np.abs(bits.view(np.float32)) < 40960]
    wanted = [hybrid(w >> 31, (w >> 23 & 0xFF) - 127, w & 0x7FFFFF, 23, 0, False) for w in bits.tolist()]
    assert encode_hybrid(bits.view(np.float32), policy="ocp_nonsat").tolist() == wanted


def test_values_that_move_and_specials() -> None:
    f = lp.formats["hif8"]
    values = f.values()[np.isfinite(f.values()) & (f.values() > 0)]
    moved = encode_hybrid(values, policy="ocp_nonsat") != lp.encode(values, f)
    assert (values.size, np.count_nonzero(moved)) == (126, 70)
    narrow = values.astype(np.float16)
    assert np.array_equal(encode_hybrid(narrow, policy="ocp_nonsat"), lp.encode(values, f))
    special = np.array([np.nan, np.inf, -np.inf, 40960, 0.0, -0.0, 1e-30, -1e-40], np.float32)
    assert encode_hybrid(special, policy="ocp_nonsat").tolist() == [0x80, 0x6F, 0xEF, 0x6F, 0, 0, 0, 0]
    assert encode_hybrid(special, policy="cann_sat").tolist() == [0, 0x6E, 0xEE, 0x6E, 0, 0, 0, 0]
