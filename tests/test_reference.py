"""Reference data: found, compared with their hashes, and refused where they are not what the table says."""

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from lowprec import reference
from lowprec.reference import ReferenceDataError

HEAD = "# Reference data\n\n| file | what | source | command | sha256 |\n|---|---|---|---|---|\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of two files with a table."""
    (tmp_path / "a.json").write_text('{"x": [1, 2]}')
    np.savez(tmp_path / "b.npz", y=np.arange(3))
    rows = "".join(
        f"| {name} | what | source | `make {name}` | {hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()} |\n"
        for name in ("a.json", "b.npz")
    )
    (tmp_path / "README.md").write_text(HEAD + rows + "\nMore text.\n")
    return tmp_path


def test_everything_that_is_committed_is_as_recorded() -> None:
    checked = reference.verify()
    assert {entry.file for entry in checked} >= {"golden_losses.json"}
    assert all(entry.what and entry.source and entry.command for entry in checked)
    assert reference.folder() == Path(__file__).parents[1] / "reference_data"
    golden = (reference.folder() / "golden_losses.json").read_text()
    assert reference.load_json("golden_losses.json") == json.loads(golden)


def test_files_are_loaded(folder: Path) -> None:
    assert reference.load_json("a.json", folder) == {"x": [1, 2]}
    assert reference.load_arrays("b.npz", folder)["y"].tolist() == [0, 1, 2]
    assert [entry.file for entry in reference.verify(folder)] == ["a.json", "b.npz"]
    assert reference.entries(folder)["b.npz"].command == "make b.npz"


def test_a_changed_file_is_refused(folder: Path) -> None:
    (folder / "a.json").write_text('{"x": [1, 3]}')
    with pytest.raises(ReferenceDataError, match=r"a\.json must have SHA-256 .*, got .*; made by: make a\.json"):
        reference.load_json("a.json", folder)
    with pytest.raises(ReferenceDataError, match=r"a\.json must have SHA-256 \w{64}, as in the table, got"):
        reference.verify(folder)


def test_a_missing_file_an_unknown_one_and_a_stray_one(folder: Path) -> None:
    with pytest.raises(KeyError, match=r"unknown reference data 'c\.npz': expected one of a\.json, b\.npz"):
        reference.path("c.npz", folder)
    (folder / "deep").mkdir()
    shutil.copy(folder / "b.npz", folder / "deep" / "c.npz")
    with pytest.raises(ReferenceDataError, match=r"no row for deep/c\.npz"):
        reference.verify(folder)
    (folder / "b.npz").unlink()
    with pytest.raises(ReferenceDataError, match=r"b\.npz: No such file or directory; made by: make b\.npz"):
        reference.path("b.npz", folder)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("no table", "must have a table with the columns file, what, source, command, sha256, got none"),
        (
            HEAD + "| a.json | what | source | command | 12ab |\n",
            r"row 'a\.json' must have 5 cells, the last a SHA-256, got",
        ),
        (HEAD + "| a.json | what | " + "0" * 64 + " |\n", r"row 'a\.json' must have 5 cells, the last a SHA-256, got"),
    ],
)
def test_a_damaged_table_is_refused(folder: Path, table: str, message: str) -> None:
    (folder / "README.md").write_text(table)
    with pytest.raises(ReferenceDataError, match=message):
        reference.entries(folder)


def test_a_wheel_has_its_own_copy(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = tmp_path / "site-packages" / "lowprec"
    package.mkdir(parents=True)
    monkeypatch.setattr(reference, "__file__", str(package / "reference.py"))
    with pytest.raises(ReferenceDataError, match="reference data cannot be found: neither"):
        reference.folder()
    foreign = package.parent / "reference_data"  # beside the package, but no checkout of ours
    shutil.copytree(folder, foreign, ignore=shutil.ignore_patterns("site-packages"))
    shutil.copytree(foreign, package / "_reference_data")
    assert reference.folder() == package / "_reference_data"
    (package.parent / "pyproject.toml").write_text("")
    assert reference.folder() == foreign
