"""Which dataset of a mixture stands where: exact shares over any stretch, from arithmetic alone."""

from __future__ import annotations

import random

import numpy as np
import pytest

from kata.data.sampling.clip_order import ClipOrder, Clips
from kata.data.sampling.mixture_order import (
    PERIOD_MAX,
    MixtureOrder,
    Shares,
    part_seed,
    whole_shares,
)
from kata.data.sampling.permutation import PermutationOrder, SampleOrder
from kata.errors import DataError


def test_weights_are_taken_as_the_decimals_that_are_written() -> None:
    assert whole_shares([0.7, 0.2, 0.1]) == (7, 2, 1)
    assert whole_shares([2.0]) == (1,)
    assert whole_shares([25650, 3608]) == (12825, 1804)


def test_a_long_period_is_cut_and_no_share_moves_by_more_than_one_part_of_it() -> None:
    weights = [27_630_375, 392_578, 325_699]
    counts = whole_shares(weights)
    assert sum(counts) == PERIOD_MAX
    assert (
        np.abs(np.array(counts) / PERIOD_MAX - np.array(weights) / sum(weights)).max()
        < 1 / PERIOD_MAX
    )


def test_a_share_too_small_for_the_schedule_is_refused() -> None:
    with pytest.raises(DataError, match="dataset 1"):
        whole_shares([1.0, 1e-6])


def deviations(shares: Shares) -> np.ndarray:
    """Count less exact share of each dataset (k, P) after 1, 2, ..., P samples; stretches are
    their differences.
    """
    number, _ = shares.at(np.arange(shares.period))
    counts = np.cumsum(number == np.arange(len(shares.counts))[:, None], axis=1)
    return (
        counts - np.arange(1, shares.period + 1) * np.array(shares.counts)[:, None] / shares.period
    )


def test_counts_stay_within_the_bound_in_every_stretch() -> None:
    draw = random.Random(0)
    for _ in range(60):
        counts = [
            draw.choice([1, 1, 3, 17, draw.randint(1, 200)]) for _ in range(draw.randint(2, 7))
        ]
        shares = Shares(counts)
        off = deviations(shares)
        assert (off[:, -1] == 0).all(), "after a whole period the shares are exact"
        assert np.ptp(np.pad(off, ((0, 0), (1, 0))), axis=1).max() <= shares.bound + 1e-9 < 2


def test_each_dataset_runs_through_its_own_stream_in_order() -> None:
    shares = Shares((7, 2, 1))
    number, place = shares.at(np.arange(95))
    for i in range(3):
        np.testing.assert_array_equal(place[number == i], np.arange((number == i).sum()))
    for samples in (0, 1, 9, 10, 37, 95):
        assert shares.seen(samples) == tuple((number[:samples] == i).sum() for i in range(3))


@pytest.mark.parametrize(
    "alone",
    [
        PermutationOrder(13, 4),
        PermutationOrder(13, 4, shuffle=False),
        ClipOrder(Clips(np.array([9, 4]), 4, 2, 2), 2, 4),
    ],
    ids=["full", "sequential", "clips"],
)
def test_a_mixture_of_one_has_the_order_of_its_dataset(alone: SampleOrder) -> None:
    positions = np.arange(50).reshape(5, 10)
    mixed = MixtureOrder([alone], Shares((1,)))
    np.testing.assert_array_equal(mixed.at(positions), alone.at(positions))
    assert (mixed.n, mixed.cycle) == (alone.n, alone.cycle)
    assert part_seed(4, 0) == 4
    assert whole_shares([13.0]) == (1,)


def test_any_position_can_be_asked_for_alone_and_epochs_are_whole() -> None:
    order = MixtureOrder.full([30, 11], Shares((3, 1)), 5)
    stream = order.at(np.arange(400))
    np.testing.assert_array_equal(
        [order.at(np.array([g]))[0] for g in range(60, 90)], stream[60:90]
    )
    first = stream[stream < 30]
    second = stream[stream >= 30] - 30
    assert sorted(first[:30]) == sorted(first[30:60]) == list(range(30))
    assert sorted(second[:11]) == sorted(second[11:22]) == list(range(11))


def test_datasets_of_one_size_are_not_shuffled_alike() -> None:
    order = MixtureOrder.full([500, 500], Shares((1, 1)), 5)
    stream = order.at(np.arange(1000))
    assert abs(np.corrcoef(stream[0::2], stream[1::2])[0, 1]) < 0.2


def test_the_stream_of_a_mixture_never_changes() -> None:
    """Part of the format of a run, as the order of one dataset is."""
    assert MixtureOrder.full([6, 4], Shares((2, 1)), 42).at(np.arange(12)).tolist() == STREAM


STREAM = [3, 8, 1, 4, 7, 0, 2, 6, 5, 5, 9, 3]
