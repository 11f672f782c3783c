"""Training text, as bytes, and the windows of each step.

Results are comparable only if the corpus hashes agree, so every checkpoint and run stores the hash. The bytes of a step
depend only on (seed, step): a resumed run, a branch and a run on another machine read the same windows, without any
generator state to save.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from lowprec._checks import check_int

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float64]

#: Bytes held out at the end of a text file.
HELD_OUT_BYTES = 65_536
#: Length of the shortest corpus: as many bytes to train on as are held out.
MINIMUM_BYTES = 2 * HELD_OUT_BYTES


@dataclass(frozen=True, eq=False)
class Corpus:
    """A text in two parts, one for training and one held out.

    Attributes
    ----------
    name : str
        "stdlib", "bible", "synthetic" or the path of the file: the argument with which `load_corpus` reads it again.
    bytes : int
        Length of both parts together.
    sha256 : str
        Hash of both parts; results are comparable only if their corpora have equal hashes.
    train, held_out : uint8 array
        Text of the two parts, read-only.
    origin : str
        Origin of the text, such as "standard library of CPython 3.11.7, 452 files".
    source_nll : float64 array, optional
        -log p of each held-out byte given all bytes before it, in nats, for a source with known probabilities.

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
    source_nll: Floats | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        sizes = f"{self.train.size} bytes to train on, {self.held_out.size} held out"
        return f"<Corpus {self.name}: {sizes}, sha256 {self.sha256[:16]}>"


def make_corpus(name: str, train: bytes, held_out: bytes, origin: str, source_nll: Floats | None = None) -> Corpus:
    """Return the corpus of a training text and a held-out text."""
    # Lengths first, so that no two splits of one text have the same hash.
    digest = hashlib.sha256(f"{len(train)} {len(held_out)}\n".encode() + train + held_out).hexdigest()
    parts = [np.frombuffer(part, dtype=np.uint8) for part in (train, held_out)]
    return Corpus(name, len(train) + len(held_out), digest, parts[0], parts[1], origin, source_nll)


def corpus_from_bytes(name: str, text: bytes, *, held_out: int = HELD_OUT_BYTES) -> Corpus:
    """Make a corpus from a byte string, the end of which is held out.

    Parameters
    ----------
    name : str
        Name of the corpus.
    text : bytes
        Text as bytes.
    held_out : int
        Number of bytes held out at the end.

    Returns
    -------
    Corpus
        Corpus of the two parts.

    Raises
    ------
    ValueError
        If a part is empty, or the training part is shorter than the held-out part.
    """
    if held_out < 1:
        raise ValueError(f"corpus {name!r}: held_out must be >= 1, got {held_out}")
    if len(text) < 2 * held_out:
        raise ValueError(
            f"corpus {name!r} must have at least {2 * held_out} bytes, half of them held out, got {len(text)}"
        )
    return make_corpus(name, text[:-held_out], text[-held_out:], f"{len(text)} bytes")


@dataclass(frozen=True, eq=False)
class Batches:
    """Windows of every step; `batches[step]` returns those of step number `step`.

    Attributes
    ----------
    text : uint8 array
        Text that windows are cut from.
    seed : int
        Seed that, with the step number, chooses the windows.
    batch, sequence : int
        Number of windows per step, and of predicted bytes per window.
    """

    text: Bytes = field(repr=False)
    seed: int
    batch: int
    sequence: int

    def __getitem__(self, step: int) -> Bytes:
        """Return the windows of a step, uint8 [batch, sequence + 1]: inputs and, shifted by one, targets."""
        if step < 0:
            raise IndexError(f"windows: step must be >= 0, got {step}")
        # Raw Philox words: NumPy guarantees their stream, unlike that of the generators' methods.
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
        Corpus; only its training part is read.
    seed : int
        Seed that chooses the windows, from 0 to 2**64 - 1.
    batch : int
        Number of windows per step.
    sequence : int
        Number of predicted bytes per window.

    Returns
    -------
    Batches
        `batches[step]` is a uint8 array [batch, sequence + 1], which depends only on (seed, step).

    Raises
    ------
    ValueError
        If a number is out of range, or one window is longer than the training text.

    Examples
    --------
    >>> text = corpus_from_bytes("letters", bytes(range(65, 91)) * 10_000)
    >>> windows = batches(text, seed=0, batch=2, sequence=8)
    >>> [row.tobytes() for row in windows[5]]
    [b'ZABCDEFGH', b'IJKLMNOPQ']
    """
    seed = check_int("corpus", "seed", seed, 0, 2**64 - 1)
    batch, sequence = check_int("corpus", "batch", batch, 1), check_int("corpus", "sequence", sequence, 1)
    if corpus.train.size <= sequence:
        raise ValueError(
            f"corpus {corpus.name!r} must have at least {sequence + 1} bytes to train on, one window, got "
            f"{corpus.train.size}"
        )
    return Batches(corpus.train, seed, batch, sequence)


def held_out_windows(corpus: Corpus, sequence: int, total: int) -> Bytes:
    """Return the fixed windows for validation, spread evenly over the held-out part.

    Parameters
    ----------
    corpus : Corpus
        Corpus.
    sequence : int
        Number of predicted bytes per window.
    total : int
        Total number of predicted bytes, rounded down to whole windows (at least one).

    Returns
    -------
    uint8 array [windows, sequence + 1]
        Windows, the same for every recipe, seed and step. Their inputs do not overlap: if `total` is too large, only
        the windows that fit into the held-out part are returned.

    Raises
    ------
    ValueError
        If the held-out part is shorter than one window.
    """
    return np.stack([corpus.held_out[a : a + sequence + 1] for a in _held_out_starts(corpus, sequence, total)])


def held_out_entropy(corpus: Corpus, sequence: int, total: int) -> float:
    """Return the source's mean negative log-probability of the bytes predicted in `held_out_windows`, in nats.

    Raises
    ------
    ValueError
        If the source's probabilities are not known.
    """
    if corpus.source_nll is None:
        raise ValueError(
            f"held_out_entropy: corpus must have a known source distribution, as 'synthetic' has, got {corpus.name!r}"
        )
    starts = _held_out_starts(corpus, sequence, total)
    return float(np.mean([corpus.source_nll[a + 1 : a + sequence + 1] for a in starts]))


def _held_out_starts(corpus: Corpus, sequence: int, total: int) -> list[int]:
    sequence = check_int("corpus", "sequence", sequence, 1)
    total = check_int("corpus", "bytes to evaluate", total, 1)
    last = corpus.held_out.size - sequence - 1
    if last < 0:
        raise ValueError(
            f"corpus {corpus.name!r} must have at least {sequence + 1} bytes held out, one window, got "
            f"{corpus.held_out.size}"
        )
    # Windows do not share inputs; the last target of one may be the first input of the next.
    count = max(1, min(total, corpus.held_out.size - 1) // sequence)
    return [last * i // max(1, count - 1) for i in range(count)]
