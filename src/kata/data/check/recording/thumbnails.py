"""Small copies of evenly spread frames: what the rules that need pixels look at.

Two frames a second, of whole episodes that are evenly spread over the dataset, within a budget.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from kata.data.arrays import Int64
from kata.data.check.findings import Findings
from kata.data.check.recording.signals import EpisodeSpan, Floats
from kata.data.dataset.dataset import Dataset
from kata.data.loader.reader import Reader
from kata.errors import FrameError

EVERY_S = 0.5
WIDTH, HEIGHT = 64, 48
BLOCK = 8
CHANGED = 12
"""Grey levels of 255; encoding a picture again changes its thumbnail by up to 10."""
_AT_ONCE = 16  # frames of each camera in memory

Thumbs = NDArray[np.uint8]


@dataclass(frozen=True)
class Sampled:
    """Thumbnails of one camera.

    Attributes:
        key: the camera.
        episodes: the episodes looked at.
        frames: per episode, (n,) frame numbers within it.
        thumbs: per episode, (n, HEIGHT, WIDTH, 3).
    """

    key: str
    episodes: list[EpisodeSpan]
    frames: list[Int64]
    thumbs: list[Thumbs]


def looked_at(sampled: list[Sampled]) -> str:
    """Return what was looked at, in words: all cameras have the same frames."""
    if not sampled:
        return "not looked at: no camera"
    frames = sum(len(each) for each in sampled[0].frames)
    cameras = f"each of {len(sampled)} cameras" if len(sampled) > 1 else f"'{sampled[0].key}'"
    return f"{frames:,} frames of {len(sampled[0].episodes):,} episodes of {cameras}"


def choose_episodes(episodes: list[EpisodeSpan], fps: int, budget: int) -> list[EpisodeSpan]:
    """Return whole episodes, evenly spread, whose sampled frames stay within a budget."""
    step = max(1, round(EVERY_S * fps))
    frames = sum(-(-each.length // step) for each in episodes)
    count = max(1, min(len(episodes), budget * len(episodes) // max(frames, 1)))
    places = np.unique(np.linspace(0, len(episodes) - 1, count).round().astype(np.int64))
    return [episodes[place] for place in places.tolist()]


def sample_cameras(
    data: Dataset,
    episodes: list[EpisodeSpan],
    found: Findings,
    progress: Callable[[int, int], None],
    threads: int,
) -> list[Sampled]:
    """Read thumbnails of all cameras; `found` takes an error per frame that does not decode."""
    step = max(1, round(EVERY_S * data.fps))
    chosen = data.subset([each.position for each in episodes])
    sampled = [Sampled(key, episodes, [], []) for key in data.cameras]
    total = sum(-(-each.length // step) for each in episodes)
    done = 0
    with Reader(chosen, {}, keys=list(data.cameras), threads=threads) as reader:
        for number, episode in enumerate(episodes):
            start = int(chosen.episodes.start[number])
            frames = np.arange(0, episode.length, step)
            pictures, good = _thumbs(reader, start + frames, list(data.cameras), episode, found)
            for camera in sampled:
                camera.frames.append(frames[good])
                camera.thumbs.append(pictures[camera.key])
            done += len(frames)
            progress(done, total)
    return sampled


def _thumbs(
    reader: Reader, rows: Int64, keys: list[str], episode: EpisodeSpan, found: Findings
) -> tuple[dict[str, Thumbs], NDArray[np.bool_]]:
    """Return the thumbnails of the rows that all cameras can decode, and which rows these are."""
    pictures: dict[str, list[Thumbs]] = {key: [] for key in keys}
    good = np.ones(len(rows), dtype=bool)
    for part in np.array_split(np.arange(len(rows)), -(-len(rows) // _AT_ONCE)):
        try:
            batches = [reader.read(rows[part])]
        except FrameError:
            batches = []
            for place in part.tolist():
                try:
                    batches.append(reader.read(rows[place : place + 1]))
                except FrameError as error:
                    good[place] = False
                    found.caught(f"camera '{error.camera}'", error, [episode.index])
        for batch in batches:
            for key in keys:
                pictures[key] += [thumbnail(frame) for frame in batch[key]]
    shape = (0, HEIGHT, WIDTH, 3)
    stacked = {
        key: np.stack(each) if each else np.empty(shape, np.uint8) for key, each in pictures.items()
    }
    return stacked, good


def thumbnail(frame: NDArray[np.uint8]) -> Thumbs:
    """Return a frame (H, W, C) as (HEIGHT, WIDTH, 3), each pixel the mean of the pixels it
    covers.
    """
    full = np.ascontiguousarray(np.broadcast_to(frame, (*frame.shape[:2], 3)))
    return np.asarray(Image.fromarray(full).resize((WIDTH, HEIGHT), Image.Resampling.BOX))


def blocks(thumbs: NDArray[Any]) -> Floats:
    """Return the mean color of each block of 8 x 8 pixels, (..., 6, 8, 3)."""
    tiles = thumbs.reshape(*thumbs.shape[:-3], HEIGHT // BLOCK, BLOCK, WIDTH // BLOCK, BLOCK, 3)
    return tiles.mean(axis=(-4, -2), dtype=np.float64)


def changed_pixels(one: Thumbs, other: Thumbs) -> Int64:
    """Return how many pixels differ by more than CHANGED grey levels of 255.

    A count, not a mean: a robot is a small part of a picture, and encoders change all a little.

    Args:
        one, other: (..., HEIGHT, WIDTH, 3).

    Returns:
        (...) int64.
    """
    apart = np.abs(one.astype(np.int16) - other.astype(np.int16)).mean(axis=-1)
    return (apart > CHANGED).sum(axis=(-2, -1))
