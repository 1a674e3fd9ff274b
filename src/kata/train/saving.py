"""Saving beside training: the loop stands still while the state is copied to host memory, and no longer.

    step -> copy to host memory -> (thread: files, hashes, fsync, rename, pointer, retention) -> metrics.jsonl

One save of a kind is at work at a time; the next one waits for its memory, and the wait counts as standing still.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kata.errors import CheckpointError
from kata.policies.base import Policy
from kata.run.pointer import BEST, LAST, point
from kata.train.checkpoint import Saver
from kata.train.manifest import flush
from kata.train.meter import Meter
from kata.train.retention import Keep, prune
from kata.train.snapshot import HostTensors, Snapshot, snapshot, weights_snapshot
from kata.train.state import TrainState
from kata.train.store import FULL, publish

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Written:
    """What the thread found: bytes on the disk, seconds of the device's copying, seconds of writing."""

    num_bytes: int
    device_s: float
    save_s: float


@dataclass(frozen=True)
class _Job:
    pointer: str
    target: Path
    step: int
    host_s: float
    future: Future[_Written]
    lost: Callable[[], None]


@dataclass
class Saving:
    """Writes the checkpoints of one run. Use as a context manager; call `check` between steps, `finish` at the end.

    durable: the step of the newest checkpoint on the disk, or None.
    """

    home: Path
    saver: Saver
    meter: Meter
    keep: Keep
    durable: int | None = None
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "kata-save"))
    _jobs: list[_Job] = field(default_factory=list[_Job])
    _memory: dict[str, HostTensors] = field(default_factory=dict[str, HostTensors])

    def checkpoint(self, state: TrainState) -> None:
        """Save this step; `last` points at it once it is on the disk."""
        digits = max(6, len(str(self.saver.run.steps)))
        target = self.home / f"{state.step:0{digits}d}"
        policy = state.policy
        # Said first: a run that is killed once the checkpoint is there has the line too.
        self.meter.note(state.step, "checkpoint", {"path": str(target)})
        self._save(
            LAST,
            target,
            lambda memory: snapshot(state, memory),
            lambda folder, held: self.saver.write(folder, policy, held),
        )

    def best(self, policy: Policy, step: int, figures: dict[str, Any], lost: Callable[[], None]) -> Path:
        """Save these weights as the best so far; `lost` is called if a full disk does not take them."""
        self._save(
            BEST,
            self.home / f"{BEST}-{step:06d}",
            lambda memory: weights_snapshot(policy.state_dict(), step, memory),
            lambda folder, held: self.saver.write_best(folder, policy, held, figures),
            lost,
        )
        return self.home / BEST

    def check(self) -> None:
        """Take note of saves that have ended. CheckpointError for one that failed, unless the disk is full."""
        while self._jobs and self._jobs[0].future.done():
            self._settle(self._jobs.pop(0))

    def finish(self, state: TrainState) -> None:
        """Wait for all saves; the state's own step must be on the disk then.

        CheckpointError when it cannot be written, also after a second try.
        """
        self._drain()
        if state.step in (0, self.durable):
            return
        prune(self.home, self.keep)
        self.checkpoint(state)
        self._drain()
        if self.durable != state.step:
            raise CheckpointError(
                f"{self.home}: the checkpoint of step {state.step} could not be written, the disk is full",
                rule="a run ends with its state on the disk",
                remedy="free space; the same command with --resume=true then repeats the steps since "
                + (f"step {self.durable}" if self.durable else "the start"),
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let the saves at work end, whatever has happened: what they write is a good state."""
        self._pool.shutdown(wait=True)
        if kind is None:
            self.check()

    def _save(
        self,
        pointer: str,
        target: Path,
        take: Callable[[HostTensors], Snapshot],
        write: Callable[[Path, Snapshot], None],
        lost: Callable[[], None] = lambda: None,
    ) -> None:
        began_s = time.perf_counter()
        wait([job.future for job in self._jobs if job.pointer == pointer])
        held = take(self._memory.setdefault(pointer, HostTensors()))
        host_s = time.perf_counter() - began_s
        future = self._pool.submit(self._write, pointer, target, held, write)
        self._jobs.append(_Job(pointer, target, held.step, host_s, future, lost))

    def _write(self, pointer: str, target: Path, held: Snapshot, write: Callable[[Path, Snapshot], None]) -> _Written:
        """In the thread."""
        device_s = held.wait()
        began_s = time.perf_counter()
        num_bytes = publish(target, held.step, lambda folder: write(folder, held))
        point(self.home / pointer, target.name)
        flush(self.home)
        prune(self.home, self.keep)
        return _Written(num_bytes, device_s, time.perf_counter() - began_s)

    def _drain(self) -> None:
        wait([job.future for job in self._jobs])
        self.check()

    def _settle(self, job: _Job) -> None:
        try:
            written = job.future.result()
        except OSError as error:
            if error.errno not in FULL:
                raise CheckpointError(
                    f"{job.target}: cannot be written ({error})",
                    rule="a run folder can be written for as long as the run lasts",
                    remedy="mend the disk or its permissions, then the same command with --resume=true; "
                    "checkpoints written before are whole",
                ) from error
            job.lost()
            _log.warning(
                "%s was not written: %s. Training goes on, and saves again when a save is due; free some space",
                job.target,
                error.strerror,
            )
            self.meter.note(job.step, "saved", {"path": str(job.target), "error": str(error.strerror)})
            return
        if job.pointer == LAST:
            self.durable = job.step
        figures = {"save_stall_s": job.host_s + written.device_s, "save_s": written.save_s, "bytes": written.num_bytes}
        self.meter.note(job.step, "saved", {"path": str(job.target), **figures})
