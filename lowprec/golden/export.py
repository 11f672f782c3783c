"""C99 headers of accumulators, casts and quantizers, made from templates and fields; SystemVerilog wrappers."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from importlib.resources import files
from string import Template
from typing import Any, NamedTuple

import numpy as np

from .. import __version__
from .._values import compared_fields
from ..format.catalogue import Format, formats
from ..format.policy import Policy
from ..format.rounding import resolve, special_codes
from ..scaling.quantizer import Quantizer, quantizers
from ..scaling.rules import AmaxRule
from ..tensorcore.accumulator import ALIGNMENTS, BFLOAT16, FLOAT16, FLOAT32, Accumulator, AlignedSum
from ..tensorcore.catalogue import accumulators
from ..tensorcore.engines.engine import products_fit_float32
from ..tensorcore.kinds import amd
from ..tensorcore.kinds.arm import RoundedGroupSum, RoundToOddSum, ScaledGroupSum
from ..tensorcore.kinds.exact import ExactSum
from ..tensorcore.kinds.ibm import ChunkedSum
from ..tensorcore.kinds.nvidia import FusedSum, GroupedFusedSum, SplitF16Sum
from ..tensorcore.kinds.riscv import BulkNormalizedSum, PartialSum
from ..tensorcore.kinds.sequential import SequentialSum
from ..tensorcore.kinds.x86 import FlushedFmaSum, LaneChains, PairedLaneChains
from .selftest import oracle_answer, selftest
from .steps import chunks, roundings, steps

#: Template of each kind's rule; "steps" is filled in from the tree of an instruction.
TEMPLATES: Mapping[type[Accumulator], str] = {
    FusedSum: "fused", GroupedFusedSum: "runs", SplitF16Sum: "split", amd.TruncateFloorSum: "floor",
    amd.OnesComplementSum: "rdna3", amd.FlooredPairSum: "rdna4", ChunkedSum: "chunks",
    **dict.fromkeys(
        (amd.ExactGroupSum, SequentialSum, RoundedGroupSum, ScaledGroupSum, ExactSum, amd.PairwiseSum, RoundToOddSum,
         FlushedFmaSum, LaneChains, PairedLaneChains, PartialSum, BulkNormalizedSum), "steps",
    ),
}  # fmt: skip
_NO_CODE = 0xFFFFFFFF  # no code has this value
#: C expressions of the increment from amax's exponent to the scale's, given the mantissa m of amax in float32.
_EXPONENTS: Mapping[str, Callable[[Format], str]] = {
    "floor": lambda fmt: "0u * m", "ceil": lambda fmt: "m != 0",
    "even": lambda fmt: f"(m + (UINT32_C(1) << {22 - fmt.mantissa_bits})) >> 23",
    "even_1bit": lambda fmt: "(m + (UINT32_C(1) << 21)) >> 23",
}  # fmt: skip


class ExportError(ValueError):
    """Error for an accumulator or a format without a C template."""


class Exported(NamedTuple):
    """C header, with the name of its function and the formats of the operands."""

    name: str  # of the C function
    text: str
    a: Format
    b: Format
    step: int  # products of an instruction


def c_header(
    accumulator: str | Accumulator,
    a_format: str | Format | None = None,
    b_format: str | Format | None = None,
    *,
    vectors: int = 10,
) -> Exported:
    """Return an accumulator as a C99 header, which also compiles as C++.

    Parameters
    ----------
    accumulator : str or Accumulator
        Rule of a kind in `TEMPLATES`, without promotion.
    a_format, b_format : str or Format, optional
        Formats of the operands; by default the accumulator's first.
    vectors : int
        Number of embedded test vectors, computed by `lowprec.oracle`. The header of a custom accumulator has no
        vectors, as a comment in it states.

    Returns
    -------
    Exported
        The header and the name of its function.

    Raises
    ------
    ExportError
        If the kind lacks a template, or the accumulator promotes.

    Examples
    --------
    >>> header = c_header("hopper_fp8")
    >>> header.name, header.step, "LP_HOPPER_FP8_H" in header.text
    ('lp_hopper_fp8', 32, True)
    """
    accumulator = accumulators.get(accumulator)
    fa = accumulator.default_format if a_format is None else formats.get(a_format)
    fb = fa if b_format is None else formats.get(b_format)
    accumulator.check_inputs(fa, fb)
    template = _template_of(accumulator)
    if any(how.flushes for how in roundings(accumulator)) and not products_fit_float32(fa, fb):
        raise ExportError(
            f"golden: operands must have at most 12 significant bits where products are rounded to float32, got {fa} "
            f"and {fb} for {accumulator.name}"
        )
    name = f"lp_{_identifier(accumulator)}"
    step = _step(accumulator)
    answer = oracle_answer(accumulator) if vectors else None
    says = (
        "has no vectors and returns 0"
        if answer is None
        else f"returns the number of the {vectors} embedded vectors, computed in exact arithmetic, that differ"
    )
    values = {
        "ID": name, "GUARD": name.upper(), "NAME": _words(accumulator.name), "VERSION": __version__, "STEP": step,
        "SOURCE": _words(accumulator.source), "EVIDENCE": _words(accumulator.validated_against), "SELFTEST_SAYS": says,
        **_result(accumulator), **_operand("A", fa, accumulator), **_operand("B", fb, accumulator),
        **_scales(accumulator), "CONSTANTS": _constants(name, accumulator), "FUSED": "step",
        "GROUP_ORDER": ", ".join(map(str, getattr(accumulator, "group_order", ()) or (0,))),
    }  # fmt: skip
    for part in ("integers", "close", "special", "wide"):
        values[part.upper()] = _filled(part, values)
    values["SCALE"] = "" if accumulator.scale_format is None else _filled("scale", values)
    if template == "steps":
        products = "aligned" if isinstance(accumulator, BulkNormalizedSum) else "products"
        values |= {**steps(name, accumulator), "PRODUCTS": _filled(products, values)}
    if isinstance(accumulator, ChunkedSum):
        values |= {**chunks(name, accumulator), "PRODUCTS": _filled("products", values)}
    if isinstance(accumulator, SplitF16Sum):
        order = [k for leaf in accumulator.instruction("C", 0).products() for k in leaf.ks]
        values |= {"RULE_OF_HALF": _filled("fused", values | {"FUSED": "half"}), "GROUP_ORDER": str(order)[1:-1]}
    values["RULE"] = _filled(template, values)
    values["SELFTEST"] = selftest(name, answer, accumulator, fa, fb, vectors)
    return Exported(name, _filled("common", values), fa, fb, step if isinstance(step, int) else 1)


def c_cast(fmt: str | Format, policy: str | Policy | None = None) -> Exported:
    """Return a C99 header with the casts between float32 and a format, which round to nearest even.

    Parameters
    ----------
    fmt : str or Format
        Signed floating-point format with a zero.
    policy : str or Policy, optional
        Rules for overflow, Inf and NaN; by default those of `lowprec.encode`.

    Returns
    -------
    Exported
        The header and the prefix of its two functions.

    Raises
    ------
    ExportError
        If the format is an integer, unsigned or a table, or the policy raises errors.

    Examples
    --------
    >>> "lp_e5m2_encode(uint32_t bits)" in c_cast("e5m2").text
    True
    """
    fmt = formats.get(fmt)
    name = f"lp_{_identifier(fmt)}"
    rule, values = _encoding(fmt, policy)
    values |= {
        "ID": name, "GUARD": name.upper(), "NAME": _words(fmt.name), "VERSION": __version__,
        "POLICY": _words(rule.name), "SOURCE": _words(fmt.source),
        "MAGNITUDE": hex(fmt.sign_mask - 1), "INF_CODE": hex(_code(fmt)),
        "NAN_CODE": hex(_NO_CODE if fmt.nan_code is None else fmt.nan_code),
    }  # fmt: skip
    values["ENCODE"] = _filled("encode", values)
    return Exported(name, _filled("cast", values), fmt, fmt, 1)


def c_quantizer(quantizer: str | Quantizer) -> Exported:
    """Return a quantizer of blocks with power-of-two scales as a C99 header.

    Parameters
    ----------
    quantizer : str or Quantizer
        Quantizer with blocks of one row, scales in E8M0 from the exponent of amax or from ``amax*(1/max)``, and
        elements of at most 8 bits rounded to nearest even, without a transform or history.

    Returns
    -------
    Exported
        The header and the name of its function; `step` is the length of a block.

    Raises
    ------
    ExportError
        If the quantizer has other properties.

    Examples
    --------
    >>> c_quantizer("mxfp8_floor").name, c_quantizer("mxfp8_floor").step
    ('lp_mxfp8_floor', 32)
    """
    q = quantizers.get(quantizer)
    rule, fmt, block = q.rule, q.format, q.granularity
    is_plain = q.hadamard_size is None and q.amax_history_len is None and q.negative_zero == "keep"
    calculations = (*_EXPONENTS, "amax*(1/max)")
    if not (isinstance(rule, AmaxRule) and q.scale_format.name == "e8m0fnu" and rule.scale_calculation in calculations):
        raise ExportError(f"golden: scales must be E8M0, calculated by {', '.join(calculations)}, got {q}: {rule}")
    if not is_plain or q.rounding.name != "nearest_even" or block.rows != 1 or block.columns is None:
        raise ExportError(
            f"golden: quantizer must round elements of blocks of one row to nearest even, no transform or history, "
            f"got {q}"
        )
    special = {"one": 0, "smallest": -127, "largest": 127}
    cases = rule.nan_block, rule.inf_block, rule.zero_block
    if fmt.bits > 8 or cases[0] != "nan" or cases[1] not in (*special, "nan") or cases[2] not in special:
        raise ExportError(
            f"golden: quantizer must have elements of at most 8 bits, nan_block='nan', inf_block of "
            f"{', '.join(special)}, nan and zero_block of {', '.join(special)}, got {q}: {fmt}, {', '.join(cases)}"
        )
    name = f"lp_{_identifier(q)}"
    _, values = _encoding(fmt, None)
    inverse, exponent = np.frexp(np.float32(1) / np.float32(fmt.max))
    values |= {
        "ID": name, "GUARD": name.upper(), "NAME": _words(q.name), "VERSION": __version__, "SOURCE": _words(q.source),
        "FORMAT": _words(fmt.name), "BLOCK": block.columns, "LEAST": rule.min_scale_exponent,
        "FLOOR": hex(int(np.float32(rule.amax_floor).view(np.uint32))), "ZERO_EXPONENT": special[rule.zero_block],
        "INF_TOO": " || amax == UINT32_C(0x7f800000)" if rule.inf_block == "nan" else "",
        "INF_EXPONENT": special.get(rule.inf_block, 0), "INVERSE": int(inverse * (1 << 24)),
        "INVERSE_EXPONENT": int(exponent) - 24,
    }  # fmt: skip
    values["EXPONENT"] = (
        _filled("amax_product", values)
        if rule.scale_calculation == "amax*(1/max)"
        else f"  return e + (int)({_EXPONENTS[rule.scale_calculation](fmt)}) - {fmt.emax};\n"
    )
    values["ENCODE"] = _filled("encode", values)
    return Exported(name, _filled("quantize", values), fmt, fmt, block.columns)


def _encoding(fmt: Format, policy: str | Policy | None) -> tuple[Policy, dict[str, Any]]:
    """Return the policy of a cast, and the constants of the template that encodes to nearest even."""
    rounding, rule = resolve(fmt, None, policy)
    is_float = type(fmt) is Format and fmt.signed and fmt.has_zero and not fmt.is_integer
    if not is_float or rounding.name != "nearest_even":
        raise ExportError(f"golden: fmt must be a signed floating-point format with a zero, got {fmt}")
    if rule.may_raise:
        raise ExportError(f"golden: policy must not raise errors, got {rule.name}")
    special = special_codes(fmt, rounding, rule)
    values: dict[str, Any] = {
        "CODE_T": _c_type(fmt), "FRACTION": fmt.mantissa_bits, "EMIN": fmt.emin, "MAX": hex(fmt.max_code),
        "SIGN": hex(fmt.sign_mask), **{key.upper(): hex(code) for key, code in special._asdict().items()},
    }  # fmt: skip
    least = fmt.first_significand  # without subnormals, the code of a value is smaller by this than with subnormals
    values["LOWEST_CODE"] = f"  n = n > {least}u ? n - {least}u : 0; /* no subnormals */\n" if least else ""
    values["LOWEST_FIELD"] = "  if (magnitude) field++; /* no subnormals */\n" if least else ""
    return rule, values


def sv_dpi(header: Exported, accumulator: str | Accumulator) -> tuple[str, str]:
    """Return a SystemVerilog package that imports the function through DPI-C, and the C wrapper that it calls.

    Operands are the packed vectors of one instruction, with element 0 in the low bits: simulators without open arrays,
    such as Verilator, also accept these.
    """
    accumulator = accumulators.get(accumulator)
    if accumulator.scale_format is not None:
        raise ExportError(f"golden: accumulator must take no scales for a DPI-C package, got {accumulator.name}")
    stored = accumulator.stored_format
    values: dict[str, Any] = {
        "ID": header.name, "GROUP": header.step, "A_BITS": header.a.bits, "B_BITS": header.b.bits,
        "C_BITS": stored.bits, "A_T": _c_type(header.a), "B_T": _c_type(header.b), "OUT_T": _c_type(stored),
    }  # fmt: skip
    return _filled("dpi_sv", values), _filled("dpi_c", values)


def _template_of(accumulator: Accumulator) -> str:
    found = TEMPLATES.get(type(accumulator))
    if found is None:
        known = ", ".join(kind.__name__ for kind in TEMPLATES)
        raise ExportError(
            f"golden: accumulator must be of a kind with a C template ({known}), got {accumulator.name}, a "
            f"{type(accumulator).__name__}"
        )
    if accumulator.promote_every is not None:
        raise ExportError(
            f"golden: accumulator must not promote (promotion is outside of the instruction), got {accumulator.name}"
        )
    if accumulator.output_format not in (FLOAT32, FLOAT16) and accumulator.stored_format != FLOAT32:
        raise ExportError(f"golden: results must be float32, FP22 or float16, got {accumulator.output_format}")
    return found


def _constants(name: str, accumulator: Accumulator) -> str:
    """Return an accumulator's integer fields, and constants derived from its other fields, as lines of a C enum."""
    own = set(compared_fields(type(accumulator))) - {"promote_every"}
    values = {field.name: getattr(accumulator, field.name) for field in dataclasses.fields(accumulator)}
    fields = {key.upper(): int(x) for key, x in values.items() if key in own and isinstance(x, int | bool)}
    fields.setdefault("GROUP_SIZE", accumulator.group_size)
    aligned = accumulator.half if isinstance(accumulator, SplitF16Sum) else accumulator
    if isinstance(aligned, AlignedSum):
        fields["ALIGN"] = ALIGNMENTS.index(aligned.align)
        fields["ZEROS_HAVE_EXPONENT"] = int(aligned.zero_exponent is not None)
        fields.setdefault("ZERO_EXPONENT", 0)
        fields["KEPT"] = aligned.output_bits
        fields["ROUNDS"] = int(aligned.output_format == FLOAT16)
    return "\n".join(f"  {name}_{key} = {value}," for key, value in fields.items())


