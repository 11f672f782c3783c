"""Test vectors in a golden model: operands of one instruction, with the oracle's results."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..cast.casts import encode
from ..format.catalogue import Format
from ..oracle import ACCUMULATORS, Scales
from ..oracle.accumulators import Accumulator as Oracle
from ..oracle.values import fields
from ..tensorcore.accumulator import Accumulator
from ..tensorcore.catalogue import accumulators

_ROW = 12  # array elements per line


def oracle_answer(accumulator: Accumulator) -> Oracle | None:
    """Return the oracle of an accumulator, or None if its fields differ from the catalogue's entry of its name."""
    name = accumulator.name
    is_shipped = accumulators.is_shipped(name) and accumulators.find(name) == accumulator
    return ACCUMULATORS.get(name) if is_shipped else None


def selftest(name: str, answer: Oracle | None, accumulator: Accumulator, fa: Format, fb: Format, count: int) -> str:
    """Return the C function that compares `count` embedded vectors, of one instruction each, and counts wrong results.

    Half of the vectors have ordinary operands, the others arbitrary codes. If `answer` is None, the function has no
    vectors and returns 0.
    """
    if answer is None:
        return f"static int {name}_selftest(void) {{ return 0; }}"
    rng = np.random.Generator(np.random.Philox(2026))
    k = max(accumulator.step(), 4, accumulator.scale_block)
    a, b = (_codes(rng, fmt, (count, k)) for fmt in (fa, fb))
    stored = accumulator.stored_format
    c = _codes(rng, stored, (count, 1))[:, 0]
    left, right = (fields(accumulator.multiplied(fmt)) for fmt in (fa, fb))
    shift = [fmt.bits - accumulator.multiplied(fmt).bits for fmt in (fa, fb)]
    sa, sb = (_scale_codes(rng, accumulator, (count, k)) for _ in "ab")

    def wanted(i: int) -> int:
        scales = None if answer.scales is None else Scales(sa[i].tolist(), sb[i].tolist(), *answer.scales)
        x, y = ((codes[i] >> places).tolist() for codes, places in zip((a, b), shift, strict=True))
        return _canonical(answer.rule.dot(x, y, int(c[i]), left, right, scales), accumulator)

    arrays = "\n".join(
        f"  static const uint{8 * dtype.itemsize}_t {letter}[] = {{\n{_rows(codes.reshape(-1).tolist())}\n  }};"
        for letter, dtype, codes in (
            ("a", fa.code_dtype, a), ("b", fb.code_dtype, b), ("sa", sa.dtype, sa), ("sb", sb.dtype, sb),
            ("c", stored.code_dtype, c), ("d", stored.code_dtype, np.array([wanted(i) for i in range(count)])),
        )
        if codes.size
    )  # fmt: skip
    block = sa.shape[1]
    scales = f", sa + {block} * i, sb + {block} * i" if block else ""
    return (
        f"static int {name}_selftest(void) {{ /* {count} vectors of {k} products */\n{arrays}\n"
        f"  int i, wrong = 0;\n"
        f"  for (i = 0; i < {count}; i++) wrong += {name}(a + {k} * i, b + {k} * i{scales}, {k}, c[i]) != d[i];\n"
        f"  return wrong;\n}}"
    )


def _codes(rng: np.random.Generator, fmt: Format, shape: tuple[int, int]) -> np.ndarray:
    """Return codes in a format: magnitudes near 1 in the first half of the rows, arbitrary codes in the second."""
    codes = rng.integers(0, 1 << fmt.bits, shape, dtype=np.uint64)
    one = fmt.has_subnormals - fmt.emin
    near = ((one + rng.integers(-4, 4, shape)) << fmt.mantissa_bits) | rng.integers(0, 1 << fmt.mantissa_bits, shape)
    near = np.clip(near, 0, fmt.max_code).astype(np.uint64) | rng.integers(0, 2, shape).astype(np.uint64) * np.uint64(
        fmt.sign_mask
    )
    half = shape[0] // 2 + 1
    codes[:half] = near[:half]
    return codes.astype(fmt.code_dtype)


def _scale_codes(rng: np.random.Generator, accumulator: Accumulator, shape: tuple[int, int]) -> np.ndarray:
    """Return codes of scales near 1, one for each block of K; no columns if the accumulator takes no scales."""
    fmt, block = accumulator.scale_format, accumulator.scale_block
    if fmt is None:
        return np.empty((shape[0], 0), np.uint8)
    one = int(encode(1.0, fmt))
    return rng.integers(one - 9, one + 9, (shape[0], shape[1] // block)).astype(np.uint8)


def _canonical(bits: int, accumulator: Accumulator) -> int:
    """Return the oracle's result, with NaN replaced by the accumulator's canonical NaN, if it has one."""
    stored = accumulator.stored_format
    assert stored.inf_code is not None
    is_nan = bits & (stored.sign_mask - 1) > stored.inf_code
    return stored.sign_mask - 1 if is_nan and accumulator.has_canonical_nan else bits


def _rows(numbers: Sequence[int]) -> str:
    lines = (", ".join(hex(n) for n in numbers[i : i + _ROW]) for i in range(0, len(numbers), _ROW))
    return ",\n".join(f"    {line}" for line in lines)
