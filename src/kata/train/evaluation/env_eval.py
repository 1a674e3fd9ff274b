"""Evaluation in an environment beside the training, in other processes; training does not wait.

    step -> copy of the weights -> (thread: checkpoint folder -> `kata.eval.env_worker` process ->
    result) -> metrics.jsonl

Several ranks share the episodes. Each plays its share in a process. Ranks other than 0 use a
temporary folder and send their outcome to rank 0, whose thread sums it:

    share -> tally, videos, log -> (message) -> rank 0 -> `kata.eval.env_worker --sum` -> result

Only the copy of the weights to host memory stops the loop. One evaluation runs at a time; others
that fall due meanwhile are skipped with a note. After the last step training waits for the result,
unless the run is asked to stop.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zipfile import ZipFile

import numpy as np

from kata.closing import Closing
from kata.config import encode
from kata.dist.engine import Engine
from kata.files import write_json
from kata.policies.base import Policy
from kata.run import Run
from kata.train.checkpoint.saver import Saver
from kata.train.checkpoint.snapshot import HostTensors, Snapshot, snapshot_weights
from kata.train.metrics.meter import Meter, NullMeter
from kata.train.report import Filmstrip
from kata.train.stopping import StopSignal

CHECK_S = 0.5
"""Interval in which a wait checks whether the run was asked to stop."""


WORKER = ("-P", "-m", "kata.eval.env_worker")
"""-P: what lies in the present folder, perhaps downloaded, is not to be imported."""


RESULT = "eval.json"
TALLY = "tally.rank{}.json"
STOP = "stop"


Found = dict[str, Any]
"""The output of a process: a result, a rank's tally, or {"error": message}."""


SHOWN = (
    "num_success",
    "num_episodes",
    "success_rate",
    "mean_sum_reward",
    "mean_max_reward",
    "mean_length",
    "num_crashed",
)
"""Figures of a result that go into metrics.jsonl."""


