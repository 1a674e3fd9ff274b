"""A run that streams its dataset trains on what it would read from a disk, to the last loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kata.data import Dataset, open_dataset
from kata.errors import ConfigError
from kata.train import train
from kata.train.input import datasets
from kata.train.metrics.meter import read_metrics
from tests.data.far_store import FarStore, far


def losses(run: Any) -> list[float]:
    train(run)
    lines = read_metrics(Path(run.output_dir) / "metrics.jsonl")
    return [line["loss"] for line in lines if line["kind"] == "train"]


def test_the_losses_are_the_same(
    tiny_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--steps=4", "--log_freq=1", "--dataset.eval_split=0.3", "--eval_steps=2")
    near = losses(tiny_run(*options, f"--output_dir={tmp_path}/near"))
    stores: list[FarStore] = []

    def open_far(*args: Any, streaming: bool, **kwargs: Any) -> Dataset:
        assert streaming
        there, store = far(open_dataset(*args, **kwargs), delay_s=0.002)
        stores.append(store)
        return there

    monkeypatch.setattr(datasets, "open_dataset", open_far)
    streamed = tiny_run(
        *options,
        "--dataset.streaming=true",
        "--dataset.buffer_gb=0.2",
        f"--output_dir={tmp_path}/far",
    )
    assert losses(streamed) == near
    assert len(near) == 4
    assert stores[0].read


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--dataset.buffer_gb=2",), ("on this machine", "--dataset.frame_memory")),
        (
            ("--dataset.streaming=true", "--dataset.buffer_gb=1", "--dataset.frame_memory=1GB"),
            ("the larger one", "--dataset.buffer_gb"),
        ),
        (("--dataset.buffer_size=1000",), ("--dataset.buffer_gb",)),
        (("--buffer_size=1000",), ("--dataset.buffer_gb",)),
    ],
)
def test_options_that_do_not_fit_are_refused(
    tiny_run: Any, options: tuple[str, ...], words: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError) as error:
        tiny_run(*options)
    for word in words:
        assert word in str(error.value)
