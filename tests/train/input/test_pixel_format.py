"""A run whose frames the device converts is the run whose frames the reader converts, bit for
bit.
"""

import pytest
import torch

from kata.errors import ConfigError
from kata.train import train
from kata.train.metrics.meter import read_metrics
from tests.data.dataset_maker import make

FRAMES = sum(range(12, 18))
OPTIONS = ("--steps=2", "--log_freq=1", "--save_checkpoint=false", "--policy.device=cpu")
VARIED = (*OPTIONS, "--dataset.image_transforms.enable=true", "--dataset.eval_split=0.5")


def losses(done):
    return [
        (x["kind"], x["loss"]) for x in read_metrics(done.folder / "metrics.jsonl") if "loss" in x
    ]


def test_the_same_losses_and_weights(tiny_run, tmp_path):
    rgb = train(tiny_run(*VARIED, f"--output_dir={tmp_path}/rgb"))
    cache = ("--dataset.cache=disk", f"--dataset.cache_dir={tmp_path}")
    yuv = train(tiny_run(*VARIED, "--dataset.pixels=yuv", *cache, f"--output_dir={tmp_path}/yuv"))
    assert losses(yuv) == losses(rgb)
    ours, theirs = (done.state.policy.state_dict() for done in (yuv, rgb))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    sizes = sorted(path.stat().st_size for path in (tmp_path / "frames").glob("*.pixels"))
    assert sizes == [FRAMES * 32 * 32 * 3 // 2, FRAMES * 48 * 64 * 3 // 2]
    assert yuv.report.stat().st_size > 0.9 * rgb.report.stat().st_size, "the samples are pictures"


def test_a_resumed_run_keeps_it(tiny_run):
    train(tiny_run(*OPTIONS, "--steps=1", "--save_checkpoint=true", "--dataset.pixels=yuv"))
    with pytest.raises(ConfigError, match=r"dataset.pixels was yuv and is now rgb"):
        tiny_run("--steps=2", "--dataset.pixels=rgb", "--resume=true")
    assert tiny_run("--steps=2", "--resume=true").dataset.pixels == "yuv"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--dataset.pixels=yuv", "--dataset.resize=reader"), "pixels=yuv and dataset.resize"),
        (("--dataset.pixels=yuv", "--dataset.decoder=nvdec"), "pixels=yuv and dataset.decoder"),
        (("--dataset.pixels=yub",), "did you mean 'yuv'"),
    ],
)
def test_what_contradicts_is_refused(tiny_run, more, words):
    with pytest.raises(ConfigError, match=words):
        tiny_run(*more)


def test_images_are_refused(tiny_run, tmp_path):
    images = make(tmp_path / "images", lengths=(21, 8), camera="image")
    with pytest.raises(ConfigError, match=r"(?s)images\).*rule:.*4:2:0.*remedy:.*dataset.pixels"):
        train(tiny_run(f"--dataset.root={images}", "--dataset.pixels=yuv"))
