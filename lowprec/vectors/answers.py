"""Answers of somebody's program or file to the inputs of a set, line by line."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Sequence

from .vectors import VectorSet, Words, hex_words, spread


def ask(s: VectorSet, command: str, timeout: float | None = None) -> list[Words]:
    """Stream the inputs of a set to a program's standard input and return its answers.

    A line holds the words of one vector's inputs, hexadecimal, with spaces between; the program answers with a line of
    the words of its results. It may answer each line at once or all at the end.

    Parameters
    ----------
    s : VectorSet
        The set.
    command : str
        Program and arguments; no shell is asked.
    timeout : float, optional
        Seconds.

    Raises
    ------
    ValueError
        If the program cannot be run, fails, or answers with something else.
    """
    arguments = shlex.split(command)
    if not arguments:
        raise ValueError("the command is empty; a program and its arguments are needed")
    text = "".join(hex_words(s.inputs, vector.inputs) + "\n" for vector in s.vectors)
    try:
        done = subprocess.run(arguments, input=text, capture_output=True, text=True, timeout=timeout, check=False)
    except OSError as error:
        raise ValueError(f"{arguments[0]}: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise ValueError(f"{command}: no end after {timeout:g} s") from None
    except UnicodeDecodeError:
        raise ValueError(f"{command}: its answers are no text; lines of hexadecimal words are needed") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing on standard error"])[-1]
        raise ValueError(f"{command}: exit code {done.returncode}: {last}")
    return parse(s, done.stdout.splitlines(), command)


def parse(s: VectorSet, lines: Sequence[str], where: str) -> list[Words]:
    """Read answers: a line a vector with the words of its results, or of its inputs and its results.

    Raises
    ------
    ValueError
        If a line is not that; the message names it.
    """
    own = [line.split("//")[0].split("#")[0] for line in lines]
    answers = [line for line in own if line.strip()]
    if len(answers) != len(s):
        raise ValueError(
            f"{where}: {len(answers)} answers came to the {len(s)} vectors of {s.name}; one a line is needed"
        )
    fields, given = spread(s.results), spread(s.inputs)
    found = []
    for i, line in enumerate(answers):
        words = line.split()
        if len(words) == len(fields) + len(given):
            words = words[len(given) :]
        try:
            numbers = tuple(int(word.removeprefix("0x"), 16) for word in words)
        except ValueError:
            raise ValueError(f"{where}: answer {i}: {line.strip()[:60]!r}: hexadecimal words are needed") from None
        if len(numbers) != len(fields) or any(
            not 0 <= n < 1 << field.bits for n, field in zip(numbers, fields, strict=True)
        ):
            wanted = ", ".join(f"{f.count} of {f.bits} bits ({f.name})" for f in s.results)
            raise ValueError(f"{where}: answer {i}: {line.strip()[:60]!r}: words needed: {wanted}")
        found.append(numbers)
    return found
