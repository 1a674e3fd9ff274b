"""Packets in memory: the bytes of the file, and zeros behind each, which decoders read."""

from __future__ import annotations

import ctypes
import dataclasses
from pathlib import Path

import av
import numpy as np
import pytest
from av.codec import CodecContext

from kata.data.counters import CounterCollector
from kata.data.storage.store import local_file
from kata.data.video.decoder import Decoder, Gop
from kata.data.video.packet_index import FrameIndex, build_index
from kata.data.video.packets import PADDING_BYTES, read_packets
from kata.errors import DataError

POISON = bytes([1]) * PADDING_BYTES
"""MPEG-4 part 2 takes these bits for macroblocks: its decoder runs past the end of some packets."""


def behind(packet: av.Packet) -> bytes:
    """The bytes that follow a packet in memory."""
    return ctypes.string_at(packet.buffer_ptr + packet.size, PADDING_BYTES)


@pytest.mark.parametrize(("count", "gap"), [(1, 0), (3, 1 << 17), (1500, 0), (1500, 5)])
def test_packets_are_what_the_file_holds_with_zeros_behind_them(
    tmp_path: Path, count: int, gap: int
) -> None:
    rng = np.random.default_rng(0)
    wanted = [
        rng.integers(1, 256, size).astype(np.uint8).tobytes() for size in rng.integers(1, 90, count)
    ]
    filling = bytes([7]) * gap
    path = tmp_path / "packets"
    path.write_bytes(filling.join([b"head", *wanted, b""]))
    sizes = [len(data) for data in wanted]
    offsets = [4 + gap + sum(sizes[:number]) + number * gap for number in range(count)]
    for order in (range(count), range(count)[::-1]):
        file = local_file(path)
        packets = read_packets(
            file, [offsets[n] for n in order], [sizes[n] for n in order], file.stamp()
        )
        assert [bytes(packet) for packet in packets] == [wanted[n] for n in order]
        assert {behind(packet) for packet in packets} == {bytes(PADDING_BYTES)}


def test_a_file_that_became_shorter(tmp_path: Path) -> None:
    path = tmp_path / "packets"
    path.write_bytes(bytes(100))
    file = local_file(path)
    with pytest.raises(DataError, match="is shorter"):
        read_packets(file, [0, 90], [90, 11], file.stamp())


def mpeg4(path: Path) -> FrameIndex:
    rng = np.random.default_rng(2)
    noise = rng.integers(0, 256, (64, 96, 3), np.uint8)
    with av.open(str(path), "w") as target:
        stream = target.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        stream.codec_context.qmin = stream.codec_context.qmax = 20
        for number in range(60):
            picture = np.roll(noise, number, 1)
            picture[:32] = number
            target.mux(stream.encode(av.VideoFrame.from_ndarray(picture, "rgb24")))
        target.mux(stream.encode())
    return build_index(local_file(path))


def path_of(index: FrameIndex) -> Path:
    assert index.file.path is not None
    return index.file.path


def poisoned(index: FrameIndex, path: Path) -> FrameIndex:
    """The same packets in another file, each followed by bytes that do harm."""
    data = path_of(index).read_bytes()
    places = list(zip(index.offset.tolist(), index.size.tolist(), strict=True))
    path.write_bytes(b"".join(data[offset : offset + size] + POISON for offset, size in places))
    begin = np.cumsum([0, *(index.size[:-1] + PADDING_BYTES)])
    return dataclasses.replace(index, file=local_file(path), offset=begin)


def test_what_follows_an_mpeg4_packet_does_no_harm(tmp_path: Path) -> None:
    index = mpeg4(tmp_path / "sound.mp4")
    with av.open(str(index.file)) as source:
        wanted = [frame.to_ndarray(format="rgb24") for frame in source.decode(video=0)]
    moved = poisoned(index, tmp_path / "packets")
    decoder, seen = Decoder(CounterCollector()), 0
    for start in np.unique(moved.start):
        numbers = np.flatnonzero(moved.start == start)
        gop = Gop(moved, moved.file.stamp(), "top", numbers, numbers)
        for place, picture in decoder.pictures(gop):
            found = np.empty((64, 96, 3), np.uint8)
            decoder.to_rgb(picture, found)
            np.testing.assert_array_equal(found, wanted[numbers[place]])
            seen += 1
    assert seen == len(index) == 60


@pytest.mark.skipif(
    int(av.__version__.split(".")[0]) < 17, reason="older PyAV copies packets and pads them"
)
def test_that_decoder_does_read_past_the_end(tmp_path: Path) -> None:
    index = mpeg4(tmp_path / "sound.mp4")
    data, damaged = path_of(index).read_bytes(), 0
    codec = CodecContext.create("mpeg4", "r")
    codec.thread_type, codec.extradata = "NONE", index.setup[1]
    for offset, size in zip(index.offset.tolist(), index.size.tolist(), strict=True):
        memory = memoryview(data[offset : offset + size] + POISON)
        damaged += sum(frame.is_corrupt for frame in codec.decode(av.Packet(memory[:size])))
    assert damaged
