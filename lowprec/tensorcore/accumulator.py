"""Accumulators: how products are added up, as data; and what each kind of them must be able to do.

A tensor core adds a group of L products and C at once: all terms are aligned to the largest exponent among
them, cut to F fraction bits below it, summed exactly, and the sum is cut to the accumulator's own format. Groups
are chained in increasing k. `Accumulator` holds those numbers. The arithmetic is its `Kind`'s, one file each in
`lowprec.tensorcore.kinds`.
"""

from __future__ import annotations

import dataclasses
import functools
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from .._show import table
from .._values import plain_fields
from ..cast.casts import decode
from ..format.catalogue import Format, formats
from ..registry import Registry, cached
from .order import Sum, drawing
from .product import Matrix, Product

Align = Literal["truncate", "floor", "nearest"]
ALIGNMENTS: tuple[Align, ...] = get_args(Align)
_OF_SOME_KINDS = ("flushed", "product_exponent", "saturate")
FLOAT64 = "float64"  # beyond `lowprec.formats`, which ends at 32 bits: values themselves are the codes


@dataclass(frozen=True)
class Accumulator:
    """How products are summed.

    Parameters
    ----------
    name : str
        How it is called in tables and messages.
    kind : str
        How products are summed; `rule` is the object that does it.
        ``fused``: groups of products and C aligned, cut and summed at once, as NVIDIA's tensor cores do;
        ``fused_runs``: the same for runs of products that are first summed exactly and then scaled (mxf4, mxf4nvf4);
        ``halves``: two fused sums from +0 in float16 operands, C added to the second's result (FP8 ``mma.sync``);
        ``two_floors``: products cut toward zero, then joined with C by cutting downwards (CDNA3); ``pairwise``: float32
        additions of neighbours, subnormals flushed (CDNA2); ``exact_groups``: a group and C exactly, one rounding
        (CDNA1); ``sequential``: one fused multiply-add after the other in increasing k; ``exact``: the exact
        sum of all, one rounding to float32 (nearest even) at the end.
        Of CPUs: ``flushed_fma``: fused multiply-adds, the last product of a group first, subnormals flushed
        (VDPBF16PS); ``lanes``: `run` chains of them from +0, whose sum is added to C (AMX); ``pair_lanes``: the same
        for sums of two products (AMX-FP8); ``odd``: every product and sum rounded to odd (BFDOT, EBF = 0);
        ``rounded_groups``: a group's exact sum rounded, then added (BFDOT, EBF = 1); ``scaled_groups``: a group's
        exact sum times a power of two, and C, rounded once (Arm's FP8).
    group : int
        Products per sum (L), 1 to 256.
    fraction_bits : int
        Fraction bits kept below the largest exponent when terms are aligned (F), 3 to 40.
    output : {"fp22", "float32", "float16", "float64"}
        Format of a result and of C: a fused sum is truncated to ``fp22`` or ``float32`` (both in float32 arrays), and
        rounded to nearest even for ``float16``.
    inputs : str or tuple of str
        Names of the formats that are multiplied, in any pairing; empty for any. The first is the default. A string is
        one format.
    source : str
        Where the rule comes from.
    align : {"truncate", "floor", "nearest"}
        How a fused sum's terms are cut: toward zero, toward minus infinity, or rounded to nearest even.
    zero_exponent : int or None
        Exponent with which zero products and a zero C join the alignment; None: they do not.
    scale_format, scale_block : str or None, int
        Format of the scales that the instruction takes, and how many codes along K share one.
    run : int
        Products of an exact sum within a fused one (``fused_runs``), or interleaved partial sums (``two_floors``).
    promote_every : int or None
        After so many products the sum leaves the accumulator and is added to a float32 one.
    flushed : str or tuple of str
        Names of formats whose subnormals are read as zeros, besides those that are subnormal as float32, too
        (``flushed_fma``, ``lanes``, ``pair_lanes``).
    product_exponent : int
        Products are multiplied by 2 to this power, -127 to 127 (``scaled_groups``: minus FPMR.LSCALE).
    saturate : bool
        A finite sum beyond the largest number is that number, not Inf (``scaled_groups``: FPMR.OSM).
    verified : str
        What the rule was checked against, other than the project's own oracle, and which field that leaves open.

    Raises
    ------
    ValueError
        For a field outside its range; the message quotes it.

    Examples
    --------
    >>> import lowprec as lp
    >>> hopper = lp.accumulators["hopper_fp8"]
    >>> hopper.group, hopper.fraction_bits, hopper.output
    (32, 13, 'fp22')
    >>> hopper.with_(fraction_bits=25, output="float32").name
    'hopper_fp8(fraction_bits=25,output=float32)'
    """

    name: str
    kind: str = "fused"
    group: int = 32
    fraction_bits: int = 13
    output: str = "fp22"
    inputs: tuple[str, ...] = ()
    source: str = dataclasses.field(default="user-defined", compare=False)
    align: Align = "truncate"
    zero_exponent: int | None = None
    scale_format: str | None = None
    scale_block: int = 0
    run: int = 1
    promote_every: int | None = None
    flushed: tuple[str, ...] = ()
    product_exponent: int = 0
    saturate: bool = False
    verified: str = dataclasses.field(default="not", compare=False)

    def __post_init__(self) -> None:
        plain_fields(self)
        self._check_choice("kind", tuple(kinds))
        self._check_whole("group", 1, 256)
        self._check_whole("fraction_bits", 3, 40)
        self._check_whole("run", 1, 256)
        self._check_choice("output", self.rule.outputs)
        self._check_choice("align", self.rule.alignments)
        if self.zero_exponent is not None:
            self._check_whole("zero_exponent", -8000, 8000)
        if self.promote_every is not None:
            self._check_whole("promote_every", 1, 1 << 30)
        self._check_whole("product_exponent", -127, 127)
        for field in _OF_SOME_KINDS:
            if getattr(self, field) and field not in self.rule.own_fields:
                raise ValueError(f"Accumulator {self.name}: kind={self.kind!r} has no {field}")
        for name in self.flushed:
            formats[name]
        for name in self.inputs:
            if name != FLOAT64:
                formats[name]  # an unknown name raises here, with the close matches
        self._check_whole("scale_block", 0, 256)
        if (self.scale_format is None) != (self.scale_block == 0):
            raise ValueError(f"Accumulator {self.name}: scale_format and scale_block go together")
        if self.scale_format is not None:
            self._check_whole("scale_block", 1, 256)
            formats[self.scale_format]
        self.rule.check(self)

    def _check_choice(self, field: str, allowed: tuple[str, ...]) -> None:
        value = getattr(self, field)
        if value not in allowed:
            raise ValueError(f"Accumulator {self.name}: {field}={value!r}: one of {', '.join(allowed)}")

    def _check_whole(self, field: str, low: int, high: int) -> None:
        value = getattr(self, field)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ValueError(f"Accumulator {self.name}: {field}={value!r}: {low} to {high} are possible")

    @functools.cached_property
    def rule(self) -> Kind:
        """What its `kind` names: the object that checks the fields and knows how to sum."""
        return kinds[self.kind]

    @functools.cached_property
    def output_bits(self) -> int:
        """Fraction bits of a result."""
        return 52 if self.output == FLOAT64 else formats[self.output].mantissa_bits

    @property
    def dtype(self) -> str:
        """NumPy type of C and of results."""
        return "float32" if self.output == "fp22" else self.output

    @property
    def default_format(self) -> str:
        """Format that codes are taken to be of if nothing else is said."""
        return self.inputs[0] if self.inputs else "e4m3fn"

    def with_(self, **changes: Any) -> Accumulator:
        """Return an accumulator that differs in the given fields; its name says which.

        Raises
        ------
        TypeError
            For a field that does not exist.
        ValueError
            For a value outside its range.
        """
        known = {field.name for field in dataclasses.fields(self)} - {"name", "source", "verified"}
        for field in changes:
            if field not in known:
                raise TypeError(f"Accumulator has no field {field!r}; there are {', '.join(sorted(known))}")
        label = ",".join(f"{field}={value}" for field, value in changes.items())
        return dataclasses.replace(
            self, name=f"{self.name}({label})", source=f"what-if of {self.name}", verified="not", **changes
        )

    def lists(self, fmt: Format) -> bool:
        """Tell whether `inputs` has a format with the same codes, whatever its name."""
        return _lists(self.inputs, fmt)

    def flushes(self, fmt: Format) -> bool:
        """Tell whether `flushed` has a format with the same codes, whatever its name."""
        return any(formats[name].same_codes(fmt) for name in self.flushed)

    def check_inputs(self, *operands: Format) -> None:
        """Raise a ValueError if one of the formats is not among the `inputs`."""
        for fmt in operands:
            if self.inputs and not self.lists(fmt):
                raise ValueError(f"{self.name} takes {', '.join(self.inputs)}, not {fmt.name}")

    def __str__(self) -> str:
        return self.name

    def _repr_html_(self) -> str:
        rows = [
            ("sums", self.rule.words), ("takes", ", ".join(self.inputs) or "any format"), ("result and C", self.output),
            ("source", self.source), ("verified", self.verified),
        ]  # fmt: skip
        return table(rows, title=self.name) + self.drawing()

    def drawing(self) -> str:
        """Return its order of summation as an SVG: two instructions, one after the other."""
        return drawing(self.rule.order(self), f"What {self.name} sums in which order")


