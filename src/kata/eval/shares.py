"""Tallies of the processes that share an evaluation, and their sum, which is the result.

Torch-free.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from kata.eval.result import CrashedAt, Episode, Result, Seconds, wilson
from kata.eval.video import chosen


@dataclass(frozen=True)
class Tally:
    """The outcome of one process's share of the episodes.

    videos: wanted number of videos over all episodes. filmed: numbers of this share's episodes that
    have one. steps: of single environments. clipped: action values, of `action_size` in each
    action, that were moved to the bounds. call_s, env_s: sums over policy calls and over steps.
    """

    policy: dict[str, Any]
    env: dict[str, Any]
    seed: int
    batch_size: int
    episodes: list[Episode]
    videos: int
    filmed: list[int]
    steps: int
    clipped: int
    action_size: int
    call_s: float
    longest_call_s: float
    env_s: float
    total_s: float
    notes: list[str]


def read_tally(path: Path) -> Tally:
    """A tally that was written as JSON, number for number."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    for episode in found["episodes"]:
        episode["crash"] = episode["crash"] and CrashedAt(**episode["crash"])
    found["episodes"] = [Episode(**episode) for episode in found["episodes"]]
    return Tally(**found)


def film_path(folder: Path, number: int) -> Path:
    """Return the path of an episode's video.

    After the evaluation only a few successes and failures are kept, renamed by outcome.
    """
    return folder / "videos" / f"episode_{number:03d}.mp4"


def sum_up(tallies: Sequence[Tally], folder: Path | None) -> Result:
    """Return the result of all shares of an evaluation; keep some of the videos in `folder`.

    Fields that all shares have in common come from the first one.
    """
    first = tallies[0]
    episodes = sorted(
        chain.from_iterable(tally.episodes for tally in tallies), key=lambda e: e.episode
    )
    filmed = sorted(chain.from_iterable(tally.filmed for tally in tallies))
    if folder is not None:
        episodes = _keep_films(folder, episodes, filmed, first.videos)
    whole = [episode for episode in episodes if episode.crash is None]
    notes = list(dict.fromkeys(chain.from_iterable(tally.notes for tally in tallies)))
    if first.videos and whole and not filmed:
        notes.append(
            f"{first.env['id']} draws no pictures and the policy has no camera, so there are no "
            "videos"
        )
    num_success = sum(episode.success for episode in episodes)
    steps = max(1, sum(tally.steps for tally in tallies))
    return Result(
        policy=first.policy,
        env=first.env,
        seed=first.seed,
        batch_size=first.batch_size,
        num_episodes=len(episodes),
        num_success=num_success,
        num_crashed=len(episodes) - len(whole),
        success_rate=num_success / len(episodes),
        success_interval=wilson(num_success, len(episodes)),
        mean_sum_reward=statistics.fmean(e.sum_reward for e in whole) if whole else None,
        mean_max_reward=statistics.fmean(e.max_reward for e in whole) if whole else None,
        mean_length=statistics.fmean(e.length for e in whole) if whole else None,
        clipped_share=sum(tally.clipped for tally in tallies) / (steps * first.action_size),
        seconds=Seconds(
            sum(tally.call_s for tally in tallies) / steps,
            max(tally.longest_call_s for tally in tallies),
            sum(tally.env_s for tally in tallies) / steps,
            max(tally.total_s for tally in tallies),
        ),
        episodes=episodes,
        notes=notes,
    )


def _keep_films(
    folder: Path, episodes: list[Episode], filmed: list[int], wanted: int
) -> list[Episode]:
    """Return the episodes with the names of their films.

    Some films of either outcome are kept, and renamed after it; the others are deleted.
    """
    episodes = list(episodes)
    outcomes = [episodes[number].success for number in filmed]
    kept = {filmed[i] for i in chosen(outcomes, wanted)}
    for number in filmed:
        path, episode = film_path(folder, number), episodes[number]
        if number not in kept:
            path.unlink()
            continue
        named = path.with_stem(f"{path.stem}_{'success' if episode.success else 'failure'}")
        path.rename(named)
        episodes[number] = dataclasses.replace(episode, video=f"videos/{named.name}")
    return episodes
