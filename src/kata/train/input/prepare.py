"""From a Run to everything that is known before step 1: data, features, statistics, pipelines,
device.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch

from kata.data import anchor_rows
from kata.data.dataset.mixture import Mixture
from kata.data.frames.frame_format import FrameFormat
from kata.data.loader.shuffle import (
    Shuffle,
    ShuffleChoice,
    default_frame_memory,
    make_order,
)
from kata.data.sampling.permutation import SampleOrder
from kata.dist.process_group import ProcessGroup
from kata.errors import ConfigError
from kata.processors import Pipeline
from kata.processors.augment import Augment, build_augment
from kata.run import Run
from kata.run.dataset import DatasetConfig
from kata.spec import Stats, Windows
from kata.train.input.datasets import open_data, split_data, take_roles
from kata.train.input.features import fit_features, refuse_episodes, refuse_missing_columns
from kata.train.input.mixture_checks import check_together
from kata.train.input.normalization import NormalizationSetup, fit_normalization
from kata.train.input.nvdec import choose_decoder
from kata.train.input.pixel_format import choose_frame_format
from kata.train.input.rank_checks import check_same_data
from kata.train.model.device import check_precision, rank_device
from kata.units import num_bytes

T = TypeVar("T")


@dataclass(frozen=True)
class Prepared:
    """What a run is made of.

    run: with the policy's features filled in. rows: training anchors.
    keys: dataset keys that are read. windows: under the dataset's names. notes: what the user
        should know.
    normalization: how values are normalised. frame_memory: bytes for decoded frames.
    nvdec: video is decoded on the graphics card.
    frame_format: how frames lie in batches.
    found: of each dataset, the columns whose role was found.
    """

    run: Run
    dataset: Mixture
    val_dataset: Mixture | None
    rows: np.ndarray
    normalization: NormalizationSetup
    windows: Windows
    keys: tuple[str, ...]
    device: torch.device
    augment: Augment | None
    notes: list[str]
    frame_memory: int
    frame_format: FrameFormat
    nvdec: bool
    found: list[list[str]]

    @property
    def stats(self) -> Stats:
        """Statistics of the frames trained on, under the policy's names."""
        return self.normalization.stats

    @property
    def before(self) -> Pipeline:
        """What batches pass through before the policy."""
        return self.normalization.before

    @property
    def after(self) -> Pipeline:
        """What predicted actions pass through."""
        return self.normalization.after

    @property
    def cameras(self) -> tuple[str, ...]:
        """Dataset keys of the cameras that are read."""
        return tuple(key for key in self.keys if key in self.dataset.cameras)


def prepare(run: Run, group: ProcessGroup | None = None) -> Prepared:
    """Open the data and fit policy and data to each other. Every mismatch is found here, before
    step 1.

    group: the ranks that train together; rank 0 computes statistics and chooses the order for all.
    """
    group = group or ProcessGroup()
    device = rank_device(run.policy.device, group.world)
    check_precision(run.precision, device)
    whole = group.local_rank0_first(lambda: open_data(run.dataset))
    check_same_data(group, whole.datasets)
    run, whole, found = take_roles(run, whole)
    policy = fit_features(run.policy, whole, run.rename_map)
    policy.validate_features()
    windows = _in_dataset(policy.windows(), run.rename_map)
    refuse_missing_columns(whole, windows, run.rename_map)
    said = check_together(whole, policy, run.dataset)
    refuse_episodes(whole.datasets, policy)
    train, val_dataset = split_data(whole, run.dataset.eval_split)
    rows = anchor_rows(train, policy.drop_last_frames())
    if run.effective_batch > len(rows):
        raise ConfigError(
            f"batch of {run.effective_batch} samples, dataset of {len(rows)}",
            rule="a batch is no larger than the dataset",
            remedy=f"--batch_size={max(1, len(rows) // (run.ranks * run.accumulation))} or less",
        )
    normalization = fit_normalization(train, policy, run, device.type, group)
    keys = tuple(
        _in_dataset(
            {**policy.input_features, **policy.output_features, **policy.windows()}, run.rename_map
        )
    )
    cameras = [key for key in keys if key in train.cameras]
    frame_format, format_notes = choose_frame_format(run.dataset, policy, train, cameras)
    memory = _frame_memory(run.dataset)
    nvdec, nvdec_note = group.broadcast_from_rank0(lambda: _nvdec(run, train, cameras, device))
    chosen, order_note = group.broadcast_from_rank0(
        lambda: _shuffle(run, train, windows, cameras, rows, memory, frame_format)
    )
    return Prepared(
        run=dataclasses.replace(
            run, policy=policy, dataset=dataclasses.replace(run.dataset, **chosen)
        ),
        dataset=train,
        val_dataset=val_dataset,
        rows=rows,
        windows=windows,
        keys=keys,
        device=device,
        augment=_augment(run),
        notes=[*whole.notes, *said, *normalization.notes, *format_notes, *nvdec_note, *order_note],
        normalization=normalization,
        frame_memory=memory,
        frame_format=frame_format,
        nvdec=nvdec,
        found=found,
    )


