"""Statistics of actions relative to the state at which a chunk begins."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kata.data.arrays import Int64
from kata.data.dataset.mixture import MixtureEntry
from kata.data.dataset.windows import anchor_rows, window_rows
from kata.data.format.feature_stats import Summary, summarise
from kata.errors import DataError

MOST_VALUES = 2**26
"""Values of one dimension that are measured, at most: half a GB. More are sampled evenly."""


def relative_stats(
    parts: Sequence[MixtureEntry],
    *,
    action: str,
    state: str,
    offsets: tuple[int, ...],
    is_relative: Sequence[bool],
    drop_last: int = 0,
) -> Summary:
    """Compute the statistics of actions minus the state, over the chunks of all samples.

    Each frame that starts a sample counts with the actions of its chunk, but for those behind the
    end of the episode. The result is exact, quantiles included, unless there are more than
    `MOST_VALUES` values: then every n-th sample counts, and a note of the dataset says so.

    Args:
        parts: the datasets.
        action: key of actions, by the mixture's names.
        state: key of the state.
        offsets: of a chunk's actions.
        is_relative: for each dimension of the action, False if it stays absolute.
        drop_last: frames at the end of each episode that start no sample.
    """
    windows = [_window(part, offsets, drop_last) for part in parts]
    total = sum(inside.size for _, _, inside in windows)
    every = -(-total // MOST_VALUES)
    if every > 1:
        parts[0].dataset.notes.append(
            f"statistics of relative actions come from every {every}. sample"
        )
    # One dimension at a time: a chunk has each action as often as it has steps.
    columns: list[Summary] = []
    for dimension, subtracts in enumerate(is_relative):
        found: list[NDArray[np.float32]] = []
        for part, (anchors, rows, inside) in zip(parts, windows, strict=True):
            actions = part.dataset.column(part.own(action))
            if dimension >= actions.shape[1]:
                continue
            values = actions[rows[::every], dimension].astype(np.float32)
            if subtracts:
                values -= part.dataset.column(part.own(state))[anchors[::every], dimension, None]
            found.append(values[inside[::every]])
        columns.append(summarise(np.concatenate(found)[:, None]))
    joined: Summary = {"count": columns[0]["count"]}
    for name in columns[0].keys() - {"count"}:
        joined[name] = np.concatenate([own[name] for own in columns])
    return joined


def stats_by_step(
    parts: Sequence[MixtureEntry],
    *,
    action: str,
    state: str,
    steps: int,
    is_relative: Sequence[bool],
) -> Summary:
    """Compute the statistics of actions minus the state for each step of a chunk, as LeRobot does.

    Frames count whose chunk of `steps` actions lies inside their episode.

    Args:
        parts: the datasets, whose actions have one width.
        action: key of actions, by the mixture's names.
        state: key of the state.
        steps: of a chunk.
        is_relative: for each dimension of the action, False if it stays absolute.

    Returns:
        Rows for the steps, (steps, A), by name; `count` is (steps,).

    Raises:
        DataError: fewer than two frames have a whole chunk.
    """
    windows = [_window(part, tuple(range(steps)), steps - 1) for part in parts]
    total = sum(len(anchors) for anchors, _, _ in windows)
    if total < 2:
        raise DataError(
            f"{total} frames are followed by {steps - 1} others in their episode",
            rule=f"relative actions are measured in whole chunks of {steps}, two at least",
            remedy="--policy.use_relative_actions=false, or longer episodes",
        )
    rows_of: list[Summary] = []
    for step in range(steps):
        found: list[NDArray[np.float32]] = []
        for part, (anchors, rows, _) in zip(parts, windows, strict=True):
            values = part.dataset.column(part.own(action))[rows[:, step]].astype(np.float32)
            states = part.dataset.column(part.own(state))[anchors][:, : values.shape[1]]
            moved = np.asarray(is_relative)[: states.shape[1]]
            values[:, : states.shape[1]] -= states * moved
            found.append(values)
        rows_of.append(summarise(np.concatenate(found)))
    joined: Summary = {"count": np.concatenate([own["count"] for own in rows_of])}
    for name in rows_of[0].keys() - {"count"}:
        joined[name] = np.stack([own[name] for own in rows_of])
    return joined


def refuse_narrow_states(
    parts: Sequence[MixtureEntry], action: str, state: str, is_relative: Sequence[bool]
) -> None:
    """Raise DataError for a dataset whose state lacks a number that is subtracted."""
    for part in parts:
        columns = part.columns
        widths = [columns[key].shape[0] if key in columns else 0 for key in (action, state)]
        needed = [d for d, subtracts in enumerate(is_relative[: widths[0]]) if subtracts]
        if needed and needed[-1] >= widths[1]:
            raise DataError(
                f"{part.dataset.repo_id}: {action} has {widths[0]} numbers and {state} {widths[1]}",
                rule="number i of the state is subtracted from number i of the action",
                remedy="--policy.use_relative_actions=false, or name the dimensions that stay "
                "absolute in --policy.relative_exclude_joints",
            )


def _window(
    part: MixtureEntry, offsets: tuple[int, ...], drop_last: int
) -> tuple[Int64, Int64, NDArray[np.bool_]]:
    """Return anchors (N,), rows of their chunks (N, T), and which are inside the episode."""
    anchors = np.asarray(anchor_rows(part.dataset, drop_last))
    rows, outside = window_rows(anchors, offsets, part.dataset.episodes)
    return anchors, rows, ~outside
