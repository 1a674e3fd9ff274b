"""A classifier learns what recordings show, and says when they show nothing."""

import json

import numpy as np
import pytest
import torch

from kata.config import decode
from kata.errors import CheckpointError, ConfigError, DataError, PolicyError
from kata.rl.classifier.command import classify
from kata.rl.classifier.options import ClassifyRun
from kata.rl.classifier.saved import load_classifier
from tests.rl.classifier.recordings import MIXED, TOP, picture, write

SMALL = {"latent_dim": 8, "hidden_dim": 8, "device": "cpu", "learning_rate": 3e-3}


def run(root, folder, **more):
    torch.set_num_threads(1)
    given = {"output_dir": str(folder), "dataset": {"root": str(root)}, "reward_model": SMALL}
    return decode(ClassifyRun, {**given, "steps": 30, "batch_size": 8, "held_out": 0.3, **more})


def weights(folder):
    return load_classifier(folder, "cpu").model.state_dict()


def test_success_is_seen_in_episodes_kept_apart(tmp_path, capsys):
    root = write(tmp_path / "shown", MIXED)
    assert classify(run(root, tmp_path / "made", threshold=0.4)) == 0
    found = json.loads((tmp_path / "made/classify.json").read_text())
    assert (found["episodes"], found["frames"], found["threshold"]) == (1, 5, 0.4)
    assert found["right"] == 1
    assert "--rl.classifier=" in capsys.readouterr().out
    # 1. The frame after the reward is the one that shows it.
    made, stream = load_classifier(tmp_path / "made", "cpu"), np.random.default_rng(7)
    told = [made.probability({TOP: picture(bright, stream)}) for bright in (False, True)]
    assert told[0] < 0.5 < told[1]
    # 2. The same seed gives the same weights; the whole head has learned.
    classify(run(root, tmp_path / "again", threshold=0.4))
    classify(run(root, tmp_path / "one", steps=1))
    mine, again, one = (weights(tmp_path / name) for name in ("made", "again", "one"))
    assert all(torch.equal(mine[name], again[name]) for name in mine)
    kernel = "encoders.observation_images_top.1.kernel"
    assert not torch.equal(mine[kernel], one[kernel])


@pytest.mark.parametrize(
    ("rewards", "more", "error", "said"),
    [
        ([[0, 0, 0], [0, 0, 1]], {}, DataError, r"(?s)never above 0 in 4 frames.*record successes"),
        ([[1, 1, 1], [1, 1, 1]], {}, DataError, r"(?s)always above 0.*record failures"),
        ([[0, 1, 1], [0, 0, 0]], {}, DataError, "of one class"),
        (MIXED, {"steps": 1, "threshold": 0.999}, PolicyError, "the more frequent class alone"),
        (MIXED, {"reward_model": {"model_name": "/nowhere"}}, CheckpointError, "of transformers"),
    ],
)
def test_what_cannot_be_learned_is_refused_and_leaves_nothing(rewards, more, error, said, tmp_path):
    root = write(tmp_path / "shown", rewards)
    with pytest.raises(error, match=said):
        classify(run(root, tmp_path / "made", **more))
    assert not (tmp_path / "made").exists()


def test_recordings_without_reward_or_camera_and_a_full_folder_are_refused(tmp_path):
    root = write(tmp_path / "shown", MIXED[:2], reward=False)
    with pytest.raises(DataError, match=r"no next\.reward"):
        classify(run(root, tmp_path / "made"))
    other = {**SMALL, "input_features": {TOP: {"type": "VISUAL", "shape": [3, 8, 8]}}}
    with pytest.raises(DataError, match=r"its cameras: observation\.images\.top \[3, 40, 40\]"):
        classify(run(root, tmp_path / "made", reward_model=other))
    with pytest.raises(ConfigError, match=r"dataset\.root: not given"):
        run(root, tmp_path / "made", dataset={})
    with pytest.raises(CheckpointError, match="its own folder"):
        classify(run(root, root))
