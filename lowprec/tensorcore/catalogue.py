"""The catalogue of accumulators: tensor cores and matrix cores as published, and two ideal sums.

`validated_against` names the evidence for each: recordings of real GPUs (published with arXiv:2512.07004), which the
tests repeat where these are installed, recordings of an H200 in `reference_data/capture`, or the source alone.
`zero_exponent` is that of the source, MMA-Sim's 4 - F for float16 results, where fpy has 3 - F, and -108 - F for most
float32 results. An H200 confirms it for float16 results, bfloat16 and TF32; no recording of another GPU determines it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..format.catalogue import Format, formats
from ..registry import Registry
from .accumulator import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, FP22, Accumulator
from .disclosure import read_disclosure
from .kinds.amd import ExactGroupSum, FlooredPairSum, OnesComplementSum, PairwiseSum, TruncateFloorSum
from .kinds.arm import RoundedGroupSum, RoundToOddSum, ScaledGroupSum
from .kinds.exact import ExactSum
from .kinds.ibm import ChunkedSum
from .kinds.nvidia import FusedSum, GroupedFusedSum, SplitF16Sum
from .kinds.riscv import BulkNormalizedSum, PartialRounding, PartialSum
from .kinds.sequential import SequentialSum
from .kinds.tenstorrent import FidelityPhaseSum
from .kinds.x86 import FlushedFmaSum, LaneChains, PairedLaneChains


class AccumulatorRegistry(Registry[Accumulator]):
    """Catalogue of accumulators, to which the accumulators of a disclosure can be added."""

    def load(self, path: str | Path) -> list[str]:
        """Register the accumulators of a disclosure, a TOML file; return their names.

        Raises
        ------
        DisclosureError
            If the file has unknown keys or another version, or contradicts itself; nothing is registered then.
        OSError
            If a file cannot be read.
        ValueError
            If a name is that of another accumulator; nothing is registered then.

        Examples
        --------
        >>> import pathlib, tempfile, lowprec as lp
        >>> from lowprec.tensorcore.disclosure import write_disclosure
        >>> text = write_disclosure(lp.accumulators["ime_bf16_rto"].with_(group_size=8, name="x1"))
        >>> with tempfile.TemporaryDirectory() as folder, lp.accumulators.scoped():
        ...     file = pathlib.Path(folder) / "x1.toml"
        ...     _ = file.write_text(text)
        ...     lp.accumulators.load(file), lp.accumulators["x1"].group_size
        (['x1'], 8)
        """
        entries = read_disclosure(path)
        for entry in entries:
            self.check_new(entry.name, entry)
        return [self.register(entry.name, entry).name for entry in entries]


accumulators = AccumulatorRegistry("accumulator", Accumulator)  # type: ignore[type-abstract]
"""Catalogue of accumulators."""


def _formats(*names: str) -> tuple[Format, ...]:
    return tuple(formats[name] for name in names)


_FP8 = _formats("e4m3fn", "e5m2")
_FP4 = _formats("e2m1fn")
_NARROW = (*_FP8, *_formats("e3m2fn", "e2m3fn"), *_FP4)
_FNUZ = _formats("e4m3fnuz", "e5m2fnuz")
_F16, _BF16, _F32 = _formats("float16"), _formats("bfloat16"), _formats("float32")
_TF32 = _formats("float32", "tf32")  # the low 13 bits of float32 operands are ignored
_SIM = "MMA-Sim 2.1.1 (arXiv:2511.10909)"
_BOTH = f"{_SIM}; arXiv:2512.07004"
_ONE = ", one group each"


def _add(
    name: str, group_size: int, fraction_bits: int, zero: int, inputs: tuple[Format, ...], validated_against: str,
    kind: Callable[..., Accumulator] = FusedSum, **more: Any,
) -> None:  # fmt: skip
    fields = {"group_size": group_size, "fraction_bits": fraction_bits, "zero_exponent": zero, "input_formats": inputs}
    options = {"source": _BOTH, "output_format": FLOAT32, **fields, **more}
    entry = kind(name, validated_against=validated_against, **options)
    accumulators.register(name, entry)


def _recorded(*gpus: str, note: str = "") -> str:
    return f"recordings of {', '.join(gpus)}{note}; not zero_exponent"


# Names: chip_input for results in float32 (or FP22), and chip_input_f16 for results in float16.
_HALF: dict[str, Any] = {"output_format": FLOAT16}
_FP22: dict[str, Any] = {"output_format": FP22}
_NONE = "no recordings"
_H200, _ZERO = "recordings of H200 with C and chains", "; not zero_exponent"  # reference_data/capture
_HOPPERS = f"{_H200}, and of H100"
# Of float16, of its float16 results and bfloat16, and of TF32.
_CONFIRMED = {"hopper": (f"{_HOPPERS}{_ZERO}", _HOPPERS, _HOPPERS)}
_ADA = ("RTX Ada", "L40S")
_GPUS: dict[str, tuple[str, ...]] = {
    "ampere": ("A100", "A2"), "ada": _ADA, "hopper": ("H100", "H200"), "blackwell": ("B200",), "rtx_blackwell": (),
}  # fmt: skip

_WGMMA = "Hopper wgmma m64nNk32 (H100, H200): DeepSeek ISCA 2025 3.1; arXiv:2511.10909; arXiv:2512.07004"
_ADA_FP8 = "Ada mma.sync m16n8k32 (L40S, RTX 40): arXiv:2511.10909; arXiv:2512.07004"
_add("hopper_fp8", 32, 13, -133, _FP8, f"{_HOPPERS}{_ZERO}", source=_WGMMA, **_FP22)
_add("ada_fp8", 16, 13, -132, _FP8, _recorded(*_ADA), source=_ADA_FP8, **_FP22)
_add("hopper_fp8_f16", 32, 13, -21, _FP8, f"{_H200}{_ZERO}", source=_SIM, **_HALF)
_add("ada_fp8_f16", 16, 13, -20, _FP8, _recorded("RTX Ada"), source=_ADA_FP8, **_HALF)

_add("volta_f16", 4, 23, -131, _F16, _recorded("V100"))
_add("volta_f16_f16", 4, 23, -19, _F16, _recorded("V100"), **_HALF)
_add("turing_f16", 8, 24, -132, _F16, _NONE, source=_SIM)  # its m8n8k4 instruction has the rule of Volta
_add("turing_f16_f16", 8, 24, -20, _F16, _NONE, source=_SIM, **_HALF)
for _chip, _group, _bits in (
    ("ampere", 8, 24), ("ada", 8, 24), ("hopper", 16, 25), ("blackwell", 16, 25), ("rtx_blackwell", 16, 25),
):  # fmt: skip
    _gpus = _GPUS[_chip]
    _note = _recorded(*_gpus, note=_ONE) if _gpus else _NONE
    _short = _recorded(*_gpus, note=" with K = 4") if _gpus else _NONE
    _float16, _note, _short = _CONFIRMED.get(_chip, (_note, _note, _short))
    _add(f"{_chip}_f16", _group, _bits, -108 - _bits, _F16, _float16)
    _add(f"{_chip}_f16_f16", _group, _bits, 4 - _bits, _F16, _note, **_HALF)
    _add(f"{_chip}_bf16", _group, _bits, -108 - _bits, _BF16, _note)
    _add(f"{_chip}_tf32", _group // 2, _bits, -108 - _bits, _TF32, _short)
_HMMA = "FP8 mma.sync m16n8k32, which these GPUs compile to two float16 instructions: found in the recordings"
for _chip, _wide, _half in (
    ("hopper", f"{_H200}{_ZERO}", f"{_HOPPERS}{_ZERO}"), ("blackwell", _recorded("B200"), _recorded("B200")),
):  # fmt: skip
    _add(f"{_chip}_fp8_mma", 16, 25, -133, _FP8, _wide, kind=SplitF16Sum, source=_HMMA)
    _add(f"{_chip}_fp8_mma_f16", 16, 25, -21, _FP8, _half, kind=SplitF16Sum, source=_HMMA, **_HALF)
for _chip in ("blackwell", "rtx_blackwell"):
    _mx: dict[str, Any] = {"source": _SIM, "scale_format": formats["e8m0fnu"], "scale_block": 32}
    _runs = {**_mx, "kind": GroupedFusedSum, "exact_group": 16}
    _add(f"{_chip}_fp8", 32, 25, -133, _NARROW, _NONE, source=_SIM)
    _add(f"{_chip}_fp8_f16", 32, 25, -21, _NARROW, _NONE, source=_SIM, **_HALF)
    _add(f"{_chip}_mxf8", 32, 25, -133, _NARROW, _NONE, **_mx)
    _add(f"{_chip}_mxf4", 64, 35, -139, _FP4, _NONE, **_runs)
    _runs |= {"scale_block": 16}
    _add(f"{_chip}_mxf4_16", 64, 35, -139, _FP4, _NONE, **_runs)
    _runs |= {"scale_format": formats["e4m3fn"]}
    _add(f"{_chip}_nvfp4", 64, 35, -139, _FP4, _NONE, **_runs)

_AMD: dict[str, Any] = {"source": _SIM, "validated_against": _NONE}
_MATRIX_CORES: tuple[Accumulator, ...] = (
    ExactGroupSum("cdna1_f16", group_size=4, input_formats=_F16, **_AMD),
    ExactGroupSum("cdna1_bf16", group_size=2, input_formats=_BF16, **_AMD),
    PairwiseSum("cdna2_f16", group_size=4, input_formats=_F16, **_AMD),
    PairwiseSum("cdna2_bf16", group_size=2, input_formats=_BF16, **_AMD),
    PairwiseSum("cdna2_bf16_1k", group_size=4, input_formats=_BF16, **_AMD),
    TruncateFloorSum("cdna3_xf32", group_size=4, fraction_bits=24, input_formats=_TF32, **_AMD),
    TruncateFloorSum("cdna3_f16", group_size=8, fraction_bits=24, input_formats=_F16, **_AMD),
    TruncateFloorSum("cdna3_bf16", group_size=8, fraction_bits=24, input_formats=_BF16, **_AMD),
    TruncateFloorSum("cdna3_fp8", group_size=16, fraction_bits=24, input_formats=_FNUZ, lanes=2, **_AMD),
    *(SequentialSum(f"cdna{n}_f32", input_formats=_F32, **_AMD) for n in (1, 2, 3)),
)
# RDNA: V_DOT2_F32_* and V_WMMA_F32_16X16X16_*. The rules are those of AMD's MIT-licensed emulator.
_GFX11 = "ROCm/rocm-systems, emulation/rocjitsu: gfx11_dot2.h (48f67ab9); RDNA3, RDNA3.5"
_GFX12 = "ROCm/rocm-systems, emulation/rocjitsu: gfx12_dot.h (5ac3c9c4); RDNA4"
_W7900 = "recordings of a Radeon Pro W7900 (gfx1100): V_DOT2 and WMMA"
_R9700 = "recordings of a Radeon AI Pro R9700 (gfx1201)"
_PACKED = "; they determine the groups, their order and the rounding to 16 bits, but not the number of bits kept"
_UNRECORDED = "not: no recording of V_DOT2 with results in 16 bits"
_RDNA_FORMS = (
    ("f16", _F16, FLOAT32), ("bf16", _BF16, FLOAT32), ("f16_f16", _F16, FLOAT16), ("bf16_bf16", _BF16, BFLOAT16),
)  # fmt: skip
_RDNA: tuple[Accumulator, ...] = (
    *(
        OnesComplementSum(
            f"rdna3_{name}", input_formats=inputs, daz_formats=inputs if inputs == _BF16 else (), output_format=output,
            source=_GFX11, validated_against=_W7900 + ("" if output == FLOAT32 else _PACKED),
        )
        for name, inputs, output in _RDNA_FORMS
    ),
    *(
        FlooredPairSum(
            f"rdna4_{name}{form}", group_size=size, group_order=order, input_formats=inputs, output_format=output,
            source=f"{_GFX12}, {what}",
            validated_against=_R9700 if output == FLOAT32 else _UNRECORDED if size == 2 else _R9700 + _PACKED,
        )
        for name, inputs, output in _RDNA_FORMS
        for form, size, order, what in (
            ("", 4, (), "WMMA, wave64"), ("_wave32", 4, (0, 2, 1, 3), "WMMA, wave32"), ("_dot2", 2, (), "V_DOT2"),
        )
    ),
)  # fmt: skip
# RISC-V: drafts without silicon. For 8-bit operands W is 4, for 16-bit ones 2; a group has G * W products.
_ZVDOTA = "riscv-isa-manual, Zvdota and Zvbdota 1.0: bulk normalization (PR 3244, 93c538a6); all products of VLEN = 128"
_SPIKE = "Spike 55b4658d (riscv/bulknormdot.h); no silicon; groups of 2 to 8 products"
_IME = "riscv-isa-manual, integrated-matrix.adoc (0bd7e54b)"
_RND: tuple[tuple[str, PartialRounding], ...] = (("rto", "odd"), ("frm", "nearest"), ("xct", "exact"))
_RISCV: tuple[Accumulator, ...] = (
    *(
        PartialSum(
            f"ime_bf16_{rnd}", partial_rounding=rounding, input_formats=_BF16,
            source=f"{_IME}: psm = 0, rnd = {rnd}, G = 2", validated_against="no model can be run",
        )
        for rnd, rounding in _RND
    ),
    BulkNormalizedSum(
        "ime_bf16_rvbna", fraction_bits=25, input_formats=_BF16, source=f"{_IME}: psm = 1 with RVBNA, rnd = rto, G = 2",
        validated_against="no model can be run",
    ),
    BulkNormalizedSum(
        "zvdota_bf16", group_size=8, fraction_bits=26, sum_rounding="odd", input_formats=_BF16,
        source=f"{_ZVDOTA}, vfwdota.vv", validated_against=f"19 results of {_SPIKE}",
    ),
    BulkNormalizedSum(
        "zvdota_fp8", group_size=16, fraction_bits=27, sum_rounding="odd", input_formats=_FP8,
        source=f"{_ZVDOTA}, vfqwdota.vv", validated_against=f"25 results of {_SPIKE}",
    ),
)  # fmt: skip
# Tenstorrent: MVMUL with float32 sums in Dst; phases in the order of tt-llk, each over the 32 products of a tile.
_TTSIM = "tenstorrent/ttsim, src/tensix.cpp: mvmul, fpu_accum_normalize_encode; tt-llk, llk_math_matmul.h"
_TENSTORRENT: tuple[Accumulator, ...] = tuple(
    FidelityPhaseSum(
        f"blackhole_bf16_{fidelity}", phases=phases, input_formats=_BF16, source=_TTSIM,
        validated_against="2 results of the vendor's functional simulator; no recordings",
    )
    for fidelity, phases in (("lofi", (0,)), ("hifi2", (0, 1)))
)  # fmt: skip
# IBM's AIU, by the rules of its simulation; the chunk length is the simulation's default, not the hardware's.
_IBM: tuple[Accumulator, ...] = (
    ChunkedSum(
        "aiu_dl8", input_formats=_formats("dl8"),
        source="foundation-model-stack/fms-model-optimizer, triton_kernels.py (PR 159, 308643fb): tl_matmul, DL16 sums",
        validated_against="23 of 24 roundings of the vendor's simulation; no recordings, hardware's length of chunks "
        "unknown",
    ),
)  # fmt: skip
# Dot products of CPUs.
_INTEL = "Intel's manual; Bochs 0e27578, cpu/avx/amx.cc"
_QEMU = "not run on hardware; the rule of QEMU's fp8_helper.c (0e81c21), except that its sums are limited to 64 bits"
_CPUS: tuple[Accumulator, ...] = (
    FlushedFmaSum(
        "avx512_bf16", group_size=2, input_formats=_BF16, source="Intel's manual: VDPBF16PS",
        validated_against="AMD Zen 5's instruction, on any operands: 0 of 29,360,128 outputs differ",
    ),
    LaneChains(
        "amx_bf16", group_size=32, lanes=2, input_formats=_BF16, source=f"{_INTEL}: TDPBF16PS",
        validated_against="the instruction of an Intel Xeon, on any operands: 0 of 29,360,128 outputs differ; tiles "
        "with fewer than 32 k are other groups",
    ),
    LaneChains(
        "amx_f16", group_size=32, lanes=2, input_formats=_F16, source=f"{_INTEL}: TDPFP16PS",
        validated_against="not run: no CPU with AMX-FP16 available",
    ),
    PairedLaneChains(
        "amx_fp8", group_size=64, lanes=2, input_formats=_FP8, daz_formats=_formats("e5m2"),
        source="Bochs 0e27578: TDPBF8PS, TDPHF8PS, TDPBHF8PS, TDPHBF8PS",
        validated_against="not run; open: subnormals of E5M2 are zeros in Bochs, see amx_fp8_subnormals",
    ),
    PairedLaneChains(
        "amx_fp8_subnormals", group_size=64, lanes=2, input_formats=_FP8,
        source="as amx_fp8, with E5M2's subnormals as numbers: the other reading",
        validated_against="not run; open: see amx_fp8",
    ),
    RoundToOddSum(
        "arm_bf16", group_size=2, input_formats=_BF16,
        source="Arm ARM: BFDOT, BFMMLA with FPCR.EBF = 0, and without FEAT_EBF16; QEMU's bfdotadd",
        validated_against="qemu-aarch64 7.2's BFDOT: 0 of 29,360,128 outputs differ",
    ),
    RoundedGroupSum(
        "arm_bf16_ebf", group_size=2, input_formats=_BF16,
        source="Arm ARM: BFDOT, BFMMLA with FPCR.EBF = 1, to nearest, FZ = 0; QEMU's bfdotadd_ebf",
        validated_against="not run on hardware or an emulator; the rule of QEMU's source only",
    ),
    ScaledGroupSum(
        "arm_fp8", group_size=4, input_formats=_FP8, validated_against=_QEMU,
        source="Arm ARM: FDOT (4-way, to single precision), FMOPA, FMMLA with FPMR.LSCALE = 0, OSM = 0",
    ),
    ScaledGroupSum(
        "arm_fp8_f16", group_size=2, input_formats=_FP8, output_format=FLOAT16, validated_against=_QEMU,
        source="Arm ARM: FDOT (2-way, to half precision) with FPMR.LSCALE = 0, OSM = 0",
    ),
    ScaledGroupSum(
        "arm_fp8_fmlall", group_size=1, input_formats=_FP8, validated_against=_QEMU,
        source="Arm ARM: FMLALLBB .. FMLALLTT with FPMR.LSCALE = 0, OSM = 0",
    ),
    ScaledGroupSum(
        "arm_fp8_fmlal_f16", group_size=1, input_formats=_FP8, output_format=FLOAT16, validated_against=_QEMU,
        source="Arm ARM: FMLALB, FMLALT with FPMR.LSCALE = 0, OSM = 0",
    ),
)  # fmt: skip
for _entry in (*_MATRIX_CORES, *_RDNA, *_RISCV, *_TENSTORRENT, *_IBM, *_CPUS):
    accumulators.register(_entry.name, _entry)
accumulators.register(
    "fp64",
    SequentialSum(
        "fp64", output_format=FLOAT64, input_formats=(FLOAT64,), source=f"IEEE 754; {_SIM}", validated_against=_NONE
    ),
    aliases=[f"{_n}_fp64" for _n in ("ampere", "hopper", "blackwell", "cdna2", "cdna3")],
)
accumulators.register("exact", ExactSum("exact", source="definition"))
accumulators.register(
    "float32", SequentialSum("float32", source="definition: IEEE 754 fusedMultiplyAdd in increasing k")
)
_chips: dict[str, list[str]] = {}
for _entry in map(accumulators.get, accumulators):
    for _chip in re.findall(r"\b[A-Z]+\d+\w*", _entry.validated_against.partition("recordings of")[2]):
        _chips.setdefault(_chip, []).append(repr(_entry.name))
accumulators.spoken |= {chip.lower(): f"entries for {chip} are {', '.join(names)}" for chip, names in _chips.items()}
accumulators.seal()
