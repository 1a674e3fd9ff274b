"""Evaluation in an environment beside the training: a process of its own, which training never waits for.

    step -> copy of the weights -> (thread: checkpoint folder -> `kata.eval.worker` process -> result) -> metrics.jsonl

Only the copy of the weights to host memory stops the loop. One evaluation runs at a time; what falls due meanwhile is
left out and said. After the last step the last result is waited for, unless the run is asked to stop.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from torch import Tensor

from kata.config import encode
from kata.policies.base import Policy
from kata.run import Run
from kata.train.checkpoint import Saver, write_json
from kata.train.guard import Guard
from kata.train.meter import Meter
from kata.train.report import Filmstrip
from kata.train.snapshot import Snapshot

CHECK_S = 0.5
"""How often a wait looks whether the run was asked to stop."""

WORKER = ("-P", "-m", "kata.eval.worker")
"""-P: what lies in the present folder, perhaps downloaded, is not to be imported."""

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
class Beside:
    """Starts evaluations and brings their results into the record. Use as a context manager."""

    run: Run
    folder: Path
    saver: Saver
    meter: Meter
    guard: Guard
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "kata-evaluate"))
    _running: tuple[int, Future[dict[str, Any]]] | None = None
    _process: subprocess.Popen[bytes] | None = None

    def may_start(self, step: int) -> bool:
        """Whether an evaluation of this step may start; where the one before is still at work, that is noted."""
        if self._running is not None and self._running[1].done():
            self.collect()
        if self._running is not None:
            note = f"left out: the one of step {self._running[0]} is still at work"
            self.meter.note(step, "evaluation", {"note": note})
        return self._running is None

    def start(self, policy: Policy, held: Snapshot) -> None:
        """Evaluate these weights. `policy` gives names."""
        self._running = (held.step, self._pool.submit(self._evaluate, policy, held))

    def collect(self, *, wait: bool = False) -> None:
        """Write down the result if there is one; `wait` for the one at work, but not when asked to stop."""
        if self._running is None or not (wait or self._running[1].done()):
            return
        while not self._running[1].done() and not self.guard.asked():
            wait_for([self._running[1]], timeout=CHECK_S)
        self._end()
        step, future = self._running
        self._running = None
        result = future.result()
        if "error" in result:
            self.meter.note(step, "evaluation", {"error": result["error"]})
            return
        low, high = result["success_interval"]
        figures = {name: result[name] for name in SHOWN if result.get(name) is not None}
        self.meter.note(step, "evaluation", {**figures, "success_low": low, "success_high": high})

    def _evaluate(self, policy: Policy, held: Snapshot) -> dict[str, Any]:
        """In the thread: weights to a folder, a process over it, its result back. The folder's weights go again."""
        held.wait()
        home = self.folder / "evaluations" / f"{held.step:06d}"
        shutil.rmtree(home, ignore_errors=True)
        try:
            return self._evaluate_in(home, policy, held.weights)
        except OSError as error:  # a full disk costs the evaluation, not the run
            shutil.rmtree(home, ignore_errors=True)
            return {"error": f"the evaluation could not be prepared: {error}"}

    def _evaluate_in(self, home: Path, policy: Policy, weights: dict[str, Tensor] | None) -> dict[str, Any]:
        home.mkdir(parents=True)
        checkpoint = self.saver.write_pretrained(home / "pretrained_model", policy, weights)
        options = {"env": encode(self.run.env), "eval": encode(self.run.eval), "seed": self.run.seed}
        write_json(home / "options.json", {**options, "policy": {"device": self.run.policy.device}})
        result = home / "eval.json"
        command = [sys.executable, *WORKER, str(checkpoint), str(home / "options.json"), str(result)]
        began_s = time.perf_counter()
        with (home / "log.txt").open("wb") as output:
            # One thread: more would fight with the training for the same cores, and both would stand still.
            quiet = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
            self._process = subprocess.Popen(command, env=quiet, stdout=output, stderr=subprocess.STDOUT)
            status = self._process.wait()
        shutil.rmtree(checkpoint)
        if not result.is_file():
            return {"error": f"the evaluation ended with status {status}; see {home / 'log.txt'}"}
        return {**json.loads(result.read_text()), "wall_s": time.perf_counter() - began_s}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the process that is still at work when training has failed or was interrupted."""
        self._end()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _end(self) -> None:
        """End the evaluation that is still at work; it may be about to start its process."""
        while self._running is not None and not self._running[1].done():
            if self._process is not None and self._process.poll() is None:
                self._process.terminate()
            wait_for([self._running[1]], timeout=CHECK_S)


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
                title=f"{name.replace('_', ' ')}: {'success' if won[int(name.rpartition('_')[2])] else 'failure'}",
                frames=list(frames[name]),
                caption=f"after {int(found[-1].parent.name)} steps of training",
            )
            for name in frames.files
        ]
