"""Outputs of real tensor cores, bit for bit: H100 and H200 (`wgmma`, c = 0), Ada and L40S (`mma.sync`, any c)."""

import numpy as np
import pytest
from recordings import diagonal_mma, needs_recordings, recording

from lowprec import oracle
from lowprec.oracle import ADA_FP8, HOPPER_FP8, Rule

OUTPUTS = 5000  # in every file
MACHINES: dict[str, tuple[str, Rule]] = {
    "H100": ("hopper_fp8", HOPPER_FP8),
    "H200": ("hopper_fp8", HOPPER_FP8),
    "Ada": ("ada_fp8", ADA_FP8),
    "L40S": ("ada_fp8", ADA_FP8),
}
FILES = [(gpu, name) for gpu in MACHINES for name in ("e4m3", "e5m2")]
IDS = [f"hw_km_{gpu}_{name}_f32.npz-{OUTPUTS}-outputs" for gpu, name in FILES]

pytestmark = needs_recordings


@pytest.mark.parametrize(("gpu", "name"), FILES, ids=IDS)
def test_mma_gives_the_recorded_bits(gpu: str, name: str) -> None:
    r = recording(gpu, name)
    assert r.d.shape == (OUTPUTS,), f"{r.name} holds {len(r.d)} outputs"
    wrong = np.flatnonzero(diagonal_mma(r, MACHINES[gpu][0]) != r.d)
    assert wrong.size == 0, f"{r.name}: {wrong.size} of {OUTPUTS} outputs differ, first row {wrong[:1]}"


@pytest.mark.parametrize(("gpu", "name"), FILES, ids=IDS)
def test_oracle_gives_the_recorded_bits(gpu: str, name: str) -> None:
    """Every tenth output here; test_mutants.py takes all of the distinct files."""
    r = recording(gpu, name)
    for i in range(0, OUTPUTS, 10):
        got = oracle.fused_dot(r.a[i].tolist(), r.b[i].tolist(), int(r.c[i]), MACHINES[gpu][1], r.fields, r.fields)
        assert got == r.d[i], f"{r.name}: row {i}"


@pytest.mark.parametrize("name", ["e4m3", "e5m2"])
def test_what_the_recordings_contain(name: str) -> None:
    """So that a green run means what it says: Hopper's c are zero, Ada's are not, twins recorded the same inputs."""
    for gpu, twin in (("H100", "H200"), ("Ada", "L40S")):
        r, other = recording(gpu, name), recording(twin, name)
        assert all(np.array_equal(getattr(r, x), getattr(other, x)) for x in "abcd")
        assert np.any(r.c != 0) == (gpu == "Ada")
        assert r.a.shape == r.b.shape == (OUTPUTS, 32)
