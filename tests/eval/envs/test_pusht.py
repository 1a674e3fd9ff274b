"""PushT: people's actions have the recorded effect, and a recorded state is met exactly."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("gym_pusht", reason="needs the extra pusht", exc_type=ImportError)
import gymnasium

from kata.data import open_dataset
from kata.data.loader.reader import Reader
from kata.errors import ConfigError
from kata.eval.envs.pusht import ENV_ID, make_pusht

SHARED = Path(os.environ.get("KATA_SHARED_DATA", Path(__file__).parents[4] / "shared" / "data"))
PEOPLE = SHARED / "pusht-v30"
needs_people = pytest.mark.skipif(not PEOPLE.exists(), reason=f"{PEOPLE} is absent")

BLOCKS = {
    0: (223.0707, 382.2067, 3.0063),
    3: (322.3023, 313.3665, 3.7464),
    7: (135.3522, 255.8208, 2.9107),
}
"""Episode -> the block's first pose, found by benchmarks/outcomes/pusht_replay.py; the dataset
does not hold it.
"""


@needs_people
@pytest.mark.parametrize("episode", BLOCKS)
def test_replaying_people_gives_the_recorded_places_rewards_and_pictures(episode):
    data = open_dataset("pusht", root=PEOPLE).subset([episode])
    tools, actions, rewards = (
        data.column(key) for key in ("observation.state", "action", "next.reward")
    )
    env = make_pusht()
    seen, _ = env.reset(options={"state": [*tools[0], *BLOCKS[episode]]})
    earned = []
    for tool, action in zip(tools, actions, strict=True):
        np.testing.assert_allclose(seen["agent_pos"], tool, atol=1e-4)
        last = seen["pixels"]
        seen, reward, *_ = env.step(action)
        earned.append(reward)
    np.testing.assert_allclose(
        earned[:-1], rewards[:-1], atol=0.02
    )  # the last recorded one repeats that before
    with Reader(data, {}, keys=["observation.image"]) as reader:
        picture = reader.read(np.array([len(tools) - 1]))["observation.image"][0]
    assert np.square(last.astype(float) - picture).mean() < 40, (
        "the rest is the video's compression"
    )


def test_a_state_is_met_exactly_where_the_simulators_own_option_misses():
    state = np.array([100.0, 420.0, 180.5, 200.25, 2.5])
    env = make_pusht()
    for _ in range(2):  # the second time from another state
        seen, info = env.reset(seed=3, options={"state": state})
        np.testing.assert_allclose(info["block_pose"], state[2:], atol=1e-9)
        np.testing.assert_allclose(seen["agent_pos"], state[:2], atol=1e-9)
        env.step(np.array([300.0, 100.0], dtype=np.float32))
    _, info = env.env.reset(options={"reset_to_state": state})
    assert np.abs(info["block_pose"] - state[2:]).max() > 50


def test_what_it_declares_is_what_the_data_has():
    env = gymnasium.make(ENV_ID, render_mode="rgb_array")
    seen, _ = env.reset(seed=0)
    assert env.observation_space.contains(seen)
    assert (seen["pixels"].shape, env.spec.max_episode_steps) == ((96, 96, 3), 300)
    assert env.metadata["render_fps"] == 10
    assert env.render().shape == (384, 384, 3)


def test_a_seed_starts_where_the_simulators_own_does():
    starts = [env.reset(seed=7)[0] for env in (gymnasium.make(ENV_ID), gymnasium.make(ENV_ID))]
    import gym_pusht.envs

    starts.append(gym_pusht.envs.PushTEnv(obs_type="pixels_agent_pos").reset(seed=7)[0])
    for start in starts[1:]:
        np.testing.assert_array_equal(start["pixels"], starts[0]["pixels"])


def test_covering_more_than_95_percent_ends_the_episode_with_success():
    env = make_pusht()
    for angle, success in ((np.pi / 4, True), (np.pi / 4 + 0.1, False)):
        env.reset(options={"state": [50, 50, 256, 256, angle]})
        _, reward, ended, _, info = env.step(np.array([50.0, 50.0], dtype=np.float32))
        assert (bool(ended), bool(info["is_success"]), bool(info["coverage"] > 0.95)) == (
            success,
        ) * 3
        assert reward == pytest.approx(min(info["coverage"] / 0.95, 1))


@pytest.mark.parametrize("state", [[1, 2, 3], [1, 2, 3, 4, float("nan")]])
def test_a_state_of_another_kind_is_refused(state):
    with pytest.raises(
        ConfigError, match=r"(?s)state \[1, 2, 3.*five finite numbers.*random start"
    ):
        make_pusht().reset(options={"state": state})
