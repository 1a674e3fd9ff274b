"""What `kata rl train` tells at its end."""

import json
import os
import shlex
import signal

from kata.eval.options import resolve_eval
from kata.rl.command import evaluation_line, main
from kata.rl.learner import Learner
from kata.run.evaluation import EnvConfig
from kata.train.stopping import STOPPED
from tests.rl.test_trainer import PENDULUM


def test_the_line_that_evaluates_names_the_environment_as_it_was():
    env = EnvConfig(
        type="gym",
        id="Pendulum-v1",
        kwargs={"g": 9.0, "render": True},
        success_key="terminated",
        max_steps=12,
    )
    words = shlex.split(evaluation_line(env, "runs/a b"))
    assert words[:3] == ["kata", "eval", "--policy.path=runs/a b"]
    assert resolve_eval(words[2:]).env == env
    assert evaluation_line(EnvConfig(type="kata"), "runs/a") == (
        "kata eval --policy.path=runs/a --env.type=kata"
    )


def test_a_run_that_chose_its_folder_is_continued_there(tmp_path, monkeypatch, capsys, caplog):
    monkeypatch.chdir(tmp_path)
    admit = Learner.admit

    def interrupted(self, episode):
        admit(self, episode)
        os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patched:
        patched.setattr(Learner, "admit", interrupted)
        assert main(PENDULUM) == STOPPED
    assert "SIGTERM: saving after this episode or update;" in caplog.text
    command = capsys.readouterr().out.partition("and saved; continue it: ")[2].strip()
    (config,) = tmp_path.glob("outputs/rl/*/*/rl_config.json")
    assert json.loads(config.read_text())["output_dir"] == str(config.parent.relative_to(tmp_path))
    words = shlex.split(command)
    assert words[:3] == ["kata", "rl", "train"]
    assert main([*words[3:], "--policy.online_steps=20"]) == 0
    assert list(tmp_path.glob("outputs/rl/*/*/rl_config.json")) == [config]
    assert (config.parent / "checkpoints/000024").is_dir()
