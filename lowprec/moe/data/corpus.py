"""Text to train on, as bytes, and the windows that a step reads.

A result is comparable with another one only if the corpus hashes agree, so the hash travels with every checkpoint and
run. Which bytes a step sees follows from (seed, step) alone: a resumed run, a branch and a run on another machine read
the same windows, and nothing of a generator has to be saved.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from lowprec._arrays import whole

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float64]

#: Bytes at the end of a text file that are held out.
HELD_OUT_BYTES = 65_536
#: The shortest corpus: as much to learn from as to be tested on.
MINIMUM_BYTES = 2 * HELD_OUT_BYTES


@dataclass(frozen=True, eq=False)
class Corpus:
    """A text in two parts, one to train on and one that training does not read.

    Attributes
    ----------
    name : str
        "stdlib", "bible", "synthetic" or the path it was read from: `load_corpus(name)` gives it again.
    bytes : int
        Length of both parts together.
    sha256 : str
        Hash over both parts; results are comparable only where it is equal.
    train, held_out : uint8 array
        The two parts, read-only.
    origin : str
        Where the text came from, in words ("standard library of CPython 3.11.7, 452 files").
    oracle : float64 array, optional
        For a source that is known: -log of its own probability of each held-out byte, given all before it, in nats.

    Examples
    --------
    >>> text = corpus_from_bytes("letters", bytes(range(65, 91)) * 10_000, held_out=65_536)
    >>> text
    <Corpus letters: 194464 bytes to train on, 65536 held out, sha256 507f133329d9c84a>
    """

    name: str
    bytes: int
    sha256: str
    train: Bytes = field(repr=False)
    held_out: Bytes = field(repr=False)
    origin: str = ""
    oracle: Floats | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        sizes = f"{self.train.size} bytes to train on, {self.held_out.size} held out"
        return f"<Corpus {self.name}: {sizes}, sha256 {self.sha256[:16]}>"


def make_corpus(name: str, train: bytes, held_out: bytes, origin: str, oracle: Floats | None = None) -> Corpus:
    """Return the corpus of two texts."""
    # Lengths first, so that no two divisions of one text have the same hash.
    digest = hashlib.sha256(f"{len(train)} {len(held_out)}\n".encode() + train + held_out).hexdigest()
    parts = [np.frombuffer(part, dtype=np.uint8) for part in (train, held_out)]
    return Corpus(name, len(train) + len(held_out), digest, parts[0], parts[1], origin, oracle)


def corpus_from_bytes(name: str, text: bytes, *, held_out: int = HELD_OUT_BYTES) -> Corpus:
    """Make a corpus of a byte string, its end held out.

    Parameters
    ----------
    name : str
        What to call it.
    text : bytes
        The text.
    held_out : int
        How many bytes at the end are held out.

    Returns
    -------
    Corpus
        The two parts.

    Raises
    ------
    ValueError
        If the text is too short to leave as much for training as it holds out.
    """
    if held_out < 1:
        raise ValueError(f"corpus {name!r}: {held_out} bytes held out: at least 1 is needed")
    if len(text) < 2 * held_out:
        raise ValueError(
            f"corpus {name!r} is too short: {len(text)} bytes, at least {2 * held_out} are needed"
            f" ({held_out} are held out, as many must be left to train on)"
        )
    return make_corpus(name, text[:-held_out], text[-held_out:], f"{len(text)} bytes")


@dataclass(frozen=True, eq=False)
class Batches:
    """The windows of every step; `batches[step]` reads step number `step`.

    Attributes
    ----------
    text : uint8 array
        Where windows are cut from.
    seed : int
        Decides, with the number of the step, which windows.
    batch, sequence : int
        Windows a step, and predicted bytes a window.
    """

    text: Bytes = field(repr=False)
    seed: int
    batch: int
    sequence: int

    def __getitem__(self, step: int) -> Bytes:
        """Return the windows of a step, uint8 [batch, sequence + 1]: inputs and, one further, targets."""
        if step < 0:
            raise IndexError(f"step {step}: steps count from 0")
        # Raw Philox words are the part of NumPy's generators whose stream never changes.
        generator = np.random.Philox(
            key=np.array([self.seed, 0], np.uint64), counter=np.array([0, step, 0, 0], np.uint64)
        )
        places = self.text.size - self.sequence  # a window has sequence + 1 bytes
        starts = [int(word) * places >> 64 for word in generator.random_raw(self.batch)]
        return np.stack([self.text[start : start + self.sequence + 1] for start in starts])


def batches(corpus: Corpus, seed: int, batch: int, sequence: int) -> Batches:
    """Cut a corpus into training batches.

    Parameters
    ----------
    corpus : Corpus
        The text; only its training part is read.
    seed : int
        Chooses the windows, from 0 to 2**64 - 1.
    batch : int
        Windows a step.
    sequence : int
        Predicted bytes a window.

    Returns
    -------
    Batches
        `batches[step]` is a uint8 array [batch, sequence + 1]; the same (seed, step) gives the same windows always.

    Raises
    ------
    ValueError
        If a number is out of range or the training text is shorter than one window.

    Examples
    --------
    >>> text = corpus_from_bytes("letters", bytes(range(65, 91)) * 10_000)
    >>> windows = batches(text, seed=0, batch=2, sequence=8)
    >>> [row.tobytes() for row in windows[5]]
    [b'ZABCDEFGH', b'IJKLMNOPQ']
    """
    seed = whole("corpus", "seed", seed, 0, 2**64 - 1)
    batch, sequence = whole("corpus", "batch", batch, 1), whole("corpus", "sequence", sequence, 1)
    if corpus.train.size <= sequence:
        raise ValueError(
            f"corpus {corpus.name!r} is too short: {corpus.train.size} bytes to train on, one window has {sequence + 1}"
        )
    return Batches(corpus.train, seed, batch, sequence)


def held_out_windows(corpus: Corpus, sequence: int, total: int) -> Bytes:
    """Return the fixed windows that validation reads, evenly spread over the held-out part.

    Parameters
    ----------
    corpus : Corpus
        The text.
    sequence : int
        Predicted bytes a window.
    total : int
        Predicted bytes in all, rounded down to whole windows (at least one).

    Returns
    -------
    uint8 array [windows, sequence + 1]
        The same for every arm, seed and step. They do not overlap as long as the held-out part is long enough for
        them, and are never more than it holds side by side.

    Raises
    ------
    ValueError
        If the held-out part is shorter than one window.
    """
    return np.stack([corpus.held_out[a : a + sequence + 1] for a in _held_out_starts(corpus, sequence, total)])


def held_out_floor(corpus: Corpus, sequence: int, total: int) -> float:
    """Return the mean of -log of the source's own probability over the bytes predicted in `held_out_windows`, in nats.

    Raises
    ------
    ValueError
        If the source is not known.
    """
    if corpus.oracle is None:
        raise ValueError(f"corpus {corpus.name!r} has no known source; 'synthetic' has one")
    starts = _held_out_starts(corpus, sequence, total)
    return float(np.mean([corpus.oracle[a + 1 : a + sequence + 1] for a in starts]))


def _held_out_starts(corpus: Corpus, sequence: int, total: int) -> list[int]:
    sequence = whole("corpus", "sequence", sequence, 1)
    total = whole("corpus", "bytes to evaluate", total, 1)
    last = corpus.held_out.size - sequence - 1
    if last < 0:
        raise ValueError(
            f"corpus {corpus.name!r} is too short: {corpus.held_out.size} bytes held out, one window has {sequence + 1}"
        )
    # Inputs may not be shared between windows; one's last target may be the next one's first input.
    count = max(1, min(total, corpus.held_out.size - 1) // sequence)
    return [last * i // max(1, count - 1) for i in range(count)]
