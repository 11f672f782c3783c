"""What calls are made of: names, arrays in every layout, matrices with scales, arrays for results."""

import random
from typing import Any

import hostile
import ml_dtypes
import numpy as np

import lowprec as lp

#: Formats of elements that have scales.
ELEMENTS = [
    name
    for name in lp.formats.names()
    if lp.formats[name].bits <= 16 and lp.formats[name].signed and not lp.formats[name].is_table
]
SMALL_FORMATS = [name for name in lp.formats.names() if lp.formats[name].bits <= 16]
VALUES = np.float32([0, -0.0, 1, -1, 0.1, 448, 449, 1e-4, 2.0**-149, 3e38, -7.5, 6, 65504, 1e-30, 17, 0.3])
SPECIAL = np.float32([np.nan, np.inf, -np.inf])


class Draw:
    """Everything that a call is made of: the same for the same seed."""

    def __init__(self, seed: str, folder: Any = None) -> None:
        self.random = random.Random(seed)
        self.folder = folder
        #: What is wrong with the arguments, and what they were before: see `calls.call_of`.
        self.hostile: list[tuple[str, hostile.Hostile]] = []
        self.sound: dict[str, Any] = {}

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def one(self, *options: Any) -> Any:
        return self.random.choice(options)

    def of(self, options: Any) -> Any:
        return self.random.choice(list(options))

    def rng(self) -> np.random.Generator:
        return np.random.default_rng(self.random.getrandbits(32))

    # --- names ---

    def entry(self, catalogue: Any, names: list[str] | None = None) -> Any:
        """Return an entry of a catalogue, by its name or itself."""
        name = self.of(names or catalogue.names())
        return catalogue[name] if self.chance(0.2) else name

    def fmt(self, most_bits: int = 32) -> Any:
        return self.entry(lp.formats, [name for name in lp.formats.names() if lp.formats[name].bits <= most_bits])

    # --- arrays ---

    def shape(self, axes: int | None = None) -> tuple[int, ...]:
        n = self.one(0, 1, 1, 2, 2, 2, 3) if axes is None else axes
        return tuple(self.one(0, 1, 2, 3, 5, 16, 33, 64) for _ in range(n))

    def values(self, shape: tuple[int, ...] | None = None, dtype: Any = None, special: float = 0.2) -> Any:
        """Return numbers of many magnitudes, in some type and layout."""
        shape = self.shape() if shape is None else shape
        rng = self.rng()
        a = rng.standard_normal(shape).astype(np.float32) * np.float32(2.0 ** self.random.randint(-20, 20))
        if a.size:
            flat = a.reshape(-1)
            for _ in range(self.one(0, 1, 3)):
                flat[self.random.randrange(a.size)] = self.of(VALUES)
            if self.chance(special):
                flat[self.random.randrange(a.size)] = self.of(SPECIAL)
        kind = self.one("f4", "f4", "f4", "f8", "f2", "b2", "i2", "i4") if dtype is None else dtype
        with np.errstate(all="ignore"):
            if kind == "b2":
                a = a.astype(ml_dtypes.bfloat16)
            elif kind[0] == "i":
                a = rng.integers(-100, 100, shape).astype(kind)
            else:
                a = a.astype(kind)
        return self.laid_out(a)

    def large(self) -> Any:
        """Return enough numbers for more than one thread."""
        rng = self.rng()
        return rng.standard_normal((self.one(300, 520), self.one(512, 1000)), np.float32)

    def laid_out(self, a: Any) -> Any:
        """Return an array in some layout, or as a list."""
        if self.chance(0.5):
            return a
        if a.size < 20 and a.dtype in (np.float32, np.uint8) and self.chance(0.2):
            return a.tolist()
        return self.of(hostile.layouts(a))

    def integers(self, high: int, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        return self.rng().integers(0, high, shape, np.uint64).astype(dtype)

    def codes(self, fmt: Any, shape: tuple[int, ...] | None = None) -> Any:
        f = lp.formats.get(fmt)
        return self.laid_out(self.integers(1 << f.bits, self.shape() if shape is None else shape, f.code_dtype))

    def damaged(self, data: bytes) -> bytes:
        """Return bytes of which some bits are flipped, or the end is cut off."""
        found = bytearray(data)
        for _ in range(self.one(0, 0, 1, 3) if data else 0):
            found[self.random.randrange(len(found))] ^= 1 << self.random.randrange(8)
        if self.chance(0.1) and found:
            del found[self.random.randrange(len(found)) :]
        return bytes(found)

    def out(self, shape: tuple[int, ...], dtype: Any, *overlapping: Any) -> Any:
        """Return an array for a result: most fit; some overlap an input, others are wrong in one way."""
        which = self.random.random()
        if which < 0.75:
            for a in overlapping if which >= 0.6 else ():
                found = overlap(a, shape, np.dtype(dtype), self.one(0, 0, 1, 8)) if isinstance(a, np.ndarray) else None
                if found is not None:
                    return found
            return np.full(shape, 7, dtype)
        wrong = self.one("shape", "dtype", "layout", "read-only", "object", "masked")
        self.hostile.append(("out", hostile.Hostile(wrong)))
        right = np.zeros(shape, dtype)
        right.flags.writeable = wrong != "read-only"
        return {
            "shape": np.zeros((*shape, 2), dtype),
            "dtype": np.zeros(shape, self.one(np.float64, np.int8, np.complex64, object, ">f4")),
            "layout": np.zeros((*shape, 2), dtype)[..., 0],
            "read-only": right,
            "object": self.one([], "out", 3, (right,), {}),
            "masked": np.ma.array(right),
        }[wrong]

    # --- quantized matrices ---

    def quantized(self, rows: int, columns: int, fmts: Any = None, blocks: Any = None, scale: str | None = None) -> Any:
        shape = (rows, columns)
        x = np.asarray(self.values(shape, "f4", special=0.05), np.float32)
        if fmts is None and self.chance(0.4):
            names = [name for name in lp.quantizers.names() if lp.quantizers[name].amax_history_len is None]
            return lp.quantize(x, self.of(names)) if columns % 16 == 0 else lp.quantize(x, "e5m2 1x128")
        fmt = self.of(fmts or ELEMENTS)
        block = blocks or self.one("1x128", "128x128", "tensor", "row", "1x32")
        rule = lp.AmaxRule("te_folded" if scale == "e4m3fn" else "amax/max")
        q = lp.Quantizer(format=fmt, granularity=block, scale_format=scale or "float32", rule=rule)
        return lp.quantize(x, q)


def overlap(a: np.ndarray, shape: tuple[int, ...], dtype: np.dtype, shift: int) -> np.ndarray | None:
    """Return an array for a result in the memory of `a`, or None where that has no room."""
    if not a.flags.writeable or not a.flags.c_contiguous:
        return None
    with_room = isinstance(a.base, np.ndarray) and a.base.dtype == np.uint8 and a.base.ndim == 1  # see `room_for`
    flat = a.base if with_room else a.reshape(-1).view(np.uint8)
    needed = int(np.prod(shape)) * dtype.itemsize
    if flat.size < needed + shift:
        return None
    return flat[shift : shift + needed].view(dtype).reshape(shape)


def room_for(a: np.ndarray, spare: int) -> np.ndarray:
    """Return a copy with memory behind it, so that a larger result can overlap it."""
    memory = np.zeros(a.nbytes + spare, np.uint8)
    found = memory[: a.nbytes].view(a.dtype).reshape(a.shape)
    found[...] = a
    return found
