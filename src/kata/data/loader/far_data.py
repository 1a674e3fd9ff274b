"""Datasets in stores, read through one pool of fetched bytes."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from kata.data.dataset.dataset import Dataset
from kata.data.dataset.mixture import Mixture
from kata.data.loader.shuffle import default_frame_memory
from kata.data.storage.buffers import free_memory
from kata.data.storage.far_files import FarFiles
from kata.data.storage.fetch_pool import FetchPool
from kata.data.storage.kept_ranges import KeptRanges
from kata.data.storage.store import is_far
from kata.units import num_bytes

_ENCODED_BYTES = 10**9
"""Default bytes of streamed datasets that are here or on their way: at 100 kB for a GOP, these are
10,000 of them. 270 MiB/s fill it in four seconds.
"""


def open_fetch_pool(live: ExitStack, data: Mixture, encoded_memory: int) -> FetchPool | None:
    """Open the pool of fetched bytes that all readers share, if some dataset is in a store.

    Args:
        live: closes the pool.
        data: the episodes.
        encoded_memory: bytes that are here or on their way.
    """
    if not any(is_far(part.dataset.store) for part in data.parts):
        return None
    return live.enter_context(FetchPool(encoded_memory))


def divided_memory(frame_memory: str | None, buffer_gb: float | None) -> tuple[int, int]:
    """Return the bytes for decoded frames, and those for fetched bytes.

    Args:
        frame_memory: the option dataset.frame_memory.
        buffer_gb: the option dataset.buffer_gb.
    """
    asked = None if frame_memory is None else int(num_bytes(frame_memory))
    if buffer_gb is None:
        # The same for a streamed dataset as for a local one: clips, and so the order, follow from
        # it.
        frames = default_frame_memory() if asked is None else asked
        return frames, min(_ENCODED_BYTES, free_memory() // 16)
    total = int(buffer_gb * 1e9)
    frames = total * 3 // 4 if asked is None else asked
    return frames, total - frames


def read_through(fetched: FetchPool, data: Mixture, folder: Path | None = None) -> Mixture:
    """Return the same data, with the files that are far read through a pool of their bytes.

    Args:
        fetched: the pool.
        data: the episodes.
        folder: keeps the bytes that were fetched; None keeps none.
    """
    datasets: list[Dataset] = []
    for dataset in data.datasets:
        store = dataset.store
        if is_far(store) and not isinstance(store, FarFiles):
            kept = None if folder is None else KeptRanges(folder, store.location(""))
            dataset = replace(dataset, store=FarFiles(store, fetched, kept))
        datasets.append(dataset)
    return data.with_datasets(datasets)
