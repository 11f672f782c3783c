"""NumPy and ml_dtypes dtypes for the codes of a format."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from .catalogue import formats
from .format import Format

_NUMPYS = ("float16", "float32", "int8")


@functools.cache
def dtype_of(f: Format) -> np.dtype[Any] | None:
    """Return the dtype of NumPy or ml_dtypes that has a format's codes, or None if there is none.

    Examples
    --------
    >>> dtype_of(formats["e5m2"]), dtype_of(formats["e5m6"])
    (dtype(float8_e5m2), None)
    """
    import ml_dtypes

    for name in formats:
        if formats[name].same_codes(f):
            for known in (name, *formats.aliases(name)):
                if known in _NUMPYS:
                    return np.dtype(known)
                if hasattr(ml_dtypes, known):
                    found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, known))
                    return found
    return None
