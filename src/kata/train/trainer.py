"""`kata train`: everything is opened and checked, then the loop runs, then the report is
written.
"""

from __future__ import annotations

import logging
import shlex
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

from rich.console import Console

from kata.config import encode
from kata.dist.engine import Engine
from kata.dist.process_group import ProcessGroup
from kata.errors import CheckpointError
from kata.files import write_json
from kata.log import kept_in
from kata.plan.forecast import Forecast
from kata.pointers import LAST, point, pointed
from kata.policies.config import PolicyConfig
from kata.policies.device import set_switches
from kata.policies.pipelines import renamed_inputs
from kata.run import Run
from kata.run.outputs import LOCK, check_repo_id, refuse_used_folder, run_folder
from kata.train import preflight
from kata.train.checkpoint.folder import Resumable, home_of, recover, resumable
from kata.train.checkpoint.retention import check_space, room_needed
from kata.train.checkpoint.run_lock import FolderLock
from kata.train.checkpoint.saver import Saver, checkpoint_bytes, weight_bytes
from kata.train.components import RunRecord, TrainingComponents, build_components
from kata.train.evaluation.callbacks import evaluated_policy
from kata.train.evaluation.env_eval import newest_strips
from kata.train.evaluation.report_samples import SampleBudget, sample_views
from kata.train.input.feed import Feed
from kata.train.input.prepare import Prepared, prepare
from kata.train.input.rank_checks import check_same_run
from kata.train.input.readers import open_reader
from kata.train.loop import loop
from kata.train.metrics.bottleneck import Diagnosis, diagnose, spent_of
from kata.train.metrics.meter import read_metrics
from kata.train.model.compile import CompiledBlock, compile_blocks, uncompiled
from kata.train.model.engine import open_engine
from kata.train.model.freed_memory import freed_memory_kept
from kata.train.model.oom import MicroBatchHalver, explain_out_of_memory
from kata.train.plan_check import (
    plan_of,
    plan_remark,
    plan_rows,
    plan_view,
    refuse_what_cannot_fit,
)
from kata.train.report import ReportContent, SampleView, write_report
from kata.train.stopping import StopSignal
from kata.update.state import TrainState, build_state

_log = logging.getLogger(__name__)

Accept: TypeAlias = Callable[[PolicyConfig, dict[str, str]], None]
"""Judges a policy, with the names that the training data have for its inputs."""


def accept_any(policy: PolicyConfig, names: dict[str, str]) -> None:
    """Accept every policy."""


LOG = "log.txt"
"""The file in the run's folder that keeps its printed lines."""

_VIEWS_S, _VIEWS_OF_A_STOPPED_RUN_S = 30.0, 5.0
"""Seconds that the report's samples may take: 100 denoising steps on a CPU may take minutes."""


@dataclass(frozen=True)
class Trained:
    """The result of a finished run.

    Attributes:
        folder: The folder of the run.
        report: The path of its report.
        state: The state after the last step.
        last: The figures of the last line of metrics.
        best: The figures of the best validation with `step` and `checkpoint`, or None.
        evaluations: The figures of evaluations by step.
        stopped: The reason for an end before the last step, or None.
        remarks: Further notes for the user.
        saves: The saves, with the seconds of training that each stalled (`save_stall_s`) and the
            seconds that writing took (`save_s`).
        diagnosis: The stage that bound its time, or None.
        report_fault: The reason why there is no report, or None.
        plan: The plan that was made before step 1, or None.
    """

    folder: Path
    report: Path
    state: TrainState
    last: dict[str, Any] = field(default_factory=dict[str, Any])
    best: dict[str, Any] | None = None
    evaluations: dict[int, dict[str, Any]] = field(default_factory=dict[int, dict[str, Any]])
    stopped: str | None = None
    remarks: list[str] = field(default_factory=list[str])
    saves: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    diagnosis: Diagnosis | None = None
    report_fault: str | None = None
    plan: Forecast | None = None


