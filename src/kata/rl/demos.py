"""Demonstrations: a LeRobot dataset as episodes, through kata's own reader."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kata.config.dataset import DatasetChoice
from kata.data.dataset.dataset import Dataset, open_dataset
from kata.data.loader.reader import Reader
from kata.errors import CheckpointError, DataError
from kata.eval.envs.registry import Facts
from kata.files import write_json
from kata.rl.environment import EnvRules
from kata.rl.episodes.episode import SLACK, PlayedEpisode, Schema
from kata.rl.options import ENV
from kata.spec import ACTION, DONE, REWARD

TRUNCATED, SUCCEEDED = "next.truncated", "next.success"
DEMO_PENALTY = "complementary_info.discrete_penalty"

NOTE = "demonstrations.json"
"""In a run's folder: which demonstrations it began with."""

_READ = 512  # frames that are decoded at a time
_WRONG_SHARE = 0.001

Columns = dict[str, NDArray[Any]]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Demos:
    """Demonstrations of a run.

    Attributes:
        dataset: where they are.
        schema: of the run's episodes.
        rules: of the run.
        choices: of the discrete last action, or None.
    """

    dataset: Dataset
    schema: Schema
    rules: EnvRules
    choices: int | None

    @property
    def rows(self) -> int:
        """Return observations that a buffer needs for them, at most one too many per episode."""
        return self.dataset.num_frames + self.dataset.num_episodes

    def low_high(self, key: str) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the least and the largest number of each dimension of a vector."""
        values = self.dataset.column(key)
        return values.min(axis=0), values.max(axis=0)

    @property
    def pays_success_alone(self) -> bool:
        """Return True if rewards are 0, and 0 or 1 at the last step of each episode."""
        reward = self.dataset.column(REWARD).reshape(-1)
        found = self.dataset.episodes
        is_last = np.zeros(len(reward), np.bool_)
        is_last[found.start + found.length - 1] = True
        return bool((reward[~is_last] == 0).all() and np.isin(reward[is_last], (0, 1)).all())

    def episodes(self) -> Iterator[PlayedEpisode]:
        """Yield the demonstrations.

        The frames of a dataset are what was seen before each action. What followed the last one was
        not recorded: an episode that did not end the task is left without its last step.

        Raises:
            DataError: rewards, actions or numbers that nothing can be learned from.
        """
        known = self.dataset.columns
        cameras = set(self.schema.cameras)
        keys = [*self.schema.observations, ACTION]
        keys += [k for k in (REWARD, SUCCEEDED, DONE, TRUNCATED, DEMO_PENALTY) if k in known]
        found = self.dataset.episodes
        with Reader(self.dataset, {}, keys=keys) as reader:
            for number, first, length in zip(found.index, found.start, found.length, strict=True):
                read = [
                    reader.read(np.arange(begin, min(begin + _READ, first + length)))
                    for begin in range(int(first), int(first + length), _READ)
                ]
                columns: Columns = {}
                for key in keys:
                    columns[key] = np.concatenate([part[key] for part in read])
                yield self._episode(int(number), columns, cameras)

    def _episode(self, number: int, columns: Columns, cameras: set[str]) -> PlayedEpisode:
        where = f"{self.dataset.repo_id}, episode {number}"
        for key, values in columns.items():
            if key not in cameras and not np.isfinite(values).all():
                raise _refused(f"{where}: {key} has numbers that are not finite", "finite numbers")
        success = _flags(columns, SUCCEEDED)
        if success is None:
            success = columns[REWARD].reshape(-1) > 0
        marks = _flags(columns, DONE)
        if marks is not None and marks[:-1].any():
            raise _refused(
                f"{where}: {DONE} is true at frame {int(np.flatnonzero(marks)[0])} of {len(marks)}",
                "true at the last frame alone",
            )
        rewards = success.astype(np.float32)
        if self.rules.reward == ENV:
            rewards = columns[REWARD].reshape(-1).astype(np.float32)
        is_end = self._is_end(columns, success, marks)
        # After the end of the task nothing is read of the next observation, so the last one serves.
        again = slice(-1, None) if is_end else slice(0, 0)
        steps = len(rewards) if is_end else len(rewards) - 1
        if steps < 1:
            raise _refused(f"{where}: {len(rewards)} frame", "2 or more frames")
        observations: Columns = {}
        for key in self.schema.observations:
            values = columns[key].reshape(len(rewards), *self.schema.observations[key])
            observations[key] = np.concatenate([values, values[again]])
        penalty = columns.get(DEMO_PENALTY, np.zeros(len(rewards)))
        return PlayedEpisode(
            observations,
            self._actions(where, columns[ACTION])[:steps],
            rewards[:steps],
            penalty.reshape(-1).astype(np.float32)[:steps],
            np.ones(steps, np.bool_),
            is_end,
            bool(success.any()),
        )

    def _is_end(
        self, columns: Columns, success: NDArray[np.bool_], marks: NDArray[np.bool_] | None
    ) -> bool:
        """Return True if the task ended with the last frame. LeRobot's next.done is true where only
        the time was up, too, so it counts beside next.truncated alone.
        """
        truncated = _flags(columns, TRUNCATED)
        if marks is not None and truncated is not None and marks[-1] and not truncated[-1]:
            return True
        return bool(success[-1])

    def _actions(self, where: str, action: NDArray[Any]) -> NDArray[np.float32]:
        action = action.reshape(len(action), -1).astype(np.float32)
        if self.choices is not None:
            last = action[:, -1]
            wrong = (last != last.round()) | (last < 0) | (last >= self.choices)
            if wrong.any():
                raise _refused(
                    f"{where}: discrete action {last[wrong][0]:g}",
                    f"whole numbers from 0 to {self.choices - 1}",
                )
        low, high = self.rules.how.low, self.rules.how.high
        slack = SLACK * (high - low)
        outside = (action < low - slack) | (action > high + slack)
        if outside.mean() > _WRONG_SHARE:
            which = int(outside.sum(0).argmax())
            far = np.maximum(low - action, action - high)[:, which].argmax()
            raise _refused(
                f"{where}: {outside.mean():.1%} of the actions' numbers outside the environment's "
                f"bounds, at worst {action[far, which]:g} in dimension {which}",
                f"from {low[which]:g} to {high[which]:g}",
            )
        return np.clip(action, low, high)


def open_demos(
    choice: DatasetChoice, schema: Schema, rules: EnvRules, choices: int | None, facts: Facts
) -> Demos:
    """Open demonstrations, and refuse those that do not fit the run.

    Args:
        choice: the dataset.
        schema: of the run's episodes.
        rules: of the run.
        choices: of the discrete last action, or None.
        facts: of the environment.

    Raises:
        DataError: columns that are absent or of another shape, actions of other names, another
            rate, or no reward at all.
    """
    dataset = open_dataset(
        choice.repo_id or "demonstrations",
        root=choice.root,
        episodes=choice.episodes,
        exclude_episodes=choice.exclude_episodes,
        revision=choice.revision,
    )
    wanted = {**schema.observations, ACTION: (schema.action_size,)}
    for key, shape in wanted.items():
        column = dataset.columns.get(key)
        if column is None or column.shape != shape:
            has = "absent" if column is None else f"of the shape {list(column.shape)}"
            raise DataError(
                f"{dataset.repo_id}: {key} is {has}",
                rule=f"as in the environment: {list(shape)}",
                remedy="choose --policy.input_features that both have, or record demonstrations "
                "in this environment",
            )
    _refuse_other_actions(dataset, facts.action_names)
    if dataset.fps != facts.fps:
        raise DataError(
            f"{dataset.repo_id}: {dataset.fps} frames per second, the environment has {facts.fps}",
            rule="one rate: an action lasts as long as it did in the demonstrations",
            remedy="--env.fps where the environment names a wrong rate, or other demonstrations",
        )
    needed = (REWARD,) if rules.reward == ENV else (REWARD, SUCCEEDED)
    if not set(needed) & set(dataset.columns):
        raise DataError(
            f"{dataset.repo_id}: no {' and no '.join(needed)}",
            rule="demonstrations tell what was earned",
            remedy="record them with a reward, or leave out --dataset and let a human take over",
        )
    _refuse_failures(dataset, rules)
    return Demos(dataset, schema, rules, choices)


def warn_of_other_rewards(demos: Demos, played: PlayedEpisode) -> None:
    """Log demonstrations that pay for success alone where an episode of the environment pays
    otherwise: half of each batch would teach other values.
    """
    other = played.reward[(played.reward != 0) & (played.reward != 1)]
    if demos.rules.reward == ENV and len(other) and demos.pays_success_alone:
        _log.warning(
            "rl.reward=env: the environment pays %g in a step, %s is 0, and 1 at the end of "
            "episodes alone in %s; --rl.reward=success, or demonstrations with the environment's "
            "own rewards",
            other[0],
            REWARD,
            demos.dataset.repo_id,
        )


def keep_to_demos(folder: Path, demos: Demos | None) -> None:
    """Note which demonstrations a run began with, and refuse to continue it with others.

    A run of an older kata, without a note, continues with those that it is given.

    Args:
        folder: of the run.
        demos: that it is given now, or None.

    Raises:
        CheckpointError: the demonstrations are others, or the note cannot be read.
    """
    found = {"fingerprint": None, "frames": 0}
    if demos is not None:
        found = {"fingerprint": demos.dataset.fingerprint, "frames": demos.dataset.num_frames}
    path = folder / NOTE
    if not path.exists():
        write_json(path, found)
        return
    try:
        noted = json.loads(path.read_text(encoding="utf-8"))
        before = {name: noted[name] for name in found}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{path}: cannot be read ({error})",
            rule="the fingerprint of the demonstrations that the run began with",
            remedy=f"delete {path} if they are the same",
        ) from error
    if before != found:
        raise CheckpointError(
            f"resume: the demonstrations were {_noted(before)}, and are {_noted(found)}",
            rule="a run continues with the demonstrations that it began with: what it learned "
            "follows from them",
            remedy="name the first with --dataset.root, or begin another run with another "
            "--output_dir",
        )


def _noted(note: Mapping[str, Any]) -> str:
    if note["fingerprint"] is None:
        return "none"
    return f"{note['frames']} frames with the fingerprint {note['fingerprint']}"


def _refuse_other_actions(dataset: Dataset, names: tuple[str, ...]) -> None:
    """Refuse actions that mean something else than the environment's, by their names, where both
    have some: places and ways are equally many numbers within the same bounds.
    """
    recorded = dataset.columns[ACTION].names
    if names and recorded and tuple(recorded) != names:
        raise DataError(
            f"{dataset.repo_id}: the actions are {', '.join(recorded)}",
            rule=f"the environment takes {', '.join(names)}",
            remedy="record demonstrations in this environment, with the same options (such as "
            "relative=true)",
        )


def _refuse_failures(dataset: Dataset, rules: EnvRules) -> None:
    """Refuse demonstrations in which nothing is ever earned."""
    key = SUCCEEDED if rules.reward != ENV and SUCCEEDED in dataset.columns else REWARD
    earned = dataset.column(key)
    # An environment's own rewards may all be costs.
    is_earned, kind = earned > 0, "above 0"
    if rules.reward == ENV:
        is_earned, kind = earned != 0, "anything but 0"
    if is_earned.any():
        return
    shown = ", ".join(map(str, dataset.episodes.index[:5].tolist()))
    raise DataError(
        f"{dataset.repo_id}: {key} is never {kind}, in any of episodes {shown} ...",
        rule="some demonstrations succeed",
        remedy="leave out failures with --dataset.episodes, or mark successes when recording",
    )


def _flags(columns: Columns, key: str) -> NDArray[np.bool_] | None:
    values = columns.get(key)
    return None if values is None else values.reshape(-1).astype(np.bool_)


def _refused(what: str, rule: str) -> DataError:
    remedy = "leave the episode out with --dataset.exclude_episodes, or repair it"
    return DataError(what, rule=rule, remedy=remedy)
