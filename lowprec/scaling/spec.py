"""Quantization of a tensor, as one object and as one short string: ``"e4m3fn 1x128 ue8m0"``.

The words, in any order:

============================ ==========================================================================================
word                         meaning
============================ ==========================================================================================
``e4m3fn``, ``bfloat16`` ... the element format; alone, in a recipe, a plain cast without scales
``mxfp8_rceil``, ``te_block``, ``nvfp4_te`` ... a quantizer of `lowprec.quantizers`, with its format and block
``1x128``, ``128x128`` ...   the block that shares a scale; columns run along the multiplication's K
``fp32``, ``ue8m0``          the scale format, float32 by default; ``amax / max`` without a quantizer's name
``floor=0.0001``             lower bound on a block's amax
``stochastic``               stochastic rounding; in a recipe seed, step, layer and element determine the random bits
``hadamard16``               a Hadamard transform along K, applied first
``resample_signs``           signs of the transform are drawn in every step, equal for both operands of a product
``eden``                     MS-EDEN (`lowprec.scaling.eden`): stochastic block scales that correct the shrinking of
                             rounding to nearest; needs an NVFP4 quantizer and a transform
``amax_history16``           length of delayed scaling's amax history (with ``te_delayed``, 1024 by default)
============================ ==========================================================================================
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from .._values import Value, compared_fields, normalize_fields, split_name
from ..format.catalogue import Format, formats
from ..registry import UnknownNameError, elsewhere, registry_cache, suggest
from .granularity import Granularity
from .quantizer import Quantizer, quantizers
from .rules import AmaxRule

#: Granularity of a tensor without scales.
PLAIN = "none"
_GRANULARITIES = ("tensor", "row", "column")
#: Words for formats of scales.
_SCALES = {"fp32": formats["float32"], "ue8m0": formats["e8m0fnu"]}
_EDEN_BLOCKS = (Granularity(1, 16), Granularity(16, 1))
_FLAGS = ("stochastic", "resample_signs", "eden")
#: Quantizer of words that name none.
_PLAIN_QUANTIZER = Quantizer()
#: Fields of a quantizer, and of its rule, that have words.
_WORDED = {"format", "granularity", "scale_format", "amax_floor", "hadamard_size", "amax_history_len"}


class Lookup(Protocol):
    """A mapping from words to objects: a catalogue, or the names of a file."""

    def __contains__(self, word: object) -> bool:
        """Return whether the mapping has the word."""

    def __getitem__(self, word: str) -> Any:
        """Return the object of a word."""


_CATALOGUES: Mapping[str, Lookup] = {"format": formats, "quantizer": quantizers}


@dataclass(frozen=True, eq=False, repr=False)
class TensorSpec(Value):
    """Quantization of a tensor: a format, the quantizer that computes codes and scales, and which choices are random.

    Parameters
    ----------
    format : Format or str
        Element format.
    quantizer : Quantizer or str, optional
        Quantizer, with blocks whose columns run along the multiplication's K; None for a plain cast.
    stochastic : bool
        Whether elements are rounded stochastically.
    resample_signs : bool
        Whether the signs of the transform are drawn in every step.
    eden : bool
        Whether MS-EDEN computes block scales and codes.

    Raises
    ------
    ValueError
        If `resample_signs` is set without a transform, or `eden` without a transform or NVFP4 blocks.

    Examples
    --------
    >>> str(TensorSpec.parse("1x128 e4m3fn ue8m0")), TensorSpec.parse("nvfp4_te").granularity
    ('e4m3fn 1x128 ue8m0', '1x16')
    >>> str(TensorSpec("bfloat16")), TensorSpec.parse("bfloat16").plain
    ('bfloat16', True)
    """

    format: Format
    quantizer: Quantizer | None = None
    stochastic: bool = False
    resample_signs: bool = False
    eden: bool = False

    def __post_init__(self) -> None:
        normalize_fields(self)
        put = object.__setattr__
        put(self, "format", formats.get(self.format))
        if self.quantizer is None:
            if self.resample_signs or self.eden:
                raise ValueError(
                    f"{self}: resample_signs and eden must be False without a quantizer, "
                    f"got resample_signs={self.resample_signs} and eden={self.eden}"
                )
            return
        put(self, "quantizer", quantizers.get(self.quantizer))
        if self.resolved.format != self.format:
            put(self, "quantizer", self.resolved.with_(format=self.format))
        self._check_transform(self.resolved)

    def _check_transform(self, q: Quantizer) -> None:
        if (self.resample_signs or self.eden) and q.hadamard_size is None:
            raise ValueError(
                f"{self}: quantizer must have a transform such as 'hadamard128' with "
                f"{'resample_signs' if self.resample_signs else 'eden'}, got none"
            )
        if not self.eden:
            return
        one_scale = q.has_tensor_scale and not q.has_row_scales
        fits = one_scale and q.format.same_codes(formats["e2m1fn"]) and q.granularity in _EDEN_BLOCKS
        if not fits or self.stochastic or (q.hadamard_size or 0) < 16:
            raise ValueError(
                f"{self}: quantizer must be NVFP4 with blocks of 1x16, a transform of 16 or more and no stochastic "
                f"rounding of elements with eden, got {q}"
            )

    @classmethod
    def parse(
        cls,
        given: str | Format | Quantizer | TensorSpec,
        names: Mapping[str, Lookup] | None = None,
        base: Quantizer | None = None,
    ) -> TensorSpec:
        """Return the specification for a string of words (see the table above), a format or a quantizer.

        Parameters
        ----------
        given : str, Format, Quantizer or TensorSpec
            Words, or an object.
        names : mapping of str to Lookup, optional
            Mappings from names to formats and quantizers, by default the catalogues.
        base : Quantizer, optional
            Quantizer that is modified by words, such as ``"128x1"``, that name neither a format nor a quantizer.

        Raises
        ------
        UnknownNameError
            If a word is unknown.
        ValueError
            If two words set one field, or no word names a format.
        TypeError
            If `given` has another type.
        """
        if isinstance(given, TensorSpec):
            return given
        if isinstance(given, Quantizer):
            return cls(given.format, given)
        if isinstance(given, Format):
            return cls(given)
        if not isinstance(given, str):
            raise TypeError(
                "TensorSpec: spec must be words such as 'e4m3fn 1x128', a Format, a Quantizer or a TensorSpec, "
                f"got {given!r}"
            )
        if names is None and base is None:
            return _in_catalogues(given)
        return _parsed(given, _CATALOGUES if names is None else names, base)

    @property
    def plain(self) -> bool:
        """Whether codes represent the values themselves, without scales."""
        return self.quantizer is None

    @property
    def granularity(self) -> str:
        """Block that shares a scale, with columns along the multiplication's K, or ``"none"`` without scales."""
        return PLAIN if self.quantizer is None else str(self.quantizer.granularity)

    @property
    def tile(self) -> int | None:
        """Number of values along K that share a scale; None if all of them do, or if there are no scales."""
        return None if self.quantizer is None else self.quantizer.granularity.columns

    @functools.cached_property
    def T(self) -> TensorSpec:
        """The same quantization of the transposed matrix."""
        q = self.quantizer
        return self if q is None else replace(self, quantizer=replace(q, granularity=q.granularity.T))

    @property
    def resolved(self) -> Quantizer:
        """The quantizer of a tensor that has scales."""
        assert self.quantizer is not None
        return self.quantizer

    @functools.cached_property
    def without_history(self) -> Quantizer:
        """The quantizer without delayed scaling, whose scales follow from the values themselves."""
        return replace(self.resolved, amax_history_len=None)

    @property
    def transform(self) -> tuple[int, str | int] | None:
        """Size and signs of the Hadamard transform, or None if there is none."""
        size = 0 if self.plain else self.resolved.hadamard_size or 0
        return (size, "resample_signs" if self.resample_signs else self.resolved.hadamard_signs) if size else None

    @property
    def random(self) -> bool:
        """Whether the result depends on random bits."""
        return self.stochastic or self.resample_signs or self.eden

    @property
    def delayed(self) -> bool:
        """Whether the scale follows from the amax of earlier steps."""
        return not self.plain and self.resolved.amax_history_len is not None

    def rounding(self, seed: int) -> dict[str, Any]:
        """Return the options of `quantize` and `round_to` for the rounding of elements."""
        return {"rounding": "stochastic", "seed": seed} if self.stochastic else {}

    def words(self, name: Callable[[str, Any], str], names: Mapping[str, Lookup]) -> str:
        """Return the words that define this operand.

        Parameters
        ----------
        name : callable
            Function that returns the word for an object, given its kind, "format" or "quantizer", and the object.
        names : mapping of str to Lookup
            Mappings in which a reader finds objects by these words.
        """
        return next(text for text in self._spellings(name) if _means(text, names, self))

    def _spellings(self, name: Callable[[str, Any], str]) -> Iterator[str]:
        """Yield words for this operand, shortest first: from a catalogue quantizer, from the plain one, or its name."""
        flags = [flag for flag in _FLAGS if getattr(self, flag)]
        q = self.quantizer
        if q is None:
            yield " ".join([name("format", self.format), *flags])
            return
        for base in (quantizers.find(split_name(q.name)[0]), _PLAIN_QUANTIZER):
            if base is not None and _has_words(q, base):
                first, last = _words_of(q, base, name)
                yield " ".join([*first, *flags, *last])
        yield " ".join([name("quantizer", q), *flags])

    def __str__(self) -> str:
        return next(self._spellings(lambda kind, value: value.name or "unnamed"))


