"""Loading of a corpus, by name or from a file.

The default needs no download: the `.py` sources of the running Python's standard library, some 9 MB of English-like
text and code.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from lowprec.moe.data.corpus import MINIMUM_BYTES, Corpus, corpus_from_bytes
from lowprec.moe.data.synthetic import synthetic
from lowprec.moe.data.texts import bible, standard_library

#: Names of corpora.
SOURCES: dict[str, Callable[[], Corpus]] = {"stdlib": standard_library, "bible": bible, "synthetic": synthetic}


def load_corpus(source: str | os.PathLike[str] = "stdlib") -> Corpus:
    """Read a corpus.

    Parameters
    ----------
    source : str or path
        "stdlib" for the sources of the running Python's standard library; "bible" for three translations of the
        Bible (extra ``data``), the same bytes everywhere; "synthetic" for a source of known entropy; otherwise the path
        of a text file ("./stdlib" for a file with one of these names).

    Returns
    -------
    Corpus
        Corpus with its hash and a fixed held-out part: about 5 % of the files of the standard library, chosen by the
        hash of their names, or the last 65,536 bytes of a file.

    Raises
    ------
    ValueError
        If the file does not exist, is not a file, is empty or shorter than 131,072 bytes, or if the packages of a
        corpus are missing or have another text.

    Examples
    --------
    >>> corpus = load_corpus("stdlib")
    >>> corpus.train.size > 5_000_000, corpus.held_out.size > 65_536
    (True, True)
    """
    if source in SOURCES:
        return SOURCES[str(source)]()
    names = ", ".join(map(repr, SOURCES))
    path = Path(source)
    if not path.exists():
        raise ValueError(
            f"corpus must be {names} or the path of a text file, got {os.fspath(source)!r}, which does not exist"
        )
    if not path.is_file():
        raise ValueError(
            f"corpus must be {names} or the path of a text file, got {os.fspath(source)!r}, which is not a file"
        )
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ValueError(f"corpus {os.fspath(source)!r} cannot be read: {error.strerror}") from None
    if not text:
        raise ValueError(f"corpus {os.fspath(source)!r} must have at least {MINIMUM_BYTES} bytes, got 0")
    return corpus_from_bytes(os.fspath(source), text)
