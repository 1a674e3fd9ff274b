"""Learner and actor on two machines made of network namespaces; the cable between them breaks."""

import json
import re
import subprocess
import sys

import pytest

from tests.launch.hosts import Hosts, why_not
from tests.rl.network.pendulum import wait_for

ENV = ["--env.type=gym", "--env.id=Pendulum-v1", "--env.success_key=terminated"]
LEARN = [
    *ENV, "--rl.reward=env", "--policy.device=cpu", "--policy.latent_dim=8", "--rl.utd_max=0.01",
    "--policy.online_steps=20000", "--batch_size=8", "--rl.host=10.77.0.1", "--rl.port=50051",
    "--report=false",
]  # fmt: skip
SHOWN = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}


def lines(file):
    return file.read_text().splitlines() if file.exists() else []


@pytest.mark.long
@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
def test_a_broken_cable_loses_no_episode_and_counts_none_twice(tmp_path):
    token, run, arm = tmp_path / "token", tmp_path / "run", tmp_path / "arm"
    token.write_text("f" * 32)
    token.chmod(0o600)
    journal = run / "journal/journal.jsonl"
    kata = [sys.executable, "-m", "kata", "rl"]
    shared = f"--rl.token_file={token}"
    with Hosts(2) as hosts:
        learner = hosts.start(
            0, [*kata, "learn", *LEARN, shared, f"--output_dir={run}"], **SHOWN
        )  # fmt: skip
        act = [
            *kata, "act", *ENV, shared, f"--output_dir={arm}", "--device=cpu",
            "--rl.learner=http://10.77.0.1:50051",
        ]  # fmt: skip
        actor = hosts.start(1, act, **SHOWN)
        for taken in (5, 30):
            wait_for(lambda n=taken: len(lines(journal)) >= n, 180)
            hosts.cut_off(1)
            before = len(lines(journal))
            wait_for(lambda: len(list((arm / "spool").iterdir())) > 6, 60)  # it acts on alone
            assert len(lines(journal)) <= before + 1
            hosts.plug_in(1)
        said, _ = actor.communicate(timeout=240)
        learned, _ = learner.communicate(timeout=120)
    assert "the learner is away" in said
    assert "the learner is back" in said
    played = int(re.search(r"actor actor: ([\d,]+) episodes", said)[1].replace(",", ""))
    kept = [json.loads(line) for line in lines(journal)]
    assert [each["sequence"] for each in kept] == list(range(played))
    assert len({each["sha256"] for each in kept}) == played
    assert list((arm / "spool").iterdir()) == []
    assert f"{sum(each['steps'] for each in kept):,} steps" in learned
