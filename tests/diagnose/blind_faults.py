"""Quantizers in NumPy with one, two or three faults at places of their pipeline: what `check` is tested with blindly.

The faults are written from their description, and share no code with the causes that `check` knows.
`PYTHONPATH=. python tests/diagnose/blind_faults.py COUNT [SEED]` prints what was not named, and the counts by fault.
"""

from __future__ import annotations

import secrets
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import wrong_codes as wrong
from numpy.typing import NDArray

import lowprec as lp

F32 = NDArray[np.float32]
Result = tuple[NDArray[Any], F32, np.float32 | None]
SHAPES = ((64, 256), (48, 384))


@dataclass
class Pipeline:
    """What each place of a quantizer does; faults replace it."""

    hand: wrong.Hand
    rng: np.random.Generator
    x: F32
    input: Callable[[F32], F32] = field(default=lambda x: x)
    amax: Callable[[F32], F32] = field(default=lambda blocks: np.abs(blocks).max(axis=-1))
    after: Callable[[F32], F32] = field(default=lambda a: a)
    top: float | None = None
    scale_rounding: str = "nearest_even"
    power: Callable[[F32], F32] | None = None
    rounding: str = "nearest_even"
    through: Callable[[F32], F32] = field(default=lambda v: v)
    patch: Callable[[F32, Any], Any] = field(default=lambda v, codes: codes)
    codes: Callable[[Any], Any] = field(default=lambda codes: codes)
    scale: Callable[[F32], F32] = field(default=lambda s: s)
    tensor: Callable[[Any], Any] = field(default=lambda t: t)

    def run(self) -> Result:
        """Return codes, scales of blocks and of the tensor, as stored."""
        hand, x = self.hand, np.ascontiguousarray(self.input(self.x))
        rows, columns = (min(b, n) for b, n in zip(hand.block, x.shape, strict=True))
        shape = x.shape[0] // rows, x.shape[1] // columns
        blocks = x.reshape(shape[0], rows, shape[1], columns).transpose(0, 2, 1, 3).reshape(*shape, rows * columns)
        a = self.after(np.maximum(self.amax(blocks), np.float32(hand.floor)).astype(np.float32))
        largest = np.float32(lp.formats[hand.fmt].max if self.top is None else self.top)
        with np.errstate(all="ignore"):
            if hand.kind == "nvfp4":
                e = np.float32(448) * largest / np.abs(x).max()
                raw = a * (e * (np.float32(1) / largest))
                s = lp.round_to(raw, "e4m3fn", rounding=self.scale_rounding, policy="ocp_sat")
                tensor = np.float32(1) / e
                factor = np.minimum(np.float32(1) / (s * tensor), np.finfo(np.float32).max)
            else:
                s, factor, tensor = hand._scales(a, largest, np.float32(0), self.power)
                if self.scale_rounding != "nearest_even":
                    exact = a.astype(np.float64) / float(largest)
                    sign = 1 if self.scale_rounding == "up" else -1
                    beyond = sign * (exact - s) > 0
                    s = factor = np.where(beyond, np.nextafter(s, np.float32(sign * np.inf)), s)
            wide = np.repeat(np.repeat(factor, rows, 0), columns, 1)
            v = x / wide if hand.kind == "divide" else x * wide
            zero = np.repeat(np.repeat(a, rows, 0), columns, 1) == 0
        v = self.through(np.where(zero, x, v).astype(np.float32))
        codes = self.patch(v, lp.encode(v, hand.fmt, rounding=self.rounding, policy="ocp_sat"))
        return self.codes(codes), np.ascontiguousarray(self.scale(s)), self.tensor(tensor)


class Fault(NamedTuple):
    """A fault: the place it changes, the causes that name it, what it sets (None where it cannot be)."""

    name: str
    place: str
    answers: frozenset[str]
    make: Callable[[Pipeline], Any]


FAULTS: list[Fault] = []


def fault(name: str, place: str, *answers: str) -> Callable[[Callable[[Pipeline], Any]], Callable[[Pipeline], Any]]:
    def wrap(make: Callable[[Pipeline], Any]) -> Callable[[Pipeline], Any]:
        FAULTS.append(Fault(name, place, frozenset(answers), make))
        return make

    return wrap


