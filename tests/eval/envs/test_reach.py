"""The built-in task: the same from the same seed, solved by the expert, and only by looking."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from kata.errors import ConfigError, PolicyError
from kata.eval.envs.reach import (
    CAMERAS,
    ENV_ID,
    FPS,
    MAX_STEPS,
    SENTENCES,
    TWO_ID,
    Expert,
    ReachEnv,
    ReachOneOfTwoEnv,
)
from kata.eval.envs.reach.picture import GOAL, GOAL_RADIUS, OTHER, TOOL, SceneCamera
from kata.eval.envs.registry import inspect, resolve_env
from kata.eval.options import EnvConfig


def share_of_successes(
    policy: Callable[[ReachEnv, int], Callable[[], np.ndarray]], episodes: int
) -> float:
    env, successes = ReachEnv(), 0
    for seed in range(episodes):
        env.reset(seed=seed)
        act, done, success = policy(env, seed), False, False
        while not done:
            _, _, ended, timed_out, info = env.step(act())
            done, success = ended or timed_out, info["is_success"]
        successes += success
    return successes / episodes


def test_gymnasium_knows_the_task_and_finds_nothing_wrong() -> None:
    env = gymnasium.make(ENV_ID, render_mode="rgb_array")
    check_env(env.unwrapped, skip_render_check=True)
    env.reset(seed=0)
    picture = env.render()
    assert isinstance(picture, np.ndarray)
    assert picture.shape == (256, 256, 3)
    assert env.metadata["render_fps"] == FPS
    env.close()


def test_importing_the_task_twice_registers_it_once_without_a_warning() -> None:
    code = (
        "import kata.eval.envs.reach as task; task.register_reach(); import gymnasium; "
        "gymnasium.make(task.ENV_ID)"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_the_same_seed_gives_the_same_episode() -> None:
    def episode() -> list[np.ndarray]:
        env = ReachEnv()
        seen, _ = env.reset(seed=11)
        expert = Expert(env, np.random.default_rng(5))
        found = [seen["agent_pos"], *seen["pixels"].values()]
        for _ in range(12):
            seen, *_ = env.step(expert.act())
            found += [seen["agent_pos"], *seen["pixels"].values()]
        return found

    for first, second in zip(episode(), episode(), strict=True):
        np.testing.assert_array_equal(first, second)


def test_relative_actions_move_the_tool_as_places_do() -> None:
    def path(*, relative: bool) -> np.ndarray:
        env = ReachEnv(relative=relative)
        env.reset(seed=11)
        expert = Expert(env, np.random.default_rng(5))
        return np.array([env.step(expert.act())[0]["agent_pos"] for _ in range(30)])

    np.testing.assert_allclose(path(relative=True), path(relative=False), rtol=0, atol=1e-6)
    env = ReachEnv(relative=True)
    env.reset(seed=11)
    before = env.tool
    env.step(np.array([0.0, 1.0], np.float32))
    np.testing.assert_allclose(env.tool - before, [0.0, 0.1], atol=1e-9)


def test_the_expert_succeeds() -> None:
    assert (
        share_of_successes(lambda env, seed: Expert(env, np.random.default_rng(seed)).act, 30)
        >= 0.98
    )


def test_going_to_the_middle_of_all_targets_fails() -> None:
    middle = np.array([0.0, 0.25], np.float32)
    assert share_of_successes(lambda env, seed: lambda: middle, 30) <= 0.1


def test_the_position_does_not_give_the_target_away() -> None:
    env, starts, goals = ReachEnv(), [], []
    for seed in range(400):
        seen, _ = env.reset(seed=seed)
        starts.append(seen["agent_pos"])
        goals.append(env.goal)
    joint = np.corrcoef(np.array(starts).T, np.array(goals).T)
    assert np.abs(joint[:2, 2:]).max() < 0.15


def test_the_target_stands_in_the_picture_where_it_is() -> None:
    goal = np.array([0.5, 0.3])
    picture = SceneCamera(64, 1.1).look(np.zeros(2), np.array([-0.5, -0.7]), goal).astype(int)
    rows, columns = np.nonzero(np.abs(picture - GOAL).sum(axis=2) < 30)
    pixel = 2.2 / 64
    assert abs((columns.mean() + 0.5) * pixel - 1.1 - goal[0]) < pixel / 2
    assert abs(1.1 - (rows.mean() + 0.5) * pixel - goal[1]) < pixel / 2
    assert len(rows) == pytest.approx(np.pi * GOAL_RADIUS**2 / pixel**2, rel=0.2)


def test_the_wrist_camera_follows_the_tool() -> None:
    env = ReachEnv()
    for seed in range(5):
        seen, _ = env.reset(seed=seed)
        middle = seen["pixels"]["wrist"][31:33, 31:33].reshape(-1, 3).astype(int)
        assert np.abs(middle - TOOL).max() <= 2


def test_success_needs_eight_steps_in_a_row_on_the_target() -> None:
    env = ReachEnv()
    env.reset(seed=0)
    env.tool = env.goal.copy()
    done = [env.step(env.goal.astype(np.float32))[2] for _ in range(8)]
    assert done == [False] * 7 + [True]


def test_time_is_up_after_the_last_step() -> None:
    env = ReachEnv()
    env.reset(seed=0)
    ends = [env.step(np.array([-1, -1], np.float32))[3] for _ in range(MAX_STEPS)]
    assert ends == [False] * (MAX_STEPS - 1) + [True]


@pytest.mark.parametrize("action", [[np.nan, 0.0], [0.0, 0.0, 0.0]])
def test_an_action_that_is_no_place_is_refused(action: list[float]) -> None:
    env = ReachEnv()
    env.reset(seed=0)
    with pytest.raises(PolicyError, match=r"(?s)action.*rule:.*remedy:"):
        env.step(np.array(action, np.float32))


def test_both_cameras_are_seen() -> None:
    seen, _ = ReachEnv().reset(seed=0)
    assert list(seen["pixels"]) == list(CAMERAS)
    assert ReachEnv().observation_space.contains(seen)


def test_smaller_pictures_are_drawn_and_show_the_same() -> None:
    usual, small = ReachEnv(), ReachEnv(picture=32)
    for seed in range(3):
        large, seen = usual.reset(seed=seed)[0], small.reset(seed=seed)[0]
        assert small.observation_space.contains(seen)
        np.testing.assert_array_equal(large["agent_pos"], seen["agent_pos"])
        for camera in CAMERAS:
            halved = large["pixels"][camera].reshape(32, 2, 32, 2, 3).mean((1, 3))
            assert np.abs(halved - seen["pixels"][camera]).mean() < 1.5


def test_pictures_that_cannot_be_drawn_are_refused() -> None:
    config = EnvConfig(type="kata", kwargs={"picture": 8})
    with pytest.raises(ConfigError, match=r"(?s)picture=8.*16 to 512.*--env.kwargs"):
        inspect(resolve_env(config))


def test_two_targets_look_the_same_whichever_counts() -> None:
    check_env(gymnasium.make(TWO_ID).unwrapped, skip_render_check=True)
    green, blue = (ReachOneOfTwoEnv(target=color) for color in SENTENCES)
    for seed in range(5):
        one, other = (env.reset(seed=seed)[0] for env in (green, blue))
        for camera in CAMERAS:
            np.testing.assert_array_equal(one["pixels"][camera], other["pixels"][camera])
        assert np.array_equal(green.goal, green.places["green"])
        assert np.array_equal(blue.goal, green.places["blue"])
        assert np.hypot(*(green.goal - blue.goal)) >= 0.5
        for color in (GOAL, OTHER):
            assert (one["pixels"]["top"] == color).all(-1).any()


def test_the_expert_reaches_the_target_that_counts_and_the_other_is_no_success() -> None:
    for color, expected in (("blue", True), ("green", False)):
        env, other = ReachOneOfTwoEnv(target="blue"), ReachOneOfTwoEnv(target=color)
        env.reset(seed=3)
        other.reset(seed=3)
        expert, done, success = Expert(other, np.random.default_rng(0)), False, False
        while not done:
            action = expert.act()
            other.step(action)
            _, _, ended, timed_out, info = env.step(action)
            done, success = ended or timed_out, info["is_success"]
        assert success == expected


def test_the_sentence_follows_the_target_unless_it_is_given() -> None:
    def sentence(**options: object) -> str:
        config = EnvConfig(type="kata", task="ReachOneOfTwo-v0", **options)  # type: ignore[arg-type]
        return resolve_env(config).instruction

    assert sentence() == SENTENCES["green"]
    assert sentence(kwargs={"target": "blue"}) == SENTENCES["blue"]
    assert sentence(kwargs={"target": "blue"}, instruction="stay") == "stay"
    with pytest.raises(ConfigError, match="one of: green, blue"):
        ReachOneOfTwoEnv(target="red")
