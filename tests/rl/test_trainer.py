"""Whole runs: a function of their seed, resumed bit for bit, and refused where they cannot work."""

import json
import re
import shutil

import pytest
import torch
from safetensors.torch import load_file

from kata.data.dataset.dataset import open_dataset
from kata.errors import CheckpointError, ConfigError, DataError, KataError, PolicyError
from kata.eval.envs.registry import resolve_env
from kata.eval.record.demonstrations import record
from kata.rl.demos import open_demos
from kata.rl.environment import RlEnv
from kata.rl.episodes.journal import Journal
from kata.rl.export import export_journal
from kata.rl.learner import Learner
from kata.rl.network.members import RunActors
from kata.rl.options import ExportRunOptions, resolve_rl
from kata.rl.replay import learn_again
from kata.rl.setup import episode_schema, plan_buffers, policy_config
from kata.rl.trainer import train_rl
from kata.train.checkpoint.run_lock import FolderLock
from kata.train.metrics.meter import read_metrics
from tests.data.dataset_maker import change_table

LAYERS = "{hidden_dims: [8, 8]}"
SMALL = [
    "--policy.device=cpu", "--policy.latent_dim=8", f"--policy.actor_network_kwargs={LAYERS}",
    f"--algorithm.critic_network_kwargs={LAYERS}", "--batch_size=8", "--log_freq=5",
    "--policy.online_buffer_capacity=50", "--policy.online_step_before_learning=10",
    "--report=false",
]  # fmt: skip
PENDULUM = [
    *SMALL, "--env.type=gym", "--env.id=Pendulum-v1", "--env.max_steps=12", "--rl.reward=env",
    "--env.success_key=terminated", "--policy.online_steps=46", "--save_freq=20",
    "--algorithm.utd_ratio=2",
]  # fmt: skip
TOP = "observation.images.top"
INPUTS = {
    TOP: {"type": "VISUAL", "shape": [3, 64, 64]},
    "observation.state": {"type": "STATE", "shape": [2]},
}
REACH = [
    *SMALL, "--env.type=kata", "--env.max_steps=12", "--policy.online_steps=24", "--save_freq=12",
    f"--policy.input_features={json.dumps(INPUTS)}", "--policy.image_encoder_hidden_dim=4",
    "--policy.freeze_vision_encoder=false", "--takeover.rate=0.5", "--takeover.least_steps=2",
    "--takeover.most_steps=5", "--policy.offline_buffer_capacity=200",
]  # fmt: skip
DEMOS = "--dataset.root={demos}"
MEASURED = ("time", "run_s")


@pytest.fixture(scope="module")
def demos(tmp_path_factory):
    root = tmp_path_factory.mktemp("demos") / "reach"
    return record(root, num_episodes=2, codec="h264")


def train(folder, *args):
    torch.set_num_threads(1)
    return train_rl(resolve_rl([*args, f"--output_dir={folder}"]))


