"""The choice of the order that a run reads in, from the memory for decoded frames."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from kata.data.arrays import Int64
from kata.data.dataset.anchors import AnchorRows
from kata.data.dataset.dataset import Dataset
from kata.data.dataset.mixture import Mixture, MixtureEntry
from kata.data.frames.frame_format import RECORDED, FrameFormat
from kata.data.frames.next_use import held_as_rgb
from kata.data.sampling.clip_order import ClipOrder, Clips, order_quality
from kata.data.sampling.mixture_order import MixtureOrder, part_seed
from kata.data.sampling.permutation import PermutationOrder, SampleOrder
from kata.data.storage.buffers import free_memory
from kata.data.storage.store import StoredFile
from kata.data.video.color import stores_half_size
from kata.data.video.packet_index import open_index
from kata.spec import Windows
from kata.units import bytes_text, count_text

FRAME_BYTES = 4 * 10**9
"""Default bytes for decoded frames, if four times as much memory is free."""

_MOST_CLIPS = 1 << 20
"""Most clips of a dataset: larger tables take longer than they save. Clips are made longer instead.
"""

_EXTRA_DECODING = 0.0625
"""Fraction of frames that may be decoded twice because windows reach beyond the edge of a clip."""

_FILL = 0.85
"""Fraction of the budget for the expected number of held frames. The rest is for its variance, and
for prefetching.
"""

_CLIPS_PER_SAMPLE = 4
"""Clips of the pool per sample of a batch: clips are cut shorter to reach it, and `auto` needs it.

With a pool of W clips, a clip yields one sample in W on average. Two samples of a batch of B come
from one clip with probability B / 3W². So the variance of the mean gradient is at most some 2 %
above that of independent samples.
"""


_READ_BYTES = 512 * 1024
"""Bytes of a clip and camera that cost little more than a request for them: clips of short GOPs
grow to it while the pool has twice _CLIPS_PER_SAMPLE.
"""


@dataclass(frozen=True)
class Shuffle:
    """An order of training by its name; the three numbers are 0 with 'full'.

    Args:
        kind: 'full' (a permutation of all anchors) or 'clips'.
        clip_pool: clips alive at a time.
        clip_frames: anchors per clip.
        clip_gop: consecutive anchors that stay together.
    """

    kind: str = "full"
    clip_pool: int = 0
    clip_frames: int = 0
    clip_gop: int = 0


def default_frame_memory() -> int:
    """Return the bytes for decoded frames: FRAME_BYTES, at most a quarter of the free memory."""
    return min(FRAME_BYTES, free_memory() // 4)


def clip_stride(windows: Windows, cameras: Collection[str], gop: int) -> int:
    """Return the distance of the runs of a clip.

    It is the common spacing of the cameras' windows if that is a multiple of the GOP, else the GOP.
    Anchors at that distance need the same frames; anchors in between need others.
    """
    wanted: set[int] = set()
    for key in cameras:
        wanted.update(windows.get(key, (0,)))
    offsets = sorted(wanted)
    spacing = math.gcd(*np.diff(offsets).tolist())
    return spacing if spacing > gop and spacing % gop == 0 else gop


def make_order(
    shuffles: Sequence[Shuffle],
    mixture: Mixture,
    windows: Windows,
    cameras: Collection[str],
    rows: Int64 | AnchorRows,
    seed: int,
) -> MixtureOrder:
    """Return the order of a mixture, each dataset in the order of its shuffle.

    Args:
        shuffles: one for each part, with all numbers.
        mixture: the dataset or datasets.
        windows: frame offsets per common key.
        cameras: common keys of the cameras that are read.
        rows: the anchors of the mixture in ascending order (N,).
        seed: of the run.
    """
    orders: list[SampleOrder] = []
    for number, (part, shuffle) in enumerate(zip(mixture.parts, shuffles, strict=True)):
        own = _own(part, windows, cameras)
        anchors = _own_rows(mixture, number, rows)
        orders.append(_order(shuffle, part.dataset, *own, anchors, part_seed(seed, number)))
    return MixtureOrder(orders, mixture.shares(rows))


def _order(
    shuffle: Shuffle,
    dataset: Dataset,
    windows: Windows,
    cameras: Collection[str],
    rows: Int64 | AnchorRows,
    seed: int,
) -> SampleOrder:
    """Return the order over `rows`, the anchors of `dataset` in ascending order."""
    if shuffle.kind == "full":
        return PermutationOrder(len(rows), seed)
    return ClipOrder(_clips(shuffle, dataset, windows, cameras, rows), shuffle.clip_pool, seed)


def _own(
    part: MixtureEntry, windows: Windows, cameras: Collection[str]
) -> tuple[Windows, list[str]]:
    """Return windows and cameras under the names of one dataset, as far as it has them."""
    own = {part.own(key): offsets for key, offsets in windows.items() if key in part.columns}
    return own, [part.own(key) for key in cameras if key in part.columns]


def _own_rows(mixture: Mixture, number: int, rows: Int64 | AnchorRows) -> AnchorRows:
    """Return those of the mixture's rows that are in one dataset, as rows of it."""
    first = int(mixture.first_rows[number])
    end = first + mixture.parts[number].dataset.num_frames
    return AnchorRows.of(rows).between(first, end)


