"""Registered expectations: `registered.json`, in the folder of ablation files, records them before a study runs.

For each study the file holds versions: the first registration and every amendment, with its reason. No version is ever
removed. A version has its commit and date, all ranges with their hashes, and the design: sizes, arms, and when the
effects are read. Results are judged only by ranges that are unchanged in the last version.
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

from ..._files import to_jsonable, write_json
from .expectations import NOT_REGISTERED, Expectation, span

REGISTER_FILE = "registered.json"
#: Names of fields in registered hashes, where they differ: registered ranges must not change.
HASHED_AS = {"condition": "stress"}


@dataclass(frozen=True)
class Range:
    """A registered range.

    Attributes
    ----------
    words, quantity, expected, published : str
        Expected finding in prose, the measured number, and the expected and published ranges as text.
    hash : str
        Hash of the expectation's fields, twelve hexadecimal digits.
    """

    words: str
    quantity: str
    expected: str
    published: str
    hash: str

    @classmethod
    def of(cls, item: Expectation) -> Range:
        """Return the registered form of an expectation."""
        return cls(item.words, item.quantity, span(item.expected), span(item.published), hash_of(item))


@dataclass(frozen=True)
class Version:
    """A study's expectations at one time.

    Attributes
    ----------
    commit, date : str
        Commit and day of the registration.
    ranges : tuple of Range
        Ranges that results are judged by.
    words : str
        Hash of the rest: the expectations in prose of the study and its arms, and the equivalence margin.
    reason : str
        Reason for the amendment; empty for the first version.
    after_results : bool
        Whether the study had already been run.
    prototype : tuple of str
        Ranges (by their prose) and arms for which measurements of a prototype were known.
    design : mapping
        Result of `design_of`; empty in versions older than this field.
    """

    commit: str
    date: str
    ranges: tuple[Range, ...]
    words: str
    reason: str = ""
    after_results: bool = False
    prototype: tuple[str, ...] = ()
    design: Mapping[str, str] = field(default_factory=dict, hash=False)

    @classmethod
    def of(cls, study: Any, commit: str, date: str, **more: Any) -> Version:
        """Return a version with the current expectations and design of a study."""
        ranges = tuple(Range.of(item) for item in expectations(study))
        return cls(commit, date, ranges, words_of(study), design=design_of(study), **more)

    @classmethod
    def read(cls, content: Mapping[str, Any]) -> Version:
        """Return a version from its JSON form."""
        ranges = tuple(Range(**item) for item in content["ranges"])
        return cls(**{**content, "ranges": ranges, "prototype": tuple(content.get("prototype", ()))})

    def as_json(self) -> dict[str, Any]:
        """Return the version in JSON types, without fields that have default values."""
        plain = asdict(self)
        return {key: plain[key] for key in plain if plain[key] or key in ("commit", "ranges")}

    def says_the_same(self, other: Version) -> bool:
        """Return whether two versions have the same expectations and design, whatever their dates."""
        if [item.hash for item in self.ranges] != [item.hash for item in other.ranges] or self.words != other.words:
            return False
        return not self.design or not other.design or self.design == other.design


@dataclass(frozen=True)
class Registration:
    """Versions of one study's expectations, the last of which is in force; empty if the study was not registered."""

    versions: tuple[Version, ...] = ()

    def covers(self, item: Expectation) -> bool:
        """Return whether the last version contains this range unchanged."""
        last = self.versions[-1].ranges if self.versions else ()
        return hash_of(item) in {known.hash for known in last}

    def state(self, study: Any) -> str:
        """Return a comparison of the study's expectations with the registered ones, as a string.

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
        """Return the reasons of all amendments, each with its date."""
        return tuple(
            f"{version.date}{', after a run' if version.after_results else ''}: {version.reason}"
            for version in self.versions[1:]
        )

    def marked(self, new: Version) -> Version:
        """Return `new` with the ranges that the last version lacks marked as informed by a prototype's measurements."""
        old = {item.hash for item in self.versions[-1].ranges} if self.versions else set()
        fresh = tuple(item.words for item in new.ranges if item.hash not in old)
        return replace(new, prototype=tuple(dict.fromkeys((*self.informed(), *fresh))))

    def informed(self) -> tuple[str, ...]:
        """Return the ranges (by their prose) and arms of the last version that a prototype informed."""
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
    """Return a value in JSON types, with numbers as their shortest strings: 1 equals 1.0, and infinity is allowed."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return repr(float(value)) if isinstance(value, (int, float)) and not isinstance(value, bool) else value


def hash_of(item: Expectation) -> str:
    """Return the hash of an expectation's fields, except those that have their default values."""
    changed = {
        field.name: getattr(item, field.name) for field in fields(item) if getattr(item, field.name) != field.default
    }
    return digest({HASHED_AS.get(name, name): value for name, value in changed.items()})


