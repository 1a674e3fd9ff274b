"""The frame caches of a run: one per dataset, within one budget."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from kata.data.dataset.mixture import Mixture
from kata.data.frames.frame_cache import CacheOptions, FrameCache
from kata.data.frames.frame_format import FrameFormat
from kata.run.dataset import DatasetConfig
from kata.units import num_bytes


def frame_caches(
    live: ExitStack,
    options: DatasetConfig,
    data: Mixture,
    cameras: Sequence[str],
    frame_format: FrameFormat,
) -> dict[str, FrameCache]:
    """Open the caches that `options` ask for, by name of the dataset; `live` closes them.

    They serve all readers: held-out episodes are rows of the same datasets. The budget is divided
    by the numbers of frames, since cameras of a mixture have one size.
    """
    if options.cache == "none" or not cameras:
        return {}
    folder = None if options.cache_dir is None else Path(options.cache_dir).expanduser()
    budget = None if options.cache_size is None else int(num_bytes(options.cache_size))
    present = {part: [key for key in cameras if key in part.columns] for part in data.parts}
    frames = {
        part: len(keys) * int(part.dataset.opened.length.sum()) for part, keys in present.items()
    }
    found: dict[str, FrameCache] = {}
    for part, keys in present.items():
        names = {key: part.own(key) for key in keys}
        share = frames[part] / sum(frames.values())
        wanted = CacheOptions(options.cache, folder, budget, share, frame_format.under(names))
        prefix = data.key_prefix(part)
        cache = FrameCache(part.dataset, tuple(names.values()), wanted, name=prefix)
        found[part.name] = live.enter_context(cache)
    return found
