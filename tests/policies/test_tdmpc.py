"""TD-MPC: options, windows, losses, planning, acting, and what it refuses."""

import copy
import json
import re
import shutil

import pytest
import torch

from kata.errors import PolicyError
from kata.policies import build_policy
from kata.policies.load import load_weights, save_weights
from kata.policies.tdmpc.config import SMALLEST, Config
from kata.policies.tdmpc.plan import PlanSettings, _warm_start, lowest_picked, plan
from kata.run import resolve_run
from kata.spec import (
    ACTION,
    DONE,
    ENV_STATE,
    REWARD,
    STATE,
    Feature,
    FeatureType,
    NormMode,
    pad_key,
)
from kata.train import train

TOP, WRIST = "observation.images.top", "observation.images.wrist"
TINY = {
    "horizon": 3, "image_encoder_hidden_dim": 4, "state_encoder_hidden_dim": 8, "latent_dim": 6, "mlp_dim": 12,  # noqa: E501
    "cem_iterations": 2, "n_gaussian_samples": 12, "n_pi_samples": 3, "n_elites": 4,
}  # fmt: skip


def config(*, inputs=(TOP, STATE), size=(40, 44), **options):
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


def batch(config, size=4, seed=0):
    stream = torch.Generator().manual_seed(seed)
    ends = torch.tensor([4, 3, 1, 2])[:size, None]
    pad = torch.arange(4)[None] >= ends
    return {
        **{
            k: torch.rand(size, 4, *f.shape, generator=stream)
            for k, f in config.input_features.items()
        },
        **{pad_key(key): pad for key in config.input_features},
        ACTION: torch.rand(size, 3, 2, generator=stream) * 2 - 1,
        pad_key(ACTION): pad[:, :3],
        REWARD: torch.rand(size, 3, generator=stream),
        pad_key(REWARD): pad[:, :3],
    }


def draws(size=4):
    stream = torch.Generator().manual_seed(7)
    shift = torch.rand(size, 4, 2, generator=stream)
    return {"picks": torch.tensor([[0.1, 0.7], [0.5, 0.9]]).expand(size, 2, 2), "shift": shift}


def made(config):
    """A policy whose Q functions and reward do not start at zero."""
    torch.manual_seed(0)
    policy = build_policy(config).train()
    with torch.no_grad():
        for p in policy.parameters():
            p += 0.1 * torch.randn_like(p)
    return policy


@pytest.fixture(scope="module")
def policy():
    return made(config())


def part(values, where):
    return {key: value[where] for key, value in values.items()}


def test_the_target_starts_as_the_trained_model_and_is_not_trained():
    policy = build_policy(config())
    trained = [p for group in policy.param_groups() for p in group.params]
    assert [id(p) for p in trained] == [id(p) for p in policy.model.parameters()]
    pairs = zip(policy.model.parameters(), policy.model_target.parameters(), strict=True)
    assert all(torch.equal(a, b) and not b.requires_grad for a, b in pairs)


def test_windows_hold_the_actions_their_rewards_and_what_is_seen_around_them():
    c = config()
    assert c.windows() == {
        TOP: (0, 1, 2, 3),
        STATE: (0, 1, 2, 3),
        ACTION: (0, 1, 2),
        REWARD: (0, 1, 2),
    }
    assert (c.draws()["picks"].shared, c.draws()["shift"].shape) == (True, (4, 2))
    assert (
        set(config(max_random_shift_ratio=0).draws())
        == set(config(inputs=(STATE,)).draws())
        == {"picks"}
    )


def test_loss_does_not_depend_on_the_split_and_leaves_the_batch_alone(policy):
    given, drawn = batch(policy.config), draws()
    before = copy.deepcopy(given)
    whole = policy(given, **drawn).terms
    assert all(torch.equal(given[key], value) for key, value in before.items())
    parts = [policy(part(given, w), **part(drawn, w)).terms for w in (slice(1), slice(1, 4))]
    for name, term in whole.items():
        torch.testing.assert_close(
            parts[0][name].total + parts[1][name].total, term.total, msg=name
        )
    assert set(whole) == set(policy.config.loss_weights(4, {}))
    assert {name for name, term in whole.items() if term.scale == 0} == {"q_value", "v_value"}


def test_denominators_are_samples_and_for_means_sample_steps():
    counts = config().loss_weights(4, {})
    assert (counts["consistency_loss"], counts["pi_loss"]) == (4.0, 12.0)


def test_rewards_with_an_axis_of_one_and_of_other_types_are_the_same_rewards(policy):
    given = batch(policy.config)
    given[REWARD] = given[REWARD] > 0.5
    other = {**given, REWARD: given[REWARD].float()[..., None]}
    assert policy(given, **draws()).terms == policy(other, **draws()).terms


