"""The components of a run: reader, feed, record, saving, and the work between two steps."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from kata.config import encode
from kata.data import Batches, Order, Reader, anchor_rows
from kata.data.dataset.mixture import Mixture, vector_names
from kata.data.loader.batches import RankSlice
from kata.data.loader.far_data import open_fetch_pool
from kata.data.loader.provenance import step_locations
from kata.dist.engine import Engine
from kata.dist.process_group import ProcessGroup
from kata.dist.world import World
from kata.run import Run
from kata.spec import ACTION
from kata.train.checkpoint.async_save import AsyncSaver
from kata.train.checkpoint.folder import checkpoints, home_of
from kata.train.checkpoint.retention import Keep
from kata.train.checkpoint.saver import Saver, last_finite
from kata.train.evaluation.callbacks import (
    BestValidation,
    best_before,
    evaluation_callbacks,
    validation_callback,
)
from kata.train.evaluation.env_eval import AsyncEnvEval
from kata.train.evaluation.validation import Validator, mean_actions, spread_rows
from kata.train.input.feed import Feed
from kata.train.input.frozen_features import with_features
from kata.train.input.normalization import NormalizationSetup
from kata.train.input.prepare import Prepared, TrainingData
from kata.train.input.readers import open_caches, open_reader
from kata.train.loop import Callback
from kata.train.metrics.bad_frames import BadFrames
from kata.train.metrics.bad_steps import BadStepMonitor
from kata.train.metrics.meter import Meter, NullMeter, read_metrics
from kata.train.metrics.pauses import Pauses
from kata.train.metrics.progress import Progress
from kata.train.metrics.trackers import TrackedRun, Tracker, open_trackers
from kata.train.stopping import StopSignal
from kata.update.state import TrainState


@dataclass(frozen=True)
class RunRecord:
    """The record that rank 0 keeps of a run."""

    meter: Meter
    monitor: BadStepMonitor
    bad_frames: BadFrames
    best: BestValidation

    def remarks(self) -> list[str]:
        """Return what the user should know at the end."""
        return [*self.monitor.remarks(), *self.bad_frames.remarks()]


@dataclass(frozen=True)
class TrainingComponents:
    """The components that the loop needs.

    Attributes:
        feed: the batches to train on.
        callbacks: (every, work) pairs, done in this order.
        saving: writes checkpoints.
        view_feed: makes the batches of the report's samples.
        record: rank 0's; None on the others.
    """

    feed: Feed
    callbacks: list[tuple[int, Callback]]
    saving: AsyncSaver
    view_feed: Feed
    record: RunRecord | None

    @property
    def meter(self) -> Meter | NullMeter:
        """The meter, which takes the figures of a step."""
        return NullMeter() if self.record is None else self.record.meter

    @property
    def monitor(self) -> BadStepMonitor | NullMeter:
        """The monitor, which judges them."""
        return NullMeter() if self.record is None else self.record.monitor


def build_components(
    live: ExitStack,
    prepared: Prepared,
    saver: Saver,
    state: TrainState,
    folder: Path,
    stop_signal: StopSignal,
    engine: Engine,
) -> TrainingComponents:
    """Open all components; `live` closes them.

    The work between steps comes in this order: validate, save, evaluate.
    """
    run, group = prepared.run, engine.group
    data, reading = prepared.data, prepared.reading
    # 1. The batches to train on, and the record of what is read and learned.
    caches = open_caches(live, run.dataset, data.train, reading)
    fetched = open_fetch_pool(live, data.train, reading.encoded_memory)
    reader = live.enter_context(
        open_reader(reading, data.train, caches, fetched=fetched, frame_memory=reading.frame_memory)
    )
    pauses, own_meter = Pauses[TrainState](run.steps), None
    if group.world.is_first:
        own_meter = open_meter(live, run, data, folder, state.step, reader, pauses)
    meter = own_meter or NullMeter()
    bad_frames = BadFrames(folder, meter, state, run, group.world)
    live.callback(bad_frames.close)
    feed = open_feed(live, prepared, reader, group.world, bad_frames)
    # 2. Checkpoints.
    saving = live.enter_context(
        AsyncSaver(home_of(folder), saver, meter, Keep.of(run), engine, state.step or None)
    )
    stop_signal.before_steps, record = saving.check, None
    if own_meter is not None:
        monitor = open_monitor(live, run, folder, own_meter, data.train, feed.batches, state.step)
        best = BestValidation(None if data.val_dataset is None else best_before(folder, state.step))
        record = RunRecord(own_meter, monitor, bad_frames, best)
    # 3. The work between two steps.
    callbacks: list[tuple[int, Callback]] = []
    view_feed = replace(feed, augment=None)
    if data.val_dataset is not None:
        held_reader = live.enter_context(open_reader(reading, data.val_dataset, caches, fetched))
        validator = open_validator(
            live, run, data, feed, held_reader, prepared.normalization, bad_frames, group
        )
        view_feed = validator.feed
        best = BestValidation() if record is None else record.best
        validate = validation_callback(run, validator, saving, meter, best)
        # A sample is judged in about the time in which one is trained on.
        passes = validator.size / run.effective_batch
        every = run.eval_steps or run.save_freq
        callbacks.append(pauses.timed(every, validate, like_steps=passes))
    if run.save_checkpoint:
        callbacks.append(pauses.timed(run.save_freq, saving.checkpoint))
    if run.env is not None:
        env_eval = live.enter_context(AsyncEnvEval(run, folder, saver, meter, stop_signal, engine))
        for every, evaluate in evaluation_callbacks(run, env_eval, state, engine):
            callbacks.append(pauses.timed(every, evaluate))
    fed = with_features(live, prepared, state.policy, reader, feed)
    return TrainingComponents(fed, callbacks, saving, view_feed, record)


def open_feed(
    live: ExitStack,
    prepared: Prepared,
    reader: Reader,
    world: World,
    bad_frames: BadFrames | None = None,
) -> Feed:
    """Open the batches to train on, of which each rank reads its slice; `live` closes them.

    Args:
        live: closes the batches.
        prepared: data, order and pipelines.
        reader: reads the training episodes.
        world: the ranks.
        bad_frames: finds other samples for those that cannot be decoded; None ends the run.
    """
    run = prepared.run
    data, reading = prepared.data, prepared.reading
    size = run.effective_batch
    rank_slice = RankSlice(world.rank, world.size)
    substitute = None
    if bad_frames is not None:
        substitute = bad_frames.substitute(
            "train",
            data.train,
            reader,
            data.rows,
            lambda position: (position // size + 1) * size // rank_slice.of,
        )
    batches = Batches(
        reader,
        data.rows,
        data.order,
        size,
        ahead=run.prefetch_factor,
        rank_slice=rank_slice,
        substitute=substitute,
    )
    return Feed(
        batches=live.enter_context(batches),
        config=run.policy,
        preprocess=prepared.normalization.before,
        device=prepared.device,
        micro_size=run.batch_size,
        seed=run.seed,
        cameras=reading.cameras,
        windows=tuple(reading.windows),
        augment=prepared.augment,
        colours=reading.frame_format.colours,
        datasets=data.train.labels,
        rename_map=run.rename_map,
    )


def open_meter(
    live: ExitStack,
    run: Run,
    data: TrainingData,
    folder: Path,
    step: int,
    reader: Reader,
    pauses: Pauses[TrainState],
) -> Meter:
    """Open rank 0's meter of a run that begins at `step`; `live` closes it."""
    meter = live.enter_context(
        Meter(
            folder / "metrics.jsonl",
            batch_size=run.effective_batch,
            num_frames=len(data.rows),
            steps=run.steps,
            trackers=_trackers(run, folder, step),
            progress=Progress(run.steps),
            first_step=step,
            seen=_seen(data),
        )
    )
    meter.count_reads(reader.work, threads=run.num_workers, pauses=pauses)
    return meter


