"""SAC beside what the golden files hold: kata's own switches, sharing of work, and the state."""

import copy

import pytest
import torch

from kata.errors import CheckpointError, PolicyError
from kata.policies import build_policy
from kata.rl.sac.algorithm import Sac, Transitions
from kata.rl.sac.config import CriticLayersConfig, SacConfig
from kata.spec import STATE
from tests.policies.test_gaussian_actor import TOP, config, seen

LAYERS = CriticLayersConfig(hidden_dims=[8, 8])


class Numbers:
    """Random numbers of a seed."""

    def __init__(self, seed):
        self.stream = torch.Generator().manual_seed(seed)

    def normal(self, shape):
        return torch.randn(shape, generator=self.stream)

    def dropout(self, values):
        return values * (torch.rand(values.shape, generator=self.stream) < 0.9) / 0.9

    def some_critics(self, count, of):
        return torch.randperm(of, generator=self.stream)[:count]


def sac(seed=0, *, inputs=(STATE,), policy=None, **options):
    torch.manual_seed(seed)
    made = build_policy(config(inputs=inputs, **(policy or {})))
    return Sac(made, SacConfig(critic_network_kwargs=LAYERS, **options))


def batch(algorithm, seed=0, *, size=5, done=0.0):
    stream = torch.Generator().manual_seed(seed)
    made = algorithm.policy.config
    action = 2 * torch.rand(size, 2, generator=stream) - 1
    if made.num_discrete_actions:
        choice = torch.randint(0, made.num_discrete_actions, (size, 1), generator=stream)
        action = torch.cat((action, choice.float()), 1)
    reward, penalty = torch.rand(2, size, generator=stream)
    ends = torch.full((size,), done)
    shown = (torch.arange(size) % 2).float()
    return Transitions(
        seen(made, size, seed), action, reward, ends, seen(made, size, seed + 1), -penalty, shown
    )


def weights(algorithm):
    named = {**algorithm.policy.state_dict(), **algorithm.state_dict()}
    return {name: value.clone() for name, value in named.items()}


def changed(before, after):
    return {name for name, value in before.items() if not torch.equal(value, after[name])}


def test_frozen_weights_stay_bit_for_bit():
    algorithm = sac(inputs=(TOP, STATE))
    before = weights(algorithm)
    for number in range(3):
        algorithm.update([batch(algorithm, number)], Numbers(number))
    moved = changed(before, weights(algorithm))
    assert not [name for name in moved if "image_encoder" in name]
    assert {"log_alpha", "encoder_critic.state_encoder.0.weight", "actor.mean_layer.bias"} <= moved
    assert algorithm.updates == 3


@pytest.mark.parametrize("target", ["shared", "own"])
@pytest.mark.parametrize("shared", [True, False])
def test_vectors_encoded_once_give_what_recomputed_ones_give(shared, target, monkeypatch):
    policy = {"num_discrete_actions": 3, "shared_encoder": shared}
    once = sac(policy=policy, target_encoder=target)
    again = sac(policy=policy, target_encoder=target)

    def always(self, encoder, maps, dropout):
        return encoder(self.values, maps, dropout=dropout)

    for number in range(3):
        batches = [batch(once, number), batch(once, number + 9)]
        once.update(batches, Numbers(number))
        with monkeypatch.context() as patched:
            patched.setattr("kata.rl.sac.algorithm._Seen.encoded_by", always)
            again.update(batches, Numbers(number))
    assert not changed(weights(once), weights(again))


@pytest.mark.parametrize("shared", [True, False])
def test_maps_computed_once_give_what_recomputed_ones_give(shared):
    policy = {"shared_encoder": shared, "num_discrete_actions": 3}
    first = sac(inputs=(TOP, STATE), policy=policy, utd_ratio=2)
    second = copy.deepcopy(first)
    for encoder in (second.policy.encoder_critic, second.policy.acting_encoder):
        encoder.is_frozen = False
    second.target_encoder = second.policy.encoder_critic
    for algorithm in (first, second):
        algorithm.update([batch(algorithm, 1), batch(algorithm, 2)], Numbers(0))
    assert not changed(weights(first), weights(second))


