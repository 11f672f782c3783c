"""The corpora and the windows that steps read."""

import hashlib
import itertools
import subprocess
import sys

import numpy as np
import pytest

from lowprec.moe.data import corpus as data
from lowprec.moe.data import sources, texts

TEXT = bytes(i * i % 251 for i in range(200_000))


@pytest.fixture(scope="module")
def stdlib():
    return sources.load_corpus("stdlib")


def test_the_standard_library_is_the_same_text_every_time(stdlib):
    again = sources.load_corpus("stdlib")
    assert again.sha256 == stdlib.sha256
    assert again.bytes == again.train.size + again.held_out.size == stdlib.bytes


def test_the_standard_library_holds_whole_files_and_no_tests(stdlib):
    for part in (stdlib.train, stdlib.held_out):
        files = part.tobytes().split(texts.SEPARATOR)
        assert any(b"def " in text for text in files)
        assert not any(b"import idlelib" in text for text in files)
    # json/decoder.py is on one side, whole; which one follows from its name.
    side = hashlib.sha256(b"json/decoder.py").digest()[0] < texts.HELD_OUT_BELOW
    import json.decoder

    with open(json.decoder.__file__, "rb") as source:
        text = source.read()
    assert text in (stdlib.held_out if side else stdlib.train).tobytes().split(texts.SEPARATOR)
    assert stdlib.held_out.size >= data.HELD_OUT_BYTES
    assert "standard library of" in stdlib.origin


def test_a_walk_is_sorted_and_leaves_out_what_it_says(tmp_path):
    for name in [
        "b.py",
        "a/z.py",
        "a/test/no.py",
        "A.py",
        "a.py",
        "a/readme.txt",
        "_sysconfigdata_x.py",
        "config-3/no.py",
    ]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    assert texts._sources(tmp_path) == ["A.py", "a.py", "a/z.py", "b.py"]


def test_a_text_file(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes(TEXT)
    corpus = sources.load_corpus(path)
    assert corpus.train.tobytes() + corpus.held_out.tobytes() == TEXT
    assert corpus.held_out.size == data.HELD_OUT_BYTES
    assert corpus.sha256 == data.corpus_from_bytes("other name", TEXT).sha256
    assert corpus.sha256 != data.corpus_from_bytes("x", TEXT, held_out=1000).sha256
    assert sources.load_corpus(corpus.name).sha256 == corpus.sha256
    with pytest.raises(ValueError, match="read-only"):
        corpus.train[0] = 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"no such file; give 'stdlib', 'bible', 'synthetic' or the path"),
        (b"", r"is empty; at least 131072 bytes"),
        (b"short", r"is too short: 5 bytes, at least 131072 are needed"),
        (bytes(131_071), r"is too short: 131071 bytes, at least 131072"),
    ],
)
def test_bad_files(tmp_path, content, message):
    path = tmp_path / "text"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as error:
        sources.load_corpus(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_folder_is_no_corpus(tmp_path):
    with pytest.raises(ValueError, match="is not a file"):
        sources.load_corpus(tmp_path)


def test_too_much_held_out():
    with pytest.raises(ValueError, match="0 bytes held out"):
        data.corpus_from_bytes("x", TEXT, held_out=0)


def test_windows_are_cut_from_the_training_text():
    corpus = data.corpus_from_bytes("x", TEXT)
    windows = data.batches(corpus, seed=3, batch=5, sequence=64)[7]
    assert windows.shape == (5, 65)
    assert windows.dtype == np.uint8
    train = corpus.train.tobytes()
    assert all(row.tobytes() in train for row in windows)


def test_the_same_step_reads_the_same_bytes_and_others_do_not():
    corpus = data.corpus_from_bytes("x", np.random.Philox(0).random_raw(50_000).tobytes())
    seen = set()
    for seed in (0, 1, 2**64 - 1):
        for step in (0, 1, 10**9):
            windows = data.batches(corpus, seed, 4, 32)[step]
            assert np.array_equal(windows, data.batches(corpus, seed, 4, 32)[step])
            seen.add(windows.tobytes())
    assert len(seen) == 9


def test_known_offsets():
    ramp = np.arange(2**18, dtype=np.uint32)
    corpus = data.corpus_from_bytes("ramp", ramp.astype(">u4").tobytes())
    starts = []
    for step in range(3):
        for row in data.batches(corpus, 12, 2, 8)[step]:
            starts.append(corpus.train.tobytes().find(row.tobytes()))
    assert starts == KNOWN_OFFSETS


# Where the windows of (seed 12, steps 0 to 2) begin. Published runs rest on them: they may never change.
KNOWN_OFFSETS = [539489, 440112, 210352, 6250, 298650, 65417]


def test_every_place_can_be_read():
    corpus = data.corpus_from_bytes("x", bytes(range(20)), held_out=10)
    firsts = {row[0] for step in range(200) for row in data.batches(corpus, 0, 4, 7)[step]}
    assert firsts == {0, 1, 2}


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((-1, 2, 8), ValueError, "seed=-1: a whole number from 0"),
        ((2**64, 2, 8), ValueError, "seed=18446744073709551616"),
        ((0.5, 2, 8), ValueError, "seed=0.5: a whole number"),
        ((0, 0, 8), ValueError, "batch=0"),
        ((0, 1, True), ValueError, "sequence=True"),
        ((0, 1, 100_000_000), ValueError, "too short: 134464 bytes to train on, one window has 100000001"),
    ],
)
def test_bad_batches(arguments, error, message):
    with pytest.raises(error, match=message):
        data.batches(data.corpus_from_bytes("x", TEXT), *arguments)
    with pytest.raises(IndexError, match="step -1"):
        data.batches(data.corpus_from_bytes("x", TEXT), 0, 1, 1)[-1]


def test_validation_windows_cover_the_held_out_part_without_overlap(stdlib):
    windows = data.held_out_windows(stdlib, 128, 65_536)
    assert windows.shape == (512, 129)
    assert windows[0].tobytes() == stdlib.held_out[:129].tobytes()
    assert windows[-1].tobytes() == stdlib.held_out[-129:].tobytes()
    small = data.corpus_from_bytes("x", bytes(range(200)), held_out=100)
    rows = data.held_out_windows(small, 9, 10_000)
    starts = [int(row[0]) - 100 for row in rows]
    assert len(starts) == 11
    assert all(b - a >= 9 for a, b in itertools.pairwise(starts))
    assert data.held_out_windows(small, 99, 1).shape == (1, 100)
    with pytest.raises(ValueError, match="100 bytes held out, one window has 101"):
        data.held_out_windows(small, 100, 1)


@pytest.mark.slow
def test_another_process_reads_the_same_windows(stdlib):
    program = (
        "import hashlib; from lowprec.moe.data import corpus as data, sources; c = sources.load_corpus();"
        "print(c.sha256, hashlib.sha256(data.batches(c, 5, 16, 128)[9].tobytes()).hexdigest())"
    )
    here = hashlib.sha256(data.batches(stdlib, 5, 16, 128)[9].tobytes()).hexdigest()
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [stdlib.sha256, here]
