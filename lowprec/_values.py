"""Objects with value semantics: `Value` for entries of catalogues, `BitwiseEq` for objects that hold arrays.

A format, a quantizer, an accumulator or a recipe is a `Value`: immutable, and equal to another one if the fields that
affect results are equal, regardless of their names. An object that holds arrays (`lowprec.Quantized`, LogFMT's arrays,
messages of codecs) is equal if every bit is; as arrays are mutable, it has no hash. All of them can be pickled;
`copy.copy` shares the arrays, `copy.deepcopy` does not.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, Self, get_args, get_origin, get_type_hints

import numpy as np


class BitwiseEq:
    """Base of dataclasses (``eq=False``) that are equal if all fields are; arrays by their dtype, shape and bits.

    Examples
    --------
    >>> import lowprec as lp
    >>> x = np.ones((2, 128), np.float32)
    >>> q, again, other = (lp.quantize(each, "e4m3fn 1x128") for each in (x, x, -x))
    >>> q == again, q == other
    (True, False)
    """

    def __eq__(self, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        compared = (f.name for f in dataclasses.fields(self) if f.compare)  # type: ignore[arg-type]
        return all(bitwise_equal(getattr(self, name), getattr(other, name)) for name in compared)

    __hash__ = None  # type: ignore[assignment]


def bitwise_equal(a: Any, b: Any) -> bool:
    """Return whether two fields are equal; arrays and NumPy scalars must have the same dtype, shape and bits.

    Examples
    --------
    >>> bitwise_equal(np.float32(np.nan), np.float32(np.nan)), bitwise_equal(np.zeros(2), -np.zeros(2))
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
        return len(a) == len(b) and all(map(bitwise_equal, a, b))
    return bool(a == b)


def normalize_fields(entry: Any) -> None:
    """Replace NumPy's scalars by Python's int, float, bool and str, in a new object of a frozen dataclass.

    ``np.int64(16)`` would otherwise end up in JSON, `math.ldexp` and kernel signatures. A field of type ``tuple[...]``
    accepts any sequence, and stores it as a tuple; one of type ``tuple[str, ...]`` accepts a string as the only item.

    Raises
    ------
    ValueError
        If a bool field holds another type, which would be used as an integer.
    TypeError
        If a tuple field is not a sequence, or a tuple of strings holds other objects.
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
                raise ValueError(f"{type(entry).__name__}: {f.name} must be True or False, got {flag!r}")
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


#: Fields that describe a value and do not affect results: `Value` neither compares nor hashes them.
ABOUT = ("name", "source", "description", "note", "validated_against")


@functools.cache
def compared_fields(cls: Any) -> tuple[str, ...]:
    """Return the names of the fields of a dataclass that affect results, in order."""
    return tuple(f.name for f in dataclasses.fields(cls) if f.compare)


class Value:
    """Base of immutable dataclasses (``frozen=True, eq=False, repr=False``) that are equal regardless of their names.

    Two values are equal if they are of one class and the fields that affect results are equal. The hash is computed
    once and left out of pickles: Python hashes a string differently in every process.

    Examples
    --------
    >>> import lowprec as lp
    >>> e4m3 = lp.formats["e4m3fn"]
    >>> mine = e4m3.with_(name="mine")
    >>> mine == e4m3, mine.with_(mantissa_bits=2) == e4m3
    (True, False)
    """

    def _deciding(self) -> tuple[Any, ...]:
        return tuple([self.__dict__[name] for name in compared_fields(type(self))])  # type: ignore[arg-type]

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if other.__class__ is not self.__class__:
            return NotImplemented
        return hash(self) == hash(other) and self._deciding() == other._deciding()

    def __hash__(self) -> int:
        found: int | None = self.__dict__.get("_hash")
        if found is None:
            found = self.__dict__["_hash"] = hash((type(self).__qualname__, self._deciding()))
        return found

    def __getstate__(self) -> dict[str, Any]:
        names = {f.name for f in dataclasses.fields(self)}  # type: ignore[arg-type]
        return {name: value for name, value in self.__dict__.items() if name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def __str__(self) -> str:
        return str(getattr(self, "name", "")) or repr(self)

    def __repr__(self) -> str:
        arguments = [
            f"{f.name}={_shown(value)}"
            for f in dataclasses.fields(self)  # type: ignore[arg-type]
            if f.repr and (f.compare or f.name == "name") and not _is_default(value := getattr(self, f.name), f)
        ]
        return f"{type(self).__name__}({', '.join(arguments)})"

    def with_(self, **changes: Any) -> Self:
        """Return a value with the given fields replaced.

        The name lists the changes (``"hopper_fp8(fraction_bits=20)"``) and the source the origin, unless they are given
        too; other descriptions are dropped. Changes compose: ``v.with_(a=1).with_(b=2)`` equals
        ``v.with_(a=1, b=2)``.

        Raises
        ------
        TypeError
            If a field does not exist.
        ValueError
            If a field is out of range.
        """
        known = [f.name for f in dataclasses.fields(self) if f.init]  # type: ignore[arg-type]
        for field in changes:
            if field not in known:
                raise TypeError(
                    f"{type(self).__name__}.with_: unknown field {field!r}: expected one of {', '.join(known)}"
                )
        about = describe_changes(self, changes) if changes.keys() - set(ABOUT) else {}
        return dataclasses.replace(self, **{**about, **changes})  # type: ignore[type-var]


def _is_default(value: Any, field: dataclasses.Field[Any]) -> bool:
    return field.default is not dataclasses.MISSING and type(value) is type(field.default) and value == field.default


def _shown(value: Any) -> str:
    """Return the Python expression for a field in `Value.__repr__`, which shows entries of catalogues by name."""
    if isinstance(value, tuple) and any(isinstance(item, Value) for item in value):
        return f"({', '.join(map(_shown, value))}{',' * (len(value) == 1)})"
    text = str(value) if isinstance(value, Value) else ""
    return repr(text) if text and "(" not in text else repr(value)


def describe_changes(old: Any, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the name, source and other descriptions of a value that is derived from a named one.

    The old name lists earlier changes; further changes are added to them.
    """
    if not getattr(old, "name", ""):
        return {}
    base, before = split_name(old.name)
    stated = before | {field: label(value) for field, value in changes.items() if field not in ABOUT}
    about: dict[str, Any] = {"name": f"{base}({', '.join(f'{field}={text}' for field, text in stated.items())})"}
    for f in dataclasses.fields(old):
        if f.name == "source":
            about["source"] = f"what-if of {base}"
        elif f.name in ABOUT and f.name != "name":
            about[f.name] = f.default
    return about


