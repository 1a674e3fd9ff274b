"""The parts of a run at work: readers, feed, meter, and what is done between two steps."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from kata.config import encode
from kata.data import Batches, Dataset, Order, Reader, anchor_rows
from kata.data.framecache import CacheOptions, FrameCache
from kata.data.order import Anchors
from kata.data.shuffle import make_order
from kata.policies.base import Policy
from kata.run import Run
from kata.spec import ACTION
from kata.train.beside import Beside
from kata.train.checkpoint import Saver
from kata.train.feed import Feed
from kata.train.loop import Chore
from kata.train.meter import Meter, read_metrics
from kata.train.prepare import Prepared, shuffle_of
from kata.train.progress import Progress
from kata.train.state import TrainState
from kata.train.trackers import TrackedRun, Tracker, open_trackers
from kata.train.validate import Validator, mean_action, spread_rows
from kata.units import num_bytes


@dataclass
class Best:
    """The best validation so far, also across restarts."""

    figures: dict[str, Any] | None = None


@dataclass(frozen=True)
class Job:
    """What the loop needs. chores: (every, work). view_*: what the report's samples are read with."""

    feed: Feed
    meter: Meter
    chores: list[tuple[int, Chore]]
    best: Best
    view_feed: Feed
    view_reader: Reader


def open_job(live: ExitStack, prepared: Prepared, saver: Saver, state: TrainState, folder: Path) -> Job:
    """Open all parts; `live` closes them. The work between steps comes in this order: validate, save, evaluate."""
    run = prepared.run
    cache = _frame_cache(live, prepared)
    reader = live.enter_context(_reader(prepared, prepared.dataset, cache, prepared.frame_memory))
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
    best = Best()
    chores: list[tuple[int, Chore]] = []
    view_feed, view_reader = replace(feed, augment=None), reader
    if prepared.held_out is not None:
        view_reader = live.enter_context(_reader(prepared, prepared.held_out, cache))
        validator, view_feed = _validator(live, prepared, prepared.held_out, view_reader)
        best.figures = _best_before(folder, state.step)
        every = run.eval_steps or run.save_freq
        chores.append((every, _validation(run, validator, saver, meter, best)))
    if run.save_checkpoint:
        chores.append((run.save_freq, _saving(saver, meter)))
    if run.env is not None:
        beside = live.enter_context(Beside(run, folder, saver, meter))
        chores += _evaluation(run, beside, state)
    return Job(feed, meter, chores, best, view_feed, view_reader)


def _frame_cache(live: ExitStack, prepared: Prepared) -> FrameCache | None:
    """One for all readers: held-out episodes are rows of the same dataset."""
    wanted = prepared.run.dataset
    if wanted.cache == "none" or not prepared.cameras:
        return None
    folder = None if wanted.cache_dir is None else Path(wanted.cache_dir).expanduser()
    budget = None if wanted.cache_size is None else int(num_bytes(wanted.cache_size))
    return live.enter_context(
        FrameCache(prepared.dataset, prepared.cameras, CacheOptions(wanted.cache, folder, budget))
    )


def _reader(prepared: Prepared, dataset: Dataset, cache: FrameCache | None, frame_memory: int = 0) -> Reader:
    threads, keys = prepared.run.num_workers, prepared.keys
    return Reader(dataset, prepared.windows, threads=threads, keys=keys, cache=cache, frame_memory=frame_memory)


def _feed(
    live: ExitStack, prepared: Prepared, reader: Reader, rows: np.ndarray, size: int, purpose: str, ahead: int
) -> Feed:
    run = prepared.run
    order = _order(prepared, rows) if purpose == "train" else Order(len(rows), run.seed, shuffle=False)
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
        augment=prepared.augment if purpose == "train" else None,
    )


def _order(prepared: Prepared, rows: np.ndarray) -> Anchors:
    shuffle = shuffle_of(prepared.run.dataset)
    return make_order(shuffle, prepared.dataset, prepared.windows, prepared.cameras, rows, prepared.run.seed)


def _validator(live: ExitStack, prepared: Prepared, held: Dataset, reader: Reader) -> tuple[Validator, Feed]:
    run = prepared.run
    rows = spread_rows(anchor_rows(held, run.policy.drop_last_frames()), run.max_eval_samples)
    feed = _feed(live, prepared, reader, rows, min(run.batch_size, len(rows)), "validate", 1)
    action_dim = run.policy.action.shape[0]
    names = prepared.dataset.columns[ACTION].names or tuple(f"{ACTION}[{i}]" for i in range(action_dim))
    mean = mean_action(prepared.before, prepared.stats, prepared.device)
    return Validator(feed, len(rows), run.precision, mean, names), feed


def judged(run: Run, state: TrainState) -> Policy:
    """The weights that are evaluated."""
    return state.ema if state.ema is not None and run.ema.use_for_eval else state.policy


def _validation(run: Run, validator: Validator, saver: Saver, meter: Meter, best: Best) -> Chore:
    def validate(state: TrainState) -> None:
        policy = judged(run, state)
        figures = validator(policy)
        meter.note(state.step, "validation", figures)
        if best.figures is None or figures["action_error"] < best.figures["action_error"]:
            best.figures = {"step": state.step, **figures}
            if run.save_checkpoint:
                kept = saver.save_best(policy, state.step, figures)
                best.figures["checkpoint"] = str(kept)

    return validate


def _evaluation(run: Run, beside: Beside, state: TrainState) -> list[tuple[int, Chore]]:
    """Start evaluations when they fall due, and bring results home at the pace of the log."""
    if run.env_eval_at_start and state.step == 0:
        beside.start(judged(run, state), 0)

    def start(state: TrainState) -> None:
        if state.step == run.steps:
            beside.collect(wait=True)
        beside.start(judged(run, state), state.step)
        beside.collect(wait=state.step == run.steps)

    return [(run.env_eval_freq, start), (run.log_freq, lambda _: beside.collect())]


def _saving(saver: Saver, meter: Meter) -> Chore:
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