def _seen(data: TrainingData) -> Callable[[int], dict[str, int]] | None:
    """Return the count of each dataset among the first samples; None for a single dataset."""
    names = data.train.labels
    if not names:
        return None
    shares = data.train.shares(data.rows)
    return lambda samples: dict(zip(names, shares.seen(samples), strict=True))


def open_monitor(
    live: ExitStack,
    run: Run,
    folder: Path,
    meter: Meter,
    data: Mixture,
    batches: Batches,
    step: int,
) -> BadStepMonitor:
    """Open rank 0's monitor of bad steps, in a run that begins at `step`; `live` closes it."""
    if step > 0:
        _complete_record(meter, step, home_of(folder))
    monitor = BadStepMonitor(
        folder,
        meter,
        lambda step: step_locations(data, batches, step),
        max_in_a_row=run.max_bad_steps,
        spike=run.loss_spike,
        first_step=step,
        last_good=lambda: last_finite(folder / "checkpoints"),
        changes_after=run.policy.loss_changes_after(),
    )
    return live.enter_context(monitor)


def _complete_record(meter: Meter, step: int, home: Path) -> None:
    """Note the checkpoint that the run continues from, if its line did not reach the disk."""
    lines = read_metrics(meter.path)
    source = next((path for path in checkpoints(home) if int(path.name) == step), None)
    is_noted = any(line["kind"] == "checkpoint" and line["step"] == step for line in lines)
    if source is not None and not is_noted:
        meter.note(step, "checkpoint", {"path": str(source)})


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


def open_validator(
    live: ExitStack,
    run: Run,
    data: TrainingData,
    feed: Feed,
    reader: Reader,
    normalization: NormalizationSetup,
    bad_frames: BadFrames,
    group: ProcessGroup,
) -> Validator:
    """Open the validation on held-out episodes, whose batches the ranks take in turn.

    Args:
        live: closes the batches.
        run: sizes, seed and precision.
        data: has held-out episodes.
        feed: of training; validation reads without augmentation, and draws other numbers.
        reader: reads the held-out episodes.
        normalization: gives the mean action of each dataset.
        bad_frames: finds other samples for those that cannot be decoded.
        group: the ranks.
    """
    val_dataset, ranks = data.val_dataset, RankSlice(group.world.rank, group.world.size)
    assert val_dataset is not None
    rows = spread_rows(
        anchor_rows(val_dataset, run.policy.drop_last_frames()), run.max_eval_samples
    )
    batches = Batches(
        reader,
        rows,
        Order(len(rows), run.seed, shuffle=False),
        min(run.batch_size, len(rows)) * ranks.of,
        ahead=1,
        rank_slice=ranks,
        substitute=bad_frames.substitute(
            "validate", val_dataset, reader, rows, lambda _: len(rows)
        ),
    )
    held_feed = replace(feed, batches=live.enter_context(batches), purpose="validate", augment=None)
    names = vector_names(data.train, feed.column(ACTION))
    mean = mean_actions(normalization.per_dataset, feed.device)
    return Validator(held_feed, len(rows), run.precision, mean, names, group)
