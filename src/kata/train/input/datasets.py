"""Opening of a run's datasets, and splitting off of the validation episodes."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace

import numpy as np

from kata.data import Dataset, open_dataset
from kata.data.dataset.mixture import Data, Mixture, MixtureEntry
from kata.errors import ConfigError
from kata.run import MixEntry, Run
from kata.run.dataset import DatasetConfig
from kata.run.roles import with_roles


def open_data(options: DatasetConfig) -> Data:
    """The dataset or the mixture that a run names."""
    if options.mix is not None:
        return Mixture(tuple(_part(entry) for entry in options.mix))
    assert options.repo_id is not None
    return open_dataset(
        options.repo_id,
        root=options.root,
        episodes=options.episodes,
        exclude_episodes=options.exclude_episodes,
        keep_ranges=options.keep_ranges,
        revision=options.revision,
        concat=options.concat,
    )


def _part(entry: MixEntry) -> MixtureEntry:
    data = open_dataset(
        entry.repo_id,
        root=entry.root,
        episodes=entry.episodes,
        exclude_episodes=entry.exclude_episodes,
        keep_ranges=entry.keep_ranges,
        revision=entry.revision,
        concat=entry.concat,
    )
    return MixtureEntry(entry.called, data, entry.weight, entry.rename_map, entry.fill)


def take_roles(run: Run, data: Data) -> tuple[Run, Data, list[list[str]]]:
    """Return the run and its data with the roles that are found, and the columns of each dataset
    that these are.

    Raises: ConfigError for roles that several columns could have.
    """
    run, found = with_roles(run, [dataset.columns for dataset in datasets(data)])
    if not isinstance(data, Mixture):
        return run, data, found
    maps = [entry.rename_map for entry in run.dataset.mix or ()]
    parts = zip(data.parts, maps, strict=True)
    return run, Mixture(tuple(replace(part, rename=names) for part, names in parts)), found


def datasets(data: Data) -> list[Dataset]:
    """The datasets themselves."""
    return [part.dataset for part in data.parts] if isinstance(data, Mixture) else [data]


def split_data(data: Data, share: float) -> tuple[Data, Data | None]:
    """`split` of the dataset, or of each dataset of a mixture."""
    if not isinstance(data, Mixture):
        return split_episodes(data, share)
    train, held = zip(*(split_episodes(dataset, share) for dataset in datasets(data)), strict=True)
    found = [dataset for dataset in held if dataset is not None]
    return data.with_datasets(train), data.with_datasets(found) if found else None


def split_episodes(dataset: Dataset, share: float) -> tuple[Dataset, Dataset | None]:
    """Training and held-out episodes. Per task, `share` of its episodes (at least one where it has
    two or more) are held out, spread evenly over the recording, since the last ones are often
    recorded in another light or mood.
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