@cached(1024)
def _lists(inputs: tuple[str, ...], fmt: Format) -> bool:
    return any(name != FLOAT64 and formats[name].same_codes(fmt) for name in inputs)


class Computed(NamedTuple):
    """What a fast kernel makes of a product, and the rows and columns that it leaves to the reference."""

    out: Matrix
    rows: NDArray[np.intp]
    columns: NDArray[np.intp]


class FastKernel(Protocol):
    """A kernel made for one accumulator and two formats; frozen, so that equal ones compare equal."""

    def covers(self, product: Product) -> bool:
        """Tell whether it computes such products; else they are computed block by block, or by the reference.

        Only whether there is a schedule counts, and its lengths: numbers decide about their own row or column alone, in
        `compute`, so that its bits do not depend on the others.
        """

    def compute(self, product: Product, laid_out: Any = None) -> Computed:
        """Compute a chain in the accumulator's type, or what a schedule makes of chains in float32."""

    def lay_out(self, b: Matrix, fmt: Format, scale: Matrix | None) -> Any:
        """Return B, with its scales inside the instruction, as `compute` takes it."""


class StepError(NamedTuple):
    """By how much one instruction errs at most: ``relative`` of its terms' magnitudes, and ``absolute`` more.

    Magnitudes are those by which terms are aligned: a subnormal's is the smallest normal number, and of scales inside
    the instruction too.
    """

    relative: float
    absolute: float


