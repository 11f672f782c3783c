"""Results of a finished study, and the writer of its report: figures, Markdown, tables, JSON and the page."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..._files import to_csv, to_jsonable, write_json, write_text
from ..analysis.findings import Finding
from ..run.fingerprint import check_mixture, unfinished_error
from ..run.store import FINISHED, RunFolder
from . import page
from .parts import EXPECTED_COLUMNS, Table, environment, expected_table, findings_json, recipe_details
from .sheet import Figure

#: Part of a report: a block of Markdown, a table or a figure.
Block = str | Table | Figure


@dataclass(frozen=True, eq=False)
class Results:
    """Results of a study, with its report.

    Attributes
    ----------
    study : Any
        The study: its name, question and tier.
    folder : Path
        Folder of the report.
    outcome : Any
        Results in the form of the kind of study.
    body : sequence of str, Table or Figure
        Content of the report, after name and question.
    tables : mapping of str to str
        Contents of the CSV files, by name.
    json : mapping
        Content of `summary.json`; name, question, tier, `made_of` and the table of expectations are added.
    made_of : mapping
        Code, versions and data of its runs, which all studies of one page must share.
    shown : sequence of Table
        Tables to print.
    sentences : sequence of str
        Sentences to print after the tables.
    invalid_reasons : sequence of str
        Reasons not to trust the study.
    holds : bool
        Whether every published figure that the study measures was reproduced.
    printed : str
        CSV to print instead of the first of `tables` (or the first of `shown`, if `tables` is empty).
    files : sequence of Path
        All written files.
    """

    study: Any
    folder: Path
    outcome: Any
    body: Sequence[Block] = ()
    tables: Mapping[str, str] = field(default_factory=dict)
    json: Mapping[str, Any] = field(default_factory=dict)
    made_of: Mapping[str, Any] = field(default_factory=dict)
    shown: Sequence[Table] = ()
    sentences: Sequence[str] = ()
    invalid_reasons: Sequence[str] = ()
    holds: bool = True
    printed: str = ""
    files: Sequence[Path] = ()

    @property
    def summary_file(self) -> Path:
        """Path of the file with all results in JSON."""
        return self.folder / page.SUMMARY

    @property
    def figures(self) -> list[Figure]:
        """Figures of the report."""
        return [block for block in self.body if isinstance(block, Figure)]

    def table_csv(self) -> str:
        """Return the results as CSV, with exact floats."""
        shown = (to_csv(table.head, table.rows) for table in self.shown)
        return self.printed or next(iter((*self.tables.values(), *shown)))

    def markdown(self, plot: bool = True) -> str:
        """Return the report as Markdown, with figures if `plot`."""
        blocks = [f"# {self.study.name}", self.study.question]
        for block in self.body:
            if isinstance(block, Table):
                blocks += [block.markdown(), block.caption]
            elif isinstance(block, str):
                blocks.append(block)
            elif plot and block.draw is not None:
                blocks += [f"![{block.caption or block.title}]({block.stem}.png)", block.caption]
        return "\n\n".join(filter(None, blocks)) + "\n"

    def write(self, plot: bool = True) -> Results:
        """Write the report into its folder, with figures and page if `plot`; return the results with their files.

        Raises
        ------
        StudyError
            If matplotlib is missing.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        files = [path for figure in self.figures for path in figure.write(self.folder, plot)]
        texts = {page.REPORT: self.markdown(plot), **self.tables}
        for name, text in texts.items():
            write_text(self.folder / name, text)
        about = {"study": self.study.name, "question": self.study.question, "tier": self.study.tier}
        judged = [table for table in self.body if isinstance(table, Table) and table.head == EXPECTED_COLUMNS]
        expectations = [dict(zip(table.head, row, strict=True)) for table in judged for row in table.rows]
        content = {**about, **self.json, "made_of": self.made_of, "expectations": expectations}
        write_json(self.summary_file, to_jsonable(content))
        files += [*(self.folder / name for name in texts), self.summary_file]
        if plot:
            files.append(page.write([self.folder], self.folder / page.PAGE))
        return replace(self, files=files)

    def __repr__(self) -> str:
        return f"<Results of {self.study.name} in {self.folder}>"

    def _repr_html_(self) -> str:
        return page.render(self.folder)


# --- common parts of reports of studies with runs --------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class StoredRuns:
    """Finished runs of one study, checked to be comparable.

    Attributes
    ----------
    found : dict of str to (RunFolder, dict)
        Folders and `run.json` by name.
    first : dict of str to dict
        `run.json` of each arm's first run.
    missing : list of str
        Unfinished runs.
    """

    found: dict[str, tuple[RunFolder, dict[str, Any]]] = field(default_factory=dict)
    first: dict[str, dict[str, Any]] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)

    @property
    def about(self) -> dict[str, Any]:
        """Content of the first run's `run.json`; empty without runs."""
        return next((record for _, record in self.found.values()), {})


def collect(folder: Path, names: Iterable[str], varied: Collection[str] = (), *, partial: bool = False) -> StoredRuns:
    """Read the finished runs of a study.

    Parameters
    ----------
    folder : Path
        Folder of the study.
    names : iterable of str
        Names of its runs, each with the arm and the pair or checkpoint, such as "dsv3/c0-s1".
    varied : collection of str
        Entries of the fingerprint in which arms differ on purpose, see `check_mixture`.
    partial : bool
        Whether runs may be missing.

    Raises
    ------
    StudyError
        If runs are missing, or cannot be compared.
    """
    runs = StoredRuns()
    for name in names:
        run = RunFolder(folder / name)
        record = run.read()  # once: another process may finish the run meanwhile
        if record is None or record.get("status") not in FINISHED:
            runs.missing.append(name)
            continue
        first = runs.first.setdefault(name.partition("/")[0], record)
        check_mixture(folder, name, record, runs.about or record, first, varied)
        runs.found[name] = run, record
    if runs.missing and not partial:
        raise unfinished_error(folder, runs.missing)
    return runs


def expected_blocks(study: Any, findings: Sequence[Finding]) -> list[Block]:
    """Return the blocks of expected, measured and published results, if there are any."""
    blocks: list[Block] = ["## Expected and found", expected_table(findings)] if findings else []
    return [*blocks, *([f"Published: {study.published} ({study.source})."] if study.published else [])]


def last_blocks(study: Any, about: Mapping[str, Any], recipes: Mapping[str, Any] | None = None) -> list[Block]:
    """Return the end of a report: limitations, complete recipes if there are any, environment."""
    limits = ["## What this size cannot show", study.notes] if study.notes else []
    title = "## Environment" if recipes is None else "## Recipes and environment"
    return [*limits, title, *recipe_details(recipes or {}), environment(about)]


def made_of(about: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """Return the entries of a run's record that all studies of one page must share."""
    return {key: about["fingerprint"].get(key) for key in keys or ("code", "versions", "data")} if about else {}


def summary_json(summary: Any, **found: Any) -> dict[str, Any]:
    """Return the content of `summary.json`: entries common to all kinds of study, and the given ones."""
    study = summary.study
    return {
        "ablation": study.name, "setting": summary.setting, "size": summary.size, "published": study.published,
        "source": study.source, **found, "findings": findings_json(summary.findings),
    }  # fmt: skip
