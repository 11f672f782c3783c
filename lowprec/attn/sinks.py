"""Attention sinks: one logit per head, whose exponential is added to the sum of the softmax, without a value vector."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .._values import Value
from .sums import multiply_add

Floats = NDArray[np.float32]
_LOG2_E = np.float32(math.log2(math.e))


class Sink(Value):
    """Base class of the rules by which a sink is added to a row's sum after the last tile."""

    #: Whether the sum of a row without a maximum is replaced by the term of the sink, even if the sum is NaN.
    replaces_empty = False
    #: Whether the term of the sink is part of the log-sum-exp.
    in_lse = True

    @abstractmethod
    def argument(
        self, maxima: Floats, shifts: Floats, sink: np.float32, scale: np.float32, offset: float
    ) -> tuple[Floats, Floats]:
        """Return the arguments of 2^x in the terms that are added to the sums [M], and the maxima.

        `shifts` are ``maxima * scale - offset``, with a maximum of 0 for rows without a key.
        """


@dataclass(frozen=True, eq=False, repr=False)
class ShiftedSink(Sink):
    """Sink with the term 2^(sink * log2(e) - shift), with one fused multiply-add; an empty row has the maximum 0."""

    def argument(
        self, maxima: Floats, shifts: Floats, sink: np.float32, scale: np.float32, offset: float
    ) -> tuple[Floats, Floats]:
        """Return the argument of 2^x and the maxima."""
        return multiply_add(_LOG2_E, sink, -shifts), np.where(maxima == -np.inf, np.float32(0), maxima)


@dataclass(frozen=True, eq=False, repr=False)
class OffsetSink(Sink):
    """Sink with the term 2^(sink * log2(e) - maximum * scale + offset); each operation of the exponent is rounded.

    In a row without a key, the sink takes the place of the maximum.
    """

    replaces_empty = True

    def argument(
        self, maxima: Floats, shifts: Floats, sink: np.float32, scale: np.float32, offset: float
    ) -> tuple[Floats, Floats]:
        """Return the argument of 2^x and the maxima."""
        x = sink * _LOG2_E - maxima * scale + np.float32(offset)
        is_empty = maxima == -np.inf
        own = sink * np.float32(_LOG2_E / scale)
        return np.where(is_empty, np.float32(offset), x), np.where(is_empty, own, maxima)


@dataclass(frozen=True, eq=False, repr=False)
class DivisorSink(OffsetSink):
    """Sink with the term of `OffsetSink`, which is part of the output's divisor only, as in FlashMLA.

    A row without a key stays zero.
    """

    replaces_empty = False
    in_lse = False