def left(folder):
    """What a run leaves, by name: every file, and metrics without times."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_file() and path.suffix in (".safetensors", ".json", ".jsonl"):
            found[name] = path.read_bytes()
    del found["rl_config.json"]
    lines = read_metrics(folder / "metrics.jsonl")
    found["metrics.jsonl"] = [
        {k: v for k, v in line.items() if k not in MEASURED} for line in lines
    ]
    return {k: v for k, v in found.items() if "rl_config" not in k and "manifest" not in k}


def differing(first, second):
    names = first.keys() | second.keys()
    return sorted(name for name in names if first.get(name) != second.get(name))


class CutOffError(Exception):
    """Stands for a kill."""


def cut_off_at(monkeypatch, cls, name, call):
    """Let the call number `call` of a method raise instead of working."""
    calls, work = iter(range(10_000)), vars(cls)[name]

    def method(self, *args, **kwargs):
        if next(calls) == call:
            raise CutOffError
        return work(self, *args, **kwargs)

    monkeypatch.setattr(cls, name, method)


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    folder = tmp_path_factory.mktemp("straight") / "run"
    return folder, train(folder, *PENDULUM)


def test_a_run_leaves_checkpoints_a_journal_and_its_figures(straight):
    folder, trained = straight
    assert (trained.counts.step, trained.counts.episodes, trained.counts.updates) == (48, 4, 38)
    names = sorted(path.name for path in (folder / "checkpoints").iterdir())
    assert names == ["000024", "000048", "last"]
    lines = read_metrics(folder / "metrics.jsonl")
    kinds = [line["kind"] for line in lines]
    assert kinds.count("episode") == 4
    assert kinds.count("train") == 7
    assert {"loss_critic", "loss_actor", "alpha", "entropy", "q_mean"} <= lines[-1].keys()
    made = load_file(folder / "checkpoints/last/algorithm/model.safetensors")
    assert {"log_alpha", "critic_target.critics.1.output_layer.bias"} <= made.keys()
    config = json.loads((folder / "checkpoints/last/pretrained_model/config.json").read_text())
    assert config["type"] == "gaussian_actor"
    assert config["dataset_stats"]["action"] == {"min": [-2.0], "max": [2.0]}


@pytest.mark.parametrize(
    ("cls", "name", "call"),
    [
        (Learner, "update", 30),
        (Journal, "append", 2),
        (Learner, "admit", 3),
    ],
)
def test_a_run_that_was_cut_off_ends_as_the_straight_one(
    cls, name, call, straight, tmp_path, monkeypatch
):
    with monkeypatch.context() as patched:
        cut_off_at(patched, cls, name, call)
        with pytest.raises(CutOffError):
            train(tmp_path / "run", *PENDULUM)
    train(tmp_path / "run", *PENDULUM, "--resume=true")
    assert not differing(left(straight[0]), left(tmp_path / "run"))


def test_a_run_names_the_verb_that_it_belongs_to(tmp_path):
    few = [*PENDULUM, "--policy.online_steps=12"]
    assert train(tmp_path / "run", *few).command.startswith("kata rl train --config=")
    RunActors(tmp_path / "run", [], 1)
    assert train(tmp_path / "run", *few, "--resume=true").command.startswith("kata rl learn ")


def test_another_seed_gives_another_run(straight, tmp_path):
    train(tmp_path / "run", *PENDULUM, "--seed=7", "--policy.online_steps=12")
    mine = (tmp_path / "run/journal/000000.safetensors").read_bytes()
    assert mine != (straight[0] / "journal/000000.safetensors").read_bytes()


def test_a_run_goes_on_to_more_steps_as_if_they_had_been_asked_for(straight, tmp_path):
    fewer = [*PENDULUM, "--policy.online_steps=20"]
    train(tmp_path / "run", *fewer)
    train(tmp_path / "run", *PENDULUM, "--resume=true")
    found = differing(left(straight[0]), left(tmp_path / "run"))
    assert [name for name in found if "config.json" not in name] == []


def test_pictures_demonstrations_and_takeovers_resume_too(demos, tmp_path, monkeypatch):
    args = [*REACH, f"--dataset.root={demos}"]
    train(tmp_path / "straight", *args)
    with monkeypatch.context() as patched:
        cut_off_at(patched, Learner, "update", 4)
        with pytest.raises(CutOffError):
            train(tmp_path / "cut", *args)
    train(tmp_path / "cut", *args, "--resume=true")
    assert not differing(left(tmp_path / "straight"), left(tmp_path / "cut"))
    lines = [x for x in read_metrics(tmp_path / "cut/metrics.jsonl") if x["kind"] == "episode"]
    assert sum(line["human_steps"] for line in lines) > 4
    assert all(line["success"] in (True, False) for line in lines)


@pytest.mark.parametrize("call", [3, 9])
def test_a_run_that_clones_first_resumes_and_replays(call, demos, tmp_path, monkeypatch):
    """Cut off while it cloned, and when it had acted; a stop keeps what was cloned."""
    args = [
        *REACH,
        f"--dataset.root={demos}",
        "--algorithm.bc_pretrain_updates=6",
        "--algorithm.lr_decay_updates=15",
    ]
    trained = train(tmp_path / "straight", *args)
    assert trained.counts.updates == 6 + 24 - 10
    assert (tmp_path / "straight/checkpoints/000000").is_dir()
    with monkeypatch.context() as patched:
        cut_off_at(patched, Learner, "update", call)
        with pytest.raises(CutOffError):
            train(tmp_path / "cut", *args)
    train(tmp_path / "cut", *args, "--resume=true")
    assert not differing(left(tmp_path / "straight"), left(tmp_path / "cut"))
    assert learn_again(tmp_path / "cut") == []
    first = read_metrics(tmp_path / "cut/metrics.jsonl")[0]
    assert first["updates"] == 5
    assert "loss_critic" not in first


def test_demonstrations_of_success_beside_other_rewards_are_warned_of(
    demos, tmp_path, monkeypatch, caplog
):
    root = shutil.copytree(demos, tmp_path / "demos")

    def change(columns):
        columns["next.reward"] = [float(each) for each in columns["next.success"]]

    for path in root.glob("data/*/*.parquet"):
        change_table(path, change)
    few = [*REACH, "--policy.online_steps=12", "--rl.reward=env"]
    said = "the environment pays -0.5 in a step, next.reward is 0, and 1 at the end"
    train(tmp_path / "usual", *few, f"--dataset.root={root}")
    assert said not in caplog.text
    step = RlEnv.step

    def costly(self, action):
        return step(self, action)._replace(reward=-0.5)

    monkeypatch.setattr(RlEnv, "step", costly)
    train(tmp_path / "own", *few, f"--dataset.root={demos}")
    assert said not in caplog.text  # these have the environment's rewards, more than one of 1
    train(tmp_path / "run", *few, f"--dataset.root={root}")
    assert said in caplog.text


def test_what_the_environment_lacks_is_found_before_cloning(demos, tmp_path, monkeypatch):
    monkeypatch.setattr(Learner, "update", lambda self: pytest.fail("cloned"))
    args = [*REACH, f"--dataset.root={demos}", "--algorithm.bc_pretrain_updates=6"]
    with pytest.raises(ConfigError, match="has no 'won'"):
        train(tmp_path / "run", *args, "--env.success_key=won")
    assert not (tmp_path / "run").exists()


def test_what_was_cloned_outlives_an_environment_that_fails(demos, tmp_path, monkeypatch):
    args = [*REACH, f"--dataset.root={demos}", "--algorithm.bc_pretrain_updates=6"]
    steps, step = iter(range(10_000)), RlEnv.step

    def failing(self, action):
        if next(steps) == 2:
            raise ConfigError("the motor is off", rule="it is on", remedy="turn it on")
        return step(self, action)

    with monkeypatch.context() as patched:
        patched.setattr(RlEnv, "step", failing)
        with pytest.raises(ConfigError, match="motor"):
            train(tmp_path / "run", *args)
    assert (tmp_path / "run/checkpoints/000000").is_dir()
    few = [*args, "--policy.online_steps=12"]
    assert train(tmp_path / "run", *few, "--resume=true").counts.updates == 6 + 12 - 10


@pytest.mark.parametrize(
    ("more", "error", "said"),
    [
        (["--seed=3"], ConfigError, "seed was 1000 and is now 3"),
        (["--algorithm.discount=0.9"], ConfigError, "algorithm.discount"),
        (["--env.max_steps=13"], ConfigError, "env.max_steps"),
    ],
)
def test_a_resume_with_other_options_is_refused(more, error, said, straight):
    with pytest.raises(error, match=said):
        train(straight[0], *PENDULUM, *more, "--resume=true")


def test_a_resume_with_other_demonstrations_is_refused(demos, tmp_path):
    few = [*REACH, "--policy.online_steps=12"]
    folder, mine = tmp_path / "run", f"--dataset.root={demos}"
    train(folder, *few, mine)
    other = record(tmp_path / "other", num_episodes=2, codec="h264", seed=9)
    frames = open_dataset("x", root=demos).num_frames
    said = f"the demonstrations were {frames} frames with the fingerprint .*, and are"
    for args in ([f"--dataset.root={other}"], []):
        with pytest.raises(CheckpointError, match=said):
            train(folder, *REACH, *args, "--resume=true")
    moved = shutil.copytree(demos, tmp_path / "moved")
    train(folder, *few, f"--dataset.root={moved}", "--resume=true")
    (folder / "demonstrations.json").unlink()  # an older kata kept no note
    train(folder, *REACH, mine, "--resume=true")
    assert (folder / "demonstrations.json").exists()


def test_demonstrations_are_not_added_to_a_run_that_began_without(demos, tmp_path):
    few = [*REACH, "--policy.online_steps=12"]
    train(tmp_path / "run", *few)
    with pytest.raises(CheckpointError, match="the demonstrations were none, and are"):
        train(tmp_path / "run", *few, f"--dataset.root={demos}", "--resume=true")


def test_a_run_goes_on_though_an_option_came_after_it_began(straight, tmp_path):
    folder = shutil.copytree(straight[0], tmp_path / "run", symlinks=True)
    config = json.loads((folder / "rl_config.json").read_text())
    del config["algorithm"]["bc_weight"]
    config["policy"]["use_amp"] = True  # it was accepted, and did nothing
    (folder / "rl_config.json").write_text(json.dumps(config))
    train(folder, *PENDULUM, "--resume=true")
    assert json.loads((folder / "rl_config.json").read_text())["algorithm"]["bc_weight"] == 0
    assert not differing(left(straight[0]), left(folder))


def test_a_journal_shorter_than_its_checkpoint_is_refused_and_left_alone(straight, tmp_path):
    folder = shutil.copytree(straight[0], tmp_path / "run", symlinks=True)
    journal = folder / "journal"
    lines = (journal / "journal.jsonl").read_text().splitlines(keepends=True)
    (journal / "journal.jsonl").write_text("".join(lines[:-1]))
    before = {path.name: path.read_bytes() for path in journal.iterdir()}
    for work in (
        lambda: train(folder, *PENDULUM, "--resume=true"),
        lambda: learn_again(folder),
        lambda: export_journal(ExportRunOptions(run=str(folder), output_dir=str(tmp_path / "x"))),
    ):
        with pytest.raises(CheckpointError, match="3 episodes, the checkpoint 000048"):
            work()
        assert {path.name: path.read_bytes() for path in journal.iterdir()} == before
    assert not (tmp_path / "x").exists()


def test_a_journal_whose_lines_are_gone_is_left_alone(straight, tmp_path):
    """Without a checkpoint nothing else tells how many episodes there were."""
    folder = shutil.copytree(straight[0], tmp_path / "run", symlinks=True)
    shutil.rmtree(folder / "checkpoints")
    (folder / "journal/journal.jsonl").unlink()
    with pytest.raises(CheckpointError, match="0 lines, and 4 more episodes"):
        train(folder, *PENDULUM, "--resume=true")
    assert len(list((folder / "journal").iterdir())) == 4


def test_a_run_of_a_learner_elsewhere_is_continued_as_its_journal_says(straight, tmp_path):
    """That learner takes episodes when they come, after fewer updates than their steps allow."""
    folder = shutil.copytree(straight[0], tmp_path / "run", symlinks=True)
    shutil.rmtree(folder / "checkpoints")
    entries = read_metrics(folder / "journal/journal.jsonl")
    moved = [{**line, "updates": line["updates"] // 2} for line in entries]
    (folder / "journal/journal.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in moved)
    )
    train(folder, *PENDULUM, "--resume=true")
    assert learn_again(folder) == []


def test_the_journal_alone_gives_the_weights_again(straight, tmp_path):
    assert learn_again(straight[0]) == []
    folder = shutil.copytree(straight[0], tmp_path / "run", symlinks=True)
    config = json.loads((folder / "rl_config.json").read_text())
    config["algorithm"]["discount"] = 0.5
    (folder / "rl_config.json").write_text(json.dumps(config))
    assert "critic_ensemble.critics.0.output_layer.weight" in learn_again(folder)
    with pytest.raises(CheckpointError, match="folder of a run"):
        learn_again(tmp_path)


def test_a_replay_waits_for_nobody_who_writes(straight):
    with FolderLock(straight[0]), pytest.raises(CheckpointError, match="in use"):
        learn_again(straight[0])


def test_a_folder_that_is_there_is_refused(straight):
    with pytest.raises(CheckpointError, match="--resume=true"):
        train(straight[0], *PENDULUM)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "--env.type=kata"),
        (["--env.type=kata", "--online_ratio=0.5"], "without demonstrations"),
        (["--env.type=kata", "--online_ratio=1.5"], "at most 1"),
        (["--env.type=kata", "--algorithm.bc_weight=1"], "cloning begins with what humans did"),
        (["--env.type=kata", "--algorithm.bc_pretrain_updates=5"], "are demonstrations"),
        (
            ["--env.type=kata", "--takeover.rate=0.1", "--algorithm.bc_pretrain_updates=5"],
            "are demonstrations",
        ),
        (["--env.type=gym", "--env.id=Pendulum-v1", "--takeover.rate=0.1"], "built-in task"),
        (["--env.type=kata", "--policy.type=act"], "gaussian_actor"),
        (["--env.type=kata", "--policy.path=x"], "new weights"),
        (["--env.type=kata", "--algorithm.discout=0.9"], "algorithm.discount"),
        (["--env.type=kata", "--takeover.least_steps=30"], "most_steps=20"),
        (["--env.type=kata", "--policy.repo_id=a/b"], "uploads nothing"),
        (["--env.type=kata", "--policy.pretrained_path=a"], "policy.pretrained_path=a with"),
        (["--env.type=kata", "--policy.pretrained_revision=b"], "policy.pretrained_revision=b"),
        (["--env.type=kata", "--policy.use_amp=true"], "policy.use_amp=true with"),
        (["--env.type=kata", "--policy.use_peft=true"], "policy.use_peft=true with"),
        (["--env.type=kata", "--policy.async_prefetch=true"], "--policy.async_prefetch=false"),
    ],
)
def test_impossible_options_are_refused(args, said):
    with pytest.raises(KataError, match=re.escape(said)):
        resolve_rl(args)


@pytest.mark.parametrize(
    ("args", "error", "said"),
    [
        (
            [*PENDULUM, "--rl.reward=success", "--env.success_key=done"],
            ConfigError,
            "--rl.reward=env",
        ),
        ([*PENDULUM, "--policy.online_buffer_capacity=12"], ConfigError, "up to 13"),
        ([*PENDULUM, "--rl.memory_gb=0.000001"], ConfigError, "of memory"),
        ([*REACH, DEMOS, "--policy.offline_buffer_capacity=20"], ConfigError, "held as a whole"),
        ([*REACH, "--policy.offline_buffer_capacity=12"], ConfigError, "a takeover has up to 13"),
        (
            [*REACH, "--policy.num_discrete_actions=3"],
            PolicyError,
            "last action of kata/Reach-v0 goes from -1 to 1",
        ),
        ([*REACH, DEMOS, "--env.fps=30"], DataError, "10 frames per second"),
        ([*REACH, DEMOS, "--env.kwargs.relative=true"], DataError, "takes way.x, way.y"),
        ([*REACH, DEMOS, "--batch_size=512"], ConfigError, "--batch_size=256"),
        (
            [*PENDULUM, '--policy.dataset_stats={"action": {"min": [1.0], "max": [1.0]}}'],
            PolicyError,
            "min below max",
        ),
        (
            [*PENDULUM, '--policy.dataset_stats={"action": {"min": [1.0, 2.0]}}'],
            PolicyError,
            "one per dimension",
        ),
        (
            [
                *REACH,
                DEMOS,
                '--policy.dataset_stats={"action": {"min": [-0.01, -1], "max": [0.01, 1]}}',
            ],
            PolicyError,
            "demonstrations have -",
        ),
        (
            [*PENDULUM, '--policy.dataset_stats={"acton": {"min": [1.0], "max": [2.0]}}'],
            PolicyError,
            "did you mean 'action'?",
        ),
    ],
)
def test_what_cannot_work_is_refused_before_the_first_step(args, error, said, demos, tmp_path):
    with pytest.raises(error, match=re.escape(said)):
        train(
            tmp_path / "run", *args, *([f"--dataset.root={demos}"] if "kata" in str(args) else [])
        )
    assert not (tmp_path / "run").exists()


def test_demonstrations_leave_room_for_takeovers(demos):
    """Of a buffer that they filled, the first takeover was refused in the midst of the run."""

    def plan(capacity, *more):
        args = [*REACH, f"--dataset.root={demos}", f"--policy.offline_buffer_capacity={capacity}"]
        run = resolve_rl([*args, *more])
        spec = resolve_env(run.env)
        config, rules, facts = policy_config(run, spec)
        schema = episode_schema(config, rules)
        opened = open_demos(run.dataset, schema, rules, None, facts)
        return opened.rows, plan_buffers(run, schema, opened, facts.max_steps)

    rows, roomy = plan(200)
    assert roomy.takeovers == 200 - rows
    assert plan(rows + 13)[1].takeovers == 13
    assert plan(rows, "--takeover.rate=0")[1].takeovers == 0
    said = f"(?s)up to {rows}, and a takeover has up to 13.*buffer_capacity={2 * (rows + 13)},"
    with pytest.raises(ConfigError, match=said):
        plan(rows + 12)


@pytest.mark.parametrize(
    ("absent", "reward", "said"),
    [
        (["next.success"], "success", "next.reward is never above 0"),
        ([], "env", "next.reward is never anything but 0"),
        (["next.reward", "next.success"], "success", "no next.reward and no next.success"),
        (["next.reward"], "env", "no next.reward"),
    ],
)
def test_demonstrations_that_earn_nothing_are_refused(absent, reward, said, demos, tmp_path):
    root = shutil.copytree(demos, tmp_path / "demos")

    def change(columns):
        columns["next.reward"] = [0.0] * len(columns["next.reward"])
        for key in absent:
            del columns[key]

    for path in root.glob("data/*/*.parquet"):
        change_table(path, change)
    with pytest.raises(DataError, match=re.escape(said)):
        train(tmp_path / "run", *REACH, f"--dataset.root={root}", f"--rl.reward={reward}")
    assert not (tmp_path / "run").exists()
