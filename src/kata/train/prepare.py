"""From a Run to everything that is known before step 1: data, features, statistics, pipelines, device."""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import torch

from kata.adapt import Pipeline
from kata.adapt.augment import Augment, build_augment
from kata.data import Dataset, anchor_rows, open_dataset
from kata.data.shuffle import Shuffle, ShuffleChoice, default_frame_memory
from kata.errors import ConfigError, DataError, PolicyError, did_you_mean
from kata.policies.config import PolicyConfig
from kata.policies.device import choose_device
from kata.policies.pipelines import canonical_pipelines
from kata.run import Run
from kata.run.options import DatasetConfig
from kata.spec import IMAGENET_MEAN, IMAGENET_STD, Feature, FeatureType, NormMode, Stats, Windows
from kata.train.device import check_precision
from kata.units import num_bytes


@dataclass(frozen=True)
class Prepared:
    """What a run is made of.

    run: with the policy's features filled in. rows: training anchors. stats: under the policy's names.
    keys: dataset keys that are read. windows: under the dataset's names. notes: what the user should be told.
    frame_memory: bytes for decoded frames.
    """

    run: Run
    dataset: Dataset
    held_out: Dataset | None
    rows: np.ndarray
    stats: Stats
    before: Pipeline
    after: Pipeline
    windows: Windows
    keys: tuple[str, ...]
    device: torch.device
    augment: Augment | None
    notes: list[str]
    frame_memory: int

    @property
    def cameras(self) -> tuple[str, ...]:
        """Dataset keys of the cameras that are read."""
        return tuple(key for key in self.keys if key in self.dataset.cameras)


def prepare(run: Run) -> Prepared:
    """Open the data and fit policy and data to each other. Every mismatch is found here, before step 1."""
    device = choose_device(run.policy.device)
    check_precision(run.precision, device)
    data, tfs = run.dataset, run.dataset.image_transforms
    augment = (
        build_augment(tfs.tfs, count=tfs.max_num_transforms, random_order=tfs.random_order) if tfs.enable else None
    )
    whole = open_dataset(
        data.repo_id,
        root=data.root,
        episodes=data.episodes,
        exclude_episodes=data.exclude_episodes,
        revision=data.revision,
    )
    policy = fit_features(run.policy, whole, run.rename_map)
    policy.validate_features()
    refuse_short_episodes(whole, policy.drop_last_frames())
    train, held_out = split(whole, data.eval_split)
    rows = anchor_rows(train, policy.drop_last_frames())
    if run.effective_batch > len(rows):
        raise ConfigError(
            f"batch of {run.effective_batch} samples, dataset of {len(rows)}",
            rule="a batch is no larger than the dataset",
            remedy=f"--batch_size={max(1, len(rows) // run.accumulation)} or less",
        )
    back = {new: old for old, new in run.rename_map.items()}
    stats = policy_stats(train, policy, run)
    before, after = canonical_pipelines(policy, stats, rename_map=run.rename_map, device=device.type)
    keys = tuple(back.get(key, key) for key in {**policy.input_features, **policy.output_features})
    windows = {back.get(key, key): offsets for key, offsets in policy.windows().items()}
    frame_memory = default_frame_memory() if data.frame_memory is None else int(num_bytes(data.frame_memory))
    cameras = [key for key in keys if key in train.cameras]
    choice = ShuffleChoice(shuffle_of(data), frame_memory, run.effective_batch, run.prefetch_factor + 1)
    shuffle, order_note = choice.choose(train, windows, cameras, rows)
    return Prepared(
        run=dataclasses.replace(run, policy=policy, dataset=_recorded(data, shuffle)),
        dataset=train,
        held_out=held_out,
        rows=rows,
        stats=stats,
        before=before,
        after=after,
        windows=windows,
        keys=keys,
        device=device,
        augment=augment,
        notes=[*whole.notes, *_constant_dimensions(stats, policy), order_note],
        frame_memory=frame_memory,
    )


def shuffle_of(data: DatasetConfig) -> Shuffle:
    """The order that the options ask for."""
    return Shuffle(data.shuffle, data.clip_pool, data.clip_frames, data.clip_gop)


def _recorded(data: DatasetConfig, shuffle: Shuffle) -> DatasetConfig:
    """The options with what was chosen, so that a resumed run has the same order whatever memory it finds."""
    return dataclasses.replace(
        data,
        shuffle=shuffle.kind,
        clip_pool=shuffle.clip_pool,
        clip_frames=shuffle.clip_frames,
        clip_gop=shuffle.clip_gop,
    )


