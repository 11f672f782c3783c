"""Quantizers written by hand in NumPy, with the mistakes that people make: they share no code with `lowprec check`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import lowprec as lp

F32 = NDArray[np.float32]
Result = tuple[NDArray[Any], F32, np.float32 | None]
ONE = np.float32(1)


@dataclass(frozen=True)
class Hand:
    """A quantizer by hand: blocks, the format, its largest number, and how scales are made."""

    name: str
    block: tuple[int, int]
    kind: str  # "divide", "multiply", "power" or "nvfp4"
    fmt: str = "e4m3fn"
    floor: float = 0.0

    @property
    def quantizer(self) -> lp.Quantizer:
        """The catalogue's."""
        if self.name == "dsv3_128x128":
            return lp.quantizers["dsv3_inference"].with_(name=self.name, granularity="128x128")
        return lp.quantizers[self.name]

    def __call__(
        self, x: F32, *, amax: Callable[[F32], F32] = lambda a: a, top: float | None = None, floor: float | None = None,
        power: Callable[[F32], F32] | None = None, cast: Callable[[F32], NDArray[Any]] | None = None,
        tensor_amax: float | None = None, block: tuple[int, int] | None = None,
    ) -> Result:  # fmt: skip
        """Return codes, scales of blocks and of the tensor."""
        rows, columns = (min(b, n) for b, n in zip(block or self.block, x.shape, strict=True))
        largest = np.float32(lp.formats[self.fmt].max if top is None else top)
        a = np.abs(x).reshape(x.shape[0] // rows, rows, x.shape[1] // columns, columns).max(axis=(1, 3))
        a = amax(np.maximum(a, np.float32(self.floor if floor is None else floor)))
        whole = np.float32(np.abs(x).max() if tensor_amax is None else tensor_amax)
        with np.errstate(all="ignore"):
            scale, factor, tensor = self._scales(a, largest, whole, power)
            wide = np.repeat(np.repeat(factor, rows, 0), columns, 1)
            v = x / wide if self.kind == "divide" else x * wide
            zero = np.repeat(np.repeat(a, rows, 0), columns, 1) == 0
        codes = (cast or self.nearest)(np.where(zero, x, v).astype(np.float32))
        return codes, scale, tensor

    def _scales(self, a: F32, largest: np.float32, whole: np.float32, power: Any) -> tuple[F32, F32, Any]:
        if self.kind == "divide":
            s = a / largest
            return s, s, None
        if self.kind == "multiply":
            m = np.where(a == 0, ONE, largest / a)
            return ONE / m, m, None
        if self.kind == "power":
            s = (power or ceil_power)(a * (ONE / largest) if power is None else a)
            s = np.where(a == 0, np.float32(2.0**-127), np.maximum(s, np.float32(2.0**-127)))  # as the catalogue has it
            return s, ONE / s, None
        e = np.float32(448) * largest / whole
        s = lp.round_to(a * (e * (ONE / largest)), "e4m3fn", policy="ocp_sat")
        g = ONE / e
        return s, np.minimum(ONE / (s * g), np.finfo(np.float32).max), g

    def nearest(self, v: F32) -> NDArray[Any]:
        """Return codes, to nearest even, saturating."""
        return lp.encode(v, self.fmt, policy="ocp_sat")


def ceil_power(s: F32) -> F32:
    """Return the smallest power of two not below."""
    m, e = np.frexp(s)
    return np.ldexp(ONE, np.where(m == 0.5, e - 1, e)).astype(np.float32)


def floor_power(fmt: str) -> Callable[[F32], F32]:
    """Return OCP's scale of an amax."""
    return lambda a: np.ldexp(ONE, np.frexp(a)[1] - 1 - lp.formats[fmt].emax).astype(np.float32)


HANDS = [
    Hand("dsv3_inference", (1, 128), "divide", floor=1e-4),
    Hand("dsv3_128x128", (128, 128), "divide", floor=1e-4),
    Hand("mxfp8_rceil", (1, 32), "power"),
    Hand("mxfp4_rceil", (1, 32), "power", "e2m1fn"),
    Hand("nvfp4_te", (1, 16), "nvfp4", "e2m1fn"),
    Hand("te_current", (1 << 30, 1 << 30), "multiply"),
]

FAMILIES: dict[str, Callable[[np.random.Generator, tuple[int, int]], F32]] = {
    "normal": lambda rng, shape: rng.standard_normal(shape).astype("f4"),
    "outliers": lambda rng, shape: (
        rng.standard_normal(shape) * np.where(rng.random(shape) < 1e-3, 300, 1)).astype("f4"),
    "positive": lambda rng, shape: np.exp(rng.standard_normal(shape) * 2).astype("f4"),
    "small": lambda rng, shape: (
        rng.standard_normal(shape) * np.exp2(rng.integers(-18, -6, (shape[0], 1)))).astype("f4"),
}  # fmt: skip


# --- mistakes: of a generator, a quantizer and values; None where the quantizer has no such thing --------------------

Mistake = Callable[[np.random.Generator, Hand, F32], Result | None]
MISTAKES: dict[str, tuple[set[str], Mistake]] = {}


def mistake(name: str, *answers: str) -> Callable[[Mistake], Mistake]:
    """Register a mistake with the causes that name it."""

    def wrap(function: Mistake) -> Mistake:
        MISTAKES[name] = set(answers), function
        return function

    return wrap


def _tensor(name: str, answer: str, change: Callable[[Any], Any]) -> None:
    @mistake(f"tensor scale {name}", f"scale of the tensor {answer}", f"scales {answer}")
    def _(rng: Any, hand: Hand, x: F32) -> Result | None:
        codes, scale, tensor = hand(x)
        if tensor is not None:
            return codes, scale, change(tensor)
        if scale.size == 1:
            made = change(scale)
            return codes, np.ones_like(scale) if made is None else made, None
        return None


_tensor("doubled", "multiplied", lambda t: 2 * t)
_tensor("inverted", "inverted", lambda t: ONE / t)
_tensor("missing", "missing", lambda t: None)


def _called(name: str, answer: str, change: Callable[[Any, Hand, F32], dict[str, Any] | None], *more: str) -> None:
    """Register a quantizer that is called with something else."""

    @mistake(name, answer, *more)
    def _(rng: Any, hand: Hand, x: F32) -> Result | None:
        made = change(rng, hand, x)
        return None if made is None else hand(x, **made)


def ceil_log2_amax(fmt: str) -> Callable[[F32], F32]:
    return lambda a: ceil_power(a) * np.float32(2.0 ** -lp.formats[fmt].emax)


def above(epsilon: np.float32) -> Callable[[F32], F32]:
    return lambda a: a + epsilon


_ARITHMETIC = "scale from another arithmetic"
_called("UE8M0 floor", _ARITHMETIC,
        lambda rng, hand, x: {"power": floor_power(hand.fmt)} if hand.kind == "power" else None)  # fmt: skip
_called("UE8M0 ceil of log2 amax", _ARITHMETIC,
        lambda rng, hand, x: {"power": ceil_log2_amax(hand.fmt)} if hand.kind == "power" else None)  # fmt: skip
_called("amax + epsilon", "epsilon added",
        lambda rng, hand, x: {"amax": above(np.float32(rng.choice([1e-3, 1e-4, 1e-5, 1e-6, 1e-8])))})  # fmt: skip
_called("amax bound", "another lower bound on amax",
        lambda rng, hand, x: None if hand.kind == "nvfp4" else
        {"floor": rng.choice([1e-3, 1e-2, 3e-4, 0.05, 0.0])})  # fmt: skip


def _scales(name: str, answer: str, change: Callable[[Any, F32], F32 | None], several: bool = False) -> None:
    """Register other scales, of all quantizers or of those that have several."""

    @mistake(name, answer)
    def _(rng: Any, hand: Hand, x: F32) -> Result | None:
        codes, scale, tensor = hand(x)
        made = None if several and scale.size == 1 else change(hand, scale)
        return None if made is None else (codes, made, tensor)


_scales("scales inverted", "scales inverted", lambda hand, s: ONE / s)
_scales("raw bytes", "scales stored as raw bytes", lambda hand, s: {
    "power": (s.view(np.uint32) >> 23).astype(np.float32),
    "nvfp4": lp.encode(s, "e4m3fn").astype(np.float32)}.get(hand.kind))  # fmt: skip
_scales("scales transposed", "scales transposed", lambda hand, s: np.ascontiguousarray(s.T), True)
_scales("scales column by column", "scales transposed", lambda hand, s: s.T.reshape(s.shape).copy(), True)
_scales("scales shifted by one block", "scales shifted by blocks", lambda hand, s: np.roll(s, 1, axis=1), True)
_scales("scales of the next row", "scales shifted by blocks", lambda hand, s: np.roll(s, -1, axis=0), True)
_scales("rows of scales permuted", "rows of scales in another order", lambda hand, s: None if s.shape[0] < 8 else
        s[np.random.default_rng(1).permutation(s.shape[0])])  # fmt: skip
_scales("scales missing", "scales missing", lambda hand, s: np.ones_like(s))
_scales("scales in bfloat16", "scales rounded", lambda hand, s: lp.round_to(s, "bfloat16"))
_scales("scales padded", "scales padded", lambda hand, s: np.pad(s, ((0, 3), (0, 5)), constant_values=1), True)


def _tiles(s: F32) -> F32:
    """Lay scales out as cuBLAS does, element by element."""
    rows, columns = -(-s.shape[0] // 128) * 128, -(-s.shape[1] // 4) * 4
    out = np.zeros(rows * columns, np.float32)
    for i, j in np.ndindex(s.shape):
        tile = (i // 128) * (columns // 4) + j // 4
        out[tile * 512 + (i % 32) * 16 + (i % 128) // 32 * 4 + j % 4] = s[i, j]
    return out.reshape(rows, columns)


_scales("scales in tiles of 128x4", "scales in tiles of 128 x 4", lambda hand, s: _tiles(s) if hand.block[0] == 1 else
        None)  # fmt: skip
_called("blocks along the wrong axis", "other blocks",
        lambda rng, hand, x: None if hand.block[0] == hand.block[1] else {"block": hand.block[::-1]})  # fmt: skip
_called("blocks of twice the size", "other blocks",
        lambda rng, hand, x: {"block": (1, 2 * hand.block[1])} if hand.block[0] == 1 else None)  # fmt: skip


@mistake("2D scales where 1D were meant", "other blocks")
def _(rng: Any, hand: Hand, x: F32) -> Result | None:
    if hand.block[0] != 1:
        return None
    codes, scale, tensor = hand(x, block=(hand.block[1], hand.block[1]))
    return codes, np.repeat(scale, hand.block[1], axis=0), tensor


def _of_e4m3(name: str, answer: str, top: float, fmt: str = "e4m3fn") -> None:
    """Register a quantizer to E4M3 that has another maximum, and maybe casts to another format."""
    cast = lambda v: lp.encode(v, fmt, policy="ocp_sat")  # noqa: E731
    _called(name, answer, lambda rng, hand, x: {"top": top, "cast": cast} if hand.fmt == "e4m3fn" else None)


_called("maximum doubled before the cast", "scales multiplied",
        lambda rng, hand, x: None if hand.kind == "nvfp4" else {"amax": lambda a: a * np.float32(2)},
        "amax multiplied")  # fmt: skip
_of_e4m3("maximum 240", "scale for the maximum of another format", 240.0)
_of_e4m3("maximum 57344", "scale for the maximum of another format", 57344.0)
_of_e4m3("e4m3fnuz codes", "codes of another format", 240.0, "e4m3fnuz")
_of_e4m3("e5m2 codes", "codes of another format", 57344.0, "e5m2")


def _input(name: str, answer: str, change: Callable[[Any, F32], F32], *more: str) -> None:
    @mistake(name, answer, *more)
    def _(rng: Any, hand: Hand, x: F32) -> Result | None:
        return hand(np.ascontiguousarray(change(rng, x)))


def _half(x: F32) -> F32:
    return x.astype(np.float16).astype(np.float32)


_ROWS = ("rows in another order", "rows of the codes in another order")
_input("input in bfloat16", "input rounded first", lambda rng, x: lp.round_to(x, "bfloat16"))
_input("input in float16", "input rounded first", lambda rng, x: _half(x))
_input("rows of values shifted", _ROWS[0], lambda rng, x: np.roll(x, 1, axis=0), _ROWS[1])
_input("rows of values permuted", _ROWS[0], lambda rng, x: x[rng.permutation(len(x))], _ROWS[1])
_input("columns of values shifted", "columns in another order", lambda rng, x: np.roll(x, 1, axis=1),
       "columns of the codes in another order")  # fmt: skip


def _codes(name: str, answer: str, change: Callable[[Any, Hand, Any], Any], *more: str) -> None:
    @mistake(name, answer, *more)
    def _(rng: Any, hand: Hand, x: F32) -> Result | None:
        codes, scale, tensor = hand(x)
        made = change(rng, hand, codes.copy())
        return None if made is None else (made, scale, tensor)


def _flip(rng: Any, hand: Hand, codes: Any) -> Any:
    i, j = rng.integers(codes.shape[0]), rng.integers(codes.shape[1])
    codes[i, j] ^= 1 << rng.integers(4 if hand.fmt == "e2m1fn" else 8)
    return codes


def _swap(rng: Any, hand: Hand, codes: Any) -> Any:
    return codes.reshape(-1, 2)[:, ::-1].reshape(codes.shape) if hand.fmt == "e2m1fn" else None


_codes("one flipped bit", "bit flipped", _flip)
_codes("nibbles swapped", "nibbles swapped", _swap)
_codes("rows of codes shifted", _ROWS[1], lambda rng, hand, c: np.roll(c, 1, axis=0), _ROWS[0])
_codes("rows of codes permuted", _ROWS[1], lambda rng, hand, c: c[rng.permutation(len(c))], _ROWS[0])
_codes("codes transposed", "codes transposed", lambda rng, hand, c: np.ascontiguousarray(c.T).reshape(c.shape))
_codes("zeros without sign", "sign of zero dropped",
       lambda rng, hand, c: np.where(c == (8 if hand.fmt == "e2m1fn" else 128), 0, c).astype(np.uint8))  # fmt: skip


@mistake("a flipped bit in a scale", "bit flipped in a scale", "scales multiplied", "scale of the tensor multiplied")
def _(rng: Any, hand: Hand, x: F32) -> Result | None:
    codes, scale, tensor = hand(x)
    bits = scale.copy().view(np.uint32)
    low, high = {"power": (23, 30), "nvfp4": (20, 23)}.get(hand.kind, (5, 30))
    # For NVFP4 it is a mantissa bit of an E4M3 number that is normal.
    places = np.flatnonzero(scale >= 2.0**-6) if hand.kind == "nvfp4" else np.arange(bits.size)
    bits.reshape(-1)[places[rng.integers(places.size)]] ^= np.uint32(1 << rng.integers(low, high))
    return codes, bits.view(np.float32), tensor


def _cast(name: str, answer: str, change: Callable[[Any, Hand, F32], Any], *more: str) -> None:
    @mistake(name, answer, *more)
    def _(rng: Any, hand: Hand, x: F32) -> Result | None:
        return hand(x, cast=lambda v: change(rng, hand, v))


def _rounding(mode: str) -> Callable[[Any, Hand, F32], Any]:
    return lambda rng, hand, v: lp.encode(v, hand.fmt, rounding=mode, policy="ocp_sat")


def _stochastic(rng: Any, hand: Hand, v: F32) -> Any:
    low, high = (lp.encode(v, hand.fmt, rounding=mode, policy="ocp_sat") for mode in ("down", "up"))
    a, b = (lp.decode(c, hand.fmt).astype(np.float64) for c in (low, high))
    with np.errstate(all="ignore"):
        share = np.where(b > a, (v - a) / (b - a), 0)
    return np.where(rng.random(v.shape) < share, high, low)


def _flushed(rng: Any, hand: Hand, v: F32) -> Any:
    codes = hand.nearest(v)
    small = np.abs(lp.decode(codes, hand.fmt)) < lp.formats[hand.fmt].smallest_normal
    return np.where(small, codes & (8 if hand.fmt == "e2m1fn" else 128), codes)


_DIRECTION = "rounded in another direction"
_cast("stochastic rounding", "stochastic rounding", _stochastic)
_cast("rounded toward zero", _DIRECTION, _rounding("toward_zero"))
_cast("rounded down", _DIRECTION, _rounding("down"))
_cast("ties away from zero", "tie rounded otherwise", _rounding("nearest_away"))
_cast("subnormals flushed", "subnormals flushed to zero", _flushed)
_cast("rounded twice", "rounded twice", lambda rng, hand, v: hand.nearest(lp.round_to(v, "bfloat16")))
_cast("rounded twice, float16", "rounded twice", lambda rng, hand, v: hand.nearest(_half(v)))


_called("floor, and overflow to NaN", "overflow not saturated",
        lambda rng, hand, x: None if hand.name != "mxfp8_rceil" else
        {"power": floor_power(hand.fmt), "cast": lambda v: lp.encode(v, hand.fmt, policy="ocp_nonsat")})  # fmt: skip
_called("amax of another tensor", "amax of another tensor",
        lambda rng, hand, x: None if hand.kind != "nvfp4" else
        {"tensor_amax": float(np.abs(x).max()) * rng.uniform(0.4, 3)})  # fmt: skip
