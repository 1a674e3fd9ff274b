"""The right frame comes out of every kind of file, whatever the encoder did."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import pytest

from kata.data import Reader, open_dataset
from kata.data.parquet.image_column import EncodedImages
from kata.data.storage.store import local_file
from kata.data.video.packet_index import build_index
from kata.errors import DataError
from tests.data.dataset_maker import (
    CAMERA,
    FPS,
    change_table,
    decoded,
    level,
    make,
    picture,
    write_video,
)


def levels(batch: dict) -> np.ndarray:
    """The brightness in the middle of each frame."""
    return batch[CAMERA][..., 16, 24, :].astype(int).mean(axis=-1)


@pytest.mark.parametrize("version", ["v3.0", "v2.1"])
@pytest.mark.parametrize("b_frames", [0, 2])
@pytest.mark.parametrize("threads", [1, 3])
def test_video_frames_are_those_of_their_row(
    tmp_path: Path, version: str, b_frames: int, threads: int
) -> None:
    lengths = (5, 7, 4, 9)
    data = open_dataset(
        "x/y", root=make(tmp_path, version=version, lengths=lengths, b_frames=b_frames, per_file=3)
    )
    expected = np.array([level(e, k) for e, n in enumerate(lengths) for k in range(n)])
    rows = np.tile(np.random.default_rng(0).permutation(25), 2)
    with Reader(data, {}, threads=threads) as reader:
        np.testing.assert_allclose(levels(reader.read(rows)), expected[rows], atol=2)


def test_start_times_in_a_file_need_not_be_exact(tmp_path: Path) -> None:
    """They are sums of container durations: the nearest frame is meant."""
    path = make(tmp_path) / "meta/episodes/chunk-000/file-000.parquet"
    for shift_s in (-0.002, 0.002):
        change_table(
            path, lambda t, s=shift_s: t[f"videos/{CAMERA}/from_timestamp"].__setitem__(1, 0.5 + s)
        )
        with Reader(open_dataset("x/y", root=tmp_path), {}) as reader:
            np.testing.assert_allclose(levels(reader.read(np.array([8]))), [level(1, 3)], atol=2)


def test_video_windows_repeat_the_frame_at_the_edge(tmp_path: Path) -> None:
    data = open_dataset("x/y", root=make(tmp_path))
    with Reader(data, {CAMERA: (-1, 0, 3)}) as reader:
        batch = reader.read(np.array([0, 4, 5, 11]))
    wanted = [
        [(0, 0), (0, 0), (0, 3)],
        [(0, 3), (0, 4), (0, 4)],
        [(1, 0), (1, 0), (1, 3)],
        [(1, 5), (1, 6), (1, 6)],
    ]
    np.testing.assert_allclose(
        levels(batch), [[level(*at) for at in row] for row in wanted], atol=2
    )
    expected = [
        [True, False, False],
        [False, False, True],
        [True, False, False],
        [False, False, True],
    ]
    np.testing.assert_array_equal(batch[f"{CAMERA}_is_pad"], expected)


@pytest.mark.parametrize("first_pts", [0, 3])
@pytest.mark.parametrize("b_frames", [0, 2])
def test_frame_numbers_count_from_the_first_frame_shown(
    tmp_path: Path, first_pts: int, b_frames: int
) -> None:
    """Edit lists, delayed starts and reordering change time stamps, never which frame is number
    k.
    """
    path = tmp_path / "a.mp4"
    write_video(path, [picture(0, k) for k in range(20)], b_frames=b_frames, first_pts=first_pts)
    index = build_index(local_file(path))
    assert len(index) == 20
    found: dict[int, int] = {}
    for start in np.unique(index.start):
        frames = np.flatnonzero(index.start == start)
        found |= {number: int(rgb[16, 24, 0]) for number, rgb in decoded(index, frames).items()}
    np.testing.assert_allclose(
        [found[k] for k in range(20)], [level(0, k) for k in range(20)], atol=2
    )


def test_frames_that_lead_an_open_group_of_pictures_are_right(tmp_path: Path) -> None:
    """They are stored after a key frame, shown before it, and need the group before."""
    path = tmp_path / "a.mp4"
    noise = np.random.default_rng(0).integers(0, 40, (30, 32, 48, 3), dtype=np.uint8)
    write_video(
        path, [picture(0, k) // 2 + noise[k] for k in range(30)], b_frames=3, gop=6, open_gop=True
    )
    index = build_index(local_file(path))
    with av.open(str(path)) as container:
        whole = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    key_before = np.maximum.accumulate(
        np.isin(np.arange(len(index.pts)), index.start) * np.arange(len(index.pts))
    )
    assert (index.start != key_before[index.packet]).any(), "this file has no open group"
    for number in range(30):
        np.testing.assert_array_equal(decoded(index, np.array([number]))[number], whole[number])


def test_images_in_the_table_are_exact(tmp_path: Path) -> None:
    data = open_dataset("x/y", root=make(tmp_path, camera="image"))
    expected = np.stack([picture(e, k) for e, n in enumerate((5, 7, 4)) for k in range(n)])
    rows = np.array([15, 3, 3, 0, 7])
    with Reader(data, {}) as reader:
        np.testing.assert_array_equal(reader.read(rows)[CAMERA], expected[rows])
    with Reader(data.subset([1]), {CAMERA: (0, 1)}) as reader:
        np.testing.assert_array_equal(reader.read(np.array([6]))[CAMERA][0], expected[[11, 11]])


def test_where_images_lie_may_be_forgotten_and_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EncodedImages.__init__, "__defaults__", (1,))
    data = open_dataset("x/y", root=make(tmp_path, camera="image"))
    with Reader(data, {}) as reader:
        for _ in range(2):
            for row, at in ((0, (0, 0)), (15, (2, 3))):
                np.testing.assert_array_equal(reader.read(np.array([row]))[CAMERA][0], picture(*at))


def test_channels_first_shapes_are_turned(tmp_path: Path) -> None:
    shape = {"dtype": "image", "shape": [3, 32, 48], "names": ["channels", "height", "width"]}
    data = open_dataset("x/y", root=make(tmp_path, camera="image", extra={CAMERA: shape}))
    assert data.cameras[CAMERA].shape == (32, 48, 3)


def claim_key(path: Path, codec: str, number: int) -> None:
    """An mp4 of 12 pictures in one group that calls one in the middle a keyframe, too."""
    frames = [av.VideoFrame.from_ndarray(picture(0, k), format="rgb24") for k in range(12)]
    no_cuts = "0" if codec == "libx264" else "1000000000"
    options = {
        "g": "12",
        "bf": "0",
        "sc_threshold": no_cuts,
        "auto-alt-ref": "0",
        "lag-in-frames": "0",
    }
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=FPS, options=options)
        stream.width, stream.height, stream.pix_fmt = frames[0].width, frames[0].height, "yuv420p"
        packets = []
        for pts, frame in enumerate(frames):
            frame.pts = pts
            packets += stream.encode(frame)
        for packet in packets + stream.encode(None):
            packet.is_keyframe = packet.pts in (0, number)
            container.mux(packet)


@pytest.mark.parametrize("codec", ["libx264", "libvpx-vp9", "mpeg4"])
def test_a_group_that_begins_without_a_keyframe_is_refused(tmp_path: Path, codec: str) -> None:
    """Some decoders give pictures all the same, grey with what moves in them."""
    data = open_dataset("x/y", root=make(tmp_path, lengths=(12,), per_file=1))
    claim_key(tmp_path / f"videos/{CAMERA}/chunk-000/file-000.mp4", codec, 6)
    with Reader(data, {}) as reader:
        np.testing.assert_allclose(levels(reader.read(np.array([5]))), [level(0, 5)], atol=4)
        for row in (6, 9):
            with pytest.raises(
                DataError, match=rf"frame {row} of .*file-000.mp4 .*cannot be decoded"
            ):
                reader.read(np.array([row]))
