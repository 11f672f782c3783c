"""The code of docs/torch.md runs as it is printed."""

import re
from pathlib import Path

import numpy as np
import pytest

import lowprec as lp

pytest.importorskip("torch")
pytest.importorskip("jax")
pytestmark = [pytest.mark.torch, pytest.mark.jax]
PAGE = Path(__file__).parents[2] / "docs" / "torch.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def test_the_code_of_the_page_runs(capsys):
    x = np.ones((4, 128), np.float32)
    q = lp.quantize(x, "e4m3fn 1x128")
    known = {"lp": lp, "x": x, "qx": q, "qw": lp.quantize(x, "e4m3fn 128x128")}
    run = [block for block in BLOCKS if "runs/" not in block]  # a checkpoint of one's own
    assert len(run) == len(BLOCKS) - 1 >= 4
    for block in run:
        exec(block, known)
    assert "products of XLA: 1" in capsys.readouterr().out
