"""Rollouts: what comes out depends on the seeds alone, and a bad environment costs its own
episode only.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from kata.errors import ConfigError, PolicyError
from kata.eval.envs.registry import EnvSpec, resolve_env
from kata.eval.options import EnvConfig, EvalConfig
from kata.eval.result import Result, result_summary, wilson
from kata.eval.rollout_policy import episode_source
from kata.eval.runner import play
from kata.eval.shares import sum_up
from kata.eval.video import chosen, read_strip
from kata.spec import Draw
from tests.eval import fakes
from tests.eval.acting import Scripted, drawing_policy, plain, tiny_policy, towards_green
from tests.eval.films import decoded


@pytest.fixture(autouse=True)
def quick_cameras(narrow_backbone):
    """Policies with cameras act within milliseconds. `tests/policies` has the real backbones."""


def toy(**options) -> EnvSpec:
    return resolve_env(EnvConfig(type="gym", id="tests.eval.fakes:fakes/Toy-v0", **options))


def evaluate(acting, spec, options, *, seed=1000, folder=None) -> Result:
    return sum_up([play(acting, spec, options, seed=seed, folder=folder)], folder)


def run(policy, spec, episodes=7, **options) -> Result:
    folder = options.pop("folder", None)
    return evaluate(
        plain(policy), spec, EvalConfig(n_episodes=episodes, **options), seed=10, folder=folder
    )


def outcomes(result: Result) -> list[tuple]:
    return [(e.seed, e.success, e.length, e.crash) for e in result.episodes]


def still(batch) -> torch.Tensor:
    return torch.zeros(len(batch["observation.state"]), 2)


@pytest.mark.parametrize("made", [tiny_policy, drawing_policy])
def test_batch_size_changes_neither_actions_nor_outcomes(made):
    policy, spec = made(), toy(clip=False)
    alone = run(policy, spec, batch_size=1)
    actions = {seed: np.array(fakes.ACTIONS[seed]) for seed in range(10, 17)}
    for size in (3, 4):
        together = run(policy, spec, batch_size=size)
        assert outcomes(together) == outcomes(alone)
        for seed, expected in actions.items():
            np.testing.assert_allclose(np.array(fakes.ACTIONS[seed]), expected, atol=1e-5)
    assert np.ptp(np.concatenate(list(actions.values())), axis=0).min() > 1e-3, (
        "the policy looks at what it sees"
    )
    assert len({e.length for e in alone.episodes}) > 1, "episodes of unequal length share batches"


@pytest.mark.parametrize("made", [tiny_policy, drawing_policy])
@pytest.mark.parametrize("ranks", [2, 3])
def test_shares_of_ranks_add_up_to_the_same_bit_for_bit(made, ranks, tmp_path):
    policy, spec, options = made(), toy(), EvalConfig(n_episodes=7, batch_size=4, videos=2)
    whole = evaluate(plain(policy), spec, options, seed=10, folder=tmp_path / "one")
    actions = {seed: np.array(fakes.ACTIONS[seed]) for seed in range(10, 17)}
    tallies = []
    for share in filter(None, (options.share(rank, ranks) for rank in range(ranks))):
        tallies.append(
            play(plain(policy), spec, options, seed=10, folder=tmp_path / "many", share=share)
        )
        for number in share:
            assert np.array_equal(fakes.ACTIONS[10 + number], actions[10 + number])
    found = sum_up(tallies[::-1], tmp_path / "many")
    assert len(tallies) == min(ranks, 7)
    assert dataclasses.replace(found, seconds=whole.seconds) == whole
    one, many = (
        {path.name: decoded(path) for path in tmp_path.glob(f"{n}/videos/*")}
        for n in ("one", "many")
    )
    assert len(one) == 2
    assert one == many


def shared(episodes, ranks, size=0) -> list[range]:
    options = EvalConfig(n_episodes=episodes, batch_size=size)
    return [options.share(rank, ranks) for rank in range(ranks)]


def test_shares_are_all_episodes_and_equally_large():
    for episodes in (1, 2, 7, 50):
        for ranks in (1, 2, 3, 8, 64):
            shares = shared(episodes, ranks)
            assert [number for share in shares for number in share] == list(range(episodes))
            sizes = [len(share) for share in shares]
            assert max(sizes) - min(sizes) <= 1 or ranks == 2
            assert sizes[0] == max(sizes), "rank 0 plays"
    assert shared(50, 2) == [range(32), range(32, 50)], "of four rounds two each"
    assert shared(7, 3, size=2) == [range(3), range(3, 5), range(5, 7)], "four rounds for three"
    assert shared(2, 4) == [range(1), range(1, 1), range(1, 2), range(2, 2)]


def test_what_a_policy_draws_follows_from_episode_and_step_alone():
    wanted, cpu = Draw("normal", (3, 2)), torch.device("cpu")
    together = episode_source([11, 2**40, 11], 4, cpu)("noise", wanted)
    alone = episode_source([2**40], 4, cpu)("noise", wanted)
    assert together.shape == (3, 3, 2)
    assert torch.equal(together[1:2], alone)
    assert torch.equal(together[0], together[2])
    others = [(("noise", wanted), 5), (("later", wanted), 4)]
    assert all(
        not torch.equal(episode_source([2**40], step, cpu)(*asked), alone) for asked, step in others
    )


def test_processes_give_the_same_and_one_that_dies_costs_its_episodes(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    policy = tiny_policy()
    expected = run(policy, toy(), episodes=6, batch_size=2)
    apart = run(
        policy,
        toy(kwargs={"bad": {12: (3, "exit")}}),
        episodes=6,
        batch_size=2,
        use_async_envs=True,
    )
    assert apart.episodes[2].crash.step == 2
    assert "exit code 3" in apart.episodes[2].crash.error
    same = [0, 1, 3, 4, 5]
    assert [outcomes(apart)[i] for i in same] == [outcomes(expected)[i] for i in same]
    for i in same:
        assert apart.episodes[i].sum_reward == expected.episodes[i].sum_reward


def test_a_policy_that_sees_the_target_succeeds_and_the_films_show_it(tmp_path):
    policy = Scripted(towards_green, state=2, size=64)
    spec = resolve_env(EnvConfig(type="kata"))
    result = evaluate(plain(policy), spec, EvalConfig(n_episodes=10, videos=2), folder=tmp_path)
    assert result.num_success == 10
    assert result.success_interval == pytest.approx(wilson(10, 10))
    films = [e for e in result.episodes if e.video]
    assert sorted(tmp_path.glob("videos/*")) == [tmp_path / e.video for e in films]
    assert [e.video for e in films] == [
        "videos/episode_000_success.mp4",
        "videos/episode_001_success.mp4",
    ]
    strip = read_strip(tmp_path / films[0].video, 5)
    assert len(strip) == 5
    assert strip[0].shape == (256, 256, 3)
    assert np.abs(strip[0].astype(int) - strip[-1]).max() > 100, "the tool has moved"
    again = evaluate(plain(policy), spec, EvalConfig(n_episodes=10, batch_size=3))
    assert outcomes(again) == outcomes(result)


def test_a_policy_that_does_not_look_fails():
    policy = Scripted(still, state=2, size=64)
    result = evaluate(plain(policy), resolve_env(EnvConfig(type="kata")), EvalConfig(n_episodes=8))
    assert result.num_success <= 1
    assert result.mean_length > 60


def test_the_policy_is_asked_once_per_step_for_the_whole_batch():
    policy = Scripted(still)
    result = run(policy, toy(), episodes=7, batch_size=7)
    assert policy.calls == max(e.length for e in result.episodes)


def test_the_policy_knows_how_many_steps_a_prediction_takes(monkeypatch):
    told = set()

    class Told(Scripted):
        def act(self, batch, state):
            told.add(state.inference_delay)
            return super().act(batch, state)

    policy, asked = Told(still), []
    monkeypatch.setattr(type(policy.config), "refuse_delay", lambda _, delay: asked.append(delay))
    run(policy, toy(), episodes=2)
    assert (told, asked) == ({0}, [0])
    told.clear()
    run(policy, toy(), episodes=2, inference_delay=2)
    assert (told, asked) == ({2}, [0, 2])


def test_success_at_any_step_counts():
    result = run(Scripted(still), toy(), episodes=4)
    assert [e.success for e in result.episodes] == [True, False, True, False]
    assert (result.num_success, result.success_rate) == (2, 0.5)
    assert [e.sum_reward for e in result.episodes] == [
        n * (n + 1) / 2 for n in (e.length for e in result.episodes)
    ]
    assert [e.max_reward for e in result.episodes] == [e.length for e in result.episodes]


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("raise", "RuntimeError: the gripper fell off"),
        ("state", "observation.state is not finite"),
        ("reward", "the reward is inf"),
        ("shape", "(8, 8, 3)"),
    ],
)
def test_a_crash_costs_its_episode_and_the_environment_is_made_anew(what, text):
    fakes.MADE.clear()
    result = run(tiny_policy(), toy(kwargs={"bad": {12: (3, what)}}), episodes=6, batch_size=2)
    made = len(fakes.MADE)
    assert [e.episode for e in result.episodes if e.crash] == [2]
    assert result.episodes[2].crash.step == 2
    assert text in result.episodes[2].crash.error
    assert not result.episodes[2].success, "though it had succeeded before"
    assert made == 1 + 2 + 1, "one to look at, one per slot, one in place of the broken one"
    whole = run(tiny_policy(), toy(), episodes=6, batch_size=2)
    others = [0, 1, 3, 4, 5]
    assert [outcomes(result)[i] for i in others] == [outcomes(whole)[i] for i in others]
    assert "episode 2 (seed 12) at step 2" in result_summary(result)
    assert text in result_summary(result)
    assert (result.num_crashed, result.num_episodes, result.num_success) == (1, 6, 2)


def test_an_environment_that_crashes_in_every_reset_leaves_a_result():
    spec = resolve_env(EnvConfig(type="gym", id="tests.eval.fakes:fakes/Toy-v0", options=[{}]))
    result = run(Scripted(still), spec, episodes=2)
    assert result.num_crashed == 0
    broken = EnvSpec(
        "fakes/Toy-v0",
        options=("not a dict",),
        kwargs={"bad": {10: (1, "raise"), 11: (1, "raise")}},
    )
    result = run(Scripted(still), broken, episodes=2)
    assert result.num_crashed == 2
    assert result.mean_length is None
    assert result.success_rate == 0


def test_values_outside_the_bounds_are_moved_to_them_and_counted():
    policy = Scripted(
        lambda batch: torch.tensor([[2.0, 0.1]]).expand(len(batch["observation.state"]), 2)
    )
    result = run(policy, toy(), episodes=2)
    assert result.clipped_share == 0.5
    np.testing.assert_array_equal(fakes.ACTIONS[10][0], np.float32([0.5, 0.1]))
    assert "50.00% of action values" in result_summary(result)
    free = run(policy, toy(clip=False), episodes=2)
    assert free.clipped_share == 0
    np.testing.assert_array_equal(fakes.ACTIONS[10][0], np.float32([2.0, 0.1]))


def test_start_states_go_round_and_stand_with_their_episodes():
    fakes.STARTS.clear()
    result = run(Scripted(still), toy(options=[{"x": 1}, {"x": 2}]), episodes=3, batch_size=2)
    assert fakes.STARTS == [{"x": 1}, {"x": 2}, {"x": 1}]
    assert [e.options for e in result.episodes] == fakes.STARTS


def test_names_of_any_environment_are_mapped():
    policy = Scripted(lambda batch: batch["observation.state"][:, :2], camera=None)
    config = EnvConfig(
        type="gym",
        id="tests.eval.fakes:fakes/Nested-v0",
        observation_map={"observation.state": ".", "observation.environment_state": "."},
        action_key="arm",
        success_key="metrics.won",
    )
    result = run(policy, resolve_env(config), episodes=4)
    assert result.num_success == 2


def test_success_that_is_never_told_is_refused():
    with pytest.raises(
        ConfigError, match=r"(?s)never had 'is_success'.*won, other.*env.success_key"
    ):
        run(Scripted(still), toy(kwargs={"success": "won"}))


def test_success_is_found_under_a_whole_name_with_a_dot():
    flat = toy(kwargs={"success": "next.success"}, success_key="next.success")
    assert (
        run(Scripted(still), flat, episodes=4).num_success
        == run(Scripted(still), toy(), episodes=4).num_success
    )


def test_success_in_words_is_no_success(monkeypatch):
    step = fakes.Toy.step

    def worded(self, action):
        *rest, info = step(self, action)
        return *rest, {**info, "is_success": "no"}

    monkeypatch.setattr(fakes.Toy, "step", worded)
    assert run(Scripted(still), toy(), episodes=2).num_success == 0


def test_ending_early_can_be_success():
    assert run(Scripted(still), toy(success_key="terminated"), episodes=3).num_success == 0


def test_an_action_that_is_no_number_is_refused():
    policy = Scripted(lambda batch: torch.full((len(batch["observation.state"]), 2), torch.nan))
    with pytest.raises(PolicyError, match=r"(?s)nan.*seed 10, step 0.*rule:.*remedy:"):
        run(policy, toy())


def test_films_of_both_outcomes_are_kept_and_the_others_deleted(tmp_path):
    result = run(
        Scripted(still),
        toy(kwargs={"render_mode": "rgb_array"}),
        episodes=9,
        videos=2,
        folder=tmp_path,
    )
    assert [e.video for e in result.episodes if e.video] == [
        "videos/episode_000_success.mp4",
        "videos/episode_001_failure.mp4",
    ]
    assert len(list(tmp_path.glob("videos/*"))) == 2
    strip = read_strip(tmp_path / "videos/episode_000_success.mp4", 99)
    assert len(strip) == 1 + result.episodes[0].length
    assert strip[0].shape == (22, 34, 3), "padded to even sizes"
    assert (result.env["fps"], result.env["max_steps"]) == (7, 50)


def test_without_pictures_the_cameras_are_filmed_and_without_cameras_a_note_says_so(tmp_path):
    seen = run(Scripted(still), toy(), episodes=1, videos=1, folder=tmp_path / "a")
    assert read_strip(tmp_path / "a" / seen.episodes[0].video, 1)[0].shape == (32, 32, 3)
    policy = Scripted(still, camera=None)
    blind = run(
        policy,
        toy(observation_map={"observation.environment_state": "agent_pos"}),
        1,
        folder=tmp_path / "b",
    )
    assert "no videos" in blind.notes[0]
    assert not (tmp_path / "b").exists()


def test_an_evaluation_that_breaks_off_leaves_no_films(tmp_path):
    def fail_later(batch):
        policy.calls == 3 and pytest.fail("enough")
        return still(batch)

    policy = Scripted(fail_later)
    with pytest.raises(pytest.fail.Exception):
        run(policy, toy(), folder=tmp_path)
    assert not list(tmp_path.glob("videos/*"))


def test_evaluating_leaves_training_as_it_was():
    policy = tiny_policy().train()
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    run(policy, toy(), episodes=3)
    assert policy.training
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(parameter.requires_grad for parameter in policy.parameters())


def test_the_interval_is_wilsons():
    assert wilson(0, 10) == pytest.approx((0.0, 0.27753), abs=1e-5)
    assert wilson(8, 10) == pytest.approx((0.49016, 0.94332), abs=1e-5)
    low, high = wilson(10, 10)
    assert (1 - high, 1 - low) == pytest.approx(wilson(0, 10), abs=1e-12)


@pytest.mark.parametrize(
    ("success", "count", "expected"),
    [
        ([True] * 5, 2, [0, 1]),
        ([False] * 5, 2, [0, 1]),
        ([True, True, True, False, False], 4, [0, 1, 3, 4]),
        ([True, True, True, True, False], 4, [0, 1, 2, 4]),
        ([True, False], 8, [0, 1]),
        ([True, False], 0, []),
    ],
)
def test_half_of_the_films_are_failures_where_there_are_enough(success, count, expected):
    assert chosen(success, count) == expected
