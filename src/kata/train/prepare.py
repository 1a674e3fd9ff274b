"""From a Run to everything that is known before step 1: data, features, statistics, pipelines, device."""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch

from kata.adapt import Pipeline
from kata.adapt.augment import Augment, build_augment
from kata.data import Dataset, anchor_rows
from kata.data.form import Form
from kata.data.mixture import Data, Mixture
from kata.data.order import Anchors
from kata.data.shuffle import Shuffle, ShuffleChoice, default_frame_memory, make_mixed_order, make_order
from kata.dist.team import Team
from kata.errors import ConfigError, DataError, PolicyError, did_you_mean
from kata.policies.config import PolicyConfig
from kata.run import Run
from kata.run.options import DatasetConfig
from kata.spec import Feature, FeatureType, Stats, Windows
from kata.train.alike import check_same_data
from kata.train.device import check_precision, rank_device
from kata.train.form import choose_form
from kata.train.mixing import check_together, datasets, open_data
from kata.train.nvdec import choose_decoder
from kata.train.scales import Scales, fit_scales
from kata.units import num_bytes

T = TypeVar("T")


@dataclass(frozen=True)
class Prepared:
    """What a run is made of.

    run: with the policy's features filled in. rows: training anchors.
    keys: dataset keys that are read. windows: under the dataset's names. notes: what the user should be told.
    scales: how values are normalised. frame_memory: bytes for decoded frames.
    nvdec: video is decoded on the graphics card.
    form: how frames lie in batches.
    """

    run: Run
    dataset: Data
    held_out: Data | None
    rows: np.ndarray
    scales: Scales
    windows: Windows
    keys: tuple[str, ...]
    device: torch.device
    augment: Augment | None
    notes: list[str]
    frame_memory: int
    form: Form
    nvdec: bool

    @property
    def stats(self) -> Stats:
        """Statistics of the frames trained on, under the policy's names."""
        return self.scales.stats

    @property
    def before(self) -> Pipeline:
        """What batches pass through before the policy."""
        return self.scales.before

    @property
    def after(self) -> Pipeline:
        """What predicted actions pass through."""
        return self.scales.after

    @property
    def cameras(self) -> tuple[str, ...]:
        """Dataset keys of the cameras that are read."""
        return tuple(key for key in self.keys if key in self.dataset.cameras)

    @property
    def names(self) -> tuple[str, ...]:
        """The datasets of a mixture; empty for one dataset."""
        return self.dataset.names if isinstance(self.dataset, Mixture) else ()


def prepare(run: Run, team: Team | None = None) -> Prepared:
    """Open the data and fit policy and data to each other. Every mismatch is found here, before step 1.

    team: the ranks that train together; rank 0 computes statistics and chooses the order for all.
    """
    team = team or Team()
    device = rank_device(run.policy.device, team.world)
    check_precision(run.precision, device)
    tfs = run.dataset.image_transforms
    augment = (
        build_augment(tfs.tfs, count=tfs.max_num_transforms, random_order=tfs.random_order) if tfs.enable else None
    )
    whole = team.node_first(lambda: open_data(run.dataset))
    check_same_data(team, datasets(whole))
    policy = fit_features(run.policy, whole, run.rename_map)
    policy.validate_features()
    windows = _in_dataset(policy.windows(), run.rename_map)
    refuse_missing_columns(whole, windows)
    said = check_together(whole, policy, run.dataset) if isinstance(whole, Mixture) else []
    _refuse_episodes(datasets(whole), policy)
    train, held_out = split_data(whole, run.dataset.eval_split)
    rows = anchor_rows(train, policy.drop_last_frames())
    if run.effective_batch > len(rows):
        raise ConfigError(
            f"batch of {run.effective_batch} samples, dataset of {len(rows)}",
            rule="a batch is no larger than the dataset",
            remedy=f"--batch_size={max(1, len(rows) // (run.ranks * run.accumulation))} or less",
        )
    scales = fit_scales(train, policy, run, device.type, team)
    keys = tuple(_in_dataset({**policy.input_features, **policy.output_features, **policy.windows()}, run.rename_map))
    cameras = [key for key in keys if key in train.cameras]
    form, form_notes = choose_form(run.dataset, policy, train, cameras)
    memory = _frame_memory(run.dataset)
    nvdec, nvdec_note = team.by_first(lambda: _nvdec(run, train, cameras, device))
    chosen, order_note = team.by_first(lambda: _shuffle(run, train, windows, cameras, rows, memory, form))
    return Prepared(
        run=dataclasses.replace(run, policy=policy, dataset=dataclasses.replace(run.dataset, **chosen)),
        dataset=train,
        held_out=held_out,
        rows=rows,
        windows=windows,
        keys=keys,
        device=device,
        augment=augment,
        notes=[*whole.notes, *said, *scales.notes, *form_notes, *nvdec_note, *order_note],
        scales=scales,
        frame_memory=memory,
        form=form,
        nvdec=nvdec,
    )


def _in_dataset(named: Mapping[str, T], rename_map: dict[str, str]) -> dict[str, T]:
    """What is told by the policy's keys, by the dataset's."""
    back = {new: old for old, new in rename_map.items()}
    return {back.get(key, key): value for key, value in named.items()}


