"""The plan of a policy that learns by acting: its buffers, as the run itself has them."""

import json

import pytest

from kata.errors import ConfigError
from kata.eval.envs.registry import register_env, resolve_env
from kata.launch.planning.command import main
from kata.rl.options import resolve_rl
from kata.rl.setup import episode_schema, plan_buffers, policy_config

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
