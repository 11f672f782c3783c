"""Which expectations were written down before their study ran: `registered.json`, beside the files of studies.

For each study it holds versions, the first registration and every amendment with its reason; none is ever removed. A
version has the commit and the day on which it was made, every range in words with its hash, and the design: sizes, arms
and when the effects are read. What a study finds is judged by those ranges alone that stand, unchanged, in the last
version.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import lowprec

from ..._files import plain, write_json
from .expectations import NOT_REGISTERED, Expectation, span

REGISTER_FILE = "registered.json"


@dataclass(frozen=True)
class Range:
    """A range as it was registered.

    Attributes
    ----------
    words, quantity, expected, published : str
        What was expected, of which number, and where it would lie, in words.
    hash : str
        Of the expectation's fields, twelve hexadecimal digits.
    """

    words: str
    quantity: str
    expected: str
    published: str
    hash: str

    @classmethod
    def of(cls, item: Expectation) -> Range:
        """Return an expectation as it is registered."""
        return cls(item.words, item.quantity, span(item.expected), span(item.published), hash_of(item))


@dataclass(frozen=True)
class Version:
    """A study's expectations at one time.

    Attributes
    ----------
    commit, date : str
        The commit on which they were registered, and the day.
    ranges : tuple of Range
        What is judged.
    words : str
        Hash of what is not: the study's and its arms' expectations in words, and the margin of equivalence.
    reason : str
        Why they differ from those before; empty for the first.
    after_results : bool
        Whether the study had been run by then.
    prototype : tuple of str
        Words of the ranges, or names of the arms, of which a prototype's measurements were known.
    design : mapping
        What `design_of` returns; empty in versions older than this field.
    """

    commit: str
    date: str
    ranges: tuple[Range, ...]
    words: str
    reason: str = ""
    after_results: bool = False
    prototype: tuple[str, ...] = ()
    design: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @classmethod
    def of(cls, study: Any, commit: str, date: str, **more: Any) -> Version:
        """Return a study's expectations as they are."""
        ranges = tuple(Range.of(item) for item in expectations(study))
        return cls(commit, date, ranges, words_of(study), design=design_of(study), **more)

    @classmethod
    def read(cls, content: Mapping[str, Any]) -> Version:
        """Return what `as_json` made JSON of."""
        ranges = tuple(Range(**item) for item in content["ranges"])
        return cls(**{**content, "ranges": ranges, "prototype": tuple(content.get("prototype", ()))})

    def as_json(self) -> dict[str, Any]:
        """Return the version in JSON's types, without what is as by default."""
        plain = asdict(self)
        return {key: plain[key] for key in plain if plain[key] or key in ("commit", "ranges")}

    def says_the_same(self, other: Version) -> bool:
        """Whether two versions expect the same of the same design, whenever they were made."""
        if [item.hash for item in self.ranges] != [item.hash for item in other.ranges] or self.words != other.words:
            return False
        return not self.design or not other.design or self.design == other.design


@dataclass(frozen=True)
class Registration:
    """The versions of one study's expectations, the last of which holds; none for a study that was not registered."""

    versions: tuple[Version, ...] = ()

    def covers(self, item: Expectation) -> bool:
        """Whether a range stands in the last version as it is."""
        last = self.versions[-1].ranges if self.versions else ()
        return hash_of(item) in {known.hash for known in last}

    def state(self, study: Any) -> str:
        """Return in words what is registered of a study as it is now.

        Examples
        --------
        >>> from lowprec.study import load
        >>> Registration().state(load("promotion"))
        'not registered'
        """
        if not self.versions:
            return NOT_REGISTERED
        first, last = self.versions[0], self.versions[-1]
        amended = f", amended {last.date}" if len(self.versions) > 1 else ""
        if not last.says_the_same(Version.of(study, "", "")):
            return f"changed since {last.date}: {NOT_REGISTERED}"
        return f"{first.date}{amended}"

    def amendments(self) -> tuple[str, ...]:
        """Return the reasons of all amendments, each with its day."""
        return tuple(
            f"{version.date}{', after a run' if version.after_results else ''}: {version.reason}"
            for version in self.versions[1:]
        )

    def marked(self, new: Version) -> Version:
        """Return a version whose ranges that are new are marked as following from a prototype's measurements."""
        old = {item.hash for item in self.versions[-1].ranges} if self.versions else set()
        fresh = tuple(item.words for item in new.ranges if item.hash not in old)
        return replace(new, prototype=tuple(dict.fromkeys((*self.informed(), *fresh))))

    def informed(self) -> tuple[str, ...]:
        """Return the words of those ranges of the last version that a prototype informed."""
        return self.versions[-1].prototype if self.versions else ()


def digest(content: Any) -> str:
    """Return a hash of plain data, twelve hexadecimal digits.

    Examples
    --------
    >>> digest({"expected": (0.5, float("inf"))})
    '183720c8d45b'
    """
    return hashlib.sha256(json.dumps(_plain(content), sort_keys=True).encode()).hexdigest()[:12]


