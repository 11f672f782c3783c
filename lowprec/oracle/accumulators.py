"""Rule and operand formats of every accumulator of the catalogue, by name, one line each.

The rules of tensor cores and matrix cores are the published ones, implemented independently from the sources.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from .ieee import exact_dot, sequential
from .machines.amd import ExactGroups, FlooredSum, FlushedPairs
from .machines.base import Codes, DotRule
from .machines.cpu import BOCHS, FlushedFma, Lanes, Odd, RoundedGroups, ScaledGroups
from .machines.fused import Rule
from .machines.halves import Halves
from .machines.ibm import ChunkSums
from .machines.rdna import FlooredPairs, Output, SignFrame
from .machines.riscv import BulkSums, PartialSums
from .machines.tenstorrent import FidelityPhases
from .values import (
    BFLOAT16,
    DL8,
    E2M1FN,
    E2M3FN,
    E3M2FN,
    E4M3FN,
    E4M3FNUZ,
    E5M2,
    E5M2FNUZ,
    E8M0FNU,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    TF32,
    UE4M3,
    Fields,
)

FORMATS = {
    "float64": FLOAT64, "float32": FLOAT32, "tf32": TF32, "bfloat16": BFLOAT16, "float16": FLOAT16,
    "e4m3fn": E4M3FN, "e5m2": E5M2, "e4m3fnuz": E4M3FNUZ, "e5m2fnuz": E5M2FNUZ,
    "e3m2fn": E3M2FN, "e2m3fn": E2M3FN, "e2m1fn": E2M1FN, "dl8": DL8,
}  # fmt: skip
"""Operand formats of the accumulators."""


@dataclass(frozen=True)
class Sequential(DotRule):
    """Sequential fused multiply-adds in increasing k."""

    c_format: Fields = FLOAT32

    def sum_products(self, a: Codes, b: Codes, c_bits: int, fa: Fields, fb: Fields) -> int:
        """Add the products of two code vectors to c."""
        return sequential(a, b, c_bits, fa, fb, self.c_format)


@dataclass(frozen=True)
class ExactSum(DotRule):
    """The exact sum of all products and c, rounded once at the end."""

    def sum_products(self, a: Codes, b: Codes, c_bits: int, fa: Fields, fb: Fields) -> int:
        """Add the products of two code vectors to c."""
        return exact_dot(a, b, c_bits, fa, fb)


@dataclass(frozen=True)
class Accumulator:
    """A rule, its operand formats (in any pairing), and the format and block length of its scales."""

    rule: DotRule
    inputs: tuple[str, ...]
    scales: tuple[Fields, int] | None = None


def tf32_code(float32_bits: int) -> int:
    """Return the tf32 code that a tensor core reads from a float32, ignoring the low 13 bits.

    A NaN whose payload is only in those bits becomes an infinity.
    """
    return float32_bits >> 13


_FP8, _FNUZ = ("e4m3fn", "e5m2"), ("e4m3fnuz", "e5m2fnuz")
_F8F6F4 = ("e4m3fn", "e5m2", "e3m2fn", "e2m3fn", "e2m1fn")


def _catalogue() -> dict[str, Accumulator]:
    found: dict[str, Accumulator] = {}

    def fused(name: str, inputs: tuple[str, ...], group: int, kept: int, zeros: tuple[int, int], f16: bool) -> None:
        """Add an accumulator, and its variant with float16 results."""
        output: Literal["fp22", "f32"] = "fp22" if kept == 13 else "f32"
        found[name] = Accumulator(Rule(group, kept, output=output, zero_exponent=zeros[0]), inputs)
        if f16:
            found[f"{name}_f16"] = Accumulator(Rule(group, kept, output="f16", zero_exponent=zeros[1]), inputs)

    # Products of float16 per group, fraction bits, exponents of zeros for float32 and float16 results.
    for chip, group, kept, zeros in (
        ("volta", 4, 23, (-131, -19)),
        ("turing", 8, 24, (-132, -20)),
        ("ampere", 8, 24, (-132, -20)),
        ("ada", 8, 24, (-132, -20)),
        ("hopper", 16, 25, (-133, -21)),
        ("blackwell", 16, 25, (-133, -21)),
        ("rtx_blackwell", 16, 25, (-133, -21)),
    ):
        fused(f"{chip}_f16", ("float16",), group, kept, zeros, True)
        if chip not in ("volta", "turing"):
            fused(f"{chip}_bf16", ("bfloat16",), group, kept, zeros, False)
            fused(f"{chip}_tf32", ("tf32",), group // 2, kept, zeros, False)
    fused("ada_fp8", _FP8, 16, 13, (-132, -20), True)
    fused("hopper_fp8", _FP8, 32, 13, (-133, -21), True)
    for chip in ("hopper", "blackwell"):
        found[f"{chip}_fp8_mma"] = Accumulator(Halves("f32"), _FP8)
        found[f"{chip}_fp8_mma_f16"] = Accumulator(Halves("f16"), _FP8)
    for chip in ("blackwell", "rtx_blackwell"):
        fused(f"{chip}_fp8", _F8F6F4, 32, 25, (-133, -21), True)
        found[f"{chip}_mxf8"] = replace(found[f"{chip}_fp8"], scales=(E8M0FNU, 32))
        fp4 = Rule(64, 35, output="f32", zero_exponent=-139, exact_within=16)
        for name, scales in (("mxf4", (E8M0FNU, 32)), ("mxf4_16", (E8M0FNU, 16)), ("nvfp4", (UE4M3, 16))):
            found[f"{chip}_{name}"] = Accumulator(fp4, ("e2m1fn",), scales)
    # Accumulators for any format are tested with FP8.
    found["float32"] = Accumulator(Sequential(FLOAT32), _FP8)
    found["exact"] = Accumulator(ExactSum(), _FP8)
    found["fp64"] = Accumulator(Sequential(FLOAT64), ("float64",))

    for chip in ("cdna1", "cdna2", "cdna3"):
        found[f"{chip}_f32"] = Accumulator(Sequential(FLOAT32), ("float32",))
    found["cdna1_f16"] = Accumulator(ExactGroups(4), ("float16",))
    found["cdna1_bf16"] = Accumulator(ExactGroups(2), ("bfloat16",))
    found["cdna2_f16"] = Accumulator(FlushedPairs(4), ("float16",))
    found["cdna2_bf16"] = Accumulator(FlushedPairs(2), ("bfloat16",))
    found["cdna2_bf16_1k"] = Accumulator(FlushedPairs(4), ("bfloat16",))
    found["cdna3_xf32"] = Accumulator(FlooredSum(4), ("tf32",))
    found["cdna3_f16"] = Accumulator(FlooredSum(8), ("float16",))
    found["cdna3_bf16"] = Accumulator(FlooredSum(8), ("bfloat16",))
    found["cdna3_fp8"] = Accumulator(FlooredSum(16, halves=True), _FNUZ)
    forms: tuple[tuple[str, tuple[str, ...], Output], ...] = (
        ("f16", ("float16",), "float32"), ("bf16", ("bfloat16",), "float32"),
        ("f16_f16", ("float16",), "float16"), ("bf16_bf16", ("bfloat16",), "bfloat16"),
    )  # fmt: skip
    for name, inputs, output in forms:
        found[f"rdna3_{name}"] = Accumulator(SignFrame(2, output=output), inputs)
        found[f"rdna4_{name}"] = Accumulator(FlooredPairs(4, output=output), inputs)
        found[f"rdna4_{name}_wave32"] = Accumulator(FlooredPairs(4, order=(0, 2, 1, 3), output=output), inputs)
        found[f"rdna4_{name}_dot2"] = Accumulator(FlooredPairs(2, output=output), inputs)
    return found


_CPUS = {
    "avx512_bf16": Accumulator(FlushedFma(2), ("bfloat16",)),
    "amx_bf16": Accumulator(Lanes(32), ("bfloat16",)),
    "amx_f16": Accumulator(Lanes(32), ("float16",)),
    "amx_fp8": Accumulator(Lanes(64, together=2, flushed=BOCHS), _FP8),
    "amx_fp8_subnormals": Accumulator(Lanes(64, together=2), _FP8),
    "arm_bf16": Accumulator(Odd(2), ("bfloat16",)),
    "arm_bf16_ebf": Accumulator(RoundedGroups(2), ("bfloat16",)),
    "arm_fp8": Accumulator(ScaledGroups(4), _FP8),
    "arm_fp8_f16": Accumulator(ScaledGroups(2, output=FLOAT16), _FP8),
    "arm_fp8_fmlall": Accumulator(ScaledGroups(1), _FP8),
    "arm_fp8_fmlal_f16": Accumulator(ScaledGroups(1, output=FLOAT16), _FP8),
}

_RISCV = {
    "ime_bf16_rto": Accumulator(PartialSums(4), ("bfloat16",)),
    "ime_bf16_frm": Accumulator(PartialSums(4, partial="nearest"), ("bfloat16",)),
    "ime_bf16_xct": Accumulator(PartialSums(4, partial="exact"), ("bfloat16",)),
    "ime_bf16_rvbna": Accumulator(BulkSums(4), ("bfloat16",)),
    "zvdota_bf16": Accumulator(BulkSums(8, last="odd", fraction_bits=26), ("bfloat16",)),
    "zvdota_fp8": Accumulator(BulkSums(16, last="odd", fraction_bits=27), _FP8),
}

_TENSTORRENT = {
    f"blackhole_bf16_{fidelity}": Accumulator(FidelityPhases(phases=phases), ("bfloat16",))
    for fidelity, phases in (("lofi", (0,)), ("hifi2", (0, 1)))
}
_IBM = {"aiu_dl8": Accumulator(ChunkSums(), ("dl8",))}

ACCUMULATORS = _catalogue() | _RISCV | _TENSTORRENT | _IBM | _CPUS
"""Accumulators by name."""
