"""Registration notes of docs/ablations.md: dates, amendments with reasons, and explanations of unexpected outcomes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from lowprec.study.analysis.findings import NEITHER
from lowprec.study.design import registration

#: Marks of ranges, with their meanings.
LATE, PROTOTYPE = "†", "‡"
LEGEND = {
    LATE: "registered after an earlier result of this study",
    PROTOTYPE: "registered when measurements of a prototype were known",
}


def explained() -> dict[str, dict[str, str]]:
    """Return the sentences of `ablations/explained.json`, by study and by the prose of the expectation."""
    return json.loads((registration.folder() / "explained.json").read_text(encoding="utf-8"))


def since(item: Mapping[str, Any]) -> str:
    """Return the changes since a study ran, from `ablations/since.json`; empty once the study has been rerun."""
    known = json.loads((registration.folder() / "since.json").read_text(encoding="utf-8")).get(item["name"], {})
    return f"Code {known['code']}. {known['since']}" if known.get("code") == item["code"] else ""


def unexpected(item: Mapping[str, Any]) -> list[str]:
    """Return the prose of a study's expectations with outcomes neither expected nor published."""
    return [row[0] for row in item["expectations"]["rows"] if row[-1] == NEITHER]


def neither(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a sentence with the number of unexpected outcomes and links to their explanations."""
    found = {name: unexpected(item) for name, item in results.items()}
    judged = sum(len(item["expectations"]["rows"]) for item in results.values())
    links = ", ".join(
        f"[{name}](#{name}){f' ({len(words)})' * (len(words) > 1)}" for name, words in found.items() if words
    )
    count = sum(map(len, found.values()))
    return f"{count} of {judged} outcomes are neither, each with an explanation: {links}." if count else ""


def marks(name: str) -> dict[str, str]:
    """Return the mark in `LEGEND` of each of a study's ranges, by their words; empty for no mark."""
    known = registration.read(registration.folder()).get(name, registration.Registration())
    found: dict[str, str] = {}
    for version in known.versions:
        for item in version.ranges:
            mark = LATE if version.after_results else PROTOTYPE if item.words in version.prototype else ""
            found.setdefault(f"{item.words}: {item.expected}", mark)
    last = known.versions[-1].ranges if known.versions else ()
    return {item.words: found[f"{item.words}: {item.expected}"] for item in last}


def marked(item: Mapping[str, Any]) -> list[list[str]]:
    """Return the rows of a study's table of expectations, ranges marked whose study or prototype had been measured."""
    known = marks(item["name"])
    return [[f"{row[0]} {known.get(row[0], '')}".rstrip(), *row[1:]] for row in item["expectations"]["rows"]]


def lines(item: Mapping[str, Any]) -> list[str]:
    """Return the Markdown lines after a study's table of expectations."""
    name = item["name"]
    sentences = explained().get(name, {})
    found = [f'- Neither, "{words}": {sentences[words]}' for words in unexpected(item)]
    if not (known := registration.read(registration.folder()).get(name)):
        return [*found, "", "Not registered.", ""]
    first = known.versions[0]
    text = [f"Registered {first.date} ({first.commit})."]
    text += [f"Amended {reason.rstrip('.')}." for reason in known.amendments()]
    shown = {mark for row in marked(item) for mark in LEGEND if row[0].endswith(mark)}
    text += [f"{mark} {LEGEND[mark]}." for mark in LEGEND if mark in shown]
    return [*found, *([""] if found else []), " ".join(text), ""]
