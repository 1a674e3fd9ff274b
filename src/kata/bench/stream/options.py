"""The options of `kata bench stream`. Torch-free."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from kata.config import Form, Options, option
from kata.config.dataset import DatasetChoice, folder_of, is_address
from kata.errors import ConfigError
from kata.run.dataset import DatasetConfig

MODES = ("single", "sarm")
"""single: one frame of every camera. sarm: eight frames of the first camera, one second apart."""

LABEL = Form(
    "letters, digits, '.', '_' and '-', for it names files",
    "bucket",
    re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*").fullmatch,
)


def _as_in_training(name: str) -> Any:
    """Return a field that declares an option of `kata train` once more."""
    declared = DatasetConfig.__dataclass_fields__[name]
    return dataclasses.field(default=declared.default, metadata=declared.metadata)


@dataclass(frozen=True, kw_only=True)
class StreamedDataset(DatasetChoice):
    """The dataset, its order and its memory, with the options of `kata train`."""

    streaming: bool = _as_in_training("streaming")
    shuffle: str = _as_in_training("shuffle")
    frame_memory: str | None = _as_in_training("frame_memory")
    buffer_gb: float | None = _as_in_training("buffer_gb")
    cache_dir: str | None = _as_in_training("cache_dir")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.root is None and self.repo_id is None:
            raise ConfigError(
                "no dataset given",
                rule="a folder, an address in a store, or a repo_id",
                remedy="add --dataset.root=<folder or address> or --dataset.repo_id=<owner>/<name>",
            )
        values: dict[str, Any] = {}
        for field in dataclasses.fields(self):
            values[field.name] = self.__dict__[field.name]
        values["repo_id"] = self.name
        # The rules between these options are those of training.
        DatasetConfig(**values)

    @property
    def name(self) -> str:
        """Return the dataset's name: repo_id, or else the last part of its root."""
        if self.repo_id is not None:
            return self.repo_id
        root = str(self.root)
        if is_address(root):
            return root.rstrip("/").rpartition("/")[2]
        return folder_of(root).resolve().name

    @property
    def scheme(self) -> str:
        """Return the scheme of the address that is streamed from, or 'local'."""
        if is_address(self.root):
            return urlsplit(str(self.root)).scheme
        return "hf" if self.streaming and self.root is None else "local"


@dataclass(frozen=True, kw_only=True)
class StreamBench(Options):
    """A reading without a model, and its labels."""

    dataset: StreamedDataset = option(StreamedDataset, "")
    mode: str = option(
        "single",
        "Frames of a sample: single, one of every camera; sarm, eight of the first camera, one "
        "second apart.",
        choices=MODES,
        is_common=True,
    )
    batch_size: int = option(64, "Samples of a rank's batch.", least=1, is_common=True)
    num_batches: int = option(
        200, "Batches of each rank that are measured.", least=1, is_common=True
    )
    warmup_batches: int = option(
        4,
        "Batches before those. As many as are read in advance by default, so that none of the "
        "measured ones was read before.",
        least=1,
    )
    num_workers: int = option(
        0,
        "Decoding threads of a rank; 0 takes one per core that the process may use.",
        least=0,
        is_common=True,
    )
    prefetch_factor: int = option(4, "Batches that are read in advance.", least=0)
    seed: int = option(0, "Seed of the order.", least=0, most=2**64 - 1)
    source: str | None = option(
        None,
        "Label of the place that is read from, such as bucket or warmed_bucket; null takes the "
        "scheme of the address, or local.",
        form=LABEL,
        is_common=True,
    )
    out_dir: str | None = option(
        "benchmarks/results",
        "Folder of the JSON, CSV and PNG; null writes none.",
        is_common=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.out_dir is not None and Path(self.out_dir).expanduser().is_file():
            raise ConfigError(
                f"out_dir={self.out_dir}: a file",
                rule="a folder, which is made if it is absent",
                remedy="name another folder, or --out_dir=null",
            )

    @property
    def label(self) -> str:
        """Return the label of the source."""
        return self.source or self.dataset.scheme
