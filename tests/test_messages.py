"""Error messages have one form: `func: param must be ..., got ...`, or a sentence that says what happened."""

import ast
import functools
import re
from collections import Counter
from pathlib import Path

import pytest

import lowprec

pytestmark = pytest.mark.slow  # parsing all sources takes a second

PACKAGE = Path(lowprec.__file__).parent
#: An argument that is refused, and a name that nothing has.
FORMS = re.compile(r".*\bmust\b.+, got .+|.*\bunknown .+", re.DOTALL)
#: Idioms of messages that name the requirement without a verb, or a thing by what it is not.
IDIOMS = re.compile(
    r"\b(is|are) (needed|possible|allowed|impossible)\b|\b(needed|allowed|known|possible) (is|are)\b|known: |"
    r"\bexcludes? each other\b|\b(is|are|was) (no (?!longer|more)|none\b)|whole numbers?|\b(some|no)body\b|"
    r"\b(go|goes|went) on\b|\b(afresh|anew|aside|beside)\b"
)
#: Errors about files, packages, saved states and runs: full sentences, which have no other form. The numbers may fall.
SENTENCES = {
    "_files": 18, "_fpenv": 1, "board": 2, "cast": 1, "cli": 26, "codec": 2, "costs": 1, "definitions": 11,
    "diagnose": 6, "format": 3, "interop": 1, "jax": 2, "logfmt": 6, "moe": 26, "plot": 1, "recipe": 5,
     "reference": 3,
    "scaling": 9, "study": 32, "testing": 3, "torch": 14, "vectors": 6,
}  # fmt: skip
#: Messages that still have such an idiom.
LEFT: dict[str, int] = {}
#: Rooms whose errors no user sees.
INTERNAL = {"kernels", "oracle"}


def text_of(node: ast.expr) -> str | None:
    """Return the text of a literal, with {} for values that are filled in; None for other expressions."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in parts)
        case ast.Subscript(value=inner):
            return text_of(inner)
    return None


@functools.cache
def messages(path: Path) -> list[tuple[int, str]]:
    """Return line and text of every error that a file raises or returns with a message of its own."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        call = node.exc if isinstance(node, ast.Raise) else node.value if isinstance(node, ast.Return) else None
        if not (isinstance(call, ast.Call) and call.args):
            continue
        name = ast.unparse(call.func).rpartition(".")[2]
        if (
            not name.endswith("Error")
            or name == "StepError"
            or (name == "AssertionError" and "testing" not in path.name)
        ):
            continue
        text = text_of(call.args[0])
        if text is not None and not re.fullmatch(r"((\w+ )?\{\}|\w+|)(: \{\})*", text):  # not another error's message
            found.append((node.lineno, text))
    return found


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


FILES = [path for path in sorted(PACKAGE.rglob("*.py")) if room_of(path) not in INTERNAL]
ROOMS = sorted({room_of(path) for path in FILES})


def others_in(room: str) -> list[str]:
    """Return the messages of a room in neither form."""
    return [
        f"{path.relative_to(PACKAGE)}:{line}: {text}"
        for path in FILES if room_of(path) == room
        for line, text in messages(path) if not FORMS.fullmatch(text)
    ]  # fmt: skip


@pytest.mark.parametrize("room", ROOMS)
def test_messages_have_the_form_or_are_counted(room):
    others = others_in(room)
    assert len(others) <= SENTENCES.get(room, 0), "\n".join(others)


def test_no_message_has_an_idiom():
    wrong = [
        f"{path.relative_to(PACKAGE)}:{line}: {text}"
        for path in FILES for line, text in messages(path) if IDIOMS.search(text)
    ]  # fmt: skip
    rooms = Counter(re.split(r"[/.]", line)[0] for line in wrong)
    assert not rooms - Counter(LEFT), "\n".join(wrong)


def test_the_forms_tell_good_from_bad():
    good = "quantize: x must be a matrix, got shape {}", "unknown format {}: {}"
    bad = "n={}: an integer >= 1 is needed", "x must be a matrix", "{}: K differs", "shape {}: no array is as large"
    assert [bool(FORMS.fullmatch(text)) for text in (*good, *bad)] == [True] * len(good) + [False] * len(bad)
    assert IDIOMS.search(bad[0])
    rooms = Counter(room_of(path) for path in FILES for _ in messages(path))
    assert rooms["scaling"] > 50 < rooms["cli"], "the messages are not found"
