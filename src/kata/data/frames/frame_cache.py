"""A cache of decoded frames: one file per camera, filled while frames are decoded."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import av
import PIL

from kata.data.format.fingerprint import digest
from kata.data.frames.frame_format import RECORDED, FrameFormat
from kata.data.storage.array_file import cache_folder
from kata.data.storage.row_cache import ROW_FORMAT, RowBudget, RowCache, RowFiles

if TYPE_CHECKING:
    from kata.data.dataset.dataset import Dataset

_SHARED_MEMORY = Path("/dev/shm")
_MADE_BY = [av.__version__, list(av.library_versions.items()), PIL.__version__]
"""Versions of the decoders. With the files, they decide the pixels."""


@dataclass(frozen=True)
class CacheOptions:
    """Options of a frame cache.

    Attributes:
        kind: 'frames' keeps frames in shared memory until the last process that uses them ends;
            'disk' keeps them in `folder`.
        folder: of a cache on disk; None means the cache folder.
        num_bytes: budget of all cameras together; None means a quarter of the available memory, or
            80 % of the disk's free space.
        share: fraction of the budget for this cache, where several share it.
        frame_format: format of the cached frames.
    """

    kind: str
    folder: Path | None = None
    num_bytes: int | None = None
    share: float = 1.0
    frame_format: FrameFormat = RECORDED


class FrameCache(RowCache):
    """The cached cameras of a dataset, for several threads and processes.

    All subsets of a dataset share the files. If the budget does not hold all frames, the first
    frames of the opened episodes are cached, equally many of every camera. The rest is then whole
    files, of which every GOP is decoded as usual.

    Args:
        dataset: as opened. The identity of its files, the camera, its size and the decoder's
            version name the cache file.
        cameras: their keys.
        options: see CacheOptions.
        name: prefix of the keys that `fetch`, `has`, `takes` and `store` get.
    """

    def __init__(
        self, dataset: Dataset, cameras: tuple[str, ...], options: CacheOptions, *, name: str = ""
    ) -> None:
        folder, temporary = _folder(options)
        files: dict[str, tuple[str, tuple[int, ...]]] = {}
        for key in cameras:
            shape = options.frame_format.shape(key, dataset.columns[key])
            files[name + key] = (_name(dataset, key, shape), shape)
        rows = int(dataset.opened.length.sum())
        super().__init__(
            folder,
            RowFiles(files, rows, "frames per camera"),
            RowBudget(options.num_bytes, options.share),
            temporary=temporary,
        )


def _folder(options: CacheOptions) -> tuple[Path, bool]:
    """Return the folder of the frames, and True if they are kept only while a process uses them."""
    if options.kind == "disk":
        return (options.folder or cache_folder()) / "frames", False
    shared = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else cache_folder()
    return shared / f"kata-frames-{os.getuid()}", True


def _name(dataset: Dataset, key: str, shape: tuple[int, ...]) -> str:
    """Return the name of a camera's files, a digest of all that decides its pixels."""
    column, opened = dataset.columns[key], dataset.opened
    span = opened.videos[key] if column.dtype == "video" else opened.data
    pixels = "rgb24" if shape == column.shape else f"rgb24 as {shape}"
    return digest(
        dataset.store, opened, span, ROW_FORMAT, key, column.dtype, column.shape, pixels, _MADE_BY
    )
