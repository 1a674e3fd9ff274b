"""Opening of a run's datasets, and splitting off of the validation episodes."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace

import numpy as np

from kata.data import Dataset, open_dataset
from kata.data.dataset.mixture import Mixture, MixtureEntry
from kata.errors import ConfigError
from kata.run import MixEntry, Run
from kata.run.dataset import DatasetConfig
from kata.run.roles import with_roles


def open_data(options: DatasetConfig) -> Mixture:
    """Open the datasets that a run names: a mixture, of one for `dataset.repo_id`."""
    if options.mix is None:
        assert options.repo_id is not None
        return Mixture.of(_open(options.repo_id, options, options.streaming))
    parts: list[MixtureEntry] = []
    for entry in options.mix:
        data = _open(entry.repo_id, entry, options.streaming)
        parts.append(MixtureEntry(entry.called, data, entry.weight, entry.rename_map, entry.fill))
    return Mixture(tuple(parts))


def _open(repo_id: str, chosen: DatasetConfig | MixEntry, streaming: bool) -> Dataset:
    return open_dataset(
        repo_id,
        root=chosen.root,
        episodes=chosen.episodes,
        exclude_episodes=chosen.exclude_episodes,
        keep_ranges=chosen.keep_ranges,
        revision=chosen.revision,
        concat=chosen.concat,
        streaming=streaming,
    )


def take_roles(run: Run, data: Mixture) -> tuple[Run, Mixture, list[list[str]]]:
    """Return the run and its data with the roles that are found.

    Returns:
        The run and the data, with their renames, and the columns of each dataset that have a role
        by them.

    Raises:
        ConfigError: several columns could have a role.
    """
    run, found = with_roles(run, [dataset.columns for dataset in data.datasets])
    if run.dataset.mix is None:
        return run, data, found
    maps = [entry.rename_map for entry in run.dataset.mix]
    parts = zip(data.parts, maps, strict=True)
    return run, Mixture(tuple(replace(part, rename=names) for part, names in parts)), found


def split_data(data: Mixture, share: float) -> tuple[Mixture, Mixture | None]:
    """Apply `split` to each dataset; return the mixtures to train on and to validate on."""
    train, held = zip(*(split_episodes(dataset, share) for dataset in data.datasets), strict=True)
    found = [dataset for dataset in held if dataset is not None]
    return data.with_datasets(train), data.with_datasets(found) if found else None


def split_episodes(dataset: Dataset, share: float) -> tuple[Dataset, Dataset | None]:
    """Divide a dataset into training and held-out episodes.

    Per task, `share` of its episodes (at least one where it has two or more) are held out. They are
    spread evenly over the recording, since the last ones often have another light or mood.

    Raises:
        ConfigError: nothing can be held out.
    """
    if share == 0:
        return dataset, None
    # Kept ranges of one episode show the same scene: they stay on one side.
    _, owner = np.unique(dataset.episodes.index, return_inverse=True)
    by_task: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for position, tasks in enumerate(dataset.episodes.tasks):
        if not position or owner[position] != owner[position - 1]:
            by_task[tasks[:1]].append(int(owner[position]))
    # Tasks shown only once cannot each give an episode away; together they can.
    alone = [task for task, positions in by_task.items() if len(positions) == 1]
    if len(alone) > 1:
        by_task[()] = sorted(by_task.pop(task)[0] for task in alone)
    held: set[int] = set()
    for positions in by_task.values():
        count = min(max(1, round(len(positions) * share)), len(positions) - 1)
        held |= {positions[math.floor((i + 0.5) * len(positions) / count)] for i in range(count)}
    if not held:
        raise ConfigError(
            f"dataset.eval_split={share}: nothing of {dataset.repo_id} can be held out",
            rule="validation needs at least two episodes",
            remedy="leave out --dataset.eval_split",
        )
    apart = np.isin(owner, sorted(held))
    train, val = np.flatnonzero(~apart).tolist(), np.flatnonzero(apart).tolist()
    return dataset.subset(train), dataset.subset(val)
