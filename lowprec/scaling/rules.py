"""Scale rules, by which the scale of a block is computed: `AmaxRule` has kernels, `PythonRule` is any Python function.

**A scale multiplies codes back to values**: ``x ~ scale * decode(codes)`` (DeepGEMM's ``sf``; TransformerEngine calls
the inverse of this "scale"). All computation below is in float32, each operation rounded to nearest even; powers of two
are taken from the bits, never from a logarithm. `amax` is the largest magnitude of the block, `max` the largest element
of the format, `emax` its exponent.

Computation of a scale from amax, by scale format (`scale_calculations`):

============ ================= =========================================================================================
scale format scale_calculation s (and the factor of values, if it is not 1 / s)
============ ================= =========================================================================================
float32      amax/max          s = amax / max, at least 2^-149
float32      amax*(1/max)      s = amax * fl(1 / max), at least 2^-149
float32      max/amax          m = min(max / amax, FLT_MAX); x * m; s = 1 / m
float32      amax/max          with scale_application "max/amax": s as above, but x * (max / amax)
e8m0fnu      floor             s = 2^(floor(log2 amax) - emax): OCP MX v1.0, section 6.3; the largest may saturate
e8m0fnu      ceil              s = 2^(ceil(log2 amax) - emax)
e8m0fnu      even              as floor, with amax rounded to the element's mantissa bits, half up
e8m0fnu      even_1bit         as even, with one mantissa bit for every element format
e8m0fnu      amax/max          s = the smallest power of two not below amax / max ("round up", RCEIL)
e8m0fnu      amax*(1/max)      as amax/max, of amax * fl(1 / max)
e8m0fnu      max/amax          m = min(max / amax, FLT_MAX) with its mantissa cleared; x * m; s = 1 / m
others       te_folded         e = b * max / amax_tensor, g = 1 / e; s = S(amax * (e * fl(1 / max))); x * (1 / (s * g))
others       direct            e, g as above; s = S(amax / max * e); x * (1 / (s * g))
others       two_quotients     g = amax_tensor / (b * max); s = S(amax / max / g); x * (1 / g / s)
others       one_quotient      g as above; s = S(amax / (max * g)), S(1) if that is 0; x / (s * g)
others       block_scale_only  s = S(amax / max); x * (1 / s), or x / s; without a scale of the tensor
============ ================= =========================================================================================

`b` is `max_block_scale`; `amax_tensor` and `g` are those of the whole tensor, or of each row with
``tensor_scale="row"``.

fl(...) is a value rounded to float32; S(...) rounds to the scale format, such as E4M3, and saturates. Where the scale
is a power of two, ``x / s`` and ``x * (1 / s)`` are the same number. Inverses that overflow become FLT_MAX, and scales
or divisors that underflow 2^-149, so that no zero becomes NaN.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from .._checks import check_choice, check_int, check_positive, check_positive_float32
from .._values import Value, normalize_fields
from ..definitions.code import hash_of_source
from ..format.catalogue import Format, formats

ScaleApplication = Literal["divide", "reciprocal", "max/amax"]
SCALE_APPLICATIONS: tuple[ScaleApplication, ...] = get_args(ScaleApplication)
FourOverSix = Literal["mae", "mse"]
SecondLevel = Literal["tensor", "row"]
FLOAT32, E4M3, E8M0 = formats["float32"], formats["e4m3fn"], formats["e8m0fnu"]
_OF_FLOAT32 = ("amax/max", "amax*(1/max)", "max/amax")
_OF_POWERS = ("floor", "ceil", "even", "even_1bit", "amax/max", "amax*(1/max)", "max/amax")
_OF_OTHERS = ("te_folded", "direct", "two_quotients", "one_quotient", "block_scale_only")
SPECIALS: dict[str, tuple[float, float]] = {  # scale, and multiplier (or divisor) of values
    "one": (1.0, 1.0),
    "nan": (np.nan, np.nan),
    "largest": (2.0**127, 2.0**-127),
    "smallest": (2.0**-127, 2.0**127),
    "smallest_normal": (2.0**-6, 1.0),
    "saturate": (np.inf, 0.0),  # the largest number of the scale format
}
"""Scales that a block of zeros, with Inf or with NaN may get in place of the formula's result."""


