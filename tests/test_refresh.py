"""The command that makes files anew: what it makes, what it leaves alone, and what it says of the rest."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import refresh

PAGE = """
from pathlib import Path
import helper

def page():
    folder = Path(__file__).parents[1] / "data"
    names = sorted(path.name for path in folder.glob("*.txt"))
    return helper.HEAD + (folder / "a.txt").read_text() + " ".join(names)
"""
RECORD = """
from pathlib import Path
from functools import partial

def entry(name):
    return [name, (Path(__file__).parents[1] / "data" / "a.txt").read_text()]

def entries():
    return {("hashes", name): partial(entry, name) for name in NAMES}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with one page, made from a module and a folder, and one record."""
    for folder in ("docs", "reference_data", "data"):
        (tmp_path / folder).mkdir()
    shutil.copy(refresh.__file__, tmp_path / "docs")
    (tmp_path / "docs/helper.py").write_text("HEAD = '# A page\\n'\n")
    (tmp_path / "docs/make_codecs.py").write_text(PAGE)
    (tmp_path / "reference_data/make_definitions.py").write_text(RECORD + "NAMES = ['a', 'b']\n")
    (tmp_path / "data/a.txt").write_text("text\n")
    return tmp_path


def run(project: Path, *arguments: str) -> tuple[int, str]:
    command = [sys.executable, "-B", str(project / "docs/refresh.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_a_page_is_made_when_what_it_is_made_from_has_changed(project: Path) -> None:
    made, fresh = (0, "made     docs/codecs.md\nfresh    0 of 1 files\n"), (0, "fresh    1 of 1 files\n")
    assert run(project, "codecs.md") == made
    assert (project / "docs/codecs.md").read_text() == "# A page\ntext\na.txt"
    assert run(project, "codecs.md") == fresh
    changes = {
        "data/a.txt": "other\n", "data/b.txt": "", "docs/helper.py": "HEAD = '# Another head\\n'\n",
        "docs/codecs.md": "edited by hand",
    }  # fmt: skip
    for file, text in changes.items():
        (project / file).write_text(text)
        assert run(project, "--check", "codecs.md") == (1, "stale    docs/codecs.md\nfresh    0 of 1 files\n"), file
        assert run(project, "docs/codecs.md") == made
    assert (project / "docs/codecs.md").read_text() == "# Another head\nother\na.txt b.txt"
    (project / "docs/helper.py").write_text("HEAD = '# Another head\\n'  # the same text\n")
    assert run(project, "--check", "codecs.md") == fresh


@pytest.mark.slow
def test_entries_of_a_record_are_added_and_dropped_and_changed_by_order_alone(project: Path) -> None:
    file, maker = project / "reference_data/definitions.json", project / "reference_data/make_definitions.py"

    def held() -> dict[str, list[str]]:
        return json.loads(file.read_text())["hashes"]

    assert "definitions.json: entries: hashes a, hashes b\n" in run(project, "definitions.json")[1]
    (project / "data/a.txt").write_text("later\n")
    assert run(project, "definitions.json") == (0, "fresh    1 of 1 files\n")
    maker.write_text(RECORD + "NAMES = ['b', 'c']\n")
    assert run(project, "--check", "definitions.json")[0] == 1
    assert run(project, "definitions.json")[0] == 0
    assert held() == {"b": ["b", "text\n"], "c": ["c", "later\n"]}
    assert "entries: hashes b\n" in run(project, "--rewrite", "definitions.json")[1]
    assert held()["b"] == ["b", "later\n"]


@pytest.mark.slow
def test_what_cannot_be_made_or_is_not_known(project: Path) -> None:
    (project / "docs/helper.py").write_text("import nowhere\n")
    status, output = run(project, "codecs.md")
    assert status == 1
    assert output.startswith("cannot   docs/codecs.md: ModuleNotFoundError: No module named 'nowhere'\n")
    assert run(project, "nothing.md")[0] == run(project, "--rewrite")[0] == 2


def test_what_is_made_by_hand_is_there() -> None:
    assert [name for name in refresh.BY_HAND if not (refresh.ROOT / name).exists()] == []
