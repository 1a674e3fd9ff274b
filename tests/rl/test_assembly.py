"""The plan of a policy that learns by acting: its buffers, as the run itself has them."""

import json

import pytest

from kata.errors import ConfigError
from kata.eval.envs.registry import register_env, resolve_env
from kata.launch.planning.command import main
from kata.rl.options import resolve_rl
from kata.rl.setup import episode_schema, plan_buffers, policy_config, warn_of_traps

ARGS = [
    "--policy.type=gaussian_actor", "--env.type=gym", "--env.id=Pendulum-v1",
    "--env.success_key=terminated", "--rl.reward=env", "--policy.device=cpu",
    "--policy.online_buffer_capacity=5000", "--policy.latent_dim=8",
]  # fmt: skip


def test_the_plan_says_what_the_rings_take(capsys):
    assert main([*ARGS, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    run = resolve_rl(ARGS)
    spec = resolve_env(run.env)
    register_env(spec)
    config, rules, facts = policy_config(run, spec)
    plan = plan_buffers(run, episode_schema(config, rules), None, facts.max_steps)
    rings = [ring for ring in plan.rings() if ring is not None]
    assert found["buffers_bytes"] == sum(ring.nbytes for ring in rings)
    assert found["buffers"] == {"own episodes": rings[0].nbytes}
    assert found["networks_bytes"] > 1000
    main(ARGS)
    assert "131.8 KiB" in capsys.readouterr().out


def test_buffers_that_do_not_fit_are_refused_with_a_capacity_that_does():
    with pytest.raises(ConfigError, match="all buffers fit into memory"):
        main([*ARGS, "--rl.memory_gb=0.00001"])


@pytest.mark.parametrize(
    ("options", "is_told"),
    [
        (["--policy.policy_kwargs.std_max=0.01"], True),
        (["--policy.policy_kwargs.std_max=0.1"], False),
        (["--policy.policy_kwargs.std_max=0.1", "--policy.actor_std=std"], True),
        (["--policy.policy_kwargs.std_max=0.01", "--algorithm.temperature_lr=0"], False),
        (["--policy.policy_kwargs.std_max=0.01", "--algorithm.target_entropy=-3"], False),
        (["--algorithm.target_entropy=1"], True),
    ],
)
def test_an_entropy_that_actions_cannot_have_is_told(options, is_told, caplog):
    run = resolve_rl([*ARGS, *options])
    spec = resolve_env(run.env)
    register_env(spec)
    warn_of_traps(run, policy_config(run, spec)[0], spec)
    assert ("rises without end" in caplog.text) == is_told
