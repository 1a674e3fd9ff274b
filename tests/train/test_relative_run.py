"""Actions relative to the state in policies that LeRobot has no option for: from the dataset to
acting.
"""

import json

import numpy as np
import pytest
import torch

from kata.data import open_dataset
from kata.errors import PolicyError
from kata.eval.rollout_policy import load_for_acting
from kata.policies import config_class
from kata.policies.relative import ABSOLUTE_STEP, RELATIVE_STEP, with_relative_steps
from kata.run import resolve_run
from kata.spec import ENV_STATE, ORIGIN, STATE, Feature, FeatureType
from kata.train import train
from tests.conftest import TINY_ACT

STEPS = 3
SHARED = (
    "--dataset.repo_id=tests/vectors", "--policy.push_to_hub=false", "--policy.device=cpu",
    "--policy.use_relative_actions=true", "--policy.relative_exclude_joints=[y]",
    "--policy.action_feature_names=[x,y]", "--batch_size=4", "--steps=1", "--save_freq=1",
    "--num_workers=1",
)  # fmt: skip
ACT = (*TINY_ACT, "--policy.chunk_size=3", "--policy.n_action_steps=3")
DIFFUSION = (
    "--policy.type=diffusion", "--policy.horizon=4", "--policy.n_action_steps=2",
    "--policy.down_dims=[8,16]", "--policy.n_groups=4", "--policy.diffusion_step_embed_dim=8",
    "--policy.num_train_timesteps=4", "--policy.drop_n_last_frames=1",
    '--policy.normalization_mapping={"ACTION": "MEAN_STD", "STATE": "MEAN_STD", "ENV": "MEAN_STD"}',
)  # fmt: skip


def by_hand(root, offsets, drop_last):
    """Return mean and spread of x minus the state's x, and of y, over all chunks of samples."""
    found = []
    data = open_dataset("tests/vectors", root=root)
    episodes = data.episodes
    for first, length in zip(episodes.start.tolist(), episodes.length.tolist(), strict=True):
        rows = slice(first, first + length)
        action, state = (data.column(key)[rows] for key in ("action", STATE))
        for anchor in range(length - drop_last):
            steps = [anchor + o for o in offsets if 0 <= anchor + o < length]
            found += [(action[step, 0] - state[anchor, 0], action[step, 1]) for step in steps]
    return np.mean(found, axis=0), np.std(found, axis=0)


@pytest.mark.parametrize(
    ("given", "offsets", "drop_last"),
    [(ACT, (0, 1, 2), 0), (DIFFUSION, (-1, 0, 1, 2), 1)],
    ids=["act", "diffusion"],
)
def test_statistics_steps_and_acting_are_of_relative_actions(
    given, offsets, drop_last, vector_dataset, tmp_path
):
    place = [f"--dataset.root={vector_dataset}", f"--output_dir={tmp_path}/run"]
    trained = train(resolve_run([*given, *SHARED, *place])[0])
    # 1. LeRobot's steps are in the checkpoint, in LeRobot's order, and its config is LeRobot's.
    folder = trained.folder / "checkpoints/last/pretrained_model"
    before, after = (
        json.loads((folder / f"policy_{name}processor.json").read_text())["steps"]
        for name in ("pre", "post")
    )
    names = [step["registry_name"] for step in before]
    at = names.index(RELATIVE_STEP)
    assert names[at + 1] == "normalizer_processor"
    assert before[at]["config"]["exclude_joints"] == ["y"]
    assert [step["registry_name"] for step in after][:2] == [
        "unnormalizer_processor",
        ABSOLUTE_STEP,
    ]
    assert "use_relative_actions" not in json.loads((folder / "config.json").read_text())
    # 2. Statistics are those of the chunks that are trained on.
    ready = load_for_acting(str(folder), "cpu")
    stats = next(s for s in ready.after.steps if s.registry_name == "unnormalizer_processor").stats
    mean, std = by_hand(vector_dataset, offsets, drop_last)
    np.testing.assert_allclose(stats["action"]["mean"], mean, atol=1e-6)
    np.testing.assert_allclose(stats["action"]["std"], std, atol=1e-6)
    # 3. In acting the state of the chunk is added, not that of the step.
    state = ready.policy.init_state(1)
    acted = []
    for step in range(2):
        seen = {STATE: np.full((1, 3), step, np.float32), ENV_STATE: np.ones((1, 2), np.float32)}
        action, state = ready.act(seen, "", state, lambda _, draw: torch.zeros(1, *draw.shape))
        acted.append(action[0])
        assert state.memory[ORIGIN].tolist() == [[0.0, 0.0, 0.0]]
    assert np.isfinite(acted).all()


@pytest.mark.parametrize("name", ["act", "diffusion", "multi_task_dit", "vqbet", "xvla", "wall_x"])
def test_each_policy_of_chunks_subtracts_before_it_normalizes(name):
    options = {
        "xvla": {"action_mode": "auto"},
        # Without a config of its own it would ask the Hub for the model's.
        "wall_x": {"base_config": {"vision_config": {"patch_size": 14, "spatial_merge_size": 2}}},
    }.get(name, {})
    config = config_class(name)(
        use_relative_actions=True,
        input_features={
            STATE: Feature(FeatureType.STATE, (3,)),
            "observation.images.top": Feature(FeatureType.VISUAL, (3, 64, 64)),
        },
        output_features={"action": Feature(FeatureType.ACTION, (2,))},
        **options,
    )
    steps, last = config.processor_steps(), config.action_steps()
    before, after = with_relative_steps(config, steps, last)
    at = [step for step, _ in before].index(RELATIVE_STEP)
    assert before[at + 1][0] == "normalizer_processor"
    assert [step for step, _ in after][:2] == ["unnormalizer_processor", ABSOLUTE_STEP]
    assert [each for each in before if each[0] != RELATIVE_STEP] == steps
    assert config.relative_dimensions() == [True, True]


def test_relative_actions_that_cannot_be_had_are_refused(vector_dataset, tmp_path):
    act = config_class("act")
    with pytest.raises(PolicyError, match="temporal_ensemble_coeff"):
        act(use_relative_actions=True, temporal_ensemble_coeff=0.01, n_action_steps=1)
    inputs = json.dumps({ENV_STATE: {"type": "ENV", "shape": [2]}})
    place = [f"--dataset.root={vector_dataset}", f"--output_dir={tmp_path}/run"]
    run = resolve_run([*ACT, *SHARED, *place, f"--policy.input_features={inputs}"])[0]
    with pytest.raises(PolicyError, match=r"relative to observation\.state"):
        train(run)
    picture = Feature(FeatureType.VISUAL, (3, 64, 64))
    xvla = config_class("xvla")(
        use_relative_actions=True,
        input_features={"observation.images.top": picture, STATE: Feature(FeatureType.STATE, (9,))},
        output_features={"action": Feature(FeatureType.ACTION, (10,))},
    )
    with pytest.raises(PolicyError, match="action_mode=ee6d"):
        xvla.validate_features()
