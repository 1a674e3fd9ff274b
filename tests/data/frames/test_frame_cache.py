"""Frames from the cache are the decoded ones bit for bit, whatever died while it was filled."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kata.data import Batches, Dataset, Reader, anchor_rows, open_dataset
from kata.data.dataset.mixture import Mixture
from kata.data.frames import frame_cache
from kata.data.frames.frame_cache import CacheOptions, FrameCache
from kata.data.loader.shuffle import Shuffle, make_order
from kata.data.storage import row_cache
from tests import forked
from tests.data.dataset_maker import CAMERA, make, picture, write_video

LENGTHS = (5, 7, 4, 9)
ROWS = np.arange(25)


@pytest.fixture(params=["frames", "disk"])
def options(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> CacheOptions:
    (tmp_path / "shm").mkdir()
    monkeypatch.setattr(frame_cache, "_SHARED_MEMORY", tmp_path / "shm")
    return CacheOptions(request.param, tmp_path / "kept")


@pytest.fixture
def on_disk(tmp_path: Path) -> CacheOptions:
    return CacheOptions("disk", tmp_path / "kept")


@pytest.fixture(params=["video", "image"])
def data(request: pytest.FixtureRequest, tmp_path: Path) -> Dataset:
    return open_dataset(
        "x/y", root=make(tmp_path / "set", lengths=LENGTHS, b_frames=2, camera=request.param)
    )


@pytest.fixture
def video(tmp_path: Path) -> Dataset:
    return open_dataset("x/y", root=make(tmp_path / "set", lengths=LENGTHS, b_frames=2))


def read(
    data: Dataset, cache: FrameCache | None, rows: np.ndarray = ROWS, windows: Any = None
) -> np.ndarray:
    with Reader(data, windows or {}, caches={data.repo_id: cache}) as reader:
        return reader.read(rows)[CAMERA]


def open_cache(data: Dataset, options: CacheOptions) -> FrameCache:
    return FrameCache(data, (CAMERA,), options)


def present(cache: FrameCache, rows: np.ndarray = ROWS) -> np.ndarray:
    return cache.has(CAMERA, rows)


def test_cached_frames_are_the_decoded_ones(data: Dataset, options: CacheOptions) -> None:
    rows = np.random.default_rng(0).integers(0, 25, 40)
    window = {CAMERA: (-1, 0, 2)}
    plain, windowed = read(data, None, rows), read(data, None, rows, window)
    with open_cache(data, options) as cache:
        np.testing.assert_array_equal(read(data, cache, rows), plain)
        assert present(cache).tolist() == np.isin(ROWS, rows).tolist()
        np.testing.assert_array_equal(read(data, cache, rows, window), windowed)
        np.testing.assert_array_equal(read(data, cache, ROWS), read(data, None))
        with Reader(data, window, caches={data.repo_id: cache}) as reader:
            shutil.rmtree(data.root)  # nothing is left to decode
            np.testing.assert_array_equal(reader.read(rows)[CAMERA], windowed)


@pytest.mark.parametrize(
    "shuffle", [Shuffle("full"), Shuffle("clips", 3, 4, 2)], ids=lambda shuffle: shuffle.kind
)
@pytest.mark.parametrize("window", [(0,), (-3, -1, 0)])
@pytest.mark.parametrize(("held", "kept"), [(14, 25), (60, 11)])
def test_look_ahead_and_the_cache_together_change_no_pixel(
    data: Dataset,
    on_disk: CacheOptions,
    shuffle: Shuffle,
    window: tuple[int, ...],
    held: int,
    kept: int,
) -> None:
    rows, frame = anchor_rows(data), data.columns[CAMERA].shape
    order = make_order([shuffle], Mixture.of(data), {CAMERA: window}, [CAMERA], rows, 3)
    memory = held * int(np.prod(frame))
    with FrameCache(
        data, (CAMERA,), replace(on_disk, num_bytes=kept * int(np.prod(frame)))
    ) as cache:
        with (
            Reader(data, {CAMERA: window}) as plain,
            Reader(
                data, {CAMERA: window}, frame_memory=memory, caches={data.repo_id: cache}
            ) as reader,
            Batches(reader, rows, order, 4) as batches,
        ):
            for step in (*range(14), 3, 4, 90, 91):
                wanted = plain.read(rows[order.at(np.arange(4 * step, 4 * step + 4))])
                np.testing.assert_array_equal(batches.at(step)[CAMERA], wanted[CAMERA])
        assert present(cache).tolist() == [row < kept for row in ROWS]


def test_what_the_cache_takes_is_decoded_once_and_not_held(
    data: Dataset, on_disk: CacheOptions
) -> None:
    rows = anchor_rows(data)
    order = make_order([Shuffle("full")], Mixture.of(data), {}, [CAMERA], rows, 3)
    with (
        open_cache(data, on_disk) as cache,
        Reader(data, {}, frame_memory=10**9, caches={data.repo_id: cache}) as reader,
        Batches(reader, rows, order, 5) as batches,
    ):
        for step in range(3 * len(rows) // 5):
            batches.at(step)
        assert present(cache).all()
        assert reader.buffer.held_bytes == 0
    assert reader.work().frames_decoded == data.num_frames


def test_subsets_share_the_frames_of_what_was_opened(video: Dataset, options: CacheOptions) -> None:
    part = video.subset([1, 3])
    with open_cache(part, options) as cache:
        found = read(part, cache, np.arange(16))
        there = present(cache)
        assert np.flatnonzero(there).tolist() == [*range(5, 12), *range(16, 25)]
        np.testing.assert_array_equal(read(video, cache)[there], found)
        np.testing.assert_array_equal(read(video, cache), read(video, None))


def test_a_later_run_finds_what_is_on_disk_and_memory_is_freed(
    video: Dataset, options: CacheOptions
) -> None:
    with open_cache(video, options) as first, open_cache(video, options) as second:
        read(video, first)
        assert present(second).all()
    folder = first._folder
    with open_cache(video, options) as later:
        assert present(later).all() == (options.kind == "disk")
        np.testing.assert_array_equal(read(video, later), read(video, None))
    assert len(list(folder.glob("*.pixels"))) == (options.kind == "disk")


def test_another_content_or_decoder_is_another_cache(
    video: Dataset, on_disk: CacheOptions, monkeypatch: Any
) -> None:
    with open_cache(video, on_disk) as cache:
        read(video, cache)
    with monkeypatch.context() as patch, open_cache(video, on_disk):
        patch.setattr(frame_cache, "_MADE_BY", ["another"])
        with open_cache(video, on_disk) as other:
            assert not present(other).any()
    write_video(
        video.root / f"videos/{CAMERA}/chunk-000/file-000.mp4", [picture(2, k) for k in range(12)]
    )
    with open_cache(video, on_disk) as changed:
        assert not present(changed).any()
        np.testing.assert_allclose(read(video, changed)[3, 16, 24], picture(2, 3)[0, 0], atol=2)


def fill(root: Path, folder: Path) -> None:
    """Read all frames in random order through a cache, and print the row of each."""
    data = open_dataset("x/y", root=root)
    with (
        FrameCache(data, tuple(data.cameras), CacheOptions("disk", folder)) as cache,
        Reader(data, {}, caches={data.repo_id: cache}) as reader,
    ):
        for row in np.random.default_rng().permutation(data.num_frames):
            reader.read(np.array([row]))
            print(row, flush=True)


def start(data: Dataset, folder: Path | None, files: list[Path]) -> forked.Team:
    return forked.Team([forked.start(fill, [data.root, folder], file) for file in files], files)


def test_a_process_killed_while_filling_leaves_only_right_frames(
    tmp_path: Path, on_disk: CacheOptions
) -> None:
    data = open_dataset("x/y", root=make(tmp_path / "set", lengths=(60,) * 4))
    expected = read(data, None, np.arange(240))
    seen = 0
    for least in (1, 60):
        file = tmp_path / f"said-{least}"
        team, until_s = start(data, on_disk.folder, [file]), time.monotonic() + forked.LIMIT_S
        while not file.exists() or len(file.read_text().splitlines()) < least:
            assert time.monotonic() < until_s
            time.sleep(0.002)
        with suppress(ProcessLookupError):  # it has ended already
            team.send_signal(signal.SIGKILL)
        team.ended()
        with open_cache(data, on_disk) as cache:
            rows = np.flatnonzero(present(cache, np.arange(240)))
            assert len(rows) >= max(seen, least)
            seen = len(rows)
            out = np.zeros((len(rows), 32, 48, 3), np.uint8)
            assert not cache.fetch(CAMERA, rows, out, np.arange(len(rows))).any()
            np.testing.assert_array_equal(out, expected[rows])


def test_two_processes_may_fill_at_once(tmp_path: Path, on_disk: CacheOptions) -> None:
    data = open_dataset("x/y", root=make(tmp_path / "set", lengths=(30,) * 4))
    team = start(data, on_disk.folder, [tmp_path / "one", tmp_path / "two"])
    assert team.ended() == [0, 0]
    assert [len(team.said(index).split()) for index in (0, 1)] == [120, 120]
    with open_cache(data, on_disk) as cache:
        out = np.empty((120, 32, 48, 3), np.uint8)
        assert not cache.fetch(CAMERA, np.arange(120), out, np.arange(120)).any()
        np.testing.assert_array_equal(out, read(data, None, np.arange(120)))


def test_after_a_restart_only_confirmed_frames_are_believed(
    video: Dataset, on_disk: CacheOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = open_cache(video, on_disk)
    read(video, cache, ROWS[:10])
    cache._files[CAMERA].make_safe()
    read(video, cache, ROWS[10:])
    assert present(cache).all()
    with open_cache(video, on_disk) as beside:
        assert present(beside).all(), "the machine did not restart: written frames are believed"
        beside._files[CAMERA]._unsafe.clear()
    monkeypatch.setattr(row_cache, "_boot", lambda: "another")
    with open_cache(video, on_disk) as later:
        assert present(later).tolist() == [True] * 10 + [False] * 15
        np.testing.assert_array_equal(read(video, later), read(video, None))


def test_bytes_that_the_disk_did_not_take_are_not_believed(
    video: Dataset,
    on_disk: CacheOptions,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    cache = open_cache(video, on_disk)
    read(video, cache)
    with monkeypatch.context() as patch:
        patch.setattr(
            os,
            "fsync",
            lambda handle: (_ for _ in ()).throw(OSError(errno.EIO, "input/output error")),
        )
        cache._make_safe(cache._files[CAMERA])
    assert not present(cache).any()
    assert "filled no further" in caplog.text


def test_a_full_disk_ends_the_filling_not_the_run(
    video: Dataset,
    options: CacheOptions,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    write, left = os.pwrite, [6]

    def pwrite(handle: int, data: Any, offset: int) -> int:
        if len(data) < 100:
            return write(handle, data, offset)
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "no space left on device")
        return write(handle, data[: len(data) // 2] if left[0] == 0 else data, offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    with open_cache(video, options) as cache:
        for _ in range(2):
            np.testing.assert_array_equal(read(video, cache), read(video, None))
        assert present(cache).sum() == 5
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1
    assert "no space left" in warnings[0]


def test_a_budget_keeps_the_first_frames_of_every_camera(
    video: Dataset, options: CacheOptions, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "kata")
    frame = 32 * 48 * 3
    with open_cache(video, CacheOptions(options.kind, options.folder, 10 * frame + 1)) as cache:
        for _ in range(2):
            np.testing.assert_array_equal(read(video, cache), read(video, None))
        assert np.flatnonzero(present(cache)).tolist() == list(range(10))
        assert "10 of 25 frames per camera fit" in caplog.text
        assert cache._files[CAMERA].used_bytes() <= 10 * (frame + 4096)


@pytest.mark.parametrize("damage", ["pixels short", "flags short", "pixels absent", "empty"])
def test_a_cache_that_is_not_whole_is_said_and_filled_anew(
    video: Dataset, on_disk: CacheOptions, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    with open_cache(video, on_disk) as cache:
        read(video, cache)
        folder = cache._folder
    pixels, flags = next(folder.glob("*.pixels")), next(folder.glob("*.flags"))
    if damage == "pixels absent":
        pixels.unlink()
    elif damage == "pixels short":
        os.truncate(pixels, 100)
    else:
        os.truncate(flags, 4100 if damage == "flags short" else 0)
    with open_cache(video, on_disk) as cache:
        assert not present(cache).any()
        np.testing.assert_array_equal(read(video, cache), read(video, None))
        assert present(cache).all()
    assert f"the cache {pixels} is not whole; it is filled again" in [
        r.message for r in caplog.records
    ]


def test_a_folder_that_cannot_be_written_is_said_and_the_run_goes_on(
    video: Dataset, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    with open_cache(video, CacheOptions("disk", tmp_path / "file")) as cache:
        np.testing.assert_array_equal(read(video, cache), read(video, None))
    assert len(caplog.records) == 1
    assert "continues without" in caplog.text


def test_memory_of_a_killed_process_is_freed_by_the_next(
    video: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shm").mkdir()
    monkeypatch.setattr(frame_cache, "_SHARED_MEMORY", tmp_path / "shm")
    abandoned = open_cache(video, CacheOptions("frames"))
    read(video, abandoned)
    pair = sorted(abandoned._folder.glob("*.*s"))
    os.close(
        abandoned._files[CAMERA]._flags_handle
    )  # as the kernel does for a process that is killed
    other = open_dataset("x/y", root=make(tmp_path / "other", lengths=(3, 4)))
    with open_cache(other, CacheOptions("frames")) as cache:
        assert len(pair) == 2
        assert not any(path.exists() for path in pair)
        read(other, cache, np.arange(7))


def test_what_is_in_a_head_can_be_read(video: Dataset, on_disk: CacheOptions) -> None:
    with open_cache(video, on_disk) as cache:
        head = json.loads(next(cache._folder.glob("*.flags")).read_bytes()[:4096])
    assert (head["rows"], head["shape"]) == (25, [32, 48, 3])
