"""Collectives of a run's ranks: sums, agreement, and work that one rank does for all.

Collectives have a time limit. Work of rank 0 alone has none: the others wait for its result at the
rendezvous store (which rank 0 or the launcher serves), where they see its heartbeat.
"""

from __future__ import annotations

import gc
import json
import os
import socket
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import (
    HashStore,  # pyright: ignore[reportPrivateImportUsage]: documented so
    PrefixStore,  # pyright: ignore[reportPrivateImportUsage]
    Store,  # pyright: ignore[reportPrivateImportUsage]
)

from kata.dist.heartbeat import BEAT_S, Failure, Heartbeat, beat_key, lost, post, posted
from kata.dist.messages import MessageStore
from kata.dist.rendezvous import join_rendezvous
from kata.dist.world import World
from kata.errors import KataError, RankError

T = TypeVar("T")
SUSPECT_BEATS = 3
"""Beats without a sign of life after which a rank is lost, once a collective has failed."""
LOOK_S = 0.1
"""Longest pause between two looks of a waiting rank at the store."""
LEAVE_S = 5.0
"""Seconds that the rank that serves the store waits for the others to leave."""


class ProcessGroup:
    """A single rank: each method does its work without communication."""

    def __init__(self, world: World | None = None) -> None:
        self.world = world or World()

    def sum(self, tensors: Sequence[Tensor]) -> None:
        """Add the other ranks' tensors of the same shapes to these, in place; no host waits."""

    def name(self, rank: int) -> str:
        """Return the name of a rank in messages."""
        return f"rank {rank}"

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's plain value, by rank."""
        return [value]

    def on_rank0(self, work: Callable[[], T]) -> T | None:
        """Run `work` on rank 0 while the others wait without a limit; they get None."""
        return work()

    def broadcast_from_rank0(self, work: Callable[[], T]) -> T:
        """Run `work` on rank 0 and return its value, which JSON can hold, on all; no time limit."""
        return work()

    def local_rank0_first(self, work: Callable[[], T]) -> T:
        """Run `work` on each machine's first rank, then on the others, which reuse its files."""
        return work()

    def vote(self, reason: str | None) -> str | None:
        """Return a reason to stop that some rank has given, or None; the same on all ranks.

        Several ranks get the answer to the call before, so that nobody waits.
        """
        return reason

    def check(self) -> None:
        """Raise RankError if a rank has failed; for loops that wait without a collective."""

    def messages(self) -> MessageStore:
        """Return a mailbox between the ranks. Collective: all ranks call it in the same order."""
        return MessageStore(HashStore())


