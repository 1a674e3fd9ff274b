"""The reading of one rank: batches are taken and dropped, and what that costs is noted."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

import torch

from kata.bench import process_stats
from kata.bench.cases import windows_of
from kata.bench.mixing import mixing_of
from kata.bench.stream.options import StreamBench
from kata.bench.stream.stored_bytes import stored_frame_bytes
from kata.data import Dataset, open_dataset
from kata.data.loader.far_data import divided_memory
from kata.data.storage.store import is_far
from kata.loader import Loader
from kata.spec import Windows


@dataclass(frozen=True, kw_only=True)
class RankRun:
    """The figures of one rank. All but the first three are of the measured batches.

    Attributes:
        local_rank: number of the rank on its node.
        open_s: seconds until the dataset was open, with its metadata on this machine.
        first_batch_s: seconds until the first batch was there, opening included.
        batch_s: seconds from asking for each batch to having it.
        batch_size: samples of a batch.
        frames_per_sample: frames of all cameras in a sample.
        cpu_s: CPU seconds of the process.
        busy_s: CPU seconds of all processes of the machine meanwhile.
        work: what `kata.data.Reader.work` counted.
        evicted: decoded frames that made room for others before their next use.
        held_bytes: bytes of decoded frames that were held at the end.
        fetched_bytes: bytes of frames that came from the store since the start.
        stored_bytes_per_sample: bytes of a new frame of every camera that is read, in the dataset.
        episodes_per_batch: distinct episodes of a batch, on average.
        is_streamed: True if the bytes were in a store.
        mixing: distinct clips and same-clip pairs of a batch over all ranks; empty in full order.
        budget_bytes: bytes for decoded frames, batches and fetched bytes.
        peak_bytes: the most resident bytes of the process so far.
        resident: (seconds since the start, resident bytes) after each batch, the first ones
            included.
    """

    local_rank: int
    open_s: float
    first_batch_s: float
    batch_s: list[float]
    batch_size: int
    frames_per_sample: int
    cpu_s: float
    busy_s: float
    work: dict[str, float]
    evicted: int
    held_bytes: int
    fetched_bytes: int
    stored_bytes_per_sample: float
    episodes_per_batch: float
    is_streamed: bool
    mixing: dict[str, float]
    budget_bytes: int
    peak_bytes: int
    resident: list[tuple[float, int]]


@dataclass(frozen=True)
class _Taken:
    """The measured batches, as a consumer that drops them sees them."""

    first_s: float
    batch_s: list[float]
    cpu_s: float
    busy_s: float
    work: dict[str, float]
    evicted: int
    episodes: int
    resident: list[tuple[float, int]]


def read_rank(
    run: StreamBench, local_rank: int, ready: Callable[[], Any], world_size: int = 1
) -> RankRun:
    """Read the batches of this rank.

    Args:
        run: the options.
        local_rank: number of this rank on its node.
        world_size: number of ranks.
        ready: waits until all ranks are ready to begin.

    Raises:
        KataError: the dataset cannot be opened or read.
    """
    ready()
    began_s = time.perf_counter()
    dataset = open_streamed(run)
    open_s = time.perf_counter() - began_s
    windows, keys = windows_of(run.mode, dataset)
    frames_memory, encoded_memory = divided_memory(run.dataset.frame_memory, run.dataset.buffer_gb)
    with Loader(
        dataset,
        run.batch_size,
        delta_timestamps=_in_seconds(windows, dataset),
        keys=keys,
        seed=run.seed,
        shuffle=run.dataset.shuffle,
        image_dtype=torch.uint8,
        num_workers=run.num_workers or process_stats.cores(),
        prefetch_factor=run.prefetch_factor,
        frame_memory=frames_memory,
        # As in training, where the order is chosen for the samples of a step.
        global_batch=run.batch_size * world_size,
        encoded_memory=encoded_memory,
        cache_dir=run.dataset.cache_dir,
    ) as loader:
        taken = _take(loader, run, began_s)
        is_streamed = is_far(dataset.store)
        cameras = [key for key in keys if key in dataset.cameras]
        return RankRun(
            local_rank=local_rank,
            open_s=open_s,
            first_batch_s=taken.first_s,
            batch_s=taken.batch_s,
            batch_size=run.batch_size,
            frames_per_sample=sum(len(windows.get(key, (0,))) for key in cameras),
            cpu_s=taken.cpu_s,
            busy_s=taken.busy_s,
            work=taken.work,
            evicted=taken.evicted,
            held_bytes=loader.reader.buffer.held_bytes,
            fetched_bytes=loader.reader.work().bytes_fetched,
            stored_bytes_per_sample=sum(stored_frame_bytes(dataset, key) for key in cameras),
            episodes_per_batch=taken.episodes / run.num_batches,
            is_streamed=is_streamed,
            mixing=mixing_of(loader.order, run.batch_size * world_size),
            budget_bytes=loader.reader.frame_memory + (encoded_memory if is_streamed else 0),
            peak_bytes=process_stats.peak_resident_bytes(),
            resident=taken.resident,
        )


def open_streamed(run: StreamBench) -> Dataset:
    """Open the dataset that the options name."""
    chosen = run.dataset
    return open_dataset(
        chosen.name,
        root=chosen.root,
        episodes=chosen.episodes,
        exclude_episodes=chosen.exclude_episodes,
        revision=chosen.revision,
        streaming=chosen.streaming,
    )


def _in_seconds(windows: Windows, dataset: Dataset) -> dict[str, list[float]]:
    """Return windows as LeRobot's delta_timestamps."""
    times: dict[str, list[float]] = {}
    for key, offsets in windows.items():
        times[key] = [offset / dataset.fps for offset in offsets]
    return times


def _take(loader: Loader, run: StreamBench, began_s: float) -> _Taken:
    """Take the batches and drop them; look at the clock and at the memory after each."""
    batches = iter(loader)
    resident: list[tuple[float, int]] = []
    # 1. Batches that are not measured. The first one tells how long a training would wait.
    next(batches)
    first_s = time.perf_counter() - began_s
    for _ in islice(batches, run.warmup_batches - 1):
        resident.append((time.perf_counter() - began_s, process_stats.resident_bytes()))
    # 2. The measured ones.
    before = loader.reader.work()
    evicted = loader.reader.buffer.evicted
    episodes = 0
    busy_s = process_stats.busy_s()
    cpu_s = time.process_time()
    batch_s: list[float] = []
    asked_s = time.perf_counter()
    for batch in islice(batches, run.num_batches):
        had_s = time.perf_counter()
        batch_s.append(had_s - asked_s)
        episodes += len(torch.unique(batch["episode_index"]))
        resident.append((had_s - began_s, process_stats.resident_bytes()))
        asked_s = had_s
    return _Taken(
        first_s,
        batch_s,
        time.process_time() - cpu_s,
        process_stats.busy_s() - busy_s,
        asdict(loader.reader.work().since(before)),
        loader.reader.buffer.evicted - evicted,
        episodes,
        resident,
    )