def _clips(
    shuffle: Shuffle,
    dataset: Dataset,
    windows: Windows,
    cameras: Collection[str],
    rows: Int64 | AnchorRows,
) -> Clips:
    anchors = AnchorRows.of(rows)
    counts = np.diff(anchors.before(dataset.episodes.start), append=len(anchors))
    stride = clip_stride(windows, cameras, shuffle.clip_gop)
    return Clips(counts, shuffle.clip_frames, shuffle.clip_gop, stride)


@dataclass(frozen=True)
class ShuffleChoice:
    """The facts that decide between a full order and clips.

    Args:
        asked: kind may be 'auto'; numbers left at 0 are derived.
        frame_memory: bytes for decoded frames.
        batch_size: samples per step.
        ahead: batches on their way at a time.
        frame_format: form of frames in batches.
    """

    asked: Shuffle
    frame_memory: int
    batch_size: int
    ahead: int
    frame_format: FrameFormat = RECORDED

    def choose(
        self,
        mixture: Mixture,
        windows: Windows,
        cameras: Collection[str],
        rows: Int64 | AnchorRows,
        *,
        in_64_bits: bool = False,
    ) -> tuple[list[Shuffle], list[str]]:
        """Choose the order of every dataset of a mixture.

        The memory that batches on their way leave is divided by the memory that the datasets'
        frames of a batch take, so that the samples of each come from as many clips.

        Args:
            mixture: the dataset or datasets.
            windows: frame offsets per common key.
            cameras: common keys of the cameras that are read.
            rows: the anchors of the mixture in ascending order (N,).
            in_64_bits: True divides as kata once did, with a product that overflowed for most
                mixtures of VGA frames. This tells records of such pools from others.

        Returns:
            For each part the order with all its numbers, and a sentence that says why.
        """
        # 1. The room that batches on their way leave for held frames.
        frame = self._sample_bytes(mixture, windows, cameras)
        room = max(self.frame_memory - self.ahead * self.batch_size * sum(frame.values()), 0)
        # 2. The bytes that each dataset holds per sample, for its cameras and formats.
        shares = mixture.shares(rows)
        parts = [(part, *_own(part, windows, cameras)) for part in mixture.parts]
        frame_formats: list[FrameFormat] = []
        held: list[int] = []
        for part, own, keys in parts:
            names = {key: part.own(key) for key in cameras}
            frame_format = self.frame_format.under(names)
            frame_formats.append(frame_format)
            sizes = [
                held_frame_bytes(part.dataset, key, own.get(key, (0,)), frame_format)
                for key in keys
            ]
            held.append(sum(sizes))
        # 3. The division of the room, in proportion to a dataset's bytes in a batch.
        wanted = [size * count for size, count in zip(held, shares.counts, strict=True)]
        allotted = (_allot_in_64_bits if in_64_bits else _allot)(room, wanted)
        # 4. Every dataset chooses as if it were alone, with its part of the batch and the room.
        shuffles: list[Shuffle] = []
        notes: list[str] = []
        for i, (part, own, keys) in enumerate(parts):
            size = max(1, round(self.batch_size * shares.counts[i] / shares.period))
            batch = size * sum(frame[key] for key in cameras if key in part.columns)
            memory = min(self.frame_memory, allotted[i] + self.ahead * batch)
            choice = dataclasses.replace(
                self, frame_memory=memory, batch_size=size, frame_format=frame_formats[i]
            )
            shuffle, note = choice._of_dataset(part.dataset, own, keys, _own_rows(mixture, i, rows))
            shuffles.append(shuffle)
            notes.append(mixture.labelled(part, note))
        return shuffles, notes

    def _sample_bytes(
        self, mixture: Mixture, windows: Windows, cameras: Collection[str]
    ) -> dict[str, int]:
        """Return the bytes of the frames of one sample, by camera."""
        found: dict[str, int] = {}
        for key in cameras:
            shape = self.frame_format.shape(key, mixture.columns[key])
            found[key] = len(windows.get(key, (0,))) * math.prod(shape)
        return found

    def _of_dataset(
        self, dataset: Dataset, windows: Windows, cameras: Collection[str], rows: Int64 | AnchorRows
    ) -> tuple[Shuffle, str]:
        """Return a dataset's order with all its numbers, and a sentence that says why."""
        # 1. All decoded frames of the dataset, and those of the batches that are read at a time.
        sizes = {
            key: held_frame_bytes(dataset, key, windows.get(key, (0,)), self.frame_format)
            for key in cameras
        }
        total = sum(sizes.values()) * dataset.num_frames
        places = {key: self.batch_size * len(windows.get(key, (0,))) for key in cameras}
        batch = sum(
            count * math.prod(self.frame_format.shape(key, dataset.columns[key]))
            for key, count in places.items()
        )
        room = max(self.frame_memory - self.ahead * batch, 0)
        # 2. Where a permutation decodes no more than clips would, it mixes better.
        if self.asked.kind == "full" or not sizes:
            return Shuffle(), "order: full, a permutation of all samples per epoch"
        if self.asked.kind == "auto" and total <= room:
            return (
                Shuffle(),
                f"order: full, for all decoded frames ({bytes_text(total)}) fit into frame_memory",
            )
        if self.asked.kind == "auto" and all(
            dataset.columns[key].dtype == "image" for key in cameras
        ):
            return Shuffle(), "order: full, for images are read and decoded one by one"
        # 3. Clips, unless 'auto' finds too few of them alive to mix a batch well.
        gop = self.asked.clip_gop or _gop(dataset, cameras)
        shuffle = self._fit(dataset, windows, sizes, gop, room)
        order = _order(shuffle, dataset, windows, cameras, rows, 0)
        assert isinstance(order, ClipOrder)
        shuffle = dataclasses.replace(shuffle, clip_pool=order.pool)
        if self.asked.kind == "auto" and order.pool < min(
            _CLIPS_PER_SAMPLE * self.batch_size, len(order.clips)
        ):
            return Shuffle(), (
                f"order: full, for {bytes_text(self.frame_memory)} of frame_memory hold only "
                f"{order.pool} clips of "
                f"{shuffle.clip_frames} frames; more of it, or --dataset.shuffle=clips, decodes "
                "each frame about once"
            )
        return shuffle, self._sentence(order, gop)

    def _fit(
        self, dataset: Dataset, windows: Windows, sizes: dict[str, int], gop: int, room: int
    ) -> Shuffle:
        """Return the shortest clips whose windows cost little extra decoding.

        They become shorter where the pool would be too small.
        """
        # 1. The GOPs of a clip. Windows reach a halo of GOPs beyond its edge, which are decoded
        # twice; clips with as many GOPs as this keep that below _EXTRA_DECODING.
        offsets = np.unique(np.concatenate([windows.get(key, (0,)) for key in sizes]))
        stride = clip_stride(windows, sizes, gop)
        longest = int(dataset.episodes.length.max())
        runs_of_episode = -(-longest // stride)
        halo = 0 if stride > gop else -(-int(offsets[-1] - offsets[0]) // gop)
        runs = (
            runs_of_episode
            if stride > gop
            else min(math.ceil(halo / _EXTRA_DECODING) or 1, runs_of_episode)
        )
        runs = max(runs, -(-dataset.num_frames // (_MOST_CLIPS * gop)))
        # Neighbouring GOPs of a clip can be read with one request, as long as clips mix well.
        needed = runs
        if stride == gop:
            runs = max(runs, min(_runs_to_read(dataset, sizes, gop), runs_of_episode))
        # 2. A GOP is held whole when it is decoded, but half of it on average. The peak exceeds the
        # mean by half a GOP per camera.
        opening = gop * sum(sizes.values()) / 2
        # 3. Halve the clips until the pool mixes well; that costs more decoding at their edges.
        while True:
            frames = self.asked.clip_frames or runs * gop
            shuffle = Shuffle("clips", 1, frames - frames % gop or gop, gop)
            held = held_bytes_per_clip(shuffle, stride, windows, sizes, longest)
            pool = self.asked.clip_pool or max(int((_FILL * room - opening) / held), 1)
            per_sample = _CLIPS_PER_SAMPLE if runs <= needed else 2 * _CLIPS_PER_SAMPLE
            if self.asked.clip_frames or runs <= 1 or pool >= per_sample * self.batch_size:
                return dataclasses.replace(shuffle, clip_pool=pool)
            runs = max(-(-runs // 2), needed) if runs > needed else -(-runs // 2)

    def _sentence(self, order: ClipOrder, gop: int) -> str:
        found = order_quality(order, order.clips, max(self.batch_size, 2))
        return (
            f"order: clips, {count_text(order.pool)} of {count_text(len(order.clips))} clips of "
            f"{order.clips.frames} frames at a time (groups of pictures of {gop}; frame_memory "
            f"{bytes_text(self.frame_memory)}): "
            f"{found.distinct_clips:.1f} clips per batch of {self.batch_size} "
            f"({found.uniform_distinct_clips:.1f} in a full shuffle), pairs of one clip "
            f"{found.same_clip_pairs:.2%} ({found.uniform_same_clip_pairs:.2%})"
        )


def _allot(room: int, wanted: Sequence[int]) -> list[int]:
    """Divide `room` in proportion. Python's integers do not overflow; NumPy's would."""
    return [int(room * each / max(sum(wanted), 1)) for each in wanted]


def _allot_in_64_bits(room: int, wanted: Sequence[int]) -> list[int]:
    """Divide as `_allot` once did, with products that wrap round beyond 63 bits."""
    total = max(sum(wanted), 1)
    return [int(((room * each + 2**63) % 2**64 - 2**63) / total) for each in wanted]


def held_frame_bytes(
    dataset: Dataset, key: str, offsets: tuple[int, ...], frame_format: FrameFormat = RECORDED
) -> int:
    """Return the bytes of one held frame, by the format of the camera's first file."""
    column = dataset.columns[key]
    rgb, half = math.prod(frame_format.shape(key, column)), math.prod(column.shape) // 2
    if rgb <= half:
        return rgb
    if (
        column.dtype == "video"
        and not held_as_rgb(offsets)
        and stores_half_size(_first_file(dataset, key))
    ):
        return half
    return rgb


def _first_file(dataset: Dataset, key: str) -> StoredFile:
    span = dataset.layout.videos[key]
    return StoredFile(dataset.store, span.files[int(span.file[0])])


def _gop(dataset: Dataset, cameras: Collection[str]) -> int:
    """Return the frames per GOP: the 90 % quantile in the first file of each camera; 1 for images.

    Shorter GOPs, as at the end of an episode, fit into a clip. A longer one extends beyond it.
    """
    found = [1]
    for key in cameras:
        if dataset.columns[key].dtype == "video":
            index = open_index(_first_file(dataset, key))
            lengths = np.unique(index.start, return_counts=True)[1]
            found.append(int(np.quantile(lengths, 0.9, method="higher")))
    return max(found)


def _runs_to_read(dataset: Dataset, cameras: Collection[str], gop: int) -> int:
    """Return the GOPs whose bytes are worth one request in the first file of every camera.

    A clip is no longer than a second for it: its frames resemble each other.
    """
    most = max(round(dataset.fps) // gop, 1)
    found = [1]
    for key in cameras:
        if dataset.columns[key].dtype == "video":
            _, begin, end = open_index(_first_file(dataset, key)).gops
            found.append(math.ceil(_READ_BYTES * len(begin) / max(int((end - begin).sum()), 1)))
    return min(max(found), most)


def held_bytes_per_clip(
    shuffle: Shuffle, stride: int, windows: Windows, sizes: dict[str, int], longest: int
) -> float:
    """Return the bytes that one living clip holds on average.

    A frame is held from the first use of its GOP to its own last use. The clip's L anchors take
    equal parts of its life in random order. So the last of k anchors comes at k / (k + 1) of (L +
    1) / L lives, and the first of m at 1 / (m + 1), both half a part earlier.

    Args:
        shuffle: frames and GOP of a clip.
        stride: distance of the runs of a clip.
        windows: frame offsets per camera.
        sizes: bytes of a held frame by camera.
        longest: frames of the longest episode, beyond which no frame is wanted.
    """
    gop, frames = shuffle.clip_gop, shuffle.clip_frames
    number = np.arange(frames)
    anchors = number // gop * stride + number % gop
    total = 0.0
    for key, size in sizes.items():
        offsets = np.array(windows.get(key, (0,)))
        # 1. The pairs (frame, anchor that wants it), each once; k anchors want a frame.
        wanted = np.clip(anchors[:, None] + offsets, anchors[-1] - longest + 1, None)
        wanting = np.broadcast_to(anchors[:, None], wanted.shape)
        pairs = np.unique(np.stack([wanted, wanting], -1).reshape(-1, 2), axis=0)
        shown, users = np.unique(pairs[:, 0], return_counts=True)
        # 2. m anchors want some frame of a GOP; the first of them has all of it decoded.
        group = shown // gop
        first: dict[int, int] = {}
        for number_of_gop in np.unique(group).tolist():
            opens = np.isin(wanted // gop, number_of_gop).any(axis=1)
            first[number_of_gop] = len(np.unique(anchors[opens]))
        openers = np.array([first[number_of_gop] for number_of_gop in group.tolist()])
        # 3. The expected fraction of the clip's life for which each frame is held.
        held = float((users / (users + 1) - 1 / (openers + 1)).sum())
        total += size * held * (frames + 1) / frames
    return max(total, 1.0)
