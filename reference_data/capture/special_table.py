"""Read a capture of special functions, and compute 2**x with it.

    PYTHONPATH=. python reference_data/capture/special_table.py FILE.npz   # octaves that the file determines

`CapturedExp2` is a function of `lowprec.special` for the field `exp2` of attention kernels.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from capture_file import Capture, CaptureError, load
from capture_special import KEPT, MANTISSA, OCTAVES, Words, digest_of
from numpy.typing import NDArray

from lowprec.special.exp2 import Exp2, RoundedExp2

Floats = NDArray[np.float32]
EX2 = "ex2.approx.ftz.f32"
_FRACTION = (1 << MANTISSA) - 1


def octave(capture: Capture, name: str, top: int, rule: Callable[[Words], Words] | None = None) -> Words:
    """Return the results of the words with the given top nine bits: as recorded, else by a rule.

    Raises
    ------
    CaptureError
        If the file lacks them and there is no rule, or if their digest is not that of the GPU's results.
    """
    groups = {group.name: group.arrays for group in capture.groups}
    if f"{name}/digests" not in groups:
        raise CaptureError(f"the capture has no {name}")
    digests, found = groups[f"{name}/digests"], groups.get(f"{name}/{top}")
    bits = int(digests["x"][0])
    one = groups[f"{name}/constant"]
    if len(same := one["d"][one["x"] == top]):
        words = np.repeat(same, 1 << bits)
    elif found is not None:
        words = np.concatenate([found["start"].astype(np.int64), found["d"]]).cumsum().astype(np.uint32)
    elif rule is not None:
        words = rule(np.uint32(top << MANTISSA) + (np.arange(1 << bits, dtype=np.uint32) << np.uint32(MANTISSA - bits)))
    else:
        raise CaptureError(f"{name}: the capture lacks results of the words {top << MANTISSA:#010x} and above")
    if not np.array_equal(digest_of(words), digests["d"][top]):
        raise CaptureError(f"{name}: results of the words {top << MANTISSA:#010x} and above are not those of the GPU")
    return words


@dataclass(frozen=True, eq=False, repr=False)
class CapturedExp2(Exp2):
    """2**x with the recorded results of ``ex2.approx.ftz.f32``.

    Results for 2 <= x < 128 and -128 < x <= -2 are those of the number with the same fraction in [1, 2) or (-2, -1],
    times a power of two; the digest of every octave proves it.

    Parameters
    ----------
    sha256 : str
        Hash of the digests, which determine all results.
    capture : Capture
    """

    sha256: str
    capture: Capture = dataclasses.field(compare=False)

    @classmethod
    def of(cls, capture: Capture) -> CapturedExp2:
        """Return the function that a capture determines."""
        digests = (group.arrays["d"] for group in capture.groups if group.name == f"{EX2}/digests")
        return cls(hashlib.sha256(b"".join(x.tobytes() for x in digests)).hexdigest(), capture)

    @property
    def is_published(self) -> bool:
        """True, because the results were recorded."""
        return True

    @property
    def relative_error(self) -> float:
        """Bound that the documentation of the instruction implies."""
        return RoundedExp2().relative_error

    @functools.cached_property
    def _octaves(self) -> dict[int, Words]:
        return {}

    def octave(self, top: int) -> Words:
        """Return the results of the words with the given top nine bits."""
        if top not in self._octaves:
            self._octaves[top] = octave(self.capture, EX2, top, self._scaled)
        return self._octaves[top]

    def _scaled(self, words: Words) -> Words:
        x = words.view(np.float32)
        if not 2 <= abs(x[0]) < 128:
            raise CaptureError(f"{EX2}: the capture lacks results of the words {words[0]:#010x} and above")
        whole = np.trunc(x) - np.copysign(np.float32(1), x)
        found = self._recorded((x - whole).view(np.uint32)).astype(np.float64)
        y = np.ldexp(found, whole.astype(np.int32)).astype(np.float32)
        return np.where(y < np.float32(2.0**-126), np.float32(0), y).view(np.uint32)

    def _recorded(self, words: Words) -> Floats:
        out = np.empty(words.shape, np.float32)
        for top in np.unique(words >> MANTISSA).tolist():
            here = words >> MANTISSA == top
            results = self.octave(top)
            place, beside = np.divmod(words[here] & _FRACTION, (1 << MANTISSA) // len(results))
            if beside.any():
                raise CaptureError(f"{EX2}: a trial has results of {len(results)} words of each octave, not of all")
            out[here] = results[place].view(np.float32)
        return out

    def __call__(self, x: Floats) -> Floats:
        """Return 2**x of an array of any shape."""
        return self._recorded(np.ascontiguousarray(x).view(np.uint32))

    def bounds(self, x: Floats) -> tuple[Floats, Floats]:
        """Return the results as both bounds."""
        out = self(x)
        return out, out


def determined(capture: Capture, name: str) -> int:
    """Return the number of octaves, of 512, whose results the file determines."""
    rule = CapturedExp2.of(capture)._scaled if name == EX2 else None
    count = 0
    for top in range(OCTAVES):
        try:
            octave(capture, name, top, rule)
            count += 1
        except CaptureError:
            continue
    return count


def main() -> None:
    """Print the number of octaves of each function."""
    try:
        capture = load(Path(sys.argv[1]))
    except (CaptureError, OSError, IndexError) as error:
        sys.exit(f"error: {error}")
    for name in KEPT:
        sys.stdout.write(f"{name:<22}{determined(capture, name):>4} of {OCTAVES} octaves\n")


if __name__ == "__main__":
    main()
