"""LeRobot datasets as arithmetic: which sample stands at a position, and its bytes. No torch.

The names are imported when they are first asked for: help and metadata need neither pyarrow nor a decoder.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kata.data.dataset.dataset import Dataset, open_dataset
    from kata.data.dataset.windows import Episodes, anchor_rows
    from kata.data.loader.batches import Batches
    from kata.data.loader.reader import Reader
    from kata.data.sampling.permutation import Order
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

_MODULES = {
    "Batches": "loader.batches",
    "Dataset": "dataset.dataset",
    "DatasetWriter": "writing.dataset_writer",
    "Episodes": "dataset.windows",
    "Order": "sampling.permutation",
    "Reader": "loader.reader",
    "anchor_rows": "dataset.windows",
    "open_dataset": "dataset.dataset",
}


def __getattr__(name: str) -> object:
    """Return an exported name."""
    if name not in _MODULES:
        raise AttributeError(f"module 'kata.data' has no attribute '{name}'")
    return import_module(f"kata.data.{_MODULES[name]}").__dict__[name]