def _plain(value: Any) -> Any:
    """Return JSON's types; numbers as their shortest text, so that 1 and 1.0 are one number and infinity is one."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return repr(float(value)) if isinstance(value, (int, float)) and not isinstance(value, bool) else value


def hash_of(item: Expectation) -> str:
    """Return the hash of an expectation: of all its fields that are not as by default."""
    said = {field.name: getattr(item, field.name) for field in fields(item)}
    return digest({field.name: said[field.name] for field in fields(item) if said[field.name] != field.default})


def expectations(study: Any) -> tuple[Expectation, ...]:
    """Return the expectations of a study of any kind; some kinds have none."""
    return tuple(getattr(study, "expectations", ()))


def words_of(study: Any) -> str:
    """Return the hash of what a study expects in words, and of its margin."""
    arms = {arm.name: getattr(arm, "expected", "") for arm in study.arms}
    margin = getattr(study, "margin", math.nan)
    return digest({"expected": getattr(study, "expected", ""), "arms": arms, "margin": margin})


def design_of(study: Any) -> dict[str, Any]:
    """Return what a study runs, in JSON's types: sizes, arms, data seeds, and when effects are read.

    Examples
    --------
    >>> from lowprec.study import load
    >>> design_of(load("fp8_vs_bf16"))["arms"]["dsv3"]
    'treatment: dsv3'
    """
    arms = {
        arm.name: f"{getattr(arm, 'role', '')}: {getattr(arm, 'recipe_name', '')}".strip(": ") for arm in study.arms
    }
    settings = {arm.name: plain(arm.config) for arm in study.arms if getattr(arm, "config", {})}
    read = (
        "at the full size" if getattr(study, "interim", True) else "once, when all runs of the full size are finished"
    )
    sizes = {name: plain(getattr(study, name)) for name in ("quick", "full")}
    # What is 0 or empty is left out: a field that sizes may get later changes no registration.
    found: dict[str, Any] = {name: {key: size[key] for key in size if size[key]} for name, size in sizes.items()}
    found |= {"arms": arms, "effects are read": read}
    found |= {"configurations": settings} if settings else {}
    return found | ({"series": study.series} if hasattr(study, "series") else {})


def commit_of(folder: Path) -> str:
    """Return the commit that a folder is at, short; empty outside of a repository."""
    command = ["git", "-C", os.fspath(folder), "rev-parse", "--short=12", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


# --- the file --------------------------------------------------------------------------------------------------------


def read(folder: Path) -> dict[str, Registration]:
    """Return the registrations in a folder's file, by study; none if there is no file.

    Raises
    ------
    ValueError
        If the file is damaged.
    """
    path = folder / REGISTER_FILE
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return {
            name: Registration(tuple(Version.read(version) for version in versions))
            for name, versions in content.items()
        }
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{path} is damaged ({type(error).__name__}: {error}); git has it as it was") from None


def write(folder: Path, found: Mapping[str, Registration]) -> Path:
    """Write registrations into a folder's file, by name."""
    path = folder / REGISTER_FILE
    content = {name: [version.as_json() for version in found[name].versions] for name in sorted(found)}
    write_json(path, content)
    return path


def register(found: Registration, new: Version) -> Registration:
    """Return a registration with a version more.

    Parameters
    ----------
    found : Registration
        What there is.
    new : Version
        What the study expects now. After the first it needs a reason; that may also be of something beside the ranges,
        a size or a note.

    Raises
    ------
    ValueError
        If the reason is missing.
    """
    if not found.versions:
        return Registration((replace(new, reason=""),))
    last = found.versions[-1]
    if not new.reason and last.says_the_same(new):
        raise ValueError(f"nothing differs from what was registered on {last.date}")
    if not new.reason:
        changed = sorted(_words(new.ranges) ^ _words(last.ranges))
        changed = changed or ["what it expects in words" if new.words != last.words else "its sizes or arms"]
        raise ValueError(f"registered on {last.date} and changed since ({'; '.join(changed)}): a reason is needed")
    return Registration((*found.versions, new))


def _words(ranges: Iterable[Range]) -> set[str]:
    return {f"{item.words}: {item.expected or 'anything'}" for item in ranges}


def keep(folder: Path, study: Any, found: Registration) -> None:
    """Write what is registered of a study into the folder of its runs, before the first of them; once."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{str(folder)!r} cannot be written: {error.strerror}") from None
    if not (folder / REGISTER_FILE).exists():
        write(folder, {study.name: found})


# --- where it stands -------------------------------------------------------------------------------------------------


def folder() -> Path:
    """Return the folder with the ablation files: the checkout's, or the one inside an installed wheel."""
    package = Path(lowprec.__file__).resolve().parent
    checkout = package.parent / "ablations"
    if checkout.is_dir() and (package.parent / "pyproject.toml").is_file():
        return checkout
    return package / "_ablations"


def home(name: str) -> Path:
    """Return the folder where an ablation's file lies, by its name or path: `registered.json` stands there."""
    return Path(name).resolve().parent if name.endswith(".py") else folder()


def registered_of(name: str, study: str) -> Registration:
    """Return what is registered of a study whose file has this name or path."""
    return read(home(name)).get(study, Registration())


def registered_in(runs: Path, study: str) -> Registration:
    """Return what was registered of a study when the runs in a folder began.

    The folder has a copy of that since then; without one, what the package's own file says of a study of this name.
    """
    where = runs if (runs / REGISTER_FILE).is_file() else folder()
    return read(where).get(study, Registration())
