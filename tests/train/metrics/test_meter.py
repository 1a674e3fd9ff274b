"""The meter writes exact lines, waits only when it logs, and leaves the same file after a
resume.
"""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from kata.data.counters import ReadCounters
from kata.errors import DataError
from kata.train.metrics import meter as meter_module
from kata.train.metrics import progress as progress_module
from kata.train.metrics.bottleneck import Spent
from kata.train.metrics.meter import Meter, StepTimes, read_metrics
from kata.train.metrics.pauses import Pauses
from kata.train.metrics.progress import Progress

TIMES = StepTimes(dataloading_s=0.01, preprocessing_s=0.02, update_s=0.06, step_s=0.1)
MEASURED = {
    "time",
    "eta_s",
    "update_s",
    "step_s",
    "samples_per_s",
    "data_wait_share",
    "memory_bytes",
    "spent",
    "bound_by",
}


def open_meter(path: Path, **options: Any) -> Meter:
    return Meter(path, **{"batch_size": 8, "num_frames": 100, "steps": 100, **options})


def add(
    meter: Meter, step: int, loss: float | None = None, norm: float = 1.0, times: StepTimes = TIMES
) -> None:
    value = torch.tensor(float(step) if loss is None else loss)
    losses = {"loss": value, "l1": value / 2}
    meter.add(step, losses=losses, grad_norm=torch.tensor(norm), lr=step * 1e-3, times=times)


def run(path: Path, first: int, last: int) -> list[dict[str, Any]]:
    with open_meter(path, first_step=first) as meter:
        for step in range(first + 1, last + 1):
            add(meter, step)
            if step % 5 == 0:
                meter.flush(step)
                meter.note(step, "validation", {"loss": step / 10})
    return read_metrics(path)


def test_a_line_holds_the_averages_of_its_interval(tmp_path: Path) -> None:
    with open_meter(tmp_path / "metrics.jsonl") as meter:
        for step, norm in ((1, 2.0), (2, 6.0), (3, 1.0)):
            add(meter, step, norm=norm)
        meter.flush(3)
    (line,) = read_metrics(tmp_path / "metrics.jsonl")
    assert (line["kind"], line["step"], line["samples"], line["epoch"]) == ("train", 3, 24, 0.24)
    assert (line["loss"], line["l1"], line["grad_norm"], line["grad_norm_max"]) == (
        2.0,
        1.0,
        3.0,
        6.0,
    )
    assert line["lr"] == pytest.approx(3e-3)
    assert line["dataloading_s"] == pytest.approx(0.01)
    assert line["preprocessing_s"] == pytest.approx(0.02)
    assert line["step_s"] == pytest.approx(0.1, abs=0.02)
    assert line["samples_per_s"] == pytest.approx(8 / line["step_s"])
    assert line["data_wait_share"] == pytest.approx(0.01 / line["step_s"])
    assert line["memory_bytes"] > 10_000_000


def test_a_line_says_what_its_interval_was_spent_on(tmp_path: Path) -> None:
    """Without the first step of all, which opens files, and with the reader's seconds since the
    last line.
    """
    waiting = StepTimes(dataloading_s=0.06, preprocessing_s=0.01, update_s=0.02, step_s=0.1)
    works = iter(
        [
            ReadCounters(decode_s=5.0),
            ReadCounters(decode_s=7.0),
            ReadCounters(decode_s=7.5, convert_s=1.0),
        ]
    )
    with open_meter(tmp_path / "m.jsonl") as meter:
        meter.count_reads(lambda: next(works), threads=3)
        for step in range(1, 7):
            add(meter, step, times=waiting)
            if step % 3 == 0:
                meter.flush(step)
    first, second = (Spent(**line["spent"]) for line in read_metrics(tmp_path / "m.jsonl"))
    assert (first.steps, second.steps, first.threads, first.beside) == (2, 3, 3, False)
    assert (first.decode_s, second.decode_s, second.convert_s) == (2.0, 0.5, 1.0)
    assert second.wait_s == pytest.approx(0.18)
    assert second.total_s == pytest.approx(0.3 + second.drain_s)
    assert [line["bound_by"] for line in read_metrics(tmp_path / "m.jsonl")] == [
        "decode",
        "convert",
    ]


def test_one_step_gives_no_verdict(tmp_path: Path) -> None:
    with open_meter(tmp_path / "m.jsonl") as meter:
        add(meter, 1)
        line = meter.flush(1)
    assert line is not None
    assert line["spent"]["steps"] == 0
    assert "bound_by" not in line


