"""How our objects behave as values: equal by what they hold, arrays to the bit; fields of Python's own types.

A catalogue's entries (formats, quantizers, recipes ...) are immutable: equal fields make them equal, with equal hashes.
What holds arrays (`lowprec.Quantized`, LogFMT's arrays, what codecs send) is equal if every bit is; as arrays can be
written to, it has no hash. All of them can be pickled; `copy.copy` shares the arrays, `copy.deepcopy` does not.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np


class ByBits:
    """A dataclass (with ``eq=False``) whose objects are equal if all fields are, arrays by type, shape and every bit.

    Examples
    --------
    >>> import lowprec as lp
    >>> x = np.ones((2, 128), np.float32)
    >>> lp.quantize(x, "e4m3fn") == lp.quantize(x, "e4m3fn"), lp.quantize(x, "e4m3fn") == lp.quantize(-x, "e4m3fn")
    (True, False)
    """

    def __eq__(self, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        compared = (f.name for f in dataclasses.fields(self) if f.compare)  # type: ignore[arg-type]
        return all(same(getattr(self, name), getattr(other, name)) for name in compared)

    __hash__ = None  # type: ignore[assignment]


def same(a: Any, b: Any) -> bool:
    """Tell whether two fields are equal: arrays and NumPy's numbers by type, shape and every bit, NaN included.

    Examples
    --------
    >>> same(np.float32(np.nan), np.float32(np.nan)), same(np.zeros(2), -np.zeros(2))
    (True, False)
    """
    if a is b:
        return True
    if isinstance(a, np.ndarray | np.generic) or isinstance(b, np.ndarray | np.generic):
        x, y = np.asarray(a), np.asarray(b)
        if (x.dtype, x.shape) != (y.dtype, y.shape):
            return False
        return bool((x == y).all()) if x.dtype.hasobject else x.tobytes() == y.tobytes()
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def plain_fields(entry: Any) -> None:
    """Put Python's own numbers and texts in place of NumPy's, in a new object of a frozen dataclass.

    Otherwise ``np.int64(16)`` would go wherever the field goes: into JSON, into `math.ldexp`, into kernels' types.
    A field of type ``tuple[...]`` takes any sequence, and keeps it as a tuple; one of type ``tuple[str, ...]`` takes a
    string as the only item.

    Raises
    ------
    ValueError
        If a field that is either true or false is neither: it would be counted with.
    TypeError
        If a field that is a tuple is given something else, or a tuple of strings holds something else.
    """
    for f in dataclasses.fields(entry):
        if str(f.type).startswith("tuple["):
            object.__setattr__(entry, f.name, _as_tuple(entry, f.name, str(f.type)))
        value = getattr(entry, f.name)
        if isinstance(value, np.generic):
            object.__setattr__(entry, f.name, value.item())
        elif isinstance(value, tuple) and any(isinstance(item, np.generic) for item in value):
            plain = (item.item() if isinstance(item, np.generic) else item for item in value)
            object.__setattr__(entry, f.name, tuple(plain))
        if f.type in ("bool", bool):
            flag = getattr(entry, f.name)
            if not isinstance(flag, int) or flag not in (0, 1):
                raise ValueError(f"{type(entry).__name__}: {f.name}={flag!r}: True or False is needed")
            object.__setattr__(entry, f.name, bool(flag))


def _as_tuple(entry: Any, field: str, kind: str) -> tuple[Any, ...]:
    """Return the value of a field of type ``tuple[...]`` as a tuple."""
    value, texts = getattr(entry, field), kind == "tuple[str, ...]"
    if texts and isinstance(value, str):
        return (value,)
    needed = "a string or a sequence of strings" if texts else "a sequence"
    error = TypeError(f"{type(entry).__name__}: {field} must be {needed}, got {value!r}")
    if isinstance(value, str | bytes):
        raise error
    try:
        items = tuple(value)
    except TypeError:  # a number, None, an array without axes
        raise error from None
    if texts and not all(isinstance(item, str) for item in items):
        raise error
    return items