@dataclass
class AsyncEnvEval(Closing):
    """Starts evaluations and logs their results. It is a context manager on all ranks."""

    run: Run
    folder: Path
    saver: Saver
    meter: Meter | NullMeter
    stop_signal: StopSignal
    engine: Engine

    def __post_init__(self) -> None:
        self._group, self._world = self.engine.group, self.engine.group.world
        self._messages = self._group.messages()
        self._pool = ThreadPoolExecutor(1, "kata-evaluate")
        self._running: tuple[int, Future[Found]] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._ended = threading.Event()

    def may_start(self, step: int) -> bool:
        """Return True if no evaluation is running; otherwise log that this one is skipped.

        Only rank 0 knows; it answers for all.
        """
        if self._running is not None and self._running[1].done():
            self.collect()
        if self._running is not None:
            note = f"left out: the one of step {self._running[0]} is still at work"
            self.meter.note(step, "evaluation", {"note": note})
        return self._running is None

    def start(self, policy: Policy, step: int) -> None:
        """Evaluate these weights as they are now. Collective, because shards are gathered."""
        if self._running is not None:  # its share has reached rank 0
            self._running[1].result()
        mine = len(self._share(self._world.rank)) > 0
        with self.engine.keeping(mine):
            held = snapshot_weights(policy, step, HostTensors(), self.engine)
        self._running = (step, self._pool.submit(self._evaluate, policy, held)) if mine else None

    def collect(self, *, wait: bool = False) -> None:
        """Log the result if there is one.

        `wait` waits for it, unless a rank is asked to stop. Several ranks wait together: each for
        its share, and rank 0 for all.
        """
        if self._running is None or not (wait or self._running[1].done()):
            return
        while not self._running[1].done() and not self._asked_to_stop():
            self._group.check()
            wait_for([self._running[1]], timeout=CHECK_S)
        self._end()
        step, future = self._running
        self._running = None
        result = future.result()
        if not self._world.is_first:
            return
        if "error" in result:
            self.meter.note(step, "evaluation", {"error": result["error"]})
            return
        low, high = result["success_interval"]
        figures = {name: result[name] for name in SHOWN if result.get(name) is not None}
        self.meter.note(step, "evaluation", {**figures, "success_low": low, "success_high": high})

    def _evaluate(self, policy: Policy, held: Snapshot) -> Found:
        """Return the result on rank 0; other ranks send their share to it. Runs in the thread."""
        held.wait()
        home, rank = self._home(held.step), self._world.rank
        if not self._world.is_first:
            self._messages.send(f"{held.step}/{rank}", self._played_elsewhere(policy, held))
            return {}
        shutil.rmtree(home, ignore_errors=True)
        own = self._played(home, policy, held)
        if self._world.size == 1:
            return own
        others = [other for other in range(1, self._world.size) if self._share(other)]
        messages = {other: self._awaited(f"{held.step}/{other}") for other in others}
        try:
            return self._put_together(
                home, {rank: own} | {o: unpack(p, home) for o, p in messages.items()}
            )
        except OSError as error:
            return {"error": f"the evaluation could not be written: {error}"}

    def _played_elsewhere(self, policy: Policy, held: Snapshot) -> bytes:
        """The share of a rank that perhaps does not see the run folder."""
        try:
            with TemporaryDirectory(
                prefix="kata-evaluation-", ignore_cleanup_errors=True
            ) as scratch:
                home = Path(scratch) / "share"
                return pack(self._played(home, policy, held), home)
        except OSError as error:
            return pack({"error": f"the evaluation could not be prepared: {error}"})

    def _played(self, home: Path, policy: Policy, held: Snapshot) -> Found:
        """Weights to a folder, a process over it, what it found back.

        The folder's weights go again.
        """
        try:
            return self._played_in(home, policy, held)
        except OSError as error:  # a full disk costs the evaluation, not the run
            shutil.rmtree(home, ignore_errors=True)
            return {"error": f"the evaluation could not be prepared: {error}"}

    def _played_in(self, home: Path, policy: Policy, held: Snapshot) -> Found:
        home.mkdir(parents=True)
        checkpoint = self.saver.write_pretrained(home / "pretrained_model", policy, held.weights)
        options = {
            "env": encode(self.run.env),
            "eval": encode(self.run.eval),
            "seed": self.run.seed,
        }
        write_json(
            home / "options.json", {**options, "policy": {"device": str(self.engine.device)}}
        )
        rank, ranks = self._world.rank, self._world.size
        found, share = (
            (home / RESULT, [])
            if ranks == 1
            else (home / TALLY.format(rank), [str(rank), str(ranks)])
        )
        log = "log.txt" if self._world.is_first else f"log.rank{rank}.txt"
        status = self._worked(
            [str(checkpoint), str(home / "options.json"), str(found), *share], home / log
        )
        shutil.rmtree(checkpoint)
        if not found.is_file():
            return {
                "error": f"the evaluation ended with status {status}; see "
                f"{self._home(held.step) / log}"
            }
        return json.loads(found.read_text())

    def _put_together(self, home: Path, found: dict[int, Found]) -> Found:
        """The result of all shares, or the first message of a rank that has none."""
        failed = {rank: share["error"] for rank, share in found.items() if "error" in share}
        if failed:
            (home / TALLY.format(0)).unlink(missing_ok=True)
            shutil.rmtree(home / "videos", ignore_errors=True)
            rank, said = next(iter(failed.items()))
            alike = len(failed) == len(found) and len(set(failed.values())) == 1
            return {"error": said if alike else f"{self._group.name(rank)}: {said}"}
        tallies = {rank: home / TALLY.format(rank) for rank in found}
        for rank, path in tallies.items():
            write_json(path, found[rank])
        status = self._worked(
            ["--sum", str(home / RESULT), *map(str, tallies.values())], home / "log.txt"
        )
        for path in tallies.values():
            path.unlink()
        if status:
            return {
                "error": f"the evaluation's shares were not summed up, status {status}; see "
                f"{home / 'log.txt'}"
            }
        return json.loads((home / RESULT).read_text())

    def _worked(self, args: list[str], log: Path) -> int:
        """The exit status of a process that did this; what it said is added to its log."""
        with log.open("ab") as output:
            # One thread: more would fight with the training for the same cores, and both would
            # stand still.
            quiet = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
            command = [sys.executable, *WORKER, *args]
            self._process = subprocess.Popen(
                command, env=quiet, stdout=output, stderr=subprocess.STDOUT
            )
            return self._process.wait()

    def _awaited(self, name: str) -> bytes:
        """Return another rank's share, or an error message if the evaluation ends before it
        arrives.
        """
        while (message := self._messages.take(name)) is None:
            if self._ended.wait(CHECK_S):
                return pack(
                    {"error": "the evaluation was ended before this rank's share was there"}
                )
        return message

    def _home(self, step: int) -> Path:
        return self.folder / "evaluations" / f"{step:06d}"

    def _share(self, rank: int) -> range:
        return self.run.eval.share(rank, self._world.size)

    def _asked_to_stop(self) -> bool:
        """Return True if this rank, or another one that waits, was asked to stop."""
        if self.stop_signal.is_set():
            self._messages.send(STOP, b"")
        return self._messages.has(STOP)

    def close(self) -> None:
        """End the process that is still at work when training has failed or was interrupted."""
        self._end()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _end(self) -> None:
        """End the evaluation that is still at work; it may be about to start its process."""
        while self._running is not None and not self._running[1].done():
            self._ended.set()
            if self._process is not None and self._process.poll() is None:
                self._process.terminate()
            wait_for([self._running[1]], timeout=CHECK_S)
        self._ended.clear()


def newest_strips(folder: Path) -> list[Filmstrip]:
    """Frames of the episodes filmed by the newest evaluation in a run folder, for the report."""
    found = sorted((folder / "evaluations").glob("*/eval.json"))
    result = json.loads(found[-1].read_text()) if found else {}
    if not result.get("strips"):
        return []
    won = {e["episode"]: e["success"] for e in result["episodes"]}
    with np.load(found[-1].parent / Path(result["strips"]).name) as frames:
        return [
            Filmstrip(
                title=f"{name.replace('_', ' ')}: "
                f"{'success' if won[int(name.rpartition('_')[2])] else 'failure'}",
                frames=list(frames[name]),
                caption=f"after {int(found[-1].parent.name)} steps of training",
            )
            for name in frames.files
        ]


FOUND = "found.json"


LOG_BYTES = 2**16
"""Of a log the end is sent: environments may say a line per step."""


def pack(found: dict[str, Any], home: Path | None = None) -> bytes:
    """Return values as a message, with log tails and videos from the folder `home`.

    Videos are left out if the values hold an error.
    """
    message = io.BytesIO()
    with ZipFile(message, "w") as archive:
        archive.writestr(FOUND, json.dumps(found))
        for path in sorted(home.glob("log*.txt")) if home else []:
            archive.writestr(path.name, path.read_bytes()[-LOG_BYTES:])
        for path in sorted(home.glob("videos/*")) if home and "error" not in found else []:
            archive.write(path, f"videos/{path.name}")
    return message.getvalue()


def unpack(message: bytes, home: Path) -> dict[str, Any]:
    """Return the values of a message, and write its files to `home`."""
    with ZipFile(io.BytesIO(message)) as archive:
        archive.extractall(home, [name for name in archive.namelist() if name != FOUND])
        return json.loads(archive.read(FOUND))