def test_adding_a_step_never_reads_a_tensor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    whole = torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda t: (read.append(t.numel()), whole(t))[1])

    def refuse(_: torch.Tensor) -> float:
        raise AssertionError("waits for the device")

    for name in ("item", "cpu", "__float__", "__bool__"):
        monkeypatch.setattr(torch.Tensor, name, refuse)
    with open_meter(tmp_path / "metrics.jsonl") as meter:
        for step in range(1, 11):
            add(meter, step)
        assert read == []
        meter.flush(10)
        assert read == [30]


def test_kept_tensors_do_not_hold_the_graph(tmp_path: Path) -> None:
    weight = torch.ones(3, requires_grad=True)
    with open_meter(tmp_path / "metrics.jsonl") as meter:
        loss = (weight * 2).sum()
        meter.add(1, losses={"loss": loss}, grad_norm=loss, lr=0.0, times=TIMES)
        assert all(t.grad_fn is None for t in meter._tensors)


def test_a_resumed_run_leaves_the_lines_of_a_straight_one(tmp_path: Path) -> None:
    straight = run(tmp_path / "straight.jsonl", 0, 20)
    broken = tmp_path / "broken.jsonl"
    run(broken, 0, 15)
    with broken.open("ab") as file:
        file.write(b'{"kind": "train", "step": 20, "lo')
    resumed = run(broken, 10, 20)
    assert [{k: v for k, v in line.items() if k not in MEASURED} for line in resumed] == [
        {k: v for k, v in line.items() if k not in MEASURED} for line in straight
    ]


def test_a_run_from_the_start_begins_with_an_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    run(path, 0, 10)
    assert run(path, 0, 5) == read_metrics(path)
    assert [line["step"] for line in read_metrics(path)] == [5, 5]


