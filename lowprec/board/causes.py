"""Causes of the differences on the board: the rule that a package follows where it differs from the entry."""

from __future__ import annotations

from typing import NamedTuple


class Cause(NamedTuple):
    """A cause of differences: title, description of the rule, and a calculation by hand for one input.

    `decides` names the document that decides which answer is wrong, if there is one.
    """

    title: str
    rule: str
    calculation: str
    decides: str = ""


CAUSES = {
    "A": Cause(
        "log2 in float32",
        "the exponent of a scale is ceil or floor of a float32 logarithm, which is rounded to an integer next to one",
        "amax = 1.75 + 2^-22, largest element 448: amax / 448 = 2^-8 * (1 + 2^-21 / 3.5) is above 2^-8, so the "
        "smallest power of two that is not below it is 2^-7. Its log2 is -8 + 2.0e-7; float32 numbers next to -8 are "
        "4.8e-7 apart, so it is rounded to -8",
    ),
    "B": Cause(
        "XLA's log2",
        "the scale is exp2(ceil(log2(amax / max))) by XLA's log2, which is above an integer for some powers of two",
        "0.0546875 / 448 = 7 * 2^-7 / (7 * 2^6) = 2^-13 exactly, and 448 * 2^-13 = 0.0546875: the scale 2^-13 holds "
        "amax without an error; the package's is 2^-12",
    ),
    "C": Cause(
        "a quotient as a product with a reciprocal",
        "`448.0 / tensor` is 448 * fl(1 / tensor) in PyTorch, rounded twice; `torch.div(448.0, tensor)` is not",
        "amax = 1.5: 448 / 1.5 = 298.66..., 1 / 1.5 = 0.66..., whose float32 is 0x1.555556p-1, above 2/3; times 448 it "
        "is rounded up to 0x1.2aaaacp+8, where 0x1.2aaaaap+8 is the nearest to 298.66...",
    ),
    "D": Cause(
        "division by a scale of zero",
        "a block or tensor of zeros has the scale 0, and 0 / 0 is NaN",
        "amax = 0, so the scale is 0 / max = 0, and every element is 0 / 0",
        "OCP MX v1.0 and OFP8 rev 1.0 define no NaN for a block of zeros",
    ),
    "E": Cause(
        "the scale's byte wraps",
        "the exponent of a scale is not limited below, and its byte wraps to 0xFF, NaN, or 0xFE, 2^127",
        "amax = 2^-126 in E2M1: the exponent of the scale is -126 - 2 = -128, and the byte -128 + 127 = -1 = 0xFF",
        "OCP MX v1.0, section 6.3: a scale below the range of E8M0 is its smallest number",
    ),
    "F": Cause(
        "2^-127 is stored, 2^-126 is divided by",
        "a divisor is at least 2^-126, float32's smallest normal number, while the stored scale is 2^-127",
        "amax = 2^-125 in E2M1: the scale is 2^(-125 - 2) = 2^-127, and 2^-125 / 2^-127 = 4; divided by 2^-126 it is "
        "2, which decodes to 2 * 2^-127 = 2^-126, half the value",
        "OCP MX v1.0, section 6.3: elements are divided by the scale that is stored",
    ),
    "G": Cause(
        "ties toward zero",
        "elements are the first of the nearest values (argmin, or a strict comparison), which rounds ties toward zero",
        "3.5 is the midpoint of E2M1's 3 (0x5) and 4 (0x6); nearest even gives 4, whose code is even",
    ),
    "H": Cause(
        "no saturation after the block scale underflowed",
        "x / (s * g) is coded without a limit at 6: from 7 on its code is 8, which is -0",
        "a scale that E4M3 rounds down from 2^-10 * 1.9 to 2^-9 * 0.5 leaves quotients up to 6 * 1.9 > 7",
    ),
    "I": Cause(
        "a small scale becomes 1, or 0",
        "a scale below a bound of the package is replaced by 1, or is 0 in E4M3: the block becomes zeros",
        "amax = 2^-55 with the scale 1: amax is below half of the smallest element, and is rounded to 0",
    ),
    "J": Cause(
        "the lowest binade of E8M0",
        "values between 2^-127 and 1.5 * 2^-127 are rounded up: the guard bit of a subnormal is taken from the place "
        "of its leading bit; zero, negative values and values below 2^-128 have rules of their own",
        "0x00500000 = 1.25 * 2^-127 lies 0.25 * 2^-127 above 2^-127 (code 0x00) and 0.75 * 2^-127 below 2^-126 "
        "(0x01): the nearest is 2^-127",
    ),
    "K": Cause(
        "NaN",
        "the payload or the sign of a NaN is kept, or NaN becomes another code; lowprec's policy has one code. The "
        "code may depend on the loop: a single NaN can have another code than one in an array",
        "",
    ),
    "L": Cause(
        "overflow is decided before rounding, or by its carry",
        "values that round beyond the largest number are compared with it before they are rounded",
        "E5M2 without saturation: 61440 is the midpoint of 57344 (0x7B) and 65536, which would be code 0x7C; ties to "
        "even give 0x7C, Inf. E4M3 (fn): 480 rounds to 480, code 0x7F if it were a number, so it overflows to NaN; 448 "
        "is 32 away from it",
        "ONNX, Cast: without saturation values out of range become Inf, or NaN in a format without Inf",
    ),
    "M": Cause(
        "-0 becomes +0, or the reverse",
        "the sign of a zero is dropped: `x >= 0`, or a sum with +0",
        "-0 compares equal to 0, and a sign of `x < 0` is then positive",
    ),
    "N": Cause(
        "beyond the largest scale",
        "the scale of an amax near FLT_MAX, or of a block with Inf or NaN, is Inf, NaN or the largest one",
        "",
    ),
    "P": Cause(
        "scales below 2^-127",
        "a scale is not limited by the smallest of E8M0, 2^-127",
        "amax = 1.875 * 2^-120 in E4M3: the exponent of the scale is -120 - 8 = -128, which E8M0 cannot store",
    ),
    "Q": Cause(
        "-2 in MXINT8",
        "values that round to -2 have its code 0x80; OCP MX v1.0 permits it, microxcaling and lowprec do not use it",
        "-1.9961889 * 2^k with the scale 2^k: 127.76 / 64 rounds to 128 / 64 = 2; lowprec saturates at 127 / 64",
    ),
    "O": Cause(
        "another order of float32 operations",
        "the same quotient is computed by other float32 operations, which are rounded elsewhere",
        "",
    ),
}  # fmt: skip
