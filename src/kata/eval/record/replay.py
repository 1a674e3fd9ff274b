"""Renders recorded ALOHA joint trajectories into a LeRobot v3.0 dataset."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kata.data.writing.dataset_writer import DatasetWriter, VideoOptions
from kata.errors import DataError
from kata.eval.envs.aloha import CAMERA, FPS, JOINTS, SHAPE, SUCCESS_REWARD, AlohaEnv, task_of
from kata.spec import ACTION, REWARD, STATE, Column

_log = logging.getLogger(__name__)

_ARMS = Column("float32", (len(JOINTS),), JOINTS)
SUCCESS = "next.success"
_PICTURE = f"observation.images.{CAMERA}"
FEATURES = {
    STATE: _ARMS,
    _PICTURE: Column("video", SHAPE),
    ACTION: _ARMS,
    REWARD: Column("float32", (1,)),
    SUCCESS: Column("bool", (1,)),
}
"""Features of a replayed episode per frame."""

_HELD = 5
"""Frames: a gripper that holds the cube still loses contact for a step now and then."""


def replay_aloha(
    trajectories: Path,
    root: Path,
    *,
    task: str = "transfer_cube",
    codec: str = "av1",
    episodes: Sequence[int] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Replay trajectories in simulation and keep those that end in success; the log names the
    dropped ones.

    Args:
        trajectories: an npz file with `sim_<task>_scripted_actions` (E, T + 1, 14), joint angles in
            rad with grippers
            0 to 1, and `sim_<task>_scripted_env` (E, 7 per object), the objects' start poses.
        root: a folder that is absent or empty.
        task: 'transfer_cube' or 'insertion'.
        codec: 'av1' or 'h264'.
        episodes: which of the E; None is all.
        progress: called with (replayed, of how many) after each episode.

    Returns: the dataset's folder, T frames per episode. The last action only marks the end, as in
        ACT's own data.

    Raises:
        DataError: for a file without these arrays, an episode that it does not have, a folder that
        is not empty, or
            when no episode succeeds.
        ConfigError: for an unknown task.
    """
    instruction = task_of(task).instruction
    actions, starts = _read(Path(trajectories), task)
    numbers = range(len(actions)) if episodes is None else episodes
    _require_known(numbers, len(actions))
    dropped: list[int] = []
    video = VideoOptions(codec)
    with (
        closing(AlohaEnv(task)) as env,
        DatasetWriter.create(
            root, fps=FPS, features=FEATURES, robot_type="aloha", video=video
        ) as writer,
    ):
        for done, number in enumerate(numbers, start=1):
            if not _add(writer, replay(env, actions[number, :-1], starts[number]), instruction):
                dropped.append(number)
            if progress is not None:
                progress(done, len(numbers))
    if len(dropped) == len(numbers):
        raise DataError(
            f"{trajectories}: none of {len(numbers)} episodes of {task} ends in success",
            rule="at least one does",
            remedy="check that the actions are joint angles in rad, and that the start poses "
            "belong to them",
        )
    kept = len(numbers) - len(dropped)
    _log.info("%d episodes in %s; dropped, as they end without success: %s", kept, root, dropped)
    return Path(root)


def replay(env: AlohaEnv, actions: NDArray[Any], start: NDArray[Any]) -> Iterator[dict[str, Any]]:
    """The frames of these actions (T, 14) from this start pose; success is that of each moment,
    not of the past.
    """
    seen, _ = env.reset(options={"state": start})
    for action in actions:  # as they are: rounded to float32 they make other contacts
        frame = {
            STATE: seen["agent_pos"],
            _PICTURE: seen["pixels"][CAMERA],
            ACTION: action.astype(np.float32),
        }
        seen, reward, *_ = env.step(action)
        yield frame | {REWARD: reward, SUCCESS: reward == SUCCESS_REWARD}


def _add(writer: DatasetWriter, frames: Iterator[dict[str, Any]], instruction: str) -> bool:
    """Write an episode if it ends in success, and say whether it does."""
    held: list[bool] = []
    for frame in frames:
        writer.add_frame(frame, instruction)
        held.append(frame[SUCCESS])
    if any(held[-_HELD:]):
        writer.save_episode()
    else:
        writer.discard_episode()
    return any(held[-_HELD:])


def _read(path: Path, task: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The actions (E, T + 1, 14) and start poses (E, P) of a task."""
    names = [f"sim_{task}_scripted_{what}" for what in ("actions", "env")]
    if not path.is_file():
        raise DataError(
            f"{path}: no such file", rule="an npz file of trajectories", remedy="check the path"
        )
    try:
        file = np.load(path, allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise DataError(
            f"{path}: {error}", rule="an npz file of numbers", remedy="write it with numpy.savez"
        ) from error
    if not isinstance(file, np.lib.npyio.NpzFile):
        raise DataError(
            f"{path}: one array", rule="an npz file of several", remedy="write it with numpy.savez"
        )
    with file:
        if missing := [name for name in names if name not in file]:
            raise DataError(
                f"{path}: has no {' and no '.join(missing)}",
                rule="the actions and the start poses of the task",
                remedy=f"it holds: {', '.join(file) or 'nothing'}",
            )
        return file[names[0]], file[names[1]]


def _require_known(numbers: Sequence[int], count: int) -> None:
    unknown = [number for number in numbers if not 0 <= number < count]
    if unknown or not len(numbers):
        raise DataError(
            f"episodes {unknown}",
            rule=f"at least one, numbers 0 to {count - 1}",
            remedy="leave it out for all",
        )
