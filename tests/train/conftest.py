"""A run without cameras: its checkpoints are small and its steps take milliseconds."""

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from kata.data.writing.dataset_writer import DatasetWriter
from kata.run import resolve_run
from kata.spec import Column
from tests.conftest import TINY_ACT


@pytest.fixture(autouse=True)
def quick_cameras(narrow_backbone):
    """Policies with cameras train within a second. `tests/policies` has the real backbones."""


@pytest.fixture(autouse=True)
def quick_reports(plain_charts):
    """Reports are written within milliseconds. `tests/train/report` has the drawn charts."""


@pytest.fixture(scope="session")
def light_dataset(tmp_path_factory) -> Path:
    """Four episodes of 12 frames: state, state of the environment, action."""
    root = tmp_path_factory.mktemp("data") / "light"
    features = {
        "observation.state": Column("float32", (3,), ("x", "y", "grip")),
        "observation.environment_state": Column("float32", (2,), ("goal_x", "goal_y")),
        "action": Column("float32", (2,), ("x", "y")),
    }
    rng = np.random.default_rng(3)
    with DatasetWriter.create(root, fps=10, features=features) as writer:
        for _ in range(4):
            goal = rng.uniform(-1, 1, 2).astype(np.float32)
            for t in range(12):
                state = np.array([np.sin(t / 5), np.cos(t / 5), 1], dtype=np.float32)
                frame = {
                    "observation.state": state,
                    "observation.environment_state": goal,
                    "action": state[:2] + goal,
                }
                writer.add_frame(frame, task="reach")
            writer.save_episode()
    return root


@pytest.fixture
def light_args(light_dataset, tmp_path) -> list[str]:
    """Arguments of that run; `save_freq` is 2 of its 6 steps."""
    where = [
        f"--dataset.root={light_dataset}",
        "--dataset.repo_id=tests/light",
        f"--output_dir={tmp_path}/run",
    ]
    return [*where, *TINY_ACT, "--save_freq=2"]


@pytest.fixture
def light_run(light_args):
    """That run, with options changed: light_run('--steps=3')."""
    return lambda *more: resolve_run([*light_args, *more])[0]


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1 MiB: a checkpoint of the light run takes 0.2."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = shutil.which("mount") and os.geteuid() == 0
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    if not mounted or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small file system needs root")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill_up(place: Path, pages_left: int = 1) -> None:
    """Take all that is left of a file system, but for so many pages."""
    with (place / "ballast").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            file.truncate(max(0, file.tell() - 4096 * pages_left))
