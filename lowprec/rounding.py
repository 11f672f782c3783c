"""Rounding modes, and what happens to numbers that a format cannot hold: policies as data.

A `Policy` says what becomes of a rounded magnitude beyond the maximum, of Inf and of NaN. Presets carry the
names of those whose behaviour they reproduce:

=============  ==============================  ============================  ===================================
policy         rounded value > max             Inf                           NaN
=============  ==============================  ============================  ===================================
``ocp_sat``    +-max                           +-max                         NaN; formats without: +max
``ocp_nonsat`` Inf; formats without: NaN;      as overflow                   NaN; formats without: +max
               formats without either: +-max
``ieee``       the same as ``ocp_nonsat``: IEEE 754's own rule where there is an Inf
``ml_dtypes``  as ``ocp_nonsat``               as overflow                   NaN; formats without: -0 (-NaN: +0)
=============  ==============================  ============================  ===================================

ml_dtypes' own e8m0fnu is outside this: it rounds ties up, sends 0 to NaN and misrounds values below 2^-126.

"Overflow" is judged after rounding (OFP8 rev 1.0): 464 still rounds down to E4M3's 448. A NaN keeps its sign
where the format has NaN.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from .formats import Format
from .registry import Registry

ROUNDINGS = ("nearest_even",)
"""Rounding modes that `lowprec.encode` knows."""

Overflow = Literal["saturate", "nonsaturate"]
OVERFLOWS: tuple[Overflow, ...] = ("saturate", "nonsaturate")


class SpecialCodes(NamedTuple):
    """Codes that a policy gives for one format; the sign is added to `over` and `inf`."""

    over: int
    inf: int
    nan: int
    negative_nan: int


@dataclass(frozen=True)
class Policy:
    """What becomes of values that a format cannot hold.

    Parameters
    ----------
    name : str
        Its name in the catalogue.
    overflow : {"saturate", "nonsaturate"}
        Rounded magnitudes beyond the maximum, Inf included: to the maximum, or to Inf (else NaN, else the maximum).
    nan_without_nan : {"max", "negative_zero"}
        What NaN becomes in a format that has none: CUDA's ``cvt.satfinite`` gives +max, ml_dtypes gives -0.
    """

    name: str
    overflow: Overflow
    nan_without_nan: Literal["max", "negative_zero"] = "max"

    def codes(self, fmt: Format) -> SpecialCodes:
        """Resolve the policy for a format into magnitude codes."""
        if fmt.nan_code is not None:
            nan, negative_nan = fmt.nan_code, fmt.nan_code | fmt.sign_mask
        elif self.nan_without_nan == "max":
            nan = negative_nan = fmt.max_code
        else:
            nan, negative_nan = fmt.sign_mask, 0
        over = fmt.max_code
        if self.overflow == "nonsaturate":
            if fmt.inf_code is not None:
                over = fmt.inf_code
            elif fmt.nan_code is not None:
                over = fmt.nan_code
        return SpecialCodes(over, over, nan, negative_nan)


policies: Registry[Policy] = Registry("policy", Policy)
policies.register("ocp_sat", Policy("ocp_sat", "saturate"))
policies.register("ocp_nonsat", Policy("ocp_nonsat", "nonsaturate"), ["ieee"])
policies.register("ml_dtypes", Policy("ml_dtypes", "nonsaturate", "negative_zero"))


def resolve(
    fmt: Format, rounding: str = "nearest_even", policy: str | Policy | None = None, overflow: str | None = None
) -> Policy:
    """Check a cast's options and return the policy they mean.

    Parameters
    ----------
    fmt : Format
        Decides the default policy: ``ocp_sat`` up to 8 bits, ``ieee`` above.
    rounding : str
        One of `ROUNDINGS`.
    policy : str or Policy, optional
        Name in `policies`, or a policy of one's own.
    overflow : {"saturate", "nonsaturate"}, optional
        Replaces the policy's own.

    Raises
    ------
    ValueError
        For anything unknown; the message quotes it and lists what is allowed.
    """
    if rounding not in ROUNDINGS:
        raise ValueError(f"rounding={rounding!r}: known: {', '.join(ROUNDINGS)}")
    if policy is None:
        policy = "ocp_sat" if fmt.bits <= 8 else "ieee"
    chosen = policies.get(policy)
    if overflow is None:
        return chosen
    for known in OVERFLOWS:
        if overflow == known:
            return replace(chosen, overflow=known)
    raise ValueError(f"overflow={overflow!r}: one of {', '.join(OVERFLOWS)}")