def special(name: str, scale_format: Format) -> tuple[float, float]:
    """Return the two numbers of an entry of `SPECIALS`, for a scale format."""
    return (scale_format.max, 1 / scale_format.max) if name == "saturate" else SPECIALS.get(name, (1.0, 1.0))


def are_powers(scale_format: Format) -> bool:
    """Return whether all scales of a format are powers of two, as in E8M0."""
    return scale_format.mantissa_bits == 0 and not scale_format.is_table


def scale_calculations(scale_format: Format) -> tuple[str, ...]:
    """Return the names of the calculations for scales of a format.

    Examples
    --------
    >>> scale_calculations(formats["float32"])
    ('amax/max', 'amax*(1/max)', 'max/amax')
    >>> scale_calculations(formats["ue5m3"]) == scale_calculations(formats["e4m3fn"])
    True
    """
    if scale_format == FLOAT32:
        return _OF_FLOAT32
    return _OF_POWERS if are_powers(scale_format) else _OF_OTHERS


@dataclass(frozen=True, eq=False, repr=False)
class AmaxRule(Value):
    """A scale from the largest magnitude of its block: the rules of published quantizers, computed by kernels.

    Parameters
    ----------
    scale_calculation : str
        Computation of a scale from amax: one of ``scale_calculations(scale_format)``, see the module's table; by
        default the first for the scale format.
    scale_application : {"divide", "reciprocal", "max/amax"}
        How float32 scales are applied: ``x / s``, or ``x * min(fl(1 / s), FLT_MAX)``; for ``amax/max`` also
        ``x * fl(max / amax)``, which differs from both.
    amax_floor : float
        Lower bound of amax. Released kernels use 1e-4, which is harmless for activations and wrong for gradients of
        1e-5 to 1e-8; the default is 0.
    min_scale_exponent : int
        Lower bound of the exponent of a power-of-two scale: -127, or -126 if it must be a normal float32.
    min_scale : float
        Lower bound of a scale in a format with mantissa bits.
    max_block_scale : float, optional
        Block scale that the tensor scale maps the largest block to: by default the largest number of the scale format,
        such as 448; 256 leaves headroom of 1.5 times.
    tensor_scale : {"tensor", "row"}
        Values that share a scale on top of the block scales, if the arithmetic has one: the whole tensor, or a row. A
        row runs along the blocks: it is a column of the matrix if blocks are pieces of columns, such as 16x1.
    four_over_six : {"mae", "mse"}, optional
        Error measure of four over six, which quantizes each block with s and with 1.5 s (which maps its largest value
        to 4 instead of 6) and keeps the result of smaller error: the sum, in order, of magnitudes or of squares.
    zero_block, inf_block, nan_block : str
        Scale of a block of zeros (only if `amax_floor` is 0), of one with Inf, and of one with NaN: a key of
        `SPECIALS`, or ``"rule"`` for the result of the formula.

    Raises
    ------
    ValueError
        If a field is out of range, or fields contradict each other.
    """

    scale_calculation: str = "amax/max"
    scale_application: ScaleApplication = "divide"
    amax_floor: float = 0.0
    min_scale_exponent: int = -126
    min_scale: float = 0.0
    max_block_scale: float | None = None
    tensor_scale: SecondLevel = "tensor"
    four_over_six: FourOverSix | None = None
    zero_block: str = "one"
    inf_block: str = "nan"
    nan_block: str = "nan"

    def __post_init__(self) -> None:
        normalize_fields(self)
        check_choice(
            "AmaxRule",
            "scale_calculation",
            self.scale_calculation,
            tuple(dict.fromkeys(_OF_FLOAT32 + _OF_POWERS + _OF_OTHERS)),
        )
        check_choice("AmaxRule", "scale_application", self.scale_application, SCALE_APPLICATIONS)
        check_positive_float32("AmaxRule", "amax_floor", self.amax_floor, zero=True)
        check_int("AmaxRule", "min_scale_exponent", self.min_scale_exponent, -127, -126)
        check_positive("AmaxRule", "min_scale", self.min_scale, zero=True)
        if self.max_block_scale is not None:
            check_positive("AmaxRule", "max_block_scale", self.max_block_scale)
        check_choice("AmaxRule", "tensor_scale", self.tensor_scale, get_args(SecondLevel))
        if self.tensor_scale == "row" and not self.has_tensor_scale:
            raise ValueError(
                f"AmaxRule: scale_calculation must have two levels of scales with tensor_scale='row', "
                f"got {self.scale_calculation!r}"
            )
        if self.four_over_six is not None:
            check_choice("AmaxRule", "four_over_six", self.four_over_six, get_args(FourOverSix))
            if self.tensor_scale == "row":
                raise ValueError(
                    f"AmaxRule: four_over_six must be None with tensor_scale='row', got {self.four_over_six!r}"
                )
            if self.scale_calculation != "direct":
                raise ValueError(
                    f"AmaxRule: scale_calculation must be 'direct' with four_over_six={self.four_over_six!r}, "
                    f"got {self.scale_calculation!r}"
                )
        for case in ("zero_block", "inf_block", "nan_block"):
            check_choice("AmaxRule", case, getattr(self, case), ("rule", *SPECIALS))
        for case in ("inf_block", "nan_block"):
            if getattr(self, case) == "rule":
                raise ValueError(f"AmaxRule: {case} must be one of {', '.join(SPECIALS)}, got 'rule'")

    def check(self, scale_format: Format) -> None:
        """Raise a ValueError unless the rule computes scales of a format."""
        if scale_format.is_table:
            raise ValueError(f"AmaxRule: scale_format must have exponent and mantissa, got the table {scale_format}")
        check_choice(
            f"AmaxRule with {scale_format} scales",
            "scale_calculation",
            self.scale_calculation,
            scale_calculations(scale_format),
        )
        if self.scale_application == "max/amax" and (scale_format, self.scale_calculation) != (FLOAT32, "amax/max"):
            raise ValueError(
                "AmaxRule: with scale_application='max/amax', scales must be float32 and scale_calculation 'amax/max', "
                f"got {scale_format} and {self.scale_calculation!r}"
            )
        for name in ("min_scale", "max_block_scale"):
            if (
                scale_calculations(scale_format) == _OF_OTHERS
                and (value := getattr(self, name) or 0.0) > scale_format.max
            ):
                raise ValueError(
                    f"AmaxRule: {name} must be at most {scale_format}'s {scale_format.max:g}, got {value!r}"
                )

    @property
    def has_tensor_scale(self) -> bool:
        """Whether the rule also computes a tensor scale or row scales, as NVFP4's rules do."""
        return self.scale_calculation in _OF_OTHERS and self.scale_calculation != "block_scale_only"

    @property
    def has_row_scales(self) -> bool:
        """Whether the rule also computes row scales, as that of row-scaled NVFP4 does."""
        return self.tensor_scale == "row"

    def __str__(self) -> str:
        return repr(self)


