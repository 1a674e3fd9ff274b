"""The pool of fetched bytes: its limit holds, near steps come first, faults stay with theirs."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from pathlib import Path

import numpy as np
import pytest

from kata.data.storage.far_files import ByteRange, FarFiles
from kata.data.storage.fetch_pool import FetchPool
from kata.data.storage.fetch_requests import NEVER, Lease
from kata.data.storage.file_stamp import Stamp
from kata.errors import DataError
from tests.data.far_store import FarStore

DATA = np.random.default_rng(0).bytes(2_000_000)


class Ranges:
    """Ranges of a far file, through a pool."""

    def __init__(self, folder: Path, pool: FetchPool, delay_s: float = 0.0) -> None:
        (folder / "a").write_bytes(DATA)
        self.pool, self.store = pool, FarStore(folder, delay_s)
        self.files = FarFiles(self.store, pool)
        self.stamp = self.store.stamps(["a"])["a"]

    def of(self, begin: int, size: int = 1000, stamp: Stamp | None = None) -> ByteRange:
        return ByteRange(self.files, "a", stamp or self.stamp, begin, begin + size)

    def bring(
        self, *ranges: ByteRange, due: int = 0, again: int = NEVER
    ) -> tuple[Lease, Future[None]]:
        lease, done = Lease(ranges, again), Future[None]()

        def then(error: BaseException | None) -> None:
            done.set_result(None) if error is None else done.set_exception(error)

        self.pool.bring(lease, due, then)
        return lease, done

    def is_right(self, wanted: ByteRange) -> bool:
        out = bytearray(wanted.end - wanted.begin)
        self.files.read_into("a", wanted.begin, [memoryview(out)], self.stamp)
        return out == DATA[wanted.begin : wanted.end]


def wait_until(is_true: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 20
    while not is_true():
        assert time.monotonic() < end_s
        time.sleep(0.002)


def test_neighbours_share_a_request_and_come_from_memory(tmp_path: Path) -> None:
    with FetchPool(10**7) as pool:
        ranges = Ranges(tmp_path, pool)
        wanted = [ranges.of(begin) for begin in (3300, 1000, 2000, 500_000)]
        lease, done = ranges.bring(*wanted)
        done.result(20)
        assert sorted(ranges.store.read) == [("a", 1000, 4300), ("a", 500_000, 501_000)]
        assert all(map(ranges.is_right, wanted))
        assert ranges.is_right(ranges.of(1100, 100))
        assert len(ranges.store.read) == 2
        assert ranges.is_right(ranges.of(3100, 100)), "the gap was dropped, and is fetched"
        assert len(ranges.store.read) == 3
        pool.release(lease)
        assert ranges.files.counters.snapshot().bytes_fetched == ranges.store.bytes_read


def test_the_limit_holds_and_room_goes_to_the_steps_that_come_first(tmp_path: Path) -> None:
    with FetchPool(5000) as pool:
        ranges = Ranges(tmp_path, pool, delay_s=0.001)
        for step in range(20):
            pool.fetch_ahead([ranges.of(100_000 * step % 1_900_000)], range(step + 1, step + 2))
        assert not pool.has_room
        wait_until(lambda: len(ranges.store.read) == 5 and not ranges.store.now)
        assert pool.held_bytes == 5000
        # A range that is needed at once takes the place of the one that is needed last.
        urgent = ranges.of(50_000)
        lease, done = ranges.bring(urgent, due=0)
        done.result(20)
        assert pool.held_bytes <= 5000
        assert ranges.is_right(urgent)
        assert len(ranges.store.read) == 6
        assert ranges.is_right(ranges.of(0))
        assert len(ranges.store.read) == 6
        pool.release(lease)
        wait_until(lambda: len(ranges.store.read) == 7 and not ranges.store.now)
        assert pool.held_bytes <= 5000
        assert sum(len(entry[2].data or b"") for entry in pool._unused._farthest) <= 5000


def test_no_gap_is_fetched_that_is_large_beside_what_is_wanted(tmp_path: Path) -> None:
    with FetchPool(10**7) as pool:
        ranges = Ranges(tmp_path, pool)
        wanted = [ranges.of(begin, 800) for begin in range(0, 1_900_000, 20_000)]
        wanted += [ranges.of(1_950_000, 30_000), ranges.of(1_982_000, 10_000)]
        _, done = ranges.bring(*wanted)
        done.result(20)
        assert len(ranges.store.read) == 96
        assert ranges.store.bytes_read == 95 * 800 + 42_000


def test_a_range_that_leaves_a_request_shifts_no_byte_of_the_others(tmp_path: Path) -> None:
    with FetchPool(10**7, requests=1) as pool:
        ranges = Ranges(tmp_path, pool, delay_s=0.05)
        pool.fetch_ahead([ranges.of(1_900_000)], range(1, 2))
        planned = [ranges.of(begin, 100_000) for begin in (0, 100_000, 200_000)]
        pool.fetch_ahead(planned, range(2, 3))
        lease, done = ranges.bring(planned[1], due=1)
        done.result(20)
        wait_until(lambda: len(ranges.store.read) == 4 and not ranges.store.now)
        assert all(map(ranges.is_right, planned))
        assert ranges.store.bytes_read == 301_000
        pool.release(lease)


def test_what_came_along_is_not_fetched_without_what_it_came_with(tmp_path: Path) -> None:
    with FetchPool(10**7, requests=1) as pool:
        ranges = Ranges(tmp_path, pool, delay_s=0.05)
        pool.fetch_ahead([ranges.of(1_900_000)], range(1, 2))
        wanted = ranges.of(100_000, 100_000)
        along = [(ranges.of(begin, 100_000), 9) for begin in (0, 200_000)]
        pool.fetch_ahead([wanted], range(2, 3), along)
        lease, done = ranges.bring(wanted, due=1)
        done.result(20)
        wait_until(lambda: not ranges.store.now)
        assert ranges.store.bytes_read == 101_000
        assert pool.held_bytes == 101_000
        pool.release(lease)


def test_what_came_along_leaves_what_is_needed_next_its_share(tmp_path: Path) -> None:
    with FetchPool(100_000) as pool:
        ranges = Ranges(tmp_path, pool)
        places = (0, 100_000, 200_000)
        along = [(ranges.of(begin + 1_000, 9_000), 900) for begin in places]
        pool.fetch_ahead(map(ranges.of, places), range(1, 2), along)
        wait_until(lambda: pool.held_bytes == 30_000 and not ranges.store.now)
        lease, done = ranges.bring(ranges.of(1_000_000, 60_000), due=1, again=500)
        done.result(20)
        pool.release(lease)
        near = [ranges.of(begin, 5_000) for begin in (500_000, 600_000, 700_000)]
        assert pool.held_bytes == 90_000
        pool.fetch_ahead(near, range(2, 3))
        wait_until(lambda: len(ranges.store.read) == 7 and not ranges.store.now)
        assert pool.held_bytes <= 100_000
        reads = len(ranges.store.read)
        assert all(map(ranges.is_right, near))
        assert len(ranges.store.read) == reads


def test_the_range_that_is_needed_again_last_makes_room(tmp_path: Path) -> None:
    uses = {0: 50, 100_000: 20, 200_000: NEVER, 300_000: 90, 400_000: 30}
    with FetchPool(5000) as pool:
        ranges = Ranges(tmp_path, pool)
        for step, (begin, again) in enumerate(uses.items()):
            lease, done = ranges.bring(ranges.of(begin), due=step, again=again)
            done.result(20)
            pool.release(lease)

        def here() -> list[int]:
            return [at for at in uses if pool.find(ranges.files, "a", at, at + 1000)]

        for number, left in enumerate(([0, 1, 3, 4], [0, 1, 4], [1, 4])):
            lease, done = ranges.bring(ranges.of(500_000 + 10_000 * number), due=10, again=11)
            done.result(20)
            assert here() == [list(uses)[place] for place in left]
            pool.release(lease)
        # Steps have passed: that use is over.
        pool.pass_steps(25)
        lease, done = ranges.bring(ranges.of(600_000), due=25)
        done.result(20)
        assert here() == [100_000, 400_000], "first those of step 11 go"


def test_entries_do_not_pile_up_where_ranges_stay(tmp_path: Path) -> None:
    with FetchPool(10**7) as pool:
        ranges = Ranges(tmp_path, pool)
        for step in range(3000):
            lease, done = ranges.bring(ranges.of(0), due=step, again=step + 7)
            done.result(20)
            pool.release(lease)
        assert len(ranges.store.read) == 1
        assert max(len(pool._unused._farthest), len(pool._unused._soonest)) < 1100


def test_the_pool_knows_whether_it_holds_all_that_is_wanted(tmp_path: Path) -> None:
    with FetchPool(1000) as pool:
        ranges = Ranges(tmp_path, pool)
        assert pool.holds_all
        pool.expect(ranges.files, {"a": 500, "b": 300})
        pool.expect(ranges.files, {"a": 400})
        assert pool.holds_all
        pool.expect(ranges.files, {"c": 200})
        assert not pool.holds_all


def test_tasks_of_more_bytes_than_the_budget_take_turns(tmp_path: Path) -> None:
    with FetchPool(2500) as pool:
        ranges = Ranges(tmp_path, pool, delay_s=0.001)
        coming = [ranges.bring(ranges.of(70_000 * number), due=number) for number in range(10)]
        huge = ranges.bring(ranges.of(1_500_000, 9000), due=99)
        for lease, done in [*coming, huge]:
            done.result(20)
            assert pool.held_bytes <= max(2500, lease.ranges[0].end - lease.ranges[0].begin)
            assert ranges.is_right(lease.ranges[0])
            pool.release(lease)
        assert len(ranges.store.read) == 11


def test_a_fault_is_that_of_its_range_alone(tmp_path: Path) -> None:
    with FetchPool(10**7) as pool:
        ranges = Ranges(tmp_path, pool)
        good, beyond = ranges.of(1_998_500, 500), ranges.of(1_999_500)
        pool.fetch_ahead([good, beyond], range(5, 6))
        lease, done = ranges.bring(good)
        _, fails = ranges.bring(beyond)
        done.result(20)
        assert ranges.is_right(good)
        with pytest.raises(DataError, match="is shorter"):
            fails.result(20)
        pool.release(lease)


def test_closing_ends_what_waits(tmp_path: Path) -> None:
    with FetchPool(10**7, requests=1) as pool:
        ranges = Ranges(tmp_path, pool, delay_s=0.05)
        coming = [ranges.bring(ranges.of(100_000 * number)) for number in range(8)]
    failed = [done for _, done in coming if isinstance(done.exception(1), CancelledError)]
    assert len(failed) >= 6
    with pytest.raises(RuntimeError, match="closed"):
        ranges.bring(ranges.of(0))
    pool.fetch_ahead([ranges.of(0)], range(1, 2))
