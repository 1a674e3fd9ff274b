"""Meter: what a run measures, kept on the device until it logs and then written once to every
place.

    add (each step, no wait) -> flush (log interval: one transfer) -> metrics.jsonl -> progress
    line, trackers note (validation, checkpoints, evaluation) -------------------^

metrics.jsonl is the record; trackers and the progress line are copies of it.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from kata.closing import Closing
from kata.data.counters import ReadCounters
from kata.errors import DataError
from kata.train.metrics.append_log import AppendLog
from kata.train.metrics.bottleneck import Spent, diagnose
from kata.train.metrics.pauses import Pauses
from kata.train.metrics.progress import Progress
from kata.train.metrics.trackers import Tracker
from kata.train.model.device import computes_beside

RATE_INTERVALS = 50  # log intervals whose median step time stands for the present rate


_NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


_RESERVED = {
    "kind",
    "step",
    "epoch",
    "samples",
    "grad_norm",
    "grad_norm_max",
    "lr",
    "eta_s",
    "time",
}


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Host seconds of one step: waiting for the batch, preparing it, updating, and the whole
    step.
    """

    dataloading_s: float
    preprocessing_s: float
    update_s: float
    step_s: float


class Meter(Closing):
    """Collects figures per step without waiting for the device, and writes one line per log
    interval.

    Args:
        path: the metrics.jsonl to write; its folder must exist.
        batch_size: samples of one step over all ranks. num_frames: frames of one epoch.
        steps: steps of the whole run.
        first_step: steps already done when this run was resumed; lines of later steps are dropped
            from the file, so that a resumed run leaves the same lines as a straight one.
        seen: Maps a number of samples to the samples of each dataset of a mixture among the first
            ones; None for one dataset.
    """

    def __init__(
        self,
        path: Path,
        *,
        batch_size: int,
        num_frames: int,
        steps: int,
        trackers: Sequence[Tracker] = (),
        progress: Progress | None = None,
        first_step: int = 0,
        seen: Callable[[int], Mapping[str, int]] | None = None,
    ) -> None:
        self.path, self._seen = path, seen
        self._batch_size = batch_size
        self._num_frames = num_frames
        self._steps = steps
        self._trackers, self._progress = trackers, progress
        drop_lines_after(path, first_step)
        path.touch()
        self._record = AppendLog(path)
        self._step = first_step
        self._names: list[str] = []
        self._tensors: list[Tensor] = []
        self._times: list[StepTimes] = []
        self._lr = 0.0
        self._rates: deque[float] = deque(maxlen=RATE_INTERVALS)
        self._pauses: Pauses[Any] = Pauses(steps)
        self._flushed_s: float | None = None
        self._work: Callable[[], ReadCounters] = ReadCounters
        self._threads = 1
        self._work_before = ReadCounters()
        self._starting = 0

    def count_reads(
        self,
        work: Callable[[], ReadCounters],
        *,
        threads: int,
        pauses: Pauses[Any] | None = None,
    ) -> None:
        """Set the source of the reader's seconds, for the diagnosis, and of the pauses between
        steps.
        """
        self._work, self._threads = work, threads
        self._pauses = self._pauses if pauses is None else pauses

    def add(
        self,
        step: int,
        *,
        losses: Mapping[str, Tensor],
        grad_norm: Tensor,
        lr: float,
        times: StepTimes,
    ) -> None:
        """Takes the figures of one step (`step` counts updates done, from 1); the device is not
        waited for.

        losses: device scalars, already divided by their denominators; `loss` is the total that is
            trained on.
            `<group>/<name>` goes into a mapping of that group.
        """
        assert step == self._step + 1, f"step {step} after {self._step}"
        assert not _RESERVED.intersection(losses), f"reserved names among {sorted(losses)}"
        if self._flushed_s is None:
            self._flushed_s = time.perf_counter() - times.step_s
            # The first step opens files, fills the read-ahead and compiles: it says nothing about
            # the others.
            self._starting, self._work_before = 1, self._work()
        self._step, self._lr = step, lr
        self._names += [*losses, "grad_norm"]
        self._tensors += [value.detach() for value in losses.values()]
        self._tensors.append(grad_norm.detach())
        self._times.append(times)
        if self._progress is not None:
            self._progress.advance(step)

    def flush(self, step: int) -> dict[str, Any] | None:
        """Writes the averages since the last flush; waits for the device, and only here.

        The wait is device work that the host ran ahead of, so it is counted as time of the update.
        Returns the line, or None when no step was added.
        """
        assert step == self._step, f"flush at {step}, last step was {self._step}"
        if not self._times:
            return None
        began_s = time.perf_counter()
        figures = self._read_figures()
        waited_s = time.perf_counter() - began_s
        line = {
            **self._head("train", step),
            **_grouped(figures),
            **self._time_figures(step, waited_s),
        }
        if self._seen is not None:
            line["samples_by_dataset"] = dict(self._seen(step * self._batch_size))
        line["memory_bytes"] = _peak_memory_bytes(self._tensors[0].device)
        line |= self._diagnosis(waited_s)
        self._names = []
        self._tensors = []
        self._times = []
        self._write(line)
        if self._progress is not None:
            self._progress.show(line)
        return line

    def note(self, step: int, kind: str, values: Mapping[str, Any]) -> None:
        """Writes a line of another kind: `validation`, `checkpoint`, `evaluation` in an
        environment.

        values: plain numbers and texts by name; a mapping inside holds one number per task or per
            action.
        """
        assert kind != "train", "train lines come from flush"
        line = {**self._head(kind, step), **values}
        self._write(line)
        if self._progress is not None:
            self._progress.say(step, kind, values)

    def close(self) -> None:
        """Ends the progress line, the trackers and the file; figures not yet flushed are
        dropped.
        """
        if self._progress is not None:
            self._progress.close()
        for tracker in self._trackers:
            tracker.close()
        self._record.close()

    def _head(self, kind: str, step: int) -> dict[str, Any]:
        samples = step * self._batch_size
        return {"kind": kind, "step": step, "epoch": samples / self._num_frames, "samples": samples}

    def _read_figures(self) -> dict[str, float]:
        """Means by name, in the order in which names first came.

        Steps that are not finite, and so were not taken, are left out unless there is no other.
        """
        values = torch.stack([t.float() for t in self._tensors]).tolist()
        steps: list[dict[str, float]] = [{}]
        for name, value in zip(self._names, values, strict=True):
            steps[-1][name] = value
            if name == "grad_norm":  # the last of a step
                steps.append({})
        steps.pop()
        by_name: dict[str, list[float]] = {}
        for step in [s for s in steps if all(map(math.isfinite, s.values()))] or steps:
            for name, value in step.items():
                by_name.setdefault(name, []).append(value)
        figures = {name: sum(found) / len(found) for name, found in by_name.items()}
        norms = by_name["grad_norm"]
        figures["grad_norm_max"] = math.nan if any(map(math.isnan, norms)) else max(norms)
        return figures

    def _time_figures(self, step: int, waited_s: float) -> dict[str, float]:
        count = len(self._times)
        data_s = sum(t.dataloading_s for t in self._times)
        update_s = sum(t.update_s for t in self._times) + waited_s
        total_s = max(sum(t.step_s for t in self._times) + waited_s, 1e-9)
        self._rates.append(total_s / count)
        return {
            "lr": self._lr,
            "dataloading_s": data_s / count,
            "preprocessing_s": sum(t.preprocessing_s for t in self._times) / count,
            "update_s": update_s / count,
            "step_s": total_s / count,
            "samples_per_s": self._batch_size * count / total_s,
            "data_wait_share": data_s / total_s,
            "eta_s": self._eta_s(step),
        }

    def _diagnosis(self, waited_s: float) -> dict[str, Any]:
        """Return the time spent in the interval by cause, and the stage that limited it."""
        times, now = self._times[self._starting :], self._work()
        done = now.since(self._work_before)
        self._starting, self._work_before = 0, now
        assert self._flushed_s is not None
        now_s = time.perf_counter()
        busy_s = sum(t.step_s for t in self._times) + waited_s
        pause_s, self._flushed_s = max(0.0, now_s - self._flushed_s - busy_s), now_s
        spent = Spent(
            steps=len(times),
            total_s=sum(t.step_s for t in times) + waited_s,
            wait_s=sum(t.dataloading_s for t in times),
            copy_s=sum(t.preprocessing_s for t in times),
            update_s=sum(t.update_s for t in times),
            drain_s=waited_s,
            flushes=1,
            read_s=done.read_s,
            decode_s=done.decode_s,
            convert_s=done.convert_s,
            store_wait_s=done.store_wait_s,
            requests=done.requests,
            request_s=done.request_s,
            bytes_fetched=done.bytes_fetched,
            pause_s=pause_s,
            threads=self._threads,
            beside=computes_beside(self._tensors[0].device),
        )
        found = diagnose(spent)
        return {"spent": asdict(spent)} | ({} if found is None else {"bound_by": found.stage.value})

    def _eta_s(self, step: int) -> float:
        """Return the seconds of the steps left and of the pauses that are still due.

        The median of the recent intervals keeps a compiling first step or one slow disk out.
        """
        step_s = median(self._rates)
        return (self._steps - step) * step_s + self._pauses.left_s(step, step_s)

    def _write(self, line: dict[str, Any]) -> None:
        line["time"] = time.time()
        self._record.add((json.dumps(to_json(line), allow_nan=False) + "\n").encode())
        if self._trackers:
            numbers = _numbers(line, f"{line['kind']}/")
            for tracker in self._trackers:
                tracker.log(numbers, line["step"])


