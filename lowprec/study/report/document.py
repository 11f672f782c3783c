"""A report as a list of plain parts, written once as Markdown, as HTML (`lowprec.study.report.html`) and as JSON.

A study's report says what it has to say in these parts and knows nothing of either language.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..._files import plain, safe_name, write_json
from ..run.store import StudyError, read_json

DOCUMENT_FILE = "document.json"


@dataclass(frozen=True)
class Heading:
    """A heading inside a study."""

    text: str


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str


@dataclass(frozen=True)
class Bullets:
    """A list; `warning` makes it stand out."""

    items: tuple[str, ...]
    warning: bool = False


@dataclass(frozen=True)
class Figure:
    """A figure: its title, and the stem of its `.svg`, `.png` and `.csv` in the study's folder."""

    title: str
    stem: str

    def __post_init__(self) -> None:
        safe_name("figure", self.stem)


@dataclass(frozen=True)
class Table:
    """A table of text."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""


@dataclass(frozen=True)
class Details:
    """Text in fixed width that is folded away on a page: a recipe, an environment."""

    title: str
    text: str


Part = Heading | Text | Bullets | Figure | Table | Details
_KINDS = {kind.__name__: kind for kind in (Heading, Text, Bullets, Figure, Table, Details)}


@dataclass(frozen=True)
class Document:
    """The report of one study.

    Attributes
    ----------
    name, question, tier : str
        The study.
    parts : tuple
        What it says, in order.
    made_of : dict
        Code, versions and data of its runs: what all studies of one page must have in common.
    folder : Path
        Where the figures are.
    """

    name: str
    question: str
    tier: str
    parts: tuple[Part, ...]
    made_of: dict[str, Any] = field(default_factory=dict)
    folder: Path = Path()

    def write(self, folder: Path) -> Path:
        """Write the document as JSON beside its figures."""
        parts = [{"part": type(part).__name__, **plain(part)} for part in self.parts]
        content = {**plain(replace(self, folder=Path(), parts=())), "parts": parts}
        content.pop("folder")
        write_json(folder / DOCUMENT_FILE, content)
        return folder / DOCUMENT_FILE

    @classmethod
    def read(cls, folder: Path) -> Document:
        """Read what `write` wrote.

        Raises
        ------
        StudyError
            If the file is missing or damaged.
        """
        content = read_json(folder / DOCUMENT_FILE)
        try:
            parts = tuple(_part(item) for item in content.pop("parts"))
            return cls(**content, parts=parts, folder=folder)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise StudyError(f"{folder / DOCUMENT_FILE} cannot be used: {error}") from None


def _part(content: dict[str, Any]) -> Part:
    kind = _KINDS[content.pop("part")]
    found: Part = kind(**{key: _tuples(value) for key, value in content.items()})
    return found


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


def markdown(document: Document) -> str:
    r"""Return a document as Markdown, figures as links to their PNG.

    Examples
    --------
    >>> print(markdown(Document("d", "Why?", "T1", (Bullets(("a",)), Table(("x", "y"), (("1", "|"),))))))
    # d
    <BLANKLINE>
    Why?
    <BLANKLINE>
    - a
    <BLANKLINE>
    | x | y |
    |---|---|
    | 1 | \| |
    <BLANKLINE>
    """
    lines = [f"# {document.name}", "", document.question, ""]
    for part in document.parts:
        match part:
            case Heading(text):
                lines += [f"## {text}", ""]
            case Text(text):
                lines += [text, ""]
            case Bullets(items):
                lines += [*(f"- {item}" for item in items), ""]
            case Figure(title, stem):
                lines += [f"![{title}]({stem}.png)", ""]
            case Table(head, rows, caption):
                lines += [*_table(head, rows), ""] + ([caption, ""] if caption else [])
            case Details(title, text):
                lines += [f"{title}:", "", "```", text.rstrip(), "```", ""]
    return "\n".join(lines)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    escaped = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return [
        "| " + " | ".join(head) + " |",
        "|" + "---|" * len(head),
        *("| " + " | ".join(row) + " |" for row in escaped),
    ]
