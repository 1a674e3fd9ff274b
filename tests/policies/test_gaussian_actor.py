"""The Gaussian actor: options, files under LeRobot's names, acting, and what it refuses."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from kata.config import decode
from kata.errors import PolicyError
from kata.policies import build_policy, config_class, types_from_recordings
from kata.policies.config import PolicyConfig
from kata.policies.gaussian_actor.config import Config, GaussianConfig, LayersConfig
from kata.policies.gaussian_actor.model import squashed
from kata.policies.load import load_weights, save_weights
from kata.run import read_policy_config, resolve_run
from kata.spec import ACTION, ENV_STATE, STATE, Feature, FeatureType

TOP, WRIST = "observation.images.top", "observation.images.wrist"
TINY = {
    "latent_dim": 6, "image_encoder_hidden_dim": 4, "image_embedding_pooling_dim": 2,
    "actor_network_kwargs": LayersConfig(hidden_dims=[8, 8]),
}  # fmt: skip


def config(*, inputs=(TOP, WRIST, STATE), size=(44, 40), **options):
    known = {
        TOP: Feature(FeatureType.VISUAL, (3, *size)),
        WRIST: Feature(FeatureType.VISUAL, (3, *size)),
        STATE: Feature(FeatureType.STATE, (4,)),
        ENV_STATE: Feature(FeatureType.ENV, (5,)),
    }
    return Config(
        input_features={key: known[key] for key in inputs},
        output_features={ACTION: Feature(FeatureType.ACTION, (2,))},
        **{**TINY, **options},
    )


def seen(config, size=3, seed=0):
    stream = torch.Generator().manual_seed(seed)
    inputs = config.input_features.items()
    return {k: torch.rand(size, *f.shape, generator=stream) for k, f in inputs}


@pytest.mark.parametrize(
    ("options", "inputs", "tensors"),
    [  # as LeRobot's file of such a policy has
        ({"num_discrete_actions": 3}, (TOP, WRIST, STATE), 44),
        ({"num_discrete_actions": 3, "shared_encoder": False}, (TOP, STATE), 56),
        ({"shared_encoder": False}, (TOP, STATE), 46),
        ({}, (TOP, STATE), 29),
    ],
)
def test_the_file_has_lerobots_tensors_and_is_read_back(options, inputs, tensors, tmp_path):
    made = config(inputs=inputs, **options)
    first, second = build_policy(made), build_policy(made)
    save_weights(first, tmp_path / "model.safetensors")
    stored = load_file(tmp_path / "model.safetensors")
    assert len(stored) == tensors
    assert all(
        name.startswith(("actor.", "discrete_critic.", "encoder_critic.")) for name in stored
    )
    load_weights(second, tmp_path / "model.safetensors")
    own = second.state_dict()
    assert all(torch.equal(own[name], value) for name, value in first.state_dict().items())


def test_the_default_policy_has_lerobots_size():
    made = Config(
        input_features={
            **{k: Feature(FeatureType.VISUAL, (3, 128, 128)) for k in (TOP, WRIST)},
            STATE: Feature(FeatureType.STATE, (18,)),
        },
        output_features={ACTION: Feature(FeatureType.ACTION, (3,))},
        num_discrete_actions=3,
    )
    with torch.device("meta"):
        assert sum(p.numel() for p in build_policy(made).parameters()) == 734_953


def test_a_folder_of_the_old_type_sac_is_read(tmp_path):
    made = config(num_discrete_actions=3)
    policy = build_policy(made)
    save_weights(policy, tmp_path / "model.safetensors")
    made.save(tmp_path)
    raw = json.loads((tmp_path / "config.json").read_text())
    raw |= {"type": "sac", "temperature_init": 0.5, "num_critics": 2, "utd_ratio": 2}
    raw["concurrency"].pop("multiprocessing_context")
    (tmp_path / "config.json").write_text(json.dumps(raw))
    stored = load_file(tmp_path / "model.safetensors")
    for ensemble in ("critic_ensemble", "critic_target"):
        stored[f"{ensemble}.critics.1.net.net.3.weight"] = torch.zeros(2, 2)
        stored[f"{ensemble}.critics.1.net.net.3.bias"] = torch.zeros(2)
    save_file({**stored, "log_alpha": torch.zeros(1)}, tmp_path / "model.safetensors")
    notes: list[str] = []
    found = decode(PolicyConfig, read_policy_config(tmp_path, notes), at="policy")
    assert found == made
    assert "temperature_init" in notes[0]
    read = build_policy(found)
    load_weights(read, tmp_path / "model.safetensors")
    assert torch.equal(read.actor.mean_layer.weight, policy.actor.mean_layer.weight)


def test_the_mode_is_taken_unless_samples_are_wanted():
    policy = build_policy(config(num_discrete_actions=3))
    given = seen(policy.config)
    state = policy.init_state(3)
    action, state = policy.act(given, state)
    assert action.shape == (3, 3)
    assert torch.equal(action, policy.act(given, state)[0])
    assert set(action[:, 2].tolist()) <= {0.0, 1.0, 2.0}
    encoded = policy.encoder_critic(given)
    mean, variance = policy.actor(encoded)
    assert torch.equal(action[:, :2], mean.tanh())
    noise = torch.randn(3, 2)
    sampling = policy.sampling_state()
    sampling.source = lambda name, wanted: noise
    drawn, after = policy.act(given, sampling)
    assert torch.equal(drawn[:, :2], squashed(mean, variance, noise)[0])
    assert after.memory == sampling.memory
    assert build_policy(config(act_by="sample")).init_state(1).memory == sampling.memory


def test_the_density_is_that_of_the_squashed_gaussian():
    mean, variance = torch.tensor([[0.3, -1.0]]), torch.tensor([[0.5, 0.04]])
    noise = torch.tensor([[0.4, 30.0]])
    action, density = squashed(mean.double(), variance.double(), noise.double())
    plain = torch.distributions.Normal(mean.double(), variance.double().sqrt())
    u = mean.double() + variance.double().sqrt() * noise.double()
    expected = (plain.log_prob(u) - torch.log1p(-u.tanh().square())).sum(-1)
    assert torch.allclose(action, u.tanh())
    assert torch.allclose(density, expected, rtol=1e-6)


def test_the_spread_is_a_variance_as_in_lerobot_or_a_standard_deviation():
    first = build_policy(config(inputs=(STATE,)))
    second = build_policy(config(inputs=(STATE,), actor_std="std"))
    second.load_state_dict(first.state_dict())
    x = torch.randn(4, first.encoder_critic.width)
    assert torch.allclose(first.actor(x)[1].square(), second.actor(x)[1])


def test_a_frozen_encoder_is_not_trained():
    names = {name for name, p in build_policy(config()).named_parameters() if not p.requires_grad}
    assert names == {
        f"encoder_critic.image_encoder.image_enc_layers.{n}.{kind}"
        for n in (0, 2, 4, 6)
        for kind in ("weight", "bias")
    }


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"n_obs_steps": 2}, "latest observation"),
        ({"policy_kwargs": GaussianConfig(std_min=2.0, std_max=1.0)}, "std_min <= std_max"),
        ({"policy_kwargs": GaussianConfig(use_tanh_squash=False)}, "squashed"),
        ({"vision_encoder_name": "lerobot/resnet10"}, "freeze_vision_encoder=false"),
        ({"num_discrete_actions": 1}, "at least 2"),
    ],
)
def test_impossible_options_are_refused_with_a_remedy(options, said):
    with pytest.raises(PolicyError) as caught:
        config(**options)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("inputs", "size", "said"), [((), (44, 44), "a camera"), ((TOP,), (38, 64), "at least 39")]
)
def test_inputs_that_do_not_suit_are_refused(inputs, size, said):
    with pytest.raises(PolicyError, match=said):
        config(inputs=inputs, size=size).validate_features()


def test_kata_train_refuses_it_and_names_kata_rl(tmp_path):
    args = ["--policy.type=gaussian_actor", "--dataset.repo_id=a/b", f"--dataset.root={tmp_path}"]
    with pytest.raises(PolicyError, match="kata rl train"):
        resolve_run([*args, "--policy.push_to_hub=false"])
    policy = build_policy(config(inputs=(STATE,)))
    with pytest.raises(PolicyError, match="kata rl train"):
        policy(seen(policy.config))
    assert "gaussian_actor" not in types_from_recordings()
    assert config_class("sac") is Config
