"""Kinds of accumulators are classes: each says all about itself, and the fields that it has decide bits."""

from typing import Any

import numpy as np
import pytest

import lowprec as lp
from lowprec import oracle
from lowprec._values import deciding
from lowprec.tensorcore.accumulator import Accumulator
from lowprec.tensorcore.kinds import KINDS

CATALOGUE = [lp.accumulators[name] for name in lp.accumulators.names()]


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_tells_its_words_and_its_oracle(kind: type[Accumulator]) -> None:
    assert 10 < len(kind.words) < 120
    assert hasattr(oracle, kind.oracle), f"{kind.__name__}: lowprec.oracle has no {kind.oracle}"
    assert any(type(entry) is kind for entry in CATALOGUE), f"no accumulator is a {kind.__name__}"


#: Other values of fields.
OTHERS: dict[str, tuple[Any, ...]] = {
    "group": (2, 4, 8, 16), "fraction_bits": (11, 5), "align": ("floor", "nearest"),
    "output_format": ("float16", "float32"), "zero_exponent": (3, -1), "run": (2, 4, 1), "promote_every": (64, 128),
}  # fmt: skip


def result(machine: Accumulator, codes: np.ndarray, scales: dict[str, Any]) -> bytes:
    fmt = "e2m1fn" if scales else "e5m2"
    d = lp.mma(codes, codes[::-1], accumulator=machine, a_format=fmt, b_format=fmt, **scales)
    return d.astype(np.float32).tobytes()


@pytest.mark.parametrize("kind", KINDS)
def test_its_fields_decide_bits(kind: type[Accumulator]) -> None:
    base = next(m for m in CATALOGUE if type(m) is kind and m.dtype != np.float64).with_(input_formats=())
    rng = np.random.default_rng(3)
    scales = {}
    if base.scale_format is not None:
        shape = (12, 256 // base.scale_block)
        scales = {side: rng.integers(0, 0x7E, shape).astype(np.uint8) for side in ("a_scale", "b_scale")}
    codes = rng.integers(0, 16 if scales else 0x4C, (12, 256), dtype=np.uint8)  # some float16 sums stay finite
    codes |= (rng.integers(0, 2, codes.shape) << 7).astype(np.uint8) if not scales else np.uint8(0)
    codes[::3] = np.where(rng.random((4, 256)) < 0.8, 0, codes[::3])
    own = result(base, codes, scales)
    for field in deciding(kind):
        different = []
        for value in OTHERS.get(field, ()):
            try:
                if (machine := base.with_(**{field: value})) != base:
                    different.append(result(machine, codes, scales) != own)
            except ValueError:  # fields that do not go together
                continue
        if field in OTHERS and (different or field != "output_format"):  # the other may be float64
            assert any(different), f"{kind.__name__}: {field}"
