"""`kata rl export`: a run's journal as a LeRobot v3.0 dataset, which LeRobot's buffer reads."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kata.data.edit.staged import new_folder
from kata.data.writing.dataset_writer import DatasetWriter, VideoOptions
from kata.errors import DataError
from kata.eval.envs.registry import register_env, resolve_env
from kata.rl.checkpoint import read_counts
from kata.rl.demos import DEMO_PENALTY, SUCCEEDED, TRUNCATED
from kata.rl.episodes.episode import PlayedEpisode, Schema
from kata.rl.episodes.journal import FOLDER, Journal, JournalEntry
from kata.rl.options import IMAGES, ExportRunOptions
from kata.rl.setup import episode_schema, policy_config
from kata.rl.trainer import read_run
from kata.spec import ACTION, DONE, REWARD, Column
from kata.train.checkpoint.folder import home_of, newest_whole
from kata.train.checkpoint.run_lock import FolderLock

INTERVENTION = "complementary_info.is_intervention"

_ONE_FLOAT = Column("float32", (1,))
_ONE_BOOL = Column("bool", (1,))

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Exported:
    """An exported dataset.

    Attributes:
        folder: of the dataset.
        episodes: written.
        steps: of these episodes.
        left_out: episodes of the journal that were not asked for.
    """

    folder: Path
    episodes: int
    steps: int
    left_out: int


def export_journal(options: ExportRunOptions) -> Exported:
    """Write the episodes of a run's journal as a dataset.

    A dataset has the frames before each action, so what followed an episode's last action is not
    in it. next.done is true where the task ended, and next.truncated where only the time was up.

    Raises:
        CheckpointError: the folder holds no run, or a run that is at work, or the journal lacks
            episodes of the newest checkpoint.
        DataError: no episode is to be written, an episode is not what was written, or the
            dataset's folder exists. Then nothing is left of the dataset.
    """
    folder = Path(options.run).expanduser()
    run = read_run(folder)
    spec = resolve_env(run.env)
    register_env(spec)
    target = Path(options.output_dir).expanduser()
    with ExitStack() as stack:
        stack.enter_context(FolderLock(folder))  # nobody writes what is read
        config, rules, facts = policy_config(run, spec)
        schema = episode_schema(config, rules)
        journal = Journal(folder / FOLDER, schema)
        checkpoint, _ = newest_whole(home_of(folder))
        if checkpoint is not None:
            journal.refuse_shorter(read_counts(checkpoint).episodes, checkpoint.name)
        chosen = [entry for entry in journal.entries if _is_asked_for(entry, options)]
        if not chosen:
            raise DataError(
                f"{journal.folder}: none of {len(journal.entries)} episodes is to be exported",
                rule=f"--which={options.which}",
                remedy="--which=all, or let the run play on",
            )
        episodes = map(journal.read, (entry.episode for entry in chosen))
        form = DatasetForm(facts.fps, schema, spec.instruction or spec.id, options.frames)
        with new_folder(target, inputs=(), need_bytes=0, say=_log.warning) as beside:
            write_dataset(beside, episodes, form)
    steps = sum(entry.steps for entry in chosen)
    return Exported(target, len(chosen), steps, len(journal.entries) - len(chosen))


@dataclass(frozen=True)
class DatasetForm:
    """The form of an exported dataset.

    Attributes:
        fps: of the environment.
        schema: of the episodes.
        task: sentence of every frame.
        frames: storage of pictures, see `ExportRunOptions`.
    """

    fps: int
    schema: Schema
    task: str
    frames: str = IMAGES


def write_dataset(target: Path, episodes: Iterable[PlayedEpisode], form: DatasetForm) -> None:
    """Write episodes as a dataset into a folder that is absent or empty.

    Raises:
        DataError: the folder is not empty, or a picture is too small for the codec.
    """
    is_image = form.frames == IMAGES
    video = VideoOptions() if is_image else VideoOptions(form.frames)
    features = _features(form.schema, "image" if is_image else "video")
    with DatasetWriter.create(target, fps=form.fps, features=features, video=video) as writer:
        for number, episode in enumerate(episodes, 1):
            for frame in frames_of(episode, form.schema):
                writer.add_frame(frame, form.task)
            writer.save_episode()
            if number % 100 == 0:
                _log.info("%d episodes", number)


def _is_asked_for(entry: JournalEntry, options: ExportRunOptions) -> bool:
    asked = {"all": True, "successes": bool(entry.success), "human": entry.human_steps > 0}
    return asked[options.which]


def _features(schema: Schema, kind: str) -> dict[str, Column]:
    found: dict[str, Column] = {}
    for key, shape in schema.observations.items():
        found[key] = Column(kind if key in schema.cameras else "float32", shape)
    found[ACTION] = Column("float32", (schema.action_size,))
    found[REWARD] = _ONE_FLOAT
    for key in (DONE, TRUNCATED, SUCCEEDED):
        found[key] = _ONE_BOOL
    # LeRobot's buffer keeps both as floats.
    for key in (DEMO_PENALTY, INTERVENTION):
        found[key] = _ONE_FLOAT
    return found


def frames_of(episode: PlayedEpisode, schema: Schema) -> Iterator[dict[str, Any]]:
    """Yield the frames of an episode, a step each.

    Args:
        episode: of T steps.
        schema: of its run.
    """
    for step in range(episode.steps):
        is_last = step == episode.steps - 1
        found: dict[str, Any] = {k: episode.observations[k][step] for k in schema.observations}
        found[ACTION] = episode.action[step]
        found[REWARD] = float(episode.reward[step])
        found[DONE] = is_last and episode.terminated
        found[TRUNCATED] = is_last and not episode.terminated
        found[SUCCEEDED] = is_last and bool(episode.success)
        found[DEMO_PENALTY] = float(episode.penalty[step])
        found[INTERVENTION] = float(episode.intervention[step])
        yield found
