"""Storage of moments and master weights between steps: in a format, or in blocks that share a scale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lowprec._values import Value
from lowprec.cast import casts as cast
from lowprec.format.catalogue import Format, formats
from lowprec.recipe import TensorSpec
from lowprec.recipe.description import State, state_of
from lowprec.recipe.operands import quantize_operand

Array = npt.NDArray[Any]
_BF16, _FLOAT32 = formats["bfloat16"], formats["float32"]


@dataclass(frozen=True, eq=False, repr=False)
class StateFormat(Value):
    """Format in which a state of the optimizer (a moment or the master weights) is stored between steps.

    Parameters
    ----------
    kept : TensorSpec or "float64" or str
        Storage of the values: a tensor specification of a recipe, such as "bfloat16" or "e4m3fn 1x128", or "float64".

    Examples
    --------
    >>> kept = StateFormat("e4m3fn tensor")
    >>> stored = kept.empty(np.zeros((1, 3), np.float32))
    >>> kept.store(np.array([[448.0, 3.1, 1e-9]], np.float32), stored)
    >>> kept.load(stored)
    array([[448.,   3.,   0.]], dtype=float32)
    """

    kept: State

    def __post_init__(self) -> None:
        object.__setattr__(self, "kept", state_of(self.kept))

    @property
    def _spec(self) -> TensorSpec | None:
        """Tensor specification, None for float64."""
        return None if isinstance(self.kept, str) else self.kept

    def _is_cast(self, to: Format) -> bool:
        """Return whether values are cast to a format, regardless of its name."""
        return self._spec is not None and self._spec.plain and self._spec.format.same_codes(to)

    @property
    def as_codes(self) -> bool:
        """Whether the stored array holds codes, as for bfloat16; otherwise it holds values of the format."""
        return self._is_cast(_BF16)

    @property
    def exact(self) -> bool:
        """Whether values are stored without rounding."""
        return self._spec is None or self._is_cast(_FLOAT32)

    def empty(self, weight: Array) -> Array:
        """Return zeros in the storage of a weight's state.

        Raises
        ------
        ValueError
            If only one of the weight and the format is float64.
        """
        wide = weight.dtype == np.float64
        if (self._spec is None) != wide:
            raise ValueError(
                f"weights must be float64 with state in float64 only, got {weight.dtype} with state in {self.kept}"
            )
        return np.zeros(weight.shape, np.uint16 if self.as_codes else weight.dtype)

    def load(self, stored: Array) -> Array:
        """Return the values, which are the stored array itself unless it holds codes."""
        return cast.decode(stored, _BF16) if self.as_codes else stored

    def store(self, values: Array, into: Array) -> None:
        """Round values and store them in an array that `empty` returned."""
        if self.as_codes:
            cast.encode(values, _BF16, out=into)
        else:
            into[...] = values
            self.round(into)

    def round(self, values: Array) -> None:
        """Round values in place to values that can be stored."""
        if self._spec is None or self.exact or not values.size:
            return
        if self._spec.plain:
            cast.round_to(values, self._spec.format, out=values)
        else:
            values[...] = quantize_operand(self._spec, values).dequantize()

    def bits_per_value(self, shape: tuple[int, ...]) -> float:
        """Return the number of bits per value, including its share of the scales."""
        if self._spec is None:
            return 64.0
        if self._spec.plain:
            return float(self._spec.format.bits)
        return quantize_operand(self._spec, np.zeros(shape, np.float32)).bits_per_value
