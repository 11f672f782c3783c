"""Where the fuzzers stand: an empty folder for temporary files, and little more memory than now."""

import resource

import pytest


@pytest.fixture
def little_room(tmp_path, monkeypatch):
    """Put temporary files into a folder of their own, and allow 6 GiB of memory more than now."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr("tempfile.tempdir", None)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (6 << 30), limits[1]))
    yield tmp_path
    resource.setrlimit(resource.RLIMIT_AS, limits)
