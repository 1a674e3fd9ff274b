"""`kata eval`: options, what is refused before the first step, a checkpoint from folder to
eval.json.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import kata.cli
from kata.errors import CheckpointError, ConfigError, KataError, PolicyError
from kata.eval import env_worker
from kata.eval.command import main
from kata.eval.envs import registry
from kata.eval.envs.registry import EnvSpec, inspect, resolve_env
from kata.eval.options import EnvConfig, EvalConfig, resolve_eval
from kata.eval.rollout_policy import acting, load_for_acting
from kata.eval.runner import play
from kata.policies.base import ActState
from kata.processors import Pipeline, Rename
from tests.eval.acting import TOP, Scripted, plain, stats, tiny_policy, write_checkpoint

TOY = ["--env.type=gym", "--env.id=tests.eval.fakes:fakes/Toy-v0"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("policy") / "pretrained_model", tiny_policy())


def evaluated(spec: EnvSpec, **features) -> None:
    play(plain(Scripted(lambda batch: None, **features)), spec, EvalConfig(n_episodes=1))


def test_flags_lie_over_the_file(tmp_path):
    (tmp_path / "eval.yaml").write_text(
        "policy: {path: there}\nenv.type: kata\neval: {n_episodes: 9, videos: 1}\n"
    )
    run = resolve_eval(
        [f"--config={tmp_path}/eval.yaml", "--eval.n_episodes=3", '--env.kwargs={"a": 1}']
    )
    assert (run.policy.path, run.env.type, run.eval.n_episodes, run.eval.videos) == (
        "there",
        "kata",
        3,
        1,
    )
    assert run.env.kwargs == {"a": 1}
    assert (run.seed, EvalConfig().n_episodes) == (1000, 50)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--env.type=kata"], r"policy\.path: not given"),
        (["--policy.path=x"], r"env\.type: not given"),
        (
            ["--policy.path=x", "--env.type=kata", "--eval.n_episode=1"],
            r"eval\.n_episode:.*--eval\.n_episodes",
        ),
        (["--policy.path=x", "--env.type=kata", "--env.kwarg=1"], r"env\.kwarg:.*--env\.kwargs"),
        (
            ["--policy.path=x", "--env.type=kata", "--eval.n_episodes=0"],
            r"eval\.n_episodes=0.*at least 1",
        ),
        (
            ["--policy.path=x", "--env.type=kata", "--eval.batch_size=-1"],
            r"eval\.batch_size=-1.*at least 0",
        ),
        (
            ["--policy.path=x", "--env.type=kata", "--eval.videos=some"],
            r"eval\.videos=some.*whole number",
        ),
        (["--policy.path=x", "--env.type=kata", "--env.max_steps=0"], r"env\.max_steps=0"),
        (["--policy.path=x", "--env.type=kata", "--env.options=[]"], r"env\.options"),
        (["--policy.path=x", "--env.type=kata", "--seed=-1"], r"seed=-1"),
    ],
)
def test_wrong_options_are_named_with_what_is_right(args, message):
    with pytest.raises(ConfigError, match=f"(?s){message}") as caught:
        resolve_eval(args)
    assert caught.value.rule
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (EnvConfig(type="kat"), "env.type=kat.*'kata'"),
        (EnvConfig(type="gym"), "env.id: not given"),
        (EnvConfig(type="kata", id="x"), "env.id=x together"),
        (EnvConfig(type="gym", id="Pendulum-v9"), "Pendulum-v9: no such.*'Pendulum-v1'"),
        (EnvConfig(type="gym", id="qqqqqqqqqq"), "module:Name-v0"),
        (EnvConfig(type="kata", task="Rech-v0"), "kata/Rech-v0.*'kata/Reach-v0'"),
        (EnvConfig(type="gym", id="no_such_module:X-v0"), "package no_such_module"),
        (
            EnvConfig(type="gym", id="tests.eval.fakes:fakes/Endless-v0"),
            "no limit of steps.*env.max_steps",
        ),
        (EnvConfig(type="kata", kwargs={"colour": 1}), "cannot be made.*colour.*env.kwargs"),
        (
            EnvConfig(type="gym", id="tests.eval.fakes:fakes/Discrete-v0", max_steps=5),
            "Discrete.*env.action_key",
        ),
    ],
)
def test_environments_that_cannot_be_used_are_refused(config, message):
    with pytest.raises(KataError, match=f"(?s){message}") as caught:
        inspect(resolve_env(config))
    assert caught.value.rule
    assert caught.value.remedy


def test_a_missing_extra_is_named_with_the_command_that_installs_it(monkeypatch):
    absent = EnvSpec("gym_pusht/PushT-v0", module="gym_pusht_is_absent", extra="pusht")
    monkeypatch.setitem(registry.ENVIRONMENTS, "pusht", absent)
    with pytest.raises(
        ConfigError, match=r"(?s)gym_pusht_is_absent.*uv pip install 'kata\[pusht\]'"
    ):
        inspect(resolve_env(EnvConfig(type="pusht")))


@pytest.mark.parametrize(
    ("features", "options", "message"),
    [
        (
            {"camera": "observation.images.font"},
            {},
            r"images\.font: .* no 'pixels\.font'.*it observes: agent_pos 3, pixels\.top 32x32x3"
            r""".*observation_map='\{"observation\.images\.font": "pixels\.top"\}'""",
        ),
        (
            {"camera": None},
            {},
            r"no 'environment_state'.*\"observation\.environment_state\": \"agent_pos\"",
        ),
        ({"size": 48}, {}, "trained on 48x48x3.*is 32x32x3.*env.kwargs"),
        ({"state": 5}, {}, "trained on 5, 'agent_pos' is 3"),
        ({"action": 6}, {}, "action has 6 numbers, .* takes 2"),
        ({}, {"observation_map": {TOP: "agent_pos"}}, "'agent_pos' is no picture"),
        (
            {},
            {"observation_map": {"observation.images.tip": "pixels.top"}},
            f"no input .*tip.*'{TOP}'",
        ),
    ],
)
def test_what_does_not_fit_is_found_before_the_first_step(features, options, message):
    spec = resolve_env(EnvConfig(type="gym", id="tests.eval.fakes:fakes/Toy-v0", **options))
    with pytest.raises(PolicyError, match=f"(?s){message}") as caught:
        evaluated(spec, **features)
    assert caught.value.rule
    assert caught.value.remedy


def test_a_checkpoint_acts_as_its_parts_do(checkpoint):
    ready = load_for_acting(str(checkpoint), "cpu")
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 255, (2, 32, 32, 3), dtype=np.uint8)
    state = rng.normal(size=(2, 3)).astype(np.float32)
    found, _ = ready.act({"observation.state": state, TOP: frames}, "", ActState())
    given = stats()
    batch = {
        "observation.state": torch.from_numpy((state - 0.2) / np.float32(0.7)),
        TOP: (torch.from_numpy(frames).permute(0, 3, 1, 2) / 255 - 0.4) / 0.3,
    }
    action = (
        tiny_policy().predict_chunk(batch)[:, 0].numpy() * given["action"]["std"]
        + given["action"]["mean"]
    )
    np.testing.assert_allclose(found, action, atol=1e-5)
    assert found.dtype == np.float32


def test_renamed_cameras_are_found_under_the_name_that_the_data_had(tmp_path):
    other = "observation.images.front"
    config = tiny_policy().config
    inputs = {
        "observation.state": config.input_features["observation.state"],
        other: config.input_features[TOP],
    }
    policy = tiny_policy(input_features=inputs)
    folder = write_checkpoint(tmp_path / "pretrained_model", policy, rename_map={TOP: other})
    out = tmp_path / "out"
    assert (
        main([f"--policy.path={folder}", *TOY, "--eval.n_episodes=1", f"--output_dir={out}"]) == 0
    )
    written = json.loads((out / "eval.json").read_text())
    assert written["env"]["observation_map"] == {
        "observation.state": "agent_pos",
        other: "pixels.top",
    }


def test_a_rename_of_what_the_environment_lacks_is_refused(checkpoint, tmp_path, capsys):
    args = [f"--policy.path={checkpoint}", *TOY, "--eval.n_episodes=1"]
    renames = [
        f'--rename_map={{"observation.images.tpo": "{TOP}"}}',
        f"--output_dir={tmp_path}/out",
    ]
    with pytest.raises(PolicyError, match=r"(?s)no observation\.images\.tpo.*state.*images\.top"):
        main([*args, *renames])
    renames = [f'--rename_map={{"{TOP}": "{TOP}"}}', f"--output_dir={tmp_path}/out"]
    assert main([*args, *renames]) == 0


def test_a_state_of_another_name_in_the_data_is_found_where_environments_keep_it(tmp_path):
    renames = {"state": "observation.state", "camera": TOP}
    folder = write_checkpoint(tmp_path / "pretrained_model", tiny_policy(), rename_map=renames)
    out = tmp_path / "out"
    args = [f"--policy.path={folder}", *TOY, "--eval.n_episodes=1", f"--output_dir={out}"]
    assert main(args) == 0
    written = json.loads((out / "eval.json").read_text())
    paths = {"observation.state": "agent_pos", TOP: "pixels.top"}
    assert written["env"]["observation_map"] == paths


def test_what_is_named_for_the_policy_is_not_renamed_once_more():
    left, right = "observation.images.left", "observation.images.right"
    policy = Scripted(lambda batch: batch[left].mean((1, 2, 3))[:, None].expand(-1, 2), camera=left)
    policy.config = policy.config.with_features(
        {**policy.config.input_features, right: policy.config.input_features[left]},
        policy.config.output_features,
    )
    swap = Pipeline("before", (Rename({left: right, right: left}),))
    ready = acting(policy, swap, Pipeline("after", ()), torch.device("cpu"))
    frames = {
        left: np.full((1, 32, 32, 3), 255, np.uint8),
        right: np.zeros((1, 32, 32, 3), np.uint8),
    }
    action, _ = ready.act(frames, "", ActState())
    np.testing.assert_array_equal(action, [[1, 1]])
    assert ready.renamed == {left: right, right: left}


def test_a_checkpoint_without_processors_is_refused(tmp_path):
    folder = write_checkpoint(tmp_path / "pretrained_model", tiny_policy())
    (folder / "policy_preprocessor.json").unlink()
    with pytest.raises(
        CheckpointError, match=r"(?s)policy_preprocessor\.json: no such file.*rule:.*remedy:"
    ):
        main([f"--policy.path={folder}", *TOY, f"--output_dir={tmp_path}/out"])
    assert not (tmp_path / "out").exists()


def test_the_command_writes_everything_and_prints_a_table(checkpoint, tmp_path, capsys):
    out = tmp_path / "out"
    args = [
        f"--policy.path={checkpoint}",
        *TOY,
        "--eval.n_episodes=4",
        "--eval.videos=2",
        f"--output_dir={out}",
    ]
    assert main(args) == 0
    shown = capsys.readouterr()
    assert "act in fakes/Toy-v0, seeds 1000 to 1003" in shown.out
    assert "2 of 4: 50.0% (95 %: 15.0% to 85.0%)" in shown.out
    assert "4 of 4 episodes" in shown.err
    written = json.loads((out / "eval.json").read_text())
    assert written["success_rate"] == 0.5
    assert [e["seed"] for e in written["episodes"]] == [1000, 1001, 1002, 1003]
    assert all((out / e["video"]).is_file() for e in written["episodes"][:2])
    with pytest.raises(CheckpointError, match=r"holds eval\.json and videos already"):
        main(args)


def test_an_evaluation_in_which_all_crashes_is_an_error_with_a_result(checkpoint, tmp_path):
    bad = json.dumps({"bad": {1000: [1, "raise"], 1001: [1, "raise"]}})
    args = [f"--policy.path={checkpoint}", *TOY, "--eval.n_episodes=2", f"--env.kwargs={bad}"]
    with pytest.raises(ConfigError, match=r"every episode crashed.*fell off"):
        main([*args, f"--output_dir={tmp_path}/out"])
    assert json.loads((tmp_path / "out" / "eval.json").read_text())["num_crashed"] == 2


def test_help_lists_every_option(capsys):
    assert kata.cli.main(["eval", "--help=all"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for name in (
        "--policy.path",
        "--env.observation_map",
        "--eval.use_async_envs",
        "--seed",
        "pusht, aloha",
    ):
        assert name in text


def test_the_worker_leaves_result_films_and_strips_as_files(checkpoint, tmp_path, capsys):
    env = {"type": "gym", "id": "tests.eval.fakes:fakes/Toy-v0"}
    (tmp_path / "options.json").write_text(
        json.dumps({"env": env, "eval": {"n_episodes": 3, "videos": 1}})
    )
    target = tmp_path / "step_10" / "result.json"
    assert env_worker.main([str(checkpoint), str(tmp_path / "options.json"), str(target)]) == 0
    result = json.loads(target.read_text())
    assert result["num_success"] == 2
    with np.load(target.parent / result["strips"]) as strips:
        assert {name: strips[name].dtype for name in strips} == {"episode_0": np.uint8}
    for rank in (0, 1):
        share = [str(tmp_path / "shared" / f"{rank}.json"), str(rank), "2"]
        assert env_worker.main([str(checkpoint), str(tmp_path / "options.json"), *share]) == 0
    shares = [str(tmp_path / "shared" / f"{rank}.json") for rank in (0, 1)]
    assert env_worker.main(["--sum", str(tmp_path / "shared" / "result.json"), *shares]) == 0
    summed = json.loads((tmp_path / "shared" / "result.json").read_text())
    assert summed == result | {"seconds": summed["seconds"]}
    failed = tmp_path / "failed.json"
    assert env_worker.main([str(tmp_path), str(tmp_path / "options.json"), str(failed)]) == 2
    assert "config.json" in json.loads(failed.read_text())["error"]
    assert "config.json" in capsys.readouterr().err
