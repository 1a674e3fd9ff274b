"""The order of samples is a keyed permutation per epoch, whoever asks for which part of it."""

from __future__ import annotations

import time

import numpy as np
import pytest

from kata.data import Order

SIZES = [1, 2, 3, 7, 100, 1000]


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("shuffle", [True, False])
def test_every_anchor_comes_exactly_once_per_epoch(n: int, shuffle: bool) -> None:
    found = Order(n, 3, shuffle=shuffle).at(np.arange(4 * n)).reshape(4, n)
    assert found.dtype == np.int64
    np.testing.assert_array_equal(np.sort(found, axis=1), np.tile(np.arange(n), (4, 1)))


def test_without_shuffle_the_order_is_ascending() -> None:
    np.testing.assert_array_equal(Order(5, 3, shuffle=False).at(np.arange(12)), np.arange(12) % 5)


def test_epochs_and_seeds_differ() -> None:
    epochs = Order(100, 0).at(np.arange(1000)).reshape(10, 100)
    assert len({tuple(epoch) for epoch in epochs}) == 10
    seeds = [tuple(Order(100, seed).at(np.arange(100))) for seed in (0, 1, 2, -1, 2**63, 2**40)]
    assert len(set(seeds)) == 6


def test_the_union_over_ranks_is_the_same_for_every_world_size() -> None:
    order, batch = Order(37, 11), 12
    whole = order.at(np.arange(20 * batch))
    for world in (1, 2, 4):
        share = batch // world
        parts = [
            order.at(np.arange(step * batch + rank * share, step * batch + (rank + 1) * share))
            for step in range(20)
            for rank in range(world)
        ]
        np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_one_position_at_a_time_gives_the_same_as_all_at_once() -> None:
    order = Order(50, 4)
    positions = np.array([[7, 49, 50], [10**12, 3, 99]])
    np.testing.assert_array_equal(
        order.at(positions), [[order.at(np.array(p)) for p in row] for row in positions]
    )


def test_neighbours_and_epochs_are_not_correlated() -> None:
    """Rank correlations of a random permutation of 10,000 have standard deviation 0.01."""
    n = 10_000
    first, second = Order(n, 1).at(np.arange(2 * n)).reshape(2, n)
    assert abs(np.corrcoef(first, np.arange(n))[0, 1]) < 0.05
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.05
    assert abs(np.corrcoef(first[1:], first[:-1])[0, 1]) < 0.05


def test_small_permutations_all_occur() -> None:
    """Over 600 epochs each of the 6 orders of three anchors comes about 100 times."""
    found = Order(3, 5).at(np.arange(1800)).reshape(600, 3)
    _, counts = np.unique(found, axis=0, return_counts=True)
    assert len(counts) == 6
    assert counts.min() > 60


def test_the_stream_never_changes() -> None:
    """These figures are part of the format of a run: a change here breaks every resume."""
    assert Order(10, 42).at(np.arange(10)).tolist() == STREAM


def test_a_million_positions_take_less_than_a_second_of_cpu_time() -> None:
    order = Order(1_000_003, 5)
    began = time.thread_time()
    order.at(np.arange(1_000_000))
    assert time.thread_time() - began < 1.0


STREAM = [3, 1, 4, 8, 2, 6, 5, 7, 0, 9]
