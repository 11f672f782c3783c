"""What careless and hostile callers pass: values for each kind of parameter, and what a complaint about them quotes."""

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

import lowprec as lp


@dataclass(frozen=True)
class Hostile:
    """A value that a parameter should not get, or that is unusual.

    Attributes
    ----------
    value : object
        What is passed.
    quotes : tuple of str
        A complaint holds one of these; empty: whatever it says is good.
    refused : bool
        Whether it is never taken.
    """

    value: Any
    quotes: tuple[str, ...] = ()
    refused: bool = False


def _said(value: Any, *more: str, refused: bool = True) -> Hostile:
    return Hostile(value, (repr(value)[:60], str(value)[:60], type(value).__name__, *more), refused)


#: For whole numbers; refused are those that no parameter takes.
WHOLES = [
    *(_said(n, refused=False) for n in (-1, 0, 1, 3, 2**40, 2**64, -(2**63), 10**30, np.int64(-5), np.uint8(3))),
    *(_said(n) for n in (1.5, float("nan"), "3", [1], b"1", 1j, np.float32(2), np.array([1, 2]), {})),
    _said(True, refused=False),
]
NUMBERS = [
    *(_said(x, refused=False) for x in (-1.0, -0.0, 0, 1e300, 5e-324, -1e-300, 2**2000, np.float16(1), np.int8(-1))),
    *(_said(x, refused=False) for x in (float("nan"), float("inf"), -float("inf"), True)),
    *(_said(x) for x in ("one", [1.0, 2.0], 1j, np.datetime64("2026-01-01"), object, b"")),
]
FLAGS = [Hostile(x) for x in (0, 1, 2, None, "", "no", np.bool_(True), 0.5, [])]
CATALOGUES = {
    "Format": lp.formats, "Rounding": lp.roundings, "Policy": lp.policies, "Quantizer": lp.quantizers,
    "Accumulator": lp.accumulators, "GemmLibrary": lp.gemm_libraries, "Recipe": lp.recipes, "codec": lp.codecs,
    "Hardware": lp.costs.hardware, "ModelShape": lp.costs.models, "MoEConfig": lp.configs,
    "AttentionKernel": lp.attentions,
}  # fmt: skip
NAMES = [
    *(_said(x) for x in ("no such name", "", " ", "../../evil", "/etc/passwd", "n" * 3000, "E4M3", "e4m3fn\0", "é\n")),
    *(_said(x) for x in (b"e4m3fn", ["e4m3fn"], object(), float("nan"), ("e4m3fn", "e5m2"))),
    Hostile({"name": "x"}, (), True),
    *(_said(x, refused=False) for x in (7, 0, True, np.str_("e4m3fn"))),
]


def names(kind):
    """Return hostile names of a kind: the usual ones, and entries of other catalogues by name and as objects."""
    others = []
    for other, catalogue in CATALOGUES.items():
        if other != kind:
            entry = next(iter(catalogue.names()))
            others += [Hostile(entry), Hostile(catalogue[entry])]  # an alias here may be called otherwise in messages
    return NAMES + others


def _array(a: np.ndarray, *more: str, refused: bool) -> Hostile:
    if a.size == 0:  # holds nothing wrong
        return Hostile(a, (), False)
    quotes = (str(a.dtype), a.dtype.name, str(a.shape), type(a).__name__, *more)
    return Hostile(a, quotes, refused)


_ONES = np.ones((2, 16), np.float32)
_STRUCTURED = np.zeros((2, 2), [("a", "f4"), ("b", "i4")])
_CYCLE: list[Any] = []
_CYCLE.append(_CYCLE)

#: In place of arrays of numbers: what holds no real numbers is refused.
NO_NUMBERS = [
    *(_array(a, refused=True) for a in (
        _ONES.astype(complex), np.full((2, 16), "1.0"), np.full((2, 16), b"1"), np.zeros((2, 16), "datetime64[s]"),
        np.zeros((2, 16), "timedelta64[s]"), np.full((2, 16), None))),
    _array(_ONES > 0, "boolean", refused=True),
    _array(np.ma.array(_ONES, mask=_ONES > 0), "mask", refused=True),
    _array(_STRUCTURED, "void", refused=True),
    _array(np.zeros((2, 2), "V4"), "void", refused=True),
    *(Hostile(x, (), True) for x in ([[1.0, 2.0], [3.0]], {"a": 1}, "12", object(), _CYCLE, lp)),
]  # fmt: skip
#: Unusual arrays, which may suit a function or not.
STRANGE = [
    *(_array(a, refused=False) for a in (
        np.float32(1.5).reshape(()), np.zeros((0, 16), np.float32), np.zeros((2, 0), np.float32),
        np.zeros((0, 0), np.uint8), -np.zeros((2, 16), np.float32), _ONES.astype(ml_dtypes.bfloat16),
        _ONES.astype(ml_dtypes.float8_e4m3fn), _ONES.astype(ml_dtypes.float4_e2m1fn), _ONES.astype(ml_dtypes.int4),
        _ONES.astype(">f4"), np.ones((2, 16), ">i2"), np.ones((2, 3, 4, 5), np.float32),
        np.ones((1,) * 32, np.float32), _ONES.view(np.matrix))),
    _array(np.full((2, 16), np.nan, np.float32), "NaN", refused=False),
    _array(np.full((2, 16), np.inf), "Inf", "inf", refused=False),
    _array(np.full((2, 16), 1e300), "inf", refused=False),  # in float32
    _array(np.full((2, 16), 2**63, np.uint64), "9223372036854775808", "code 0", refused=False),
    _array(np.full((2, 16), -(2**63), np.int64), "-9223372036854775808", refused=False),
    _array(np.ones((2, 16), np.longdouble), "longdouble", "float128", refused=False),
    *(Hostile(x) for x in ([], [[]], 1.0, None)),
]  # fmt: skip
ARRAYS = NO_NUMBERS + STRANGE
OBJECTS = [Hostile(x) for x in (None, 0, "x", [], (), {}, _ONES, object(), lp.formats["e4m3fn"], b"", 1.5)]
#: Options of a few words.
WORDS = [Hostile(None)] + [
    _said(x, refused=False) for x in ("no such word", "", 3, True, b"max", ["max"], 1.5, "MAX", "é" * 500)
]
TEXTS = [Hostile(x) for x in ("", "\0", "é", "= = =", "[[", "a = 1", 'name = "x"', "[" * 500, 3, None, b"x", ["x"])]


def layouts(a: np.ndarray) -> list[np.ndarray]:
    """Return the same numbers, laid out otherwise in memory."""
    a = np.asarray(a)
    wide = np.zeros((*a.shape[:-1], 2 * a.shape[-1]), a.dtype) if a.ndim else a
    found = [np.asfortranarray(a), a.copy()]
    if a.ndim:
        wide[..., ::2] = a
        found.append(wide[..., ::2])
        found.append(np.ascontiguousarray(a[..., ::-1])[..., ::-1])
    found.append(np.ascontiguousarray(a.T).T)
    if a.dtype.kind in "fiu" and a.dtype.isbuiltin:
        found.append(a.astype(a.dtype.newbyteorder(">")))
    unaligned = np.zeros(a.nbytes + 1, np.uint8)[1:].view(a.dtype).reshape(a.shape)
    unaligned[...] = a
    found.append(unaligned)
    found = [np.asarray(each) for each in found]  # NumPy makes scalars of arrays without axes
    for each in found[1:]:
        each.flags.writeable = False
    return found