def _grouped(figures: Mapping[str, float]) -> dict[str, Any]:
    """{'a': 1, 'b/x': 2, 'b/y': 3} as {'a': 1, 'b': {'x': 2, 'y': 3}}."""
    grouped: dict[str, Any] = {}
    for name, value in figures.items():
        group, _, inner = name.partition("/")
        if inner:
            grouped.setdefault(group, {})[inner] = value
        else:
            grouped[name] = value
    return grouped


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics.jsonl with non-finite numbers restored; a half-written last line is
    left out.

    Raises:
        DataError: a line before the last is not JSON.
    """
    return [_from_json(line) for _, line in _parsed_lines(path)]


def _parsed_lines(path: Path) -> list[tuple[bytes, dict[str, Any]]]:
    """Raw and parsed lines. A line counts as whole once its newline is there."""
    whole = path.read_bytes().split(b"\n")[:-1]
    lines: list[tuple[bytes, dict[str, Any]]] = []
    for number, raw in enumerate(whole, start=1):
        try:
            lines.append((raw, json.loads(raw)))
        except ValueError as error:
            raise DataError(
                f"{path}, line {number}: {raw[:60]!r}",
                rule="each line of metrics.jsonl is one JSON object",
                remedy="delete that line (the other lines stand on their own)",
            ) from error
    return lines


def drop_lines_after(path: Path, first_step: int, updates: int | None = None) -> None:
    """Rewrites a file of JSON lines with those up to `first_step`; a run from step 0 begins with
    an empty file.

    updates: lines that name more updates go, too. Where a step has many updates, a checkpoint may
        lie between them.
    """
    if not path.exists():
        return
    lines = _parsed_lines(path) if first_step else []
    if updates is not None:
        lines = [(raw, line) for raw, line in lines if line.get("updates", 0) <= updates]
    kept = b"".join(raw + b"\n" for raw, line in lines if line["step"] <= first_step)
    beside = path.with_name(path.name + ".new")
    beside.write_bytes(kept)
    os.replace(beside, path)


def to_json(value: Any) -> Any:
    """The value with non-finite numbers as text: JSON has no word for them."""
    if isinstance(value, Mapping):
        return {str(key): to_json(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(float(value))
    return value


def _from_json(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _from_json(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_from_json(each) for each in value]
    return _NON_FINITE.get(value, value) if isinstance(value, str) else value


def _numbers(line: Mapping[str, Any], prefix: str) -> dict[str, float]:
    """Every number of a line by its path, as trackers want it: {"validation/loss": 0.1}."""
    numbers: dict[str, float] = {}
    for key, value in line.items():
        if isinstance(value, Mapping):
            numbers |= _numbers(value, f"{prefix}{key}/")
        elif isinstance(value, int | float) and key not in {"step", "time"}:
            numbers[f"{prefix}{key}"] = value
    return numbers


def _peak_memory_bytes(device: torch.device) -> int | None:
    """Peak memory of tensors on the device; of the process on a CPU; None where the system does
    not tell.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if device.type == "mps":
        return torch.mps.driver_allocated_memory()
    if sys.platform == "win32":
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


class NullMeter:
    """Stands in the loop for the meter and for the watch over bad steps; the figures are the
    same on every rank.
    """

    def add(self, step: int, *figures: Any, **named: Any) -> None:
        """Takes a step's figures."""

    def flush(self, step: int) -> None:
        """The log is rank 0's."""

    def settle(self) -> None:
        """Nothing is judged here."""

    def note(self, step: int, kind: str, figures: dict[str, Any]) -> None:
        """Takes a line of the log."""
