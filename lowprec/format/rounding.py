"""Rounding modes as data.

A value between two codes is n + nu quanta, ``0 <= nu < 1``. Every mode adds an increment to nu and truncates; a
`Rounding` holds the increment as the leading bits of a 32-bit word.

==================  =====================================  ==============================================
rounding            away from zero if                      also called
==================  =====================================  ==============================================
``nearest_even``    nu > 1/2, or nu = 1/2 and n odd        ``rne``
``nearest_away``    nu >= 1/2                              ``rna``
``toward_zero``     never                                  ``rtz``
``up``              nu > 0 and the value is positive       ``toward_positive``, ``ru``
``down``            nu > 0 and the value is negative       ``toward_negative``, ``rd``
``to_odd``          nu > 0 and n even                      ``rto``
``stochastic``      floor(nu 2^N) + R >= 2^N, N = 24       ``stochastic_a``
``stochastic_b``    floor(nu 2^(N+1)) + 2R + 1 >= 2^(N+1)
``stochastic_c``    rne(nu 2^N) + R >= 2^N
==================  =====================================  ==============================================

"n odd" is the parity of the code, which matters for formats without fraction bits. R is the leading N bits of
``lowprec.kernels.cast.random_bits.random_word`` for the seed and the index of the element: results do not depend on
threads, chunks or order. The variants are StochasticA, B and C of IEEE P3109 (interim report v4.0, 4.7.4): A never
rounds up a fraction below 2^-N, B has no bias for fractions that N bits cannot distinguish, C first rounds the fraction
to N bits. ``Rounding.stochastic(bits, variant)`` gives any other number of bits.

Instructions that take their random bits as an operand are StochasticA with fewer bits. A cast takes these bits as
``random_words=``, with R in the leading bits of a word:

=================  ====  ==========================================================================
rounding           N     instruction, and its R
=================  ====  ==========================================================================
``avx10_bias``     8     VCVTBIASPH2HF8 and BF8: the low byte of each 16-bit lane
``amd_sr_e4m3``    20    v_cvt_sr_fp8_f32: the leading bits of the seed (RDNA4; CDNA3 in FNUZ)
``amd_sr_e5m2``    21    v_cvt_sr_bf8_f32: as ``amd_sr_e4m3``
``ptx_rs_f16``     13    cvt.rs.f16x2: the low 13 bits of each half of rbits, the upper half for a
``ptx_rs_bf16``    16    cvt.rs.bf16x2: each half of rbits; to FP8 and FP6, four elements share two
                         halves, and PTX does not document how a pair shares one
=================  ====  ==========================================================================
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from .._checks import check_choice, check_int
from .._values import Value, normalize_fields
from ..registry import Registry, registry_cache
from .catalogue import Format
from .policy import OVERFLOWS, Policy
from .policy import SpecialCodes as SpecialCodes
from .policy import policies as policies

_ALL = 0xFFFFFFFF
_BELOW_HALF = 0x7FFFFFFF
MAX_RANDOM_BITS = 24


@dataclass(frozen=True, eq=False, repr=False)
class Rounding(Value):
    """A rounding mode: an increment of the fraction before truncation, as leading bits of a 32-bit word.

    Parameters
    ----------
    name : str
        Name; it does not affect the result: ``Rounding("nearest_even")`` without further fields has increment 0 and so
        rounds toward zero.
    positive_increment, negative_increment : int
        Increment for positive and negative values, as 32 fraction bits: ``2^31`` is one half. The last bit repeats
        forever.
    ties_even : bool
        Whether an increment that ends in a one is rounded up for odd codes: ``2^31 - 1`` is round to nearest, ties
        to even.
    sticky_to_lsb : bool
        Whether an inexact result with an even code is changed to the next code (round to odd); excludes
        increments and random bits.
    random_bits : int
        Number of random bits added; 0 for none.
    variant : {"A", "B", "C"}
        Variant of stochastic rounding in P3109.

    Examples
    --------
    >>> import lowprec as lp
    >>> from lowprec.format.rounding import Rounding
    >>> few = Rounding.stochastic(bits=3, variant="B")
    >>> lp.encode([1.1] * 6, "e4m3fn", rounding=few, seed=1).tolist()
    [57, 57, 57, 57, 57, 57]
    """

    name: str = field(compare=False)
    positive_increment: int = 0
    negative_increment: int = 0
    ties_even: bool = False
    sticky_to_lsb: bool = False
    random_bits: int = 0
    variant: Literal["A", "B", "C"] = "A"

    def __post_init__(self) -> None:
        normalize_fields(self)
        caller = f"Rounding {self.name}"
        for word in ("positive_increment", "negative_increment"):
            check_int(caller, word, getattr(self, word), 0, _ALL)
        check_int(caller, "random_bits", self.random_bits, 0, MAX_RANDOM_BITS)
        check_choice(caller, "variant", self.variant, ("A", "B", "C"))
        if self.sticky_to_lsb and (
            self.positive_increment or self.negative_increment or self.ties_even or self.random_bits
        ):
            raise ValueError(
                f"{caller}: with sticky_to_lsb=True, positive_increment, negative_increment, ties_even and random_bits "
                f"must be 0, got {self!r}"
            )

    @classmethod
    def stochastic(cls, bits: int = MAX_RANDOM_BITS, variant: Literal["A", "B", "C"] = "A") -> Rounding:
        """Return stochastic rounding with `bits` random bits.

        Parameters
        ----------
        bits : int
            Number of random bits, 1 to 24.
        variant : {"A", "B", "C"}
            Variant in P3109.

        Raises
        ------
        ValueError
            If `bits` or `variant` is not one of these.
        """
        bits = check_int("stochastic rounding", "bits", bits, 1, MAX_RANDOM_BITS)
        variant = check_choice("stochastic rounding", "variant", variant, ("A", "B", "C"))
        return cls(f"stochastic_{variant.lower()}{bits}", random_bits=bits, variant=variant)

    @property
    def is_stochastic(self) -> bool:
        """Whether the rounding needs a seed."""
        return self.random_bits > 0

    @property
    def is_nearest_even(self) -> bool:
        """Whether this is round to nearest, ties to even, for which the fastest kernels exist."""
        fixed = self.ties_even and not (self.sticky_to_lsb or self.is_stochastic)
        return fixed and self.positive_increment == self.negative_increment == _BELOW_HALF

    def clamps(self, fmt: Format, policy: Policy) -> tuple[bool, bool]:
        """Return whether positive overflow, and whether negative overflow, gives the maximum instead of Inf or NaN."""
        if self.sticky_to_lsb:
            # The neighbour with the odd code is the maximum in unsigned formats with Inf, else Inf or NaN.
            top = policy.overflow_to_odd == "max" or (fmt.inf_code is not None and fmt.max_code % 2 == 1)
            return top, top and fmt.signed
        cuts = not (self.is_stochastic or self.ties_even)
        return cuts and self.positive_increment == 0, cuts and self.negative_increment == 0


roundings: Registry[Rounding] = Registry("rounding", Rounding)
"""Catalogue of rounding modes."""


def _add(rounding: Rounding, *aliases: str) -> None:
    roundings.register(rounding.name, rounding, aliases)


_add(Rounding("nearest_even", _BELOW_HALF, _BELOW_HALF, ties_even=True), "rne")
_add(Rounding("nearest_away", 0x80000000, 0x80000000), "rna")
_add(Rounding("toward_zero"), "rtz")
_add(Rounding("up", _ALL, 0), "toward_positive", "ru")
_add(Rounding("down", 0, _ALL), "toward_negative", "rd")
_add(Rounding("to_odd", sticky_to_lsb=True), "rto")
_add(replace(Rounding.stochastic(variant="A"), name="stochastic"), "stochastic_a", "sr")
_add(replace(Rounding.stochastic(variant="B"), name="stochastic_b"))
_add(replace(Rounding.stochastic(variant="C"), name="stochastic_c"))
_add(replace(Rounding.stochastic(8), name="avx10_bias"))
_add(replace(Rounding.stochastic(20), name="amd_sr_e4m3"))
_add(replace(Rounding.stochastic(21), name="amd_sr_e5m2"))
_add(replace(Rounding.stochastic(13), name="ptx_rs_f16"))
_add(replace(Rounding.stochastic(16), name="ptx_rs_bf16"), "ptx_rs_f8")


def resolve(
    fmt: Format,
    rounding: str | Rounding | None = None,
    policy: str | Policy | None = None,
    overflow: str | None = None,
) -> tuple[Rounding, Policy]:
    """Return the rounding and the policy that a cast's options select.

    Parameters
    ----------
    fmt : Format
        Format of the codes. It sets the default policy: ``ocp_sat`` up to 8 bits, ``ieee`` above.
    rounding : str or Rounding, optional
        Name in `roundings`, or a custom `Rounding`; the format's default if omitted.
    policy : str or Policy, optional
        Name in `policies`, or a custom `Policy`.
    overflow : {"saturate", "nonsaturate", "signed", "nan", "raise"}, optional
        Overflow rule that replaces the policy's.

    Raises
    ------
    ValueError
        If an option is unknown; the message quotes it and lists the allowed ones.
    """
    mode = roundings.get(fmt.default_rounding if rounding is None else rounding)
    if policy is None:
        policy = "ocp_sat" if fmt.bits <= 8 else "ieee"
    chosen = policies.get(policy)
    if overflow is not None:
        if overflow not in OVERFLOWS:
            raise ValueError(f"overflow must be one of {', '.join(OVERFLOWS)}, got {overflow!r}")
        chosen = replace(chosen, overflow=overflow, always_saturate=())  # type: ignore[arg-type]  # just checked
    return mode, chosen


@registry_cache(512)
def special_codes(fmt: Format, rounding: Rounding, policy: Policy) -> SpecialCodes:
    """Return the codes for values that the format cannot represent."""
    return policy.codes(fmt, clamp=rounding.clamps(fmt, policy))