class DistributedGroup(ProcessGroup):
    """Several ranks. Every rank calls the same methods in the same order.

    Raises: RankError naming the rank that failed or is lost, from any method that waits for it.
    """

    def __init__(self, world: World, store: Store, device: torch.device, limit_s: float) -> None:
        super().__init__(world)
        self._store, self._outer = PrefixStore("kata", store), store
        self._calls = 0
        self._voted: tuple[dist.Work, Tensor] | None = None
        # 1. The collectives. Those of plain values run on the CPU, beside the GPU's.
        limit = timedelta(seconds=limit_s)
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(
            backend,
            store=PrefixStore("group", store),
            rank=world.rank,
            world_size=world.size,
            timeout=limit,
            device_id=device if device.type == "cuda" else None,
        )
        # 2. The names of all ranks, for messages about any of them.
        self._hosts: list[str] = self.gather(socket.gethostname())
        self._who: list[str] = self.gather(f"process {os.getpid()} on {socket.gethostname()}")
        # 3. Heartbeats. The barrier makes sure that every rank's count exists before it is read.
        self._store.add(beat_key(world.rank), 1)
        dist.barrier()
        self._heartbeat = Heartbeat(self._connect("kata"), world.rank, self._who, limit_s)
        self._heartbeat.start()

    def sum(self, tensors: Sequence[Tensor]) -> None:
        """Add the other ranks' tensors of the same shapes to these, in place; no host waits."""
        if not tensors:
            return
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        dist.all_reduce(flat)
        for tensor, total in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
            tensor.copy_(total.view_as(tensor))

    def name(self, rank: int) -> str:
        """Return the name of a rank in messages."""
        return f"rank {rank} ({self._who[rank]})"

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's plain value, by rank."""
        found: list[Any] = [None] * self.world.size
        dist.all_gather_object(found, value)
        return found

    def on_rank0(self, work: Callable[[], T]) -> T | None:
        """Run `work` on rank 0 while the others wait without a limit; they get None."""
        key = self._key("alone")
        if not self.world.is_first:
            self._wait(key)
            return None
        value = work()
        self._store.set(key, "done")
        return value

    def broadcast_from_rank0(self, work: Callable[[], T]) -> T:
        """Run `work` on rank 0 and return its value, which JSON can hold, on all; no time limit."""
        key = self._key("first")
        if self.world.is_first:
            value = work()
            self._store.set(key, json.dumps(value))
            return value
        self._wait(key)
        return json.loads(self._store.get(key))

    def local_rank0_first(self, work: Callable[[], T]) -> T:
        """Run `work` on each machine's first rank, then on the others, which reuse its files."""
        first = self._hosts.index(self._hosts[self.world.rank])
        key = self._key(f"node/{first}")
        if self.world.rank != first:
            self._wait(key)
            return work()
        value = work()
        self._store.set(key, "done")
        return value

    def vote(self, reason: str | None) -> str | None:
        """Return a reason to stop that some rank has given, or None; the same on all ranks.

        Several ranks get the answer to the call before, so that nobody waits.
        """
        # 1. The result of the last vote, which has had a step's time to arrive.
        if self._voted is not None:
            work, votes = self._voted
            work.wait()
            if votes.item() > 0:
                return self._store.get("stop").decode()
        # 2. The next vote. The text goes first, so that it is there when the sum says so.
        if reason is not None:
            self._store.set("stop", f"{reason} on rank {self.world.rank}")
        votes = torch.tensor(0 if reason is None else 1)
        work = dist.all_reduce(votes, async_op=True)
        assert work is not None
        self._voted = (work, votes)
        return None

    def check(self) -> None:
        """Raise RankError if a rank has failed; for loops that wait without a collective."""
        if self._heartbeat.failure is not None:
            raise self._heartbeat.failure.error()

    def messages(self) -> MessageStore:
        """Return a mailbox between the ranks. Collective: all ranks call it in the same order."""
        return MessageStore(self._connect(self._key("messages")))

    def fail(self, error: BaseException) -> None:
        """Post why this rank ends; if another one failed first, raise RankError with its name."""
        self._heartbeat.notice()
        found = self._culprit(error)
        if found is None:
            return
        if isinstance(error, KataError) and str(error) == str(
            RankError(found.what, rule=found.rule, remedy=found.remedy)
        ):
            # All ranks found the same fault; rank 0 alone prints it.
            if self.world.is_first:
                return
            raise SystemExit(2) from error
        if not isinstance(error, RankError):
            raise found.error() from error

    def leave(self, *, well: bool) -> None:
        """Leave the group. Rank 0 serves the store until the others have read what they need."""
        self._heartbeat.stop()
        try:
            self._store.set(f"left/{self.world.rank}", "yes")
            if self.world.is_first:
                self._wait_for_others(LEAVE_S if well else 2 * BEAT_S)
        except RuntimeError:  # the store is gone already
            return
        if well:
            # Free all users of the group before it. The last one waits for the group's threads; DDP
            # would do that while it holds the GIL, which those threads need.
            gc.collect()
            dist.destroy_process_group()

    def _culprit(self, error: BaseException) -> Failure | None:
        """Return the failure of another rank that ends this one; None if this one failed."""
        me = self.world.rank
        try:
            # 1. The first failure that a rank has posted wins.
            known = self._heartbeat.failure or posted(self._store)
            # 2. A collective fails before a lost rank is noticed. Looking again costs a few beats.
            if known is None and isinstance(error, RuntimeError):
                silent = self._heartbeat.silent(SUSPECT_BEATS)
                known = posted(self._store)
                if known is None and silent:
                    known = post(
                        self._store, lost(silent[0], self._who[silent[0]], SUSPECT_BEATS * BEAT_S)
                    )
            # 3. Otherwise this rank is the first, unless another posts in this moment.
            if known is None:
                known = post(self._store, _described(error, me, self._who[me]))
        except RuntimeError:
            known = lost(0, self._who[0], BEAT_S)
        return None if known.rank == me else known

    def _connect(self, prefix: str) -> Store:
        """Return a separate connection to the store, which does not wait for other calls."""
        again = self._outer.clone()  # pyright: ignore[reportAttributeAccessIssue]: torch's stubs do not know it
        return PrefixStore(prefix, again)

    def _key(self, name: str) -> str:
        self._calls += 1
        return f"{name}/{self._calls}"

    def _wait(self, key: str) -> None:
        """Wait for a key, or raise RankError if a rank fails. The store's own wait has a limit."""
        pause_s = 0.001
        while not self._store.check([key]):
            self.check()
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LOOK_S)

    def _wait_for_others(self, limit_s: float) -> None:
        others = [f"left/{rank}" for rank in range(1, self.world.size)]
        until_s = time.monotonic() + limit_s
        while not self._store.check(others) and time.monotonic() < until_s:
            time.sleep(0.05)


def _described(error: BaseException, rank: int, who: str) -> Failure:
    if isinstance(error, KataError):
        return Failure(rank, who, error.what, error.rule, error.remedy)
    text = str(error).strip().splitlines()
    return Failure(
        rank, who, f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
    )


@contextmanager
def join(world: World, device: torch.device, limit_s: float) -> Generator[ProcessGroup]:
    """Join this world's ranks, which all call this; an error inside ends all with its message.

    Args:
        world: the rank of this process among all.
        device: the device of this rank.
        limit_s: seconds after which a collective without an answer has failed.

    Raises: ConfigError if the ranks do not meet.
    """
    if world.size == 1:
        yield ProcessGroup(world)
        return
    group = DistributedGroup(world, join_rendezvous(world, limit_s), device, limit_s)
    try:
        yield group
    except BaseException as error:
        try:
            group.fail(error)
        finally:
            group.leave(well=False)
        raise
    group.leave(well=True)
