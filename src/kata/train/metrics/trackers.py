"""Trackers: copies of the metrics in wandb, TensorBoard or trackio. A run never ends because of
one.
"""

from __future__ import annotations

import importlib
import json
import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from kata.errors import ConfigError, did_you_mean

FAILURES_ALLOWED = 3
_NO_ANSWER = re.compile(
    r"dial tcp|connection|deadline exceeded|timed out|no such host|name resolution", re.IGNORECASE
)
RETRY_S = 60.0
MODES = ("online", "offline", "disabled")

_log = logging.getLogger(__name__)


class Tracker(Protocol):
    """A place that takes numbers by name and step."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Records the numbers of one line of metrics.jsonl."""
        ...

    def close(self) -> None:
        """Hands over what is still held back."""
        ...


@dataclass(frozen=True, kw_only=True)
class TrackedRun:
    """The name and settings of a run in trackers.

    folder: the run's folder; local files of trackers go there. resumed_at: steps already done, 0
    for a new run. entity, notes, tags, run_id, mode: options of wandb; it chooses a run_id of None
    and keeps it for a resume.
    """

    project: str
    name: str
    folder: Path
    config: Mapping[str, Any] = field(default_factory=dict)
    resumed_at: int = 0
    entity: str | None = None
    notes: str | None = None
    tags: tuple[str, ...] = ()
    run_id: str | None = None
    mode: str | None = None


def open_trackers(kinds: Sequence[str], run: TrackedRun) -> list[Tracker]:
    """Return the opened trackers with these names.

    A new run whose tracker fails is refused. A resumed one continues with a warning, because an
    unreachable tracker must not stop a run that restarts by itself at night. If wandb's server does
    not answer, the run is recorded offline, with a warning.

    Raises:
        ConfigError: an unknown name or mode, a package that is not installed, or a tracker that
            does not start.
    """
    for kind in kinds:
        _must_be_known(kind, _OPENERS, "tracker")
    if run.mode is not None:
        _must_be_known(run.mode, MODES, "wandb mode")
    return [tracker for kind in kinds if (tracker := _open(kind, run)) is not None]


def _must_be_known(name: str, known: Iterable[str], what: str) -> None:
    if name not in known:
        raise ConfigError(
            f"{what} '{name}'", rule=f"a known {what}", remedy=did_you_mean(name, known)
        )


def _open(kind: str, run: TrackedRun) -> Tracker | None:
    module = _import(kind)
    try:
        return Guarded(_OPENERS[kind](module, run), kind)
    except Exception as error:  # foreign code: each package raises its own kinds
        if run.resumed_at:
            _log.warning(
                "%s did not start (%s); the run continues without it", kind, _reason(error)
            )
            return None
        raise ConfigError(
            f"{kind} did not start: {_reason(error)}",
            rule="a tracker that is asked for works when the run starts",
            remedy=_START_REMEDY[kind],
        ) from error


class Guarded:
    """A tracker whose failures are said once and never reach the run.

    After a failure it is left alone for a minute, and for good after three in a row.
    """

    def __init__(self, tracker: Tracker, name: str) -> None:
        self._tracker, self._name = tracker, name
        self._failures = 0
        self._said = False
        self._retry_at_s = 0.0

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Passes the numbers on, unless the tracker failed lately."""
        if self._failures >= FAILURES_ALLOWED or time.monotonic() < self._retry_at_s:
            return
        try:
            self._tracker.log(values, step)
            self._failures = 0
        except Exception as error:  # noqa: BLE001 - foreign code, often a network: anything can come out
            self._failed(error)

    def close(self) -> None:
        """Closes the tracker."""
        try:
            self._tracker.close()
        except Exception as error:  # noqa: BLE001 - foreign code; the run is over and its record is written
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        self._failures += 1
        self._retry_at_s = time.monotonic() + RETRY_S
        if not self._said:
            self._said = True
            _log.warning(
                "%s failed (%s); the run continues and metrics.jsonl keeps everything. "
                "It is tried again after %.0f s and left off after %d failures in a row.",
                self._name,
                _reason(error),
                RETRY_S,
                FAILURES_ALLOWED,
            )


class _Run:
    """A wandb or trackio run: both take `log(values, step=)` and `finish()`."""

    def __init__(self, run: Any) -> None:
        self._run = run

    def log(self, values: Mapping[str, float], step: int) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


class _TensorBoard:
    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def log(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, global_step=step)

    def close(self) -> None:
        self._writer.close()


def _open_wandb(wandb: Any, run: TrackedRun) -> Tracker:
    """Continues the same wandb run after a resume: its id is kept in the run's folder."""
    kept = run.folder / "wandb_run_id"
    run_id = run.run_id
    if run_id is None and run.resumed_at and kept.exists():
        run_id = kept.read_text().strip()
    options: dict[str, Any] = {
        "project": run.project,
        "entity": run.entity,
        "name": run.name,
        "notes": run.notes,
        "tags": list(run.tags),
        "id": run_id,
        "resume": "allow",
        "mode": run.mode,
        "config": dict(run.config),
        "dir": str(run.folder),
    }
    try:
        opened = wandb.init(**options)
    except Exception as error:  # wandb has no separate exception for a server that does not answer
        if not _out_of_reach(error):
            raise
        _log.warning(
            "wandb cannot be reached (%s); the run is recorded offline: `wandb sync` sends it "
            "later",
            _reason(error),
        )
        opened = wandb.init(**{**options, "mode": "offline"})
    kept.write_text(f"{opened.id}\n")
    return _Run(opened)


def _open_tensorboard(tensorboard: Any, run: TrackedRun) -> Tracker:
    """Points after the resumed step are hidden by TensorBoard through `purge_step`."""
    purge_step = run.resumed_at + 1 if run.resumed_at else None
    writer = tensorboard.SummaryWriter(str(run.folder / "tensorboard"), purge_step=purge_step)
    # Four spaces: TensorBoard shows text as Markdown, where this is a block kept as it is.
    lines = json.dumps(run.config, indent=2, default=str).splitlines()
    writer.add_text(
        "config", "\n".join("    " + line for line in lines), global_step=run.resumed_at
    )
    return _TensorBoard(writer)


def _open_trackio(trackio: Any, run: TrackedRun) -> Tracker:
    resume = "allow" if run.resumed_at else "never"
    opened = trackio.init(
        project=run.project, name=run.name, config=dict(run.config), resume=resume
    )
    return _Run(opened)


_OPENERS: dict[str, Callable[[Any, TrackedRun], Tracker]] = {
    "wandb": _open_wandb,
    "tensorboard": _open_tensorboard,
    "trackio": _open_trackio,
}
_MODULES = {"wandb": "wandb", "tensorboard": "torch.utils.tensorboard", "trackio": "trackio"}
_START_REMEDY = {
    "wandb": "run `wandb login`, or keep the run on this machine with --wandb.mode=offline",
    "tensorboard": "make sure that the run's folder can be written",
    "trackio": "make sure that trackio's folder can be written",
}


def _import(kind: str) -> Any:
    try:
        return importlib.import_module(_MODULES[kind])
    except ImportError as error:
        raise ConfigError(
            f"tracker '{kind}' cannot be imported: {error}",
            rule=f"tracking with {kind} needs its package",
            remedy=f"uv pip install 'kata[{kind}]'",
        ) from error


def _out_of_reach(error: Exception) -> bool:
    """Return True if nobody answered; False for a refusal (not logged in, no such project)."""
    return isinstance(error, ConnectionError | TimeoutError) or bool(_NO_ANSWER.search(str(error)))


def _reason(error: Exception) -> str:
    """The kind of the error and its first line."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
