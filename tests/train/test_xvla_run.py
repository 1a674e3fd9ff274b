"""A run of a tiny X-VLA: it continues exactly, and does not depend on how a batch is split."""

import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from kata.data import Batches, Order, Reader, anchor_rows, open_dataset
from kata.data.loader.batches import RankSlice
from kata.policies.xvla.config import Config
from kata.processors.pipeline import Pipeline
from kata.run import resolve_run
from kata.spec import Feature, FeatureType
from kata.train import train
from kata.train.input.feed import Feed
from kata.train.stopping import StopSignal
from tests.dist import ranks

INPUTS = {
    "observation.images.top": {"type": "VISUAL", "shape": [3, 48, 64]},
    "observation.state": {"type": "STATE", "shape": [3]},
}


@pytest.fixture(scope="module")
def peer_cases():
    sys.path.insert(0, str(Path(__file__).parents[2] / "tools/peer"))
    try:
        return importlib.import_module("policy_xvla")
    finally:
        sys.path.pop(0)


@pytest.fixture
def flags(peer_cases, tiny_dataset):
    """Options of a run in which nothing but the transformer drops anything."""
    sizes = {**peer_cases.TINY, "tokenizer_name": peer_cases.folder(), "action_mode": "auto"}
    plain = {k: v if isinstance(v, str) else json.dumps(v) for k, v in sizes.items()}
    return [
        "--policy.type=xvla", *(f"--policy.{name}={value}" for name, value in plain.items()),
        f"--policy.input_features={json.dumps(INPUTS)}",
        "--policy.resize_imgs_with_padding=[64,64]",
        "--policy.device=cpu", "--policy.push_to_hub=false", "--dataset.repo_id=tests/tiny",
        f"--dataset.root={tiny_dataset}", "--log_freq=1", "--num_workers=1",
    ]  # fmt: skip


@pytest.fixture
def trained(flags, tmp_path):
    def run(name, *options):
        return train(resolve_run([*flags, f"--output_dir={tmp_path}/{name}", *options])[0]).state

    return run


def equal(one, other, atol=0.0):
    for key, tensor in one.state_dict().items():
        torch.testing.assert_close(other.state_dict()[key], tensor, rtol=0, atol=atol, msg=key)


def test_a_resumed_run_equals_a_straight_one_byte_for_byte(trained, monkeypatch):
    options = ("--batch_size=4", "--steps=2", "--save_freq=1", "--ema.enable=true")
    straight = trained("straight", *options)
    answers = iter([False, True])
    with monkeypatch.context() as patched:
        patched.setattr(StopSignal, "should_stop", lambda stop_signal: next(answers))
        assert trained("half", *options).step == 1
    resumed = trained("half", *options, "--resume=true")
    equal(straight.policy, resumed.policy)
    equal(straight.ema, resumed.ema)


def test_a_step_does_not_depend_on_micro_batches(trained, monkeypatch):
    monkeypatch.setattr("kata.policies.xvla.transformer.DROPOUT", 0.0)
    sgd = ("--optimizer.type=sgd", "--optimizer.lr=0.01", "--steps=2", "--save_freq=2")
    whole = trained("whole", *sgd, "--batch_size=8")
    split = "--accelerator.gradient_accumulation.steps=2"
    equal(whole.policy, trained("split", *sgd, "--batch_size=4", split).policy, atol=1e-6)


@pytest.mark.long
def test_cells_of_a_frozen_image_encoder_may_come_from_a_cache(trained, tmp_path):
    options = (
        "--policy.freeze_vision_encoder=true",
        "--batch_size=4",
        "--steps=3",
        "--save_freq=3",
    )
    plain = trained("plain", *options)
    cache = ("--dataset.cache=vision", f"--dataset.cache_dir={tmp_path}/cache")
    equal(plain.policy, trained("cached", *options, *cache).policy)
    equal(plain.policy, trained("again", *options, *cache).policy)


@pytest.mark.long
@pytest.mark.parametrize("shards", [(), ("--parallelism.dp_shard=-1",)])
def test_two_ranks_take_the_step_of_one(shards, flags, trained, tmp_path):
    sgd = ("--optimizer.type=sgd", "--optimizer.lr=0.01", "--steps=2", "--save_freq=2")
    split = "--accelerator.gradient_accumulation.steps=2"
    one = trained("one", *sgd, "--batch_size=4", split)
    folder = tmp_path / "two"
    group = ranks.train(
        2, *flags, *sgd, *shards, "--batch_size=4", f"--output_dir={folder}",
        folder=tmp_path / "out",
    )  # fmt: skip
    assert group.ended(300) == [0, 0], group.said(0) + group.said(1)
    from safetensors.torch import load_file

    file = folder / "checkpoints/last/pretrained_model/model.safetensors"
    key_map = one.policy.key_map()
    for name, tensor in load_file(file).items():
        own = one.policy.state_dict().get(key_map.from_lerobot(name))
        if own is not None:
            torch.testing.assert_close(tensor, own, rtol=0, atol=1e-6, msg=name)


def test_times_follow_from_the_step_and_the_place_in_the_global_batch(tiny_dataset):
    """Two ranks, and micro-batches of any size, share the times that one rank draws."""
    config = Config(
        input_features={"observation.state": Feature(FeatureType.STATE, (3,))},
        output_features={"action": Feature(FeatureType.ACTION, (2,))},
        action_mode="auto",
    )
    data = open_dataset("tests/tiny", root=tiny_dataset)
    rows = anchor_rows(data)

    def times(step, of, micro):
        found = []
        for rank in range(of):
            with (
                Reader(data, {"action": (0, 1)}) as reader,
                Batches(
                    reader, rows, Order(len(rows), 3), 12, rank_slice=RankSlice(rank, of)
                ) as batches,
            ):
                feed = Feed(
                    batches, config, Pipeline("none", ()), torch.device("cpu"), micro, 7, ()
                )
                found += [draws["time"] for draws in feed.ready(batches.at(step), step * 12)[1]]
        return torch.cat(found)[:, 0].numpy()

    one = times(1, 1, 12)
    first = one[0]
    np.testing.assert_allclose(one - first, np.arange(12) / 12, atol=1e-6)
    assert 0 < first < 1
    for of, micro in ((2, 6), (2, 3), (3, 4), (1, 5)):
        assert np.array_equal(times(1, of, micro), one)
    assert times(2, 1, 12)[0] != first
