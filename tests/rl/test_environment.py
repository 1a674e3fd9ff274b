"""What info tells of humans, rewards and ends; demonstrations; the expert who takes over."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from kata.errors import ConfigError, DataError
from kata.eval.env_check import Fit, View
from kata.eval.envs.registry import EnvSpec
from kata.eval.record.demonstrations import attempt
from kata.rl.actor import EpisodeActor
from kata.rl.demos import Demos
from kata.rl.environment import EnvRules, RlEnv
from kata.rl.episodes.episode import Schema
from kata.rl.options import TakeoverConfig
from kata.rl.takeover import Scripted
from kata.spec import ACTION, DONE, REWARD, STATE

FAKE = "tests/Gripper-v0"
BOX = spaces.Box(np.array([-1, -1, 0], np.float32), np.array([1, 1, 2], np.float32))


class Gripper(gymnasium.Env):
    """Six steps; a human acts in steps 2 and 3, and wants the first episode again."""

    observation_space = spaces.Dict({"agent_pos": spaces.Box(-10, 10, (1,), np.float32)})
    action_space = BOX
    resets = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.resets = 0, self.resets + 1
        return self._seen(), {}

    def step(self, action):
        self.steps += 1
        human = self.steps in (2, 3)
        info = {"is_intervention": human, "discrete_penalty": -0.02 * self.steps, "next": {}}
        if human:
            info["teleop_action"] = np.array([0.5, 0.25, 2.0])
        info["succeed"] = self.steps == 5
        info["rerecord_episode"] = self.resets == 1 and self.steps == 5
        return self._seen(), -7.0, False, self.steps == 6, info

    def _seen(self):
        return {"agent_pos": np.array([self.steps], np.float32)}


if FAKE not in gymnasium.registry:
    gymnasium.register(id=FAKE, entry_point="tests.rl.test_environment:Gripper")


def rules(reward="success", choices=None, success_key="succeed"):
    views = {STATE: View(("agent_pos",), (1,), False)}
    how = Fit(views, {}, np.asarray(BOX.low), np.asarray(BOX.high))
    spec = EnvSpec(FAKE, success_key=success_key, max_steps=50)
    return EnvRules(spec, how, reward, choices)


class Zeros:
    """A policy that wants too much."""

    config = None

    def act(self, batch, task, state, source):
        assert batch[STATE].shape == (1, 1)
        return np.full((1, 3), 9.0, np.float32), state


def test_an_episode_holds_what_was_executed_and_by_whom(monkeypatch):
    monkeypatch.setattr("kata.rl.actor._sampling", lambda acting: None)
    actor = EpisodeActor(Zeros(), RlEnv(rules()), "", 0)
    played = actor.episode(0, 0, 0.0)
    assert actor.world.env.unwrapped.resets == 2  # its human wanted the first again
    assert played.intervention.tolist() == [False, True, True, False, False]
    assert played.action[0].tolist() == [1.0, 1.0, 2.0]
    assert played.action[1].tolist() == [0.5, 0.25, 2.0]
    assert np.allclose(played.penalty, [-0.02, -0.04, -0.06, -0.08, -0.1])
    assert played.reward.tolist() == [0, 0, 0, 0, 1]
    assert (played.terminated, played.success) == (True, True)
    assert played.observations[STATE][:, 0].tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (np.array([np.nan], np.float32), r"ValueError: observation.state is not finite: \[nan\]"),
        (np.zeros(2, np.float32), r"ValueError: .* has the shape \(2,\)"),
        (RuntimeError("the motor\nis off"), r"RuntimeError: the motor is off \(test_env"),
    ],
)
def test_an_environment_that_fails_is_told_in_one_message(seen, said, monkeypatch):
    def shown(self):
        if isinstance(seen, Exception):
            raise seen
        return {"agent_pos": seen}

    world = RlEnv(rules())
    world.reset(7)
    monkeypatch.setattr(Gripper, "_seen", shown)
    message = rf"(?s)Gripper-v0, seed 7: step: {said}.*rule:.*remedy: mend the env.*--resume=true"
    with pytest.raises(ConfigError, match=message):
        world.step(np.zeros(3, np.float32))
    with pytest.raises(ConfigError, match=r"seed 8: reset: "):
        world.reset(8)


def stepped(monkeypatch, reward="success", choices=None, key="succeed", **info):
    """The outcome of a step of an environment that tells this; `own` is its reward."""
    own, told = info.pop("own", 0.0), {"succeed": False, **info}

    def step(self, action):
        return self._seen(), own, False, False, told

    world = RlEnv(rules(reward, choices, key))
    world.reset(7)
    monkeypatch.setattr(Gripper, "step", step)
    return world.step(np.zeros(3, np.float32))


def acted(action, **more):
    return {"is_intervention": True, "teleop_action": action, **more}


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"discrete_penalty": float("nan")}, r"info\['discrete_penalty'\] is nan"),
        ({"discrete_penalty": None}, r"info\['discrete_penalty'\] is None"),
        ({"reward": "env", "own": None}, "the reward is None"),
        ({"reward": "env", "own": float("inf")}, "the reward is inf"),
        ({"reward": "env", "own": 1e39}, "the reward is 1e[+]39"),  # infinite in float32
        ({"succeed": "no"}, r"info\['succeed'\] is 'no', neither true nor false"),
        ({"succeed": 0.7}, r"info\['succeed'\] is 0.7, neither"),
        ({"is_intervention": "no"}, r"info\['is_intervention'\] is 'no', neither"),
        (acted([0.5, np.nan, 1]), r"\[0.5, nan, 1\].*rule: *3 finite numbers"),
        (acted(np.zeros(2)), r"info\['teleop_action'\] is \[0.0, 0.0\]"),
        (acted({"delta_x": 0.0}), r"is \{'delta_x': 0.0\}"),
        (acted([0.5, -1.1, 1]), r"has -1.1 in dimension 1.*rule: *from -1 to 1"),
        (acted([0, 0, 3], choices=3), r"has 3 in dimension 2.*rule: *whole numbers from 0 to 2"),
        (acted([0, 0, 0.5], choices=3), r"has 0.5 in dimension 2.*rule: *whole numbers"),
        (acted([0, 0, 2], choices=2), r"has 2 in dimension 2.*rule: *whole numbers from 0 to 1"),
    ],
)
def test_what_info_tells_is_refused_where_nothing_can_be_learned_from_it(told, said, monkeypatch):
    message = rf"(?s)Gripper-v0, seed 7: .*{said}.*remedy: mend the env.*--resume=true"
    with pytest.raises(ConfigError, match=message):
        stepped(monkeypatch, **told)


def test_an_action_that_was_executed_is_rounded_to_what_the_environment_takes(monkeypatch):
    """A number outside by rounding is no reason to lose an episode."""
    found = stepped(monkeypatch, choices=3, **acted([[0.25, 1 + 1e-5, 2 - 1e-5]])).action
    assert found.tolist() == [0.25, 1.0, 2.0]
    assert found.dtype == np.float32
    assert stepped(monkeypatch, **acted([0.25, -0.5, 0.5])).action.tolist() == [0.25, -0.5, 0.5]


@pytest.mark.parametrize("mark", [True, 1, 1.0, np.True_, np.float32(1), np.array([True])])
def test_success_is_a_bool_or_a_number(mark, monkeypatch):
    assert stepped(monkeypatch, succeed=mark).success is True


def test_success_is_found_under_a_key_with_a_dot_and_nested(monkeypatch):
    flat, nested = {"next.success": True}, {"next": {"success": True}}
    assert stepped(monkeypatch, key="next.success", **flat).success is True
    assert stepped(monkeypatch, key="next.success", **nested).success is True
    assert stepped(monkeypatch, "env", key="next.success").success is None


def test_the_environments_own_reward_does_not_end_the_episode(monkeypatch):
    monkeypatch.setattr("kata.rl.actor._sampling", lambda acting: None)
    world = RlEnv(rules("env"))
    world.env.unwrapped.resets = 1
    played = EpisodeActor(Zeros(), world, "", 0).episode(0, 0, 0.0)
    assert played.reward.tolist() == [-7] * 6
    assert (played.terminated, played.success) == (False, True)


def reach():
    from kata.eval.envs.reach import ReachEnv

    env = ReachEnv()
    env.reset(seed=3)
    return env


def test_the_expert_takes_over_by_seed_step_and_recent_success():
    def steps(seed, recent, rate=0.2, episode=0, **options):
        expert = Scripted(TakeoverConfig(rate=rate, **options), seed)
        expert.begin(reach(), episode, recent)
        return [expert.action(step) is not None for step in range(60)]

    assert steps(0, 0.0) == steps(0, 0.0)
    assert steps(0, 0.0) != steps(1, 0.0)
    assert sum(steps(0, 1.0)) < sum(steps(0, 0.0))
    assert not any(steps(0, 0.0, rate=0.0))
    assert sum(steps(0, 0.0, episode=4)) == 0
    assert sum(steps(0, 0.0, episode=4, alone_every=0)) > 0
    taken = "".join("x" if each else "." for each in steps(0, 0.0)).split(".")
    assert all(len(run) >= 8 for run in taken[:-1] if run)


SCHEMA = Schema({STATE: (2,)}, (), 2)


def shown(columns, reward="success"):
    """One demonstration out of columns."""
    views = {STATE: View(("agent_pos",), (2,), False)}
    how = Fit(views, {}, np.full(2, -1, np.float32), np.full(2, 1, np.float32))
    demos = Demos(None, SCHEMA, EnvRules(EnvSpec("x"), how, reward), None)
    object.__setattr__(demos, "dataset", type("D", (), {"repo_id": "a/b"})())
    return demos._episode(4, columns, set())


def columns(**more):
    steps = np.arange(4)
    found = {
        STATE: np.stack([steps, steps], 1).astype(np.float32),
        ACTION: np.full((4, 2), 0.5, np.float32),
        REWARD: np.zeros(4, np.float32),
    }
    return {**found, **{key.replace("_", "."): value for key, value in more.items()}}


def test_a_demonstration_that_succeeds_ends_the_task():
    success = np.array([False, False, False, True])
    played = shown(columns(next_success=success))
    assert played.terminated
    assert played.reward.tolist() == [0, 0, 0, 1]
    assert played.observations[STATE][:, 0].tolist() == [0, 1, 2, 3, 3]
    assert played.intervention.all()


@pytest.mark.parametrize(
    ("more", "terminated"),
    [
        ({DONE: np.array([0, 0, 0, 1])}, False),
        ({DONE: np.array([0, 0, 0, 1]), "next.truncated": np.array([0, 0, 0, 0])}, True),
        ({DONE: np.array([0, 0, 0, 1]), "next.truncated": np.array([0, 0, 0, 1])}, False),
    ],
)
def test_lerobots_done_counts_beside_truncated_alone(more, terminated):
    played = shown({**columns(), **more}, "env")
    assert (played.terminated, played.steps) == (terminated, 4 if terminated else 3)
    assert len(played.observations[STATE]) == played.steps + 1


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({DONE: np.array([0, 1, 0, 1])}, "frame 1 of 4"),
        ({ACTION: np.full((4, 2), 1.5, np.float32)}, "at worst 1.5 in dimension 0"),
        ({REWARD: np.array([0, np.nan, 0, 0])}, "not finite"),
    ],
)
def test_demonstrations_that_teach_wrong_things_are_refused(more, said):
    with pytest.raises(DataError, match=said) as caught:
        shown({**columns(), **more})
    assert "episode 4" in str(caught.value)


def test_the_experts_demonstrations_are_taken_as_they_are():
    frames = attempt(0, 0)
    keys = (STATE, ACTION, REWARD, "next.success")
    played = shown({key: np.stack([frame[key] for frame in frames]) for key in keys})
    assert played.steps == len(frames)
    assert played.terminated