def _augment(run: Run) -> Augment | None:
    tfs = run.dataset.image_transforms
    if not tfs.enable:
        return None
    return build_augment(tfs.tfs, count=tfs.max_num_transforms, random_order=tfs.random_order)


def _in_dataset(named: Mapping[str, T], rename_map: dict[str, str]) -> dict[str, T]:
    """Return values by the policy's keys under the dataset's."""
    back = {new: old for old, new in rename_map.items()}
    return {back.get(key, key): value for key, value in named.items()}


def order_of(prepared: Prepared, rows: np.ndarray) -> SampleOrder:
    """Return the order in which the anchors `rows` are trained on."""
    data, options = prepared.dataset, prepared.run.dataset
    shuffles = _shuffles(options) or [Shuffle()] * len(data.parts)
    return make_order(shuffles, data, prepared.windows, prepared.cameras, rows, prepared.run.seed)


def _shuffles(options: DatasetConfig) -> list[Shuffle] | None:
    """Return the order of each dataset as options have it, None where a mixture's is not derived
    yet.
    """
    if options.mix is None:
        clips = (options.clip_pool, options.clip_frames, options.clip_gop)
        return [Shuffle(options.shuffle, *clips)]
    if options.mix_clips is None:
        return None
    return [Shuffle("clips", *clips) if any(clips) else Shuffle() for clips in options.mix_clips]


def _shuffle(
    run: Run,
    train: Mixture,
    windows: Windows,
    cameras: list[str],
    rows: np.ndarray,
    memory: int,
    frame_format: FrameFormat,
) -> tuple[dict[str, Any], list[str]]:
    """Return the order as options with all numbers, and what was chosen.

    The numbers are written down, so that a resumed run has the same order whatever memory it finds.
    """
    options, ahead = run.dataset, run.prefetch_factor + 1
    asked = Shuffle(options.shuffle, options.clip_pool, options.clip_frames, options.clip_gop)
    choice = ShuffleChoice(asked, memory, run.effective_batch, ahead, frame_format)
    where = train, windows, cameras, rows
    if options.mix_clips is None:
        return _recorded(options, *choice.choose(*where))
    return _repaired(choice, options, *where) if run.resume else ({}, [])


def _recorded(
    options: DatasetConfig, shuffles: list[Shuffle], notes: list[str]
) -> tuple[dict[str, Any], list[str]]:
    kind = "clips" if any(shuffle.kind == "clips" for shuffle in shuffles) else "full"
    if options.mix is not None:
        return {"shuffle": kind, "mix_clips": [_numbers(shuffle) for shuffle in shuffles]}, notes
    names = ("clip_pool", "clip_frames", "clip_gop")
    return {"shuffle": kind, **dict(zip(names, _numbers(shuffles[0]), strict=True))}, notes


def _repaired(
    choice: ShuffleChoice,
    options: DatasetConfig,
    mixture: Mixture,
    windows: Windows,
    cameras: list[str],
    rows: np.ndarray,
) -> tuple[dict[str, Any], list[str]]:
    """Derive the clips of a resumed mixture again where an overflow made those on record; else
    leave them.
    """
    recorded = options.mix_clips or []
    for kind in ("auto", "clips") if any(map(any, recorded)) else ():
        asked = dataclasses.replace(choice, asked=Shuffle(kind))
        overflowed, _ = asked.choose(mixture, windows, cameras, rows, in_64_bits=True)
        right, notes = asked.choose(mixture, windows, cameras, rows)
        if list(map(_numbers, overflowed)) == recorded != list(map(_numbers, right)):
            said = (
                f"dataset.mix_clips={recorded} came from an overflow and is derived again: the "
                "order changes here, "
                "so samples of the current epoch may come twice or not at all"
            )
            return _recorded(options, right, [said, *notes])
    return {}, []


def _numbers(shuffle: Shuffle) -> list[int]:
    return [shuffle.clip_pool, shuffle.clip_frames, shuffle.clip_gop]


def _nvdec(
    run: Run, data: Mixture, cameras: list[str], device: torch.device
) -> tuple[bool, list[str]]:
    own = [[part.own(key) for key in cameras if key in part.columns] for part in data.parts]
    return choose_decoder(run.dataset.decoder, data.datasets, own, device, run.num_workers)


def _frame_memory(data: DatasetConfig) -> int:
    return (
        default_frame_memory() if data.frame_memory is None else int(num_bytes(data.frame_memory))
    )