def _scales(accumulator: Accumulator) -> dict[str, Any]:
    """Return the template's fields for scales and their format; without scales, the fields are empty strings."""
    fmt, name = accumulator.scale_format, f"lp_{_identifier(accumulator)}"
    is_positive = getattr(accumulator, "zero_c_is_positive", False)
    values = {"C_START": f"(c & {name}_INF) != 0 ? c : 0u" if is_positive else "c"}
    if accumulator.output_format == BFLOAT16:
        values["C_START"] = f"c & {name}_KEPT_BITS"
    if fmt is None:
        names = "SCALE_ARRAYS", "SCALE_NAMES", "SCALE_ARGUMENTS", "SCALES_SAY", "SCALE_PRODUCT"
        return {**values, **dict.fromkeys(names, "")}
    if fmt.has_zero and not fmt.subnormals:
        raise ExportError(f"golden: scale_format must be a format with subnormals or without zero, got {fmt}")
    arrays, at = ", const uint8_t *sa, const uint8_t *sb", f"(start + i) / {name}_SCALE_BLOCK"
    return {
        **values, "SCALE_ARRAYS": arrays, "SCALE_NAMES": ", sa, sb, i", "SCALE_ARGUMENTS": f"{arrays}, int start",
        "SCALES_SAY": (
            f" sa and sb are codes of\n * {fmt}, one for {accumulator.scale_block} of k, of which k is a multiple."
        ),
        "SCALE_PRODUCT": (
            f"    if (i < k) {{\n      const {name}_term p = {name}_open_scale(sa[{at}]);\n"
            f"      const {name}_term q = {name}_open_scale(sb[{at}]);\n"
            f"      s.nan |= p.kind || q.kind;\n      x.e += p.e + q.e;\n    }}\n"
        ),
        "S_MAGNITUDE": hex((1 << fmt.bits) - 1 - fmt.sign_mask), "S_FRACTION": fmt.mantissa_bits,
        "S_HAS_ZERO": int(fmt.has_zero), "S_EMIN": fmt.emin, "S_MAX": hex(fmt.max_code),
    }  # fmt: skip


