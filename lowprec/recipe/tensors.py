"""What one operand of a multiplication goes through, as one short text: ``"e4m3fn 1x128 ue8m0"``.

The words, in any order:

============================ ==========================================================================================
word                         meaning
============================ ==========================================================================================
``e4m3fn``, ``bfloat16`` ... the element format; alone, a plain cast without scales
``mxfp8_rceil``, ``te_block``, ``nvfp4_te`` ... a quantizer of `lowprec.quantizers`, with its format and block
``1x128``, ``128x128`` ...   the block that shares a scale, seen with the multiplication's K as columns
``fp32``, ``ue8m0``          the kind of scale, float32 unless said otherwise; ``amax / max`` without a quantizer's name
``floor=0.0001``             lower bound on a block's amax
``stochastic``               rounded stochastically; seed, step, layer and element decide the random bits
``hadamard16``               a Hadamard transform along K comes first
``fresh``                    its signs are drawn in every step, the same for both operands of a product
``eden``                     MS-EDEN (`lowprec.ms_eden`): scales that make up for what rounding to nearest shrinks,
                             rounded stochastically; with an NVFP4 quantizer and a transform, whose runs share a factor
``history16``                delayed scaling remembers so many steps (with ``te_delayed``, 1024 unless said otherwise)
============================ ==========================================================================================
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowprec._arrays import one_of
from lowprec._values import plain_fields
from lowprec.cast.casts import round_to
from lowprec.format.catalogue import Format, formats
from lowprec.registry import UnknownNameError, cached
from lowprec.scaling.eden import quantize_eden
from lowprec.scaling.quantize import Granularity, Quantized, ScaleKind, quantize
from lowprec.scaling.quantizer import Quantizer, quantizers

Array = NDArray[Any]

#: Granularity of a tensor without scales.
PLAIN = "none"
_GRANULARITIES = ("tensor", "row", "column")
_SCALES: tuple[ScaleKind, ...] = ("fp32", "ue8m0")
_EDEN_BLOCKS = (Granularity(1, 16), Granularity(16, 1))
_FLAGS = ("stochastic", "fresh", "eden")


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
    quantizer : str
        Whose arithmetic makes the scales: a name of `lowprec.quantizers`; empty for ``amax / max`` and division.
    scale : {"fp32", "ue8m0"}, optional
        Kind of scale, if not the quantizer's.
    amax_floor : float, optional
        Lower bound on a block's amax, if not the quantizer's; released kernels have 1e-4, which would flush gradients.
    stochastic : bool
        Whether elements are rounded stochastically.
    hadamard : int
        Size of the Hadamard transform that comes first, along K; 0 for the quantizer's, if it has one.
    history : int
        Steps that delayed scaling remembers; 0 for the quantizer's, if it has one.
    fresh : bool
        Whether the transform's signs are drawn in every step.
    eden : bool
        Whether block scales and codes are MS-EDEN's.

    Examples
    --------
    >>> str(TensorSpec.parse("1x128 e4m3fn ue8m0")), TensorSpec.parse("nvfp4_te").granularity
    ('e4m3fn 1x128 ue8m0', '1x16')
    >>> str(TensorSpec("bfloat16", "none")), str(TensorSpec())
    ('bfloat16', 'e4m3fn 1x128')
    """

    format: str = "e4m3fn"
    granularity: str = "1x128"
    quantizer: str = ""
    scale: ScaleKind | None = None
    amax_floor: float | None = None
    stochastic: bool = False
    hadamard: int = 0
    history: int = 0
    fresh: bool = False
    eden: bool = False

    def __post_init__(self) -> None:
        plain_fields(self)
        formats[self.format]
        if self.granularity != PLAIN:
            object.__setattr__(self, "granularity", str(Granularity.parse(self.granularity)))
        elif (
            self.quantizer or self.scale or self.amax_floor or self.hadamard or self.history or self.fresh or self.eden
        ):
            raise ValueError(f"{self}: a tensor without blocks has no scales and no transform")
        one_of("", "scale", self.scale, (None, *_SCALES))
        if not self.quantizer and self.scale == "fp32":
            object.__setattr__(self, "scale", None)  # as it is without saying so
        if self.granularity != PLAIN:
            self._check_transform(self.resolved)  # what contradicts itself raises here

    def _check_transform(self, q: Quantizer) -> None:
        if (self.fresh or self.eden) and q.hadamard is None:
            raise ValueError(f"{self}: {'fresh signs' if self.fresh else 'eden'} need a transform, 'hadamard128'")
        blocks = Granularity.parse(q.granularity)
        fits = q.two_level and formats.get(q.format).same_codes(formats["e2m1fn"]) and blocks in _EDEN_BLOCKS
        if self.eden and (not fits or self.stochastic or (q.hadamard or 0) < 16):
            raise ValueError(
                f"{self}: eden takes an NVFP4 quantizer with blocks of 1x16 and a transform of 16 or more, and rounds "
                "no element stochastically"
            )

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
        if not text.split():
            raise ValueError("a tensor is described in words such as 'e4m3fn 1x128', not by an empty text")
        for word in text.split():
            key, value = _meaning(word, text)
            if key in given:
                raise ValueError(f"{text!r}: {word!r} is the second {key.replace('_', ' ')}")
            given[key] = value
        if "quantizer" in given:
            named = quantizers[given["quantizer"]]
            return cls(**{"format": _name_of(named.format), "granularity": named.granularity, **given})
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
        return self if self.plain else _transposed(self)

    @property
    def resolved(self) -> Quantizer:
        """The quantizer with everything that the words say."""
        return _resolved(self)

    @property
    def transform(self) -> tuple[int, str | int] | None:
        """Size and signs of the Hadamard transform that comes first, None if there is none."""
        size = 0 if self.plain else self.resolved.hadamard or 0
        return (size, "fresh" if self.fresh else self.resolved.signs) if size else None

    @property
    def random(self) -> bool:
        """Whether random bits decide anything."""
        return self.stochastic or self.fresh or self.eden

    @property
    def delayed(self) -> bool:
        """Whether the scale follows from the amax of earlier steps."""
        return not self.plain and self.resolved.history is not None

    def quantize(self, x: Array, seed: int = 0, signs: int = 0) -> Quantized:
        """Quantize a matrix [rows, K]; `seed` decides stochastic rounding, `signs` the signs that are drawn.

        Delayed scaling needs a state, which a bound recipe has; here its scale is that of the matrix's own amax.
        """
        if self.plain:
            return as_quantized(round_to(x, self.format, **self.rounding(seed)), self.format)
        q = _without_history(self)
        q = q.with_(signs=signs) if self.fresh else q
        return quantize_eden(x, q, seed) if self.eden else quantize(x, quantizer=q, **self.rounding(seed))

    def quantize_transposed(self, x: Array, seed: int = 0, signs: int = 0) -> Quantized:
        """Quantize ``x.T`` for x [K, columns]: the block is turned, and so are codes and scales afterwards."""
        return self.T.quantize(x, seed, signs).T

    def rounding(self, seed: int) -> dict[str, Any]:
        """Return the options of `quantize` and `round_to` that say how elements are rounded."""
        return {"rounding": "stochastic", "seed": seed} if self.stochastic else {}

    def __str__(self) -> str:
        words = []
        if self.quantizer:
            words.append(self.quantizer)
            named = quantizers[self.quantizer]
            words += [self.format] if self.format != _name_of(named.format) else []
            words += [self.granularity] if self.granularity != str(Granularity.parse(named.granularity)) else []
        else:
            words.append(self.format)
            words += [] if self.plain else [self.granularity]
        words += [self.scale] if self.scale is not None else []
        words += [f"floor={self.amax_floor!r}"] if self.amax_floor is not None else []
        words += [flag for flag in _FLAGS if getattr(self, flag)]
        words += [f"hadamard{self.hadamard}"] if self.hadamard else []
        words += [f"history{self.history}"] if self.history else []
        return " ".join(words)


