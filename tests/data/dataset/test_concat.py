"""Joined columns are what a dataset has that was written with them."""

import numpy as np
import pytest

from kata.data import Column, DatasetWriter, Reader, dataset_stats, open_dataset
from kata.errors import DataError
from kata.spec import ACTION, ENV_STATE, STATE
from tests.data.parts_maker import JOINED, PARTS, WHOLE, in_one, in_parts


@pytest.fixture(scope="module")
def roots(tmp_path_factory):
    home = tmp_path_factory.mktemp("joined")
    return in_parts(home / "parts"), in_one(home / "one")


@pytest.fixture(scope="module")
def both(roots):
    parts, one = roots
    return open_dataset("t/parts", root=parts, concat=JOINED), open_dataset("t/one", root=one)


def test_columns_names_and_roles(both):
    joined, one = both
    assert {k: c for k, c in joined.columns.items() if k in WHOLE} == WHOLE
    assert joined.features() == one.features()
    assert not set(PARTS) & set(joined.columns)


def test_values_of_all_rows_of_some_and_of_a_selection(both, roots):
    joined, one = both
    rows = np.array([[3, 0], [17, 36]])
    cut = [
        open_dataset("t/x", root=root, concat=how, episodes=[1, 3])
        for root, how in zip(roots, (JOINED, None), strict=True)
    ]
    for key in WHOLE:
        np.testing.assert_array_equal(joined.column(key), one.column(key))
        np.testing.assert_array_equal(joined.take(key, rows), one.take(key, rows))
        np.testing.assert_array_equal(cut[0].column(key), cut[1].column(key))
        assert joined.column(key).dtype == np.float32


def test_all_ten_figures(both):
    found, wanted = dataset_stats(both[0]), dataset_stats(both[1])
    for key in WHOLE:
        assert len(found[key]) == 10
        for name, figure in wanted[key].items():
            np.testing.assert_array_equal(found[key][name], figure)


def test_windows_and_masks(both):
    windows = {ACTION: (0, 1, 2, 3), STATE: (-1, 0)}
    rows = np.array([0, 7, 8, 37])
    batches = []
    for dataset in both:
        with Reader(dataset, windows, threads=1) as reader:
            batches.append(reader.read(rows))
    assert batches[0].keys() == batches[1].keys()
    for key in (*windows, f"{ACTION}_is_pad", f"{STATE}_is_pad"):
        np.testing.assert_array_equal(batches[0][key], batches[1][key])


def test_one_number_is_a_vector_of_one(roots):
    data = open_dataset("t/p", root=roots[0], concat={ACTION: ["action.gripper_close"]})
    assert data.columns[ACTION] == Column("float32", (1,), ("gripper_close",))
    with Reader(data, {}, threads=1) as reader:
        assert reader.read(np.array([0, 1]))[ACTION].shape == (2, 1)


def test_a_column_may_be_a_part_of_what_takes_its_name(roots):
    one = open_dataset("t/one", root=roots[1])
    longer = open_dataset("t/one", root=roots[1], concat={ACTION: [ACTION, ENV_STATE]})
    assert list(longer.columns[ACTION].names)[-1] == f"{ENV_STATE.rpartition('.')[2]}.1"
    wanted = np.concatenate([one.column(ACTION), one.column(ENV_STATE)], axis=1)
    np.testing.assert_array_equal(longer.column(ACTION), wanted)


def test_names_that_repeat_say_their_part(tmp_path):
    features = {
        "left.pose": Column("float32", (2,), ("x", "y")),
        "right.pose2": Column("float32", (2,), ("x", "y")),
    }
    with DatasetWriter.create(tmp_path / "d", fps=10, features=features) as writer:
        writer.add_frame({key: np.zeros(2, np.float32) for key in features}, task="t")
        writer.save_episode()
    data = open_dataset("t/d", root=tmp_path / "d", concat={ACTION: list(features)})
    assert data.columns[ACTION].names == ("pose.x", "pose.y", "pose2.x", "pose2.y")


def test_another_order_is_another_dataset(roots):
    turned = {**JOINED, ACTION: JOINED[ACTION][::-1]}
    joined, other, plain = (
        open_dataset("t/p", root=roots[0], concat=how) for how in (JOINED, turned, None)
    )
    assert len({joined.fingerprint, other.fingerprint, plain.fingerprint}) == 3
    np.testing.assert_array_equal(joined.column(ACTION)[:, 3], other.column(ACTION)[:, 0])


WRONG = {
    "an unknown part": ({ACTION: ["action.jonts"]}, "did you mean 'action.joints'"),
    "a bookkeeping column": ({ACTION: ["action.joints", "timestamp"]}, "leave timestamp out"),
    "a name that is taken": ({ENV_STATE: ["state.joints"]}, "choose another name"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_joined_is_refused(case, roots):
    concat, remedy = WRONG[case]
    with pytest.raises(DataError) as caught:
        open_dataset("t/p", root=roots[0], concat=concat)
    assert remedy in str(caught.value)
    assert "dataset.concat" in str(caught.value)
