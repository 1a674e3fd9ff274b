"""Copies to the device read memory that batches serve from again; the device is made up, and
late.
"""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import torch
from torch import Tensor

from kata.data import Batches, Dataset, Order, Reader, anchor_rows, open_dataset
from kata.data.storage.buffers import aligned
from kata.train.input.feed import Copier
from tests.data.dataset_maker import CAMERA, HEIGHT, WIDTH, make

KEYS = (CAMERA, "observation.state", "action")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return open_dataset(
        "x/y", root=make(tmp_path_factory.mktemp("feed") / "set", lengths=(21, 8), camera="image")
    )


class LateCopier(Copier):
    """Its copies end when `late` others were begun after them, and only then read their source."""

    def __init__(self, late: int) -> None:
        super().__init__(torch.device("cpu"))
        self.late, self.begun = late, 0

    def _copy(self, tensor: Tensor) -> tuple[Tensor, LateCopy]:
        self.begun += 1
        copying = LateCopy(self, tensor)
        return copying.copied, copying

    def settle(self) -> None:
        """End all copies."""
        for _ in range(self.late):
            self(torch.zeros(1))


class LateCopy:
    """Knows its source by address, as a device does: it keeps nothing alive."""

    def __init__(self, copier: LateCopier, source: Tensor) -> None:
        self.copied, self._address = torch.zeros_like(source), source.data_ptr()
        self._copier, self._due, self._ended = copier, copier.begun + copier.late - 1, False

    def query(self) -> bool:
        if not self._ended and self._copier.begun >= self._due:
            ctypes.memmove(self.copied.data_ptr(), self._address, self.copied.nbytes)
            self._ended = True
        return self._ended


@pytest.mark.parametrize("late", [1, 20])
def test_memory_of_a_batch_is_not_written_before_its_copy_has_ended(
    data: Dataset, late: int
) -> None:
    rows, copier, sizes = anchor_rows(data), LateCopier(late), list[int]()

    def allocate(size: int) -> np.ndarray:
        sizes.append(size)
        return aligned(size)

    with Reader(data, {CAMERA: (-1, 0)}) as plain, Reader(data, {CAMERA: (-1, 0)}) as reader:
        reader.allocate_with(allocate)
        order, expected, found = Order(len(rows), 3), list[Tensor](), list[Tensor]()
        with Batches(plain, rows, order, 4) as wanted, Batches(reader, rows, order, 4) as batches:
            for step in range(60):
                right, batch = wanted.at(step), batches.at(step)
                for key in KEYS:
                    for part in (slice(0, 2), slice(2, 4)):
                        found.append(copier(torch.from_numpy(batch[key][part])))
                        expected.append(torch.from_numpy(right[key][part].copy()))
                del batch
        copier.settle()
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)
    alive = (
        batches.ahead + 1 + 2 + late // 6
    )  # beside those read ahead, the caller's and those being copied
    assert 0 < sizes.count(4 * 2 * HEIGHT * WIDTH * 3) <= alive


def test_a_host_needs_no_memory_of_its_own() -> None:
    copier, tensor = Copier(torch.device("cpu")), torch.arange(3)
    assert copier(tensor).data_ptr() == tensor.data_ptr()