def test_a_truncated_step_is_worth_more_than_its_reward():
    """done=0 bootstraps from the next observation, done=1 does not."""
    open_end, end = sac(discount=0.9), sac(discount=0.9)
    losses = [
        a.update([batch(a, done=done)], Numbers(0))["loss_critic"]
        for a, done in ((open_end, 0.0), (end, 1.0))
    ]
    assert losses[0] != losses[1]
    given = batch(end, done=1.0)
    encoded = sac().policy.encoder_critic(given.seen)
    values = sac().critics(encoded, given.action)
    assert torch.allclose(losses[1], (values - given.reward).square().mean(1).sum())


def test_an_own_target_encoder_follows_slowly():
    algorithm = sac(target_encoder="own", critic_target_update_weight=0.25)
    before = weights(algorithm)
    algorithm.update([batch(algorithm)], Numbers(0))
    after = weights(algorithm)
    name = "state_encoder.0.weight"
    started = before[f"encoder_critic.{name}"]
    expected = started.lerp(after[f"encoder_critic.{name}"], 0.25)
    assert torch.equal(after[f"target_encoder.{name}"], expected)


def test_the_penalty_is_read_in_every_update_unless_as_in_lerobot():
    found = {}
    for which in ("all", "not_last"):
        algorithm = sac(policy={"num_discrete_actions": 3}, discrete_penalty=which)
        given = batch(algorithm)
        for penalty in (given.penalty, torch.zeros(5)):
            one = copy.deepcopy(algorithm)
            one.target_encoder = one.policy.encoder_critic
            loss = one.update([given._replace(penalty=penalty)], Numbers(0))
            found.setdefault(which, []).append(float(loss["loss_discrete_critic"]))
    assert found["all"][0] != found["all"][1]
    assert found["not_last"] == [found["all"][1]] * 2


def test_the_actor_climbs_the_least_value_or_the_mean():
    losses = {}
    for which in ("min", "mean"):
        algorithm = sac(actor_q=which)
        losses[which] = float(algorithm.update([batch(algorithm)], Numbers(0))["loss_actor"])
    assert losses["mean"] < losses["min"]


def test_the_state_goes_through_its_names_and_continues_alike():
    first = sac(policy={"num_discrete_actions": 3}, target_encoder="own")
    second = sac(7, policy={"num_discrete_actions": 3}, target_encoder="own")
    first.update([batch(first)], Numbers(0))
    second.policy.load_state_dict(first.actor_weights())
    second.load_state_dict(first.state_dict())
    assert not changed(weights(first), weights(second))
    for name, optimizer in first.optimizers.items():
        second.optimizers[name].load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for algorithm in (first, second):
        algorithm.update([batch(algorithm, 1)], Numbers(1))
    assert not changed(weights(first), weights(second))


def test_a_state_of_other_options_is_refused():
    with pytest.raises(CheckpointError) as caught:
        sac().load_state_dict(sac(num_critics=3).state_dict())
    assert "critic_ensemble.critics.2" in str(caught.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"num_subsample_critics": 3}, "num_critics=2"),
        ({"discount": 1.0}, "below 1"),
        ({"critic_target_update_weight": 0.0}, "above 0"),
        ({"utd_ratio": 0}, "at least 1"),
        ({"lr_decay_updates": -1}, "at least 0"),
        ({"lr_decay_to": 1.5}, "at most 1"),
        ({"use_torch_compile": True}, "one of"),
    ],
)
def test_impossible_options_are_refused(options, said):
    with pytest.raises(PolicyError, match=said):
        SacConfig(**options)


@pytest.mark.parametrize("shared", [True, False])
def test_behavior_cloning_leads_to_what_humans_did(shared):
    """Steps of nobody tell nothing; a shared encoder learns from those of humans, too."""
    policy = {"shared_encoder": shared}
    fast = {"actor_lr": 0.01, "critic_lr": 0.01}
    cloning, plain = sac(policy=policy, bc_weight=30.0, **fast), sac(policy=policy, **fast)
    given = batch(plain)
    encoder = "encoder_critic.state_encoder.0.weight"
    for algorithm in (cloning, plain):
        algorithm.update([given], Numbers(0))
    assert (encoder in changed(weights(cloning), weights(plain))) == shared
    for number in range(200):
        cloning.update([given], Numbers(number))
    far = (cloning.policy.act(given.seen, cloning.policy.init_state(5))[0] - given.action).abs()
    is_shown = given.shown.bool()
    assert far[is_shown].max() < 0.1
    assert far[~is_shown].max() > 0.2


