"""`kata train`: everything is opened and checked, then the loop runs, then the report is written."""

from __future__ import annotations

import datetime
import os
import shutil
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from kata.config import encode
from kata.errors import CheckpointError
from kata.run import Run
from kata.train import preflight
from kata.train.beside import newest_strips
from kata.train.checkpoint import Saver, check_space, checkpoint_bytes, write_json
from kata.train.device import set_switches
from kata.train.guard import Guard
from kata.train.job import judged, open_job
from kata.train.loop import loop
from kata.train.meter import Meter, read_metrics
from kata.train.prepare import prepare
from kata.train.report import Report, write_report
from kata.train.samples import sample_views
from kata.train.state import TrainState, build_state


@dataclass(frozen=True)
class Trained:
    """What a finished run leaves.

    best: figures of the best validation with `step` and `checkpoint`, or None. evaluations: figures by step.
    stopped: why the run ended before its last step, or None.
    """

    folder: Path
    report: Path
    last: dict[str, Any]
    best: dict[str, Any] | None
    evaluations: dict[int, dict[str, Any]]
    stopped: str | None
    state: TrainState


def train(run: Run, *, notes: list[str] | None = None, command: str = "", console: Console | None = None) -> Trained:
    """Train to the last step. Everything that can be wrong with options and data is found before step 1.

    Raises KataError (see kata.errors) and leaves nothing half-written.
    """
    folder = run_folder(run)
    prepared = prepare(run)
    run = prepared.run
    set_switches(tf32=run.tf32, deterministic=run.cudnn_deterministic)
    saver = Saver(folder, run, prepared.before, prepared.after)
    source = saver.newest() if run.resume else None
    state = build_state(run, prepared.device, weights_follow=source is not None)
    if source is not None:
        saver.restore(state, source)
    size = checkpoint_bytes(state.policy, run)
    facts = preflight.facts(prepared, state.policy, str(folder), size)
    said = [*(notes or []), *prepared.notes, *_resume_note(run, source)]
    preflight.show(console or Console(), facts, said)
    with ExitStack() as live:
        _begin(live, folder, run, state, size)
        job = open_job(live, prepared, saver, state, folder)
        guard = live.enter_context(Guard(run.max_time_s))
        loop(run, state, job.feed, job.meter, job.chores, guard)
        if state.step < run.steps:
            _save_and_stop(run, state, saver, job.meter)
        views = sample_views(
            judged(run, state), job.view_feed, job.view_reader, prepared.after, prepared.held_out or prepared.dataset
        )
    metrics = read_metrics(folder / "metrics.jsonl")
    best = job.best.figures
    report = Report(
        title=f"{run.name} on {run.dataset.repo_id}",
        facts=facts,
        metrics=metrics,
        samples=views,
        strips=newest_strips(folder),
        notes=said,
        command=command,
        best={name: best[name] for name in ("step", "checkpoint", "action_error") if name in best} if best else None,
        baseline={"action_error": best["mean_action_error"]} if best else {},
    )
    write_report(folder / "report.html", report)
    last = next((line for line in reversed(metrics) if line["kind"] == "train"), {})
    evaluations = {line["step"]: line for line in metrics if line["kind"] == "evaluation" and "note" not in line}
    stopped = guard.reason if state.step < run.steps else None
    return Trained(folder, folder / "report.html", last, best, evaluations, stopped, state)


def _save_and_stop(run: Run, state: TrainState, saver: Saver, meter: Meter) -> None:
    """The checkpoint of a run that is asked to stop, unless this very step has one already."""
    newest = saver.newest()
    if run.save_checkpoint and state.step > 0 and (newest is None or int(newest.name) < state.step):
        meter.flush(state.step)
        meter.note(state.step, "checkpoint", {"path": str(saver.save(state))})


def _begin(live: ExitStack, folder: Path, run: Run, state: TrainState, size: int) -> None:
    """Make the run folder and write the resolved config; a new folder goes again if no step is ever done."""
    first_step, new = state.step, not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)

    def undo() -> None:
        if new and state.step == first_step < run.steps:
            shutil.rmtree(folder)

    live.callback(undo)
    if run.save_checkpoint:
        check_space(folder, size)
    write_json(folder / "train_config.json", encode(run))


def run_folder(run: Run) -> Path:
    """Where the run writes; CheckpointError when it exists already or cannot be written."""
    now = datetime.datetime.now()
    default = f"outputs/train/{now:%Y-%m-%d}/{now:%H-%M-%S}_{run.name}"
    folder = Path(run.output_dir or default).expanduser()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())) and not run.resume:
        raise CheckpointError(
            f"output_dir={folder}: exists already",
            rule="a new run gets a folder of its own",
            remedy="add --resume=true to continue the run in it, or choose another --output_dir",
        )
    above = folder
    while not above.exists():
        above = above.parent
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        raise CheckpointError(
            f"output_dir={folder}: cannot be written",
            rule=f"{above} must be a folder that you may write to",
            remedy="choose another --output_dir, or change its permissions",
        )
    return folder


def _resume_note(run: Run, restored: Path | None) -> list[str]:
    if not run.resume:
        return []
    if restored is None:
        return ["no checkpoint in the run folder yet: starting from step 0"]
    return [f"continuing from {restored}"]
