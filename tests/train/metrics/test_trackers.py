"""Trackers: refused at the start when they cannot work, and never able to end a run after it."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kata.errors import ConfigError
from kata.train.metrics import trackers as trackers_module
from kata.train.metrics.trackers import FAILURES_ALLOWED, RETRY_S, TrackedRun, open_trackers


class FakeRun:
    """Stands for a wandb or trackio run; fails while `broken`."""

    def __init__(self, **options: Any) -> None:
        self.options, self.id = options, options.get("id") or "fresh"
        self.seen: list[tuple[int, dict[str, float]]] = []
        self.calls, self.broken, self.finished = 0, False, False

    def log(self, values: dict[str, float], step: int) -> None:
        self.calls += 1
        if self.broken:
            raise ConnectionError("no route to host\nlong trace")
        self.seen.append((step, values))

    def finish(self) -> None:
        if self.broken:
            raise RuntimeError("cannot finish")
        self.finished = True


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[FakeRun]:
    """Runs opened by fake wandb and trackio packages."""
    opened: list[FakeRun] = []

    def init(**options: Any) -> FakeRun:
        if options["project"] == "refused":
            raise PermissionError("not logged in")
        if options["project"] == "silent" and options["mode"] != "offline":
            raise RuntimeError(
                "context deadline exceeded: dial tcp 127.0.0.1:9: connect: connection refused"
            )
        opened.append(FakeRun(**options))
        return opened[-1]

    for name in ("wandb", "trackio"):
        package = ModuleType(name)
        package.init = init  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, name, package)
    return opened


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(trackers_module.time, "monotonic", lambda: now[0])
    return now


def described(folder: Path, **options: Any) -> TrackedRun:
    return TrackedRun(
        **{"project": "kata", "name": "act", "folder": folder, "config": {"seed": 1}, **options}
    )


@pytest.mark.parametrize("kind", ["wandb", "tensorboard", "trackio"])
def test_a_package_that_is_not_installed_is_named_with_its_extra(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = {"tensorboard": "torch.utils.tensorboard"}.get(kind, kind)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError) as caught:
        open_trackers([kind], described(tmp_path))
    assert caught.value.remedy == f"uv pip install 'kata[{kind}]'"
    assert kind in caught.value.what


def test_unknown_names_and_modes_are_refused_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'wandb'"):
        open_trackers(["wandbb"], described(tmp_path))
    with pytest.raises(ConfigError, match="did you mean 'offline'"):
        open_trackers([], described(tmp_path, mode="off-line"))


def test_wandb_gets_every_option(tmp_path: Path, runs: list[FakeRun]) -> None:
    options = {
        "entity": "lab",
        "notes": "first",
        "tags": ("act",),
        "run_id": "abc",
        "mode": "offline",
    }
    (tracker,) = open_trackers(["wandb"], described(tmp_path, **options))
    assert runs[0].options == {
        "project": "kata",
        "name": "act",
        "config": {"seed": 1},
        "dir": str(tmp_path),
        "resume": "allow",
        "entity": "lab",
        "notes": "first",
        "tags": ["act"],
        "id": "abc",
        "mode": "offline",
    }
    tracker.log({"train/loss": 1.0}, 5)
    tracker.close()
    assert runs[0].seen == [(5, {"train/loss": 1.0})]
    assert runs[0].finished


def test_a_resumed_run_continues_the_same_wandb_run(tmp_path: Path, runs: list[FakeRun]) -> None:
    open_trackers(["wandb"], described(tmp_path))
    open_trackers(["wandb"], described(tmp_path, resumed_at=100))
    open_trackers(["wandb"], described(tmp_path))
    assert [run.options["id"] for run in runs] == [None, "fresh", None]


def test_trackio_continues_only_a_resumed_run(tmp_path: Path, runs: list[FakeRun]) -> None:
    open_trackers(["trackio"], described(tmp_path))
    open_trackers(["trackio"], described(tmp_path, resumed_at=100))
    assert [run.options["resume"] for run in runs] == ["never", "allow"]


def test_a_tracker_that_will_not_start_refuses_a_fresh_run_and_lets_a_resumed_one_go_on(
    tmp_path: Path, runs: list[FakeRun], caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ConfigError, match="wandb login") as caught:
        open_trackers(["wandb"], described(tmp_path, project="refused"))
    assert "not logged in" in caught.value.what
    assert open_trackers(["wandb"], described(tmp_path, project="refused", resumed_at=7)) == []
    assert "continues without it" in caplog.text


def test_a_wandb_server_that_does_not_answer_costs_no_run_and_no_record(
    tmp_path: Path, runs: list[FakeRun], caplog: pytest.LogCaptureFixture
) -> None:
    (tracker,) = open_trackers(["wandb"], described(tmp_path, project="silent"))
    tracker.log({"train/loss": 1.0}, 5)
    assert runs[0].options["mode"] == "offline"
    assert runs[0].seen == [(5, {"train/loss": 1.0})]
    assert "wandb sync" in caplog.text


def test_a_failing_tracker_is_said_once_retried_rarely_and_then_left_off(
    tmp_path: Path, runs: list[FakeRun], clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    (tracker,) = open_trackers(["wandb"], described(tmp_path))
    runs[0].broken = True
    with caplog.at_level(logging.WARNING):
        calls = []
        for step in range(100):
            tracker.log({"train/loss": 1.0}, step)
            calls.append(runs[0].calls)
            clock[0] += RETRY_S / 10
        tracker.close()
    assert [calls.count(n) for n in (1, 2)] == [10, 10]
    assert runs[0].calls == FAILURES_ALLOWED
    (record,) = caplog.records
    assert "ConnectionError: no route to host" in record.getMessage()
    assert "long trace" not in record.getMessage()


def test_a_tracker_that_recovers_is_used_again(
    tmp_path: Path, runs: list[FakeRun], clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    (tracker,) = open_trackers(["trackio"], described(tmp_path))
    for step in range(FAILURES_ALLOWED * 2):
        runs[0].broken = step % 2 == 0
        clock[0] += RETRY_S + 1
        tracker.log({}, step)
    assert [step for step, _ in runs[0].seen] == [1, 3, 5]
    assert len(caplog.records) == 1


def test_tensorboard_gets_scalars_and_hides_what_a_resume_repeats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[Any, ...]] = []

    class Writer:
        def __init__(self, folder: str, purge_step: int | None) -> None:
            calls.append((Path(folder).name, purge_step))

        def add_text(self, name: str, text: str, global_step: int) -> None:
            assert '"seed": 1' in text

        def add_scalar(self, name: str, value: float, global_step: int) -> None:
            calls.append((name, value, global_step))

        def close(self) -> None:
            calls.append(("closed",))

    package = ModuleType("torch.utils.tensorboard")
    package.SummaryWriter = Writer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", package)
    (tracker,) = open_trackers(["tensorboard"], described(tmp_path, resumed_at=100))
    tracker.log({"train/loss": 1.0}, 105)
    tracker.close()
    assert calls == [("tensorboard", 101), ("train/loss", 1.0, 105), ("closed",)]