@pytest.mark.parametrize("inputs", [(STATE,), (ENV_STATE,), (WRIST,), (TOP, ENV_STATE, STATE)])
def test_any_camera_and_any_vector_alone_are_learnt_and_acted_from(inputs):
    policy = made(config(inputs=inputs))
    given = batch(policy.config)
    loss = policy(given, picks=draws()["picks"])
    sum(t.total * t.scale for t in loss.terms.values()).backward()
    assert all(p.grad is not None for group in policy.param_groups() for p in group.params)
    assert all(p.grad is None for p in policy.model_target.parameters())
    action, _ = policy.eval().act({key: given[key][:, 0] for key in inputs}, policy.init_state(4))
    assert action.shape == (4, 2)


def test_what_lies_beyond_the_episode_teaches_nothing(policy):
    given, drawn = batch(policy.config), draws()
    changed = copy.deepcopy(given)
    for key in (TOP, STATE, ACTION, REWARD):
        changed[key][given[pad_key(key)]] += 1
    before, after = policy(given, **drawn), policy(changed, **drawn)
    for name, term in before.terms.items():
        if term.scale:
            torch.testing.assert_close(after.terms[name].total, term.total, msg=name)


def test_an_action_that_ends_the_task_is_worth_its_reward_alone(policy):
    given, drawn = batch(policy.config), draws()
    ending = made(config(learn_from_ends=True))
    ending.load_state_dict(policy.state_dict())
    never = {**given, DONE: torch.zeros_like(given[REWARD], dtype=torch.bool)}
    assert ending(never, **drawn).terms == policy(given, **drawn).terms
    padded = {**never, DONE: given[pad_key(ACTION)]}  # what is padded repeats the last frame
    assert ending(padded, **drawn).terms == policy(given, **drawn).terms
    last = {**never, DONE: torch.zeros_like(given[REWARD])}
    last[DONE][1, 2] = 1  # an action after which nothing is seen
    before, after = (ending(one, **drawn).detail["q_value_loss"] for one in (never, last))
    assert after[1] > before[1]
    assert torch.equal(after[[0, 2, 3]], before[[0, 2, 3]])
    assert ending.config.windows()[DONE] == (0, 1, 2)


def test_each_frame_is_shifted_in_training_alone():
    policy = made(config(max_random_shift_ratio=0.1))  # 4 pixels either way
    given = batch(policy.config)
    middle = torch.full((4, 4, 2), 0.5)
    corner = torch.zeros(4, 4, 2)
    assert torch.equal(policy._observations(given, middle)[TOP], given[TOP])
    shifted = policy._observations(given, corner)[TOP]
    assert torch.equal(shifted[..., 4:, 4:], given[TOP][..., :-4, :-4])
    assert torch.equal(shifted[..., :4, 4:], given[TOP][..., :1, :-4].expand(-1, -1, -1, 4, -1))
    assert torch.equal(policy.eval()._observations(given, corner)[TOP], given[TOP])


def test_shares_pick_q_functions_with_replacement():
    values = torch.tensor([[[3.0, 1.0, 2.0, 0.5, 4.0]]])
    picked = [
        lowest_picked(values, torch.tensor([p])).item()
        for p in ([0.0, 0.1], [0.0, 0.99], [0.5, 0.25], [1.0, 0.7])
    ]
    assert picked == [3.0, 3.0, 1.0, 0.5]
    assert lowest_picked(values[..., 1:3], torch.zeros(1, 2)).item() == 1.0


def test_the_target_follows_the_trained_model(policy):
    policy = copy.deepcopy(policy)
    with torch.no_grad():
        for p in policy.model.parameters():
            p += 1
    before = {name: p.clone() for name, p in policy.model_target.named_parameters()}
    assert policy.after_step(1, torch.tensor(True)) == {}
    assert all(torch.equal(p, before[name]) for name, p in policy.model_target.named_parameters())
    policy.after_step(1, torch.tensor(False))
    for (name, p), q in zip(
        policy.model_target.named_parameters(), policy.model.parameters(), strict=True
    ):
        torch.testing.assert_close(p, 0.995 * before[name] + 0.005 * q, rtol=0, atol=1e-6)


def test_each_environment_plans_for_itself(policy):
    z, noise = torch.rand(3, 6), torch.randn(3, sum(policy.config.plan_parts()))
    before = torch.rand(3, 3, 2)
    whole = plan(policy.model, policy.config, z, before, noise)
    assert whole.actions.abs().max() <= 1
    for k in range(3):
        one = slice(k, k + 1)
        alone = plan(policy.model, policy.config, z[one], before[one], noise[one])
        torch.testing.assert_close(PlanSettings(*(p[one] for p in whole)), alone)


def test_planning_finds_the_actions_that_pay():
    policy = made(
        config(inputs=(STATE,), n_gaussian_samples=256, cem_iterations=6, n_elites=20, horizon=3)
    )
    wanted = torch.tensor([0.6, -0.3])

    class Known(type(policy.model)):
        def step(self, z, action):
            return z, -(action - wanted).square().sum(-1)

        def q_values(self, z, action):
            return torch.zeros(*z.shape[:-1], 5)

    policy.model.__class__ = Known
    found = plan(
        policy.model,
        policy.config,
        torch.rand(2, 6),
        None,
        torch.randn(2, sum(policy.config.plan_parts())),
    )
    assert (found.mean - wanted).abs().max() < 0.2


