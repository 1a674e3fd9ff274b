"""The decode floor: CPU time of decoding the same files from front to back, a thread per core."""

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

from kata.bench.course import ProcessPauses
from kata.data import Dataset
from kata.data.video.color import ONE_THREAD

STRETCH_S = 0.25
"""CPU seconds of a thread on one camera before it takes the next: short, so that a disturbance
falls on all cameras.
"""


@dataclass(frozen=True)
class Floor:
    """The floor of one camera.

    Attributes:
        decode_ms: CPU milliseconds per frame that is decoded alone.
        rgb_ms: The same for one that is also converted to RGB.
        frames_s: Frames per second of all threads.
    """

    decode_ms: float
    rgb_ms: float
    frames_s: float


def open_tracks(dataset: Dataset, cameras: Sequence[str], threads: int) -> list[dict[str, Track]]:
    """Return each thread's way through each camera's files; threads begin at different places."""
    tracks: list[dict[str, Track]] = []
    for number in range(threads):
        begin = number / threads
        tracks.append({key: Track(_frames(dataset, key, begin)) for key in cameras})
    return tracks


def decode_floors(
    tracks: Sequence[Mapping[str, Track]], seconds: float, until: Callable[[], ProcessPauses]
) -> dict[str, Floor]:
    """Decode for a while and return the floor of each camera.

    Decoder and settings are the reader's, with one thread each. Every frame is decoded and
    converted once, and nothing is kept: no reader needs less for frames that it did not hold. A
    thread takes the cameras by stretches, so that a disturbance falls on all of them.

    Args:
        tracks: What `open_tracks` returns.
        seconds: The least CPU seconds per thread and camera.
        until: Returns when decoding may end, with the pauses of the process.
    """
    ended = threading.Event()

    def work(each: Mapping[str, Track]) -> None:
        begin_s = time.thread_time()
        while not ended.is_set() or time.thread_time() - begin_s < seconds * len(each):
            for track in each.values():
                track.decode_on(min(STRETCH_S, seconds))

    with ThreadPoolExecutor(len(tracks)) as pool:
        futures = [pool.submit(work, each) for each in tracks]
        try:
            pauses = until()
        finally:
            ended.set()
        for future in futures:
            future.result()
    floors: dict[str, Floor] = {}
    for key in tracks[0]:
        floors[key] = _floor([each[key] for each in tracks], pauses)
    return floors


class Track:
    """One thread's way through a camera's files; the first frame, which opens, is not counted."""

    def __init__(self, frames: Iterator[Any]) -> None:
        self.count = 0
        self.decode_s = 0.0
        self.rgb_s = 0.0
        self.spans: list[tuple[float, float]] = []
        self._frames = frames
        self._reformatter = VideoReformatter()
        next(frames)

    def decode_on(self, stretch_s: float) -> None:
        """Decode on for `stretch_s` CPU seconds of this thread."""
        began_s = time.perf_counter()
        begin_s = time.thread_time()
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
            self.decode_s += decoded_s - before_s
            self.rgb_s += after_s - decoded_s
            self.count += 1
            before_s = after_s
            if after_s - begin_s >= stretch_s:
                break
        self.spans.append((began_s, time.perf_counter()))


def _floor(tracks: Sequence[Track], pauses: ProcessPauses) -> Floor:
    """Return the floor of a camera over all threads."""
    count = sum(track.count for track in tracks)
    decode_ms = 1e3 * sum(track.decode_s for track in tracks) / count
    rgb_ms = 1e3 * sum(track.rgb_s for track in tracks) / count
    rate = 0.0
    for track in tracks:
        rate += track.count / sum(pauses.running_s(*span) for span in track.spans)
    return Floor(decode_ms, decode_ms + rgb_ms, rate)


def _frames(dataset: Dataset, camera: str, begin: float) -> Iterator[Any]:
    """Yield the frames of a camera's files in order, for ever, from a share of their length on."""
    video = dataset.columns[camera].dtype == "video"
    span = dataset.layout.videos[camera] if video else dataset.layout.data
    files = [dataset.root / name for name in span.used()]
    return _video_frames(files, begin) if video else _images(files, camera, begin)


def _video_frames(files: list[Path], begin: float) -> Iterator[av.VideoFrame]:
    """Yield the frames of all files in order, for ever, from a share of their length on."""
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
    """Yield the undecoded images of all tables, for ever, from a share of each row group on."""
    while True:
        for path in files:
            table = pq.ParquetFile(path)
            for group in range(table.num_row_groups):
                cells: Any = table.read_row_group(group, columns=[camera])[camera]
                for row in range(int(begin * len(cells)), len(cells)):
                    yield Image.open(io.BytesIO(cells[row]["bytes"].as_py()))
