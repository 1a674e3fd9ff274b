"""LeRobot datasets as arithmetic: which sample stands at a position, and its bytes. No torch.

The names are imported when they are first used: help needs neither pyarrow nor a decoder.
docs/python_api.md shows each of them at work.
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
    from kata.data.stats.dataset_stats import dataset_stats
    from kata.data.video.encoder import VideoOptions
    from kata.data.writing.dataset_writer import DatasetWriter
    from kata.spec import Column

__all__ = [
    "Batches",
    "Column",
    "Dataset",
    "DatasetWriter",
    "Episodes",
    "Order",
    "Reader",
    "VideoOptions",
    "anchor_rows",
    "dataset_stats",
    "open_dataset",
]

_MODULES = {
    "Batches": "kata.data.loader.batches",
    "Column": "kata.spec",
    "Dataset": "kata.data.dataset.dataset",
    "DatasetWriter": "kata.data.writing.dataset_writer",
    "Episodes": "kata.data.dataset.windows",
    "Order": "kata.data.sampling.permutation",
    "Reader": "kata.data.loader.reader",
    "VideoOptions": "kata.data.video.encoder",
    "anchor_rows": "kata.data.dataset.windows",
    "dataset_stats": "kata.data.stats.dataset_stats",
    "open_dataset": "kata.data.dataset.dataset",
}


def __getattr__(name: str) -> object:
    """Return an exported name."""
    if name not in _MODULES:
        raise AttributeError(f"module 'kata.data' has no attribute '{name}'")
    return import_module(_MODULES[name]).__dict__[name]