def train(
    run: Run,
    *,
    notes: list[str] | None = None,
    command: str = "",
    console: Console | None = None,
    group: ProcessGroup | None = None,
    tell: Callable[[Trained], None] = lambda trained: None,
    accept: Accept = accept_any,
) -> Trained:
    """Train to the last step; nothing is left half-written.

    Args:
        run: the options.
        notes: messages about the options, for the table.
        command: the line that started the run, for the report.
        console: prints the table; None is the terminal.
        group: the ranks that train together, all of which call this; None is this process alone.
        tell: called on rank 0 when all is saved, before the report is made.
        accept: called on rank 0 when the policy's inputs are known; raises to refuse the run.

    Returns:
        What came out. Rank 0 measures and writes; the others return their state alone.

    Raises:
        KataError: options and data do not fit, which is found before step 1, or the run failed.
    """
    # 1. Options and data: everything that can be wrong with them is found here.
    group = group or ProcessGroup()
    check_same_run(group, run)
    check_repo_id(run)
    folder = Path(group.broadcast_from_rank0(lambda: str(run_folder(run))))
    prepared = _prepare(run, group, accept)
    run = prepared.run
    plan = group.on_rank0(lambda: _plan(prepared))
    with ExitStack() as held, ExitStack() as live:
        # 2. The run's folder, and the state: a new one, or that of the newest checkpoint.
        locked = group.broadcast_from_rank0(lambda: lock_run_folder(held, folder, run).plain())
        source, found_notes = locked
        saver = Saver(run, *prepared.normalization.acting, prepared.normalization.by_dataset)
        engine = open_engine(run, prepared.device, group)
        state, blocks = _open_state(run, saver, source, engine)
        # 3. The table of what the run will do.
        said = [*(notes or []), *prepared.notes, *found_notes]
        facts = group.on_rank0(lambda: _begin(held, prepared, state, folder, said, console, plan))
        # 4. The components, and the loop.
        stop = StopSignal(run.max_time_s, group.vote, saves=run.save_checkpoint)
        parts = build_components(live, prepared, saver, state, folder, stop, engine)
        held.enter_context(stop)
        remarks = [*_take_steps(run, state, parts, stop, engine), *uncompiled(blocks)]
        # 5. Everything goes to the disk; then what came out, and the report.
        _save_all(run, parts, state)
        live.close()
        stopped = stop.reason if state.step < run.steps else None
        ended = Trained(folder, folder / "report.html", state, stopped=stopped)
        ended = group.on_rank0(lambda: _recorded(ended, parts.record, remarks, plan)) or ended
        group.on_rank0(lambda: tell(ended))
        views = _views(prepared, parts.view_feed, ended, stop, engine)
        fault = group.on_rank0(lambda: _report(ended, run, facts or [], said, views, command))
        return replace(ended, report_fault=fault)


def _take_steps(
    run: Run, state: TrainState, parts: TrainingComponents, stop: StopSignal, engine: Engine
) -> list[str]:
    """Train, and return what the user should know of a full memory."""
    halver = MicroBatchHalver(engine)
    with explain_out_of_memory(run, engine.device), freed_memory_kept(engine.device):
        work = (parts.feed, parts.meter, parts.monitor, parts.callbacks)
        loop(run, state, *work, stop, halver)
    return halver.remarks


def _prepare(run: Run, group: ProcessGroup, accept: Accept) -> Prepared:
    """Return what is known before the policy is built, once `accept` has no objection."""
    prepared = prepare(run, group)
    names = renamed_inputs(prepared.normalization.acting[0])
    group.broadcast_from_rank0(lambda: accept(prepared.run.policy, names))
    set_switches(tf32=run.tf32, deterministic=run.cudnn_deterministic)
    return prepared


def _plan(prepared: Prepared) -> Forecast | None:
    """Return the plan of the run, where it has a GPU that is known, unless it cannot fit."""
    found = plan_of(prepared)
    refuse_what_cannot_fit(found, force=prepared.run.force)
    return found


