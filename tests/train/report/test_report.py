"""The report is one safe, small file, sensible whatever a run left behind."""

from __future__ import annotations

import base64
import io
import math
import shlex
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from kata.html import jpeg_url
from kata.train import train
from kata.train.report import Filmstrip, ReportContent, SampleView, write_report
from kata.train.report.charts import INK, POINTS_MAX, Series, curve_chart, smoothed, thinned
from kata.train.report.curves import best_of, charts, time_spent, validation_figure
from kata.train.trainer import again


@pytest.fixture
def quick_reports():
    """Draw the charts here."""


VOID = {"meta", "img", "br", "path", "use", "rect", "stop"}


class Page(HTMLParser):
    """Text, tags and attributes of a page; refuses tags that do not match."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.words = ""
        self._open: list[str] = []
        self.feed(html)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in {"src", "href"}]
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in {"src", "href"}]

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += " " + " ".join(data.split())


def written(folder: Path, report: ReportContent) -> Page:
    path = folder / "report.html"
    write_report(path, report)
    html = path.read_text(encoding="utf-8")
    assert "http" not in html.replace("xmlns", "")
    return Page(html)


def train_line(step: int, **values: Any) -> dict[str, Any]:
    parts = {"dataloading_s": 0.01, "preprocessing_s": 0.02, "update_s": 0.06, "step_s": 0.1}
    line = {
        "kind": "train",
        "step": step,
        "epoch": step / 10,
        "samples": 8 * step,
        "loss": 10 / step,
    }
    return {**line, "grad_norm": 1.0, "lr": 1e-4, "time": 0.0, **parts, **values}


def validation_line(step: int, **values: Any) -> dict[str, Any]:
    return {"kind": "validation", "step": step, "epoch": 0.0, "samples": 0, "time": 0.0, **values}


def sample(num_dims: int = 3, **options: Any) -> SampleView:
    recorded = np.outer(np.linspace(0, 1, 20), np.arange(num_dims))
    frame = np.full((48, 64, 3), 128, dtype=np.uint8)
    known = {
        "title": "episode 1",
        "frames": {"top": frame},
        "recorded": recorded,
        "predicted": recorded + 0.1,
    }
    return SampleView(
        **{**known, "action_names": [f"joint {d}" for d in range(num_dims)], **options}
    )


def test_an_empty_run_gives_a_page_that_says_so(tmp_path: Path) -> None:
    page = written(tmp_path, ReportContent(title="run"))
    assert "Nothing was logged yet" in page.words
    assert "svg" not in page.tags


def test_everything_from_outside_is_escaped(tmp_path: Path) -> None:
    evil = '<script>alert("1")</script>'
    metrics = [train_line(5), validation_line(5, **{evil: 1.0, "per_task": {evil: 2.0}})]
    metrics.append({**validation_line(5, **{evil: 1.0}), "kind": evil})
    page = written(
        tmp_path,
        ReportContent(
            title=evil,
            facts=[(evil, evil)],
            notes=[evil],
            command=evil,
            metrics=metrics,
            samples=[
                sample(
                    title=evil,
                    action_names=[evil] * 3,
                    frames={f'"{evil}': np.zeros((4, 4, 3), np.uint8)},
                )
            ],
            strips=[Filmstrip(evil, [np.zeros((4, 4, 3), np.uint8)], evil)],
            best={"step": 5, "checkpoint": evil},
            baseline={evil: 3.0},
        ),
    )
    assert "script" not in page.tags
    assert page.words.count("alert(") >= 12


def test_a_full_page_needs_nothing_outside_itself_and_stays_small(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    noise = [rng.integers(0, 256, (240, 320, 3), dtype=np.uint8) for _ in range(4)]
    metrics: list[dict[str, Any]] = [train_line(step) for step in range(1, 3001)]
    metrics += [validation_line(step, loss=1.0) for step in range(100, 3001, 100)]
    samples = [sample(14, frames={str(k): noise[k] for k in range(3)}) for _ in range(12)]
    strips = [Filmstrip(f"episode {k}", noise * 8 if k < 2 else noise) for k in range(20)]
    page = written(
        tmp_path, ReportContent(title="run", metrics=metrics, samples=samples, strips=strips)
    )
    assert (tmp_path / "report.html").stat().st_size < 3_000_000
    assert all(address.startswith(("data:image/jpeg;base64,", "#")) for address in page.addresses)
    assert "The 8 of 14 actions that move the most." in page.words
    assert "The first 8 of 12 samples." in page.words
    assert "The first 12 of 20 episodes." in page.words
    assert "20 of 32 frames" in page.words
    assert not list(tmp_path.glob("*.new"))


def test_the_dimensions_shown_are_those_that_move_the_most(tmp_path: Path) -> None:
    page = written(tmp_path, ReportContent(title="run", samples=[sample(10)]))
    assert "joint 2" in page.words
    assert "joint 9" in page.words
    assert "joint 1 " not in page.words


def test_padding_is_left_out_of_the_choice_and_said(tmp_path: Path) -> None:
    is_pad = np.arange(20) >= 15
    page = written(tmp_path, ReportContent(title="run", samples=[sample(is_pad=is_pad)]))
    assert "Shaded: after the end of the episode." in page.words
    written(tmp_path, ReportContent(title="run", samples=[sample(is_pad=np.ones(20, dtype=bool))]))


def test_the_headline_gives_the_best_validation_and_its_share_of_the_baseline(
    tmp_path: Path,
) -> None:
    metrics = [train_line(10), train_line(20)]
    metrics += [validation_line(10, loss=9.0, error=0.2), validation_line(20, loss=8.0, error=0.1)]
    page = written(tmp_path, ReportContent(title="run", metrics=metrics, baseline={"error": 0.4}))
    assert "0.1 best validation error at step 20" in page.words
    assert "25% of the mean action's" in page.words
    assert "mean action: 0.4" in page.words
    chosen = {"step": 10, "error": 0.2, "checkpoint": "checkpoints/000010"}
    page = written(
        tmp_path, ReportContent(title="run", metrics=metrics, baseline={"error": 0.4}, best=chosen)
    )
    assert "0.2 best validation error at step 10" in page.words
    assert "checkpoints/000010" in page.words


@pytest.mark.parametrize("loss", [math.nan, math.inf, 0.0, -1.0])
def test_odd_losses_still_give_a_page(tmp_path: Path, loss: float) -> None:
    metrics = [train_line(step, loss=loss, grad_norm=loss) for step in (10, 20)]
    metrics += [validation_line(10, loss=loss, per_task={"fold": loss})]
    page = written(tmp_path, ReportContent(title="run", metrics=metrics))
    assert "svg" in page.tags


def test_other_kinds_of_lines_become_tables(tmp_path: Path) -> None:
    lines = [
        {**validation_line(step, success_rate=step / 100), "kind": "evaluation"}
        for step in range(1, 31)
    ]
    page = written(tmp_path, ReportContent(title="run", metrics=lines))
    assert "Evaluation" in page.words
    assert "success rate" in page.words
    assert "The last 12 of 30." in page.words
    assert " 0.3 " in page.words


def test_time_shares_count_steps_and_sum_to_one() -> None:
    spent = time_spent([train_line(10), train_line(40, step_s=0.2, dataloading_s=0.11)])
    assert spent is not None
    assert spent.total_s == pytest.approx(10 * 0.1 + 30 * 0.2)
    assert spent.shares["waiting for data"] == pytest.approx((10 * 0.01 + 30 * 0.11) / 7)
    assert sum(spent.shares.values()) == pytest.approx(1)


def test_time_shares_count_what_is_done_between_steps() -> None:
    train = [train_line(10, time=5.0), train_line(20, time=9.0, spent={"pause_s": 2.5})]
    spent = time_spent(train, [*train, validation_line(20, loss=1.0, time=10.5)])
    assert spent is not None
    assert spent.steps_s == pytest.approx(2.0)
    assert spent.total_s == pytest.approx(2.0 + 2.5 + 1.5)
    assert spent.shares["validating and saving"] == pytest.approx(4 / 6)
    assert sum(spent.shares.values()) == pytest.approx(1)


def test_losses_of_unlike_terms_have_axes_of_their_own() -> None:
    def titles(train_terms: dict[str, float], judged_terms: dict[str, float]) -> list[str]:
        head = {"kind": "train", "step": 1, "epoch": 0.1, "samples": 8}
        train = {**head, "loss": 65.0, **train_terms, "grad_norm": 1.0, "lr": 1e-4}
        judged = validation_line(1, loss=0.9, **judged_terms, action_error=0.9)
        made = charts([train], [judged], "action_error", {"action_error": 0.8})
        assert dict(made[-3].keys)[INK] == "of the mean action: 0.8"
        return [chart.title for chart in made[:-3]]

    l1 = {"l1_loss": 0.9}
    assert titles(l1, l1) == ["Loss"]
    assert titles({**l1, "kld_loss": 6.4}, l1) == [
        "Training loss (l1 loss, kld loss)",
        "Validation loss (l1 loss)",
    ]


def test_counters_of_the_reader_are_no_section(tmp_path: Path) -> None:
    spent = {"steps": 10, "total_s": 1.0, "flushes": 3}
    mixed = {"loss_by_dataset": {"arm": 0.4}}
    page = written(
        tmp_path, ReportContent(title="run", metrics=[train_line(10, spent=spent, **mixed)])
    )
    assert "Training loss by dataset" in page.words
    assert "flushes" not in page.words


def test_notes_do_not_look_like_warnings(tmp_path: Path) -> None:
    write_report(
        tmp_path / "r.html", ReportContent(title="run", notes=["order"], warnings=["skipped"])
    )
    html = (tmp_path / "r.html").read_text()
    assert '<ul class="warnings card"><li>skipped</li></ul>' in html
    assert '<ul class="notes card"><li>order</li></ul>' in html
    coloured = [line for line in html.splitlines() if "border-left" in line]
    assert coloured
    assert not any("notes" in line for line in coloured)


def test_the_command_that_runs_it_again_is_one_that_works(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    (tmp_path / "run-2").mkdir(parents=True)
    folder.mkdir()
    line = again("kata train --steps=3 --output_dir run --resume --seed=1", folder)
    where = shlex.quote(str(Path.cwd()))
    assert line == f"cd {where} && kata train --steps=3 --seed=1 --output_dir={folder}-3"
    assert again("", folder) == ""


def test_the_page_says_what_the_run_was_bound_by(tmp_path: Path) -> None:
    spent = {
        "steps": 10,
        "total_s": 1.0,
        "wait_s": 0.4,
        "update_s": 0.5,
        "decode_s": 0.7,
        "convert_s": 0.2,
    }
    page = written(tmp_path, ReportContent(title="run", metrics=[train_line(10, spent=spent)]))
    assert "bound by decoding frames: the loop waited 40% of the time" in page.words


def test_smoothing_is_a_centred_mean_without_what_is_not_finite() -> None:
    values = np.array([1.0, 2.0, math.nan, 4.0, 9.0])
    assert smoothed(values, 3).tolist() == [1.5, 1.5, 3.0, 6.5, 6.5]
    assert np.array_equal(smoothed(values, 1), values, equal_nan=True)
    assert smoothed(values, 50).shape == values.shape


def test_the_best_is_the_smallest_finite_value() -> None:
    lines = [validation_line(s, error=e) for s, e in ((1, 3.0), (2, math.nan), (3, 1.0), (4, 2.0))]
    assert best_of(lines, "error") == (3, 1.0)
    assert best_of(lines, "absent") is None
    assert validation_figure(lines, ["mean", "error"]) == "error"


def test_a_spike_survives_the_thinning_of_a_long_curve() -> None:
    steps, values = np.arange(50_000.0), np.ones(50_000)
    values[31_415], values[27_182] = 7.0, -3.0
    x, y = thinned(steps, values)
    assert len(x) <= POINTS_MAX + 2
    assert (np.diff(x) > 0).all()
    assert (x[0], x[-1]) == (0, 49_999)
    assert (x[y.argmax()], x[y.argmin()]) == (31_415, 27_182)
    assert len(curve_chart([Series(steps, values, "loss")])) < 60_000


def test_images_keep_their_shape_and_their_limit() -> None:
    rng = np.random.default_rng(0)
    frame = rng.integers(0, 256, (480, 640, 3), dtype=np.uint8)
    address = jpeg_url(frame, width=320, bytes_max=12_000)
    assert len(address) <= 12_000
    image = Image.open(io.BytesIO(base64.b64decode(address.split(",")[1])))
    assert image.width / image.height == pytest.approx(4 / 3, rel=0.05)
    grey = jpeg_url(frame[..., :1], width=320, bytes_max=40_000)
    assert Image.open(io.BytesIO(base64.b64decode(grey.split(",")[1]))).mode == "L"


def test_the_report_of_a_run_has_drawn_charts(light_run):
    """Loss, learning rate and gradient norm, and two actions of each sample."""
    trained = train(light_run("--steps=1"))
    page = Page(trained.report.read_text())
    samples = page.words.count("predicted")
    assert samples >= 1
    assert page.tags.count("svg") == 3 + 2 * samples
    assert page.tags.count("path") > 3 * page.tags.count("svg")
    assert "text" in page.tags
