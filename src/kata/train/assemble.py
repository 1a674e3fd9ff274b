"""`kata train`: everything is opened and checked, then the loop runs, then the report is written."""

from __future__ import annotations

import datetime
import os
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from kata.config import encode
from kata.data import Batches, Dataset, Order, Reader, anchor_rows
from kata.errors import CheckpointError
from kata.policies.base import Policy
from kata.run import Run
from kata.spec import ACTION
from kata.train import preflight
from kata.train.checkpoint import Saver, check_space, checkpoint_bytes, write_json
from kata.train.device import set_switches
from kata.train.feed import Feed
from kata.train.loop import Chore, loop
from kata.train.meter import Meter, read_metrics
from kata.train.prepare import Prepared, prepare
from kata.train.progress import Progress
from kata.train.report import Report, write_report
from kata.train.samples import sample_views
from kata.train.state import TrainState, build_state
from kata.train.trackers import TrackedRun, Tracker, open_trackers
from kata.train.validate import Validator, mean_action, spread_rows


@dataclass(frozen=True)
class Trained:
    """What a finished run leaves. best: figures of the best validation with `step` and `checkpoint`, or None."""

    folder: Path
    report: Path
    last: dict[str, Any]
    best: dict[str, Any] | None
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
        job = _open(live, prepared, saver, state, folder)
        loop(run, state, job.feed, job.meter, job.chores)
        views = sample_views(
            _judged(run, state), job.view_feed, job.view_reader, prepared.after, prepared.held_out or prepared.dataset
        )
    metrics = read_metrics(folder / "metrics.jsonl")
    best = job.best.figures
    report = Report(
        title=f"{run.name} on {run.dataset.repo_id}",
        facts=facts,
        metrics=metrics,
        samples=views,
        notes=said,
        command=command,
        best={name: best[name] for name in ("step", "checkpoint", "action_error") if name in best} if best else None,
        baseline={"action_error": best["mean_action_error"]} if best else {},
    )
    write_report(folder / "report.html", report)
    last = [line for line in metrics if line["kind"] == "train"][-1]
    return Trained(folder, folder / "report.html", last, best, state)


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


@dataclass
class _Best:
    """The best validation so far, also across restarts."""

    figures: dict[str, Any] | None = None


@dataclass(frozen=True)
class _Job:
    feed: Feed
    meter: Meter
    chores: list[tuple[int, Chore]]
    best: _Best
    view_feed: Feed
    view_reader: Reader


def _open(live: ExitStack, prepared: Prepared, saver: Saver, state: TrainState, folder: Path) -> _Job:
    run = prepared.run
    reader = live.enter_context(_reader(prepared, prepared.dataset))
    feed = _feed(live, prepared, reader, prepared.rows, run.effective_batch, "train", run.prefetch_factor)
    meter = live.enter_context(
        Meter(
            folder / "metrics.jsonl",
            batch_size=run.effective_batch,
            num_frames=len(prepared.rows),
            steps=run.steps,
            trackers=_trackers(run, folder, state.step),
            progress=Progress(run.steps),
            first_step=state.step,
        )
    )
    best = _Best()
    chores: list[tuple[int, Chore]] = []
    view_feed, view_reader = feed, reader
    if prepared.held_out is not None:
        view_reader = live.enter_context(_reader(prepared, prepared.held_out))
        validator, view_feed = _validator(live, prepared, prepared.held_out, view_reader)
        best.figures = _best_before(folder, state.step)
        every = run.eval_steps or run.save_freq
        chores.append((every, _validation(run, validator, saver, meter, best)))
    if run.save_checkpoint:
        chores.append((run.save_freq, _saving(saver, meter)))
    return _Job(feed, meter, chores, best, view_feed, view_reader)


def _reader(prepared: Prepared, dataset: Dataset) -> Reader:
    return Reader(dataset, prepared.windows, threads=prepared.run.num_workers, keys=prepared.keys)


