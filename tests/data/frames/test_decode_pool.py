"""Tasks begin in order, and each learns its outcome; so does the batch that waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest

from kata.data import Dataset, Reader, open_dataset
from kata.data.arrays import Pixels
from kata.data.frames.camera import Picture
from kata.data.frames.decode_pool import DecodePool
from kata.data.frames.video_camera import VideoCamera
from kata.data.video.color import Planes
from kata.data.video.decoder import Decoder, Gop
from tests.data.dataset_maker import CAMERA, make, picture


@dataclass
class NotedTask:
    """A task whose outcome is noted under its number; `all_done` is set once `count` tasks are
    done.
    """

    work: Callable[[], None]
    number: int
    count: int
    ends: dict[int, BaseException | None]
    all_done: threading.Event

    def run(self) -> None:
        self.work()

    def done(self, error: BaseException | None) -> None:
        assert self.number not in self.ends
        self.ends[self.number] = error
        if len(self.ends) == self.count:
            self.all_done.set()


def noted(
    runs: list[Callable[[], None]],
) -> tuple[list[NotedTask], dict[int, BaseException | None], threading.Event]:
    """Tasks of these; the outcome of each, and an event that is set once all are done."""
    ends, done = dict[int, BaseException | None](), threading.Event()
    tasks = [NotedTask(run, number, len(runs), ends, done) for number, run in enumerate(runs)]
    return tasks, ends, done


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_all_jobs_are_done_whenever_they_come(threads: int) -> None:
    """Many come at the moment at which a thread finds none left and ends."""
    pool, seen, coming, lock = DecodePool(threads), list[int](), threading.Event(), threading.Lock()

    def see(number: int) -> None:
        with lock:
            seen.append(number)
        coming.set()

    work, ends, done = noted([partial(see, number) for number in range(2000)])
    for number in range(0, 2000, 2):
        coming.clear()
        pool.put(work[number : number + 2])
        if number % 3 == 0:
            assert coming.wait(30)
    pool.put([])
    assert done.wait(30)
    assert set(ends.values()) == {None}
    assert sorted(seen) == list(range(2000))
    if threads < 2:
        assert seen == sorted(seen)
    assert list(pool.map(str, [1, 2])) == ["1", "2"]
    pool.close()


def test_no_more_threads_than_said_take_jobs() -> None:
    pool, both = DecodePool(2), threading.Barrier(2)
    most, at_work, lock = [0], [0], threading.Lock()

    def work() -> None:
        with lock:
            at_work[0] += 1
            most[0] = max(most[0], at_work[0])
        both.wait(30)  # two at a time, or for ever
        with lock:
            at_work[0] -= 1

    for _ in range(10):
        todo, ends, done = noted([work] * 4)
        pool.put(todo[:1])
        pool.put(todo[1:])
        assert done.wait(30)
        assert set(ends.values()) == {None}
    assert most == [2]
    pool.close()


def test_an_error_is_told_and_the_others_are_done() -> None:
    pool, error = DecodePool(1), ValueError("7")

    def fail() -> None:
        raise error

    todo, ends, done = noted([fail, list, fail, list])
    pool.put(todo)
    assert done.wait(30)
    assert ends == {0: error, 1: None, 2: error, 3: None}
    pool.close()


def test_closing_ends_what_has_begun_and_cancels_what_waits() -> None:
    pool, begun, go = DecodePool(1), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        assert go.wait(30)

    first, how_first, _ = noted([work])
    rest, how_rest, told = noted([work, work])
    pool.put(first + rest)
    assert begun.wait(30)
    closing = threading.Thread(target=pool.close)
    closing.start()
    assert told.wait(30)
    assert all(isinstance(error, CancelledError) for error in how_rest.values())
    assert not how_first
    go.set()
    closing.join(30)
    assert how_first == {0: None}
    with pytest.raises(RuntimeError, match="ended"):
        pool.put(first)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return open_dataset("x/y", root=make(tmp_path_factory.mktemp("jobs"), lengths=(20, 20)))


def test_closing_a_reader_ends_batches_that_wait(
    data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go, decode = threading.Event(), threading.Event(), Decoder.pictures

    def slow(self: Decoder, gop: Gop) -> Iterator[tuple[int, Planes]]:
        begun.set()
        assert go.wait(30)
        return decode(self, gop)

    monkeypatch.setattr(Decoder, "pictures", slow)
    reader = Reader(data, {}, threads=1)
    first, second = reader.start(np.array([0])), reader.start(np.array([20]))
    assert begun.wait(30)
    closing = threading.Thread(target=reader.close)
    closing.start()
    with pytest.raises(CancelledError):
        second.result()
    go.set()
    closing.join(30)
    assert first.result()[CAMERA].shape[0] == 1


@pytest.mark.parametrize("step", [0, 1])
def test_any_error_ends_the_batch_that_met_it(
    data: Dataset, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """In step 0 a picture is decoded, in step 1 a held one is copied; a batch of other groups
    goes on.
    """
    rows, steps, write_frame = np.array([0, 0, 0]), np.array([0, 1, 2]), VideoCamera.write_frame
    broken = threading.Event()

    def breaks(self: VideoCamera, picture: Picture, out: Pixels) -> None:
        if broken.is_set():
            broken.clear()
            raise MemoryError("no room")
        write_frame(self, picture, out)

    monkeypatch.setattr(VideoCamera, "write_frame", breaks)
    with Reader(data, {}, threads=1, frame_memory=10**6) as reader:
        reader.reserve_batches(1, 1)
        reader.plan_ahead(rows, steps)
        for number in range(step):
            reader.start(rows[:1], number).result()
        broken.set()
        failing, other = reader.start(rows[:1], step), reader.start(np.array([30]), step)
        with pytest.raises(MemoryError, match="no room"):
            failing.result()
        np.testing.assert_allclose(other.result()[CAMERA][0], picture(1, 10), atol=3)
        np.testing.assert_allclose(
            reader.start(rows[:1], 2).result()[CAMERA][0], picture(0, 0), atol=3
        )
        buffer = reader.buffer
    if step:
        assert buffer.held_bytes == 0
