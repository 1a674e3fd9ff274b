"""From a Run to everything that is known before step 1: data, features, statistics, order."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch

from kata.data import anchor_rows
from kata.data.dataset.anchors import AnchorRows
from kata.data.dataset.mixture import Mixture
from kata.data.sampling.permutation import SampleOrder
from kata.dist.process_group import ProcessGroup
from kata.errors import ConfigError
from kata.policies.config import PolicyConfig
from kata.processors.augment import Augment, build_augment
from kata.run import Run
from kata.run.dataset import ImageTransformsConfig
from kata.train.input.base_features import base_rows, refuse_silent_blanks
from kata.train.input.datasets import open_data, split_data, take_roles
from kata.train.input.features import fit_features, refuse_episodes, refuse_missing_columns
from kata.train.input.mixture_checks import check_together
from kata.train.input.normalization import NormalizationSetup, fit_normalization
from kata.train.input.order import build_order, choose_order
from kata.train.input.prompts import check_prompts
from kata.train.input.rank_checks import check_same_data
from kata.train.input.readers import ReaderSettings, choose_reader_settings, in_dataset
from kata.train.model.device import check_precision, rank_device


@dataclass(frozen=True)
class TrainingData:
    """The episodes of a run, and the order of its samples.

    Attributes:
        train: the episodes to train on.
        val_dataset: the episodes to validate on, or None.
        rows: the anchors in `train`, ascending (N,).
        order: which anchor stands at which position of the stream.
    """

    train: Mixture
    val_dataset: Mixture | None
    rows: AnchorRows
    order: SampleOrder


@dataclass(frozen=True)
class Prepared:
    """The parts of a run that are known before its policy is built.

    Attributes:
        run: the options, with the policy's features and the numbers of the order filled in.
        device: the device of this rank.
        data: the episodes, and the order of samples.
        reading: settings of all readers.
        normalization: the pipelines before and after the policy.
        augment: augmentation of training frames, or None.
        notes: messages for the user.
        found: for each dataset, the columns whose role was found.
        base_rows: the base beside the dataset, rows of the table before step 1.
    """

    run: Run
    device: torch.device
    data: TrainingData
    reading: ReaderSettings
    normalization: NormalizationSetup
    augment: Augment | None
    notes: list[str]
    found: list[list[str]]
    base_rows: list[tuple[str, str]]


def prepare(run: Run, group: ProcessGroup | None = None) -> Prepared:
    """Open the data, and fit policy and data to each other.

    Args:
        run: the options.
        group: the ranks that train together; rank 0 computes statistics and chooses the order for
            all. None is this process alone.

    Raises:
        KataError: options and data do not fit; every mismatch is found here, before step 1.
    """
    group = group or ProcessGroup()
    device = rank_device(run.policy.device, group.world)
    check_precision(run.precision, device)
    augment = _augment(run.dataset.image_transforms)
    # 1. The datasets, the roles of their columns, and the policy's features.
    whole = group.local_rank0_first(lambda: open_data(run.dataset))
    check_same_data(group, whole.datasets)
    run, whole, found = take_roles(run, whole)
    policy, fit_notes = _fit(run, whole)
    # 2. The episodes and samples to train on.
    train, val_dataset = split_data(whole, run.dataset.eval_split)
    rows = anchor_rows(train, policy.drop_last_frames())
    _refuse_large_batch(run, len(rows))
    # 3. Statistics of exactly these, then how and in which order they are read.
    normalization = fit_normalization(train, policy, run, device.type, group)
    prompt_notes = check_prompts(policy, normalization.acting[0], train)
    reading, reading_notes = choose_reader_settings(run, policy, train, device, group)
    chosen, order_notes = group.broadcast_from_rank0(
        lambda: choose_order(run, train, reading, rows)
    )
    options = dataclasses.replace(run.dataset, **chosen)
    order = build_order(options, run.seed, train, reading, rows)
    return Prepared(
        run=dataclasses.replace(run, policy=policy, dataset=options),
        device=device,
        data=TrainingData(train, val_dataset, rows, order),
        reading=reading,
        normalization=normalization,
        augment=augment,
        notes=[
            *whole.notes,
            *fit_notes,
            *normalization.notes,
            *prompt_notes,
            *reading_notes,
            *order_notes,
        ],
        found=found,
        base_rows=base_rows(dataclasses.replace(run, policy=policy), run.policy, whole),
    )


def _augment(options: ImageTransformsConfig) -> Augment | None:
    if not options.enable:
        return None
    return build_augment(
        options.tfs, count=options.max_num_transforms, random_order=options.random_order
    )


def _fit(run: Run, whole: Mixture) -> tuple[PolicyConfig, list[str]]:
    """Return the policy with the dataset's features, and messages for the user."""
    policy = fit_features(run.policy, whole, run.rename_map)
    policy.validate_features()
    refuse_missing_columns(whole, in_dataset(policy.windows(), run.rename_map), run.rename_map)
    notes = check_together(whole, policy, run.dataset)
    refuse_silent_blanks(run, policy, whole)
    absent = [key for key in run.policy.input_features if key not in policy.input_features]
    if absent:
        notes.append(f"{', '.join(absent)}: not in the dataset; the policy trains without")
    refuse_episodes(whole.datasets, policy)
    return policy, notes


def _refuse_large_batch(run: Run, samples: int) -> None:
    if run.effective_batch > samples:
        raise ConfigError(
            f"batch of {run.effective_batch} samples, dataset of {samples}",
            rule="a batch is no larger than the dataset",
            remedy=f"--batch_size={max(1, samples // (run.ranks * run.accumulation))} or less",
        )
