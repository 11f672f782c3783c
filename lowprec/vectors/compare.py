"""Compare another implementation's answers with a set: which vectors differ, and which rule explains all of them."""

from __future__ import annotations

import itertools
import math
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..oracle.values import Exact
from .catalogue import split
from .family import Rule
from .vectors import Field, Vector, VectorSet, Words, hex_words, split_words, spread

_MOST = 3
_TRIED = 20_000


def ask(s: VectorSet, command: str, timeout: float | None = None) -> list[Words]:
    """Stream the inputs of a set to a program's standard input and return its answers.

    Each line holds one vector's input words in hexadecimal, separated by spaces. The program answers each with a line
    of result words, immediately or after the last input.

    Parameters
    ----------
    s : VectorSet
        The set.
    command : str
        Program and arguments, run without a shell.
    timeout : float, optional
        Limit of the run time, in seconds.

    Raises
    ------
    ValueError
        If the program cannot be run, fails, or prints anything but such lines.
    """
    arguments = shlex.split(command)
    if not arguments:
        raise ValueError(f"command must be a program and its arguments, got {command!r}")
    text = "".join(hex_words(s.inputs, vector.inputs) + "\n" for vector in s.vectors)
    try:
        done = subprocess.run(arguments, input=text, capture_output=True, text=True, timeout=timeout, check=False)
    except OSError as error:
        raise ValueError(f"{arguments[0]}: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise ValueError(f"{command} did not end within {timeout:g} s") from None
    except UnicodeDecodeError:
        raise ValueError(
            f"{command}: answers must be lines of hexadecimal words, got bytes that are not UTF-8"
        ) from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["nothing on standard error"])[-1]
        raise ValueError(f"{command} failed with exit code {done.returncode}: {last}")
    return parse(s, done.stdout.splitlines(), command)


def parse(s: VectorSet, lines: Sequence[str], where: str) -> list[Words]:
    """Parse answers: one line per vector, with its result words, or its input words and its result words.

    Raises
    ------
    ValueError
        If the number of answers is wrong, or a line has another form; the message quotes the line.
    """
    own = [line.split("//")[0].split("#")[0] for line in lines]
    answers = [line for line in own if line.strip()]
    if len(answers) != len(s):
        raise ValueError(f"{where}: answers must be {len(s)} lines, one per vector of {s.name}, got {len(answers)}")
    fields, given = spread(s.results), spread(s.inputs)
    found = []
    for i, line in enumerate(answers):
        words = line.split()
        if len(words) == len(fields) + len(given):
            words = words[len(given) :]
        try:
            numbers = tuple(int(word.removeprefix("0x"), 16) for word in words)
        except ValueError:
            raise ValueError(f"{where}: answer {i} must be hexadecimal words, got {line.strip()[:60]!r}") from None
        if len(numbers) != len(fields) or any(
            not 0 <= n < 1 << field.bits for n, field in zip(numbers, fields, strict=True)
        ):
            wanted = ", ".join(f"{f.count} of {f.bits} bits ({f.name})" for f in s.results)
            raise ValueError(f"{where}: answer {i} must have {wanted}, got {line.strip()[:60]!r}")
        found.append(numbers)
    return found


@dataclass(frozen=True)
class Difference:
    """A vector with a different answer: its index in the set, the vector, and the answer received."""

    index: int
    vector: Vector
    theirs: Words


@dataclass(frozen=True)
class Comparison:
    """Result of comparing answers with a set.

    Attributes
    ----------
    vectors : VectorSet
        The set.
    differences : tuple of Difference
        Every vector with a different answer.
    explanations : tuple of str
        Rules that reproduce every answer received, the most likely first. There are several if no vector of this set
        distinguishes them.
    nearest : tuple of str and int, optional
        If no rule explains all answers: the rule with the fewest unexplained answers, and their number.
    """

    vectors: VectorSet
    differences: tuple[Difference, ...]
    explanations: tuple[str, ...] = ()
    nearest: tuple[str, int] | None = None

    def __bool__(self) -> bool:
        """Return whether all answers agree with the set."""
        return not self.differences

    @property
    def sentence(self) -> str:
        """Summary of the comparison in one line."""
        s, n = self.vectors, len(self.differences)
        if not n:
            return f"{s.name}: all {len(s)} answers are right"
        text = f"{s.name}: {n} of {len(s)} answers differ"
        which = f"all {n}" if n > 1 else "it"
        if self.explanations:
            tie = " (this set does not distinguish them)" if len(self.explanations) > 1 else ""
            return f"{text}; {which} fit: {', or '.join(self.explanations)}{tie}"
        if self.nearest is not None:
            words, left = self.nearest
            return f"{text}; no known rule gives all answers; nearest: {words}, which leaves {left} unexplained"
        return f"{text}; no known rule explains them"