def expectations(study: Any) -> tuple[Expectation, ...]:
    """Return the expectations of a study of any kind; empty for kinds without them."""
    return tuple(getattr(study, "expectations", ()))


def words_of(study: Any) -> str:
    """Return the hash of a study's expectations in prose and of its margin."""
    arms = {arm.name: getattr(arm, "expected", "") for arm in study.arms}
    margin = getattr(study, "margin", math.nan)
    return digest({"expected": getattr(study, "expected", ""), "arms": arms, "margin": margin})


def design_of(study: Any) -> dict[str, str]:
    """Return the design of a study as text: sizes, arms, block of data seeds, and when effects are read.

    Examples
    --------
    >>> from lowprec.study import load
    >>> design_of(load("promotion"))["full"]
    'config=pilot, checkpoint_steps=400, checkpoints=4, seeds=4, learning_rate=0.002, warmup_steps=20'
    """
    arms = (_settings(arm, ("name", "recipe_name", "pairs", "config", "calibration")) for arm in study.arms)
    found = {name: _settings(size, [item.name for item in fields(size)])
             for name, size in (("quick", study.quick), ("full", study.full))}  # fmt: skip
    found["arms"] = "; ".join(arms)
    if not getattr(study, "interim", True):
        found["stopping"] = "effects are read once, when all runs of the full size are finished"
    return found | ({"seed_block": str(study.seed_block)} if hasattr(study, "seed_block") else {})


def _settings(item: Any, names: Iterable[str]) -> str:
    """Return fields as text, without those that are 0 or empty, so that a new field does not change registrations."""
    found = {name: getattr(item, name, None) for name in names}
    given = {
        name: value if isinstance(value, str) else json.dumps(to_jsonable(value))
        for name, value in found.items()
        if value
    }
    return ", ".join(f"{name}={value}" for name, value in given.items())


def commit_of(folder: Path) -> str:
    """Return the abbreviated commit of a folder's repository; empty outside of a repository."""
    command = ["git", "-C", os.fspath(folder), "rev-parse", "--short=12", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


# --- the file --------------------------------------------------------------------------------------------------------


def read(folder: Path) -> dict[str, Registration]:
    """Return the registrations in a folder's file, by study; empty if the file does not exist.

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
    """Write registrations into a folder's file, sorted by name."""
    path = folder / REGISTER_FILE
    content = {name: [version.as_json() for version in found[name].versions] for name in sorted(found)}
    write_json(path, content)
    return path


def register(found: Registration, new: Version) -> Registration:
    """Return a registration with one more version.

    Parameters
    ----------
    found : Registration
        Previous registration.
    new : Version
        Current expectations. Every version after the first must have a reason, even if only a size or a note changed.

    Raises
    ------
    ValueError
        If the reason is missing.
    """
    if not found.versions:
        return Registration((replace(new, reason=""),))
    last = found.versions[-1]
    if not new.reason and last.says_the_same(new):
        raise ValueError(f"the study is registered already, on {last.date}, with the same ranges")
    if not new.reason:
        changed = sorted(_words(new.ranges) ^ _words(last.ranges))
        changed = changed or ["what it expects in words" if new.words != last.words else "its sizes or arms"]
        raise ValueError(
            f"the study has changed since it was registered on {last.date} ({'; '.join(changed)}); give --reason"
        )
    return Registration((*found.versions, new))


def _words(ranges: Iterable[Range]) -> set[str]:
    return {f"{item.words}: {item.expected or 'anything'}" for item in ranges}


def keep(folder: Path, study: Any, found: Registration) -> None:
    """Write the registration of a study into the folder of its runs, once, before the first run."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{str(folder)!r} cannot be written: {error.strerror}") from None
    if not (folder / REGISTER_FILE).exists():
        write(folder, {study.name: found})


# --- places of the file -----------------------------------------------------------------------------------------------


def folder() -> Path:
    """Return the folder with the ablation files: in the checkout, or inside an installed wheel."""
    package = Path(lowprec.__file__).resolve().parent
    checkout = package.parent / "ablations"
    if checkout.is_dir() and (package.parent / "pyproject.toml").is_file():
        return checkout
    return package / "_ablations"


def home(name: str) -> Path:
    """Return the folder of an ablation's file, given by name or path; `registered.json` is in the same folder."""
    return Path(name).resolve().parent if name.endswith(".py") else folder()


def registered_of(name: str, study: str) -> Registration:
    """Return the registration of a study, given the name or path of its file."""
    return read(home(name)).get(study, Registration())


def registered_in(runs: Path, study: str) -> Registration:
    """Return the registration of a study as it was when the runs in a folder began.

    The folder holds a copy since that time. Without a copy, return the registration in the package's file.
    """
    where = runs if (runs / REGISTER_FILE).is_file() else folder()
    return read(where).get(study, Registration())
