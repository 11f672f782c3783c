"""Disks that fail at every n-th operation, are full, or are gone with the power; processes that are killed at random.

What is left is whole, and goes on to the bits of a run that nobody disturbed.
"""

import contextlib
import errno
import os
import random
import shutil
import signal
import subprocess
import time

import fake_trainer
import numpy as np
import pytest
from click.testing import CliRunner
from disk import Disk, using
from runs import FILES, WORKS, check_whole, command, environment, left_by, results, study, train_micro

import lowprec as lp
from lowprec import _files
from lowprec.cli.app import cli
from lowprec.study.run.store import StudyError

#: A file takes four operations: the stride meets each of them.
EVERY = pytest.mark.parametrize("every", [9, pytest.param(1, marks=pytest.mark.exhaustive)])


@pytest.fixture(scope="module", params=WORKS)
def work(request):
    return WORKS[request.param]


@pytest.fixture(scope="module")
def whole(work, tmp_path_factory):
    """What is left of a work that nothing disturbed, and how many operations of the disk it took."""
    folder = tmp_path_factory.mktemp("whole")
    with using(Disk()) as disk:
        work.begin(folder)
    return work.left_by(folder), len(disk.operations)


def test_the_writer_is_one(tmp_path):
    """Whatever is saved passes through the functions that these tests let fail."""
    with using(Disk()) as disk:
        _files.write_bytes(tmp_path / "a", b"1")
    assert disk.operations == ["write", "fsync", "replace", "fsync"]


@pytest.mark.parametrize("for_good", [False, True])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_file_that_cannot_be_written_is_as_it_was(tmp_path, n, for_good):
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with using(Disk(n, for_good=for_good)), pytest.raises(OSError, match="No space left on device") as caught:
        _files.write_bytes(path, b"newer")
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, os.fspath(path))
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a"]


