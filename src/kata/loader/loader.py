"""A loader of LeRobot-style batches of torch tensors, for any training loop."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kata.closing import Closing
from kata.config.dataset import is_address, refuse_credentials
from kata.data import Batches, Dataset, Reader, anchor_rows, open_dataset
from kata.data.dataset.mixture import Mixture
from kata.data.loader.batches import RankSlice
from kata.data.loader.far_data import open_fetch_pool, read_through
from kata.data.loader.shuffle import Shuffle, ShuffleChoice, make_order
from kata.data.sampling.permutation import PermutationOrder, SampleOrder
from kata.dist.world import read_world
from kata.errors import ConfigError, did_you_mean
from kata.loader.batch_grid import BatchGrid, GridOrder
from kata.spec import Batch, Windows

SHUFFLES = ("auto", "full", "clips", "none")

_TOLERANCE_S = 1e-4
"""LeRobot's tolerance for the times of a window."""


@dataclass(eq=False)
class Loader(Closing):
    """An iterable of batches, dictionaries of torch tensors under LeRobot's keys.

    Cameras are (B, C, H, W), or (B, T, C, H, W) under a window. A window of one frame has no time
    axis in a camera that is stored as video, as in LeRobot. All other keys are those of
    `kata.data.Reader.read`.

    The order of samples follows from the dataset, the windows, `seed`, `shuffle`, `frame_memory`
    and `global_batch`. It is the same for any number of ranks. Step k takes positions [k * G,
    (k + 1) * G) of it, where G is the samples of all ranks, and each rank reads its slice.

    Args:
        dataset: a name on the Hub, a folder, an address (s3://, hf://, gs://, https://), or what
            `kata.data.open_dataset` returned.
        batch_size: samples of a batch of this rank.
        delta_timestamps: times of a key's window in seconds, relative to the sample; LeRobot's
            spelling.
        keys: columns to read beside the bookkeeping; None for all.
        epochs: epochs of one iteration. None iterates for ever.
        drop_last: True leaves out the incomplete batch at the end of an iteration, so that all
            ranks have as many batches. Otherwise the last ranks may have one batch less.
        seed: of the order.
        shuffle: 'full' (a permutation per epoch), 'clips' (a pool of clips, which decodes each
            frame about once), 'auto' (the better one of these), or 'none' (as recorded).
        drop_n_last_frames: frames at the end of each episode that start no sample.
        image_dtype: torch.float32 in [0, 1], or torch.uint8, which is quicker.
        num_workers: decoding threads; there are no worker processes.
        prefetch_factor: batches that are read in advance.
        frame_memory: bytes for decoded frames that later batches use, beside the batches.
        global_batch: samples of a step over all ranks for which clip order mixes well. With fewer,
            clips are longer, and windows that span many frames decode each of them fewer times. It
            does not follow from `batch_size`, since the order would change with the ranks.
        encoded_memory: bytes of a dataset in a store that are here or on their way.
        cache_dir: folder that keeps the bytes of a dataset in a store; None keeps none.
        rank: of this process. None takes it from torch.distributed, or from the launcher.
        world_size: number of ranks. None takes it from the same place. Both attributes then have
            what was found.

    Raises:
        ConfigError: a setting that is impossible.
        DataError: a dataset that is absent or damaged.
    """

    dataset: InitVar[str | Path | Dataset | Mixture]
    batch_size: int = 8
    delta_timestamps: Mapping[str, Sequence[float]] | None = None
    keys: Collection[str] | None = None
    epochs: int | None = None
    drop_last: bool = False
    seed: int = 0
    shuffle: str = "auto"
    drop_n_last_frames: int = 0
    image_dtype: torch.dtype = torch.float32
    num_workers: int = 4
    prefetch_factor: int = 4
    frame_memory: int = 2 * 10**9
    global_batch: int = 64
    encoded_memory: int = 10**9
    cache_dir: str | Path | None = None
    rank: int | None = None
    world_size: int | None = None
    data: Mixture = field(init=False, repr=False)
    reader: Reader = field(init=False, repr=False)
    order: SampleOrder = field(init=False, repr=False)
    _live: ExitStack = field(init=False, repr=False, default_factory=ExitStack)
    _batches: Batches | None = field(init=False, repr=False, default=None)
    _step: int = field(init=False, repr=False, default=0)

    def __post_init__(self, dataset: str | Path | Dataset | Mixture) -> None:
        self._check()
        self._rank, self._world_size = _place(self.rank, self.world_size)
        self.rank, self.world_size = self._rank, self._world_size
        mixture = _opened(dataset)
        self._windows = windows_of_times(self.delta_timestamps or {}, mixture)
        self._rows = anchor_rows(mixture, self.drop_n_last_frames)
        self._grid = self._grid_from(0)
        # The pool and the reader are closed together, whatever fails on the way.
        with ExitStack() as live:
            fetched = open_fetch_pool(live, mixture, self.encoded_memory)
            if fetched is not None:
                folder = None if self.cache_dir is None else Path(self.cache_dir).expanduser()
                mixture = read_through(fetched, mixture, folder)
            self.data = mixture
            self.order = self._chosen_order(mixture)
            self.reader = live.enter_context(
                Reader(mixture, self._windows, threads=self.num_workers, keys=self.keys)
            )
            if self.frame_memory:
                count = self.prefetch_factor + 1
                batches = count * self.reader.batch_bytes(self.batch_size)
                self.reader.frame_memory = self.frame_memory + batches
            self._live = live.pop_all()

    @property
    def num_samples(self) -> int:
        """Return the samples of an epoch, over all ranks."""
        return len(self._rows)

    @property
    def position(self) -> int:
        """Return the position of the next sample, which is the number that all ranks have taken.

        At the end of an iteration, samples that `drop_last` leaves out count as taken.
        """
        return self._grid.first(self._step)

    def state_dict(self) -> dict[str, int]:
        """Return the position, which resumes the stream on any number of ranks.

        Batches that were read in advance are not counted.
        """
        return {"position": self.position}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at the position of a state from `state_dict`.

        Raises:
            ConfigError: the state has no position.
        """
        position = state.get("position")
        if not isinstance(position, int) or isinstance(position, bool) or position < 0:
            raise ConfigError(
                f"the state of a Loader is {dict(state)}",
                rule="it has a 'position', a whole number from 0 on",
                remedy="load what Loader.state_dict() returned",
            )
        self._close_batches()
        self._grid, self._step = self._grid_from(position), 0

    def __len__(self) -> int:
        """Return the batches of this rank in one iteration; TypeError if it is endless."""
        if self._grid.run is None:
            raise TypeError("an endless Loader has no length; give it epochs=1")
        own = self._rank * self.batch_size
        count = self._grid.batches(self._grid.run)
        last = self._grid.run - (count - 1) * self._grid.batch
        return count if last > own else count - 1

    def __iter__(self) -> Iterator[Batch]:
        """Yield batches from the present position to the end of the epochs, or for ever.

        There is one position: two iterators share it.
        """
        is_last = False
        while not is_last:
            step, grid = self._step, self._grid
            own = grid.left(step) - self._rank * self.batch_size
            raw = self._opened_batches().at(step) if own > 0 else None
            self._step = step + 1
            is_last = grid.is_last(step)
            if raw is not None:
                yield self._tensors(raw, own)

    def close(self) -> None:
        """End the threads, and free the frames and bytes that are held."""
        self._close_batches()
        self._live.close()

    def _check(self) -> None:
        """Refuse numbers below their least value, and unknown words."""
        least = {"batch_size": 1, "num_workers": 1, "prefetch_factor": 0, "frame_memory": 0}
        least |= {"encoded_memory": 1, "drop_n_last_frames": 0, "global_batch": 1}
        if self.epochs is not None:
            least["epochs"] = 1
        for name, smallest in least.items():
            value = self.__dict__[name]
            if value < smallest:
                raise ConfigError(
                    f"{name}={value}",
                    rule=f"{name} is {smallest} or more",
                    remedy=f"Loader(..., {name}={smallest})",
                )
        if self.shuffle not in SHUFFLES:
            raise ConfigError(
                f"shuffle={self.shuffle}",
                rule=f"one of {', '.join(SHUFFLES)}",
                remedy=did_you_mean(str(self.shuffle), SHUFFLES),
            )
        if self.image_dtype not in (torch.uint8, torch.float32):
            raise ConfigError(
                f"image_dtype={self.image_dtype}",
                rule="frames are torch.uint8, or torch.float32 in [0, 1]",
                remedy="choose one of the two, and convert on the device",
            )

    def _grid_from(self, position: int) -> BatchGrid:
        """Return the grid whose first batch begins at a position, or at the next run's start."""
        batch = self.batch_size * self._world_size
        run = None if self.epochs is None else self.epochs * self.num_samples
        grid = BatchGrid(position, batch, run, self.drop_last)
        if run is None or grid.batches(run - position % run):
            return grid
        if not grid.batches(run):
            raise ConfigError(
                f"{self.epochs} epochs of {self.num_samples} samples, and {batch} samples of a "
                "batch over all ranks, with drop_last=True",
                rule="one whole batch or more is left",
                remedy="take a smaller batch_size, more epochs, or drop_last=False",
            )
        return BatchGrid((position // run + 1) * run, batch, run, self.drop_last)

    def _chosen_order(self, mixture: Mixture) -> SampleOrder:
        if self.shuffle == "none":
            return PermutationOrder(self.num_samples, self.seed, shuffle=False)
        read = mixture.columns if self.keys is None else {*self.keys, *self._windows}
        cameras = [key for key in mixture.cameras if key in read]
        choice = ShuffleChoice(Shuffle(self.shuffle), self.frame_memory, self.global_batch, ahead=0)
        shuffles, _ = choice.choose(mixture, self._windows, cameras, self._rows)
        return make_order(shuffles, mixture, self._windows, cameras, self._rows, self.seed)

    def _opened_batches(self) -> Batches:
        """Return the batches of the grid; reading ahead begins with the first one asked for."""
        if self._batches is None:
            self._batches = Batches(
                self.reader,
                self._rows,
                GridOrder(self.order, self._grid),
                self._grid.batch,
                ahead=self.prefetch_factor,
                rank_slice=RankSlice(self._rank, self._world_size),
            )
        return self._batches

    def _close_batches(self) -> None:
        if self._batches is not None:
            self._batches.close()
            self._batches = None

    def _tensors(self, raw: Batch, size: int) -> Batch:
        """Return the first samples of a batch as tensors, as LeRobot lays them out."""
        batch: Batch = {}
        for key, value in raw.items():
            if key == "position":
                continue  # it counts places of the grid, and LeRobot has no such key
            if isinstance(value, np.ndarray) and value.dtype != object:
                batch[key] = torch.from_numpy(value[:size])
            else:
                batch[key] = list(value[:size])
        cameras = [key for key in self.data.cameras if key in batch]
        for key in cameras:
            # Not by kata.processors: with all that it imports a process takes 100 MB more.
            if self.image_dtype == torch.float32:
                batch[key] = batch[key].to(torch.float32).div_(255)
            batch[key] = batch[key].movedim(-1, -3)
            if self.data.columns[key].dtype == "video" and len(self._windows.get(key, ())) == 1:
                batch[key] = batch[key].squeeze(1)
        if not torch.cuda.is_available():
            return batch
        for key, value in batch.items():
            # torch's allocator keeps this memory until copies that do not block have ended.
            batch[key] = value.pin_memory() if isinstance(value, torch.Tensor) else value
        return batch


def windows_of_times(times: Mapping[str, Sequence[float]], mixture: Mixture) -> Windows:
    """Return windows in frames of windows in seconds.

    Raises:
        ConfigError: a time that is between two frames, an empty window, or datasets of different
            frame rates.
    """
    rates = {part.name: part.dataset.fps for part in mixture.parts}
    fps = mixture.parts[0].dataset.fps
    if times and len(set(rates.values())) > 1:
        raise ConfigError(
            f"frames per second are {rates}",
            rule="delta_timestamps count frames of one rate",
            remedy="read datasets of different rates with a Loader each",
        )
    found: Windows = {}
    for key, offsets_s in times.items():
        for offset_s in offsets_s:
            if abs(offset_s - round(offset_s * fps) / fps) > _TOLERANCE_S:
                raise ConfigError(
                    f"delta_timestamps of {key}: {offset_s} s at {fps} frames per second",
                    rule=f"times are multiples of 1/{fps} s, within {_TOLERANCE_S} s",
                    remedy=f"write {round(offset_s * fps)} / {fps}",
                )
        if not offsets_s:
            raise ConfigError(
                f"delta_timestamps of {key}: no time",
                rule="a window has at least one frame",
                remedy=f"leave out {key}, or give it [0.0]",
            )
        found[key] = tuple(round(offset_s * fps) for offset_s in offsets_s)
    return found


def _opened(dataset: str | Path | Dataset | Mixture) -> Mixture:
    """Return the data: what is open already, an address, a folder, or a name on the Hub."""
    if isinstance(dataset, Mixture):
        return dataset
    if isinstance(dataset, Dataset):
        return Mixture.of(dataset)
    if is_address(dataset):
        refuse_credentials("dataset", str(dataset))
        return Mixture.of(open_dataset(str(dataset), root=dataset))
    folder = Path(dataset).expanduser()
    # A name on the Hub has one slash, so that a path with another number of them is a folder.
    if isinstance(dataset, Path) or folder.is_dir() or len(folder.parts) != 2:
        return Mixture.of(open_dataset(folder.name, root=folder))
    return Mixture.of(open_dataset(dataset))


def _place(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Return rank and number of ranks: as given, of torch.distributed, or of the launcher."""
    if rank is None and world_size is None:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return torch.distributed.get_rank(), torch.distributed.get_world_size()
        world = read_world(os.environ, must_meet=False)
        return world.rank, world.size
    if rank is None or world_size is None or not 0 <= rank < world_size:
        raise ConfigError(
            f"rank={rank}, world_size={world_size}",
            rule="ranks count from 0 to world_size - 1; both numbers are given, or neither",
            remedy="Loader(..., rank=0, world_size=1), or leave out both",
        )
    return rank, world_size