@pytest.mark.parametrize(
    ("options", "calls"),
    [
        ({}, 2),
        ({"n_action_repeats": 1}, 4),
        ({"n_action_repeats": 1, "n_action_steps": 3}, 2),
        ({"use_mpc": False}, 2),
    ],
)
def test_a_plan_serves_for_what_is_executed_of_it(options, calls):
    policy = made(config(inputs=(STATE,), **options)).eval()
    made_plans = []
    search = policy._plan
    policy._plan = lambda *given: made_plans.append(given) or search(*given)
    state, actions = policy.init_state(2), []
    for k in range(4):
        action, state = policy.act({STATE: torch.full((2, 4), 0.1 * k)}, state)
        actions.append(action)
    assert len(made_plans) == calls
    assert made_plans[0][1] is None
    assert (made_plans[1][1] is not None) == policy.config.use_mpc
    assert torch.equal(actions[0], actions[1]) == (policy.config.n_action_repeats == 2)


@pytest.mark.parametrize(("shifted", "start"), [(False, [1.0, 2.0, 0.0]), (True, [2.0, 0.0, 0.0])])
def test_a_plan_starts_from_the_last_one(shifted, start):
    before = torch.tensor([[[0.0], [1.0], [2.0]]])
    assert _warm_start(config(shift_by_executed=shifted), before).flatten().tolist() == start


def test_weights_are_written_and_read_again(policy, tmp_path):
    save_weights(policy, tmp_path / "model.safetensors")
    again = build_policy(policy.config)
    load_weights(again, tmp_path / "model.safetensors")
    assert all(
        torch.equal(a, b)
        for a, b in zip(policy.state_dict().values(), again.state_dict().values(), strict=True)
    )
    config(shift_by_executed=True).save(tmp_path)
    assert "shift_by_executed" not in json.loads((tmp_path / "config.json").read_text())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"horizon": 0}, "horizon"),
        ({"n_obs_steps": 2}, "latest observation"),
        ({"discount": 1.5}, "discount"),
        ({"max_random_shift_ratio": -0.1}, "max_random_shift_ratio"),
        ({"normalization_mapping": {"ACTION": NormMode.MEAN_STD}}, "MIN_MAX"),
        ({"n_action_steps": 2}, "n_action_repeats=1"),
        ({"n_action_steps": 2, "n_action_repeats": 1, "use_mpc": False}, "use_mpc"),
        ({"n_action_steps": 4, "n_action_repeats": 1}, "horizon=3"),
        ({"n_elites": 16}, "at most"),
        ({"n_pi_samples": -1}, "n_pi_samples"),
        ({"q_ensemble_size": 1}, "disagree"),
        ({"min_std": 3.0}, "max_std"),
    ],
)
def test_impossible_options_are_refused_with_a_remedy(options, said):
    with pytest.raises(PolicyError) as caught:
        config(**options)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("inputs", "size", "said"),
    [((), (40, 40), "inputs"), ((TOP, WRIST), (40, 40), "one camera"), ((TOP,), (38, 80), "39")],
)
def test_inputs_that_do_not_suit_are_refused(inputs, size, said):
    with pytest.raises(PolicyError, match=said):
        config(inputs=inputs, size=size).validate_features()


def test_the_smallest_frames_leave_one_number():
    net = build_policy(config(size=(SMALLEST, SMALLEST))).model
    assert net.encode(part(batch(config(size=(SMALLEST, SMALLEST))), slice(2))).shape == (2, 4, 6)


@pytest.mark.parametrize(
    ("absent", "extra"), [(REWARD, ()), (DONE, ("--policy.learn_from_ends=true",))]
)
def test_a_dataset_without_what_is_learnt_from_is_refused_before_the_first_step(
    absent, extra, tiny_dataset, tmp_path
):
    root = shutil.copytree(tiny_dataset, tmp_path / "data")
    info = json.loads((root / "meta/info.json").read_text())
    if absent in info["features"]:
        info["features"]["other"] = info["features"].pop(absent)
    (root / "meta/info.json").write_text(json.dumps(info))
    options = [
        "--policy.type=tdmpc", "--dataset.repo_id=a/b", f"--dataset.root={root}", "--policy.push_to_hub=false",  # noqa: E501
        "--policy.device=cpu", f"--output_dir={tmp_path}/run", "--batch_size=4",
        '--policy.input_features={"observation.state": {"type": "STATE", "shape": [3]}}',
        *extra,
    ]  # fmt: skip
    with pytest.raises(PolicyError, match=re.escape(absent)) as caught:
        train(resolve_run(options)[0])
    assert "rename_map" in str(caught.value)
    assert not (tmp_path / "run").exists()
