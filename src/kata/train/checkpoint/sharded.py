"""The training state in shards on disk, in torch's distributed checkpoint format (DCP).

Each rank writes its shards. Any number of ranks, or a process without ranks, reads them.

    <checkpoint>/sharded_state/.metadata     the table of tensors, written last
                              /__0_0.distcp  rank 0's shards; one rank writes what several hold

Weights and EMA are stored under their names after the prefixes WEIGHTS and EMA. Optimizer state is
stored as OPTIMIZER_STATE/<number of the parameter>/<name>.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.optim import Optimizer

from kata.dist.skip_step import optimizer_parameters
from kata.errors import CheckpointError
from kata.train.checkpoint.manifest import SHARDS
from kata.train.checkpoint.snapshot import optimizer_tensors
from kata.update.state import TrainState

METADATA = ".metadata"
WEIGHTS = "weights/"
EMA = "average/"
OPTIMIZER_STATE = "moments/"
_CHECKPOINT = "torch.distributed.checkpoint."
_TABLE = {
    *(
        (_CHECKPOINT + "metadata", name)
        for name in ("Metadata", "TensorStorageMetadata", "ChunkStorageMetadata")
    ),
    *(
        (_CHECKPOINT + "metadata", name)
        for name in ("TensorProperties", "_MEM_FORMAT_ENCODING", "MetadataIndex")
    ),
    *((_CHECKPOINT + "metadata", "StorageMeta"), (_CHECKPOINT + "filesystem", "_StorageInfo")),
    *(("torch", "Size"), ("torch.serialization", "_get_layout")),
    *(("pathlib", name) for name in ("PosixPath", "WindowsPath")),
    *(("pathlib._local", name) for name in ("PosixPath", "WindowsPath")),
}
"""Classes that a table of tensors may consist of, beside types of numbers."""


def has_shards(checkpoint: Path) -> bool:
    """Return True if a checkpoint holds its state in shards."""
    return (checkpoint / SHARDS).is_dir()


def state_tensors(state: TrainState) -> dict[str, Tensor]:
    """Return all tensors of a state by name, as this rank holds them."""
    found = {WEIGHTS + name: tensor for name, tensor in state.policy.state_dict().items()}
    if state.ema is not None:
        found |= {EMA + name: tensor for name, tensor in state.ema.state_dict().items()}
    found |= {
        OPTIMIZER_STATE + name: tensor
        for name, tensor in optimizer_tensors(state.optimizer.state_dict()).items()
    }
    return {name: tensor.detach() for name, tensor in found.items()}


def write_shards(checkpoint: Path, tensors: Mapping[str, Tensor], *, together: bool) -> None:
    """Write tensors into a checkpoint's folder, flushed to disk.

    Args:
        checkpoint: the checkpoint's folder.
        tensors: what this rank holds, by name.
        together: True if all ranks write, each its shards.

    Raises:
        OSError: a rank cannot write; raised on all ranks.
    """
    with _alone_is_meant():
        try:
            save(
                dict(tensors),
                storage_writer=FileSystemWriter(checkpoint / SHARDS),
                no_dist=not together,
            )
        except CheckpointException as error:
            raise _as_os_error(error) from error


def restore_shards(state: TrainState, checkpoint: Path) -> None:
    """Fill weights, EMA and optimizer state from shards. Each rank reads its part; no rank waits.

    Raises:
        CheckpointError: a shard is absent, or the checkpoint is that of another state.
    """
    reader = ShardedReader(checkpoint)
    wanted = {
        name: tensor
        for name, tensor in state_tensors(state).items()
        if not name.startswith(OPTIMIZER_STATE)
    }
    params = optimizer_parameters(state.optimizer)
    found: dict[int, dict[str, Tensor]] = {}
    # A new optimizer has no state yet, so its tensors are made here from the table.
    for name, entry in reader.table.items():
        if name.startswith(OPTIMIZER_STATE):
            number, _, kind = name.removeprefix(OPTIMIZER_STATE).partition("/")
            like = params[int(number)].detach()
            # A count of steps has another shape than its parameter, and is not sharded.
            is_sharded = entry.size == like.shape
            empty = torch.empty_like(like) if is_sharded else torch.empty(entry.size)
            tensor = empty.to(entry.properties.dtype)
            found.setdefault(int(number), {})[kind] = tensor
            wanted[name] = tensor
    # The read fills tensors in place, so it must not begin before every name is explained.
    _refuse_others(checkpoint, reader.table, wanted)
    reader.read(wanted)
    load_optimizer_state(state.optimizer, found)


def load_optimizer_state(optimizer: Optimizer, found: Mapping[int, Mapping[str, Tensor]]) -> None:
    """Fill an optimizer's state by number of the parameter. Its options stay."""
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict(
        {"state": {n: dict(named) for n, named in found.items()}, "param_groups": groups}
    )


