"""Made files are what would be made today, and speak of what there is; the site's links lead to files."""

import doctest
import html
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import nbclient
import nbformat
import pytest
import refresh

import lowprec as lp

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


@pytest.fixture(autouse=True)
def makers_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    for path in refresh.PATHS:
        monkeypatch.syspath_prepend(str(path))


@pytest.mark.slow
@pytest.mark.parametrize("target", refresh.PAGES)
def test_pages_are_current(target: str) -> None:
    current = (ROOT / target).read_text(encoding="utf-8") == refresh.page(target)
    assert current, f"run: {refresh.COMMAND}"


@pytest.mark.parametrize("target", refresh.RECORDS)
def test_records_have_every_entry_and_no_other(target: str) -> None:
    text, entries = refresh.record(target, compute=False)
    current = (ROOT / target).read_text(encoding="utf-8") == text
    assert current, f"run: {refresh.COMMAND}; {entries}"


def test_every_maker_is_known() -> None:
    makers = {path.stem for folder in ("docs", "reference_data") for path in (ROOT / folder).glob("make_*.py")}
    known = {name.split(".")[0] for name in (*refresh.RECORDS.values(), *refresh.PAGES.values())}
    # Constants, which no entry changes; and drawings, whose titles the next test compares.
    assert makers - known == {"make_logfmt_tables", "make_figures"}


@pytest.mark.slow
def test_figures_of_studies_have_the_verdicts_published_today() -> None:
    maker = importlib.import_module("make_figures")
    names = [file.stem.removesuffix("_pairs") for file in maker.RESULTS.glob("*_pairs.csv")]
    assert len(names) > 20
    for name in names:
        report = (maker.RESULTS / f"{name}.md").read_text(encoding="utf-8")
        for figure in maker.figures(name):
            drawing = (maker.RESULTS / f"{figure.stem}.svg").read_text(encoding="utf-8")
            assert f"<title>{html.escape(figure.title, quote=False)}</title>" in drawing, f"{refresh.COMMAND} --figures"
            assert f"![{figure.title}]({figure.stem}.svg)" in report


def test_reports_of_quick_sizes_have_no_verdicts() -> None:
    maker = importlib.import_module("make_figures")
    told = "- a: training effect +0.1 % (90 % interval [+0.0, +0.2] %, 8 pairs): worse than b; forward effect +0.1 %."
    tables = (
        "| arm | verdict |\n|---|---|\n| a | worse |\n\n- a against b: +0.1 % (95 % interval [+0.0, +0.2] %), worse."
    )
    found = "| arm | expected | source | found |\n|---|---|---|---|\n| a | worse |  | worse (+0.1 %) |"
    report = f"# x\n\nWhy?\n\n{told}\n\n{tables}\n\n{found}\n"
    bare = maker.without_verdicts(report)
    assert bare == maker.without_verdicts(bare)
    assert bare == (
        "# x\n\nWhy?\n\n*A quick size, no verdicts.*\n\n"
        "- a: training effect +0.1 % (90 % interval [+0.0, +0.2] %, 8 pairs); forward effect +0.1 %.\n\n"
        "| arm |\n|---|\n| a |\n\n- a against b: +0.1 % (95 % interval [+0.0, +0.2] %).\n\n"
        "| arm | expected | source | found |\n|---|---|---|---|\n| a | worse |  | +0.1 % |\n"
    )


def test_what_is_said_of_entries_is_said_of_known_ones() -> None:
    formats = importlib.import_module("make_formats")
    documented = {*formats.DIFFER, *formats.GFLOAT, *formats.TORCH, *formats.ML_DTYPES, *formats.PROBES}
    assert documented <= set(lp.formats.names())
    assert set(importlib.import_module("make_quantizers").CHECKED) <= set(lp.quantizers.names())


def site() -> Iterator[tuple[str, str]]:
    """Return the site's pages as Markdown, before Sphinx reads them."""
    links = importlib.import_module("website.links")
    for path in links.outside():
        yield path, links.links((ROOT / path).read_text(encoding="utf-8"), path)
    yield from importlib.import_module("website.findings").pages()


def test_pictures_are_where_links_lead() -> None:
    mirror = f"/{importlib.import_module('website.links').MIRROR}/"
    shown = [(page, target) for page, text in site() for target in re.findall(r"\]\(([^)\s]+\.(?:svg|png))\)", text)]
    assert sum(page.startswith("generated/findings/") for page, _ in shown) >= 25

    def there(target: str) -> bool:
        return (ROOT / target.removeprefix(mirror) if target.startswith(mirror) else Path(f"{DOCS}{target}")).is_file()

    assert [(page, target) for page, target in shown if not (target.startswith("/") and there(target))] == []


def test_examples_of_links_run() -> None:
    found = doctest.testmod(importlib.import_module("website.links"))
    assert (found.failed, found.attempted > 0) == (0, True)


@pytest.mark.ci
@pytest.mark.parametrize(
    "name",
    [
        "accumulators.md",
        "attention.md",
        "batch.md",
        "codecs.md",
        "collectives.md",
        "costs.md",
        "golden.md",
        "identify.md",
        "logfmt.md",
        "orders.md",
        "own.md",
        "start.md",
        "tolerances.md",
    ],
)
def test_examples_run(name: str) -> None:
    found = doctest.testfile(str(DOCS / name), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert (found.failed, found.attempted > 0) == (0, True)


# --- the notebook -----------------------------------------------------------------------------------------------------


NOTEBOOK = Path(__file__).parents[1] / "docs" / "examples" / "objects.ipynb"


@pytest.mark.ci
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Jupyter's own
def test_the_notebook_runs(tmp_path):
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "kept without outputs, which would be stale one day"
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [
        output["data"] for cell in notebook.cells if cell.cell_type == "code"
        for output in cell.outputs if output.output_type in ("execute_result", "display_data")
    ]  # fmt: skip
    assert sum("text/html" in data for data in shown) == 7
    assert sum("image/png" in data for data in shown) == 2
