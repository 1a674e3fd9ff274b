"""LeRobot datasets as arithmetic: which sample stands at a position, and its bytes. No torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kata.data.dataset.dataset import Dataset, open_dataset
from kata.data.dataset.windows import Episodes, anchor_rows
from kata.data.loader.batches import Batches
from kata.data.loader.reader import Reader
from kata.data.sampling.permutation import Order

if TYPE_CHECKING:
    from kata.data.writing.dataset_writer import DatasetWriter

__all__ = [
    "Batches",
    "Dataset",
    "DatasetWriter",
    "Episodes",
    "Order",
    "Reader",
    "anchor_rows",
    "open_dataset",
]


def __getattr__(name: str) -> object:
    """The writer, imported when it is first asked for: reading needs no encoder."""
    if name == "DatasetWriter":
        from kata.data.writing.dataset_writer import DatasetWriter

        return DatasetWriter
    raise AttributeError(f"module 'kata.data' has no attribute '{name}'")
