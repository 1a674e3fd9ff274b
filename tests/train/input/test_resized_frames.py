"""Frames that the reader makes as small as the policy wants them: less to read and hold, nearly
the same training.
"""

import numpy as np
import pytest

from kata.data.frames.frame_format import FrameFormat
from kata.errors import ConfigError
from kata.run import resolve_run
from kata.train import train
from kata.train.input.prepare import prepare
from kata.train.metrics.meter import read_metrics
from tests.train.test_every_policy import TINY


@pytest.fixture
def run(tiny_dataset, tmp_path):
    def make(folder, *options):
        return resolve_run(
            [
                "--policy.type=diffusion", *TINY["diffusion"], "--policy.crop_shape=null",
                "--policy.resize_shape=[36,48]",
                "--dataset.repo_id=tests/tiny", f"--dataset.root={tiny_dataset}", "--policy.device=cpu",  # noqa: E501
                "--policy.push_to_hub=false", "--batch_size=4", "--steps=2", "--log_freq=1", "--num_workers=1",  # noqa: E501
                "--save_checkpoint=false", f"--output_dir={tmp_path}/{folder}", *options,
            ]
        )[0]  # fmt: skip

    return make


def losses(done):
    return [
        line["loss"]
        for line in read_metrics(done.folder / "metrics.jsonl")
        if line["kind"] == "train"
    ]


def test_a_run_on_resized_frames_is_nearly_the_run_on_whole_ones(run, tmp_path):
    options = ("--dataset.resize=reader", "--dataset.frame_memory=100KB")
    prepared = prepare(run("look", *options))
    assert prepared.reading.frame_format == FrameFormat(
        dict.fromkeys(prepared.run.policy.cameras, (36, 48))
    )
    assert all(feature.shape == (3, 48, 64) for feature in prepared.run.policy.cameras.values()), (
        "as recorded"
    )
    device, reader = (
        train(run("device")),
        train(run("reader", *options, "--dataset.cache=disk", f"--dataset.cache_dir={tmp_path}")),
    )
    np.testing.assert_allclose(losses(reader), losses(device), rtol=0.02)
    assert losses(reader) != losses(device)
    (pixels,) = (tmp_path / "frames").glob("*.pixels")
    assert pixels.stat().st_size % (36 * 48 * 3) == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--policy.resize_shape=null",), "diffusion resizes no frames here"),
        (("--policy.resize_shape=[48,64]",), "diffusion resizes no frames here"),
    ],
)
def test_resizing_that_changes_nothing_is_refused(run, options, words):
    with pytest.raises(ConfigError, match=words):
        prepare(run("refused", "--dataset.resize=reader", *options))


def test_an_unknown_place_is_refused(run):
    with pytest.raises(ConfigError, match="did you mean 'reader'"):
        run("refused", "--dataset.resize=readr")