def _identifier(entry: Accumulator | Format | Quantizer) -> str:
    return re.sub(r"\W", "_", entry.name)


def _step(accumulator: Accumulator) -> int | str:
    return "(k > 0 ? k : 1)" if isinstance(accumulator, ExactSum) else accumulator.step()


def _result(accumulator: Accumulator) -> dict[str, Any]:
    stored = accumulator.stored_format
    nan_operand, kept = amd.SPECIAL[accumulator.output_format.name] if isinstance(accumulator, amd.RdnaSum) else (0, 0)
    upper = ", the upper half of a float32" if accumulator.output_format == BFLOAT16 else ""
    return {
        "NAN_OPERAND": hex(nan_operand), "KEPT_BITS": hex(kept), "FLUSHES": int(stored == FLOAT32),
        "STORED": stored.mantissa_bits, "EMIN": stored.emin, "SIGN": hex(stored.sign_mask), "INF": hex(_code(stored)),
        "OUT_T": _c_type(stored), "OUT_NAME": accumulator.output_format.name + upper,
        "NAN_BITS": hex(stored.sign_mask - 1) if accumulator.has_canonical_nan else "UINT32_C(0x7fc00000)",
        "SIGNED_ZEROS": int(not isinstance(accumulator, amd.PairwiseSum)),
    }  # fmt: skip


