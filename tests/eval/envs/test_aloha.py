"""ALOHA: replaying the scripted expert gives the recorded episodes, and a seed decides where an
episode starts.
"""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("gym_aloha", reason="needs the extra aloha", exc_type=ImportError)
import gymnasium

from kata.data import open_dataset
from kata.data.loader.reader import Reader
from kata.errors import ConfigError, DataError, PolicyError
from kata.eval.envs.aloha import JOINTS, AlohaEnv
from kata.eval.record.replay import replay, replay_aloha

SHARED = Path(os.environ.get("KATA_SHARED_DATA", Path(__file__).parents[4] / "shared" / "data"))
TRAJECTORIES, RECORDED = SHARED / "aloha-scripted-traj.npz", SHARED / "aloha-scripted-cube-v30"
needs_trajectories = pytest.mark.skipif(
    not TRAJECTORIES.exists(), reason=f"{TRAJECTORIES} is absent"
)
needs_both = pytest.mark.skipif(
    not (TRAJECTORIES.exists() and RECORDED.exists()), reason=f"no data in {SHARED}"
)


@pytest.fixture(scope="module")
def blind():
    """Physics without pictures: an episode takes a fraction of a second."""
    env = AlohaEnv(pictures=False)
    yield env
    env.close()


@pytest.fixture(scope="module")
def trajectories():
    with np.load(TRAJECTORIES) as file:
        return {key: file[key] for key in file}


def steps(env, actions, **start):
    """States before each action and rewards after it."""
    seen, _ = env.reset(**start)
    states, rewards = [], []
    for action in actions:
        states.append(seen["agent_pos"])
        seen, reward, *_ = env.step(action)
        rewards.append(reward)
    return np.array(states), np.array(rewards)


@needs_both
def test_replaying_the_expert_gives_the_recorded_states_and_rewards(blind, trajectories):
    data = open_dataset("aloha", root=RECORDED)
    states, rewards = data.column("observation.state"), data.column("next.reward")
    assert tuple(data.columns["observation.state"].names) == JOINTS
    for number, (first, length) in enumerate(
        zip(data.episodes.start, data.episodes.length, strict=True)
    ):
        actions = trajectories["sim_transfer_cube_scripted_actions"][number, :length]
        np.testing.assert_array_equal(
            data.column("action")[first : first + length], actions.astype(np.float32)
        )
        pose = trajectories["sim_transfer_cube_scripted_env"][number]
        found = steps(blind, actions, options={"state": pose})
        np.testing.assert_array_equal(found[0], states[first : first + length])
        np.testing.assert_array_equal(found[1], rewards[first : first + length])


@needs_trajectories
def test_all_cubes_end_held(blind, trajectories):
    poses, actions = (
        trajectories[f"sim_transfer_cube_scripted_{what}"] for what in ("env", "actions")
    )
    last = [
        steps(blind, taken[:-1], options={"state": p})[1][-1]
        for p, taken in zip(poses, actions, strict=True)
    ]
    assert last == [4] * 20


@needs_both
def test_frames_look_like_the_recorded_ones(trajectories):
    actions, poses = (
        trajectories[f"sim_transfer_cube_scripted_{what}"] for what in ("actions", "env")
    )
    with closing(AlohaEnv()) as env:
        frames = list(replay(env, actions[0, :2], poses[0]))
    with Reader(open_dataset("aloha", root=RECORDED), {}) as reader:
        recorded = reader.read(np.arange(2))["observation.images.top"]
    for frame, expected in zip(frames, recorded, strict=True):
        error = np.square(frame["observation.images.top"].astype(float) - expected).mean()
        assert 10 * np.log10(255**2 / error) > 40, "dB; the rest is the video's compression"


def test_files_without_success_or_without_the_task_are_refused(blind, tmp_path):
    rng = np.random.default_rng(0)
    rest = blind.reset(seed=0)[0]["agent_pos"]
    poses = np.array([[0.1, 0.5, 0.05, 1, 0, 0, 0], [0.0, 0.4, 0.05, 1, 0, 0, 0]])
    path = tmp_path / "trajectories.npz"
    actions = rest + 0.01 * rng.standard_normal((2, 5, 14))
    np.savez(path, sim_transfer_cube_scripted_actions=actions, sim_transfer_cube_scripted_env=poses)
    with pytest.raises(
        DataError, match=r"(?s)trajectories.npz: none of 2 episodes.*ends in success"
    ):
        replay_aloha(path, tmp_path / "set", codec="h264")
    with pytest.raises(DataError, match=r"(?s)episodes \[7\].*0 to 1"):
        replay_aloha(path, tmp_path / "other", episodes=[7])
    with pytest.raises(
        DataError, match=r"(?s)sim_insertion_scripted_actions.*sim_transfer_cube_scripted_env"
    ):
        replay_aloha(path, tmp_path / "other", task="insertion")