# Every multiplication of a step asks these of its operands: they are made once.
@cached(1024)
def _resolved(spec: TensorSpec) -> Quantizer:
    base = quantizers[spec.quantizer] if spec.quantizer else Quantizer()
    changes: dict[str, Any] = {"format": spec.format, "granularity": spec.granularity}
    if spec.scale is not None:
        changes["scale"] = spec.scale
    if spec.amax_floor is not None:
        changes["amax_floor"] = spec.amax_floor
    if spec.hadamard:
        changes["hadamard"] = spec.hadamard
    if spec.history:
        if base.history is None:
            raise ValueError(f"{spec}: history goes with delayed scaling, 'te_delayed'")
        changes["history"] = spec.history
    return base.with_(**changes)


@cached(1024)
def _without_history(spec: TensorSpec) -> Quantizer:
    return spec.resolved.with_(history=None)


@cached(1024)
def _transposed(spec: TensorSpec) -> TensorSpec:
    return replace(spec, granularity=str(Granularity.parse(spec.granularity).T))


def as_quantized(values: Array, fmt: str) -> Quantized:
    """Return values that a format can hold as its codes, with a single scale of 1."""
    from lowprec.cast.casts import encode

    one = np.ones((1, 1), np.float32)
    return Quantized(encode(values, fmt), one, formats[fmt], Granularity(None, None))


def _name_of(given: str | Format) -> str:
    """Return the name by which a recipe can call a format.

    Raises
    ------
    ValueError
        If its name finds another format, or none.
    """
    f = formats.get(given)
    name = (isinstance(given, str) and formats.listed(given)) or f.name
    if formats[name] != f:
        raise ValueError(f"the format registered as {name!r} is another one; recipes call formats by their names")
    return name


def _meaning(word: str, text: str) -> tuple[str, Any]:
    """Return the field that a word sets, and its value."""
    if word in _GRANULARITIES or re.fullmatch(r"\d+x\d+", word):
        return "granularity", word
    if word in _SCALES:  # before formats: the kind of scale has the name of a format
        return "scale", word
    if word in _FLAGS:
        return word, True
    if number := re.fullmatch(r"(hadamard|history)([1-9]\d*)", word):
        return number[1], int(number[2])
    if word in quantizers:
        return "quantizer", quantizers.listed(word)
    if word in formats:
        return "format", formats.listed(word)
    if number := re.fullmatch(r"floor=(\d[\d.e+-]*)", word):
        try:
            return "amax_floor", float(number[1])
        except ValueError:
            raise ValueError(f"{text!r}: cannot read the number in {word!r}") from None
    known = [*formats.names(), *quantizers.names(), *_GRANULARITIES, "1x128", "128x128", *_SCALES, *_FLAGS]
    close = difflib.get_close_matches(word, known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(map(repr, close))}?" if close else f"known: {', '.join(known)}"
    raise UnknownNameError(f"unknown word {word!r} in {text!r}: {hint}")