@dataclass(frozen=True, eq=False, repr=False)
class PythonRule(Value):
    """A scale rule given as a Python function; rules are equal if the functions' modules, names and sources are.

    The function is called as ``rule(blocks, element_format, scale_format)``. ``blocks`` is a float32 array of all
    blocks of the tensor, [rows of blocks, blocks of a row, values of a block]. Blocks of 1xN and of Nx1 run along
    axis 1: a matrix with Nx1 blocks is passed transposed, so that one rule serves a product and its gradients. Ragged
    ends are padded with zeros; blocks with NaN or Inf are zeros.

    The function returns positive, finite block scales [rows of blocks, blocks of a row], or a tuple of those and a
    tensor scale: a number, one for each row of blocks [rows of blocks, 1], or one for each column of blocks
    [1, blocks of a row]. A block of zeros gets the scale 1, whatever the function returns. Block scales are rounded to
    the scale format, to nearest, and saturate at its smallest and largest number; a rule with another rounding returns
    numbers of the format.

    Parameters
    ----------
    module, qualname : str
        Module and qualified name of the function.
    code : str
        Hash of the sources of the function and of everything that it uses, in its file and in the user's other files.
    file : str
        File of the function, for a process that cannot import the module by its name; not part of equality.

    Notes
    -----
    `Quantizer` converts a function to a rule (``Quantizer(rule=f)``). A pickle holds the function's name; unpickling
    imports the module or loads the file, and refuses a function whose source differs.
    """

    module: str
    qualname: str
    code: str
    file: str = field(default="", compare=False)

    @classmethod
    def of(cls, function: Callable[..., Any] | PythonRule) -> PythonRule:
        """Return the rule of a function that is defined at the top of a file.

        Raises
        ------
        ValueError
            If the function cannot be found again: a lambda, a nested or bound function, or one typed into a prompt.
        TypeError
            If `function` is not a function.
        """
        if isinstance(function, PythonRule):
            return function
        module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
        if not callable(function) or not inspect.isfunction(inspect.unwrap(function)):
            raise TypeError(f"Quantizer: rule must be an AmaxRule or a Python function, got {function!r}")
        if module is None or "<" in name or "." in name:
            raise ValueError(
                "Quantizer: rule must be a function at module level, where worker processes can find it, "
                f"got {function!r}"
            )
        code = getattr(inspect.unwrap(function), "__code__", None)
        file = getattr(code, "co_filename", None) or getattr(sys.modules.get(module), "__file__", None)
        if file is None or not Path(file).is_file():
            raise ValueError(
                "Quantizer: rule must be a function of a file, where worker processes can find it, "
                f"got {name!r} of {module}"
            )
        rule = cls(module, name, hash_of_source(file, name), str(Path(file).resolve()))
        rule.__dict__["_function"] = function
        return rule

    def __call__(self, *args: Any) -> Any:
        """Call the function; the first call in a process imports it."""
        function = self.__dict__.get("_function")
        if function is None:
            function = self.__dict__["_function"] = self._load()
        try:
            return function(*args)
        except Exception as error:
            raise ValueError(
                f"scale rule {self} raised {type(error).__name__}: {error} "
                "(it is called as rule(blocks, element_format, scale_format))"
            ) from error

    def _load(self) -> Callable[..., Any]:
        module = _imported(self.module, self.qualname) or _of_file(self)
        file = str(getattr(module, "__file__", self.file))
        if (now := hash_of_source(file, self.qualname)) != self.code:
            raise ValueError(
                f"scale rule {self} has changed since it was written: the hash of its source was {self.code}, "
                f"in {file} it is {now}"
            )
        function: Callable[..., Any] = getattr(module, self.qualname)
        return function

    def __str__(self) -> str:
        return f"{Path(self.file).name or self.module}:{self.qualname}"


def _imported(module: str, name: str) -> Any:
    """Return the module of a function, or None if it cannot be imported; ``__main__`` differs between processes."""
    found = None if module == "__main__" else sys.modules.get(module)
    if found is None and module != "__main__":
        try:
            found = importlib.import_module(module)
        except ImportError:
            return None
    return found if hasattr(found, name) else None


def _of_file(rule: PythonRule) -> Any:
    """Load the file of a rule as a separate module."""
    name = f"lowprec_rule_{hashlib.sha256(rule.file.encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, rule.file) if Path(rule.file).is_file() else None
    if spec is None or spec.loader is None:
        raise ImportError(
            f"scale rule {rule} cannot be loaded: neither the module {rule.module!r} nor the file {rule.file!r} exists"
        )
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