def _changed(q: Quantizer, base: Quantizer) -> set[str]:
    """Return the fields in which two quantizers differ; for rules that differ only in the floor, ``amax_floor``."""
    fields = {field for field in compared_fields(Quantizer) if getattr(q, field) != getattr(base, field)}
    ours, theirs = q.rule, base.rule
    if "rule" not in fields or not isinstance(ours, AmaxRule) or not isinstance(theirs, AmaxRule):
        return fields
    differs_in_floor = replace(ours, amax_floor=theirs.amax_floor) == theirs
    return fields - {"rule"} | {"amax_floor"} if differs_in_floor else fields


def _has_words(q: Quantizer, base: Quantizer) -> bool:
    changed = _changed(q, base)
    return changed <= _WORDED and ("scale_format" not in changed or q.scale_format in _SCALES.values())


def _words_of(q: Quantizer, base: Quantizer, name: Callable[[str, Any], str]) -> tuple[list[str], list[str]]:
    """Return the words that change `base` into `q`: those before, and those after, the words for an operand's flags."""
    changed = _changed(q, base)
    plain = base is _PLAIN_QUANTIZER
    first = [] if plain else [name("quantizer", base)]
    first += [name("format", q.format)] if plain or "format" in changed else []
    first += [str(q.granularity)] if plain or "granularity" in changed else []
    first += [word for word, fmt in _SCALES.items() if fmt == q.scale_format] if "scale_format" in changed else []
    first += [f"floor={q.rule.amax_floor!r}"] if isinstance(q.rule, AmaxRule) and "amax_floor" in changed else []
    last = [f"hadamard{q.hadamard_size}"] if "hadamard_size" in changed else []
    return first, last + ([f"amax_history{q.amax_history_len}"] if "amax_history_len" in changed else [])


