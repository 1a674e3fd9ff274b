"""Checkpoint writing in a thread. The loop waits only while the state is copied to host memory.

    step -> copy to host memory -> (thread: files, hashes, fsync, rename, pointer, retention) ->
    metrics.jsonl

One save of a kind runs at a time. The next one waits for its memory, and that wait counts as a
stall. Every rank calls the same methods: all ranks gather or write shards, and rank 0 writes the
other files.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from torch import Tensor

from kata.dist.engine import Engine
from kata.errors import CheckpointError
from kata.files import FULL, fsync
from kata.pointers import BEST, LAST, point
from kata.policies.base import Policy
from kata.train.checkpoint.folder import begin_checkpoint, partial_of, publish
from kata.train.checkpoint.retention import Keep, prune
from kata.train.checkpoint.saver import Saver
from kata.train.checkpoint.sharded import state_tensors, write_shards
from kata.train.checkpoint.snapshot import HostTensors, Snapshot, snapshot_state, snapshot_weights
from kata.train.metrics.meter import Meter, NullMeter
from kata.update.state import TrainState

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Written:
    """The outcome of a save: bytes on disk, seconds of copying on the device, seconds of
    writing.
    """

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
class AsyncSaver:
    """Writes the checkpoints of one run. It is a context manager; call `check` between steps and
    `finish` at the end.

    Attributes:
        durable: step of the newest checkpoint on disk, or None.
    """

    home: Path
    saver: Saver
    meter: Meter | NullMeter
    keep: Keep
    engine: Engine
    durable: int | None = None
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "kata-save"))
    _jobs: list[_Job] = field(default_factory=list[_Job])
    _memory: dict[str, HostTensors] = field(default_factory=dict[str, HostTensors])

    def checkpoint(self, state: TrainState) -> None:
        """Save this step. `last` points at the checkpoint once it is on disk. Collective."""
        digits = max(6, len(str(self.saver.run.steps)))
        target = self.home / f"{state.step:0{digits}d}"
        policy = state.policy
        # Said first: a run that is killed once the checkpoint is there has the line too.
        self.meter.note(state.step, "checkpoint", {"path": str(target)})
        self._save(
            LAST,
            target,
            lambda memory: snapshot_state(state, memory, self.engine, self.saver.run.stored_as),
            lambda folder, held: self.saver.write(folder, policy, held),
            shards=None if self.saver.run.stored_as == "safetensors" else state_tensors(state),
        )

    def best(
        self, policy: Policy, step: int, figures: dict[str, Any], lost: Callable[[], None]
    ) -> Path:
        """Save these weights as the best so far, and return the path of the `best` pointer.
        Collective.

        `lost` is called if the disk is full and the save fails.
        """
        self._save(
            BEST,
            self.home / f"{BEST}-{step:06d}",
            lambda memory: snapshot_weights(policy, step, memory, self.engine),
            lambda folder, held: self.saver.write_best(folder, policy, held, figures),
            lost,
        )
        return self.home / BEST

    def check(self) -> None:
        """Settle saves that have ended.

        Raises:
            CheckpointError: a save failed, and not because the disk is full.
        """
        while self._jobs and self._jobs[0].future.done():
            self._settle(self._jobs.pop(0))

    def finish(self, state: TrainState) -> None:
        """Wait for all saves, and make sure that the current step is on disk. Collective.

        Raises:
            CheckpointError: a second attempt failed too.
        """
        group = self.engine.group
        group.on_rank0(self._drain)
        if group.broadcast_from_rank0(lambda: state.step in (0, self.durable)):
            return
        group.on_rank0(lambda: prune(self.home, self.keep))
        self.checkpoint(state)
        group.on_rank0(lambda: self._must_be_durable(state.step))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Wait for running saves, whatever has happened: they write a good state."""
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
        shards: dict[str, Tensor] | None = None,
    ) -> None:
        """Write shards while training waits, and the other files in the thread."""
        began_s = time.perf_counter()
        # The others wait for a long write without a limit here, and not for the first shard that
        # rank 0 has to send.
        self.engine.group.on_rank0(
            lambda: wait([job.future for job in self._jobs if job.pointer == pointer])
        )
        failed = None if shards is None else self._write_shards(target, shards)
        held = take(self._memory.setdefault(pointer, HostTensors()))
        if self.engine.group.world.is_first:
            host_s = time.perf_counter() - began_s
            begun = shards is not None
            future = failed or self._pool.submit(self._write, pointer, target, held, write, begun)
            self._jobs.append(_Job(pointer, target, held.step, host_s, future, lost))

    def _write_shards(self, target: Path, tensors: dict[str, Tensor]) -> Future[_Written] | None:
        """Write this rank's shards. Collective.

        The folder is the one that rank 0 publishes. Returns a failed future if a disk refuses the
        write, else None.
        """
        group = self.engine.group
        group.on_rank0(lambda: begin_checkpoint(target))
        try:
            write_shards(partial_of(target), tensors, together=group.world.size > 1)
        except OSError as error:  # the same on all ranks
            lost: Future[_Written] = Future()
            lost.set_exception(error)
            group.on_rank0(lambda: shutil.rmtree(partial_of(target), ignore_errors=True))
            return lost
        return None

    def _write(
        self,
        pointer: str,
        target: Path,
        held: Snapshot,
        write: Callable[[Path, Snapshot], None],
        begun: bool,
    ) -> _Written:
        """Write and publish a checkpoint, in the thread."""
        device_s = held.wait()
        began_s = time.perf_counter()
        try:
            num_bytes = publish(target, held.step, lambda folder: write(folder, held), begun)
        except FileNotFoundError:
            if begun:
                raise
            # The run folder was moved away meanwhile: what was taken is written in its old place.
            num_bytes = publish(target, held.step, lambda folder: write(folder, held))
        point(self.home / pointer, target.name)
        fsync(self.home)
        prune(self.home, self.keep)
        return _Written(num_bytes, device_s, time.perf_counter() - began_s)

    def _drain(self) -> None:
        wait([job.future for job in self._jobs])
        self.check()

    def _must_be_durable(self, step: int) -> None:
        self._drain()
        if self.durable != step:
            raise CheckpointError(
                f"{self.home}: the checkpoint of step {step} could not be written, the disk is "
                "full",
                rule="a run ends with its state on the disk",
                remedy="free space; the same command with --resume=true then repeats the steps "
                "since " + (f"step {self.durable}" if self.durable else "the start"),
            )

    def _settle(self, job: _Job) -> None:
        try:
            written = job.future.result()
        except OSError as error:
            if error.errno not in FULL:
                raise CheckpointError(
                    f"{job.target}: cannot be written ({error})",
                    rule="a run folder can be written for as long as the run lasts",
                    remedy="mend the disk or its permissions, then the same command with "
                    "--resume=true; "
                    "checkpoints written before are whole",
                ) from error
            job.lost()
            _log.warning(
                "%s was not written: %s. Training continues, and saves again when a save is due; "
                "free some space",
                job.target,
                error.strerror,
            )
            self.meter.note(
                job.step, "saved", {"path": str(job.target), "error": str(error.strerror)}
            )
            return
        if job.pointer == LAST:
            self.durable = job.step
        figures = {
            "save_stall_s": job.host_s + written.device_s,
            "save_s": written.save_s,
            "bytes": written.num_bytes,
        }
        self.meter.note(job.step, "saved", {"path": str(job.target), **figures})
