"""Accumulators: how a machine adds up products, as data.

A tensor core adds a group of L products and C at once: all terms are aligned to the largest exponent among
them, cut to F fraction bits below it, summed exactly, and the sum is cut to the accumulator's own format. Groups
are chained in increasing k. `Accumulator` holds those numbers; ``lowprec.mma`` and ``lowprec.gemm`` do the rest.

Each machine says how it was `verified`: by recordings of real GPUs that ``tests/tensorcore/test_machines.py`` repeats
where they are at hand (arXiv:2512.07004 published them), or by its source alone.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal, get_args

from ..format.catalogue import Format, formats
from ..registry import Registry

Kind = Literal[
    "fused", "fused_runs", "halves", "two_floors", "pairwise", "exact_groups", "sequential", "exact"
]  # fmt: skip
KINDS: tuple[Kind, ...] = get_args(Kind)
Align = Literal["truncate", "floor", "nearest"]
ALIGNMENTS: tuple[Align, ...] = get_args(Align)
_FUSED_OUTPUTS = ("fp22", "float32", "float16")
_OUTPUTS: dict[Kind, tuple[str, ...]] = {
    "fused": _FUSED_OUTPUTS, "fused_runs": _FUSED_OUTPUTS, "halves": ("float32", "float16"),
    "sequential": ("float32", "float64"),
}  # fmt: skip
FLOAT64 = "float64"  # beyond `lowprec.formats`, which ends at 32 bits: values themselves are the codes


@dataclass(frozen=True)
class Accumulator:
    """How products are summed.

    Parameters
    ----------
    name : str
        How it is called in tables and messages.
    kind : str
        ``fused``: groups of products and C aligned, cut and summed at once, as NVIDIA's tensor cores do;
        ``fused_runs``: the same for runs of products that are first summed exactly and then scaled (mxf4, mxf4nvf4);
        ``halves``: two fused sums from +0 in float16 operands, C added to the second's result (FP8 ``mma.sync``);
        ``two_floors``: products cut toward zero, then joined with C by cutting downwards (CDNA3); ``pairwise``: float32
        additions of neighbours, subnormals flushed (CDNA2); ``exact_groups``: a group and C exactly, one rounding
        (CDNA1); ``sequential``: one fused multiply-add after the other in increasing k; ``exact``: the exact
        sum of all, one rounding to float32 (nearest even) at the end.
    group : int
        Products per sum (L), 1 to 256.
    fraction_bits : int
        Fraction bits kept below the largest exponent when terms are aligned (F), 3 to 40.
    output : {"fp22", "float32", "float16", "float64"}
        Format of a result and of C: a fused sum is truncated to ``fp22`` or ``float32`` (both in float32 arrays), and
        rounded to nearest even for ``float16``.
    inputs : tuple of str
        Names of the formats that the machine multiplies, in any pairing; empty for any. The first is the default.
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
        After so many products the sum leaves the machine and is added to a float32 one.
    verified : str
        What the rule was checked against, other than the project's own oracle.

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
    align: Align = "truncate"
    zero_exponent: int | None = None
    scale_format: str | None = None
    scale_block: int = 0
    run: int = 1
    promote_every: int | None = None
    verified: str = dataclasses.field(default="not", compare=False)

    def __post_init__(self) -> None:
        self._check_choice("kind", KINDS)
        self._check_whole("group", 1, 256)
        self._check_whole("fraction_bits", 3, 40)
        self._check_whole("run", 1, 256)
        self._check_choice("output", _OUTPUTS.get(self.kind, ("float32",)))
        self._check_choice("align", ALIGNMENTS if self.kind.startswith("fused") else ("truncate",))
        if self.zero_exponent is not None:
            self._check_whole("zero_exponent", -8000, 8000)
        if self.promote_every is not None:
            self._check_whole("promote_every", 1, 1 << 30)
            if self.kind.startswith("fused") and self.promote_every % self.group:
                raise ValueError(
                    f"Accumulator {self.name}: promote_every={self.promote_every} is not a multiple of "
                    f"the group of {self.group}"
                )
        for name in self.inputs:
            if name != FLOAT64:
                formats[name]  # an unknown name raises here, with the close matches
        self._check_scales()

    def _check_scales(self) -> None:
        if (self.scale_format is None) != (self.scale_block == 0):
            raise ValueError(f"Accumulator {self.name}: scale_format and scale_block go together")
        if self.scale_format is None:
            if self.kind == "fused_runs":
                raise ValueError(f"Accumulator {self.name}: kind='fused_runs' needs scale_format and scale_block")
            return
        self._check_whole("scale_block", 1, 256)
        scale = formats[self.scale_format]
        if self.kind == "fused" and scale.mantissa_bits:
            raise ValueError(f"Accumulator {self.name}: scale_format={scale}: a fused sum takes powers of two")
        if not self.kind.startswith("fused"):
            raise ValueError(f"Accumulator {self.name}: kind={self.kind!r} takes no scales")
        if self.kind == "fused_runs" and (self.scale_block % self.run or self.group % self.run):
            raise ValueError(
                f"Accumulator {self.name}: run={self.run} must divide "
                f"scale_block={self.scale_block} and group={self.group}"
            )

    def _check_choice(self, field: str, allowed: tuple[str, ...]) -> None:
        value = getattr(self, field)
        if value not in allowed:
            raise ValueError(f"Accumulator {self.name}: {field}={value!r}: one of {', '.join(allowed)}")

    def _check_whole(self, field: str, low: int, high: int) -> None:
        value = getattr(self, field)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ValueError(f"Accumulator {self.name}: {field}={value!r}: {low} to {high} are possible")

    @property
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
        """Return a machine that differs in the given fields; its name says which.

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
        return any(name != FLOAT64 and formats[name].same_codes(fmt) for name in self.inputs)

    def check_inputs(self, *operands: Format) -> None:
        """Raise a ValueError if the machine does not multiply one of the formats."""
        for fmt in operands:
            if self.inputs and not self.lists(fmt):
                raise ValueError(f"{self.name} takes {', '.join(self.inputs)}, not {fmt.name}")

    def __str__(self) -> str:
        return self.name


accumulators: Registry[Accumulator] = Registry("accumulator", Accumulator)
"""The catalogue of machines."""

_FP8 = ("e4m3fn", "e5m2")
_NARROW = (*_FP8, "e3m2fn", "e2m3fn", "e2m1fn")
_FP4 = ("e2m1fn",)
_FNUZ = ("e4m3fnuz", "e5m2fnuz")
_F16, _BF16 = ("float16",), ("bfloat16",)
_TF32 = ("float32", "tf32")  # float32 operands lose their low 13 bits first
_SIM = "MMA-Sim 2.1.1 (arXiv:2511.10909)"
_BOTH = f"{_SIM}; arXiv:2512.07004"
_ONE = ", one group each"


def _add(
    name: str, group: int, fraction_bits: int, zero: int, inputs: tuple[str, ...], verified: str, **more: Any
) -> None:
    more = {"source": _BOTH, "output": "float32", **more}
    machine = Accumulator(
        name, group=group, fraction_bits=fraction_bits, zero_exponent=zero, inputs=inputs, verified=verified, **more
    )
    accumulators.register(name, machine)


def _recorded(*gpus: str, note: str = "") -> str:
    return f"recordings of {', '.join(gpus)}{note}"


# machine_input, results in float32 (or FP22), and machine_input_f16, results in float16.
_HALF = {"output": "float16"}
_NONE = "no recordings"
_ADA = ("RTX Ada", "L40S")
_GPUS: dict[str, tuple[str, ...]] = {
    "ampere": ("A100", "A2"), "ada": _ADA, "hopper": ("H100", "H200"), "blackwell": ("B200",), "rtx_blackwell": (),
}  # fmt: skip

_WGMMA = "Hopper wgmma m64nNk32 (H100, H200): DeepSeek ISCA 2025 3.1; arXiv:2511.10909; arXiv:2512.07004"
_ADA_FP8 = "Ada mma.sync m16n8k32 (L40S, RTX 40): arXiv:2511.10909; arXiv:2512.07004"
_add("hopper_fp8", 32, 13, -133, _FP8, _recorded(*_GPUS["hopper"], note=" with C = 0"), output="fp22", source=_WGMMA)
_add("ada_fp8", 16, 13, -132, _FP8, _recorded(*_ADA), output="fp22", source=_ADA_FP8)
_add("hopper_fp8_f16", 32, 13, -21, _FP8, _NONE, source=_SIM, **_HALF)
_add("ada_fp8_f16", 16, 13, -20, _FP8, _recorded("RTX Ada"), source=_ADA_FP8, **_HALF)

_add("volta_f16", 4, 23, -131, _F16, _recorded("V100"))
_add("volta_f16_f16", 4, 23, -19, _F16, _recorded("V100"), **_HALF)
_add("turing_f16", 8, 24, -132, _F16, _NONE, source=_SIM)  # its m8n8k4 is Volta's
_add("turing_f16_f16", 8, 24, -20, _F16, _NONE, source=_SIM, **_HALF)
for _machine, _group, _bits in (
    ("ampere", 8, 24), ("ada", 8, 24), ("hopper", 16, 25), ("blackwell", 16, 25), ("rtx_blackwell", 16, 25),
):  # fmt: skip
    _gpus = _GPUS[_machine]
    _note = _recorded(*_gpus, note=_ONE) if _gpus else _NONE
    _short = _recorded(*_gpus, note=" with K = 4") if _gpus else _NONE
    _add(f"{_machine}_f16", _group, _bits, -108 - _bits, _F16, _note)
    _add(f"{_machine}_f16_f16", _group, _bits, 4 - _bits, _F16, _note, **_HALF)
    _add(f"{_machine}_bf16", _group, _bits, -108 - _bits, _BF16, _note)
    _add(f"{_machine}_tf32", _group // 2, _bits, -108 - _bits, _TF32, _short)
_HMMA = "FP8 mma.sync m16n8k32, which these GPUs compile to two float16 instructions: found in the recordings"
for _machine, _wide in (("hopper", "recordings of B200 alone"), ("blackwell", "recordings of B200")):
    _gpus = _GPUS[_machine]
    _add(f"{_machine}_fp8_mma", 16, 25, -133, _FP8, _wide, kind="halves", source=_HMMA)
    _add(f"{_machine}_fp8_mma_f16", 16, 25, -21, _FP8, _recorded(*_gpus), kind="halves", source=_HMMA, **_HALF)
for _machine in ("blackwell", "rtx_blackwell"):
    _mx: dict[str, Any] = {"source": _SIM, "scale_format": "e8m0fnu", "scale_block": 32}
    _runs = {**_mx, "kind": "fused_runs", "run": 16}
    _add(f"{_machine}_fp8", 32, 25, -133, _NARROW, _NONE, source=_SIM)
    _add(f"{_machine}_fp8_f16", 32, 25, -21, _NARROW, _NONE, source=_SIM, **_HALF)
    _add(f"{_machine}_mxf8", 32, 25, -133, _NARROW, _NONE, **_mx)
    _add(f"{_machine}_mxf4", 64, 35, -139, _FP4, _NONE, **_runs)
    _runs |= {"scale_block": 16}
    _add(f"{_machine}_mxf4_16", 64, 35, -139, _FP4, _NONE, **_runs)
    _runs |= {"scale_format": "e4m3fn"}
    _add(f"{_machine}_nvfp4", 64, 35, -139, _FP4, _NONE, **_runs)

_AMD: dict[str, dict[str, Any]] = {
    "cdna1_f16": {"kind": "exact_groups", "group": 4, "inputs": _F16},
    "cdna1_bf16": {"kind": "exact_groups", "group": 2, "inputs": _BF16},
    "cdna2_f16": {"kind": "pairwise", "group": 4, "inputs": _F16},
    "cdna2_bf16": {"kind": "pairwise", "group": 2, "inputs": _BF16},
    "cdna2_bf16_1k": {"kind": "pairwise", "group": 4, "inputs": _BF16},
    "cdna3_xf32": {"kind": "two_floors", "group": 4, "fraction_bits": 24, "inputs": _TF32},
    "cdna3_f16": {"kind": "two_floors", "group": 8, "fraction_bits": 24, "inputs": _F16},
    "cdna3_bf16": {"kind": "two_floors", "group": 8, "fraction_bits": 24, "inputs": _BF16},
    "cdna3_fp8": {"kind": "two_floors", "group": 16, "fraction_bits": 24, "inputs": _FNUZ, "run": 2},
    **{f"cdna{_n}_f32": {"kind": "sequential", "group": 1, "inputs": ("float32",)} for _n in (1, 2, 3)},
}
for _name, _fields in _AMD.items():
    accumulators.register(_name, Accumulator(_name, output="float32", source=_SIM, verified=_NONE, **_fields))
accumulators.register(
    "fp64",
    Accumulator(
        "fp64", kind="sequential", group=1, output=FLOAT64, inputs=(FLOAT64,), source="IEEE 754; " + _SIM,
        verified=_NONE,
    ),
    aliases=[f"{_n}_fp64" for _n in ("ampere", "hopper", "blackwell", "cdna2", "cdna3")],
)  # fmt: skip
accumulators.register("exact", Accumulator("exact", kind="exact", output="float32", source="definition"))
accumulators.register(
    "float32",
    Accumulator(
        "float32", kind="sequential", output="float32", source="definition: IEEE 754 fusedMultiplyAdd in increasing k"
    ),
)
