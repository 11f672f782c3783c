"""All-reduces of Open MPI in real processes have the bits of the catalogue's."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from peers import peer
from received import differing

pytestmark = pytest.mark.peers


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 8])
def test_openmpi(tmp_path, ranks):
    peer("mpi4py")
    if (mpirun := shutil.which("mpirun")) is None:
        pytest.skip("mpirun is not installed: apt-get install openmpi-bin")
    done = subprocess.run(
        [mpirun, "--oversubscribe", "-np", str(ranks), sys.executable, str(Path(__file__).with_name("ranks.py")), "mpi",
         str(tmp_path)],
        capture_output=True, text=True, timeout=60, check=False,
        env=os.environ | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    wrong, total = differing(tmp_path, ranks, "openmpi")
    assert wrong == 0
    assert total > ranks * 400_000
    assert differing(tmp_path, ranks, "gloo")[0] > 0 or ranks == 2
