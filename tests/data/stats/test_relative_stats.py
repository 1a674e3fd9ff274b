"""Statistics of relative actions equal brute force over the samples of a run."""

import numpy as np
import pytest

from kata.data import open_dataset
from kata.data.dataset.mixture import MixtureEntry
from kata.data.format.feature_stats import summarise
from kata.data.stats import relative_stats as module
from kata.data.stats.relative_stats import refuse_narrow_states, relative_stats
from kata.errors import DataError
from kata.spec import ACTION, STATE

KEYS = {"action": ACTION, "state": STATE}


@pytest.fixture
def data(tiny_dataset):
    return open_dataset("tests/tiny", root=tiny_dataset, episodes=[1, 4, 5])


def by_hand(data, steps, mask):
    """The values of each dimension that a policy is trained with, sample by sample."""
    actions, states = data.column(ACTION), data.column(STATE)
    found = []
    for start, length in zip(data.episodes.start, data.episodes.length, strict=True):
        for anchor in range(start, start + length):
            chunk = actions[anchor : min(anchor + steps, start + length)]
            found.append(chunk - np.where(mask, states[anchor, : len(mask)], 0))
    return np.concatenate(found).astype(np.float32)


@pytest.mark.parametrize("mask", [[True, True], [True, False]])
def test_they_equal_brute_force_over_the_selected_frames(data, mask):
    entry = MixtureEntry("one", data)
    found = relative_stats([entry], **KEYS, offsets=tuple(range(4)), is_relative=mask)
    expected = summarise(by_hand(data, 4, mask))
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-6, err_msg=name)


def test_datasets_count_together(data, tiny_dataset):
    other = open_dataset("tests/tiny", root=tiny_dataset, episodes=[0])
    parts = [MixtureEntry("one", data), MixtureEntry("two", other)]
    found = relative_stats(parts, **KEYS, offsets=(0, 1), is_relative=[True, True])
    values = [by_hand(each, 2, [True, True]) for each in (data, other)]
    expected = summarise(np.concatenate(values))
    np.testing.assert_allclose(found["q99"], expected["q99"], rtol=1e-6)
    assert found["count"] == expected["count"]


def test_too_many_values_are_sampled_and_a_note_says_so(data, monkeypatch):
    values = by_hand(data, 1, [True, True])
    monkeypatch.setattr(module, "MOST_VALUES", len(values) // 2)
    entry = MixtureEntry("one", data)
    found = relative_stats([entry], **KEYS, offsets=(0,), is_relative=[True, True])
    every = 3 if len(values) % 2 else 2
    np.testing.assert_allclose(found["mean"], values[::every].mean(0), rtol=1e-5)
    assert f"every {every}. sample" in data.notes[-1]


def test_a_state_without_a_number_that_is_subtracted_is_refused(data):
    entry = MixtureEntry("one", data)
    refuse_narrow_states([entry], STATE, ACTION, [True, True, False])
    with pytest.raises(DataError, match="has 3 numbers and action 2"):
        refuse_narrow_states([entry], STATE, ACTION, [True, True, True])
