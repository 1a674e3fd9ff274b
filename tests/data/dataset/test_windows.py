"""Windows are index arithmetic: clamped at the edges of an episode, marked there, gathered per
batch.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kata.data import Reader, anchor_rows, open_dataset
from kata.errors import DataError
from tests.data.dataset_maker import CAMERA, make


def test_windows_repeat_the_edge_and_mark_it(tmp_path: Path) -> None:
    data = open_dataset("x/y", root=make(tmp_path, camera="", lengths=(5, 7, 4)))
    offsets = (-2, 0, 1, 6)
    with Reader(
        data, {"observation.state": offsets, "next.reward": offsets, "next.done": (1,)}
    ) as reader:
        rows = np.arange(16)
        batch, pads = reader.read(rows), reader.masks(rows)
    for row in range(16):
        episode = int(np.searchsorted([5, 12], row, side="right"))
        start, end = [(0, 5), (5, 12), (12, 16)][episode]
        wanted = [row + offset for offset in offsets]
        values = [100.0 * episode + min(max(at, start), end - 1) - start for at in wanted]
        np.testing.assert_array_equal(batch["observation.state"][row, :, 0], values)
        np.testing.assert_array_equal(batch["next.reward"][row], values)
        np.testing.assert_array_equal(
            batch["observation.state_is_pad"][row], [not start <= at < end for at in wanted]
        )
    assert batch["next.done"].shape == (16, 1)
    assert set(pads) == {key for key in batch if key.endswith("_is_pad")}
    for key, mask in pads.items():
        np.testing.assert_array_equal(mask, batch[key])


def test_batches_have_the_shapes_and_types_of_the_contract(tmp_path: Path) -> None:
    data = open_dataset("x/y", root=make(tmp_path))
    with Reader(data, {"action": (0, 1, 2), CAMERA: (0,), "grid": (0, 1)}) as reader:
        batch = reader.read(np.array([15, 0, 6, 6]))
    shapes = {
        CAMERA: ((4, 1, 32, 48, 3), np.uint8), f"{CAMERA}_is_pad": ((4, 1), np.bool_),
        "observation.state": ((4, 3), np.float32), "action": ((4, 3, 2), np.float32),
        "action_is_pad": ((4, 3), np.bool_), "next.reward": ((4,), np.float32), "next.done": ((4,), np.bool_),  # noqa: E501
        "grid": ((4, 2, 2, 3), np.float32), "grid_is_pad": ((4, 2), np.bool_),
        "timestamp": ((4,), np.float32),
        "index": ((4,), np.int64), "episode_index": ((4,), np.int64), "frame_index": ((4,), np.int64),  # noqa: E501
        "task_index": ((4,), np.int64),
    }  # fmt: skip
    assert {
        key: (value.shape, value.dtype) for key, value in batch.items() if key != "task"
    } == shapes
    assert batch["task"] == ["pick", "pick", "place", "place"]
    assert batch["index"].tolist() == [15, 0, 6, 6]
    assert batch[CAMERA].flags.c_contiguous


def test_a_reader_may_be_told_which_columns_to_read(tmp_path: Path) -> None:
    data = open_dataset("x/y", root=make(tmp_path))
    with Reader(data, {"action": (0,)}, keys=["observation.state"]) as reader:
        batch = reader.read(np.array([3]))
    assert CAMERA not in batch
    assert {"observation.state", "action", "index", "task"} <= set(batch)


def test_anchors_leave_out_the_last_frames_of_each_episode(tmp_path: Path) -> None:
    data = open_dataset("x/y", root=make(tmp_path, camera="", lengths=(5, 2, 4)))
    np.testing.assert_array_equal(anchor_rows(data), np.arange(11))
    np.testing.assert_array_equal(anchor_rows(data, 2), [0, 1, 2, 7, 8])
    with pytest.raises(
        DataError, match=r"drop_last is 5[\s\S]*longest of 3 episodes has 5 frames"
    ) as error:
        anchor_rows(data, 5)
    assert error.value.rule
    assert error.value.remedy
    with pytest.raises(DataError, match="drop_last is -1"):
        anchor_rows(data, -1)


def test_rows_outside_the_dataset_are_a_mistake_of_the_caller(tmp_path: Path) -> None:
    data = open_dataset("x/y", root=make(tmp_path, camera=""))
    with Reader(data, {}) as reader, pytest.raises(IndexError):
        reader.read(np.array([-1]))
    with Reader(data, {"action": (0,)}) as reader, pytest.raises(IndexError, match="rows 0 to 15"):
        reader.masks(np.array([-1]))


def test_a_window_over_an_unknown_column_names_the_nearest(tmp_path: Path) -> None:
    data = open_dataset("x/y", root=make(tmp_path, camera=""))
    with pytest.raises(DataError, match="'acton' is no column") as error:
        Reader(data, {"acton": (0,)})
    assert "action" in error.value.remedy
    with pytest.raises(DataError, match=r"'observation\.stat'"):
        data.column("observation.stat")