@dataclass(frozen=True)
class Kind(ABC):
    """How one kind of accumulator sums: everything about it that is no number. One object each stands in `kinds`."""

    name: ClassVar[str]
    #: How it sums, in a few words for pages and tables.
    words: ClassVar[str]
    #: The class of `lowprec.oracle` that is the slow truth about it.
    oracle: ClassVar[str]
    outputs: ClassVar[tuple[str, ...]] = ("float32",)
    alignments: ClassVar[tuple[Align, ...]] = ("truncate",)
    #: Whether `group`, and whether `fraction_bits`, say anything about it.
    has_groups: ClassVar[bool] = True
    has_fraction_bits: ClassVar[bool] = False
    #: Fields of an `Accumulator` that decide its bits besides those that the other class variables tell of.
    own_fields: ClassVar[frozenset[str]] = frozenset()
    #: Whether `reference` is one compiled loop, which for a few outputs is sooner done than a fast kernel is called.
    reference_is_compiled: ClassVar[bool] = True
    #: Whether a chain may go on where scales change: it has a running sum that can be rescaled.
    has_running_sum: ClassVar[bool] = True
    #: Whether `lowprec.gemm`, if it does not promote, multiplies the dequantized values in float32.
    multiplies_values: ClassVar[bool] = False

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields of an `Accumulator` of this kind that decide bits: others may hold anything."""
        several = (("output", len(self.outputs) > 1), ("align", len(self.alignments) > 1))
        told = (("group", self.has_groups), ("fraction_bits", self.has_fraction_bits), *several)
        return (*(name for name, decides in told if decides), *sorted(self.own_fields), "promote_every")

    def check(self, accumulator: Accumulator) -> None:
        """Raise a ValueError if fields do not go together."""
        if accumulator.scale_format is not None:
            raise ValueError(f"Accumulator {accumulator.name}: kind={self.name!r} takes no scales")

    def check_formats(self, accumulator: Accumulator, fa: Format, fb: Format) -> None:  # noqa: B027
        """Raise a ValueError if products of two formats cannot be summed as it must."""

    def step(self, accumulator: Accumulator) -> int:
        """Return of how many products a chain is made, one instruction's: scales and promotions wait for its end."""
        return accumulator.group

    def steps(self, accumulator: Accumulator, k: int) -> int:
        """Return how many roundings of a sum a chain of k products has, one an instruction."""
        return -(-k // self.step(accumulator))

    def order(self, accumulator: Accumulator) -> Sum:
        """Return the order of two instructions' sums as a tree, the result of the first the addend of the second."""
        step = self.step(accumulator)
        first = self.instruction(accumulator, "C", 0)
        return self.instruction(accumulator, first, step)

    def chain(self, accumulator: Accumulator, k: int) -> list[Sum]:
        """Return the instructions of a chain of k products, C the result of the one before; the last may go beyond."""
        return [self.instruction(accumulator, "C", start) for start in range(0, k, self.step(accumulator))]

    @abstractmethod
    def instruction(self, accumulator: Accumulator, state: Sum | str, start: int) -> Sum:
        """Return the order in which the products of one instruction, from k = `start`, join what was summed before."""

    @abstractmethod
    def step_error(self, accumulator: Accumulator) -> StepError:
        """Return a bound on one instruction's error, where nothing overflows; derived, not measured."""

    def values(self, accumulator: Accumulator, codes: Matrix, fmt: Format) -> NDArray[np.float64]:
        """Return the values that are multiplied, as codes that cannot be multiplied exactly are taken."""
        found: NDArray[np.float64] = decode(codes, fmt).astype(np.float64)
        return found

    @abstractmethod
    def reference(self, accumulator: Accumulator, product: Product) -> Matrix:
        """Return one chain over all K, starting from C: any codes, any C, with canonical NaN."""

    def fast(self, accumulator: Accumulator, fa: Format, fb: Format) -> FastKernel | None:
        """Return the fastest kernel that is exact, of those that may be used now; None: there is none."""
        return None

    def __str__(self) -> str:
        return self.name


kinds: Registry[Kind] = Registry("kind of accumulator", Kind)  # type: ignore[type-abstract]
"""The kinds, filled by `lowprec.tensorcore.kinds`."""