def _operand(side: str, fmt: Format, accumulator: Accumulator) -> dict[str, Any]:
    """Return the template's constants for an operand's format; TF32 units ignore the low 13 bits of float32 words."""
    read, codes = accumulator.multiplied(fmt), f"{side.lower()}[i]"
    if not (read.signed and read.has_zero) or read.is_integer:
        raise ExportError(f"golden: operands must be signed floating-point formats with a zero, got {fmt}")
    return {
        f"{side}_NAME": _words(fmt.name), f"{side}_T": _c_type(fmt), f"{side}_FRACTION": read.mantissa_bits,
        f"{side}_EMIN": read.emin, f"{side}_SIGN": hex(read.sign_mask), f"{side}_MAX": hex(read.max_code),
        f"{side}_INF": hex(_code(read)), f"{side}_NAN": hex(_NO_CODE if read.nan_code is None else read.nan_code),
        f"{side}_READ": codes if read is fmt else f"(uint32_t)({codes} >> {fmt.bits - read.bits})",
        f"{side}_LEAST": max(read.emin - read.mantissa_bits, FLOAT16.emin) if isinstance(accumulator, SplitF16Sum)
        else read.emin, f"{side}_DAZ": int(_is_daz(accumulator, read)), f"{side}_SUBNORMALS": int(read.subnormals),
    }  # fmt: skip


def _is_daz(accumulator: Accumulator, fmt: Format) -> bool:
    """Return whether subnormal operands count as zeros, by `daz_formats` or because they are subnormal in float32."""
    flushes = any(how.flushes for how in roundings(accumulator))
    return accumulator.is_daz(fmt) or isinstance(accumulator, amd.PairwiseSum) or (flushes and fmt.emin <= FLOAT32.emin)


def _code(fmt: Format) -> int:
    return _NO_CODE if fmt.inf_code is None else fmt.inf_code


def _c_type(fmt: Format) -> str:
    return f"uint{8 * fmt.code_dtype.itemsize}_t"


def _words(text: str) -> str:
    return text.replace("*/", "* /").replace("/*", "/ *")


def _text(template: str) -> str:
    return (files(__package__) / "c" / f"{template}.in").read_text(encoding="utf-8")


def _filled(template: str, values: Mapping[str, Any]) -> str:
    return Template(_text(template)).substitute(values)
