"""An atlas of rounding errors: what every format does to every kind of data.

The measures are loaded when they are first used, for they load the kernels: lists of studies name distributions only.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .distributions import Distribution, distributions

if TYPE_CHECKING:
    from .errors import FormatErrors, Passed, errors_of, find_format, pass_through

__all__ = ["Distribution", "FormatErrors", "Passed", "distributions", "errors_of", "find_format", "pass_through"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.errors"), name)
