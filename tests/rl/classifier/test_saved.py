"""A classifier's files, its encoder from elsewhere, and a run whose reward it tells."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from kata.errors import CheckpointError, PolicyError
from kata.rl.classifier.config import ClassifierConfig
from kata.rl.classifier.encoder import ResNet, ResNetShape, save_resnet
from kata.rl.classifier.saved import (
    SuccessJudge,
    classifier_digest,
    load_classifier,
    new_classifier,
    open_judge,
)
from kata.rl.environment import CLASSIFIER
from kata.rl.episodes.episode import Schema
from kata.spec import STATE, Feature, FeatureType

TOP, SIDE = "observation.images.top", "observation.images.side"
CAMERAS = {
    TOP: Feature(FeatureType.VISUAL, (3, 40, 56)),
    SIDE: Feature(FeatureType.VISUAL, (3, 33, 40)),
}
SMALL = ResNetShape(embedding_size=4, hidden_sizes=(4, 8), depths=(1, 2), layer_type="bottleneck")


def config(**more):
    return ClassifierConfig(device="cpu", latent_dim=8, hidden_dim=8, **more).with_cameras(CAMERAS)


def seen():
    stream = np.random.default_rng(0)
    return {
        k: stream.integers(0, 255, (f.shape[1], f.shape[2], 3), np.uint8)
        for k, f in CAMERAS.items()
    }


@pytest.fixture
def folder(tmp_path):
    made = new_classifier(config(), 0)
    made.model.eval()
    (tmp_path / "made").mkdir()
    made.save(tmp_path / "made")
    return tmp_path / "made", made


def test_files_give_the_same_answers_again(folder):
    place, made = folder
    assert load_classifier(place, "cpu").probability(seen()) == made.probability(seen())
    found = json.loads((place / "config.json").read_text())
    assert (found["type"], found["num_cameras"]) == ("reward_classifier", 2)
    assert found["model_name"] == str(place / "encoder")
    assert classifier_digest(place) == classifier_digest(place)


def test_a_pretrained_encoder_comes_from_its_folder(tmp_path):
    torch.manual_seed(1)
    net = ResNet(SMALL)
    save_resnet(net, SMALL, tmp_path / "resnet")
    made = new_classifier(config(model_name=str(tmp_path / "resnet")), 0)
    own = made.model.encoder.state_dict()
    assert all(torch.equal(own[name], tensor) for name, tensor in net.state_dict().items())
    # A classifying ResNet has a prefix and a head.
    named = {f"resnet.{name}": tensor for name, tensor in net.state_dict().items()}
    file = tmp_path / "resnet/model.safetensors"
    save_file({**named, "classifier.1.bias": torch.zeros(3)}, file)
    new_classifier(config(model_name=str(tmp_path / "resnet")), 0)
    save_file({"resnet.x": torch.zeros(1)}, file)
    with pytest.raises(CheckpointError, match="absent or of another shape"):
        new_classifier(config(model_name=str(tmp_path / "resnet")), 0)
    text = json.dumps({"model_type": "vit"})
    (tmp_path / "resnet/config.json").write_text(text)
    with pytest.raises(PolicyError, match="code of other models is not run"):
        new_classifier(config(model_name=str(tmp_path / "resnet")), 0)


def test_folders_of_something_else_are_refused(folder, tmp_path):
    place, _ = folder
    with pytest.raises(CheckpointError, match="folder of a reward classifier"):
        load_classifier(tmp_path)
    with pytest.raises(CheckpointError, match="cannot be read"):
        classifier_digest(tmp_path)
    save_file({"x": torch.zeros(1)}, place / "model.safetensors")
    with pytest.raises(CheckpointError, match="absent, unknown or of another shape"):
        load_classifier(place)
    (place / "config.json").write_text('{"type": "act"}')
    with pytest.raises(CheckpointError, match="of the type act"):
        load_classifier(place)


def test_a_run_needs_the_cameras_of_its_judge(folder):
    place, made = folder
    assert open_judge(None, 0.5, Schema({STATE: (2,)}, (), 2), "cpu") is None
    shapes = {STATE: (2,), TOP: (40, 56, 3), SIDE: (33, 40, 3)}
    judge = open_judge(str(place), 0.5, Schema(shapes, (TOP, SIDE), 2), "cpu")
    told = made.probability(seen())
    assert judge is not None
    assert judge(seen()) == (told > 0.5)
    assert SuccessJudge(made, told - 1e-3)(seen())
    assert not SuccessJudge(made, told + 1e-3)(seen())
    with pytest.raises(PolicyError, match=r"sees observation\.images\.side of 33x40"):
        open_judge(str(place), 0.5, Schema({TOP: (40, 56, 3)}, (TOP,), 2), "cpu")


def test_the_judge_pays_and_ends_the_episode(monkeypatch):
    from kata.rl.actor import EpisodeActor
    from kata.rl.environment import RlEnv
    from tests.rl.test_environment import Zeros, rules

    monkeypatch.setattr("kata.rl.actor._sampling", lambda acting: None)
    world = RlEnv(rules(CLASSIFIER), lambda found: bool(found[STATE][0] == 3))
    world.env.unwrapped.resets = 1
    played = EpisodeActor(Zeros(), world, "", 0).episode(0, 0, 0.0)
    assert played.reward.tolist() == [0, 0, 1]
    assert (played.terminated, played.success) == (True, True)