class ShardedReader:
    """Reader of a checkpoint's shards. It executes nothing of the table, which is a pickle.

    Attributes:
        table: shape and type of each tensor by name.

    Raises:
        CheckpointError: the table cannot be read, or a file that it names is absent.
    """

    def __init__(self, checkpoint: Path) -> None:
        self._folder = checkpoint / SHARDS
        try:
            with (self._folder / METADATA).open("rb") as file:
                found = _Table(file).load()
            assert isinstance(found, Metadata)
            entries = {
                n: e
                for n, e in found.state_dict_metadata.items()
                if isinstance(e, TensorStorageMetadata)
            }
            files = {str(info.relative_path) for info in (found.storage_data or {}).values()}
        except (
            OSError,
            pickle.UnpicklingError,
            AttributeError,
            AssertionError,
            EOFError,
            TypeError,
        ) as error:
            raise _unreadable(self._folder, f"{METADATA} cannot be read ({error})") from error
        self.table: dict[str, TensorStorageMetadata] = entries
        self._metadata = found
        outside = sorted(name for name in files if Path(name).name != name)
        absent = sorted(name for name in files if not (self._folder / name).is_file())
        if outside or absent:
            what = (
                f"names files outside it ({', '.join(outside)})"
                if outside
                else f"{', '.join(absent)}: absent"
            )
            raise _unreadable(self._folder, what)

    def read(self, wanted: dict[str, Tensor]) -> None:
        """Fill these in place, whole or in shards."""
        with _alone_is_meant():
            try:
                load(wanted, storage_reader=_Reader(self._folder, self._metadata), no_dist=True)
            except CheckpointException as error:
                reasons = "; ".join(sorted({str(reason) for reason, _ in error.failures.values()}))
                raise _unreadable(self._folder, reasons) from error

    def full(self) -> dict[str, Tensor]:
        """All tensors by name, put together in host memory."""
        found = {
            name: torch.empty(entry.size, dtype=entry.properties.dtype)
            for name, entry in self.table.items()
        }
        self.read(found)
        return found


class _Reader(FileSystemReader):
    def __init__(self, folder: Path, metadata: Metadata) -> None:
        super().__init__(folder)
        self._known = metadata

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        self._known.storage_meta = StorageMeta(load_id=self.load_id)
        return self._known


class _Table(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str, /) -> Any:
        dtype = module_name == "torch" and isinstance(vars(torch).get(global_name), torch.dtype)
        if not dtype and (module_name, global_name) not in _TABLE:
            raise pickle.UnpicklingError(
                f"{module_name}.{global_name} is no part of a table of tensors"
            )
        return super().find_class(module_name, global_name)


def _refuse_others(checkpoint: Path, there: Iterable[str], wanted: Iterable[str]) -> None:
    missing, surplus = sorted(set(wanted) - set(there)), sorted(set(there) - set(wanted))
    if missing or surplus:
        kind, names = ("missing", missing) if missing else ("unexpected", surplus)
        raise _unreadable(
            checkpoint / SHARDS, f"{len(names)} tensors {kind} ({', '.join(names[:5])})"
        )


def _unreadable(folder: Path, what: str) -> CheckpointError:
    return CheckpointError(
        f"{folder}: {what}",
        rule="the state lies in all shards together, those of every rank that wrote",
        remedy="copy the whole folder from where it was written; or delete the checkpoint to "
        "continue from the one "
        "before it",
    )


def _as_os_error(error: CheckpointException) -> OSError:
    """The system's own error on the first rank that had one."""
    for rank, (reason, _) in sorted(error.failures.items()):
        cause: BaseException | None = reason
        while cause is not None:
            if isinstance(cause, OSError):
                return OSError(cause.errno, f"{cause.strerror} (rank {rank})")
            cause = cause.__cause__ or cause.__context__
    rank, (reason, _) = next(iter(error.failures.items()))
    return OSError(None, f"{reason} (rank {rank})")


@contextmanager
def _alone_is_meant() -> Generator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", "torch.distributed is disabled, unavailable or uninitialized"
        )
        yield
