"""Heartbeats: each rank gives one a second, so that the others notice and name a lost rank.

A thread with a separate connection to the store of the rendezvous sends and checks heartbeats.
Rank 0 watches all ranks, and the others watch rank 0. A failure reaches every rank within a beat.
If the main thread cannot react, because it waits in a collective that never ends, the thread ends
the process.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from dataclasses import asdict, dataclass

from torch.distributed import Store  # pyright: ignore[reportPrivateImportUsage]: documented under this name

from kata.errors import RankError

BEAT_S = 1.0
GRACE_S = 10.0
"""Seconds that a rank has to notice by itself that another one has failed."""
FAILURE = "failure"


@dataclass(frozen=True)
class Failure:
    """The failure that ended the run: the first rank that failed or was lost, and its message."""

    rank: int
    who: str
    what: str
    rule: str = ""
    remedy: str = ""

    def error(self) -> RankError:
        """Return the error that the other ranks raise."""
        return RankError(
            f"rank {self.rank} ({self.who}): {self.what}", rule=self.rule, remedy=self.remedy
        )


def lost(rank: int, who: str, silent_s: float) -> Failure:
    """Return the failure of a rank without a heartbeat."""
    return Failure(
        rank,
        who,
        f"no sign of life for {silent_s:.0f} s; killed, out of memory, or cut off",
        rule="a step needs every rank",
        remedy="look at that machine and that rank's output; the same command with --resume=true "
        "continues from the last checkpoint",
    )


class Heartbeat:
    """The heartbeat of one rank, until `stop`.

    Args:
        store: a connection that nobody else uses.
        rank: this rank.
        who: every rank's process and machine.
        silent_s: seconds without a heartbeat after which a rank is lost.
    """

    def __init__(self, store: Store, rank: int, who: list[str], silent_s: float) -> None:
        self.failure: Failure | None = None
        self._store = store
        self._rank = rank
        self._who = who
        self._silent_s = silent_s
        self._watched = [r for r in range(len(who)) if r != rank] if rank == 0 else [0]
        self._beats: dict[int, tuple[int, float]] = {}
        self._over, self._noticed = threading.Event(), threading.Event()
        self._answered_s = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="kata-pulse", daemon=True)
        self._watch = threading.Thread(
            target=self._watch_the_way, name="kata-pulse-watch", daemon=True
        )

    def start(self) -> None:
        """Start the threads; every rank must have given its first beat."""
        self._answered_s = time.monotonic()
        self._thread.start()
        self._watch.start()

    def stop(self) -> None:
        """Stop the heartbeat."""
        self._over.set()
        self._thread.join()

    def notice(self) -> None:
        """Note that the main thread knows of the failure and ends by itself."""
        self._noticed.set()

    def silent(self, beats: int) -> list[int]:
        """Return the ranks without a heartbeat for `beats` beats; rank 0 if the store is gone."""
        others = [r for r in range(len(self._who)) if r != self._rank]
        try:
            before = count_beats(self._store, others)
            time.sleep(beats * BEAT_S)
            after = count_beats(self._store, others)
        except RuntimeError:
            return [0]
        return [r for r in others if before[r] == after[r]]

    def _run(self) -> None:
        """Send and check heartbeats, and end the process if the main thread cannot."""
        # 1. A request or two to the store per second; no other rank waits for them.
        while not self._over.wait(BEAT_S) and self.failure is None:
            try:
                self._store.add(beat_key(self._rank), 1)
                self.failure = posted(self._store) or self._look()
                self._answered_s = time.monotonic()
            except RuntimeError:  # the store of the rendezvous is gone, and rank 0 with it
                self.failure = lost(0, self._who[0], BEAT_S)
        # 2. The main thread sees the failure at its next check, and reports it better than this.
        if self.failure is not None and not self._over.is_set() and not self._noticed.wait(GRACE_S):
            print(f"kata: {self.failure.error()}", file=sys.stderr, flush=True)
            os._exit(1)  # the main thread is inside a collective, which no exception reaches

    def _watch_the_way(self) -> None:
        """End a rank that is cut off from the network.

        A request to the store that is lost on its way waits for ever. Both the heartbeat and a main
        thread that asks why its collective has failed would wait with it.
        """
        while not self._over.wait(BEAT_S) and self.failure is None:
            silent_s = time.monotonic() - self._answered_s
            if silent_s > self._silent_s + GRACE_S:
                print(
                    f"kata: {lost(0, self._who[0], silent_s).error()}", file=sys.stderr, flush=True
                )
                os._exit(1)

    def _look(self) -> Failure | None:
        """Return the failure of a watched rank whose count has stood still for too long."""
        # Only this rank's clock counts: the clocks of machines may differ.
        now_s = time.monotonic()
        for rank, count in count_beats(self._store, self._watched).items():
            known, since_s = self._beats.get(rank, (-1, now_s))
            if count != known:
                self._beats[rank] = (count, now_s)
            elif now_s - since_s > self._silent_s:
                return post(self._store, lost(rank, self._who[rank], now_s - since_s))
        return None


def beat_key(rank: int) -> str:
    """Return the store's key for a rank's count of beats."""
    return f"beat/{rank}"


def count_beats(store: Store, ranks: list[int]) -> dict[int, int]:
    """Return the number of beats that each of these ranks has given."""
    found = store.multi_get([beat_key(rank) for rank in ranks])
    return {rank: int(count) for rank, count in zip(ranks, found, strict=True)}


def post(store: Store, failure: Failure) -> Failure:
    """Post a failure unless another rank has posted one, and return the one that is posted."""
    return Failure(**json.loads(store.compare_set(FAILURE, "", json.dumps(asdict(failure)))))


def posted(store: Store) -> Failure | None:
    """Return the posted failure, or None."""
    return Failure(**json.loads(store.get(FAILURE))) if store.check([FAILURE]) else None
