"""The catalogue of accumulators: tensor cores and matrix cores as published, and two ideal sums.

Each says how it was `verified`: by recordings of real GPUs that the tests repeat where they are at hand
(arXiv:2512.07004 published them), or by its source alone. No recording decides `zero_exponent`, which rests on its
source everywhere: MMA-Sim's 4 - F for float16 results, where fpy has 3 - F, and -108 - F for most float32 results.
"""

from __future__ import annotations

from typing import Any

from ..registry import Registry
from .accumulator import FLOAT64, Accumulator

accumulators: Registry[Accumulator] = Registry("accumulator", Accumulator)
"""The catalogue."""

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
    accumulator = Accumulator(
        name, group=group, fraction_bits=fraction_bits, zero_exponent=zero, inputs=inputs, verified=verified, **more
    )
    accumulators.register(name, accumulator)


def _recorded(*gpus: str, note: str = "") -> str:
    return f"recordings of {', '.join(gpus)}{note}; not zero_exponent"


# chip_input, results in float32 (or FP22), and chip_input_f16, results in float16.
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
for _chip, _group, _bits in (
    ("ampere", 8, 24), ("ada", 8, 24), ("hopper", 16, 25), ("blackwell", 16, 25), ("rtx_blackwell", 16, 25),
):  # fmt: skip
    _gpus = _GPUS[_chip]
    _note = _recorded(*_gpus, note=_ONE) if _gpus else _NONE
    _short = _recorded(*_gpus, note=" with K = 4") if _gpus else _NONE
    _add(f"{_chip}_f16", _group, _bits, -108 - _bits, _F16, _note)
    _add(f"{_chip}_f16_f16", _group, _bits, 4 - _bits, _F16, _note, **_HALF)
    _add(f"{_chip}_bf16", _group, _bits, -108 - _bits, _BF16, _note)
    _add(f"{_chip}_tf32", _group // 2, _bits, -108 - _bits, _TF32, _short)
_HMMA = "FP8 mma.sync m16n8k32, which these GPUs compile to two float16 instructions: found in the recordings"
for _chip, _wide in (("hopper", _recorded("B200", note=" alone")), ("blackwell", _recorded("B200"))):
    _gpus = _GPUS[_chip]
    _add(f"{_chip}_fp8_mma", 16, 25, -133, _FP8, _wide, kind="halves", source=_HMMA)
    _add(f"{_chip}_fp8_mma_f16", 16, 25, -21, _FP8, _recorded(*_gpus), kind="halves", source=_HMMA, **_HALF)
for _chip in ("blackwell", "rtx_blackwell"):
    _mx: dict[str, Any] = {"source": _SIM, "scale_format": "e8m0fnu", "scale_block": 32}
    _runs = {**_mx, "kind": "fused_runs", "run": 16}
    _add(f"{_chip}_fp8", 32, 25, -133, _NARROW, _NONE, source=_SIM)
    _add(f"{_chip}_fp8_f16", 32, 25, -21, _NARROW, _NONE, source=_SIM, **_HALF)
    _add(f"{_chip}_mxf8", 32, 25, -133, _NARROW, _NONE, **_mx)
    _add(f"{_chip}_mxf4", 64, 35, -139, _FP4, _NONE, **_runs)
    _runs |= {"scale_block": 16}
    _add(f"{_chip}_mxf4_16", 64, 35, -139, _FP4, _NONE, **_runs)
    _runs |= {"scale_format": "e4m3fn"}
    _add(f"{_chip}_nvfp4", 64, 35, -139, _FP4, _NONE, **_runs)

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
# CPUs' dot products.
_INTEL = "Intel's manual; Bochs 0e27578, cpu/avx/amx.cc"
_QEMU = "no hardware; the rule of QEMU's fp8_helper.c (0e81c21), whose sums keep 64 bits and are not exact beyond that"
_CPUS: dict[str, dict[str, Any]] = {
    "avx512_bf16": {
        "kind": "flushed_fma", "group": 2, "inputs": _BF16, "source": "Intel's manual: VDPBF16PS",
        "verified": "AMD Zen 5's own instruction: 0 of 4,194,304 outputs differ, whatever the operands",
    },
    "amx_bf16": {
        "kind": "lanes", "group": 32, "run": 2, "inputs": _BF16, "source": f"{_INTEL}: TDPBF16PS",
        "verified": "not run: no CPU with AMX at hand; tiles with fewer than 32 k are other groups",
    },
    "amx_f16": {
        "kind": "lanes", "group": 32, "run": 2, "inputs": _F16, "source": f"{_INTEL}: TDPFP16PS",
        "verified": "not run: no CPU with AMX at hand",
    },
    "amx_fp8": {
        "kind": "pair_lanes", "group": 64, "run": 2, "inputs": _FP8, "flushed": ("e5m2",),
        "source": "Bochs 0e27578: TDPBF8PS, TDPHF8PS, TDPBHF8PS, TDPHBF8PS",
        "verified": "not run; unsettled: E5M2's subnormals are zeros in Bochs, see amx_fp8_subnormals",
    },
    "amx_fp8_subnormals": {
        "kind": "pair_lanes", "group": 64, "run": 2, "inputs": _FP8,
        "source": "as amx_fp8, with E5M2's subnormals as numbers: the other reading",
        "verified": "not run; unsettled: see amx_fp8",
    },
    "arm_bf16": {
        "kind": "odd", "group": 2, "inputs": _BF16,
        "source": "Arm ARM: BFDOT, BFMMLA with FPCR.EBF = 0, and without FEAT_EBF16; QEMU's bfdotadd",
        "verified": "qemu-aarch64 7.2's BFDOT: 0 of 4,194,304 outputs differ",
    },
    "arm_bf16_ebf": {
        "kind": "rounded_groups", "group": 2, "inputs": _BF16,
        "source": "Arm ARM: BFDOT, BFMMLA with FPCR.EBF = 1, to nearest, FZ = 0; QEMU's bfdotadd_ebf",
        "verified": "no hardware and no emulator run; the rule of QEMU's source alone",
    },
    "arm_fp8": {
        "kind": "scaled_groups", "group": 4, "inputs": _FP8, "verified": _QEMU,
        "source": "Arm ARM: FDOT (4-way, to single precision), FMOPA, FMMLA with FPMR.LSCALE = 0, OSM = 0",
    },
    "arm_fp8_f16": {
        "kind": "scaled_groups", "group": 2, "inputs": _FP8, "output": "float16", "verified": _QEMU,
        "source": "Arm ARM: FDOT (2-way, to half precision) with FPMR.LSCALE = 0, OSM = 0",
    },
    "arm_fp8_fmlall": {
        "kind": "scaled_groups", "group": 1, "inputs": _FP8, "verified": _QEMU,
        "source": "Arm ARM: FMLALLBB .. FMLALLTT with FPMR.LSCALE = 0, OSM = 0",
    },
    "arm_fp8_fmlal_f16": {
        "kind": "scaled_groups", "group": 1, "inputs": _FP8, "output": "float16", "verified": _QEMU,
        "source": "Arm ARM: FMLALB, FMLALT with FPMR.LSCALE = 0, OSM = 0",
    },
}  # fmt: skip
for _name, _fields in _CPUS.items():
    accumulators.register(_name, Accumulator(_name, **{"output": "float32", **_fields}))
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