def _open_state(
    run: Run, saver: Saver, source: str | None, engine: Engine
) -> tuple[TrainState, list[CompiledBlock]]:
    """Return the state of a new run, or of the checkpoint `source`, and the compiled blocks."""
    state = engine.group.local_rank0_first(
        lambda: build_state(run, engine, weights_follow=source is not None)
    )
    blocks = compile_blocks(state.policy) if run.compile else []
    state.optimizer = engine.begin(state.policy, state.optimizer)
    if source is not None:
        saver.restore(state, Path(source), engine)
    return state, blocks


def _save_all(run: Run, parts: TrainingComponents, state: TrainState) -> None:
    """Bring everything to the disk."""
    parts.monitor.settle()
    if run.save_checkpoint:
        parts.meter.flush(state.step)
        parts.saving.finish(state)


def _views(
    prepared: Prepared, feed: Feed, ended: Trained, stop_signal: StopSignal, engine: Engine
) -> list[SampleView]:
    """Return what the report shows of the policy; nothing where that fails, for all is saved by
    now.
    """
    run, asked_before = prepared.run, stop_signal.reason
    shown = prepared.data.val_dataset or prepared.data.train
    budget = SampleBudget(
        _VIEWS_OF_A_STOPPED_RUN_S if ended.stopped else _VIEWS_S,
        is_over=lambda: stop_signal.reason != asked_before,
        is_bound=not engine.sharded,
    )

    def views() -> list[SampleView]:
        try:
            with open_reader(prepared.reading, shown, {}) as reader:
                policy = evaluated_policy(run, ended.state)
                return sample_views(
                    policy, feed, reader, prepared.normalization.after, shown, budget
                )
        except Exception as error:  # noqa: BLE001 - whatever a policy or a damaged file raises
            _log.warning("the report shows no samples: %s: %s", type(error).__name__, error)
            return []

    # A policy in shards is run by all ranks together.
    return views() if engine.sharded else engine.group.on_rank0(views) or []


def _recorded(
    ended: Trained, record: RunRecord | None, remarks: list[str], plan: Forecast | None
) -> Trained:
    """Return what ended with what is on record of it."""
    assert record is not None
    _require_in_place(ended, record.meter.path)
    metrics = read_metrics(record.meter.path)
    return replace(
        ended,
        last=next((line for line in reversed(metrics) if line["kind"] == "train"), {}),
        best=record.best.figures,
        evaluations={
            line["step"]: line
            for line in metrics
            if line["kind"] == "evaluation" and "note" not in line
        },
        remarks=[*remarks, *record.remarks(), *plan_remark(plan, metrics)],
        saves=[line for line in metrics if line["kind"] == "saved"],
        diagnosis=diagnose(spent_of(metrics)),
        plan=plan,
    )


def _require_in_place(ended: Trained, metrics: Path) -> None:
    """Refuse to go on without the run's own record. All is saved by now."""
    if metrics.is_file():
        return
    newest = pointed(home_of(ended.folder) / LAST)
    saved = "no checkpoint was asked for" if newest is None else f"the last checkpoint is {newest}"
    raise CheckpointError(
        f"{ended.folder}: {metrics.name} is gone: the run folder was moved or removed while the "
        f"run went on; {ended.state.step} steps are done, and {saved}",
        rule="a run folder stays in its place until the run has ended",
        remedy="move the checkpoints in it to the others, where the rest of the folder is now",
    )


def _report(
    ended: Trained,
    run: Run,
    facts: preflight.Facts,
    said: list[str],
    views: list[SampleView],
    command: str,
) -> str | None:
    """Write the report; return why it could not be written. All that it shows is on the disk
    already.
    """
    try:
        write_report(ended.report, _content(ended, run, facts, said, views, command))
    except Exception as error:  # noqa: BLE001 - drawing is foreign code, and the run has succeeded
        reason = f"{type(error).__name__}: {error}"
        _log.warning("%s was not written: %s", ended.report, reason)
        return reason
    return None