def split_name(name: str) -> tuple[str, dict[str, str]]:
    """Split a derived name into the base name and the changes; a name of another form has no changes.

    Examples
    --------
    >>> split_name("hopper_fp8(group=16, inputs=e4m3fn+e5m2)")
    ('hopper_fp8', {'group': '16', 'inputs': 'e4m3fn+e5m2'})
    >>> split_name("mine (2)")
    ('mine (2)', {})
    """
    base, bracket, rest = name.partition("(")
    if not base or not bracket or not rest.endswith(")"):
        return name, {}
    parts, depth = [""], 0
    for char in rest[:-1]:
        depth += (char in "([{") - (char in ")]}")
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    pairs = [part.strip().partition("=") for part in parts]
    if not all(field.isidentifier() and equals for field, equals, _ in pairs):
        return name, {}
    return base, {field: text for field, _, text in pairs}


def label(value: Any) -> str:
    """Return the text of a value in a derived name.

    Examples
    --------
    >>> label(("e4m3fn", "e5m2")), label(()), label(None), label(16)
    ('e4m3fn+e5m2', 'any', 'none', '16')
    """
    if isinstance(value, tuple | list):
        return "+".join(map(label, value)) or "any"
    return "none" if value is None else str(getattr(value, "name", value))


def parse_label(cls: Any, field: str, text: str) -> Any:
    """Return the value of a field from its text in a derived name, the inverse of `label`.

    Numbers, None, bools, names, and tuples of integers, floats or names can be read back; any other text is returned
    unchanged.

    Raises
    ------
    TypeError
        If the field is a tuple of other objects.

    Examples
    --------
    >>> import lowprec as lp
    >>> [parse_label(lp.Format, "name", text) for text in ("16", "0.5", "none", "True", "e4m3fn")]
    [16, 0.5, None, True, 'e4m3fn']
    """
    item = _item_class(cls, field)
    if item is not None:
        if item not in (int, float, str) and "name" not in getattr(item, "__dataclass_fields__", ()):
            raise TypeError(f"{cls.__name__}: {field} must be a tuple of numbers or names, got one of {item}")
        convert = item if item in (int, float) else str
        return () if text == "any" else tuple(map(convert, text.split("+")))
    if text in (words := {"none": None, "True": True, "False": False}):
        return words[text]
    for number in (int, float) if text != "nan" else ():
        with contextlib.suppress(ValueError):
            return number(text)
    return text


@functools.cache
def _item_class(cls: Any, field: str) -> Any:
    """Return the class of a tuple field's items, or None if the field is not a tuple."""
    kind = get_type_hints(cls).get(field)
    return get_args(kind)[0] if get_origin(kind) is tuple else None


def alike(new: Any, old: Any) -> bool:
    """Return whether a value parsed by `parse_label` can replace a field's value `old`.

    It can if it is None, if both have the same type, or if both are bools, numbers or strings (`old` also None). In
    tuples, each item must be able to replace some item of `old`, unless `old` is empty.

    Examples
    --------
    >>> alike(3, 4), alike(None, "e4m3fn"), alike("Choice()", Value()), alike(("e4m3fn",), (Value(),))
    (True, True, False, False)
    """
    plain = (bool, int, float, str)
    if isinstance(new, tuple) and isinstance(old, tuple):
        return all(any(alike(item, other) for other in old or (item,)) for item in new)
    return new is None or type(new) is type(old) or (isinstance(new, plain) and isinstance(old, (*plain, type(None))))
