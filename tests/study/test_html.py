"""The page: whole, loading nothing, the same numbers as the Markdown, and drawn by a browser."""

import re
import shutil
import subprocess
from html.parser import HTMLParser
from types import SimpleNamespace

import pytest
from contract import branches, command, edited

from lowprec.study import Arm
from lowprec.study.branches.sentences import sentence
from lowprec.study.report import page
from lowprec.study.report.parts import Table, details, warning
from lowprec.study.report.results import Results
from lowprec.study.run.store import StudyError, read_json

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
VOID = {"meta", "br", "link", "img"}


class Checker(HTMLParser):
    """Every tag is closed, every id is there once, every reference stays on the page."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.open, self.ids, self.references, self.text, self.cells = [], [], [], [], []

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.cells.append([])
        elif tag in ("td", "th"):
            self.cells[-1].append("")
        if "id" in found:
            self.ids.append(found["id"])
        for name, value in attributes:
            if name in ("src", "href", "xlink:href"):
                self.references.append(value)
            self.references += re.findall(r"url\(([^)]*)\)", value or "")
        assert tag not in ("script", "iframe", "link", "img", "object")

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)
        if self.open and self.open[-1] in ("td", "th"):
            self.cells[-1][-1] += data.replace("\xa0", " ")  # numbers keep their units beside them

    @property
    def rows(self):
        """The text of every row of a table."""
        return {tuple(row) for row in self.cells}


TOY = branches(Arm("boom", recipe="explodes", pairs=1))


def checked(text):
    checker = Checker()
    checker.feed(text)
    assert checker.open == []
    return checker


@pytest.mark.slow
def test_the_page_is_whole_and_loads_nothing(finished, reported):
    text = (finished / page.PAGE).read_text(encoding="utf-8")
    checker = checked(text)
    assert len(checker.ids) == len(set(checker.ids))
    assert checker.references
    assert all(value.startswith("#") and value[1:] in checker.ids for value in checker.references)
    assert "@import" not in text
    assert text.count("<svg") == 3
    shown = " ".join("".join(checker.text).split())
    for item in reported.outcome.arms:
        assert " ".join(sentence(reported.outcome, item).split()) in shown
    assert "avx" in shown or "cores" in shown  # the environment


def test_markdown_and_page_say_the_same(finished, reported):
    checker = checked((finished / page.PAGE).read_text(encoding="utf-8"))
    rows = [row for part in reported.body if isinstance(part, Table) for row in (part.head, *part.rows)]
    assert len(rows) > len(reported.outcome.arms)
    for row in rows:
        assert "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" in reported.markdown()
        assert tuple(row) in checker.rows


def made(folder, *body, name="toy", made_of=()):
    """Write a report and its page; return the page."""
    folder.mkdir(parents=True, exist_ok=True)
    study = SimpleNamespace(name=name, question="a < b?", tier="T1")
    found = Results(study, folder, None, body, made_of=dict(made_of)).write()
    return found, (folder / page.PAGE).read_text()


def test_what_is_written_by_others_is_text_not_tags(tmp_path):
    body = ("## <h>", "<script>alert(1)</script> `<i>` 3 %, L[arm](w_arm) *x* &amp;", warning(["a & b"]),
            Table(("<x>", "n"), [("<y>", "1.5")]), details("<s>", "</pre>"))  # fmt: skip
    _, shown = made(tmp_path, *body, name="<d>")
    text = "".join(checked(shown).text)
    assert "<script>alert(1)</script> <i> 3\N{NO-BREAK SPACE}%, L[arm](w_arm) *x* &amp;" in text
    assert "<code>&lt;i&gt;</code>" in shown
    assert '<td style="text-align:right">1.5</td>' in shown
    assert "<details><summary>&lt;s&gt;</summary><pre>&lt;/pre&gt;\n</pre></details>" in shown
    assert "<blockquote>\n<ul>\n<li>a &amp; b</li>" in shown


def test_studies_of_other_code_do_not_share_a_page(tmp_path):
    for name, code in (("a", "1"), ("b", "1"), ("c", "0")):
        made(tmp_path / name, name=name, made_of={"code": code})
    shown = page.write([tmp_path / "a", tmp_path / "b"], tmp_path / "both.html", "Studies").read_text()
    assert shown.count("<h2") == 2
    checked(shown)
    with pytest.raises(
        StudyError, match=r"c and a cannot be in one report: they differ in code: '1' then, '0' now \(.then. is"
    ):
        page.write([tmp_path / "a", tmp_path / "c"], tmp_path / "both.html")


def test_results_show_themselves_in_notebooks(finished, reported):
    assert reported._repr_html_().count("<svg") == 3
    assert repr(reported) == f"<Results of toy in {finished}>"


@pytest.mark.slow
def test_one_page_for_a_folder_of_studies(finished, reported, tmp_path):
    for name in ("one", "two"):
        shutil.copytree(finished, tmp_path / name)
    shutil.copytree(finished, tmp_path / "one.1")  # moved aside
    result = command("report", tmp_path)
    assert result.exit_code == 0, result.output
    assert f"wrote {tmp_path / 'report.html'}" in result.stderr
    assert (tmp_path / "report.html").read_text().count("<h2") == 2
    refused = command("report", tmp_path, "--json")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "RUNS must be one study with --json and --csv, got" in refused.stderr
    assert "with one, two" in refused.stderr
    edited("dsv3/c0-s0/run.json", {"fingerprint": {"data": "another"}})(tmp_path / "two")
    mixed = command("report", tmp_path, "--no-plot")
    assert mixed.exit_code == 2
    assert "mixes runs that cannot be compared: dsv3/c0-s0" in mixed.stderr


def test_a_folder_without_studies(tmp_path):
    result = command("report", tmp_path, "--no-plot")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "holds no study" in result.stderr


def test_runs_are_read_by_glob(finished):
    """As anyone would: one query over all runs, and the same numbers as the report."""
    pandas = pytest.importorskip("pandas")
    records = {path.relative_to(finished): read_json(path) for path in finished.glob("*/c*-s*/run.json")}
    rows = [{"arm": path.parts[0], **records[path]} for path in records]
    means = pandas.DataFrame(rows).query("status == 'done'").groupby("arm").validation_loss.mean()
    ours = [run["validation_loss"] for path, run in records.items() if path.parts[0] == "dsv3"]
    assert means["dsv3"] == pytest.approx(sum(ours) / len(ours))


@pytest.mark.skipif(BROWSER is None, reason="no Chromium to draw the page with")
def test_a_browser_draws_the_page(finished, reported, tmp_path):
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run",
             "--disable-sync", "--hide-scrollbars", f"--user-data-dir={tmp_path / 'profile'}"]  # fmt: skip
    uri = (finished / page.PAGE).resolve().as_uri()

    def browse(*more):
        draw = [BROWSER, *flags, *more, uri]
        return subprocess.run(draw, check=True, capture_output=True, timeout=600, text=True).stdout

    for width in (1000, 400):
        browse(f"--window-size={width},2600", f"--screenshot={tmp_path / str(width)}.png")
    from matplotlib.image import imread

    pixels = imread(tmp_path / "1000.png")[:, :, :3]
    assert pixels.shape[:2] == (2600, 1000)
    colored = (pixels.max(axis=2) - pixels.min(axis=2) > 0.3).sum(axis=1)
    dark = (pixels.max(axis=2) < 0.3).sum(axis=1)
    assert (colored[100:900] > 0).sum() > 100  # curves of the first figure
    assert (dark > 0).sum() > 500  # text all down the page
    assert (pixels[:, -12:] > 0.97).all()  # nothing runs out of the page
    pixels = imread(tmp_path / "400.png")[:, :, :3]
    assert (pixels[:, -10:] > 0.97).all()  # nor of a narrow one, where tables and figures scroll
    assert ((pixels.max(axis=2) < 0.3).sum(axis=1) > 0).sum() > 500
    assert browse("--dump-dom").count("<svg") == 3
