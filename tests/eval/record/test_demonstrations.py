"""Demonstrations of the built-in task: same seed, same dataset, whoever does the work."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kata.cli import main
from kata.data import Reader, open_dataset
from kata.errors import DataError
from kata.eval.envs.reach import FPS, INSTRUCTION, SENTENCES, ReachOneOfTwoEnv
from kata.eval.record import demonstrations
from kata.eval.record.demonstrations import Board
from tests.eval.films import decoded


def content(root: Path) -> dict[str, bytes | list[str]]:
    return {
        str(path.relative_to(root)): decoded(path) if path.suffix == ".mp4" else path.read_bytes()
        for path in root.rglob("*")
        if path.is_file()
    }


def test_demonstrations_are_a_dataset_of_successful_episodes(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    root = demonstrations.record(
        tmp_path / "demo", num_episodes=4, codec="h264", progress=lambda *done: seen.append(done)
    )
    data = open_dataset("local/demo", root=root)
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert data.fps == FPS
    assert data.tasks == [INSTRUCTION]
    ends = data.episodes.start + data.episodes.length - 1
    assert data.column("next.success")[ends].all()
    assert data.column("next.success").sum() == 4
    with Reader(data, {}) as reader:
        batch = reader.read(data.episodes.start)
    first = demonstrations.attempt(0, 0)[0]
    np.testing.assert_array_equal(batch["action"][0], first["action"])
    for camera in data.cameras:
        assert np.abs(batch[camera][0].astype(int) - first[camera]).mean() < 4


def test_of_two_targets_the_sentence_names_the_one_that_is_reached(tmp_path: Path) -> None:
    root = demonstrations.record(
        tmp_path / "demo", num_episodes=2, codec="h264", board=Board(targets=2)
    )
    data = open_dataset("local/demo", root=root)
    assert [tasks[0] for tasks in data.episodes.tasks] == [SENTENCES["green"], SENTENCES["blue"]]
    for number, color in enumerate(SENTENCES):
        env = ReachOneOfTwoEnv(target=color)
        env.reset(seed=int(np.random.SeedSequence([0, 0]).generate_state(1)[0]))  # one board
        end = data.episodes.start[number] + data.episodes.length[number] - 1
        near = np.hypot(*(data.column("observation.state")[end] - env.places[color]))
        assert near < 0.2


def test_smaller_pictures_are_recorded_of_the_same_episodes(tmp_path: Path) -> None:
    root = demonstrations.record(
        tmp_path / "demo", num_episodes=1, codec="h264", board=Board(picture=40)
    )
    data = open_dataset("local/demo", root=root)
    usual, small = (demonstrations.attempt(0, 0, Board(picture=side)) for side in (64, 40))
    np.testing.assert_array_equal(data.column("action"), [frame["action"] for frame in usual])
    with Reader(data, {}) as reader:
        batch = reader.read(data.episodes.start)
    for camera in data.cameras:
        assert batch[camera].shape[1:] == (40, 40, 3)
        assert np.abs(batch[camera][0].astype(int) - small[0][camera]).mean() < 4


def test_relative_actions_are_recorded_of_the_same_episodes(tmp_path: Path) -> None:
    root = demonstrations.record(
        tmp_path / "demo", num_episodes=1, codec="h264", board=Board(relative=True)
    )
    data = open_dataset("local/demo", root=root)
    places = np.array([frame["action"] for frame in demonstrations.attempt(0, 0)])
    ways = (places - data.column("observation.state")) / 0.2
    np.testing.assert_allclose(data.column("action"), ways, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_workers_and_runs_do_not_change_the_dataset(tmp_path: Path) -> None:
    one = demonstrations.record(tmp_path / "one", num_episodes=3, seed=5, workers=1, codec="h264")
    two = demonstrations.record(tmp_path / "two", num_episodes=3, seed=5, workers=2, codec="h264")
    other = demonstrations.record(
        tmp_path / "other", num_episodes=3, seed=6, workers=1, codec="h264"
    )
    assert content(one) == content(two)
    assert content(one) != content(other)


def test_failed_attempts_are_dropped_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    attempt = demonstrations.attempt

    def clumsy(seed: int, number: int, **options: Any) -> demonstrations.Frames:
        frames = attempt(seed, number, **options)
        return frames[:5] if number % 2 == 0 else frames

    monkeypatch.setattr(demonstrations, "attempt", clumsy)
    with caplog.at_level(logging.INFO):
        root = demonstrations.record(tmp_path / "demo", num_episodes=2, codec="h264")
    assert "2 failed attempts were dropped" in caplog.text
    data = open_dataset("local/demo", root=root)
    assert data.episodes.length.tolist() == [len(attempt(0, 1)), len(attempt(0, 3))]


@pytest.mark.parametrize(("episodes", "workers"), [(0, 1), (1, 0)])
def test_numbers_below_one_are_refused(tmp_path: Path, episodes: int, workers: int) -> None:
    with pytest.raises(DataError, match=r"(?s)rule:.*remedy:"):
        demonstrations.record(tmp_path / "demo", num_episodes=episodes, workers=workers)


def test_a_killed_recording_is_repeated_with_the_same_command(tmp_path: Path) -> None:
    root = tmp_path / "demo"
    words = ["data", "demo", str(root), "--episodes=2", "--codec=h264"]
    process = subprocess.Popen([sys.executable, "-m", "kata", *words], start_new_session=True)
    until_s = time.monotonic() + 60
    while not any(tmp_path.iterdir()):
        assert process.poll() is None
        assert time.monotonic() < until_s
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not root.exists()
    assert main(words) == 0
    assert open_dataset("local/demo", root=root).num_episodes == 2
    assert [path.name for path in tmp_path.iterdir()] == ["demo"]