def _content(
    ended: Trained,
    run: Run,
    facts: preflight.Facts,
    said: list[str],
    views: list[SampleView],
    command: str,
) -> ReportContent:
    best, metrics = ended.best, read_metrics(ended.folder / "metrics.jsonl")
    return ReportContent(
        title=f"{run.name} on {run.dataset.name}",
        facts=facts,
        metrics=metrics,
        samples=views,
        strips=newest_strips(ended.folder),
        warnings=ended.remarks,
        notes=said,
        command=again(command, ended.folder),
        best={name: best[name] for name in ("step", "checkpoint", "action_error") if name in best}
        if best
        else None,
        baseline={"action_error": best["mean_action_error"]} if best else {},
        plan=plan_view(ended.plan, metrics),
    )


def again(command: str, folder: Path) -> str:
    """Return a line that starts the same run from any place, into a folder that is free."""
    if not command:
        return ""
    kept: list[str] = []
    words = shlex.split(command)
    while words:
        word = words.pop(0)
        if word.removeprefix("--").partition("=")[0] not in ("output-dir", "output_dir", "resume"):
            kept.append(word)
        elif "=" not in word and words and not words[0].startswith("--"):
            del words[0]  # `--output_dir folder`
    number, free = 2, folder.absolute()
    while free.exists():
        free = folder.absolute().with_name(f"{folder.name}-{number}")
        number += 1
    line = shlex.join([*kept, f"--output_dir={free}"])
    return f"cd {shlex.quote(str(Path.cwd()))} && {line}"


def lock_run_folder(live: ExitStack, folder: Path, run: Run) -> Resumable:
    """Make the run folder this process's own, finish what a killed one left, and find where to
    continue.
    """
    new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(
            f"output_dir={folder}: cannot be made ({error.strerror})",
            rule="a run writes into its own folder",
            remedy="choose another --output_dir",
        ) from error

    def undo() -> None:
        if new and folder.exists() and not any(folder.iterdir()):
            folder.rmdir()

    live.callback(undo)
    lock = live.enter_context(FolderLock(folder))
    refuse_used_folder(folder, run)
    home = home_of(folder)
    notes = [lock.note] if lock.note else []
    notes += recover(home)
    if not run.resume:
        return Resumable(None, notes)
    found = resumable(home)
    where = f"continuing from {found.source}"
    if found.source is None:
        where = "no checkpoint in the run folder yet: starting from step 0"
    else:
        point(home / LAST, found.source.name)  # the run may have died before that
    return Resumable(found.source, [*notes, *found.notes, where])


def _begin(
    live: ExitStack,
    prepared: Prepared,
    state: TrainState,
    folder: Path,
    said: list[str],
    console: Console | None,
    plan: Forecast | None,
) -> preflight.Facts:
    """Write the resolved config where there is room for the run, and print what it will do.

    A new folder goes again if no step is ever done.
    """
    run = prepared.run
    first_step, new = state.step, not any(path.name != LOCK for path in folder.iterdir())

    def undo(
        kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if new and kind is not None and state.step == first_step < run.steps:
            for path in folder.iterdir():
                if path.name != LOCK:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()

    live.push(undo)
    live.enter_context(kept_in(folder / LOG))
    size, weights = checkpoint_bytes(state.policy, run), weight_bytes(state.policy)
    # A tokenizer may be larger than an adapter, and lies beside the weights of an EMA as well.
    size += prepared.normalization.before.artifact_bytes * (2 if run.ema.enable else 1)
    room = room_needed(run, home_of(folder), state.step, size, weights)
    check_space(folder, room)
    write_json(folder / "train_config.json", encode(run))
    facts = preflight.preflight_facts(prepared, state.policy, str(folder), room)
    facts += plan_rows(plan)
    preflight.show(console or Console(), facts, said)
    return facts