def _feed(
    live: ExitStack, prepared: Prepared, reader: Reader, rows: np.ndarray, size: int, purpose: str, ahead: int
) -> Feed:
    run = prepared.run
    order = Order(len(rows), run.seed, shuffle=purpose == "train")
    return Feed(
        batches=live.enter_context(Batches(reader, rows, order, size, ahead=ahead)),
        config=run.policy,
        preprocess=prepared.before,
        device=prepared.device,
        micro_size=run.batch_size,
        seed=run.seed,
        cameras=prepared.cameras,
        purpose=purpose,
        windows=tuple(prepared.windows),
    )


def _validator(live: ExitStack, prepared: Prepared, held: Dataset, reader: Reader) -> tuple[Validator, Feed]:
    run = prepared.run
    rows = spread_rows(anchor_rows(held, run.policy.drop_last_frames()), run.max_eval_samples)
    feed = _feed(live, prepared, reader, rows, min(run.batch_size, len(rows)), "validate", 1)
    action_dim = run.policy.action.shape[0]
    names = prepared.dataset.columns[ACTION].names or tuple(f"{ACTION}[{i}]" for i in range(action_dim))
    mean = mean_action(prepared.before, prepared.stats, prepared.device)
    return Validator(feed, len(rows), run.precision, mean, names), feed


def _judged(run: Run, state: TrainState) -> Policy:
    """The weights that are evaluated."""
    return state.ema if state.ema is not None and run.ema.use_for_eval else state.policy


def _validation(
    run: Run, validator: Validator, saver: Saver, meter: Meter, best: _Best
) -> Callable[[TrainState], None]:
    def validate(state: TrainState) -> None:
        policy = _judged(run, state)
        figures = validator(policy)
        meter.note(state.step, "validation", figures)
        if best.figures is None or figures["action_error"] < best.figures["action_error"]:
            best.figures = {"step": state.step, **figures}
            if run.save_checkpoint:
                kept = saver.save_best(policy, state.step, figures)
                best.figures["checkpoint"] = str(kept)

    return validate


def _saving(saver: Saver, meter: Meter) -> Callable[[TrainState], None]:
    def save(state: TrainState) -> None:
        target = saver.save(state)
        meter.note(state.step, "checkpoint", {"path": str(target)})

    return save


def _best_before(folder: Path, step: int) -> dict[str, Any] | None:
    """The best validation up to `step` in the record of a resumed run."""
    if step == 0 or not (folder / "metrics.jsonl").is_file():
        return None
    lines = [x for x in read_metrics(folder / "metrics.jsonl") if x["kind"] == "validation" and x["step"] <= step]
    if not lines:
        return None
    line = min(lines, key=lambda x: x["action_error"])
    figures = {name: value for name, value in line.items() if name not in ("kind", "epoch", "samples", "time")}
    return {**figures, "checkpoint": str(folder / "checkpoints" / "best")}


def _trackers(run: Run, folder: Path, resumed_at: int) -> list[Tracker]:
    asked = {"wandb": run.wandb.enable, "tensorboard": run.tensorboard.enable, "trackio": run.trackio.enable}
    kinds = [kind for kind, enabled in asked.items() if enabled]
    w = run.wandb
    tracked = TrackedRun(
        project=w.project if w.enable else run.trackio.project,
        name=run.name,
        folder=folder,
        config=encode(run),
        resumed_at=resumed_at,
        entity=w.entity,
        notes=w.notes,
        tags=(run.policy.type, run.dataset.repo_id) if w.add_tags else (),
        run_id=w.run_id,
        mode=w.mode,
    )
    return open_trackers(kinds, tracked)


def _resume_note(run: Run, restored: Path | None) -> list[str]:
    if not run.resume:
        return []
    if restored is None:
        return ["no checkpoint in the run folder yet: starting from step 0"]
    return [f"continuing from {restored}"]
