"""Bad steps: a loss or gradient that is not finite, or a loss far above the recent ones, with the
samples behind it.

    update -> loss, gradient norm -> host, without waiting -> judged in order -> metrics.jsonl,
    bad_steps.jsonl

The device itself leaves out an update that is not finite (kata.dist.skip_step.step_unless); here
the host learns of it.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kata.closing import Closing
from kata.errors import DivergedError
from kata.train.metrics.append_log import AppendLog
from kata.train.metrics.meter import Meter, drop_lines_after, read_metrics, to_json

RECENT = 200
"""Steps whose losses a new one is compared with."""


ENOUGH = 50
"""Losses before any is judged: the first steps fall fast."""


Samples = Callable[[int], list[dict[str, Any]]]


class BadStepMonitor(Closing):
    """Judges each step's loss and gradient norm, and lists the samples of bad ones. Use as a
    context manager.

    Adding a step never waits for the device: figures are copied behind its work and looked at when
    they have come. A device runs at most its queue of launched kernels behind the host, a few
    steps, and `settle` before each line of the log waits for the rest; so a run of bad steps is
    noticed at most that much later than it happens.

    Both records are cut back to `first_step`, so that a resumed run leaves what a straight one
    leaves: bad_steps.jsonl, and losses.f32, the loss of every step as a little-endian float32.

    Args:
        folder: the run's folder.
        meter: takes a line for each bad step.
        samples: the samples of a step (0 is the first), as they are to be listed.
        max_in_a_row: bad steps in a row after which the run stops.
        spike: robust deviations above the median of the recent losses that make a spike; 0 looks
            for none.
        first_step: steps already done.
        last_good: finds the newest checkpoint with finite weights, for the message that ends a run.
        changes_after: steps after which the loss is another one; those before it say nothing of
            those after it.
    """

    def __init__(
        self,
        folder: Path,
        meter: Meter,
        samples: Samples,
        *,
        max_in_a_row: int,
        spike: float,
        first_step: int,
        last_good: Callable[[], Path | None],
        changes_after: int = 0,
    ) -> None:
        self._meter, self._samples = meter, samples
        self._max_in_a_row = max_in_a_row
        self._spike = spike
        self._changes_after = changes_after
        self._last_good = last_good
        self.path = folder / "bad_steps.jsonl"
        drop_lines_after(self.path, first_step)
        known = read_metrics(self.path) if self.path.exists() else []
        self._skipped = {line["step"] for line in known if line["update"] == "skipped"}
        self._spikes = len(known) - len(self._skipped)
        before = _cut_losses(folder / "losses.f32", first_step)
        comparable = before[changes_after:] if first_step > changes_after else before
        self._recent = deque((x for x in comparable.tolist() if math.isfinite(x)), maxlen=RECENT)
        self._losses, self._new_losses = AppendLog(folder / "losses.f32"), b""
        self._list_of_bad = AppendLog(self.path)
        self._coming: deque[tuple[int, Tensor, torch.cuda.Event | None]] = deque()

    def add(self, step: int, loss: Tensor, grad_norm: Tensor) -> None:
        """Takes a step's figures (`step` counts updates, from 1), and judges those that have
        reached the host.

        Raises: DivergedError after too many bad steps in a row.
        """
        pair = torch.stack([loss.detach().float(), grad_norm.detach().float()])
        arrived = None
        if pair.device.type == "cuda":
            pair = torch.empty(2, pin_memory=True).copy_(pair, non_blocking=True)
            arrived = torch.cuda.Event()
            arrived.record()
        self._coming.append((step, pair, arrived))
        while self._coming and (self._coming[0][2] is None or self._coming[0][2].query()):
            self._judge_next()

    def settle(self) -> None:
        """Judges all steps that were added; waits for the device."""
        while self._coming:
            arrived = self._coming[0][2]
            if arrived is not None:
                arrived.synchronize()
            self._judge_next()
        self._write_losses()

    def remarks(self) -> list[str]:
        """Return remarks for the user at the end."""
        said: list[str] = []
        if self._skipped:
            said.append(
                f"{len(self._skipped)} steps were skipped: loss or gradient not finite; see "
                f"{self.path}"
            )
        if self._spikes:
            said.append(
                f"{self._spikes} steps had a loss far above the recent ones; see {self.path}"
            )
        return said

    def close(self) -> None:
        """Write the losses that are still in memory, and close both files."""
        self._write_losses()
        self._losses.close()
        self._list_of_bad.close()

    def _write_losses(self) -> None:
        self._losses.add(self._new_losses)
        self._new_losses = b""

    def _judge_next(self) -> None:
        step, pair, _ = self._coming.popleft()
        loss, grad_norm = pair.tolist()
        self._new_losses += np.float32(loss).astype("<f4").tobytes()
        if step == self._changes_after + 1:
            self._recent.clear()
        if not (math.isfinite(loss) and math.isfinite(grad_norm)):
            self._skipped.add(step)
            self._list(
                step, {"update": "skipped", "loss": loss, "grad_norm": grad_norm}, "bad_step"
            )
            self._stop_after(step)
            return
        median, deviations = self._above(loss)
        if self._spike and deviations > self._spike:
            self._spikes += 1
            figures = {"update": "made", "loss": loss, "grad_norm": grad_norm}
            self._list(step, {**figures, "median": median, "deviations": deviations}, "loss_spike")
        self._recent.append(loss)

    def _above(self, loss: float) -> tuple[float, float]:
        """The median of the recent losses, and how many robust deviations this one lies above it.

        The deviation is 1.4826 times the median absolute deviation, which is a normal
        distribution's standard deviation, and at least 1 % of the median: equal losses make no
        spike of the first different one.
        """
        if len(self._recent) < ENOUGH:
            return 0.0, 0.0
        recent = np.array(self._recent)
        median = float(np.median(recent))
        deviation = max(
            1.4826 * float(np.median(np.abs(recent - median))), 0.01 * abs(median), 1e-12
        )
        return median, (loss - median) / deviation

    def _list(self, step: int, figures: dict[str, Any], kind: str) -> None:
        line = {"step": step, **figures, "samples": self._samples(step - 1)}
        self._list_of_bad.add((json.dumps(to_json(line), allow_nan=False) + "\n").encode())
        self._meter.note(step, kind, {**figures, "listed": self.path.name})

    def _stop_after(self, step: int) -> None:
        row = 1
        while step - row in self._skipped:
            row += 1
        if row < self._max_in_a_row:
            return
        good = self._last_good()
        raise DivergedError(
            f"step {step}: loss or gradient not finite for {row} steps in a row",
            rule=f"a run continues over fewer than max_bad_steps={self._max_in_a_row}; their "
            f"samples: {self.path}",
            remedy=(
                f"go on from {good} in another folder (--policy.path)" if good else "start again"
            )
            + " with a lower --optimizer.lr or without the episodes listed "
            "(--dataset.exclude_episodes)",
        )


def _cut_losses(path: Path, first_step: int) -> np.ndarray:
    """The file's losses up to `first_step`, filled up with NaN where it is shorter; the file is
    cut to them.
    """
    found = np.fromfile(path, dtype="<f4") if path.exists() else np.empty(0, dtype="<f4")
    kept = np.full(first_step, np.nan, dtype="<f4")
    kept[: len(found)] = found[:first_step]
    kept.tofile(path)
    return kept
