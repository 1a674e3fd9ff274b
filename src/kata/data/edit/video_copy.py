"""Stretches of video files moved into new files by copying packets: every frame keeps its bits.

A stretch is cut where the decoder needs nothing from before: at a keyframe that nothing later is
shown before. Frames that a stretch brings along (between such a keyframe and the first wanted
frame, or up to the end of a reordered group) stay in the new file; no episode points at them. So a
cut never needs encoding.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from av.container import InputContainer
from av.video.stream import VideoStream

from kata.data.arrays import Int64
from kata.data.format.v3 import FileSeries
from kata.data.storage.store import local_file
from kata.data.video.container import open_video
from kata.data.video.encoder import FASTSTART
from kata.data.video.packet_index import FrameIndex, build_index
from kata.data.video.packets import read_packets
from kata.errors import DataError


class Cuts:
    """The places where one video file can be cut.

    Frames are counted over all packets, in presentation order.

    Args:
        path: a video file with a constant frame rate.
        fps: that rate; None where the times of its frames do not matter.
        passing: whether the file is deleted once its packets are copied.

    Raises:
        DataError: for a damaged file, another rate, or frames that are missing or doubled.
    """

    def __init__(self, path: Path, fps: int | None, *, passing: bool = False) -> None:
        self.path, self.passing = path, passing
        self.index = build_index(local_file(path))
        order = np.argsort(self.index.pts, kind="stable")
        self.rank: Int64 = np.empty_like(order)
        self.rank[order] = np.arange(len(order))
        if fps is not None:
            self._check_times(order, fps)
        self.keys = np.unique(self.index.start)
        reached = np.maximum.accumulate(np.concatenate([[-1], self.rank]))
        # before packet p: exactly the frames 0..p-1
        self._clean = reached == np.arange(-1, len(order))
        self._refreshes: dict[int, bool] = {}

    def _check_times(self, order: Int64, fps: int) -> None:
        self.index.check_rate(fps)
        time_s = (self.index.pts[order] - self.index.pts[order[:1]]) * self.index.tick_s
        if (np.abs(time_s * fps - np.arange(len(order))) > 0.5).any():
            raise DataError(
                f"{self.path} holds hidden frames at odd times",
                rule="its packets can be copied when every frame, shown or not, is 1 / fps after "
                "the one before",
                remedy="encode it again with `kata data transcode`",
            )

    def frame(self, number: int) -> int:
        """The number over all packets of a frame that is shown."""
        return int(self.rank[self.index.packet[number]])

    def begin(self, frame: int) -> int:
        """The last clean start at or before a frame."""
        for key in self.keys[: np.searchsorted(self.keys, frame, side="right")][::-1]:
            if self._clean[key] and self.rank[key] == key and self._is_refresh(int(key)):
                return int(key)
        return 0

    def end(self, frame: int) -> int:
        """The first clean end after the frame before `frame`."""
        return frame + int(np.argmax(self._clean[frame:]))

    def bytes(self, begin: int, end: int) -> int:
        """Bytes of a clean stretch."""
        return int(self.index.size[begin:end].sum())

    def _is_refresh(self, key: int) -> bool:
        """False for a keyframe behind which a decoder may still use what came before (an open
        group).
        """
        if key not in self._refreshes:
            with self.path.open("rb") as file:
                file.seek(int(self.index.offset[key]))
                data = file.read(int(self.index.size[key]))
            self._refreshes[key] = refreshes(self.index.setup[0], self.index.setup[1], data)
        return self._refreshes[key]


def refreshes(codec: str, setup: bytes, data: bytes) -> bool:
    """Return True if a key packet resets the decoder: of h264 and hevc only IDR pictures do
    (H.264 7.4.1.2.4, H.265 8.1).
    """
    if codec not in ("h264", "hevc") or setup[:1] != b"\x01":
        return True
    wide = (setup[4] if codec == "h264" else setup[21]) % 4 + 1
    place = 0
    while place + wide < len(data):
        unit = data[place + wide]
        if unit & 31 == 5 if codec == "h264" else 16 <= unit >> 1 & 63 <= 20:
            return True
        place += wide + int.from_bytes(data[place : place + wide], "big")
    return False


@dataclass
class _Run:
    cuts: Cuts
    begin: int
    end: int
    offset: int


class VideoSeries:
    """The video files of one camera of a new dataset.

    Args:
        folder: The dataset's folder.
        series: The names of the files, and when the next one begins.
        fps: Frames per second.
    """

    def __init__(self, folder: Path, series: FileSeries, fps: int) -> None:
        self._folder = folder
        self._series = series
        self._fps = fps
        self._runs: list[_Run] = []
        self.files: list[Path] = []

    def add(self, cuts: Cuts, first: int, count: int) -> tuple[dict[str, int], int]:
        """Take over `count` frames of a file from its shown frame `first` on.

        Returns:
            The columns of the episode table that point at the new file, and the first of the
            frames in it.
        """
        start = cuts.frame(first)
        begin, end = cuts.begin(start), cuts.end(cuts.frame(first + count - 1) + 1)
        last = self._runs[-1] if self._runs else None
        joins = last is not None and last.cuts is cuts and last.begin <= begin <= last.end
        fresh = max(begin, last.end) if joins and last else begin
        more = cuts.bytes(fresh, max(fresh, end))
        if last is not None and (
            not self._series.has_room(more) or not _is_same_coding(last.cuts.index, cuts.index)
        ):
            self.flush()
            last = None
            joins = False
            more = cuts.bytes(begin, end)
        if joins and last is not None:
            last.end = max(last.end, end)
        else:
            last = _Run(cuts, begin, end, last.offset + last.end - last.begin if last else 0)
            self._runs.append(last)
        self._series.held_bytes += more
        return self._series.columns(), last.offset + start - last.begin

    def flush(self) -> None:
        """Write the file that is being collected; the next frames go to a new one."""
        if self._runs:
            path = self._folder / self._series.name
            path.parent.mkdir(parents=True, exist_ok=True)
            _copy(self._runs, path, self._fps)
            for run in self._runs:
                if run.cuts.passing:
                    run.cuts.path.unlink()
            self.files.append(path)
            self._runs = []
            self._series.next_file()


def copy_packets(source: Path, target: Path, fps: int) -> None:
    """Write a video file again with frame k shown at k / fps; every frame keeps its bits.

    Raises:
        DataError: The source is damaged.
    """
    cuts = Cuts(source, None)
    _copy([_Run(cuts, 0, len(cuts.rank), 0)], target, fps)


def _is_same_coding(one: FrameIndex, other: FrameIndex) -> bool:
    """Return True if one decoder setup serves both, so that they may share a file."""
    return (one.setup, one.width, one.height) == (other.setup, other.width, other.height)


def _copy(runs: list[_Run], path: Path, fps: int) -> None:
    """One file from packets of several, frame k shown at k / fps."""
    numbers = [np.arange(run.begin, run.end) for run in runs]
    # a packet is decoded at the latest when it is shown: with reordered frames that many earlier
    delay = max(int((n - run.cuts.rank[n]).max()) for n, run in zip(numbers, runs, strict=True))
    with av.open(str(path), "w", options=FASTSTART) as target:
        with open_video(runs[0].cuts.path) as source:
            stream = target.add_stream_from_template(source.streams.video[0], opaque=True)
            delay = max(delay, _declared_delay(source))
        assert isinstance(stream, VideoStream)
        stream.time_base = Fraction(1, fps)
        for run in runs:
            index, keys = run.cuts.index, set(run.cuts.keys.tolist())
            shift = run.offset - run.begin
            stamp = index.file.stamp()
            for number in range(run.begin, run.end):
                offset, size = int(index.offset[number]), int(index.size[number])
                (packet,) = read_packets(index.file, [offset], [size], stamp)
                packet.stream = stream
                packet.time_base = Fraction(1, fps)
                packet.duration = 1
                packet.pts, packet.dts = (
                    int(run.cuts.rank[number]) + shift,
                    number + shift - delay,
                )
                packet.is_keyframe = number in keys
                target.mux(packet)


def _declared_delay(source: InputContainer) -> int:
    """Frames by which the first packet is decoded before it is shown, as the encoder has said.

    With less than that, FFmpeg cannot join the file with another one by copying packets.
    """
    stream = source.streams.video[0]
    first = next(source.demux(stream))
    if first.pts is None or first.dts is None or not stream.average_rate or not stream.time_base:
        return 0
    return round((first.pts - first.dts) * stream.time_base * stream.average_rate)
