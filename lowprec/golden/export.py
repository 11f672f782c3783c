"""`c_header` and `sv_dpi`: accumulators as C99 headers without dependencies, filled in from their fields."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from importlib.resources import files
from string import Template
from typing import Any, NamedTuple

from .. import __version__
from .._values import compared_fields
from ..format.catalogue import Format, formats
from ..format.policy import Policy
from ..format.rounding import resolve, special_codes
from ..tensorcore.accumulator import ALIGNMENTS, FLOAT16, FLOAT32, Accumulator
from ..tensorcore.catalogue import accumulators
from ..tensorcore.kinds.amd import ExactGroupSum, FlooredPairSum, OnesComplementSum, TruncateFloorSum
from ..tensorcore.kinds.arm import RoundedGroupSum, ScaledGroupSum
from ..tensorcore.kinds.exact import ExactSum
from ..tensorcore.kinds.nvidia import FusedSum
from ..tensorcore.kinds.sequential import SequentialSum
from .selftest import selftest

_EXACT = {"SIGNED_ZEROS": 0, "ROUNDED_GROUPS": 0, "SATURATE": 0, "PRODUCT_SCALE_LOG2": 0}
#: Kinds that can be exported: the template of the rule, and constants in addition to the accumulator's fields.
TEMPLATES: Mapping[type[Accumulator], tuple[str, dict[str, int]]] = {
    FusedSum: ("fused", {}),
    TruncateFloorSum: ("floor", {}),
    OnesComplementSum: ("rdna3", {}),
    FlooredPairSum: ("rdna4", {}),
    ExactGroupSum: ("exact", _EXACT),
    SequentialSum: ("exact", {**_EXACT, "SIGNED_ZEROS": 1}),
    RoundedGroupSum: ("exact", {**_EXACT, "SIGNED_ZEROS": 1, "ROUNDED_GROUPS": 1}),
    ScaledGroupSum: ("exact", {**_EXACT, "SIGNED_ZEROS": 1}),
    ExactSum: ("exact", _EXACT),
}
_NO_CODE = 0xFFFFFFFF  # no code has this value


class ExportError(ValueError):
    """Error for an accumulator or a format without a C template."""


class Exported(NamedTuple):
    """A header with the name and the operands of its function."""

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
    """Return an accumulator as a C99 header, which compiles as C++ too.

    Parameters
    ----------
    accumulator : str or Accumulator
        Rule of a kind in `TEMPLATES`, without scales and promotion.
    a_format, b_format : str or Format, optional
        Formats of the operands; by default the accumulator's first.
    vectors : int
        Number of embedded test vectors, computed by `lowprec.oracle`; 0 for accumulators outside the catalogue.

    Returns
    -------
    Exported
        The header and the name of its function.

    Raises
    ------
    ExportError
        If the kind has no template, or the accumulator takes scales or promotes.

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
    template, more = _template_of(accumulator)
    name = "lp_" + re.sub(r"\W", "_", accumulator.name)
    step = _step(accumulator)
    values = {
        "ID": name, "GUARD": name.upper(), "NAME": accumulator.name, "VERSION": __version__, "STEP": step,
        "SOURCE": _words(accumulator.source), "EVIDENCE": _words(accumulator.validated_against), "VECTORS": vectors,
        **_result(accumulator), **_operand("A", fa, accumulator), **_operand("B", fb, accumulator),
    }  # fmt: skip
    values["CONSTANTS"] = _constants(name, accumulator, more)
    values["GROUP_ORDER"] = ", ".join(map(str, getattr(accumulator, "group_order", ()) or (0,)))
    for part in ("integers", "close", "special"):
        values[part.upper()] = _filled(part, values) if part.upper() in _text(template) else ""
    values["RULE"] = _filled(template, values)
    values["SELFTEST"] = selftest(name, accumulator, fa, fb, vectors)
    return Exported(name, _filled("common", values), fa, fb, step if isinstance(step, int) else 1)


