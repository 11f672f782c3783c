"""SIGKILL at random moments: what is left is whole, and goes on to the bits of a run that nobody disturbed."""

import contextlib
import os
import random
import signal
import subprocess
import time

import pytest
from runs import FILES, WORKS, check_whole, command, environment, left_by, results, study, train_micro

MORE = pytest.param(50, marks=pytest.mark.exhaustive)

TRAIN = """
import sys
from pathlib import Path
from runs import train_micro
train_micro(Path(sys.argv[1]), int(sys.argv[2]), resume=True, progress=lambda record: print(record.step, flush=True))
"""

ABLATE = """
import sys
from pathlib import Path
from runs import study
if __name__ == "__main__":
    print("begins", flush=True)
    study(Path(sys.argv[1]), jobs=2)
"""


@pytest.mark.ci
@pytest.mark.parametrize("kills", [3, MORE])
def test_a_run_that_is_killed_again_and_again(tmp_path, kills):
    folder, chance, steps, seen = tmp_path / "killed", random.Random(kills), 8 * kills, []
    for _ in range(kills):
        call = command(TRAIN, folder, steps)
        with subprocess.Popen(call, env=environment(), stdout=subprocess.PIPE, text=True) as process:
            seen.append(int(process.stdout.readline()))  # it trains and saves by now
            time.sleep(chance.uniform(0, 0.3))  # a few steps, each with a save
            process.kill()
        assert process.returncode == -signal.SIGKILL
        check_whole(folder)
    assert seen[-1] > 1  # it did go on
    train_micro(folder, steps, resume=True, save_every=steps)
    train_micro(tmp_path / "whole", steps, save_every=steps)
    assert left_by(folder) == left_by(tmp_path / "whole")
    assert sorted(os.listdir(folder)) == [*FILES]


@pytest.mark.ci
@pytest.mark.parametrize("kills", [3, MORE])
def test_a_study_that_is_killed_again_and_again(tmp_path, kills):
    """The study's process or all of its workers with it; where it came to its end meanwhile, the next one is new."""
    expected = results(study(tmp_path / "whole"))
    chance, unfinished, folder = random.Random(kills), 0, tmp_path / "killed0"
    for kill in range(kills):
        process = subprocess.Popen(
            command_file(tmp_path, ABLATE, folder), env=environment(FAKE_STEP_SECONDS="0.05"), stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True, start_new_session=True,
        )  # fmt: skip
        try:
            process.stdout.readline()
            time.sleep(chance.uniform(0, 3.0))
            if process.poll() is None and chance.random() < 0.5:
                process.kill()
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        wait_for_group(process.pid)
        left = folder / "toy"
        WORKS["study"].check_whole(left)
        found = results(left)
        done = {name: value for name, value in found.items() if value[0]["status"] == "done"}
        assert done.items() <= expected.items()
        unfinished += len(done) < len(expected)
        if len(done) == len(expected) or kill == kills - 1:
            assert results(study(folder)) == expected
            folder = tmp_path / f"killed{kill + 1}"
    assert unfinished >= kills // 3  # most were killed in the middle


def command_file(folder, program, *arguments):
    """Workers import the main module anew, so it has to be a file."""
    path = folder / "program.py"
    path.write_text(program)
    return [*command("")[:1], str(path), *map(str, arguments)]


def wait_for_group(group):
    """Wait until the workers of a killed process are gone: they hold no lock."""
    with contextlib.suppress(ProcessLookupError):
        for _ in range(6000):  # five minutes, which a machine with other work may need
            os.killpg(group, 0)
            time.sleep(0.05)
        raise AssertionError("workers outlive their study")
