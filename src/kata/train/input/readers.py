"""The readers of a run: their settings, and the frame caches that they share."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch

from kata.data import Reader
from kata.data.dataset.mixture import Mixture, MixtureEntry
from kata.data.frames.frame_cache import CacheOptions, FrameCache
from kata.data.frames.frame_format import FrameFormat
from kata.data.loader.far_data import divided_memory, read_through
from kata.data.storage.fetch_pool import FetchPool
from kata.data.storage.store import is_far
from kata.dist.process_group import ProcessGroup
from kata.policies.config import PolicyConfig
from kata.run import Run
from kata.run.dataset import FEATURE_CACHES, DatasetConfig
from kata.spec import Windows
from kata.train.input.feed import pinned
from kata.train.input.nvdec import choose_decoder, gpu_decoder
from kata.train.input.pixel_format import choose_frame_format
from kata.units import num_bytes

T = TypeVar("T")


@dataclass(frozen=True)
class ReaderSettings:
    """The settings that all readers of a run share; keys are the dataset's.

    Attributes:
        windows: frame offsets by key.
        keys: the columns that are read.
        cameras: those of them that are cameras.
        threads: decoding threads of a reader.
        frame_memory: bytes for decoded frames of the training reader.
        encoded_memory: bytes of streamed datasets that are here or on their way.
        kept_folder: keeps the bytes of streamed datasets on a disk; None keeps none.
        frame_format: format of frames in batches.
        device: the device that batches are copied to.
        is_on_gpu: True decodes video by NVDEC.
        rename_map: names that columns get after reading, where they differ.
    """

    windows: Windows
    keys: tuple[str, ...]
    cameras: tuple[str, ...]
    threads: int
    frame_memory: int
    encoded_memory: int
    kept_folder: Path | None
    frame_format: FrameFormat
    device: torch.device
    is_on_gpu: bool
    rename_map: dict[str, str]


def choose_reader_settings(
    run: Run, policy: PolicyConfig, data: Mixture, device: torch.device, group: ProcessGroup
) -> tuple[ReaderSettings, list[str]]:
    """Return the settings of the run's readers, and messages for the user.

    Args:
        run: its options of the dataset and the loader.
        policy: with the dataset's features.
        data: the training episodes.
        device: the device that batches are copied to.
        group: the ranks that train together; rank 0 chooses the decoder for all.
    """
    named = {**policy.input_features, **policy.output_features, **policy.windows()}
    keys = tuple(in_dataset(named, run.rename_map))
    cameras = tuple(key for key in keys if key in data.cameras)
    frame_format, notes = choose_frame_format(run.dataset, policy, data, cameras)
    own: list[list[str]] = []
    for part in data.parts:
        own.append([part.own(key) for key in cameras if key in part.columns])
    is_on_gpu, decoder_notes = group.broadcast_from_rank0(
        lambda: choose_decoder(run.dataset.decoder, data.datasets, own, device, run.num_workers)
    )
    frame_memory, encoded_memory = divided_memory(run.dataset.frame_memory, run.dataset.buffer_gb)
    settings = ReaderSettings(
        windows=in_dataset(policy.windows(), run.rename_map),
        keys=keys,
        cameras=cameras,
        threads=run.num_workers,
        frame_memory=frame_memory,
        encoded_memory=encoded_memory,
        kept_folder=_cache_folder(run.dataset),
        frame_format=frame_format,
        device=device,
        is_on_gpu=is_on_gpu,
        rename_map=run.rename_map,
    )
    return settings, [*notes, *decoder_notes, *_streaming_notes(run.dataset, data)]


def _streaming_notes(options: DatasetConfig, data: Mixture) -> list[str]:
    """Return a message where options of streaming have no effect."""
    if not options.may_stream or any(is_far(part.dataset.store) for part in data.parts):
        return []
    return ["nothing is streamed: the dataset is on this machine, which is no slower"]


def _cache_folder(options: DatasetConfig) -> Path | None:
    return None if options.cache_dir is None else Path(options.cache_dir).expanduser()


def in_dataset(by_key: Mapping[str, T], rename_map: dict[str, str]) -> dict[str, T]:
    """Return values by the dataset's keys that are given by the policy's."""
    back = {new: old for old, new in rename_map.items()}
    return {back.get(key, key): value for key, value in by_key.items()}


def open_reader(
    settings: ReaderSettings,
    data: Mixture,
    caches: Mapping[str, FrameCache],
    fetched: FetchPool | None = None,
    *,
    frame_memory: int = 0,
) -> Reader:
    """Open a reader of these episodes.

    Args:
        settings: those of the run.
        data: the episodes to read.
        caches: frame caches by name of the dataset.
        fetched: bytes of datasets in stores; None waits for each range where it is decoded.
        frame_memory: bytes for decoded frames; 0 holds none for later batches.
    """
    reader = Reader(
        data if fetched is None else read_through(fetched, data, settings.kept_folder),
        settings.windows,
        threads=settings.threads,
        keys=settings.keys,
        frame_memory=frame_memory,
        caches=caches,
        frame_format=settings.frame_format,
        rename_map=settings.rename_map,
    )
    if settings.is_on_gpu:
        reader.decode_with(gpu_decoder(settings.device))
    if settings.device.type == "cuda":
        reader.allocate_with(pinned)
    return reader


def open_caches(
    live: ExitStack, options: DatasetConfig, data: Mixture, reading: ReaderSettings
) -> dict[str, FrameCache]:
    """Open the frame caches that `options` ask for, by name of the dataset; `live` closes them.

    They serve all readers: held-out episodes are rows of the same datasets. The budget is divided
    by the numbers of frames, since cameras of a mixture have one size.
    """
    if options.cache in ("none", *FEATURE_CACHES) or not reading.cameras:
        return {}
    folder = _cache_folder(options)
    budget = None if options.cache_size is None else int(num_bytes(options.cache_size))
    names_of: dict[MixtureEntry, dict[str, str]] = {}
    frames: dict[MixtureEntry, int] = {}
    for part in data.parts:
        names_of[part] = {key: part.own(key) for key in reading.cameras if key in part.columns}
        frames[part] = len(names_of[part]) * int(part.dataset.opened.length.sum())
    found: dict[str, FrameCache] = {}
    for part, names in names_of.items():
        share = frames[part] / sum(frames.values())
        frame_format = reading.frame_format.under(names)
        wanted = CacheOptions(options.cache, folder, budget, share, frame_format)
        prefix = data.key_prefix(part)
        cache = FrameCache(part.dataset, tuple(names.values()), wanted, name=prefix)
        found[part.name] = live.enter_context(cache)
    return found
