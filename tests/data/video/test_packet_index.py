"""The packet index: of every writer's files, kept between runs, never a stale or damaged one."""

from __future__ import annotations

import os
import shutil
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from kata.data import Reader, open_dataset
from kata.data.storage.array_file import cache_folder
from kata.data.storage.store import local_file
from kata.data.video import packet_index
from kata.data.video.encoder import first_time_s, probe_video
from kata.data.video.packet_index import build_index, open_index
from kata.data.video.scheduling import kept_scheduling
from kata.errors import DataError
from tests import forked
from tests.data.dataset_maker import (
    CAMERA,
    FPS,
    SHARED,
    change_info,
    decoded,
    make,
    picture,
    write_video,
)

# 64 by 64: libx265 writes beyond its memory at smaller sizes.
PICTURES = np.random.default_rng(0).integers(0, 40, (24, 64, 64, 3), dtype=np.uint8)
PICTURES += np.arange(0, 192, 8, dtype=np.uint8)[:, None, None, None]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KATA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def write(
    path: Path, codec: str, *, options: dict[str, str] | None = None, movflags: str = ""
) -> None:
    """24 frames by any encoder into any container."""
    with av.open(str(path), "w", options={"movflags": movflags} if movflags else {}) as container:
        stream: Any = container.add_stream(codec, rate=FPS)
        stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p"
        stream.options = options or {}
        stream.time_base = stream.codec_context.time_base = Fraction(1, FPS)
        with kept_scheduling():
            container.start_encoding()
        for number, pixels in enumerate(PICTURES):
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts = number
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


