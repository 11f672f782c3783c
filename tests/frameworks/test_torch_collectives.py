"""All-reduces of PyTorch's gloo in real processes on the loopback have the bits of the catalogue's."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.torch
COLLECTIVE = Path(__file__).parents[1] / "collective"
sys.path.insert(0, str(COLLECTIVE))  # `received` is beside the program that the ranks run
from received import differing  # noqa: E402

RANKS = (2, 3, 4, 5, 8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gloo")
    numbers = ",".join(map(str, RANKS))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(COLLECTIVE / "ranks.py"), "gloo", str(folder), numbers],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("ranks", RANKS)
def test_gloo(folder, ranks):
    wrong, total = differing(folder, ranks, "gloo")
    assert wrong == 0
    assert total > ranks * 800_000
    assert differing(folder, ranks, "ring")[0] > 0 or ranks == 2  # the start of a ring is seen