def _several(p: Pipeline) -> bool:
    return p.hand.name != "te_current"


def _sign(p: Pipeline) -> int:
    return 8 if p.hand.fmt == "e2m1fn" else 128


ROUNDED, ORDER = "input rounded first", "in another order"
PART, DIRECTED = "amax of a part of the block", "scale rounded in another direction"
fault("input through bfloat16", "input", ROUNDED)(lambda p: lambda x: lp.round_to(x, "bfloat16"))
fault("input through float16", "input", ROUNDED)(lambda p: lambda x: x.astype(np.float16).astype(np.float32))
fault("rows shifted", "input", f"rows {ORDER}", f"rows of the codes {ORDER}")(lambda p: lambda x: np.roll(x, 1, 0))
fault("columns reversed", "input", f"columns {ORDER}", f"columns of the codes {ORDER}")(lambda p: lambda x: x[:, ::-1])

fault("amax without abs", "amax", PART)(lambda p: lambda b: np.maximum(b.max(-1), 0))
fault("amax without the last", "amax", PART)(lambda p: lambda b: np.abs(b[..., :-1]).max(-1))
fault("amax of half", "amax", PART)(lambda p: lambda b: np.abs(b[..., : b.shape[-1] // 2]).max(-1))
fault("amax of every other", "amax", PART)(lambda p: lambda b: np.abs(b[..., ::2]).max(-1))
for _epsilon in (1e-3, 1e-4):
    fault(f"amax + {_epsilon:g}", "after", "epsilon added")(lambda p, e=_epsilon: lambda a: a + np.float32(e))
fault("amax doubled", "after", "amax multiplied", "scales multiplied")(
    lambda p: (lambda a: a * np.float32(2)) if p.hand.kind != "nvfp4" else None)  # fmt: skip


@fault(
    "stale tile", "after", "amax of a neighbouring block", "scales of a neighbouring block", "scales shifted by blocks"
)
def _stale(p: Pipeline) -> Any:
    u, v = p.rng.random(2)

    def change(a: F32) -> F32:
        a = a.copy()
        i, j = int(u * a.shape[0]), 1 + int(v * (a.shape[1] - 1))
        a[i, j] = a[i, j - 1]
        return a

    return change if _several(p) and p.hand.kind in ("divide", "power") else None


fault("maximum 240", "top", "scale for the maximum of another format")(
    lambda p: 240.0 if p.hand.fmt == "e4m3fn" else None)  # fmt: skip
fault("scales rounded up", "scale_rounding", DIRECTED)(lambda p: "up" if p.hand.kind in ("divide", "nvfp4") else None)
fault("scales rounded down", "scale_rounding", DIRECTED)(
    lambda p: "down" if p.hand.kind in ("divide", "nvfp4") else None)  # fmt: skip
fault("floor of the exponent", "power", "scale from another arithmetic")(
    lambda p: wrong.floor_power(p.hand.fmt) if p.hand.kind == "power" else None)  # fmt: skip

for _mode in ("toward_zero", "down", "up"):
    fault(f"rounded {_mode}", "rounding", "rounded in another direction")(lambda p, mode=_mode: mode)
fault("ties away", "rounding", "tie rounded otherwise")(lambda p: "nearest_away")
fault("rounded through bfloat16", "through", "rounded twice")(lambda p: lambda v: lp.round_to(v, "bfloat16"))
fault("zeros without sign", "patch", "sign of zero dropped")(
    lambda p: lambda v, c: np.where(c == _sign(p), 0, c).astype(np.uint8))  # fmt: skip


@fault("subnormals flushed", "patch", "subnormals flushed to zero")
def _flushed(p: Pipeline) -> Any:
    smallest = lp.formats[p.hand.fmt].smallest_normal
    return lambda v, c: np.where(np.abs(lp.decode(c, p.hand.fmt)) < smallest, c & _sign(p), c).astype(np.uint8)


@fault("overflow is NaN", "patch", "overflow not saturated")
def _overflow(p: Pipeline) -> Any:
    if p.hand.fmt == "e2m1fn":
        return None
    return lambda v, c: np.where(np.abs(v) > 464, 0x7F | (c & 128), c).astype(np.uint8)


WRITTEN = "codes not written"
for _rows in (2, 9, 16):
    fault(f"last {_rows} rows zero", "codes", WRITTEN)(lambda p, n=_rows: lambda c: _filled(c, np.s_[-n:]))
fault("last columns zero", "codes", WRITTEN)(lambda p: lambda c: _filled(c, np.s_[:, -32:]))
fault("last tile zero", "codes", WRITTEN)(lambda p: lambda c: _filled(c, np.s_[-32:, -32:]))


def _filled(c: Any, at: Any) -> Any:
    c = c.copy()
    c[at] = 0
    return c


fault("nibbles swapped", "codes", "nibbles swapped")(
    lambda p: (lambda c: c.reshape(-1, 2)[:, ::-1].reshape(c.shape)) if p.hand.fmt == "e2m1fn" else None)  # fmt: skip
fault("words in reverse", "codes", "bytes of a word in reverse")(
    lambda p: (lambda c: c.reshape(-1, 4)[:, ::-1].reshape(c.shape)) if p.hand.fmt == "e4m3fn" else None)  # fmt: skip
fault("rows of codes shifted", "codes", f"rows {ORDER}", f"rows of the codes {ORDER}")(
    lambda p: lambda c: np.roll(c, 3, 0))  # fmt: skip
fault("signs inverted", "codes", "signs inverted")(lambda p: lambda c: c ^ np.uint8(_sign(p)))


@fault("one flipped bit", "codes", "bit flipped")
def _flip(p: Pipeline) -> Any:
    i, j, bit = p.rng.integers(48), p.rng.integers(256), p.rng.integers(4 if p.hand.fmt == "e2m1fn" else 8)
    mask = np.zeros(p.x.shape, np.uint8)
    mask[i, j] = 1 << bit
    return lambda c: c ^ mask


fault("scales inverted", "scale", "scales inverted")(lambda p: lambda s: np.float32(1) / s)
fault("scales doubled", "scale", "scales multiplied")(lambda p: lambda s: s * np.float32(2))
fault("scales transposed", "scale", "scales transposed")(lambda p: (lambda s: s.T) if _several(p) else None)
fault("scales shifted", "scale", "scales shifted by blocks")(
    lambda p: (lambda s: np.roll(s, 1, 1)) if _several(p) and p.hand.block != (128, 128) else None)  # fmt: skip
fault("scales in bfloat16", "scale", "scales rounded")(
    lambda p: (lambda s: lp.round_to(s, "bfloat16")) if p.hand.kind == "divide" else None)  # fmt: skip
fault("scales missing", "scale", "scales missing")(lambda p: np.ones_like)
fault("scale bytes as numbers", "scale", "scales stored as raw bytes")(
    lambda p: (lambda s: (s.view(np.uint32) >> 23).astype(np.float32)) if p.hand.kind == "power" else None)  # fmt: skip


@fault("some scales an ulp up", "scale", "scales off by steps of their format")
def _ulp(p: Pipeline) -> Any:
    some = p.rng.random((1024, 64)) < 0.1

    def change(s: F32) -> F32:
        return np.where(some[: s.shape[0], : s.shape[1]], np.nextafter(s, np.float32(np.inf)), s)

    return change if p.hand.kind == "divide" and p.hand.block == (1, 128) else None


fault("last rows of scales zero", "scale", "scales not written")(
    lambda p: (lambda s: _filled(s, np.s_[-4:])) if _several(p) and p.hand.block[0] == 1 else None)  # fmt: skip
for _name, _answer, _change in (
    ("doubled", "multiplied", lambda t: 2 * t), ("inverted", "inverted", lambda t: np.float32(1) / t),
    ("missing", "missing", lambda t: None),
):  # fmt: skip
    fault(f"tensor scale {_name}", "tensor", f"scale of the tensor {_answer}")(
        lambda p, change=_change: change if p.hand.kind == "nvfp4" else None)  # fmt: skip


#: Causes that are one mistake together: two factors are a factor, two permutations of columns are a permutation.
ONE = (
    frozenset({"scales multiplied", "amax multiplied", "scale for the maximum of another format"}),
    frozenset({f"columns {ORDER}", f"columns of the codes {ORDER}", "bytes of a word in reverse", "nibbles swapped"}),
    frozenset({f"rows {ORDER}", f"rows of the codes {ORDER}"}),
)


def _same(one: Result, other: Result) -> bool:
    arrays = all(a.shape == b.shape and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
                 for a, b in zip(one[:2], other[:2], strict=True))  # fmt: skip
    return arrays and one[2] == other[2]


def blind(seed: int, number: int, count: int) -> tuple[str, tuple[str, ...], str]:
    """Plant `count` faults; return the verdict, the faults and what `check` says.

    "named": the first explanation has every fault that changes bits; "tie": another one has; "other": other causes give
    the same bits; "partly": not all is explained. "silent" and "alarm" are a false all-clear and a false alarm, "clean"
    a right all-clear.
    """
    rng = np.random.default_rng([seed, number])
    hand = wrong.HANDS[rng.integers(len(wrong.HANDS))]
    shape = (128, 512) if hand.block == (128, 128) else SHAPES[rng.integers(len(SHAPES))]
    families = list(wrong.FAMILIES)
    x = wrong.FAMILIES[families[rng.integers(len(families))]](rng, shape)
    planted: dict[str, Fault] = {}
    while len(planted) < count:
        one = FAULTS[rng.integers(len(FAULTS))]
        if one.place not in planted and one.make(Pipeline(hand, np.random.default_rng(0), x)) is not None:
            planted[one.place] = one

    def run(places: dict[str, Fault]) -> Result:
        p = Pipeline(hand, np.random.default_rng([seed, number, 1]), x)
        made = {place: planted[place].make(p) for place in sorted(planted)}
        return Pipeline(hand, np.random.default_rng([seed, number, 2]), x, **{n: made[n] for n in places}).run()

    whole = run(planted)
    needed = [f for f in planted.values() if not _same(whole, run({n: g for n, g in planted.items() if g is not f}))]
    codes, scale, tensor = whole
    found = lp.check(codes, x, hand.quantizer, scale=scale, tensor_scale=tensor, seconds=1e6)
    names = tuple(f.name for f in planted.values())
    said = f"{hand.name}: {', '.join(f.name for f in needed)} | {found}"
    if _same(whole, run({})):
        return ("clean" if found else "alarm"), names, said
    if found:
        return "silent", names, said
    groups = [g for g in ONE if sum(bool(f.answers & g) for f in needed) > 1]
    answers = [f.answers.union(*(g for g in groups if f.answers & g)) for f in needed]
    given = [{step.cause.name for step in e.steps} for e in found.explanations if not e.left]
    hits = [all(some & names for names in answers) for some in given]
    if any(hits):
        return ("named" if hits[0] else "tie"), names, said
    return ("other" if given else "partly"), names, said


def main(count: int, seed: int) -> None:
    sys.stdout.write(f"seed {seed}\n")
    total: Counter[tuple[int, str]] = Counter()
    by_fault: Counter[tuple[str, str]] = Counter()
    start = time.process_time()
    for number in range(count):
        planted = number % 10 and 1 + number % 3  # every tenth has none
        how, names, said = blind(seed, number, planted)
        total[planted, how] += 1
        by_fault.update((name, how) for name in names)
        if how not in ("named", "tie", "clean"):
            sys.stdout.write(f"{number} {how}: {said}\n")
            sys.stdout.flush()
    for name in dict.fromkeys(f.name for f in FAULTS):
        sys.stdout.write(f"{name}: { ({how: n for (one, how), n in sorted(by_fault.items()) if one == name}) }\n")
    for key, n in sorted(total.items()):
        sys.stdout.write(f"{key[0]} faults, {key[1]}: {n}\n")
    sys.stdout.write(f"{time.process_time() - start:.0f} s of CPU\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else secrets.randbits(32))
