"""One process per run folder, with real processes."""

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

from kata.cli import main
from kata.errors import CheckpointError
from kata.train.checkpoint.run_lock import LOCK, SILENT_S, FolderLock

HOLD = (
    "import sys, time\nfrom pathlib import Path\nfrom kata.train.checkpoint.run_lock import "
    "FolderLock\n"
    "with FolderLock(Path(sys.argv[1])):\n    print('held', flush=True)\n    sys.stdin.read()\n"
)


@contextmanager
def holding(folder):
    """Another process that holds the lock until the block ends."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], text=True, **pipes) as process:
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            if process.poll() is None:
                process.stdin.close()


@pytest.fixture(params=["flock", "no flock"])
def kernel(request, monkeypatch):
    """With the kernel's lock, and on a file system that has none."""
    if request.param == "no flock":

        def refuse(*_):
            raise OSError(errno.ENOLCK, "No locks available")

        monkeypatch.setattr(fcntl, "flock", refuse)
    return request.param


@pytest.mark.usefixtures("kernel")
def test_a_second_process_is_refused_with_the_name_of_the_first(tmp_path):
    with holding(tmp_path) as process:
        holder = json.loads((tmp_path / LOCK).read_text())
        with pytest.raises(CheckpointError) as caught, FolderLock(tmp_path):
            pass
        for word in (str(process.pid), holder["host"], holder["started"]):
            assert word in str(caught.value)
        assert (tmp_path / LOCK).exists()
    with FolderLock(tmp_path) as lock:
        assert lock.note is None
    assert not (tmp_path / LOCK).exists()


@pytest.mark.usefixtures("kernel")
def test_the_lock_of_a_killed_process_is_taken_over_with_a_note(tmp_path):
    with holding(tmp_path) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert (tmp_path / LOCK).exists()
    with FolderLock(tmp_path) as lock:
        assert f"process {process.pid}" in lock.note
        assert json.loads((tmp_path / LOCK).read_text())["pid"] == os.getpid()


def stale(folder, **changes):
    with FolderLock(folder):
        holder = json.loads((folder / LOCK).read_text())
    (folder / LOCK).write_text(json.dumps({**holder, **changes}))


def test_the_number_of_a_dead_process_given_to_another_one_is_no_holder(tmp_path, kernel):
    stale(tmp_path, process_start=1)
    with FolderLock(tmp_path) as lock:
        assert str(os.getpid()) in lock.note


def test_a_holder_on_another_machine_is_believed_while_it_gives_signs(tmp_path, kernel):
    stale(tmp_path, host="elsewhere", pid=1)
    if kernel == "no flock":
        with pytest.raises(CheckpointError, match="process 1 on elsewhere"), FolderLock(tmp_path):
            pass
        long_ago = time.time() - SILENT_S - 1
        os.utime(tmp_path / LOCK, (long_ago, long_ago))
    with FolderLock(tmp_path) as lock:
        assert "elsewhere" in lock.note


def test_a_lock_file_that_cannot_be_read_is_no_obstacle(tmp_path):
    (tmp_path / LOCK).write_text("{")
    with FolderLock(tmp_path) as lock:
        assert lock.note


def test_a_second_run_in_the_same_folder_is_refused_and_leaves_nothing(
    light_args, tmp_path, capsys
):
    (tmp_path / "run").mkdir()
    with holding(tmp_path / "run") as process:
        assert main(["train", *light_args, "--resume=true"]) == 2
        assert [path.name for path in (tmp_path / "run").iterdir()] == [LOCK]
    assert f"in use by process {process.pid}" in capsys.readouterr().err
