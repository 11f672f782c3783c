"""HiF8 against en_dtypes, which rounds float32 and narrower: codes, all 16-bit inputs, float32."""

import numpy as np
import pytest
from numpy.typing import NDArray
from peers import peer

import lowprec as lp

pytestmark = pytest.mark.peers
en_dtypes = peer("en_dtypes")


def theirs(x: NDArray[np.floating]) -> NDArray[np.uint8]:
    with np.errstate(all="ignore"):
        return x.astype(np.float32).astype(en_dtypes.hifloat8).view(np.uint8)


def differing(x: NDArray[np.floating]) -> int:
    return int(np.count_nonzero(lp.encode(x, "hif8", policy="ocp_nonsat") != theirs(x)))


def test_codes() -> None:
    codes = np.arange(256, dtype=np.uint8)
    values = codes.view(en_dtypes.hifloat8).astype(np.float32)
    assert np.array_equal(lp.decode(codes, "hif8"), values, equal_nan=True)


def test_every_16_bit_input() -> None:
    words = np.arange(1 << 16, dtype=np.uint32)
    assert differing(words.astype(np.uint16).view(np.float16)) == 0
    assert differing((words << np.uint32(16)).view(np.float32)) == 0


def test_random_float32() -> None:
    bits = np.random.default_rng(0).integers(0, 1 << 32, 1 << 22, dtype=np.uint32)
    assert differing(bits.view(np.float32)) == 0


@pytest.mark.exhaustive
def test_every_float32() -> None:
    step = 1 << 24
    found = 0
    for start in range(0, 1 << 32, step):
        found += differing(np.arange(start, start + step, dtype=np.uint64).astype(np.uint32).view(np.float32))
    assert found == 0
