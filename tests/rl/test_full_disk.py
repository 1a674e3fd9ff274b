"""A full disk: a run waits for room and loses nothing; asked to stop, it says so in one message."""

import errno

import pytest

from kata.errors import CheckpointError
from kata.rl import checkpoint, trainer
from kata.rl.episodes.full_disk import write_when_room
from kata.rl.episodes.journal import Journal
from tests.rl.test_trainer import PENDULUM, differing, left, train

FULL = OSError(errno.ENOSPC, "No space left on device")


def full_at(monkeypatch, home, name, calls):
    """Let calls of a function find no room, by their numbers."""
    numbers, work = iter(range(10_000)), vars(home)[name]

    def refusing(*args, **kwargs):
        if next(numbers) in calls:
            raise FULL
        return work(*args, **kwargs)

    monkeypatch.setattr(home, name, refusing)


@pytest.mark.parametrize(
    ("home", "name"),
    [(Journal, "append"), (checkpoint, "save_checkpoint")],
    ids=["episode", "save"],
)
def test_a_run_goes_on_once_there_is_room(home, name, tmp_path, monkeypatch, caplog):
    train(tmp_path / "straight", *PENDULUM)
    monkeypatch.setattr("kata.rl.episodes.full_disk.PAUSE_S", 0.01)
    full_at(monkeypatch, home, name, (1, 2))
    train(tmp_path / "run", *PENDULUM)
    assert not differing(left(tmp_path / "straight"), left(tmp_path / "run"))
    assert caplog.text.count("waits for room") == 1


def test_a_run_that_is_asked_to_stop_on_a_full_disk_says_so():
    asked = iter([False, True])

    def write():
        raise FULL

    with pytest.raises(CheckpointError, match="episode 3: not written, the disk is full") as error:
        write_when_room(write, "run: episode 3", lambda: next(asked), lambda _: None)
    assert "make room" in error.value.remedy


def test_other_errors_of_a_disk_end_the_run():
    def write():
        raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(OSError, match="Input/output"):
        write_when_room(write, "run: episode 3", lambda: False)


def test_a_report_that_has_no_room_ends_no_run(tmp_path, monkeypatch, caplog):
    full_at(monkeypatch, trainer, "write_rl_report", (0,))
    train(tmp_path / "run", *PENDULUM, "--report=true", "--policy.online_steps=12")
    assert "no report, the disk is full" in caplog.text
