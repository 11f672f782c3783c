"""An atlas of rounding errors: what every format does to every kind of data."""

from .distributions import Distribution, distributions
from .errors import FormatErrors, Passed, errors_of, find_format, pass_through

__all__ = ["Distribution", "FormatErrors", "Passed", "distributions", "errors_of", "find_format", "pass_through"]
