"""What one operand of a multiplication goes through, as one short text: ``"e4m3fn 1x128 ue8m0"``.

The words, in any order but the format first:

============================ ==========================================================================================
word                         meaning
============================ ==========================================================================================
``e4m3fn``, ``bfloat16`` ... the element format; alone, a plain cast without scales
``1x128``, ``128x128`` ...   the block that shares a scale, seen with the multiplication's K as columns
``fp32``, ``ue8m0``          the kind of scale; float32 unless said otherwise
``floor=0.0001``             lower bound on a block's amax
============================ ==========================================================================================
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowprec.cast import round_to
from lowprec.formats import formats
from lowprec.registry import UnknownNameError
from lowprec.scaling import Granularity, Quantized, ScaleKind, quantize

Array = NDArray[Any]

#: Granularity of a tensor without scales.
PLAIN = "none"
_GRANULARITIES = ("tensor", "row", "column")
_SCALES: tuple[ScaleKind, ...] = ("fp32", "ue8m0")


@dataclass(frozen=True)
class TensorSpec:
    """How one operand of a multiplication is quantized.

    Parameters
    ----------
    format : str
        Element format.
    granularity : str
        Block that shares a scale, seen with the multiplication's K as columns: ``"1x128"`` for tiles along K;
        ``"none"`` for values in the format itself, without scales.
    scale : {"fp32", "ue8m0"}
        Kind of scale.
    amax_floor : float
        Lower bound on a block's amax; released kernels have 1e-4, which would flush gradients, so 0 here.

    Examples
    --------
    >>> TensorSpec.parse("e4m3fn 1x128 ue8m0")
    TensorSpec(format='e4m3fn', granularity='1x128', scale='ue8m0', amax_floor=0.0)
    >>> str(TensorSpec("bfloat16", "none")), str(TensorSpec())
    ('bfloat16', 'e4m3fn 1x128')
    """

    format: str = "e4m3fn"
    granularity: str = "1x128"
    scale: ScaleKind = "fp32"
    amax_floor: float = 0.0

    def __post_init__(self) -> None:
        formats[self.format]
        if self.granularity != PLAIN:
            Granularity.parse(self.granularity)
        if self.scale not in _SCALES:
            raise ValueError(f"scale={self.scale!r}: one of {', '.join(_SCALES)}")

    @classmethod
    def parse(cls, text: str | TensorSpec) -> TensorSpec:
        """Read the short text; see the table above.

        Raises
        ------
        UnknownNameError
            For a word that is nothing of this.
        ValueError
            For two words of one kind, or none that names a format.
        """
        if isinstance(text, TensorSpec):
            return text
        if not isinstance(text, str):
            raise TypeError(f"a tensor is described in words such as 'e4m3fn 1x128', not by {text!r}")
        given: dict[str, Any] = {}
        for word in text.split():
            key, value = _meaning(word, text)
            if key in given:
                raise ValueError(f"{text!r}: {word!r} is the second {key.replace('_', ' ')}")
            given[key] = value
        if "format" not in given:
            raise ValueError(f"{text!r}: an element format is missing, such as 'e4m3fn'")
        return cls(**{"granularity": PLAIN, **given})

    @property
    def plain(self) -> bool:
        """Whether values stand in the format itself, without scales."""
        return self.granularity == PLAIN

    @property
    def tile(self) -> int | None:
        """Values along K that share a scale; None if all do, or there is none."""
        return None if self.plain else Granularity.parse(self.granularity).columns

    @property
    def T(self) -> TensorSpec:
        """The same quantization seen from the transposed matrix."""
        if self.plain:
            return self
        turned = str(Granularity.parse(self.granularity).T)
        return TensorSpec(self.format, turned, self.scale, self.amax_floor)

    def quantize(self, x: Array) -> Quantized:
        """Quantize a matrix [rows, K]."""
        if self.plain:
            return as_quantized(round_to(x, self.format), self.format)
        return quantize(x, self.format, self.granularity, scale=self.scale, amax_floor=self.amax_floor)

    def quantize_transposed(self, x: Array) -> Quantized:
        """Quantize ``x.T`` for x [K, columns]: the block is turned, and so are codes and scales afterwards."""
        return self.T.quantize(x).T

    def __str__(self) -> str:
        words = [self.format]
        if not self.plain:
            words.append(str(Granularity.parse(self.granularity)))
            words += [] if self.scale == "fp32" else [self.scale]
            words += [f"floor={self.amax_floor!r}"] if self.amax_floor else []
        return " ".join(words)


def as_quantized(values: Array, fmt: str) -> Quantized:
    """Return values that a format can hold as its codes, with a single scale of 1."""
    from lowprec.cast import encode

    one = np.ones((1, 1), np.float32)
    return Quantized(encode(values, fmt), one, formats[fmt], Granularity(None, None))


def _meaning(word: str, text: str) -> tuple[str, Any]:
    """Return the field that a word sets, and its value."""
    if word in _GRANULARITIES or re.fullmatch(r"\d+x\d+", word):
        return "granularity", word
    if word in _SCALES:  # before formats: the kind of scale has the name of a format
        return "scale", word
    if word in formats:
        return "format", word
    if number := re.fullmatch(r"floor=(\d[\d.e+-]*)", word):
        try:
            return "amax_floor", float(number[1])
        except ValueError:
            raise ValueError(f"{text!r}: cannot read the number in {word!r}") from None
    known = [*formats.names(), *_GRANULARITIES, "1x128", "128x128", *_SCALES]
    close = difflib.get_close_matches(word, known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(map(repr, close))}?" if close else f"known: {', '.join(known)}"
    raise UnknownNameError(f"unknown word {word!r} in {text!r}: {hint}")