def in_sequence(path: Path) -> list[np.ndarray]:
    with av.open(str(path)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


def arrays(found: packet_index.FrameIndex) -> dict[str, np.ndarray]:
    return {
        name: np.asarray(value)
        for name, value in vars(found).items()
        if isinstance(value, np.ndarray)
    }


def same(one: packet_index.FrameIndex, other: packet_index.FrameIndex) -> None:
    assert (one.identity, one.width, one.height, one.setup, one.tick_s) == (
        other.identity, other.width, other.height, other.setup, other.tick_s,
    )  # fmt: skip
    for name, values in arrays(one).items():
        np.testing.assert_array_equal(values, arrays(other)[name], err_msg=name)


X264 = {"g": "6", "bf": "3", "sc_threshold": "0", "threads": "1"}
WRITERS = [
    ("libx264", X264, "mp4", "faststart"),
    ("libx264", X264, "mp4", "frag_keyframe+empty_moov"),
    ("libx264", X264 | {"x264-params": "open-gop=1"}, "mkv", ""),
    ("libx264", X264, "mov", "negative_cts_offsets"),
    ("mpeg4", {"g": "5", "bf": "2"}, "mp4", ""),
    ("mpeg4", {"g": "5"}, "mkv", ""),
    ("mpeg4", {"g": "5"}, "avi", ""),
    ("mpeg4", {"g": "5", "bf": "2"}, "avi", ""),
    (
        "libx265",
        {"x265-params": "keyint=6:bframes=2:log-level=none:pools=1:frame-threads=1"},
        "mp4",
        "",
    ),
    ("libvpx-vp9", {"g": "6", "cpu-used": "8", "deadline": "realtime"}, "webm", ""),
    (
        "libvpx-vp9",
        {"g": "6", "cpu-used": "8", "auto-alt-ref": "1", "lag-in-frames": "10"},
        "mkv",
        "",
    ),
    ("libsvtav1", {"g": "2", "preset": "12", "svtav1-params": "lp=1"}, "mp4", ""),
    ("libsvtav1", {"g": "6", "preset": "12", "svtav1-params": "lp=1"}, "mkv", ""),
]


@pytest.mark.parametrize(("codec", "options", "kind", "movflags"), WRITERS)
def test_every_frame_of_every_writer_is_the_one_shown_then(
    tmp_path: Path, cache: Path, codec: str, options: dict[str, str], kind: str, movflags: str
) -> None:
    path = tmp_path / f"a.{kind}"
    write(path, codec, options=options, movflags=movflags)
    expected = in_sequence(path)
    first, again = open_index(local_file(path)), open_index(local_file(path))
    same(first, again)
    assert len(again) == len(expected) == 24
    again.check_rate(FPS)
    found: dict[int, np.ndarray] = {}
    for number in np.random.default_rng(1).permutation(24):
        found |= decoded(again, np.array([number]))
    for number in range(24):
        np.testing.assert_array_equal(found[number], expected[number])


@pytest.mark.parametrize(
    ("codec", "options", "kind", "movflags"), [w for w in WRITERS if w[2] in ("mp4", "mov")]
)
def test_the_table_of_an_mp4_says_what_its_packets_say(
    tmp_path: Path,
    codec: str,
    options: dict[str, str],
    kind: str,
    movflags: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / f"a.{kind}"
    write(path, codec, options=options, movflags=movflags)
    quick = build_index(local_file(path))
    monkeypatch.setattr(packet_index, "read_sample_table", lambda *_: None)
    same(quick, build_index(local_file(path)))


@pytest.mark.parametrize(
    "name", ["bench-h264-g30", "pusht-v30", "gr00t-sim-picknplace", "aloha-scripted-cube-v30"]
)
def test_the_tables_of_recordings_say_what_their_packets_say(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    videos = sorted((SHARED / name).glob("videos/**/*.mp4"))[:1]
    if not videos:
        pytest.skip(f"{SHARED / name} is absent")
    quick = build_index(local_file(videos[0]))
    monkeypatch.setattr(packet_index, "read_sample_table", lambda *_: None)
    same(quick, build_index(local_file(videos[0])))


def test_an_edit_list_that_hides_frames_is_obeyed(tmp_path: Path) -> None:
    """Cutting a file without encoding it anew leaves frames that are decoded and never shown."""
    whole, path = tmp_path / "whole.mp4", tmp_path / "cut.mp4"
    write(whole, "libx264", options=X264)
    with av.open(str(whole)) as source, av.open(str(path), "w") as target:
        stream = target.add_stream_from_template(source.streams.video[0])
        tick = source.streams.video[0].time_base
        for packet in source.demux(video=0):
            if packet.dts is not None:
                shift = int(Fraction(8, FPS) / tick)
                packet.pts, packet.dts, packet.stream = (
                    packet.pts - shift,
                    packet.dts - shift,
                    stream,
                )
                target.mux(packet)
    shown = in_sequence(path)
    found = open_index(local_file(path))
    assert len(found) == len(shown)
    np.testing.assert_array_equal(decoded(found, np.array([0]))[0], shown[0])


def test_what_was_kept_is_used_and_changes_nothing(
    tmp_path: Path, cache: Path, monkeypatch: Any
) -> None:
    data = open_dataset("x/y", root=make(tmp_path / "set", b_frames=2))
    rows = np.random.default_rng(0).permutation(16)
    with Reader(data, {}) as reader:
        before = reader.read(rows)[CAMERA]
    assert len(list(cache.glob("index/*/*.bin"))) == 2
    monkeypatch.setattr(packet_index, "build_index", lambda path: pytest.fail("built again"))
    with Reader(data, {}) as reader:
        np.testing.assert_array_equal(reader.read(rows)[CAMERA], before)
    shutil.copytree(tmp_path / "set", tmp_path / "copy")
    with Reader(open_dataset("x/y", root=tmp_path / "copy"), {}) as reader:
        np.testing.assert_array_equal(reader.read(rows)[CAMERA], before)
    assert {p.name for p in (tmp_path / "set").iterdir()} == {"meta", "data", "videos"}


def test_another_content_has_another_index(tmp_path: Path, cache: Path) -> None:
    """Size and time alone may agree: archives set all times alike."""
    path = tmp_path / "a.mp4"
    write_video(path, [picture(0, k) for k in range(12)])
    old, time = open_index(local_file(path)), path.stat().st_mtime_ns
    write_video(path, [picture(1, k) for k in range(12)], gop=3)
    with path.open("ab") as file:
        short = old.identity[0] - path.stat().st_size
        file.write(
            max(0, short).to_bytes(4, "big") + b"free" + bytes(max(0, short - 8))
            if short > 0
            else b""
        )
    os.utime(path, ns=(time, time))
    new = open_index(local_file(path))
    assert new.identity[1] == old.identity[1]
    same(new, build_index(local_file(path)))
    assert len(np.unique(new.start)) == 4


def test_a_file_that_was_touched_is_indexed_again(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "a.mp4"
    write_video(path, [picture(0, k) for k in range(12)])
    old = open_index(local_file(path))
    os.utime(path, ns=(1, 1))
    new = open_index(local_file(path))
    assert (old.identity[0], 1) == new.identity
    assert len(list(cache.glob("index/*/*.bin"))) == 2


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "tail"])
def test_a_damaged_index_is_said_and_built_again(
    tmp_path: Path, cache: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a.mp4"
    write_video(path, [picture(0, k) for k in range(12)], b_frames=2)
    first = open_index(local_file(path))
    kept = next(cache.glob("index/*/*.bin"))
    raw = bytearray(kept.read_bytes())
    raw[40] ^= damage == "flip"
    raw[-1] ^= damage == "tail"
    kept.write_bytes({"cut": raw[:-30], "empty": b""}.get(damage, bytes(raw)))
    same(open_index(local_file(path)), first)
    assert [record.message for record in caplog.records] == [f"{kept} is damaged; it is made again"]
    same(open_index(local_file(path)), first)
    assert len(caplog.records) == 1


def test_a_folder_that_cannot_be_written_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("KATA_CACHE", str(tmp_path / "file" / "cache"))
    data = open_dataset("x/y", root=make(tmp_path / "set"))
    with Reader(data, {}) as reader:
        assert reader.read(np.arange(16))[CAMERA].shape == (16, 32, 48, 3)
    assert [
        record.message for record in caplog.records if "nothing can be kept" in record.message
    ] == [record.message for record in caplog.records]
    assert len(caplog.records) == 1


def print_length(path: Path) -> None:
    print(len(open_index(local_file(path))))


def test_processes_that_build_at_once_do_not_disturb_each_other(
    tmp_path: Path, cache: Path
) -> None:
    path = tmp_path / "a.mp4"
    write_video(path, [picture(0, k) for k in range(40)])
    files = [tmp_path / f"said-{number}" for number in range(3)]
    team = forked.Team([forked.start(print_length, [path], file) for file in files], files)
    assert team.ended() == [0, 0, 0]
    assert [team.said(number).strip() for number in range(3)] == ["40"] * 3
    assert [file.suffix for file in cache.glob("index/*/*")] == [".bin"]
    same(open_index(local_file(path)), build_index(local_file(path)))


def refused(path: Path, *words: str) -> None:
    with pytest.raises(DataError) as error:
        open_index(local_file(path))
    for word in (path.name, "rule:", "remedy:", *words):
        assert word in str(error.value)


def test_files_that_cannot_be_numbered_are_refused(tmp_path: Path, cache: Path) -> None:
    whole = tmp_path / "whole.mp4"
    write(whole, "libx264", options=X264)
    for name, options in (("headless.mp4", {}), ("headless.mkv", {})):
        path = tmp_path / name
        with av.open(str(whole)) as source, av.open(str(path), "w", options=options) as target:
            stream = target.add_stream_from_template(source.streams.video[0])
            for number, packet in enumerate(source.demux(video=0)):
                if packet.dts is not None and number:
                    packet.stream = stream
                    target.mux(packet)
        refused(path, "before its first keyframe")
    (tmp_path / "text.mp4").write_text("hello")
    refused(tmp_path / "text.mp4", "cannot be read")
    assert not list(cache.glob("index/*/*.bin")), "what is refused is not kept"


def test_texts_in_a_video_need_not_be_utf8(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "a.mkv"
    with av.open(str(path), "w") as container:
        container.metadata["comment"] = "recorded by kata"
        stream: Any = container.add_stream("libx264", rate=FPS)
        stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p"
        frame = av.VideoFrame.from_ndarray(PICTURES[0], format="rgb24")
        container.mux([*stream.encode(frame), *stream.encode()])
    raw = path.read_bytes()
    assert raw.count(b"recorded by kata") == 1
    path.write_bytes(raw.replace(b"recorded by kata", b"recorded by k\xffta"))
    assert len(build_index(local_file(path))) == 1
    assert probe_video(local_file(path))["video.codec"] == "h264"
    assert first_time_s(local_file(path)) >= 0


def test_a_video_without_frames_is_refused(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "a.mp4", "libx264")
    monkeypatch.setattr(
        packet_index, "read_sample_table", lambda *_: np.zeros((0, 5), dtype=np.int64)
    )
    with pytest.raises(DataError, match="holds no frames"):
        build_index(local_file(tmp_path / "a.mp4"))


def test_a_rate_that_varies_is_refused(tmp_path: Path, cache: Path) -> None:
    root = make(tmp_path / "set")
    video = root / f"videos/{CAMERA}/chunk-000/file-000.mp4"
    write_video(video, [picture(0, k) for k in range(12)], gap_after=6)
    with pytest.raises(DataError, match="shows frame 7 at"):
        Reader(open_dataset("x/y", root=root), {})


def test_videos_may_be_matroska(tmp_path: Path, cache: Path) -> None:
    root = make(tmp_path / "set")
    for path in (root / "videos").glob("**/*.mp4"):
        with av.open(str(path)) as source, av.open(str(path.with_suffix(".mkv")), "w") as target:
            stream = target.add_stream_from_template(source.streams.video[0])
            for packet in source.demux(video=0):
                if packet.dts is not None:
                    packet.stream = stream
                    target.mux(packet)
    with Reader(open_dataset("x/y", root=root), {}) as reader:
        expected = reader.read(np.arange(16))[CAMERA]
    change_info(
        root, video_path="videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mkv"
    )
    with Reader(open_dataset("x/y", root=root), {}) as reader:
        np.testing.assert_array_equal(reader.read(np.arange(16))[CAMERA], expected)


def test_the_folder_follows_the_platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KATA_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "platform", "linux")
    assert cache_folder() == tmp_path / "kata"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert cache_folder().parts[-3:] == ("Library", "Caches", "kata")