@needs_both
def test_what_succeeds_is_written_and_what_fails_is_dropped(
    tmp_path, trajectories, monkeypatch, caplog
):
    monkeypatch.setattr(AlohaEnv, "_shoot", lambda env, physics: np.zeros((480, 640, 3), np.uint8))
    given = {key: values[[2, 0]] for key, values in trajectories.items() if "transfer_cube" in key}
    given["sim_transfer_cube_scripted_env"][1, 1] += (
        0.2  # the cube is elsewhere, and the hand closes on nothing
    )
    np.savez(tmp_path / "two.npz", **given)
    seen = []
    with caplog.at_level("INFO", logger="kata.eval.record.replay"):
        root = replay_aloha(
            tmp_path / "two.npz", tmp_path / "set", codec="h264", progress=lambda *n: seen.append(n)
        )
    assert seen == [(1, 2), (2, 2)]
    assert "1 episodes" in caplog.text
    assert "without success: [1]" in caplog.text
    data, recorded = open_dataset("x", root=root), open_dataset("aloha", root=RECORDED).subset([2])
    assert (data.fps, data.num_frames, data.tasks) == (50, 400, recorded.tasks)
    for key in ("observation.state", "action", "next.reward"):
        np.testing.assert_array_equal(data.column(key), recorded.column(key))
    np.testing.assert_array_equal(data.column("next.success"), recorded.column("next.reward") == 4)


def test_a_seed_decides_the_start_and_nobody_elses_numbers_change(blind):
    from gym_aloha.tasks.sim import BOX_POSE
    from gym_aloha.utils import sample_box_pose

    np.random.seed(3)
    before, other = np.random.get_state()[1].copy(), BOX_POSE[0]
    actions = [np.asarray(blind.reset(seed=4)[0]["agent_pos"])] * 3
    first, _ = steps(blind, actions, seed=5)
    cube = blind._sim.physics.named.data.qpos[-7:].copy()
    steps(blind, actions, seed=6)
    again, _ = steps(blind, actions, seed=5)
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(blind._sim.physics.named.data.qpos[-7:], cube)
    np.testing.assert_allclose(cube[:2], sample_box_pose(5)[:2], atol=1e-3)
    blind.reset(seed=5)
    blind.reset()
    follows = blind._sim.physics.named.data.qpos[-7:].copy()
    blind.reset(seed=5)
    blind.reset()
    np.testing.assert_array_equal(blind._sim.physics.named.data.qpos[-7:], follows)
    assert not np.allclose(follows, cube, atol=1e-3)
    np.testing.assert_array_equal(np.random.get_state()[1], before)
    assert BOX_POSE[0] is other


def test_what_it_declares_is_what_it_shows():
    env = gymnasium.make(
        "kata/AlohaTransferCube-v0", render_mode="rgb_array", disable_env_checker=True
    )
    seen, info = env.reset(seed=0)
    assert env.observation_space.contains(seen)
    assert env.spec.max_episode_steps == 400
    assert info == {"is_success": False}
    np.testing.assert_array_equal(env.render(), seen["pixels"]["top"])
    seen, reward, *ended, info = env.step(seen["agent_pos"])
    assert (reward, ended, info) == (0, [False, False], {"is_success": False})
    for _ in range(2):
        env.close()


def test_bad_input_is_refused(blind):
    with pytest.raises(ConfigError, match=r"(?s)task transfer.*transfer_cube, insertion"):
        AlohaEnv("transfer")
    with pytest.raises(ConfigError, match=r"(?s)state \[1, 2\].*7 finite numbers"):
        blind.reset(options={"state": [1, 2]})
    blind.reset(seed=0)
    with pytest.raises(PolicyError, match="14 finite numbers"):
        blind.step(np.full(14, np.nan))
