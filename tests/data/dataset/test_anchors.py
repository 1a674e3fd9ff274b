"""Anchor rows are runs that count and index like the array of their rows."""

from __future__ import annotations

import numpy as np
import pytest

from kata.data.dataset.anchors import AnchorRows


@pytest.mark.parametrize("seed", range(30))
def test_runs_are_the_array(seed: int) -> None:
    rng = np.random.default_rng(seed)
    mask = rng.random(200) < rng.choice([0.1, 0.5, 0.95, 1.0])
    mask[rng.integers(200)] = True
    array = np.flatnonzero(mask)
    rows = AnchorRows.of(array)
    assert len(rows) == len(array)
    np.testing.assert_array_equal(rows, array)
    assert list(rows) == array.tolist()
    places = rng.integers(-len(array), len(array), (3, 7))
    np.testing.assert_array_equal(rows[places], array[places])
    np.testing.assert_array_equal(rows[3:20], array[3:20])
    asked = np.arange(-2, 203)
    np.testing.assert_array_equal(rows.before(asked), array.searchsorted(asked))
    for begin, end in rng.integers(0, 201, (9, 2)).tolist():
        part = array[(array >= begin) & (array < end)] - begin
        np.testing.assert_array_equal(rows.between(begin, end), part)
        np.testing.assert_array_equal(
            rows.between(begin, end).before(asked), part.searchsorted(asked)
        )
    with pytest.raises(IndexError, match="of"):
        rows[np.array([len(array)])]


def test_whole_episodes_are_one_run() -> None:
    lengths = np.full(1000, 300)
    rows = AnchorRows(np.cumsum(lengths) - lengths, lengths)
    assert len(rows._starts) == 1
    assert AnchorRows.of(rows) is rows
    assert len(AnchorRows(np.cumsum(lengths) - lengths, lengths - 5)._starts) == 1000
