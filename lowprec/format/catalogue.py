"""The catalogue of number formats, one line per format.

Sources: OCP OFP8 rev 1.0 and MX v1.0; the types of ml_dtypes 0.6; the DeepSeek-V3 report for e5m6 and fp22; IEEE
P3109 interim report v4.0 for its family, with members created by name on demand (`p3109`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from ..registry import Registry
from .format import Format as Format
from .layout import Specials
from .table import FP4_BITSANDBYTES, HIF8_NEXT_ABOVE_MAX, NF4, TableFormat, hif8_values


def p3109(K: int, P: int, signed: bool = True, domain: str = "extended") -> Format:
    """Return a format of the IEEE P3109 family.

    Parameters
    ----------
    K : int
        Bits of a code, 3 to 16.
    P : int
        Precision: bits of the significand, including the implicit one; 1 to K - 1, or K for unsigned formats.
    signed : bool
        Whether the format has negative numbers.
    domain : {"extended", "finite"}
        Whether the format has Inf (``extended``) or not (``finite``).

    Returns
    -------
    Format
        Format named ``p3109_k{K}p{P}{s|u}{e|f}``: one NaN, no -0, subnormals, bias ``2^(K - P - 1)`` (``2^(K - P)``
        if unsigned).

    Raises
    ------
    ValueError
        If the arguments do not define a P3109 format, or it has values outside float32 (wide exponents of precision
        1 to 3).

    References
    ----------
    IEEE P3109 interim report v4.0, section 4.

    Examples
    --------
    >>> from lowprec.format.catalogue import p3109
    >>> p3109(8, 4).max, p3109(8, 4, domain="finite").max, p3109(8, 3, signed=False).name
    (224.0, 240.0, 'p3109_k8p3ue')
    """
    if domain not in ("extended", "finite"):
        raise ValueError(f"p3109: domain must be 'extended' or 'finite', got {domain!r}")
    name = f"p3109_k{K}p{P}{'s' if signed else 'u'}{domain[0]}"
    if not 3 <= K <= 16 or not 1 <= P <= K - bool(signed):
        raise ValueError(
            f"p3109: K must be from 3 to 16 and P from 1 to {'K - 1' if signed else 'K'}, got K={K} and P={P}"
        )
    specials: Specials = "extended" if domain == "extended" else "fnuz" if signed else "fn"
    return Format(
        name,
        K - P + (not signed),
        P - 1,
        bias=1 << (K - P - 1) if signed else 1 << (K - P),
        signed=bool(signed),
        specials=specials,
        source="IEEE P3109 interim report v4.0",
    )


_P3109_NAME = re.compile(r"(?:p3109_k|binary)(\d{1,2})p(\d{1,2})([su])([ef])")


def _made_by_name(name: str) -> Format | None:
    """Return the P3109 format with the given name, or None if the name is not of that family."""
    match = _P3109_NAME.fullmatch(name)
    if match is None:
        return None
    return p3109(int(match[1]), int(match[2]), match[3] == "s", "extended" if match[4] == "e" else "finite")


_E4M3 = "'e4m3fn' is the E4M3 of OCP and NVIDIA, up to 448; 'e4m3' is LLVM's with infinities, up to 240"

formats: Registry[Format] = Registry(
    "format",
    Format,
    make=_made_by_name,
    spoken={
        "e4m3": _E4M3,
        "fp8": "FP8 is 'e4m3fn' or 'e5m2'",
        "fp6": "FP6 is 'e3m2fn' or 'e2m3fn'",
        "fp4": "FP4 is 'e2m1fn'",
    },
)
"""Catalogue of number formats. ``formats[name]`` also takes the names of ml_dtypes (``float8_e4m3fn``) and those of the
P3109 family (``p3109_k8p4se`` or ``binary8p4se``)."""


def format_of(caller: str, given: Any, get: Callable[[Any], Format] = formats.get) -> Format:
    """Return a format, given as a name or an object.

    Raises
    ------
    TypeError
        If it is neither a format nor a string.
    """
    try:
        return get(given)
    except TypeError:
        raise TypeError(f"{caller} must be a format or a name of one, got {given!r}") from None


def formats_of(caller: str, given: Any, get: Callable[[Any], Format] = formats.get) -> tuple[Format, ...]:
    """Return one or several formats, given as names or objects, as a tuple.

    Raises
    ------
    TypeError
        If an item is neither a format nor a string.
    """
    try:
        return tuple(get(one) for one in ((given,) if isinstance(given, str | Format) else given))
    except TypeError:
        raise TypeError(f"{caller} must be a format, a name of one or a sequence of them, got {given!r}") from None


def _add(name: str, exponent_bits: int, mantissa_bits: int, *aliases: str, **fields: Any) -> None:
    formats.register(name, Format(name, exponent_bits, mantissa_bits, **fields), aliases)


_OFP8 = "OCP OFP8 rev 1.0"
_FNUZ = "Noune et al., arXiv:2206.02915; AMD MI300"
_MX = "OCP MX v1.0"
_add("e4m3fn", 4, 3, "float8_e4m3fn", specials="fn", source=_OFP8)
_add("e5m2", 5, 2, "float8_e5m2", source=_OFP8)
_add("e4m3fnuz", 4, 3, "float8_e4m3fnuz", bias=8, specials="fnuz", source=_FNUZ)
_add("e5m2fnuz", 5, 2, "float8_e5m2fnuz", bias=16, specials="fnuz", source=_FNUZ)
_add("e4m3b11fnuz", 4, 3, "float8_e4m3b11fnuz", bias=11, specials="fnuz", source="Sun et al., NeurIPS 2019 (HFP8)")
_add("e4m3", 4, 3, "float8_e4m3", source="IEEE-style E4M3 of LLVM and ml_dtypes")
_add("e3m4", 3, 4, "float8_e3m4", source="IEEE-style E3M4 of LLVM and ml_dtypes")
_add("e3m4fn", 3, 4, specials="fn", source="Shen et al., arXiv:2309.14592 (Intel): E3M4 without Inf")
_add("e8m0fnu", 8, 0, "float8_e8m0fnu", "ue8m0", signed=False, has_zero=False, specials="fn", source=_MX)
_add("ue5m3", 5, 3, signed=False, specials="fn", source="unsigned E5M3 proposed for the block scales of 4-bit formats")
_add("ue4m3", 4, 3, signed=False, specials="fn", source="E4M3 without its sign: NVFP4's block scales, NVIDIA PTX ISA")
_add("e2m3fn", 2, 3, "float6_e2m3fn", specials="finite", source=_MX)
_add("e3m2fn", 3, 2, "float6_e3m2fn", specials="finite", source=_MX)
_add("e2m1fn", 2, 1, "float4_e2m1fn", specials="finite", source=_MX)
_add("int8", 0, 7, specials="integer", source="two's complement")
_add("int4", 0, 3, specials="integer", source="two's complement; int4 of ml_dtypes")
_add("mxint8", 0, 7, bias=0, specials="symmetric", source=f"{_MX}: two's complement multiples of 2^-6; -2 is optional")
_add("bfloat16", 8, 7, "bf16", source="Google Brain; IEEE-style")
_add("float16", 5, 10, "f16", "fp16", "half", source="IEEE 754 binary16")
_add("float32", 8, 23, "f32", "fp32", source="IEEE 754 binary32")
_add("tf32", 8, 10, source="NVIDIA A100: float32 with 10 fraction bits")
_add("e5m6", 5, 6, source="DeepSeek-V3 report 3.3.3: 12-bit activation cache")
_DLFLOAT = "Agrawal et al., ARITH 2019 (IBM DLFloat): no subnormals; one code for NaN and Inf"
_add("dl16", 6, 9, "dlfloat16", specials="fn", subnormals=False, source=_DLFLOAT)
_add("dl8", 4, 3, specials="fn", subnormals=False, source="IBM AIU: foundation-model-stack/fms-model-optimizer, PR 159")
_add("fp22", 8, 13, source="DeepSeek, ISCA 2025 section 3.1: accumulator registers of Hopper's FP8 tensor cores")


formats.register(
    "hif8",
    TableFormat(
        "hif8", tuple(hif8_values()), next_above_max=HIF8_NEXT_ABOVE_MAX, rounding="nearest_away",
        source="Luo et al., arXiv:2409.16626 (Huawei HiFloat8)",
    ),
    ("hifloat8",),
)  # fmt: skip
formats.register("nf4", TableFormat("nf4", NF4, source="Dettmers et al., arXiv:2305.14314 (QLoRA), appendix E"))
formats.register(
    "fp4_bitsandbytes",
    TableFormat("fp4_bitsandbytes", FP4_BITSANDBYTES, source="bitsandbytes 0.50, functional.py: get_4bit_type('fp4')"),
)
formats.seal()
