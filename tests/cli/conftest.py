"""Files of numbers that several commands read, and a trainer that takes no time."""

import numpy as np
import pytest
from fake_trainer import FAKE


@pytest.fixture
def matrix(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.random.Generator(np.random.PCG64(0)).standard_normal((32, 256)).astype(np.float32))
    return path


@pytest.fixture
def fake(monkeypatch):
    monkeypatch.setattr("lowprec.study.run.backend.BACKEND", FAKE)
