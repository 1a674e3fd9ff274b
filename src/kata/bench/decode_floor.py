"""The decode floor: what this machine needs to decode the same files from front to back, one
thread per core.
"""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow.parquet as pq
from av.video.reformatter import VideoReformatter
from PIL import Image

from kata.bench.interleave import Turns
from kata.data import Dataset
from kata.data.video.color import ONE_THREAD

STRETCH_S = 0.25
"""CPU seconds of a thread on one camera before it takes the next: about a turn, so that a turn
sees all cameras.
"""


@dataclass(frozen=True)
class Floor:
    """Of one camera: CPU milliseconds per frame decoded alone, and turned to RGB too; frames/s
    of all threads.
    """

    decode_ms: float
    rgb_ms: float
    frames_s: float


def open_tracks(dataset: Dataset, cameras: Sequence[str], threads: int) -> list[dict[str, Track]]:
    """Each thread's way through each camera's files, every thread's from a place of its own."""
    return [
        {key: Track(_frames(dataset, key, number / threads)) for key in cameras}
        for number in range(threads)
    ]


def decode_floors(
    tracks: Sequence[Mapping[str, Track]], seconds: float, until: Callable[[], Turns]
) -> dict[str, Floor]:
    """Decode until `until` returns, and at least so many CPU seconds per thread and camera; the
    floor of each camera.

    The same decoder and settings as the reader's, one thread each; every frame is decoded and
    converted once and nothing is kept. No reader can do with less for frames that each sample needs
    anew. A thread takes the cameras by stretches, so that what disturbs the machine falls on all of
    them. `until` tells when the process stood still.
    """
    ended = threading.Event()

    def work(each: Mapping[str, Track]) -> None:
        begin_s = time.thread_time()
        while not ended.is_set() or time.thread_time() - begin_s < seconds * len(each):
            for track in each.values():
                track.go_on(min(STRETCH_S, seconds))

    with ThreadPoolExecutor(len(tracks)) as pool:
        futures = [pool.submit(work, each) for each in tracks]
        try:
            turns = until()
        finally:
            ended.set()
        for future in futures:
            future.result()
    return {key: _floor([each[key] for each in tracks], turns) for key in tracks[0]}


class Track:
    """One thread's way through a camera's files; the first frame, which opens, is not counted."""

    def __init__(self, frames: Iterator[Any]) -> None:
        self.count, self.decode_s, self.rgb_s = 0, 0.0, 0.0
        self.spans: list[tuple[float, float]] = []
        self._frames, self._reformatter = frames, VideoReformatter()
        next(frames)

    def go_on(self, stretch_s: float) -> None:
        """Decode on for so many CPU seconds of this thread."""
        began_s, begin_s = time.perf_counter(), time.thread_time()
        before_s = begin_s
        for frame in self._frames:
            if isinstance(frame, av.VideoFrame):
                decoded_s = time.thread_time()
                self._reformatter.reformat(frame, format="rgb24", **ONE_THREAD)
            else:
                before_s = time.thread_time()  # before it the table was read
                frame.load()
                decoded_s = time.thread_time()
                np.asarray(frame.convert("RGB"))
            after_s = time.thread_time()
            self.decode_s, self.rgb_s = (
                self.decode_s + decoded_s - before_s,
                self.rgb_s + after_s - decoded_s,
            )
            self.count, before_s = self.count + 1, after_s
            if after_s - begin_s >= stretch_s:
                break
        self.spans.append((began_s, time.perf_counter()))


def _floor(tracks: Sequence[Track], turns: Turns) -> Floor:
    """The sum over a camera's threads."""
    count = sum(track.count for track in tracks)
    decode_ms, rgb_ms = (
        1e3 * sum(times) / count
        for times in zip(*((t.decode_s, t.rgb_s) for t in tracks), strict=True)
    )
    rates = (track.count / sum(turns.running_s(*span) for span in track.spans) for track in tracks)
    return Floor(decode_ms, decode_ms + rgb_ms, sum(rates))


def _frames(dataset: Dataset, camera: str, begin: float) -> Iterator[Any]:
    """The frames of a camera's files in order, for ever, from a share of their length on."""
    video = dataset.columns[camera].dtype == "video"
    span = dataset.layout.videos[camera] if video else dataset.layout.data
    files = [dataset.root / name for name in span.used()]
    return _video_frames(files, begin) if video else _images(files, camera, begin)


def _video_frames(files: list[Path], begin: float) -> Iterator[av.VideoFrame]:
    """The frames of all files in order, for ever, from a share of their whole length on."""
    first = int(begin * len(files))
    share = begin * len(files) - first
    while True:
        for path in [*files[first:], *files[:first]]:
            with av.open(str(path)) as container:
                stream = container.streams.video[0]
                stream.thread_type, stream.codec_context.thread_count = "NONE", 1
                if share and stream.duration:
                    container.seek(
                        int((stream.start_time or 0) + share * stream.duration), stream=stream
                    )
                share = 0.0
                yield from container.decode(stream)


def _images(files: list[Path], camera: str, begin: float) -> Iterator[Image.Image]:
    """The images of all table files in order, not decoded yet, for ever, from a share of each
    row group on.
    """
    while True:
        for path in files:
            table = pq.ParquetFile(path)
            for group in range(table.num_row_groups):
                cells: Any = table.read_row_group(group, columns=[camera])[camera]
                for row in range(int(begin * len(cells)), len(cells)):
                    yield Image.open(io.BytesIO(cells[row]["bytes"].as_py()))
