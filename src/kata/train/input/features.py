"""Checks of a dataset's columns and episodes against the policy."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from kata.data import Dataset
from kata.data.dataset.mixture import Mixture
from kata.errors import DataError, PolicyError, did_you_mean
from kata.policies.config import PolicyConfig
from kata.spec import Feature, FeatureType, features_of
from kata.train.input.base_features import offered_rename, rename_text


def fit_features(
    config: PolicyConfig, dataset: Mixture, rename_map: dict[str, str]
) -> PolicyConfig:
    """The config with inputs and outputs taken from the dataset where it has none, checked against
    it where it has.

    Raises PolicyError for a rename of an unknown key, a missing input, or a shape that differs.
    """
    columns = features_of(dataset.columns, rename_map)
    for old in rename_map:
        if old not in dataset.columns:
            raise PolicyError(
                f"rename_map: {old} is not in the dataset",
                rule=f"dataset keys: {', '.join(dataset.columns)}",
                remedy=did_you_mean(old, dataset.columns),
            )
    renamed = {rename_map.get(key, key): feature for key, feature in columns.items()}
    if len(renamed) < len(columns):
        raise PolicyError(
            f"rename_map: {rename_map} gives two keys one name",
            rule="each key needs its own name",
            remedy="correct the map",
        )
    actions = {k: f for k, f in renamed.items() if f.type is FeatureType.ACTION}
    inputs = {k: f for k, f in renamed.items() if f.type is not FeatureType.ACTION}
    wanted = {**config.input_features, **config.output_features}
    problems: list[str] = []
    for key, feature in wanted.items():
        if not config.accepts(key, renamed):
            problems.append(_mismatch(key, feature, renamed))
    if problems:
        raise PolicyError(
            "the dataset does not have what the policy wants:\n    " + "\n    ".join(problems),
            rule=f"dataset {dataset.repo_id} has: "
            + ", ".join(f"{k} {f.shape}" for k, f in renamed.items()),
            remedy="; or ".join(_remedies(config, wanted, renamed, rename_map)),
        )
    # Frames may have another size than the checkpoint's; what is saved says which size was trained
    # on.
    kept = {key: renamed[key] for key in config.input_features if key in renamed}
    predicted = {key: renamed[key] for key in config.output_features}
    fitted = config.with_features(kept or inputs, predicted or actions)
    return fitted.with_columns({rename_map.get(k, k): c for k, c in dataset.columns.items()})


def _remedies(
    config: PolicyConfig,
    wanted: dict[str, Feature],
    renamed: dict[str, Feature],
    rename_map: dict[str, str],
) -> list[str]:
    """Return what helps against each kind of misfit: names, and sizes."""
    misfits = [key for key in wanted if not config.accepts(key, renamed)]
    found: list[str] = []
    if any(key not in renamed for key in misfits):
        found.append(_renaming(config, renamed, rename_map))
    if any(key in renamed for key in misfits):
        found.append("another size needs a policy trained from the start (--policy.type)")
    return found


def _renaming(config: PolicyConfig, renamed: dict[str, Feature], rename_map: dict[str, str]) -> str:
    """Return the flag that gives the policy its cameras, or its form where none fits."""
    offered = offered_rename(config, renamed)
    if not offered:
        return 'map names with --rename_map=\'{"<dataset key>": "<policy key>"}\''
    before = {new: old for old, new in rename_map.items()}
    own = {before.get(old, old): new for old, new in offered.items()}
    return rename_text({**rename_map, **own})


def _mismatch(key: str, feature: Feature, columns: dict[str, Feature]) -> str:
    if key not in columns:
        return f"{key} {feature.shape}: not in the dataset ({did_you_mean(key, columns)})"
    return f"{key}: policy wants {feature.shape}, dataset has {columns[key].shape}"


def refuse_missing_columns(
    data: Mixture, keys: Collection[str], rename_map: dict[str, str]
) -> None:
    """PolicyError when a column that the policy reads beside inputs and outputs, such as the
    reward, is missing, or is not one number per frame.
    """
    features = features_of(data.columns, rename_map)
    for key in keys:
        column = data.columns.get(key)
        lacking = data.lacking(key)
        if key in features or (column is not None and column.shape == (1,) and not lacking):
            continue
        what = "not in the dataset" if column is None else f"shape {column.shape}"
        if lacking and not data.is_single:
            what = f"not in {', '.join(lacking)}"
        raise PolicyError(
            f"{key}: {what}",
            rule=f"this policy learns from '{key}', one number per frame; dataset {data.repo_id} "
            "has: " + ", ".join(data.columns),
            remedy="choose a dataset with one, or name its column with "
            f'--rename_map=\'{{"<column>": "{key}"}}\'',
        )


def refuse_episodes(parts: list[Dataset], policy: PolicyConfig) -> None:
    """Refuse datasets with episodes that are too short for the policy, or that lack a task it
    needs.
    """
    for dataset in parts:
        refuse_short_episodes(dataset, policy.drop_last_frames())
        if policy.tokenizer() is not None:
            refuse_missing_tasks(dataset)


def refuse_short_episodes(dataset: Dataset, drop_last: int) -> None:
    """DataError when an episode has no frame left after the last `drop_last`, which start no
    sample.
    """
    episodes = dataset.episodes
    short = np.flatnonzero(episodes.length <= drop_last)
    if short.size:
        numbers = episodes.index[short].tolist()
        what = f"{len(short)} episodes are too short, the first is episode {numbers[0]}"
        remedy = f"--dataset.exclude_episodes={str(numbers).replace(' ', '')}"
        if dataset.is_cut:
            what = f"{len(short)} kept ranges are too short, the first is of episode {numbers[0]}"
            remedy = "leave these ranges out of the file of --dataset.keep_ranges"
        if len(short) == len(episodes.length):
            remedy = "choose a dataset with longer episodes, or a smaller horizon of the policy"
        raise DataError(
            f"{dataset.repo_id}: {what} with {episodes.length[short[0]]} frames",
            rule=f"this policy needs at least {drop_last + 1} frames per episode",
            remedy=remedy,
        )


def refuse_missing_tasks(dataset: Dataset) -> None:
    """DataError when an episode has no sentence that says what is done in it."""
    episodes = dataset.episodes
    silent = [
        int(n) for n, tasks in zip(episodes.index, episodes.tasks, strict=True) if not any(tasks)
    ]
    if silent:
        remedy = "write the sentences into the dataset"
        if len(silent) < len(episodes.index):
            remedy += f", or --dataset.exclude_episodes={str(silent).replace(' ', '')}"
        raise DataError(
            f"{dataset.repo_id}: {len(silent)} episodes have no task sentence, the first is "
            f"episode {silent[0]}",
            rule="this policy is told in a sentence what to do",
            remedy=remedy,
        )