def _means(text: str, names: Mapping[str, Lookup], spec: TensorSpec) -> bool:
    try:
        return TensorSpec.parse(text, names) == spec
    except ValueError:
        return False


@registry_cache(1024)  # words are names: the cache is cleared when an entry of a catalogue is replaced
def _in_catalogues(text: str) -> TensorSpec:
    return _parsed(text, _CATALOGUES)


def _parsed(text: str, names: Mapping[str, Lookup], base: Quantizer | None = None) -> TensorSpec:
    fields: dict[str, Any] = {}
    if not text.split():
        raise ValueError("TensorSpec: spec must be words such as 'e4m3fn 1x128', got an empty string")
    for word in text.split():
        key, value = _meaning(word, text, names)
        if key in fields:
            raise ValueError(
                f"TensorSpec: spec must have one word for {key.replace('_', ' ')}, got {word!r} as the second one in "
                f"{text!r}"
            )
        fields[key] = value
    flags = {flag: fields.pop(flag) for flag in _FLAGS if flag in fields}
    base = fields.pop("quantizer", None if "format" in fields else base)
    if base is None:
        base = _PLAIN_QUANTIZER
        if "format" not in fields:
            raise ValueError(f"TensorSpec: spec must name an element format, such as 'e4m3fn', got {text!r}")
        if fields.keys() == {"format"}:
            return TensorSpec(fields["format"], **flags)
        if "granularity" not in fields:
            raise ValueError(
                f"TensorSpec: with scales or a transform, spec must name a granularity, such as '1x128', got {text!r}"
            )
    if "amax_history_len" in fields and base.amax_history_len is None:
        raise ValueError(f"TensorSpec: a history must be of delayed scaling ('te_delayed'), got {text!r}")
    changes = {field: value for field, value in fields.items() if getattr(base, field, None) != value}
    q = base.with_(**changes) if changes else base
    return TensorSpec(q.format, q, **flags)


def is_word(word: str) -> bool:
    """Return whether a word is part of a specification without naming a format or a quantizer.

    Examples
    --------
    >>> is_word("1x128"), is_word("stochastic"), is_word("e4m3fn")
    (True, True, False)
    """
    try:
        return _setting(word, word) is not None
    except ValueError:  # "0x0"
        return True


def _setting(word: str, text: str) -> tuple[str, Any] | None:
    """Return the field that a word sets, and its value, if the word is not a name."""
    if word in _GRANULARITIES or re.fullmatch(r"\d+x\d+", word):
        return "granularity", Granularity.parse(word)
    if word in _SCALES:  # before formats: the word for a scale format is also an alias of a format
        return "scale_format", _SCALES[word]
    if word in _FLAGS:
        return word, True
    if number := re.fullmatch(r"(hadamard|amax_history)([1-9]\d*)", word):
        return {"hadamard": "hadamard_size", "amax_history": "amax_history_len"}[number[1]], int(number[2])
    if number := re.fullmatch(r"floor=(\d[\d.e+-]*)", word):
        try:
            return "amax_floor", float(number[1])
        except ValueError:
            raise ValueError(f"{text!r}: floor must be a number, got {word!r}") from None
    return None


def _meaning(word: str, text: str, names: Mapping[str, Lookup]) -> tuple[str, Any]:
    """Return the field that a word sets, and its value."""
    if (found := _setting(word, text)) is not None:
        return found
    for kind in ("quantizer", "format"):
        if word in names[kind]:
            return kind, names[kind][word]
    known = [*formats, *(other for name in quantizers for other in (name, *quantizers.aliases(name)))]
    more = (*_GRANULARITIES, "1x128", "128x128", *_SCALES, *_FLAGS)
    hint = formats.meaning(word) or elsewhere(word) or suggest(word, [*known, *more])
    shown, where = (part if len(part) <= 60 else f"{part[:60]}..." for part in (word, text))
    raise UnknownNameError(f"unknown word {shown!r} in {where!r}: {hint}")
