"""Batches of the stream: the same whether read in sequence, by a jump, or ahead."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kata.data import Batches, Order, Reader, anchor_rows, open_dataset
from kata.data.loader.batches import RankSlice
from kata.data.loader.reader import PendingBatch
from kata.errors import DataError
from tests.data.dataset_maker import make


def test_a_step_holds_its_positions_of_the_order(tmp_path: Path) -> None:
    data = open_dataset("x/y", root=make(tmp_path, camera=""))
    rows = anchor_rows(data, 1)
    order = Order(len(rows), 9)
    with Reader(data, {"action": (0, 1)}) as reader, Batches(reader, rows, order, 4) as batches:
        for step in (0, 1, 2, 3, 10, 2, 2, 11):
            batch = batches.at(step)
            positions = np.arange(4 * step, 4 * step + 4)
            np.testing.assert_array_equal(batch["position"], positions)
            np.testing.assert_array_equal(batch["index"], rows[order.at(positions)])
            np.testing.assert_array_equal(
                batch["action"], reader.read(rows[order.at(positions)])["action"]
            )


@pytest.mark.parametrize("of", [1, 2, 3, 6])
def test_the_parts_of_a_batch_are_the_batch_and_read_nothing_twice(tmp_path: Path, of: int) -> None:
    """With room to hold frames, too: each part plans for its own."""
    data = open_dataset("x/y", root=make(tmp_path))
    rows, windows = anchor_rows(data), {"action": (0, 1, 2)}
    order = Order(len(rows), 9)
    with Reader(data, windows) as reader, Batches(reader, rows, order, 6) as batches:
        for step in (0, 1, 5):
            whole, parts = batches.at(step), []
            for number in range(of):
                with Reader(data, windows, frame_memory=10**6) as own:
                    part = Batches(own, rows, order, 6, ahead=1, rank_slice=RankSlice(number, of))
                    parts.append(part.at(step))
                    masks = part.masks(step)
                    part.close()
            for key, value in whole.items():
                joined = np.concatenate([p[key] for p in parts])
                np.testing.assert_array_equal(joined, value, err_msg=key)
            assert {key: mask.tolist() for key, mask in masks.items()} == {
                "action_is_pad": whole["action_is_pad"].tolist()
            }


def test_reading_ahead_is_bounded_and_can_be_off(tmp_path: Path) -> None:
    data = open_dataset("x/y", root=make(tmp_path, camera=""))
    rows = anchor_rows(data)
    seen: list[int] = []

    class Watched(Reader):
        def start(self, rows: np.ndarray, step: int | None = None) -> PendingBatch:
            seen.append(len(rows))
            return super().start(rows, step)

    for ahead, reads in ((0, 1), (3, 4)):
        seen.clear()
        with Watched(data, {}) as reader:
            batches = Batches(reader, rows, Order(len(rows), 0), 2, ahead=ahead)
            batches.at(0)
            while len(seen) < reads:
                pass
            batches.close()
        assert len(seen) == reads


def test_errors_of_the_background_surface_at_their_step(tmp_path: Path) -> None:
    data = open_dataset("x/y", root=make(tmp_path, camera=""))
    rows = anchor_rows(data)

    class Broken(Reader):
        def start(self, rows: np.ndarray, step: int | None = None) -> PendingBatch:
            if 3 in rows:
                raise DataError("row 3 is broken")
            return super().start(rows, step)

    with (
        Broken(data, {}) as reader,
        Batches(reader, rows, Order(16, 0, shuffle=False), 2) as batches,
    ):
        assert batches.at(0)["index"].tolist() == [0, 1]
        with pytest.raises(DataError, match="row 3"):
            batches.at(1)
        assert batches.at(2)["index"].tolist() == [4, 5]
