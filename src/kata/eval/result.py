"""Results of an evaluation as plain values, as JSON and as a short table. Torch-free."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kata.config import encode
from kata.files import write_json
from kata.tables import table_lines
from kata.units import seconds_text

Z_95 = 1.959963984540054
SHOWN_CRASHES = 5


@dataclass(frozen=True)
class CrashedAt:
    """The step and the error at which an environment crashed; `step` actions had been given."""

    step: int
    error: str


@dataclass(frozen=True)
class Episode:
    """One episode.

    It can be played again from `seed` and `options`. video: relative to the result's folder.
    """

    episode: int
    seed: int
    options: dict[str, Any] | None
    success: bool
    sum_reward: float
    max_reward: float
    length: int
    crash: CrashedAt | None = None
    video: str | None = None


@dataclass(frozen=True)
class Seconds:
    """Seconds by cause.

    One call of the policy serves a whole batch; an action is that of one environment.
    """

    policy_per_action: float
    policy_longest_call: float
    env_per_step: float
    total: float


@dataclass(frozen=True)
class Result:
    """An evaluation. success_interval: Wilson, 95 %. Means are over the episodes that did not
    crash.

    clipped_share: of action values that lay outside the environment's bounds and were moved to
        them.
    """

    policy: dict[str, Any]
    env: dict[str, Any]
    seed: int
    batch_size: int
    num_episodes: int
    num_success: int
    num_crashed: int
    success_rate: float
    success_interval: tuple[float, float]
    mean_sum_reward: float | None
    mean_max_reward: float | None
    mean_length: float | None
    clipped_share: float
    seconds: Seconds
    episodes: list[Episode]
    notes: list[str]

    def write(self, path: Path) -> None:
        """Write everything as JSON; the file appears whole or not at all."""
        write_json(path, encode(self), indent=2, allow_nan=False)


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """The 95 % score interval of a share (E. B. Wilson, J. Am. Stat. Assoc. 22, 1927, p. 209)."""
    share, z2n = successes / trials, Z_95**2 / trials
    middle = (share + z2n / 2) / (1 + z2n)
    half = Z_95 * math.sqrt(share * (1 - share) / trials + z2n / (4 * trials)) / (1 + z2n)
    return max(0.0, middle - half), min(1.0, middle + half)


def result_summary(result: Result, folder: Path | None = None) -> str:
    """A table of a few lines, and the crashes by name."""
    low, high = result.success_interval
    times = result.seconds
    rows = [
        (
            "success",
            f"{result.num_success} of {result.num_episodes}: {result.success_rate:.1%} (95 %: "
            f"{low:.1%} to {high:.1%})",
        ),
        (
            "policy",
            f"{_ms(times.policy_per_action)} per action in batches of {result.batch_size},"
            f" longest call {_ms(times.policy_longest_call)}",
        ),
        ("environment", f"{_ms(times.env_per_step)} per step"),
        ("in all", seconds_text(times.total)),
    ]
    if result.mean_length is not None:
        rows.insert(1, ("length", f"{result.mean_length:.1f} steps"))
        rows.insert(
            1,
            (
                "reward",
                f"{result.mean_sum_reward:.2f} summed, {result.mean_max_reward:.3f} at best",
            ),
        )
    if result.clipped_share:
        rows.append(
            (
                "clipped",
                f"{result.clipped_share:.2%} of action values lay outside the environment's bounds",
            )
        )
    crashed = [episode for episode in result.episodes if episode.crash]
    rows += [
        (f"crashed ({len(crashed)})" if i == 0 else "", _crash(e))
        for i, e in enumerate(crashed[:SHOWN_CRASHES])
    ]
    if len(crashed) > SHOWN_CRASHES:
        rows.append(("", f"and {len(crashed) - SHOWN_CRASHES} more, see eval.json"))
    rows += [("note", note) for note in result.notes]
    if folder is not None:
        films = sum(episode.video is not None for episode in result.episodes)
        rows.append(
            ("written", f"{folder / 'eval.json'}" + (f" and {films} videos" if films else ""))
        )
    seeds = f"seeds {result.seed} to {result.seed + result.num_episodes - 1}"
    head = f"{result.policy['type']} in {result.env['id']}, {seeds}"
    return "\n".join([head, *table_lines(rows, indent="  ")]) + "\n"


def _ms(duration_s: float) -> str:
    """0.00123 -> '1.2 ms'."""
    return f"{duration_s * 1000:.{1 if duration_s < 0.01 else 0}f} ms"


def _crash(episode: Episode) -> str:
    assert episode.crash is not None
    return (
        f"episode {episode.episode} (seed {episode.seed}) at step {episode.crash.step}: "
        f"{episode.crash.error}"
    )
