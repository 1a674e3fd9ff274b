"""What `kata rl train` tells at its end."""

import shlex

from kata.eval.options import resolve_eval
from kata.rl.command import evaluation_line
from kata.run.evaluation import EnvConfig


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
