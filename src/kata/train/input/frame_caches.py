"""The frame caches of a run: one per dataset, within one budget."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from kata.data import Dataset
from kata.data.frames.frame_cache import CacheOptions, FrameCache
from kata.data.loader.mixture_reader import kept_under
from kata.train.input.prepare import Prepared
from kata.units import num_bytes


def frame_caches(live: ExitStack, prepared: Prepared) -> dict[str, FrameCache]:
    """By dataset ('' where there is one), for all readers: held-out episodes are rows of the same
    datasets.

    The budget is divided by the numbers of frames: cameras of a mixture have one size.
    """
    wanted, data = prepared.run.dataset, prepared.dataset
    if wanted.cache == "none" or not prepared.cameras:
        return {}
    folder = None if wanted.cache_dir is None else Path(wanted.cache_dir).expanduser()
    budget = None if wanted.cache_size is None else int(num_bytes(wanted.cache_size))
    if isinstance(data, Dataset):
        options = CacheOptions(wanted.cache, folder, budget, frame_format=prepared.frame_format)
        whole = FrameCache(data, prepared.cameras, options)
        return {"": live.enter_context(whole)}
    cameras = {
        part: [key for key in prepared.cameras if key in part.columns] for part in data.parts
    }
    takes = {
        part: len(keys) * int(part.dataset.opened.length.sum()) for part, keys in cameras.items()
    }
    found: dict[str, FrameCache] = {}
    for part, keys in cameras.items():
        share = takes[part] / sum(takes.values())
        options = CacheOptions(
            wanted.cache,
            folder,
            budget,
            share,
            prepared.frame_format.under({key: part.own(key) for key in keys}),
        )
        cache = FrameCache(
            part.dataset, tuple(map(part.own, keys)), options, name=kept_under(part.name)
        )
        found[part.name] = live.enter_context(cache)
    return found
