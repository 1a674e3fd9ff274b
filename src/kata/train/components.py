"""The parts of a run at work: readers, feed, meter, and what is done between two steps."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kata.config import encode
from kata.data import Batches, Order, Reader, anchor_rows
from kata.data.dataset.mixture import Mixture, vector_names
from kata.data.frames.frame_cache import FrameCache
from kata.data.loader.batches import RankSlice
from kata.data.loader.provenance import step_locations
from kata.dist.engine import Engine
from kata.dist.process_group import ProcessGroup
from kata.policies.base import Policy
from kata.run import Run
from kata.spec import ACTION
from kata.train.checkpoint.async_save import AsyncSaver
from kata.train.checkpoint.folder import checkpoints, home_of
from kata.train.checkpoint.retention import Keep
from kata.train.checkpoint.saver import Saver, last_finite
from kata.train.evaluation.env_eval import AsyncEnvEval
from kata.train.evaluation.validation import Validator, mean_actions, spread_rows
from kata.train.input.feed import Feed, pinned
from kata.train.input.frame_caches import frame_caches
from kata.train.input.nvdec import gpu_decoder
from kata.train.input.prepare import Prepared, order_of
from kata.train.loop import Callback
from kata.train.metrics.bad_frames import BadFrames
from kata.train.metrics.bad_steps import BadStepMonitor
from kata.train.metrics.meter import Meter, NullMeter, read_metrics
from kata.train.metrics.pauses import Pauses
from kata.train.metrics.progress import Progress
from kata.train.metrics.trackers import TrackedRun, Tracker, open_trackers
from kata.train.model.state import TrainState
from kata.train.stopping import StopSignal

_log = logging.getLogger(__name__)


@dataclass
class BestValidation:
    """The best validation so far, also across restarts."""

    figures: dict[str, Any] | None = None

    def back_to(self, before: dict[str, Any] | None) -> None:
        """The best weights could not be saved: what is on the disk is the best that there is."""
        self.figures = before


@dataclass(frozen=True)
class RunRecord:
    """What rank 0 keeps of a run."""

    meter: Meter
    monitor: BadStepMonitor
    bad_frames: BadFrames
    best: BestValidation

    def remarks(self) -> list[str]:
        """What the user should know at the end."""
        return [*self.monitor.remarks(), *self.bad_frames.remarks()]


@dataclass(frozen=True)
class Job:
    """The parts that the loop needs.

    callbacks: (every, work). view_feed: makes batches for the report. record: rank 0's.
    """

    feed: Feed
    callbacks: list[tuple[int, Callback]]
    saving: AsyncSaver
    view_feed: Feed
    record: RunRecord | None

    @property
    def meter(self) -> Meter | NullMeter:
        """What takes the figures of a step."""
        return NullMeter() if self.record is None else self.record.meter

    @property
    def monitor(self) -> BadStepMonitor | NullMeter:
        """What judges them."""
        return NullMeter() if self.record is None else self.record.monitor


def open_job(
    live: ExitStack,
    prepared: Prepared,
    saver: Saver,
    state: TrainState,
    folder: Path,
    stop_signal: StopSignal,
    engine: Engine,
) -> Job:
    """Open all parts; `live` closes them. The work between steps comes in this order: validate,
    save, evaluate.
    """
    run, group = prepared.run, engine.group
    caches = frame_caches(
        live, run.dataset, prepared.dataset, prepared.cameras, prepared.frame_format
    )
    reader = live.enter_context(
        open_reader(prepared, prepared.dataset, caches, prepared.frame_memory)
    )
    pauses: Pauses[TrainState] = Pauses(run.steps)
    meter = _meter(live, prepared, state, folder, reader, pauses) if group.world.is_first else None
    bad_frames = BadFrames(folder, meter or NullMeter(), state, run, group.world)
    live.callback(bad_frames.close)
    feed = train_feed(live, prepared, reader, group, bad_frames)
    saving = AsyncSaver(
        home_of(folder), saver, meter or NullMeter(), Keep.of(run), engine, state.step or None
    )
    live.enter_context(saving)
    record = (
        None if meter is None else _record(live, prepared, state, folder, feed, meter, bad_frames)
    )
    stop_signal.before_steps = saving.check
    callbacks: list[tuple[int, Callback]] = []
    view_feed = replace(feed, augment=None)
    if prepared.val_dataset is not None:
        held_reader = live.enter_context(open_reader(prepared, prepared.val_dataset, caches))
        validator, view_feed = _validator(
            live, prepared, prepared.val_dataset, held_reader, bad_frames, group
        )
        judge = _validation(run, validator, record, saving)
        # A sample is judged in about the time in which one is trained on.
        passes = validator.size / run.effective_batch
        callbacks.append(pauses.timed(run.eval_steps or run.save_freq, judge, like_steps=passes))
    if run.save_checkpoint:
        callbacks.append(pauses.timed(run.save_freq, saving.checkpoint))
    if run.env is not None:
        env_eval = live.enter_context(
            AsyncEnvEval(run, folder, saver, meter or NullMeter(), stop_signal, engine)
        )
        callbacks += [
            pauses.timed(*callback) for callback in _evaluation(run, env_eval, state, engine)
        ]
    return Job(feed, callbacks, saving, view_feed, record)


def _meter(
    live: ExitStack,
    prepared: Prepared,
    state: TrainState,
    folder: Path,
    reader: Reader,
    pauses: Pauses[TrainState],
) -> Meter:
    run = prepared.run
    meter = live.enter_context(
        Meter(
            folder / "metrics.jsonl",
            batch_size=run.effective_batch,
            num_frames=len(prepared.rows),
            steps=run.steps,
            trackers=_trackers(run, folder, state.step),
            progress=Progress(run.steps),
            first_step=state.step,
            seen=_seen(prepared),
        )
    )
    meter.count_reads(reader.work, threads=run.num_workers, pauses=pauses)
    return meter


def _record(
    live: ExitStack,
    prepared: Prepared,
    state: TrainState,
    folder: Path,
    feed: Feed,
    meter: Meter,
    bad_frames: BadFrames,
) -> RunRecord:
    if state.step > 0:
        _complete_record(meter, state.step, home_of(folder))
    monitor = live.enter_context(_bad_step_monitor(prepared, folder, meter, feed, state.step))
    best = BestValidation(
        None if prepared.val_dataset is None else _best_before(folder, state.step)
    )
    return RunRecord(meter, monitor, bad_frames, best)


def _bad_step_monitor(
    prepared: Prepared, folder: Path, meter: Meter, feed: Feed, first_step: int
) -> BadStepMonitor:
    return BadStepMonitor(
        folder,
        meter,
        lambda step: step_locations(prepared.dataset, feed.batches, step),
        max_in_a_row=prepared.run.max_bad_steps,
        spike=prepared.run.loss_spike,
        first_step=first_step,
        last_good=lambda: last_finite(folder / "checkpoints"),
        changes_after=prepared.run.policy.loss_changes_after(),
    )


def open_reader(
    prepared: Prepared, data: Mixture, caches: dict[str, FrameCache], frame_memory: int = 0
) -> Reader:
    """Open a reader of these episodes."""
    reader = Reader(
        data,
        prepared.windows,
        threads=prepared.run.num_workers,
        keys=prepared.keys,
        frame_memory=frame_memory,
        caches=caches,
        frame_format=prepared.frame_format,
        rename_map=prepared.run.rename_map,
    )
    if prepared.nvdec:
        reader.decode_with(gpu_decoder(prepared.device))
    if prepared.device.type == "cuda":
        reader.allocate_with(pinned)
    return reader


def _seen(prepared: Prepared) -> Callable[[int], dict[str, int]] | None:
    """How many of the first samples came from each dataset of a mixture."""
    names = prepared.dataset.labels
    if not names:
        return None
    shares = prepared.dataset.shares(prepared.rows)
    return lambda samples: dict(zip(names, shares.seen(samples), strict=True))


def train_feed(
    live: ExitStack,
    prepared: Prepared,
    reader: Reader,
    group: ProcessGroup,
    bad_frames: BadFrames | None = None,
) -> Feed:
    """Each rank reads its part of a step's samples.

    `bad_frames` says what comes of those that cannot be decoded.
    """
    run, rows, size = prepared.run, prepared.rows, prepared.run.effective_batch
    rank_slice = RankSlice(group.world.rank, group.world.size)
    substitute = None
    if bad_frames is not None:
        read = lambda at: (at // size + 1) * size // rank_slice.of  # noqa: E731
        substitute = bad_frames.substitute("train", prepared.dataset, reader, rows, read)
    batches = Batches(
        reader,
        rows,
        order_of(prepared, rows),
        size,
        ahead=run.prefetch_factor,
        rank_slice=rank_slice,
        substitute=substitute,
    )
    return _feed(prepared, live.enter_context(batches), "train")


def _feed(prepared: Prepared, batches: Batches, purpose: str) -> Feed:
    run = prepared.run
    return Feed(
        batches=batches,
        config=run.policy,
        preprocess=prepared.before,
        device=prepared.device,
        micro_size=run.batch_size,
        seed=run.seed,
        cameras=prepared.cameras,
        purpose=purpose,
        windows=tuple(prepared.windows),
        augment=prepared.augment if purpose == "train" else None,
        colours=prepared.frame_format.colours,
        datasets=prepared.dataset.labels,
        rename_map=run.rename_map,
    )


def _validator(
    live: ExitStack,
    prepared: Prepared,
    held: Mixture,
    reader: Reader,
    bad_frames: BadFrames,
    group: ProcessGroup,
) -> tuple[Validator, Feed]:
    """Each rank validates every so many-th batch."""
    run, rank_slice = prepared.run, RankSlice(group.world.rank, group.world.size)
    rows = spread_rows(anchor_rows(held, run.policy.drop_last_frames()), run.max_eval_samples)
    order, size = (
        Order(len(rows), run.seed, shuffle=False),
        min(run.batch_size, len(rows)) * rank_slice.of,
    )
    substitute = bad_frames.substitute("validate", held, reader, rows, lambda _: len(rows))
    batches = Batches(
        reader, rows, order, size, ahead=1, rank_slice=rank_slice, substitute=substitute
    )
    feed = _feed(prepared, live.enter_context(batches), "validate")
    names = vector_names(prepared.dataset, feed.column(ACTION))
    mean = mean_actions(prepared.normalization.per_dataset, prepared.device)
    return Validator(feed, len(rows), run.precision, mean, names, group), feed


def evaluated_policy(run: Run, state: TrainState) -> Policy:
    """The weights that are evaluated."""
    return state.ema if state.ema is not None and run.ema.use_for_eval else state.policy


def _validation(
    run: Run, validator: Validator, record: RunRecord | None, saving: AsyncSaver
) -> Callback:
    """All ranks judge, rank 0 keeps the figures and the best weights."""

    def note(state: TrainState, figures: dict[str, Any]) -> bool:
        assert record is not None
        record.meter.note(state.step, "validation", figures)
        if not math.isfinite(figures["action_error"]):
            _log.warning("validation at step %d: the action error is not finite", state.step)
            return False
        return (
            record.best.figures is None
            or figures["action_error"] < record.best.figures["action_error"]
        )

    def keep(state: TrainState, figures: dict[str, Any]) -> None:
        best = BestValidation() if record is None else record.best
        before, best.figures = best.figures, {"step": state.step, **figures}
        if run.save_checkpoint:
            kept = saving.best(
                evaluated_policy(run, state), state.step, figures, lambda: best.back_to(before)
            )
            best.figures["checkpoint"] = str(kept)

    def validate(state: TrainState) -> None:
        figures = validator(evaluated_policy(run, state))
        if validator.group.broadcast_from_rank0(lambda: note(state, figures)):
            keep(state, figures)

    return validate


def _evaluation(
    run: Run, env_eval: AsyncEnvEval, state: TrainState, engine: Engine
) -> list[tuple[int, Callback]]:
    """Start evaluations when they fall due, and bring results home at the pace of the log."""

    def evaluate(state: TrainState) -> None:
        last = state.step == run.steps
        if last:
            env_eval.collect(wait=True)
        if engine.group.broadcast_from_rank0(lambda: env_eval.may_start(state.step)):
            env_eval.start(evaluated_policy(run, state), state.step)
        if last:
            env_eval.collect(wait=True)

    if run.env_eval_at_start and state.step == 0:
        evaluate(state)
    collecting: list[tuple[int, Callback]] = [(run.log_freq, lambda _: env_eval.collect())]
    return [(run.env_eval_freq, evaluate), *collecting]


def _complete_record(meter: Meter, step: int, home: Path) -> None:
    """The line of the checkpoint that the run continues from, where the line did not reach the
    disk with it.
    """
    lines = read_metrics(meter.path)
    source = next((path for path in checkpoints(home) if int(path.name) == step), None)
    if source is not None and not any(
        x["kind"] == "checkpoint" and x["step"] == step for x in lines
    ):
        meter.note(step, "checkpoint", {"path": str(source)})


def _best_before(folder: Path, step: int) -> dict[str, Any] | None:
    """The best validation up to `step` in the record of a resumed run."""
    if step == 0 or not (folder / "metrics.jsonl").is_file():
        return None
    lines = [
        x
        for x in read_metrics(folder / "metrics.jsonl")
        if x["kind"] == "validation" and x["step"] <= step and math.isfinite(x["action_error"])
    ]
    if not lines:
        return None
    line = min(lines, key=lambda x: x["action_error"])
    figures = {
        name: value
        for name, value in line.items()
        if name not in ("kind", "epoch", "samples", "time")
    }
    return {**figures, "checkpoint": str(folder / "checkpoints" / "best")}


def _trackers(run: Run, folder: Path, resumed_at: int) -> list[Tracker]:
    asked = {
        "wandb": run.wandb.enable,
        "tensorboard": run.tensorboard.enable,
        "trackio": run.trackio.enable,
    }
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
        tags=(run.policy.type, run.dataset.name) if w.add_tags else (),
        run_id=w.run_id,
        mode=w.mode,
    )
    return open_trackers(kinds, tracked)
