"""What test_machines_oracle.py compares, and test_mutants.py must be able to tell apart: tiles for every machine."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from machine_inputs import ADDENDS, FAMILIES, Codes, Tile, dtype_of, tile

from lowprec.oracle import ACCUMULATORS, E8M0FNU, FORMATS, Accumulator, Halves, Rule, Scales, decode, encode

Scaling = tuple[Codes, Codes] | None


def group_of(machine: Accumulator) -> int:
    return 32 if isinstance(machine.rule, Halves) else getattr(machine.rule, "group", 4)


def pairs_of(machine: Accumulator) -> list[tuple[str, str]]:
    return [(a, b) for a in machine.inputs for b in machine.inputs]


def scales_for(machine: Accumulator, x: Tile, mode: str) -> Scaling:
    """Scale codes for the rows of a and b: around 1, falling along K, anything, at the bottom or at the top."""
    if machine.scales is None:
        return None
    fmt, block = machine.scales
    top = 1 << fmt.width
    low, high = {
        "near": (encode(0.02, fmt), encode(64, fmt)),
        "falling": (131, 136) if fmt == E8M0FNU else (0x78, 0x7F),
        "any": (0, 256),
        "low": (0, top // 8),
        "high": (top - top // 8, top),
    }[mode]
    rng = np.random.default_rng([*map(ord, mode + x.name)])
    shapes = [(len(codes), -(-x.a.shape[1] // block)) for codes in (x.a, x.b)]
    a, b = (rng.integers(low, high, shape).astype(np.uint8) for shape in shapes)
    if mode == "falling":  # after the first 32 of every 64, by 24 to 52 binades in all
        far = np.arange(a.shape[1]) * block % 64 >= 32
        low, high = (109, 121) if fmt == E8M0FNU else (1, 10)
        a, b = (np.where(far, rng.integers(low, high, s.shape), s).astype(np.uint8) for s in (a, b))
    return a, b


@dataclass(frozen=True)
class Sample:
    """A tile for a machine, and the outputs about which the oracle is asked."""

    machine: Accumulator
    names: tuple[str, str]
    tile: Tile
    scales: Scaling
    where: tuple[tuple[int, int], ...]

    def wanted(self, rule: Any = None) -> list[int]:
        """The oracle's bits; of another rule than the machine's if one is given."""
        rule = self.machine.rule if rule is None else rule
        fa, fb = (FORMATS[name] for name in self.names)
        x, answers = self.tile, []
        for i, j in self.where:
            own = None
            if self.scales is not None and self.machine.scales is not None:
                own = Scales(self.scales[0][i].tolist(), self.scales[1][j].tolist(), *self.machine.scales)
            answers.append(rule.dot(x.a[i].tolist(), x.b[j].tolist(), int(x.c[i, j]), fa, fb, own))
        return answers


def sample(
    machine: Accumulator,
    names: tuple[str, str],
    family: str,
    shape: tuple[int, int, int],
    addend: str,
    mode: str = "near",
    count: int = 8,
) -> Sample:
    """Build a tile (K rounded up to whole scale blocks) and choose outputs, the corners among them."""
    m, n, k = shape
    block = machine.scales[1] if machine.scales else 1
    formats = (FORMATS[names[0]], FORMATS[names[1]], machine.rule.c_format)
    x = tile(family, formats, (m, n, -(-k // block) * block), addend, getattr(machine.rule, "fraction_bits", 24))
    rng = np.random.default_rng(count)
    where = {(0, 0), (m - 1, n - 1), *zip(*(rng.integers(0, s, count).tolist() for s in (m, n)), strict=True)}
    return Sample(machine, names, x, scales_for(machine, x, mode), tuple(sorted(where)))


def samples(name: str, family: str) -> Iterator[Sample]:
    """All kinds of c; a part of a group, one group, several and a part; every pair of formats in some family."""
    machine = ACCUMULATORS[name]
    group, pairs = group_of(machine), pairs_of(machine)
    turn = list(FAMILIES).index(family)
    if family.startswith("deep"):  # where it takes wide exponents to say something
        pairs = sorted(pairs, key=lambda pair: -sum(FORMATS[x].exponent_bits for x in pair))[:4]
    modes = ("near", "falling", "any", "low", "high", "near")
    modes = modes if turn % 2 else ("falling", "near", *modes[2:])
    for i, (addend, mode) in enumerate(zip(ADDENDS, modes, strict=True)):
        k = (group, 2 * group + group // 2 + 1, max(group // 2 - 1, 1), 4 * group, 3 * group)[(i + turn) % 5]
        yield sample(machine, pairs[(5 * turn + i) % len(pairs)], family, (4, 5, k), addend, mode)
    if name in ("hopper_fp8", "ada_fp8"):  # whose wrong rules every pair must tell apart
        for pair, (k, addend) in product(pairs_of(machine), ((32, "near"), (40, "edge"), (96, "zeros"), (20, "tiny"))):
            yield sample(machine, pair, family, (5, 4, k), addend)
    if family == "zeros":
        yield from _beside_zeros(machine)


def _beside_zeros(machine: Accumulator) -> Iterator[Sample]:
    """Two products of which bits are lost only because zeros take part in the alignment.

    With a float32 result they make 2^-149, its last bit; with a float16 result one is 2^-25, a tie, and the other
    decides it.
    """
    rule = machine.rule
    name = max(machine.inputs, key=lambda x: FORMATS[x].exponent_bits)
    fmt = FORMATS[name]
    if not isinstance(rule, Rule) or rule.exact_within > 1 or machine.scales:
        return
    if rule.c_format.width == 15:
        tiny = 2.0 ** (1 - fmt.bias - fmt.mantissa_bits)
        pairs = [((2.0**-12, tiny), (2.0**-13, 2.0**bit / tiny)) for bit in range(-48, -25)]
    elif fmt.exponent_bits == 8:
        values = [((251, 256), (5, 256)), ((143, 448), (23, 64)), ((255, 255), (73, 7))]
        pairs = [((x * 2.0**-80, z * 2.0**-80), (y * 2.0**-85, w * 2.0**-85)) for (x, y), (z, w) in values]
    else:
        return
    for sides in pairs:
        codes = [np.array([[encode(v, fmt) for v in side]], dtype_of(fmt)) for side in sides]
        if [decode(int(c), fmt) for s in codes for c in s[0]] == [*sides[0], *sides[1]]:
            x = Tile(f"beside zeros {sides}", codes[0], codes[1], np.zeros((1, 1), dtype_of(rule.c_format)))
            yield Sample(machine, (name, name), x, None, ((0, 0),))
