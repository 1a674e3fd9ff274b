"""The decode floor: what this machine needs to decode the same files from front to back, one thread per core."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow.parquet as pq
from av.video.reformatter import VideoReformatter
from PIL import Image

from kata.data import Dataset


@dataclass(frozen=True)
class Floor:
    """Of one camera: CPU milliseconds per frame decoded alone, and turned to RGB too; frames/s of all threads."""

    decode_ms: float
    rgb_ms: float
    frames_s: float


def decode_floor(dataset: Dataset, camera: str, *, threads: int, seconds: float) -> Floor:
    """Decode the files of one camera for so many seconds, every thread from a place of its own in them.

    The same decoder and settings as the reader's, one thread each; every frame is decoded and converted once and
    nothing is kept. No reader can do with less for frames that each sample needs anew.
    """
    video = dataset.columns[camera].dtype == "video"
    span = dataset.layout.videos[camera] if video else dataset.layout.data
    files = [dataset.root / name for name in span.used()]
    stop = threading.Event()

    def work(number: int) -> tuple[int, float, float]:
        begin = number / threads
        frames = _video_frames(files, begin) if video else _images(files, camera, begin)
        return _count(frames, stop)

    began_s = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        futures = [pool.submit(work, number) for number in range(threads)]
        stop.wait(seconds)
        stop.set()
        done = [future.result() for future in futures]
    wall_s = time.perf_counter() - began_s
    count = max(1, sum(frames for frames, _, _ in done))
    decode_s, rgb_s = (sum(one[place] for one in done) for place in (1, 2))
    return Floor(1e3 * decode_s / count, 1e3 * (decode_s + rgb_s) / count, count / wall_s)


def _count(frames: Iterator[Any], stop: threading.Event) -> tuple[int, float, float]:
    """Frames after the first, which opens; this thread's CPU seconds of decoding them, and of converting them."""
    reformatter = VideoReformatter()
    count, decode_s, rgb_s = -1, 0.0, 0.0
    before_s = time.thread_time()
    for frame in frames:
        if isinstance(frame, av.VideoFrame):
            decoded_s = time.thread_time()
            reformatter.reformat(frame, format="rgb24", threads=1)
        else:
            before_s = time.thread_time()  # before it the table was read
            frame.load()
            decoded_s = time.thread_time()
            np.asarray(frame.convert("RGB"))
        after_s = time.thread_time()
        if count >= 0:
            decode_s, rgb_s = decode_s + decoded_s - before_s, rgb_s + after_s - decoded_s
        count, before_s = count + 1, after_s
        if count and stop.is_set():
            break
    return count, decode_s, rgb_s


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
                    container.seek(int((stream.start_time or 0) + share * stream.duration), stream=stream)
                share = 0.0
                yield from container.decode(stream)


def _images(files: list[Path], camera: str, begin: float) -> Iterator[Image.Image]:
    """The images of all table files in order, not decoded yet, for ever, from a share of each row group on."""
    while True:
        for path in files:
            table = pq.ParquetFile(path)
            for group in range(table.num_row_groups):
                cells: Any = table.read_row_group(group, columns=[camera])[camera]
                for row in range(int(begin * len(cells)), len(cells)):
                    yield Image.open(io.BytesIO(cells[row]["bytes"].as_py()))