def compare(s: VectorSet, answers: Sequence[Words]) -> Comparison:
    """Compare answers, one per vector in order, with a set, and look for a rule that reproduces all of them.

    Raises
    ------
    ValueError
        If there are more or fewer answers than vectors.
    """
    if len(answers) != len(s):
        raise ValueError(f"compare: answers must be {len(s)}, one per vector of {s.name}, got {len(answers)}")
    found = tuple(
        Difference(i, vector, theirs)
        for i, (vector, theirs) in enumerate(zip(s.vectors, answers, strict=True))
        if not s.same(vector.results, theirs)
    )
    if not found:
        return Comparison(s, ())
    fit, nearest = _explanations(s, answers, found)
    return Comparison(s, found, fit, nearest)


def _explanations(
    s: VectorSet, answers: Sequence[Words], found: Sequence[Difference]
) -> tuple[tuple[str, ...], tuple[str, int] | None]:
    family, parts = split(s.name)
    theirs: Mapping[Words, Words] = {v.inputs: a for v, a in zip(s.vectors, answers, strict=True)}
    # Differing answers first, from all over the set: most rules are excluded after a few.
    differing = [d.index for d in found]
    order = _spread(differing) + _spread(sorted(set(range(len(s))) - set(differing)))
    fit: list[Rule] = []
    best: tuple[str, int] | None = None
    sample = order[: min(len(found), 48)] + order[len(found) :][:48]
    for rule in itertools.islice(family.rules(parts, theirs), _TRIED):
        if fit and rule.changes > fit[0].changes:
            break
        wrong = next((n for n, i in enumerate(order) if not _gives(rule, s, i, answers[i])), None)
        if wrong is None:
            fit.append(rule)
        elif not fit and (wrong > 2 or best is None):
            left = sum(not _gives(rule, s, i, answers[i]) for i in sample)
            if best is None or left < best[1]:
                best = rule.words, left
    known = [rule.words for rule in fit if not rule.mutant] or [rule.words for rule in fit]
    fit_words = tuple(known[:_MOST])
    if fit or best is None:
        return fit_words, None
    rule = next(r for r in family.rules(parts, theirs) if r.words == best[0])
    left = sum(not _gives(rule, s, i, answers[i]) for i in range(len(s)))
    return (), (best[0], left) if left < len(found) else None


def _gives(rule: Rule, s: VectorSet, i: int, theirs: Words) -> bool:
    return s.same(rule.answer(s.vectors[i].inputs), theirs)


def _spread(items: Sequence[int]) -> list[int]:
    """Reorder items so that the first few are spread over the whole sequence."""
    step = max(len(items) // 37, 1)
    return [items[i] for start in range(step) for i in range(start, len(items), step)]


def shown(fields: Sequence[Field], words: Words, most: int = 4) -> str:
    """Format words as bits and values, at most `most` of each field."""
    parts = []
    for field, own in zip(fields, split_words(words, fields), strict=True):
        parts += [_shown(field, word) for word in own[:most]]
        if len(own) > most:
            parts.append(f"... {len(own)} in all")
    return " ".join(parts)


def _shown(field: Field, word: int) -> str:
    value = field.value(word)
    return f"0x{field.hex(word)}" + ("" if value is None else f" ({number(value)})")


def number(value: Exact) -> str:
    """Format an exact value with few digits."""
    if not isinstance(value, float) and value and not 1e-300 < abs(value) < 1e300:
        return "tiny" if abs(value) < 1 else "huge"
    return "nan" if value != value else f"{float(value):.9g}" if math.isfinite(value) else str(float(value))


def row(s: VectorSet, difference: Difference) -> dict[str, Any]:
    """Return a difference as table cells: index, inputs, both answers, and the label of the vector.

    If a result has several words, only the first that differs is shown.
    """
    vector, theirs = difference.vector, difference.theirs
    fields = spread(s.results)
    words = zip(fields, vector.results, theirs, strict=True)
    any_nan = s.nan == "any"
    at = next(i for i, (f, a, b) in enumerate(words) if a != b and not (any_nan and f.is_nan(a) and f.is_nan(b)))
    several = f"[{at}] " if len(fields) > 1 else ""
    return {
        "vector": difference.index, "input": shown(s.inputs, vector.inputs),
        "theirs": several + _shown(fields[at], theirs[at]), "ours": several + _shown(fields[at], vector.results[at]),
        "exercises": vector.label,
    }  # fmt: skip