def fit_features(config: PolicyConfig, dataset: Dataset, rename_map: dict[str, str]) -> PolicyConfig:
    """The config with inputs and outputs taken from the dataset where it has none, checked against it where it has.

    Raises PolicyError for a rename of an unknown key, a missing input, or a shape that differs.
    """
    columns = dataset.features()
    for old in rename_map:
        if old not in columns:
            raise PolicyError(
                f"rename_map: {old} is not in the dataset",
                rule=f"dataset keys: {', '.join(columns)}",
                remedy=did_you_mean(old, columns),
            )
    renamed = {rename_map.get(key, key): feature for key, feature in columns.items()}
    if len(renamed) < len(columns):
        raise PolicyError(
            f"rename_map: {rename_map} gives two keys one name",
            rule="each key needs a name of its own",
            remedy="correct the map",
        )
    actions = {k: f for k, f in renamed.items() if f.type is FeatureType.ACTION}
    inputs = {k: f for k, f in renamed.items() if f.type is not FeatureType.ACTION}
    wanted = {**config.input_features, **config.output_features}
    problems = [_mismatch(key, feature, renamed) for key, feature in wanted.items()]
    problems = [text for text in problems if text]
    if problems:
        raise PolicyError(
            "the dataset does not have what the policy wants:\n    " + "\n    ".join(problems),
            rule=f"dataset {dataset.repo_id} has: " + ", ".join(f"{k} {f.shape}" for k, f in renamed.items()),
            remedy='map names with --rename_map=\'{"<dataset key>": "<policy key>"}\'; '
            "another size needs a policy trained from the start (--policy.type)",
        )
    # Frames may have another size than the checkpoint's; what is saved says which size was trained on.
    kept = {key: renamed[key] for key in config.input_features}
    return config.with_features(kept or inputs, config.output_features or actions)


def _mismatch(key: str, feature: Feature, columns: dict[str, Feature]) -> str:
    if key not in columns:
        return f"{key} {feature.shape}: not in the dataset ({did_you_mean(key, columns)})"
    have = columns[key]
    if feature.type is FeatureType.VISUAL and have.type is FeatureType.VISUAL and have.shape[0] == feature.shape[0]:
        return ""  # frames of another size pass through the same convolutions
    return "" if have == feature else f"{key}: policy wants {feature.shape}, dataset has {have.shape}"


def refuse_short_episodes(dataset: Dataset, drop_last: int) -> None:
    """DataError when an episode has no frame left after the last `drop_last`, which start no sample."""
    episodes = dataset.episodes
    short = np.flatnonzero(episodes.length <= drop_last)
    if short.size:
        numbers = episodes.index[short].tolist()
        raise DataError(
            f"{dataset.repo_id}: {len(short)} episodes are too short, the first is episode {numbers[0]} with "
            f"{episodes.length[short[0]]} frames",
            rule=f"this policy needs at least {drop_last + 1} frames per episode",
            remedy=f"--dataset.exclude_episodes={str(numbers).replace(' ', '')}",
        )


def split(dataset: Dataset, share: float) -> tuple[Dataset, Dataset | None]:
    """Training and held-out episodes. Per task, `share` of its episodes (at least one where it has two or more) are
    held out, spread evenly over the recording, since the last ones are often recorded in another light or mood.
    """
    if share == 0:
        return dataset, None
    by_task: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for position, tasks in enumerate(dataset.episodes.tasks):
        by_task[tasks[:1]].append(position)
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
            f"dataset.eval_split={share}: nothing can be held out",
            rule="validation needs at least two episodes",
            remedy="leave out --dataset.eval_split",
        )
    everything = range(len(dataset.episodes.index))
    return dataset.subset([i for i in everything if i not in held]), dataset.subset(sorted(held))


def policy_stats(dataset: Dataset, config: PolicyConfig, run: Run) -> Stats:
    """Statistics of exactly the frames trained on, under the policy's names; ImageNet's for colour where asked."""
    visual = config.normalization_mapping.get(FeatureType.VISUAL.value, NormMode.IDENTITY)
    imagenet = run.dataset.use_imagenet_stats
    # Camera statistics may have to decode frames: only done when they are used.
    needed = visual is not NormMode.IDENTITY and not (imagenet and visual is NormMode.MEAN_STD)
    stats = {run.rename_map.get(key, key): dict(named) for key, named in dataset.stats(cameras=needed).items()}
    if imagenet:
        for key, feature in config.cameras.items():
            if feature.shape[0] == 3:
                colour = {"mean": IMAGENET_MEAN, "std": IMAGENET_STD}
                named = {name: np.array(v, dtype=np.float64).reshape(3, 1, 1) for name, v in colour.items()}
                stats[key] = {**stats.get(key, {}), **named}
    return stats


def _constant_dimensions(stats: Stats, config: PolicyConfig) -> list[str]:
    notes: list[str] = []
    for key, feature in {**config.input_features, **config.output_features}.items():
        if feature.type is FeatureType.VISUAL or key not in stats:
            continue
        spread = np.asarray(stats[key]["max"]) - np.asarray(stats[key]["min"])
        constant = np.flatnonzero(spread == 0).tolist()
        if constant and len(constant) == spread.size:
            raise DataError(
                f"{key}: every dimension is constant",
                rule="a state or action that never changes cannot be learnt from",
                remedy="check the recording, or leave the feature out of policy.input_features",
            )
        if constant:
            notes.append(f"{key}: dimensions {constant} never change in the selected frames")
    return notes