def test_non_finite_values_keep_the_file_valid_json(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with open_meter(path) as meter:
        add(meter, 1, loss=math.nan, norm=math.inf)
        meter.flush(1)
        meter.note(1, "validation", {"per_task": {"fold": -math.inf}, "l": [math.nan]})

    def refuse(word: str) -> float:
        raise AssertionError(f"{word} is not JSON")

    raw = [json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines()]
    assert (raw[0]["loss"], raw[0]["grad_norm_max"]) == ("nan", "inf")
    train, note = read_metrics(path)
    assert math.isnan(train["loss"])
    assert train["grad_norm"] == math.inf
    assert note["per_task"] == {"fold": -math.inf}


def test_a_step_that_was_skipped_is_left_out_of_the_averages(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with open_meter(path) as meter:
        for step, loss, norm in (
            (1, 2.0, 1.0),
            (2, math.nan, 5.0),
            (3, 4.0, math.inf),
            (4, 6.0, 3.0),
        ):
            add(meter, step, loss=loss, norm=norm)
        meter.flush(4)
    (line,) = read_metrics(path)
    assert (line["loss"], line["l1"], line["grad_norm"], line["grad_norm_max"]) == (
        4.0,
        2.0,
        2.0,
        3.0,
    )


def test_each_line_is_in_the_file_as_soon_as_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with open_meter(path) as meter:
        add(meter, 1)
        meter.flush(1)
        assert [line["step"] for line in read_metrics(path)] == [1]
        assert meter.flush(1) is None


def test_a_half_written_last_line_is_left_out_and_a_broken_middle_is_named(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"st')
    assert read_metrics(path) == [{"step": 1}]
    path.write_text('{"step": 1}\n{"st\n{"step": 3}\n')
    with pytest.raises(DataError, match="line 2") as caught:
        read_metrics(path)
    assert caught.value.rule
    assert caught.value.remedy


def test_the_time_left_counts_the_pauses_that_are_still_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(meter_module.time, "perf_counter", lambda: now[0])
    pauses: Pauses[None] = Pauses(10)

    def take(seconds: float) -> None:
        now[0] += seconds

    _, validate = pauses.timed(4, lambda _: take(3.0), like_steps=2.0)
    _, save = pauses.timed(0, lambda _: take(7.0))
    left: list[float] = []
    with open_meter(tmp_path / "metrics.jsonl", steps=10) as meter:
        meter.count_reads(ReadCounters, threads=1, pauses=pauses)
        for step in range(1, 11):
            take(0.5)
            meter.add(
                step,
                losses={},
                grad_norm=torch.ones(()),
                lr=0,
                times=StepTimes(dataloading_s=0, preprocessing_s=0, update_s=0.5, step_s=0.5),
            )
            line = meter.flush(step)
            assert line is not None
            left.append(line["eta_s"])
            if step in (4, 8, 10):
                validate(None)
    save(None)
    # Not measured yet, a validation is believed to take as long as two steps; three are due.
    assert left[:4] == pytest.approx([9 * 0.5 + 3, 8 * 0.5 + 3, 7 * 0.5 + 3, 6 * 0.5 + 3])
    assert left[4] == pytest.approx(5 * 0.5 + 2 * 3.0)
    assert left[8:] == pytest.approx([0.5 + 3.0, 3.0])
    lines = read_metrics(tmp_path / "metrics.jsonl")
    spent_s = [line["spent"]["pause_s"] for line in lines]
    assert spent_s == pytest.approx([0, 0, 0, 0, 3.0, 0, 0, 0, 3.0, 0])


def test_the_time_left_ignores_a_slow_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(meter_module.time, "perf_counter", lambda: now[0])
    with open_meter(tmp_path / "metrics.jsonl", steps=1000) as meter:
        for step in range(1, 51):
            step_s = 60.0 if step == 1 else 0.5
            now[0] += step_s
            times = StepTimes(dataloading_s=0, preprocessing_s=0, update_s=step_s, step_s=step_s)
            meter.add(step, losses={}, grad_norm=torch.ones(()), lr=0, times=times)
            line = meter.flush(step)
        assert line is not None
        assert line["eta_s"] == pytest.approx(950 * 0.5)


class Recorder:
    def __init__(self) -> None:
        self.seen: list[tuple[int, dict[str, float]]] = []
        self.closed = False

    def log(self, values: dict[str, float], step: int) -> None:
        self.seen.append((step, values))

    def close(self) -> None:
        self.closed = True


def test_trackers_get_the_numbers_under_the_kind_of_the_line(tmp_path: Path) -> None:
    recorder = Recorder()
    with open_meter(tmp_path / "metrics.jsonl", trackers=[recorder]) as meter:
        add(meter, 1)
        meter.flush(1)
        meter.note(1, "validation", {"loss": 0.5, "best": "yes", "per_task": {"fold": 0.25}})
    (_, train), (step, note) = recorder.seen
    assert train["train/loss"] == 1.0
    assert "train/step" not in train
    assert step == 1
    assert {"validation/loss": 0.5, "validation/per_task/fold": 0.25}.items() <= note.items()
    assert "validation/best" not in note
    assert recorder.closed


def plain_console(terminal: bool) -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, force_terminal=terminal, width=160), out


def test_a_log_file_gets_one_plain_line_per_interval(tmp_path: Path) -> None:
    console, out = plain_console(terminal=False)
    with open_meter(tmp_path / "m.jsonl", progress=Progress(100, console=console)) as meter:
        for step in range(1, 11):
            add(meter, step)
            if step % 5 == 0:
                meter.flush(step)
        meter.note(10, "validation", {"loss": 0.123456, "per_task": {"fold": 1.0}})
    first, second, note = out.getvalue().splitlines()
    assert first.startswith("step 5/100  epoch 0.40  loss 3  lr 0.005")
    assert "data wait 10%  ETA" in second
    assert note == "validation at step 10:  loss 0.1235"
    assert "\x1b" not in out.getvalue()


def test_the_live_line_is_drawn_at_most_ten_times_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: now[0])
    drawn: list[int] = []
    console, _ = plain_console(terminal=True)
    progress = Progress(5000, console=console)
    render = progress._render
    monkeypatch.setattr(progress, "_render", lambda: (drawn.append(1), render())[1])
    for step in range(1, 2001):
        now[0] += 0.001
        progress.advance(step)
    assert 15 <= len(drawn) <= 21
    progress.close()


def test_quiet_shows_nothing(tmp_path: Path) -> None:
    for terminal in (True, False):
        console, out = plain_console(terminal)
        progress = Progress(100, quiet=True, console=console)
        with open_meter(tmp_path / "m.jsonl", progress=progress) as meter:
            add(meter, 1)
            meter.flush(1)
            meter.note(1, "validation", {"loss": 1.0})
        assert out.getvalue() == ""
