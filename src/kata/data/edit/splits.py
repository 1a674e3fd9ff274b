"""Assignments of episodes to several new datasets."""

from __future__ import annotations

import re

import numpy as np

from kata.data.edit.edit_source import Part
from kata.data.sampling.philox import draw
from kata.errors import ConfigError
from kata.spec import Draw

_SLACK = 1e-6


def by_fractions(text: str, count: int, seed: int) -> dict[str, list[int]]:
    """Positions of `count` episodes in shares like 'train:0.9,val:0.1', chosen at random.

    Raises: ConfigError for shares that are none, and for one that gets no episode.
    """
    shares: dict[str, float] = {}
    for word in text.split(","):
        name, _, number = (piece.strip() for piece in word.partition(":"))
        if (
            not re.fullmatch(r"[\w.-]*\w", name)
            or name in shares
            or not re.fullmatch(r"[0-9]*\.?[0-9]+", number)
        ):
            raise _bad(text, f"'{word}' is no share, or its name stands twice")
        shares[name] = float(number)
    if sum(shares.values()) > 1 + _SLACK:
        raise _bad(text, f"the shares add up to {sum(shares.values()):g}")
    order = np.argsort(
        draw(seed, np.arange(count), "split", Draw("uniform", (1,)))[:, 0], kind="stable"
    )
    edges = np.rint(np.cumsum([0.0, *shares.values()]) * count + _SLACK).astype(int)
    groups = {
        name: sorted(order[begin:end].tolist())
        for name, begin, end in zip(shares, edges[:-1], edges[1:], strict=True)
    }
    empty = [name for name, chosen in groups.items() if not chosen]
    if empty:
        raise _bad(text, f"'{empty[0]}' gets none of {count} episodes")
    return groups


def by_task(part: Part) -> dict[str, list[int]]:
    """Positions of the episodes of each task, or of each set of tasks that occur in one episode
    together.
    """
    number, episodes = part.dataset.column("task_index"), part.dataset.episodes
    groups: dict[tuple[int, ...], list[int]] = {}
    for position, (start, length) in enumerate(zip(episodes.start, episodes.length, strict=True)):
        groups.setdefault(tuple(np.unique(number[start : start + length]).tolist()), []).append(
            position
        )
    return {_name(tasks, part.dataset.tasks): groups[tasks] for tasks in sorted(groups)}


def _name(numbers: tuple[int, ...], tasks: list[str]) -> str:
    """A folder's name: the numbers tell tasks apart, the words tell people what they are."""
    words = re.sub(r"[^a-z0-9]+", "-", tasks[numbers[0]].lower()).strip("-")[:40].strip("-")
    return "-".join(["+".join(map(str, numbers)), *([words] if words else [])])


def _bad(text: str, what: str) -> ConfigError:
    return ConfigError(
        f"fractions={text}: {what}",
        rule="names with shares that add up to 1 or less, and at least one episode each",
        remedy="for example --fractions=train:0.9,val:0.1",
    )
