"""An order that decodes each frame about once: samples are drawn from a moving pool of clips.

A clip is a set of anchors of one episode that share GOPs. Each epoch permutes the clips and gives
each a slot of time. The clip in slot s is alive for W slots, the pool, and yields one of its L
anchors in every L-th part of its life:

    slot     s     s+1   s+2   s+3   s+4   s+5      W = 4, L = 3
    clip s   |--a----|-----b-|-c-----|
    clip s+1       |----d--|--e----|----f--|

    time of anchor i = s + W * (i + v) / L, with v random in [0, 1)

The order is the anchors sorted by time. W clips are alive at a time, so neighbours in the order
come from different clips, and clips enter and leave evenly. MosaicML Streaming's `py1e` draws the
times freely. Here exactly one falls into every part, so the anchors in a stretch of time are
counted per clip, not one by one.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from kata.data.arrays import Int64, ranges
from kata.data.sampling.permutation import PermutationOrder, SampleOrder, keyed

_FRACTION_BITS = 24
"""Bits of v in a time, which is an integer so that every machine sorts alike."""

_KEPT_BLOCKS = 4
"""Sorted blocks that are kept: readers ahead and behind meet in neighbouring blocks."""


class Clips:
    """The anchors of a dataset, cut into clips.

    A clip is `frames` anchors: runs of `gop` consecutive ones, each `stride` after the one before.
    With stride == gop it is one run. The last clips of an episode are shorter.

    Example:
        One episode of 12 anchors with frames=4, gop=2, stride=6 has the runs 0-1, 2-3, ..., 10-11.
        Runs 6 apart share a clip: (0, 1, 6, 7), (2, 3, 8, 9) and (4, 5, 10, 11).

    Args:
        counts: (E,) anchors of each episode. Anchors are numbered through, episode after episode.
        frames: anchors per clip, a multiple of gop.
        gop: anchors that stay together.
        stride: distance of the runs, a multiple of gop; 0 means gop.
    """

    def __init__(self, counts: Int64, frames: int, gop: int = 1, stride: int = 0) -> None:
        stride = stride or gop
        assert frames > 0
        assert gop > 0
        assert frames % gop == 0
        assert stride % gop == 0
        self.frames = frames
        self.gop = gop
        self.stride = stride
        self._runs, self._classes = frames // gop, stride // gop
        # 1. The runs of each episode, in classes: runs of one class are `stride` apart, so that
        #    they may share a clip.
        self._starts = np.cumsum(counts) - counts
        episode = np.repeat(np.arange(len(counts)), self._classes)
        phase = np.tile(np.arange(self._classes), len(counts))
        runs_of_episode = -(-counts[episode] // gop)
        runs = np.maximum(-(-(runs_of_episode - phase) // self._classes), 0)
        # 2. Each class is cut into clips of `_runs` runs. `_base` is the number of a class's first
        #    clip, from which `of` computes the clip of any anchor without a table of anchors.
        parts = -(-runs // self._runs)
        self._base = np.cumsum(parts) - parts
        part = ranges(np.zeros_like(parts), parts)
        where = np.repeat(np.arange(len(parts)), parts)
        # 3. The first anchor and the length of each clip. The last clip of a class may have fewer
        #    runs, and the last run of an episode fewer anchors.
        first_run = phase[where] + part * self._runs * self._classes
        self.first = self._starts[episode[where]] + first_run * gop
        here = np.minimum(runs[where] - part * self._runs, self._runs)
        last_run = first_run + (here - 1) * self._classes
        cut = np.where(last_run == runs_of_episode[where] - 1, -counts[episode[where]] % gop, 0)
        self.length = here * gop - cut
        self.n = int(counts.sum())

    def __len__(self) -> int:
        return len(self.first)

    def of(self, anchors: Int64) -> Int64:
        """Return the clip of each anchor (n,)."""
        episode = np.searchsorted(self._starts, anchors, side="right") - 1
        run = (anchors - self._starts[episode]) // self.gop
        first_of_class = self._base[episode * self._classes + run % self._classes]
        return first_of_class + run // self._classes // self._runs

    def anchors(self, clips: Int64) -> tuple[Int64, Int64]:
        """Return the anchors of some clips.

        Args:
            clips: (c,) numbers of the clips.

        Returns:
            (n,) anchors, clip after clip, and (n,) the place in `clips` of each one's clip.
        """
        length = self.length[clips]
        number = ranges(np.zeros_like(length), length)
        place = np.repeat(np.arange(len(clips)), length)
        within = number // self.gop * self.stride + number % self.gop
        return self.first[clips][place] + within, place


class ClipOrder:
    """An order of the anchors of `clips`, each once per epoch; a function of (seed, position).

    To read at any position costs one sort of the anchors of about 2 * pool clips, and one number
    per clip and epoch. Both are kept for neighbouring positions.

    Args:
        clips: of the anchors.
        pool: clips alive at a time, W.
        seed: any integer.
    """

    def __init__(self, clips: Clips, pool: int, seed: int) -> None:
        assert pool > 0, "a pool has at least one clip"
        assert int(clips.length.max()) * pool < 1 << (62 - _FRACTION_BITS), "pool too large"
        self.clips = clips
        self.n = clips.n
        self.cycle = clips.n
        self.seed = seed
        self.pool = min(pool, len(clips))
        self._slots = PermutationOrder(len(clips), seed)
        self._lock = Lock()
        self._ends: OrderedDict[int, Int64] = OrderedDict()
        self._blocks: OrderedDict[tuple[int, int], Int64] = OrderedDict()

    def at(self, positions: NDArray[np.integer]) -> Int64:
        """Return the anchors at some positions of the stream.

        Args:
            positions: integers of any shape; position // n is the epoch.

        Returns:
            Anchor numbers in [0, n), int64, of the same shape.
        """
        flat = np.asarray(positions, dtype=np.int64).reshape(-1)
        out = np.empty_like(flat)
        epochs, places = np.divmod(flat, self.n)
        with self._lock:
            for epoch in np.unique(epochs).tolist():
                # Find the block of time of each position by bisection, then its place in the block.
                # So only the blocks that are asked for have to be sorted.
                ends = self._epoch(epoch)
                of_epoch = np.flatnonzero(epochs == epoch)
                blocks = np.searchsorted(ends, places[of_epoch], side="right")
                for block in np.unique(blocks).tolist():
                    mine = of_epoch[blocks == block]
                    begin = int(ends[block - 1]) if block else 0
                    out[mine] = self._block(epoch, block)[places[mine] - begin]
        return out.reshape(np.shape(positions))

    def _epoch(self, epoch: int) -> Int64:
        """Return the end of each block of `pool` slots of time, counted in anchors of the epoch."""
        if epoch not in self._ends:
            slots = np.arange(len(self.clips), dtype=np.int64)
            clips = self._slots.at(epoch * len(self.clips) + slots)
            # 1. A clip lives for `pool` slots, so in two blocks: `left` slots of its life in the
            #    first one.
            length, left = self.clips.length[clips], self.pool - slots % self.pool
            # 2. One anchor comes in each L-th part of the life, and `whole` parts end within the
            #    first block. So only the part that the block's edge cuts needs a random number:
            #    one per clip, where a sort would need one per anchor.
            whole = left * length // self.pool
            is_early = self._is_early(epoch, clips, np.minimum(whole, length - 1), left)
            inside = whole + (is_early & (whole < length))
            # 3. Anchors per block: those inside, and the others in the block after it.
            blocks = len(self.clips) // self.pool + 2
            counts = np.bincount(slots // self.pool, inside, blocks)
            counts += np.bincount(slots // self.pool + 1, length - inside, blocks)
            self._ends[epoch] = np.cumsum(counts.astype(np.int64))
            # Two epochs: a batch, or the batches read ahead, may cross from one into the next.
            if len(self._ends) > 2:
                self._ends.popitem(last=False)
        return self._ends[epoch]

    def _is_early(self, epoch: int, clips: Int64, number: Int64, left: Int64) -> NDArray[np.bool_]:
        """Return True where anchor `number` comes less than `left` slots after its clip enters."""
        # Cross-multiplied integers: a division could round differently on another machine.
        passed = self._time(epoch, clips, number) * self.pool
        return passed < (left * self.clips.length[clips]) << _FRACTION_BITS

    def _time(self, epoch: int, clips: Int64, number: Int64) -> Int64:
        """Return i + v in units of 2^-24 of an L-th of the clip's life, int64 (n,)."""
        # The clip is named by its first anchor, so the two numbers share one 64-bit word.
        v = keyed(self.seed, "clip/time", epoch, self.clips.first[clips] + (number << 40))
        return (number << _FRACTION_BITS) + (v >> np.uint64(64 - _FRACTION_BITS)).astype(np.int64)

    def _block(self, epoch: int, block: int) -> Int64:
        """Return the anchors of one block in their order, int64."""
        key = (epoch, block)
        if key in self._blocks:
            self._blocks.move_to_end(key)
            return self._blocks[key]
        # 1. The clips that live in this block entered in it or in the block before.
        slots = np.arange(
            max(block - 1, 0) * self.pool,
            min((block + 1) * self.pool, len(self.clips)),
            dtype=np.int64,
        )
        clips = self._slots.at(epoch * len(self.clips) + slots)
        anchors, place = self.clips.anchors(clips)
        # 2. Shuffle within each clip: the number i of an anchor is its rank among random numbers.
        drawn = keyed(self.seed, "clip/anchor", epoch, anchors)
        by_clip = np.lexsort((drawn, place))
        anchors = anchors[by_clip]
        length = self.clips.length[clips]
        number = ranges(np.zeros_like(length), length)
        # 3. Keep the anchors whose time lies in this block: the early ones of clips that entered in
        #    it, the late ones of clips that entered in the block before.
        left = self.pool - slots % self.pool
        early = self._is_early(epoch, clips[place], number, left[place])
        mine = early == (slots[place] // self.pool == block)
        # 4. Sort by time. The sort is stable, so that equal times have one order everywhere.
        share = self._time(epoch, clips[place], number) / (length[place] << _FRACTION_BITS)
        when = slots[place] + self.pool * share
        self._blocks[key] = anchors[mine][np.argsort(when[mine], kind="stable")]
        if len(self._blocks) > _KEPT_BLOCKS:
            self._blocks.popitem(last=False)
        return self._blocks[key]


@dataclass(frozen=True)
class OrderQuality:
    """The quality of an order: means over batches of one epoch.

    Attributes:
        distinct_clips: different clips per batch.
        same_clip_pairs: fraction of a batch's pairs of samples that come from one clip.
        uniform_distinct_clips: the expectation of `distinct_clips` in a uniform random order.
        uniform_same_clip_pairs: the expectation of `same_clip_pairs` in a uniform random order.
    """

    distinct_clips: float
    same_clip_pairs: float
    uniform_distinct_clips: float
    uniform_same_clip_pairs: float


def order_quality(
    order: SampleOrder, clips: Clips, batch_size: int, *, batches: int = 50
) -> OrderQuality:
    """Measure the quality of an order.

    Args:
        order: the order to measure.
        clips: the clips by which it is judged.
        batch_size: samples per batch, at least 2.
        batches: number of batches, spread evenly over the first epoch.
    """
    steps = np.linspace(0, max(order.n // batch_size - 1, 0), batches).round().astype(np.int64)
    positions = np.unique(steps)[:, None] * batch_size + np.arange(batch_size)
    clip = np.sort(clips.of(order.at(positions).reshape(-1)).reshape(positions.shape), axis=1)
    distinct = 1 + (np.diff(clip, axis=1) != 0).sum(axis=1)
    pairs = batch_size * (batch_size - 1) / 2
    same = sum((clip[:, shift:] == clip[:, :-shift]).sum(axis=1) for shift in range(1, batch_size))
    share = clips.length / clips.n
    return OrderQuality(
        distinct_clips=float(distinct.mean()),
        same_clip_pairs=float(np.mean(same) / pairs),
        uniform_distinct_clips=float((1 - (1 - share) ** batch_size).sum()),
        uniform_same_clip_pairs=float((share**2).sum()),
    )