def c_cast(fmt: str | Format, policy: str | Policy | None = None) -> Exported:
    """Return the casts between float32 and a format as a C99 header, rounded to nearest even.

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
    rounding, rule = resolve(fmt, None, policy)
    is_float = type(fmt) is Format and fmt.signed and fmt.has_zero and not fmt.is_integer
    if not is_float or rounding.name != "nearest_even":
        raise ExportError(f"golden: fmt must be a signed floating-point format with a zero, got {fmt}")
    if rule.may_raise:
        raise ExportError(f"golden: policy must not raise errors, got {rule.name}")
    special = special_codes(fmt, rounding, rule)
    name = "lp_" + re.sub(r"\W", "_", fmt.name)
    values = {
        "ID": name, "GUARD": name.upper(), "NAME": fmt.name, "VERSION": __version__, "POLICY": rule.name,
        "SOURCE": _words(fmt.source), "CODE_T": _c_type(fmt),
        "FRACTION": fmt.mantissa_bits, "EMIN": fmt.emin, "MAX": hex(fmt.max_code), "SIGN": hex(fmt.sign_mask),
        "MAGNITUDE": hex(fmt.sign_mask - 1), "INF_CODE": hex(_code(fmt)),
        "NAN_CODE": hex(_NO_CODE if fmt.nan_code is None else fmt.nan_code),
        **{key.upper(): hex(code) for key, code in special._asdict().items()},
    }  # fmt: skip
    return Exported(name, _filled("cast", values), fmt, fmt, 1)


def sv_dpi(header: Exported, accumulator: str | Accumulator) -> tuple[str, str]:
    """Return a SystemVerilog package that imports the function by DPI-C, and the C file that it calls.

    Operands are packed vectors of one instruction, element 0 in the low bits, as simulators without open arrays
    (Verilator) accept them.
    """
    accumulator = accumulators.get(accumulator)
    stored = accumulator.stored_format
    values: dict[str, Any] = {
        "ID": header.name, "GROUP": header.step, "A_BITS": header.a.bits, "B_BITS": header.b.bits,
        "C_BITS": stored.bits, "A_T": _c_type(header.a), "B_T": _c_type(header.b), "OUT_T": _c_type(stored),
    }  # fmt: skip
    return _filled("dpi_sv", values), _filled("dpi_c", values)


def _template_of(accumulator: Accumulator) -> tuple[str, dict[str, int]]:
    found = TEMPLATES.get(type(accumulator))
    if found is None:
        known = ", ".join(kind.__name__ for kind in TEMPLATES)
        raise ExportError(
            f"golden: accumulator must be of a kind with a C template ({known}), got {accumulator.name}, a "
            f"{type(accumulator).__name__}"
        )
    if accumulator.scale_format is not None:
        raise ExportError(f"golden: accumulator must take no scales, got {accumulator.name}")
    if accumulator.promote_every is not None:
        raise ExportError(
            f"golden: accumulator must not promote (promotion is outside of the instruction), got {accumulator.name}"
        )
    if accumulator.output_format not in (FLOAT32, FLOAT16) and accumulator.stored_format != FLOAT32:
        raise ExportError(f"golden: results must be float32, FP22 or float16, got {accumulator.output_format}")
    return found


def _constants(name: str, accumulator: Accumulator, more: Mapping[str, int]) -> str:
    """Return the accumulator's integer fields and constants derived from others, as lines of a C enum."""
    fields: dict[str, int] = dict(more)
    own = set(compared_fields(type(accumulator))) - {"promote_every"}
    for field in dataclasses.fields(accumulator):
        value = getattr(accumulator, field.name)
        if field.name in own and isinstance(value, int | bool) and value is not None:
            fields[field.name.upper()] = int(value)
    fields.setdefault("GROUP_SIZE", accumulator.group_size)
    if isinstance(accumulator, FusedSum):
        fields["ALIGN"] = ALIGNMENTS.index(accumulator.align)
        fields["ZEROS_HAVE_EXPONENT"] = int(accumulator.zero_exponent is not None)
        fields.setdefault("ZERO_EXPONENT", 0)
        fields["KEPT"] = accumulator.output_bits
        fields["ROUNDS"] = int(accumulator.output_format == FLOAT16)
    if TEMPLATES[type(accumulator)][0] == "exact":
        fields["PADDED_TO"] = 0 if isinstance(accumulator, ExactSum) else accumulator.group_size
    return "\n".join(f"  {name}_{key} = {value}," for key, value in fields.items())


def _step(accumulator: Accumulator) -> int | str:
    return "(k > 0 ? k : 1)" if isinstance(accumulator, ExactSum) else accumulator.step()


def _result(accumulator: Accumulator) -> dict[str, Any]:
    stored = accumulator.stored_format
    return {
        "STORED": stored.mantissa_bits, "EMIN": stored.emin, "SIGN": hex(stored.sign_mask), "INF": hex(_code(stored)),
        "OUT_T": _c_type(stored), "OUT_NAME": accumulator.output_format.name,
    }  # fmt: skip


def _operand(side: str, fmt: Format, accumulator: Accumulator) -> dict[str, Any]:
    """Return the constants of an operand's format; TF32 units read float32 words without their low 13 bits."""
    read, codes = accumulator.multiplied(fmt), f"{side.lower()}[i]"
    if not (read.signed and read.has_zero) or read.is_integer:
        raise ExportError(f"golden: operands must be signed floating-point formats with a zero, got {fmt}")
    return {
        f"{side}_NAME": fmt.name, f"{side}_T": _c_type(fmt), f"{side}_FRACTION": read.mantissa_bits,
        f"{side}_EMIN": read.emin, f"{side}_SIGN": hex(read.sign_mask), f"{side}_MAX": hex(read.max_code),
        f"{side}_INF": hex(_code(read)), f"{side}_NAN": hex(_NO_CODE if read.nan_code is None else read.nan_code),
        f"{side}_READ": codes if read is fmt else f"(uint32_t)({codes} >> {fmt.bits - read.bits})",
        f"{side}_DAZ": int(accumulator.is_daz(fmt)),
    }  # fmt: skip


def _code(fmt: Format) -> int:
    return _NO_CODE if fmt.inf_code is None else fmt.inf_code


def _c_type(fmt: Format) -> str:
    return f"uint{8 * fmt.code_dtype.itemsize}_t"


def _words(text: str) -> str:
    return text.replace("*/", "* /")


def _text(template: str) -> str:
    return (files(__package__) / "c" / f"{template}.in").read_text(encoding="utf-8")


def _filled(template: str, values: Mapping[str, Any]) -> str:
    return Template(_text(template)).substitute(values)
