"""A corpus from a source of exactly known entropy, which separates a model's own loss from that of the data.

The source has eight domains, each a Markov chain of order two over 64 symbols; a context has eight successors
each. With probability 1/256 per symbol the domain changes, without a mark. With probability 1/64 a copy begins: the
following symbols repeat those 1 to 64 symbols earlier, and the copy ends with probability 1/16 at every symbol. Experts
can specialise in domains, and attention can find copies. The forward algorithm over 8 x 65 hidden states gives the
probability of every symbol given all before it; its mean negative logarithm is a lower bound of a model's loss, which a
model can only beat by luck.
All of it is integer and IEEE arithmetic on counter-based random words, so the bytes are the same on every machine.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lowprec.kernels.cast import random_bits
from lowprec.kernels.model import synthetic as kernels
from lowprec.moe.data.corpus import Corpus, make_corpus

DOMAINS, SYMBOLS, SUCCESSORS, REACH = 8, 64, 8, 64
#: Probabilities in units of 2^-32: a change of domain, the start of a copy, its end.
SWITCH, START, STOP = np.uint32(2**32 // 256), np.uint32(2**32 // 64), np.uint32(2**32 // 16)
TRAIN_BYTES, HELD_OUT_BYTES = 4_000_000, 131_072
#: Byte of symbol 0.
FIRST = ord("0")

MarkovTables = tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint32]]


def markov_tables(seed: int) -> MarkovTables:
    """Return the successors of every context [domain, earlier, before] and cumulative thresholds of probabilities.

    Probabilities are proportional to cubes of uniform numbers: one or two successors are likely, the others rare.
    """
    shape = (DOMAINS, SYMBOLS, SYMBOLS, SUCCESSORS)
    words = np.empty(2 * DOMAINS * SYMBOLS * SYMBOLS * SUCCESSORS, np.uint32)
    random_bits.fill_words(words, np.uint32(seed), np.uint32(1), 0)
    first, second = words.reshape(2, *shape)
    uniform = (second >> np.uint32(17)).astype(np.uint64) + np.uint64(1)
    total = np.cumsum(uniform**3, axis=-1)
    shares = (total >> np.uint64(16)) * np.uint64(2**32 - 1) // (total[..., -1:] >> np.uint64(16))
    shares[..., -1] = 2**32 - 1
    return (first >> np.uint32(26)).astype(np.uint8), shares.astype(np.uint32)


def generate(source: MarkovTables, seed: int, length: int) -> npt.NDArray[np.uint8]:
    """Return `length` symbols drawn from the source, numbered from 0."""
    symbols = np.empty(length, np.uint8)
    kernels.generate(*source, np.uint32(seed), np.uint32(2), SWITCH, START, STOP, symbols)
    return symbols


def surprisal(source: MarkovTables, symbols: npt.NDArray[np.uint8]) -> npt.NDArray[np.float64]:
    """Return -log of the source's probability of each symbol given all before it, in nats."""
    losses = np.empty(symbols.size)
    room = np.empty((DOMAINS, REACH + 1))
    kernels.surprise(*source, float(SWITCH), float(START), float(STOP), symbols, room, losses)
    return losses


def synthetic(seed: int = 0) -> Corpus:
    """Return the corpus: training and held-out bytes are two samples of the same source.

    Examples
    --------
    >>> corpus = synthetic()
    >>> corpus.train.size, round(float(corpus.source_nll.mean()), 2)
    (4000000, 1.33)
    """
    source = markov_tables(seed)
    train = generate(source, 2 * seed, TRAIN_BYTES)
    held_out = generate(source, 2 * seed + 1, HELD_OUT_BYTES)
    oracle = surprisal(source, held_out)
    parts = [(symbols + FIRST).astype(np.uint8).tobytes() for symbols in (train, held_out)]
    origin = f"8 markov_tables of order 2 and copies, seed {seed}; {oracle.mean():.4f} nats a byte"
    return make_corpus("synthetic", parts[0], parts[1], origin, oracle)
