"""Policies: handling of overflow, Inf, NaN, -0 and negative values that a format cannot represent, as data.

A `Policy` is a set of named choices. The presets are named after the software or hardware that they reproduce:

======================  ====================  ======================  =====================================
policy                  rounded value > max   Inf                     NaN
======================  ====================  ======================  =====================================
``ocp_sat``             +-max                 +-max                   NaN with its sign; without NaN: +max
``ocp_nonsat``          Inf, else NaN, else   as overflow             NaN with its sign; without NaN: +max
                        +-max
``ieee``                identical to ``ocp_nonsat``: the rule of IEEE 754 if the format has Inf
``ml_dtypes``           as ``ocp_nonsat``     as overflow             NaN with its sign; without NaN: -0 for
                                                                      NaN, +0 for -NaN
``torch_2_11``          as ``ocp_nonsat``     as overflow             all ones after the sign (8 bits)
``torch_2_13``          e4m3fn: +-max; other  as overflow             as ``torch_2_11``
                        formats as above
``cuda_satfinite``      +-max                 +-max                   +all ones; without NaN: +max
``onnx_sat``            +-max                 +-max                   as ``ml_dtypes``
``riscv``               as ``ocp_nonsat``     as overflow             +all ones, also for overflow
``riscv_bf16``          as ``ocp_nonsat``     as overflow             +NaN, also for overflow
``arm_osc0``            as ``riscv_bf16``
``arm_osc1``            +-max                 +-max                   +NaN; without NaN: +max
``amd``                 as ``ocp_nonsat``     as overflow             -NaN; without NaN: +max
``amd_ovfl``            +-max                 Inf, else NaN           as ``amd``
``cann_sat``            +-max                 +-max                   +0; without NaN: +max
``p3109_satfinite``     +-max                 +-max                   NaN
``p3109_satpropagate``  +-max                 Inf if there is one     NaN
``p3109_satnone``       Inf, else NaN; +-max  Inf, else NaN           NaN
                        for some directed
                        roundings
======================  ====================  ======================  =====================================

Overflow is decided after rounding (OFP8 rev 1.0): 464 still rounds down to E4M3's 448. If overflow gives Inf or NaN,
a rounding directed away from it gives +-max instead, as in IEEE 754: toward zero, up for negative values, down for
positive ones, and to odd. Under the P3109 presets, rounding to odd selects the neighbour with the odd code.

Negative values in unsigned formats give NaN (ml_dtypes and the OCP presets). The P3109 presets round first; a result
that is still negative gives zero, or NaN for ``p3109_satnone``.

Sources: OCP OFP8 rev 1.0; CUDA's ``cvt.rn.satfinite``; ONNX's technical notes and reference on float8; IEEE P3109
interim report v4.0, 4.7.5; ml_dtypes 0.6 and PyTorch 2.13 by measurement (PyTorch changed e4m3fn's overflow between
2.11 and 2.13); RISC-V Zvfofp8min 0.9 and Zvfbfmin; Arm's FPMR.OSC; AMD's v_cvt_sr_fp8_f32 with FP16_OVFL = 0 and 1
(RDNA4); CANN's casts to HiF8 for ``cann_sat``. x86's AVX10.2 conversions are ``ocp_sat`` (the saturating forms, S) and
``ocp_nonsat``, except for the payload of an E5M2 NaN; RISC-V's saturating forms are ``cuda_satfinite``. No policy
gives the e8m0fnu of ml_dtypes: it rounds ties up, and casts 0 to NaN and (2^-127, 1.5 * 2^-127) to 2^-126.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from .._checks import check_choice
from .._values import Value, normalize_fields
from ..registry import Registry
from .catalogue import Format, formats, formats_of

Overflow = Literal["saturate", "nonsaturate", "signed", "nan", "raise"]
Infinity = Literal["overflow", "saturate", "keep", "signed", "nan", "raise"]
NanCode = Literal["signed", "positive", "negative", "ones", "positive_ones", "zero", "raise"]
WithoutNan = Literal["max", "negative_zero", "raise"]
NegativeZero = Literal["keep", "positive"]
Unsigned = Literal["nan", "round_nan", "round_zero", "raise"]
ToOdd = Literal["max", "odd_code"]

CHOICES: dict[str, tuple[str, ...]] = {
    "overflow": ("saturate", "nonsaturate", "signed", "nan", "raise"),
    "inf": ("overflow", "saturate", "keep", "signed", "nan", "raise"),
    "nan": ("signed", "positive", "negative", "ones", "positive_ones", "zero", "raise"),
    "nan_fallback": ("max", "negative_zero", "raise"),
    "negative_zero": ("keep", "positive"),
    "negative_to_unsigned": ("nan", "round_nan", "round_zero", "raise"),
    "overflow_to_odd": ("max", "odd_code"),
}
"""Allowed values of each field of a `Policy`."""
OVERFLOWS = CHOICES["overflow"]


class SpecialCodes(NamedTuple):
    """Codes, including the sign, that a policy gives for one format and rounding."""

    over: int
    negative_over: int
    inf: int
    negative_inf: int
    nan: int
    negative_nan: int
    negative_zero: int  # code of a negative value that rounds to zero
    min_negative_magnitude: int  # smallest magnitude code that no negative number has; 0: no negative numbers


@dataclass(frozen=True, eq=False, repr=False)
class Policy(Value):
    """Rules for values that a format cannot represent.

    Parameters
    ----------
    name : str
        Name in messages; it does not affect the codes.
    overflow : {"saturate", "nonsaturate", "signed", "nan", "raise"}
        Result for a rounded magnitude above the maximum. ``saturate``: the maximum; ``nonsaturate``: Inf, else the NaN
        that `nan` selects, else the maximum; ``signed``: the same, but NaN has the sign of the number; ``nan``: NaN,
        else the maximum; ``raise``: a `ValueError`.
    inf : {"overflow", "saturate", "keep", "signed", "nan", "raise"}
        Result for Inf. ``overflow``: as for overflow; ``saturate``: the maximum; ``keep``: Inf, else the maximum;
        ``signed``: Inf, else NaN with its sign, else the maximum; ``nan``: NaN, else the maximum; ``raise``: a
        `ValueError`.
    nan : {"signed", "positive", "negative", "ones", "positive_ones", "zero", "raise"}
        Result for NaN. ``signed``: the quiet NaN with the sign of the input; ``positive``, ``negative``: the positive
        or the negative quiet NaN; ``ones``: all ones with the sign of the input (the quiet NaN in formats of more than
        8 bits); ``positive_ones``: all ones, positive; ``zero``: +0; ``raise``: a `ValueError`.
    nan_fallback : {"max", "negative_zero", "raise"}
        Result for NaN in a format without NaN. ``max``: +max (CUDA's ``cvt.satfinite``); ``negative_zero``: -0, or +0
        for -NaN (ml_dtypes); ``raise``: a `ValueError`.
    negative_zero : {"keep", "positive"}
        Result for -0 and for negative underflow if the format has -0: -0, or +0.
    negative_to_unsigned : {"nan", "round_nan", "round_zero", "raise"}
        Result for a negative value in an unsigned format. ``nan``: NaN; ``round_nan``, ``round_zero``: the value is
        rounded first, and gives NaN or zero if it is still negative; ``raise``: a `ValueError`.
    overflow_to_odd : {"max", "odd_code"}
        Result of rounding to odd where overflow would give Inf or NaN. ``max``: the maximum; ``odd_code``: whichever of
        the maximum and the next code is odd (P3109).
    always_saturate : Format or str, or sequence of them
        Formats that saturate regardless of `overflow`; used for PyTorch 2.13.
    source : str
        Software, hardware or standard that this policy reproduces.

    Raises
    ------
    ValueError
        If a choice is unknown.

    Examples
    --------
    >>> import lowprec as lp
    >>> from lowprec.format.policy import Policy
    >>> strict = Policy("strict", overflow="raise", nan="raise")
    >>> lp.encode([1.0, 500.0], "e4m3fn", policy=strict)
    Traceback (most recent call last):
    ValueError: encode: 500.0 at index 1 overflows e4m3fn (max 448), which policy 'strict' refuses (overflow='raise')
    """

    name: str = field(compare=False)
    overflow: Overflow = "saturate"
    inf: Infinity = "overflow"
    nan: NanCode = "signed"
    nan_fallback: WithoutNan = "max"
    negative_zero: NegativeZero = "keep"
    negative_to_unsigned: Unsigned = "nan"
    overflow_to_odd: ToOdd = "max"
    always_saturate: tuple[Format, ...] = ()
    source: str = field(default="user-defined", compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "always_saturate", formats_of("Policy: always_saturate", self.always_saturate))
        normalize_fields(self)
        for choice, allowed in CHOICES.items():
            check_choice(f"Policy {self.name}", choice, getattr(self, choice), allowed)

    @property
    def may_raise(self) -> bool:
        """Whether some inputs raise an error."""
        return "raise" in (self.overflow, self.inf, self.nan, self.nan_fallback, self.negative_to_unsigned)

    def overflow_of(self, fmt: Format) -> Overflow:
        """Return the overflow rule for a format."""
        if any(fmt.same_codes(other) for other in self.always_saturate):
            return "saturate"
        return self.overflow

    def codes(self, fmt: Format, *, clamp: tuple[bool, bool] = (False, False)) -> SpecialCodes:
        """Return the codes of a format's special cases.

        Parameters
        ----------
        fmt : Format
            The format.
        clamp : pair of bool
            Whether the rounding makes positive, and negative, overflow give the maximum where the policy alone would
            give Inf or NaN; see `Rounding.clamps`.
        """
        nan, negative_nan = self._nan(fmt)
        limit = (fmt.max_code, fmt.min_code)
        infinite = (nan, negative_nan)
        if fmt.inf_code is not None:
            infinite = (fmt.inf_code, fmt.negative_code(fmt.inf_code) if fmt.signed else nan)
        elif fmt.nan_code is None:
            infinite = limit
        signed = infinite if fmt.inf_code is not None or fmt.nan_code is None else fmt.nan_codes("signed")
        no_number = limit if fmt.nan_code is None else (nan, negative_nan)
        overflow = self.overflow_of(fmt)
        choices = {"saturate": limit, "nonsaturate": infinite, "signed": signed, "nan": no_number, "raise": limit}
        beyond = choices[overflow]
        kept = infinite if fmt.inf_code is not None else limit
        inf = {**choices, "overflow": beyond, "keep": kept}[self.inf]
        over = limit[0] if clamp[0] else beyond[0], limit[1] if clamp[1] else beyond[1]
        minus_zero, zero = fmt.zero_codes
        min_negative_magnitude = fmt.min_negative_magnitude
        if fmt.signed:
            keeps = self.negative_zero == "keep" if fmt.has_negative_zero else not fmt.has_zero
            zero = minus_zero if keeps else zero  # in a format without zero both codes are numbers
        else:
            min_negative_magnitude = int(self.negative_to_unsigned in ("round_nan", "round_zero") and fmt.has_zero)
            below = (
                zero
                if self.negative_to_unsigned == "round_zero" or (self.negative_to_unsigned == "round_nan" and clamp[1])
                else nan
            )
            over, inf = (over[0], below), (inf[0], zero if self.negative_to_unsigned == "round_zero" else nan)
        return SpecialCodes(*over, *inf, nan, negative_nan, zero, min_negative_magnitude)

    def _nan(self, fmt: Format) -> tuple[int, int]:
        """Return the codes of NaN and -NaN."""
        if fmt.nan_code is None:
            if self.nan_fallback == "negative_zero":
                return fmt.zero_codes
            return fmt.max_code, fmt.max_code
        return fmt.nan_codes(self.nan)


policies: Registry[Policy] = Registry("policy", Policy)
"""Catalogue of policies."""


def _add(name: str, *aliases: str, **choices: Any) -> None:
    policies.register(name, Policy(name, **choices), aliases)


_P3109 = "IEEE P3109 interim report v4.0, 4.7.5"
_add("ocp_sat", "avx10_sat", source="OCP OFP8 rev 1.0, saturating")
_add("ocp_nonsat", "ieee", "avx10", overflow="nonsaturate", source="OCP OFP8 rev 1.0, non-saturating; IEEE 754")
_add("ml_dtypes", overflow="nonsaturate", nan_fallback="negative_zero", source="ml_dtypes 0.6")
_add("torch_2_11", overflow="nonsaturate", nan="ones", source="PyTorch up to 2.11")
_add("torch_2_13", overflow="nonsaturate", nan="ones", always_saturate=(formats["e4m3fn"],), source="PyTorch 2.13")
_add("cuda_satfinite", "riscv_sat", nan="positive_ones", source="CUDA's cvt.rn.satfinite")
_add("onnx_sat", nan_fallback="negative_zero", source="ONNX 1.23 reference, saturate=True")
_add("p3109_satfinite", negative_to_unsigned="round_zero", overflow_to_odd="odd_code", source=_P3109)
_add("p3109_satpropagate", inf="keep", negative_to_unsigned="round_zero", overflow_to_odd="odd_code", source=_P3109)
_add(
    "p3109_satnone", overflow="nonsaturate", negative_to_unsigned="round_nan", overflow_to_odd="odd_code", source=_P3109
)
_add("riscv", overflow="nonsaturate", nan="positive_ones", source="RISC-V Zvfofp8min 0.9")
_add("riscv_bf16", "arm_osc0", overflow="nonsaturate", nan="positive", source="RISC-V Zvfbfmin; Arm FEAT_FP8, OSC = 0")
_add("arm_osc1", nan="positive", source="Arm FEAT_FP8, FPMR.OSC = 1")
_add("amd", overflow="signed", nan="negative", source="AMD RDNA4 v_cvt_sr_fp8_f32, FP16_OVFL = 0")
_add("amd_ovfl", inf="signed", nan="negative", source="AMD RDNA4 v_cvt_sr_fp8_f32, FP16_OVFL = 1")
_add("cann_sat", nan="zero", source="CANN's saturating casts to HiF8")