def test_a_file_whose_folder_does_not_know_it_yet_is_written(tmp_path):
    with using(Disk(4)):
        _files.write_bytes(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"new"


def complaint(work, folder):
    """Return the message of an error of the disk, empty if the work was finished."""
    try:
        work(folder)
    except (ValueError, OSError, StudyError) as error:
        return str(error)
    return ""


@pytest.mark.slow
@EVERY
def test_work_on_a_disk_that_fails_at_every_operation(tmp_path, work, whole, every):
    left, operations = whole
    trains = work is WORKS["train"]
    # The lock; then two steps and the end, three files each, whose folder follows.
    assert not trains or operations == 1 + 3 * 3 * 4
    stopped = 0
    for n in range(1, operations + 1, every):
        folder = tmp_path / str(n)
        with using(Disk(n, for_good=n % 2 == 0)):
            error = complaint(work.begin, folder)
        stopped += bool(error)
        assert not error or "No space left on device" in error
        work.check_whole(folder)
        if trains:
            assert not error or "cannot be written" in error
            assert not error or n == 1 or any(name in error for name in FILES)
            assert {*os.listdir(folder)} <= {*FILES}  # neither parts nor a lock
        work.go_on(folder)
        assert work.left_by(folder) == left
    # Some fail after the file is there.
    assert stopped >= len(range(1, operations + 1, every)) * (4 if trains else 3) // 6


@pytest.mark.slow
@EVERY
def test_work_whose_process_is_gone_at_every_operation(tmp_path, work, whole, every):
    left, operations = whole
    for n in range(1, operations + 1, every):
        folder = tmp_path / str(n)
        child = os.fork()
        if not child:
            with using(Disk(n, die=True)):
                work.begin(folder)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
        work.check_whole(folder)
        work.go_on(folder)
        assert work.left_by(folder) == left
        assert work is not WORKS["train"] or sorted(os.listdir(folder)) == [*FILES]


# --- two writers ------------------------------------------------------------------------------------------------------

SECOND = """
import sys
from pathlib import Path
from runs import WORKS
try:
    WORKS[sys.argv[1]].go_on(Path(sys.argv[2]))
except (ValueError, RuntimeError) as error:
    sys.exit(str(error))
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", WORKS)
def test_of_two_writers_the_second_is_refused(tmp_path, monkeypatch, kind):
    """While one writes, another process cannot; the first one's files are those of a run that was alone."""
    refused, work, shared = [], WORKS[kind], tmp_path / "shared"
    work.begin(tmp_path / "alone")

    def second(*_):
        if len(refused) < 2:
            call = command(SECOND, kind, shared)
            refused.append(subprocess.run(call, env=environment(), capture_output=True, text=True, check=False))

    if kind == "train":
        train_micro(shared, on_step=second)
    else:
        step = fake_trainer.Trainer.step
        monkeypatch.setattr(fake_trainer.Trainer, "step", lambda self: second() or step(self))
        study(shared)
    assert work.left_by(shared) == work.left_by(tmp_path / "alone")
    assert [done.returncode for done in refused] == [1, 1]
    assert all(f"is in use by another process (pid {os.getpid()})" in done.stderr for done in refused)


# --- a disk that is full ----------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 6 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("file systems may not be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def fill(disk, leave):
    """Leave so many bytes of a disk."""
    free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
    (disk / "filler").write_bytes(bytes(max(0, free - leave)))


@pytest.mark.slow
def test_a_training_run_on_a_full_disk(tmp_path, small_disk):
    out = small_disk / "run"
    train_micro(tmp_path / "whole", 3)
    train_micro(out, 1)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    for leave, why in ((0, "run' cannot be written"), (1 << 20, "checkpoint.npz' cannot be written")):
        fill(small_disk, leave)
        with pytest.raises(ValueError, match=f"{why}: No space left on device"):
            train_micro(out, 1, resume=True)
        check_whole(out)
        assert {path.name: path.read_bytes() for path in out.iterdir()} == before
        (small_disk / "filler").unlink()
    shutil.copytree(out, small_disk / "other")
    fill(small_disk, 1 << 20)
    with pytest.raises(ValueError, match=r"schedule must be"):  # a run of one step is no beginning of one of three
        train_micro(out, 3, resume=True)
    (small_disk / "filler").unlink()
    shutil.rmtree(out)
    fill(small_disk, 5 << 19)  # for one checkpoint, not for the next
    with pytest.raises(ValueError, match=r"checkpoint.npz' cannot be written: No space left on device"):
        train_micro(out, 3)
    check_whole(out)
    assert len(left_by(out)[2]) == 2  # the curve is written first; what the checkpoint lacks is made again
    (small_disk / "filler").unlink()
    shutil.rmtree(small_disk / "other")
    train_micro(out, 3, resume=True)
    assert left_by(out) == left_by(tmp_path / "whole")


def test_a_study_on_a_full_disk(tmp_path, small_disk):
    expected = results(study(tmp_path))
    stopped = 0
    for kibibytes in range(0, 80, 8):
        fill(small_disk, kibibytes << 10)
        error = complaint(study, small_disk)
        stopped += bool(error)
        assert not error or "No space left on device" in error
        WORKS["study"].check_whole(small_disk / "toy")
        (small_disk / "filler").unlink()
    assert stopped > 2
    assert results(study(small_disk)) == expected


def test_a_result_file_on_a_full_disk(tmp_path, small_disk):
    x = np.random.default_rng(0).standard_normal((64, 1024), np.float32)
    np.save(tmp_path / "x.npy", x)
    q, path = lp.quantize(x, "e4m3fn 1x128"), small_disk / "q.npz"
    path.write_bytes(b"old")
    fill(small_disk, 8 << 10)
    with pytest.raises(OSError, match=r"No space left on device: '.*q\.npz'"):
        q.save(path)
    done = CliRunner().invoke(cli, ["quantize", str(tmp_path / "x.npy"), "--out", str(path)])
    assert (done.exit_code, done.stderr) == (2, f"error: {path}: No space left on device\n")
    assert path.read_bytes() == b"old"
    assert sorted(os.listdir(small_disk)) == ["filler", "q.npz"]


# --- kills -----------------------------------------------------------------------------------------------------------

MORE = pytest.param(50, marks=pytest.mark.exhaustive)

TRAIN = """
import sys
from pathlib import Path
from runs import train_micro
train_micro(Path(sys.argv[1]), int(sys.argv[2]), resume=True, on_step=lambda record: print(record.step, flush=True))
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
            seen.append(int(process.stdout.readline()))
            process.stdout.readline()  # at the next step what came before is saved, however slow the machine is
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
