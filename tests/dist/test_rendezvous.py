"""Ranks of one start meet each other, whatever those of an earlier one left behind at the same
place.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from torch._C._distributed_c10d import HashStore

from kata.dist.rendezvous import agree_on_start, join_rendezvous
from kata.dist.world import World
from kata.errors import ConfigError

SIZE = 4


def names(store: HashStore, late: int = -1) -> set[str]:
    """What each rank calls this start; one of them comes late."""

    def one(rank: int) -> str:
        time.sleep(0.2 * (rank == late))
        return agree_on_start(store, rank, SIZE, 20)

    with ThreadPoolExecutor(SIZE) as pool:
        return set(pool.map(one, range(SIZE)))


def test_every_start_has_a_name_of_its_own_at_the_same_place() -> None:
    store, found = HashStore(), []
    for late in (-1, 0, 2, -1):
        here = names(store, late)
        assert len(here) == 1
        found += here
    assert len(set(found)) == 4


def test_a_rank_that_was_invited_by_a_rank_0_that_died_follows_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = HashStore()
    with ThreadPoolExecutor(SIZE) as pool:
        first = pool.submit(agree_on_start, store, 1, SIZE, 20)
        with pytest.raises(ConfigError, match="missing: 2, 3"):
            agree_on_start(store, 0, SIZE, 0.3)
        others = [pool.submit(agree_on_start, store, rank, SIZE, 20) for rank in (0, 2, 3)]
        assert len({one.result() for one in (first, *others)}) == 1


def test_who_is_missing_is_named() -> None:
    store = HashStore()
    with ThreadPoolExecutor(SIZE) as pool:
        waiting = [pool.submit(agree_on_start, store, rank, SIZE, 0.5) for rank in (0, 1, 3)]
        assert "missing: 2" in str(waiting[0].exception())
        assert "rank 3 waits for rank 0" in str(waiting[2].exception())


def test_a_machine_whose_name_has_no_address_is_named_at_once() -> None:
    world = World(rank=1, size=2, address="nosuch.invalid:29500")
    with pytest.raises(ConfigError, match=r"nosuch\.invalid has no address here") as refused:
        join_rendezvous(world, 0.1)
    assert "MASTER_ADDR" in str(refused.value)
