"""Accumulators: how a machine adds up products, as data.

A tensor core adds a group of L products and C at once: all terms are aligned to the largest exponent among
them, cut to F fraction bits below it, summed exactly, and the sum is cut to the accumulator's own format. Groups
are chained in increasing k. `Accumulator` holds those numbers; ``lowprec.mma`` and ``lowprec.gemm`` do the rest.

Hopper's FP8 rule was checked against recordings of H100 and H200 (K = 32) and Ada's against RTX 4000-class and
L40S cards; ``tests/test_recordings.py`` repeats that where the recordings are at hand.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from .formats import Format, formats
from .registry import Registry

Kind = Literal["fused", "sequential", "exact"]
KINDS: tuple[Kind, ...] = ("fused", "sequential", "exact")
_OUTPUTS = ("fp22", "float32")


@dataclass(frozen=True)
class Accumulator:
    """How products are summed.

    Parameters
    ----------
    name : str
        How it is called in tables and messages.
    kind : {"fused", "sequential", "exact"}
        ``fused``: groups of products and C aligned, truncated and summed at once, as tensor cores do;
        ``sequential``: one float32 fused multiply-add after the other in increasing k; ``exact``: the exact sum, one
        rounding to float32 (nearest even) at the end.
    group : int
        Products per fused sum (L), 1 to 256.
    fraction_bits : int
        Fraction bits kept below the largest exponent when terms are aligned (F), 3 to 40.
    output : {"fp22", "float32"}
        Format that a fused sum is truncated to.
    inputs : tuple of str
        Names of the formats that the machine multiplies; empty for any.
    source : str
        Where the rule comes from, and what it was checked against.

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
    kind: Kind = "fused"
    group: int = 32
    fraction_bits: int = 13
    output: str = "fp22"
    inputs: tuple[str, ...] = ()
    source: str = dataclasses.field(default="user-defined", compare=False)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"Accumulator {self.name}: kind={self.kind!r}: one of {', '.join(KINDS)}")
        for field, low, high in (("group", 1, 256), ("fraction_bits", 3, 40)):
            value = getattr(self, field)
            if not isinstance(value, int) or not low <= value <= high:
                raise ValueError(f"Accumulator {self.name}: {field}={value!r}: {low} to {high} are possible")
        if self.output not in _OUTPUTS:
            raise ValueError(f"Accumulator {self.name}: output={self.output!r}: one of {', '.join(_OUTPUTS)}")
        for name in self.inputs:
            formats[name]  # an unknown name raises here, with the close matches

    @property
    def output_bits(self) -> int:
        """Fraction bits of a fused sum's result."""
        return formats[self.output].mantissa_bits

    def with_(self, **changes: Any) -> Accumulator:
        """Return a machine that differs in the given fields; its name says which.

        Raises
        ------
        TypeError
            For a field that does not exist.
        """
        known = {field.name for field in dataclasses.fields(self)} - {"name", "source"}
        for field in changes:
            if field not in known:
                raise TypeError(f"Accumulator has no field {field!r}; there are {', '.join(sorted(known))}")
        label = ",".join(f"{field}={value}" for field, value in changes.items())
        return dataclasses.replace(self, name=f"{self.name}({label})", source=f"what-if of {self.name}", **changes)

    def check_inputs(self, *operands: Format) -> None:
        """Raise a ValueError if the machine does not multiply one of the formats."""
        for fmt in operands:
            if self.inputs and fmt.name not in self.inputs:
                raise ValueError(f"{self.name} takes {', '.join(self.inputs)}, not {fmt.name}")

    def __str__(self) -> str:
        return self.name


accumulators: Registry[Accumulator] = Registry("accumulator", Accumulator)
"""The catalogue of machines."""

_FP8 = ("e4m3fn", "e5m2")
for _machine in (
    Accumulator(
        "hopper_fp8", group=32, inputs=_FP8,
        source="Hopper wgmma m64nNk32 (H100, H200): DeepSeek ISCA 2025 3.1; arXiv:2511.10909; arXiv:2512.07004",
    ),
    Accumulator(
        "ada_fp8", group=16, inputs=_FP8,
        source="Ada mma.sync m16n8k32 (L40S, RTX 40): arXiv:2511.10909; arXiv:2512.07004",
    ),
    Accumulator("exact", kind="exact", source="definition"),
    Accumulator("float32", kind="sequential", source="definition: IEEE 754 fusedMultiplyAdd in increasing k"),
):  # fmt: skip
    accumulators.register(_machine.name, _machine)
