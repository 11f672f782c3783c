"""Accumulators: rules for the summation of products, as data. `Accumulator` is the base; `kinds` has its subclasses.

A tensor core adds a group of L products and C in one operation: it aligns all terms to the largest exponent among
them, truncates them to F fraction bits below it, sums them exactly, and truncates the sum to the format of the
accumulator. Groups are chained in increasing k.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, cast, get_args

import numpy as np

from .._checks import check_choice, check_int
from .._markup import html_table
from .._values import Value, compared_fields, normalize_fields
from ..cast.casts import decode
from ..cast.constants import decode_constants, has_word_kernel
from ..format.catalogue import Format, format_of, formats, formats_of
from ..kernels.cast.nearest import decode32
from ..kernels.tensorcore.bounds.chains import ALIGNED, LINEAR, BlockError
from ..order.summation_tree import SumNode, drawing
from .problem import Float32Matrix, GemmProblem, Matrix

Align = Literal["truncate", "floor", "nearest"]
ALIGNMENTS: tuple[Align, ...] = get_args(Align)
FP22, FLOAT16, FLOAT32, BFLOAT16 = (formats[name] for name in ("fp22", "float16", "float32", "bfloat16"))
_TRUNCATE: Align = "truncate"
TF32, _E4M3 = formats["tf32"], formats["e4m3fn"]


@dataclass(frozen=True, eq=False)
class _Float64(Format):
    """IEEE 754 binary64, wider than all of `lowprec.formats` (at most 32 bits); its codes are the float64 values."""

    def __post_init__(self) -> None:
        """Skip the checks that restrict formats to those of casts."""


FLOAT64 = _Float64("float64", 11, 52, 1023, source="IEEE 754")


class StepError(NamedTuple):
    """Error bound of one instruction: ``|error| <= relative * (sum of term magnitudes) + absolute``.

    Magnitudes are those used in the alignment: a subnormal counts as the smallest normal number, also in the scales
    inside the instruction.

    Attributes
    ----------
    relative, absolute : float
        Coefficients of the bound.
    carried : float, optional
        Relative error of C, which is smaller if products are rounded more often than C; None: equal to `relative`.
    """

    relative: float
    absolute: float
    carried: float | None = None


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Accumulator(Value, ABC):
    """Rule for the summation of products. Each kind is a subclass with additional fields.

    Parameters
    ----------
    name : str
        Name in tables and messages; it does not affect the bits.
    input_formats : sequence of Format or str
        Formats of the operands, in any pairing; empty for any format. The first is the default.
    promote_every : int, optional
        Number of products after which the sum is promoted: added to a float32 sum outside the accumulator.
    source : str
        Reference for the rule.
    validated_against : str
        Evidence for the rule other than the project's oracle, and any field that this evidence does not determine.

    Raises
    ------
    ValueError
        If a field is out of range, or fields are inconsistent.

    Examples
    --------
    >>> import lowprec as lp
    >>> hopper = lp.accumulators["hopper_fp8"]
    >>> hopper.group_size, hopper.fraction_bits, hopper.output_format.name
    (32, 13, 'fp22')
    >>> hopper.with_(fraction_bits=25, output_format="float32").name
    'hopper_fp8(fraction_bits=25, output_format=float32)'
    """

    name: str = field(kw_only=False, compare=False)
    input_formats: tuple[Format, ...] = ()
    promote_every: int | None = None
    source: str = field(default="user-defined", compare=False)
    validated_against: str = field(default="not", compare=False)

    #: Short description of the summation for pages and tables.
    summary: ClassVar[str]
    #: Name of the independent implementation in `lowprec.oracle`.
    oracle_class: ClassVar[str]
    #: Allowed formats of results, the default first.
    output_formats: ClassVar[tuple[Format, ...]] = (FLOAT32,)
    alignments: ClassVar[tuple[Align, ...]] = ("truncate",)
    #: Whether `reference` is one compiled loop, which for a few outputs takes less time than a call of a fast kernel.
    reference_is_compiled: ClassVar[bool] = True
    #: Whether a chain may continue where scales change: its running sum can be rescaled.
    has_running_sum: ClassVar[bool] = True
    #: Whether every NaN result is 0x7FFFFFFF (0x7FFF in float16); else `reference` returns the NaNs of the hardware.
    has_canonical_nan: ClassVar[bool] = True
    #: Whether `lowprec.gemm` without promotion multiplies the dequantized values in float32.
    multiplies_values: ClassVar[bool] = False
    #: Classes of `engines` that may be faster than `reference`, the fastest first.
    engines: ClassVar[tuple[Any, ...]] = ()

    # Defaults that shared code reads from every accumulator; with annotations they would be fields of all kinds.
    output_format = FLOAT32
    align = _TRUNCATE
    group_size = 1
    exact_group = 1
    lanes = 1
    product_scale_log2 = 0
    daz_formats = cast("tuple[Format, ...]", ())
    scale_format = cast("Format | None", None)
    scale_block = 0

    def __post_init__(self) -> None:
        caller = f"{type(self).__name__} {self.name}"
        for name in ("input_formats", "daz_formats"):
            if name in self.__dict__:
                found = formats_of(f"{caller}: {name}", getattr(self, name), _format)
                object.__setattr__(self, name, found)
        for name in ("output_format", "scale_format"):
            if self.__dict__.get(name) is not None:
                object.__setattr__(self, name, format_of(f"{caller}: {name}", getattr(self, name), _format))
        normalize_fields(self)
        for name, (low, high) in _RANGES.items():
            optional = getattr(type(self), name, 0) is None  # the class attribute is the default
            if name in self.__dict__ and not (optional and getattr(self, name) is None):
                check_int(caller, name, getattr(self, name), low, high)
        if self.output_format not in self.output_formats:
            allowed = ", ".join(f.name for f in self.output_formats)
            raise ValueError(f"{caller}: output_format must be one of {allowed}, got {self.output_format}")
        if "output_format" in self.__dict__:  # the object in `output_formats`: an equal format may have another name
            own = self.output_formats[self.output_formats.index(self.output_format)]
            object.__setattr__(self, "output_format", own)
        if "align" in self.__dict__:
            check_choice(caller, "align", self.align, self.alignments)
        if (self.scale_format is None) != (self.scale_block == 0):
            raise ValueError(
                f"{caller}: scale_format and scale_block must be given together, "
                f"got {self.scale_format} and {self.scale_block}"
            )
        self.check()

    @functools.cached_property
    def output_bits(self) -> int:
        """Fraction bits of a result."""
        return self.output_format.mantissa_bits

    @functools.cached_property
    def stored_format(self) -> Format:
        """Format of the array elements for C and results, which is float32 for FP22 and bfloat16."""
        return FLOAT32 if self.output_format in (FP22, BFLOAT16) else self.output_format

    @functools.cached_property
    def dtype(self) -> np.dtype[Any]:
        """NumPy dtype of C and of results."""
        return np.dtype(f"f{self.stored_format.bits // 8}")

    @property
    def largest_sum(self) -> float:
        """Largest number that a sum may reach without overflow."""
        return self.stored_format.max

    @property
    def default_format(self) -> Format:
        """Format assumed for codes if no format is given."""
        return self.input_formats[0] if self.input_formats else _E4M3

    def accepts(self, fmt: Format) -> bool:
        """Return whether `input_formats` contains a format with the same codes."""
        return any(f.same_codes(fmt) for f in self.input_formats)

    def is_daz(self, fmt: Format) -> bool:
        """Return whether `daz_formats` contains a format with the same codes."""
        return any(f.same_codes(fmt) for f in self.daz_formats)

    def check_inputs(self, *operands: Format) -> None:
        """Raise ValueError if a format is not among the `input_formats`."""
        for fmt in operands:
            if self.input_formats and not self.accepts(fmt):
                raise ValueError(
                    f"{self.name}: operands must be of {', '.join(f.name for f in self.input_formats)}, got {fmt.name}"
                )

    def _repr_html_(self) -> str:
        rows = [
            ("sums", self.summary), ("takes", ", ".join(f.name for f in self.input_formats) or "any format"),
            ("result and C", self.output_format.name), ("source", self.source), ("verified", self.validated_against),
        ]  # fmt: skip
        return html_table(rows, title=self.name) + self.drawing()

    def drawing(self) -> str:
        """Return an SVG of the summation order of two consecutive instructions."""
        return drawing(self.order(), f"Order of summation of {self.name}")

    def check(self) -> None:
        """Raise ValueError if fields are inconsistent."""

    def check_formats(self, fa: Format, fb: Format) -> None:
        """Raise ValueError if the accumulator is not defined for products of two formats."""

    def step(self) -> int:
        """Return the number of products per instruction: scales and promotions apply at instruction boundaries."""
        return self.group_size

    def steps(self, k: int) -> int:
        """Return the number of roundings in a chain of k products, one per instruction."""
        return -(-k // self.step())

    def order(self) -> SumNode:
        """Return the summation order of two chained instructions as a tree: the first result is C of the second."""
        return self.instruction(self.instruction("C", 0), self.step())

    def chain(self, k: int) -> list[SumNode]:
        """Return the instructions of a chain of k products, each with the previous result as C; the last may pass k."""
        return [self.instruction("C", start) for start in range(0, k, self.step())]

    @abstractmethod
    def instruction(self, state: SumNode | str, start: int) -> SumNode:
        """Return the summation order of one instruction: its products, from k = `start`, and the previous sum."""

    @abstractmethod
    def step_error(self) -> StepError:
        """Return a derived (not measured) bound on the error of one instruction without overflow."""

    def block_length(self) -> int:
        """Return the number of products in a block of `block_error`: several instructions, for speed."""
        return max(32 // self.step(), 1) * self.step()

    def block_error(self) -> BlockError:
        """Return the coefficients of a block's error bound, and of the estimate of the mean square error.

        With r and z of `step_error` and c the relative error of C, n instructions add at most
        ``(1 + r)^n (r size + n c inside + n z)``: every running sum is at most `inside` plus the error so far.
        """
        error = self.step_error()
        carried = error.relative if error.carried is None else error.carried
        return BlockError(LINEAR, relative=error.relative, carried=carried, absolute=error.absolute)

    def multiplied(self, fmt: Format) -> Format:
        """Return the format in which operands are multiplied: TF32 units ignore the low 13 bits of float32 operands."""
        return TF32 if fmt.same_codes(FLOAT32) and self.accepts(TF32) else fmt

    def values(self, codes: Matrix, fmt: Format) -> Float32Matrix:
        """Return the values that are multiplied: the decoded codes, with zeros for flushed subnormals."""
        if not has_word_kernel(fmt):
            return decode(codes, fmt)
        x = np.empty(codes.shape, np.float32)  # for a small operand, the checks of `decode` take longer than the work
        decode32(np.ascontiguousarray(codes).reshape(-1), x.reshape(-1), decode_constants(fmt))
        return x

    @abstractmethod
    def reference(self, p: GemmProblem) -> Matrix:
        """Return one chain over all of K, starting from C, for any codes and any C; see `has_canonical_nan` for NaN."""


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class AlignedSum(Accumulator):
    """Base class of tensor cores' sums: terms are aligned to the largest exponent, truncated and added exactly.

    Parameters
    ----------
    group_size : int
        Products per sum (L), 1 to 1024.
    fraction_bits : int
        Fraction bits kept below the largest exponent when terms are aligned (F), 3 to 40.
    output_format : Format or str
        Format of a result and of C: truncated for ``fp22`` and ``float32`` (both in float32 arrays), rounded to nearest
        even for ``float16``.
    align : {"truncate", "floor", "nearest"}
        Rounding of aligned terms: toward zero, toward minus infinity, or to nearest even.
    zero_exponent : int, optional
        Exponent of zero products and of a zero C in the alignment; by default zeros are ignored.
    scale_format : Format or str, optional
        Format of the scales inside the instruction; None if the instruction takes no scales.
    scale_block : int
        Number of codes along K that share a scale.
    """

    group_size: int = 32
    fraction_bits: int = 13
    output_format: Format = FP22
    align: Align = "truncate"
    zero_exponent: int | None = None
    scale_format: Format | None = None
    scale_block: int = 0

    oracle_class = "Rule"
    output_formats = (FP22, FLOAT32, FLOAT16)
    alignments = ALIGNMENTS

    def block_length(self) -> int:
        """Return the number of products of one instruction: its error depends on the exponents of its terms."""
        return self.step()

    def block_error(self) -> BlockError:
        """Return the error bound of the alignment, in which a product or C loses less than a unit, 2^(E - F).

        E is at most the exponent of the largest product, of C, of a subnormal C, or of a zero. The sum then loses less
        than its ulp, or half of it for float16.
        """
        zero = 0.0 if self.zero_exponent is None else 2.0**self.zero_exponent
        normal = self.stored_format.smallest_normal
        return BlockError(
            ALIGNED, unit=2.0**-self.fraction_bits, least=max(zero, normal), normal=normal,
            terms=float(self.group_size // self.exact_group), cut=0.5 if self.align == "nearest" else 1.0,
            last=2.0 ** -(self.output_bits + (self.output_format == FLOAT16)),
        )  # fmt: skip

    def check(self) -> None:
        """Check that promotions occur between groups."""
        if self.promote_every is not None and self.promote_every % self.group_size:
            raise ValueError(
                f"{type(self).__name__} {self.name}: promote_every must be a multiple of group_size, "
                f"{self.group_size}, got {self.promote_every}"
            )


def heeded_fields(kind: type[Accumulator]) -> tuple[str, ...]:
    """Return the fields of a kind that affect the bits, except `input_formats`, in the search order of `identify`."""
    own = set(compared_fields(kind)) - {"input_formats", "promote_every"}
    first = [name for name in ("group_size", "fraction_bits", "output_format", "align") if name in own]
    return (*first, *sorted(own - set(first)), "promote_every")


#: Ranges of integer fields that several kinds have.
_RANGES = {
    "group_size": (1, 1024), "fraction_bits": (3, 40), "exact_group": (1, 256), "lanes": (1, 256),
    "leading_bits": (3, 40), "zero_exponent": (-8000, 8000), "scale_block": (0, 256), "product_scale_log2": (-127, 127),
    "promote_every": (1, 1 << 30),
}  # fmt: skip


def _format(given: Format | str) -> Format:
    return FLOAT64 if given == "float64" else formats.get(given)