def order_of(prepared: Prepared, rows: np.ndarray) -> Anchors:
    """The order in which the anchors `rows` are trained on."""
    data, options, seed = prepared.dataset, prepared.run.dataset, prepared.run.seed
    where = prepared.windows, prepared.cameras, rows, seed
    if isinstance(data, Mixture):
        each = options.mix_clips or [[0, 0, 0]] * len(data.parts)
        shuffles = [Shuffle("clips", *numbers) if any(numbers) else Shuffle() for numbers in each]
        return make_mixed_order(shuffles, data, *where)
    return make_order(_asked(options), data, *where)


def _asked(options: DatasetConfig) -> Shuffle:
    return Shuffle(options.shuffle, options.clip_pool, options.clip_frames, options.clip_gop)


def _shuffle(
    run: Run,
    train: Data,
    windows: Windows,
    cameras: list[str],
    rows: np.ndarray,
    memory: int,
    form: Form,
) -> tuple[dict[str, Any], list[str]]:
    """The order as options with all numbers, so that a resumed run has the same one whatever memory it finds; and what
    was chosen. memory: bytes for decoded frames.
    """
    asked, ahead = _asked(run.dataset), run.prefetch_factor + 1
    choice = ShuffleChoice(asked, memory, run.effective_batch, ahead, form)
    if not isinstance(train, Mixture):
        shuffle, note = choice.choose(train, windows, cameras, rows)
        names = ("clip_pool", "clip_frames", "clip_gop")
        return {"shuffle": shuffle.kind, **dict(zip(names, _numbers(shuffle), strict=True))}, [note]
    if run.dataset.mix_clips is not None:
        return {}, []
    shuffles, notes = choice.choose_each(train, windows, cameras, rows)
    kind = "clips" if any(shuffle.kind == "clips" for shuffle in shuffles) else "full"
    return {"shuffle": kind, "mix_clips": [_numbers(shuffle) for shuffle in shuffles]}, notes


def _numbers(shuffle: Shuffle) -> list[int]:
    return [shuffle.clip_pool, shuffle.clip_frames, shuffle.clip_gop]


def _nvdec(run: Run, data: Data, cameras: list[str], device: torch.device) -> tuple[bool, list[str]]:
    own = (
        [[part.own(key) for key in cameras if key in part.columns] for part in data.parts]
        if isinstance(data, Mixture)
        else [cameras]
    )
    return choose_decoder(run.dataset.decoder, datasets(data), own, device, run.num_workers)


def _frame_memory(data: DatasetConfig) -> int:
    return default_frame_memory() if data.frame_memory is None else int(num_bytes(data.frame_memory))


def fit_features(config: PolicyConfig, dataset: Data, rename_map: dict[str, str]) -> PolicyConfig:
    """The config with inputs and outputs taken from the dataset where it has none, checked against it where it has.

    Raises PolicyError for a rename of an unknown key, a missing input, or a shape that differs.
    """
    columns = dataset.features()
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


def refuse_missing_columns(data: Data, keys: Collection[str]) -> None:
    """PolicyError when a column that the policy reads beside inputs and outputs, such as the reward, is missing, or is
    not one number per frame.
    """
    features = data.features()
    for key in keys:
        column = data.columns.get(key)
        lacking = data.lacking(key) if isinstance(data, Mixture) else []
        if key in features or (column is not None and column.shape == (1,) and not lacking):
            continue
        what = f"not in {', '.join(lacking) or 'the dataset'}" if column is None or lacking else f"shape {column.shape}"
        raise PolicyError(
            f"{key}: {what}",
            rule=f"this policy learns from '{key}', one number per frame; dataset {data.repo_id} has: "
            + ", ".join(data.columns),
            remedy=f'choose a dataset with one, or name its column with --rename_map=\'{{"<column>": "{key}"}}\'',
        )


def _refuse_episodes(parts: list[Dataset], policy: PolicyConfig) -> None:
    for dataset in parts:
        refuse_short_episodes(dataset, policy.drop_last_frames())
        if policy.tokenizer() is not None:
            refuse_missing_tasks(dataset)


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


def refuse_missing_tasks(dataset: Dataset) -> None:
    """DataError when an episode has no sentence that says what is done in it."""
    episodes = dataset.episodes
    silent = [int(n) for n, tasks in zip(episodes.index, episodes.tasks, strict=True) if not any(tasks)]
    if silent:
        raise DataError(
            f"{dataset.repo_id}: {len(silent)} episodes have no task sentence, the first is episode {silent[0]}",
            rule="this policy is told in a sentence what to do",
            remedy=f"write the sentences into the dataset, or --dataset.exclude_episodes={silent}".replace(", ", ","),
        )


def split_data(data: Data, share: float) -> tuple[Data, Data | None]:
    """`split` of the dataset, or of each dataset of a mixture."""
    if not isinstance(data, Mixture):
        return split(data, share)
    train, held = zip(*(split(dataset, share) for dataset in datasets(data)), strict=True)
    found = [dataset for dataset in held if dataset is not None]
    return data.with_datasets(train), data.with_datasets(found) if found else None


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
            f"dataset.eval_split={share}: nothing of {dataset.repo_id} can be held out",
            rule="validation needs at least two episodes",
            remedy="leave out --dataset.eval_split",
        )
    everything = range(len(dataset.episodes.index))
    return dataset.subset([i for i in everything if i not in held]), dataset.subset(sorted(held))
