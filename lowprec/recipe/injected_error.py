"""Errors injected into products, to measure how errors of a given size affect a training.

A sum in few bits is too small in magnitude (truncation is towards zero) and has an additional error that looks random.
Small models have shorter sums, without such errors, so the errors are injected: the product D becomes
``(1 + gain) D + noise rms(D) u`` before it is rounded to its output format, where u is uniform with mean 0 and
variance 1.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowprec._values import Value, normalize_fields
from lowprec.kernels.cast.random_bits import fill_words
from lowprec.kernels.model.nn import mean

Matrix = NDArray[np.float32]
_ROOT_3 = 3.0**0.5


@dataclass(frozen=True, eq=False, repr=False)
class InjectedError(Value):
    """An injected error of a given bias and size.

    Parameters
    ----------
    gain : float
        Bias along the product, which is multiplied by 1 + gain.
    noise : float
        Ratio of the Frobenius norm of the random part to that of the product.
    frozen : bool
        Whether the random part has the same pattern in every step, as an error that the operands determine would;
        otherwise every step draws its own.

    Raises
    ------
    ValueError
        If one of them is not finite, the noise is negative, or `frozen` is not a bool.

    Examples
    --------
    >>> InjectedError.parse("gain=-0.01 noise=0.02")
    InjectedError(gain=-0.01, noise=0.02)
    >>> str(InjectedError(noise=0.02, frozen=True))
    'noise=0.02 frozen'
    """

    gain: float = 0.0
    noise: float = 0.0
    frozen: bool = False

    def __post_init__(self) -> None:
        normalize_fields(self)
        for name, low in (("gain", -1.0), ("noise", 0.0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value < float("inf"):
                raise ValueError(f"injected_error: {name} must be a finite number >= {low:g}, got {value!r}")
        if not isinstance(self.frozen, bool):
            raise ValueError(f"injected_error: frozen must be True or False, got {self.frozen!r}")

    @classmethod
    def parse(cls, text: str | InjectedError | None) -> InjectedError | None:
        """Parse an error such as ``"gain=-0.01 noise=0.02"``; None for an empty string.

        Raises
        ------
        ValueError
            If the string has another form.
        """
        if text is None or isinstance(text, InjectedError):
            return text if text and (text.gain or text.noise) else None
        words = text.split() if isinstance(text, str) else [repr(text)]
        found: dict[str, Any] = {}
        for word in words:
            if word == "frozen" and word not in found:
                found[word] = True
                continue
            part = re.fullmatch(r"(gain|noise)=([-+]?\d[\d.]*(?:e[-+]?\d+)?)", word)
            if part is None or part[1] in found or part[2].count(".") > 1:
                raise ValueError(f"injected_error must be words such as 'gain=-0.01 noise=0.02 frozen', got {text!r}")
            found[part[1]] = float(part[2])
        if found.keys() == {"frozen"}:
            raise ValueError(f"injected_error must have noise to be frozen, got {text!r}")
        return cls.parse(cls(**found))

    def apply(self, product: Matrix, seed: int) -> Matrix:
        """Return a product [M, N] with the error; the bits depend only on the product, the seed and the indices.

        If the mean square of a product is not finite, no noise is added.

        Examples
        --------
        >>> InjectedError(gain=-0.5).apply(np.ones((1, 2), np.float32), 0)
        array([[0.5, 0.5]], dtype=float32)
        """
        wide: NDArray[Any] = product.astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            size = float(np.sqrt(mean(np.square(wide).reshape(-1)))) if product.size and self.noise else 0.0
            wide *= 1.0 + self.gain
            if 0.0 < size < float("inf"):
                words = np.empty(product.size, np.uint32)
                fill_words(words, np.uint32(seed & 0xFFFFFFFF), np.uint32(seed >> 32), 0)
                uniform = (words.astype(np.float64) - (2.0**31 - 0.5)) * (_ROOT_3 * 2.0**-31)
                wide += (self.noise * size) * uniform.reshape(product.shape)
            return wide.astype(np.float32)

    def __str__(self) -> str:
        words = [f"{name}={value!r}" for name in ("gain", "noise") if (value := getattr(self, name))]
        return " ".join(words + ["frozen"] * self.frozen)