@pytest.mark.parametrize("shared", [True, False])
def test_cloning_alone_teaches_the_actor_and_its_encoder(shared):
    algorithm = sac(policy={"shared_encoder": shared}, actor_lr=0.01, critic_lr=0.01)
    given, before = batch(algorithm), weights(algorithm)
    for _ in range(200):
        algorithm.clone(given)
    moved = changed(before, weights(algorithm))
    named = [name for name in moved if not name.startswith("optimizer")]
    parts = {name.split(".")[0] for name in named}
    assert parts == {"actor", "encoder_critic" if shared else "encoder_actor"}
    policy = algorithm.policy
    far = (policy.act(given.seen, policy.init_state(5))[0] - given.action).abs()
    assert far[given.shown.bool()].max() < 0.1
    assert far[~given.shown.bool()].max() > 0.2
    assert algorithm.updates == 200


def test_cloning_alone_has_the_scale_that_it_has_beside_sac():
    norms = [
        (found := sac(bc_weight=weight)).clone(batch(found))["grad_norm_actor"]
        for weight in (0.0, 3.0)
    ]
    torch.testing.assert_close(norms[1], 3 * norms[0])


@pytest.mark.parametrize(("updates", "left"), [(0, 1.0), (10, 0.6), (20, 0.2), (30, 0.2)])
def test_learning_rates_fall_evenly_with_the_updates(updates, left):
    """Adam's first step is as long as the rate, whatever the gradient."""
    options: dict[str, float] = {"actor_lr": 1e-3, "critic_lr": 2e-3, "temperature_lr": 3e-3}
    constant, falling = (
        sac(policy={"shared_encoder": False}, **options, **more)
        for more in ({}, {"lr_decay_updates": 20, "lr_decay_to": 0.2})
    )
    falling.updates = constant.updates = updates
    before, given = weights(constant), batch(constant)
    for algorithm in (constant, falling):
        algorithm.update([given], Numbers(0))
    usual, less = (
        {name: after - before[name] for name, after in weights(each).items()}
        for each in (constant, falling)
    )
    for name in (
        "critic_ensemble.critics.0.output_layer.bias",
        "actor.mean_layer.bias",
        "log_alpha",
    ):
        assert usual[name].abs().max() > 0
        torch.testing.assert_close(less[name], left * usual[name], rtol=0.02, atol=1e-6)


def test_rates_fall_while_it_clones():
    constant, falling = (
        sac(actor_lr=1e-3, **more) for more in ({}, {"lr_decay_updates": 4, "lr_decay_to": 0.0})
    )
    given = batch(constant)
    for _ in range(4):
        falling.clone(given)
    done = weights(falling)
    falling.clone(given)
    assert not changed(done, weights(falling))
    constant.clone(given)
    assert constant.config.lr_factor(100) == 1.0


def test_a_target_encoder_of_its_own_follows_cloning():
    algorithm = sac(target_encoder="own")
    before = weights(algorithm)
    algorithm.clone(batch(algorithm))
    assert [name for name in changed(before, weights(algorithm)) if "target_encoder" in name]


def test_without_behavior_cloning_it_does_not_matter_who_acted():
    first, second = sac(), sac()
    first.update([batch(first)], Numbers(0))
    second.update([batch(second)._replace(shown=torch.ones(5))], Numbers(0))
    assert not changed(weights(first), weights(second))


def test_targets_stay_within_their_range():
    """Values that critics begin with are outside, and they are taught the nearest inside."""
    algorithm = sac(target_range=[0.4, 0.5], critic_lr=0.0)
    given = batch(algorithm)
    loss = algorithm.update([given], Numbers(0))["loss_critic"]
    encoded = algorithm.policy.encoder_critic(given.seen)
    values = algorithm.critics(encoded, given.action)
    near = (values - values.clamp(0.4, 0.5)).square().mean(1).sum()
    far = torch.maximum((values - 0.4).abs(), (values - 0.5).abs()).square().mean(1).sum()
    assert near <= loss <= far
    wide = sac(target_range=[-100.0, 100.0])
    free = sac()
    for each in (wide, free):
        each.update([given], Numbers(0))
    assert not changed(weights(wide), weights(free))


@pytest.mark.parametrize("limits", [[0.0], [1.0, 0.0], [0.0, 1.0, 2.0]])
def test_a_range_of_targets_is_two_numbers(limits):
    with pytest.raises(PolicyError, match="target_range"):
        SacConfig(target_range=limits)
