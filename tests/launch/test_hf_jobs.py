"""Hugging Face Jobs against a local service that answers as the real one does, and runs what it
is given.
"""

import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kata.cli import main
from kata.config import encode
from kata.errors import ConfigError
from kata.launch.flavors import known_flavors
from kata.launch.hf_jobs import carried, planned, saving_s
from kata.launch.options import Jobs
from kata.launch.train_args import checked_run
from kata.run import resolve_run
from kata.train import train
from tests.conftest import TINY_ACT
from tests.launch.service import TOKEN, Service
from tests.train.test_kill import saved

BIN = Path(sys.executable).parent
WAIT_S = 120.0
STAND_IN = """#!/bin/bash
# A job's `kata`: notes what it was given, and does what the test's mode says.
printf '%s\\n' "$@" > args
env > env
case "$MODE" in
    ends) for n in 1 2 3; do echo "line $n"; done ;;
    fails) echo 'ValueError: a bad sample'; exit 1 ;;
    saves) echo 'kata: the run was asked to stop, and has saved'; exit 85 ;;
    hangs) echo "token $HF_TOKEN"; exec sleep 600 ;;
esac
"""
TRAIN = ["train", "--policy.type=act", "--dataset.repo_id=a/b", "--policy.push_to_hub=false"]
KEPT = ["--image=me/kata", "--checkpoint_repo=me/run"]


@pytest.fixture
def service(tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/kata").write_text(STAND_IN)
    (tmp_path / "bin/kata").chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    environment.pop("HF_TOKEN", None)
    with Service(tmp_path, environment) as running:
        yield running


def kata(service, *args: str, **env: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "kata", "launch", *args]
    environment = {**os.environ, **service.environment, **env}
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=WAIT_S, check=False
    )


@pytest.fixture
def kata_here(service, monkeypatch, capsys):
    """The same in this process, which has imported already what takes a new one most of its
    time.
    """
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", service.url)
    for name, value in service.environment.items():
        monkeypatch.setenv(name, value)

    def call(*args: str) -> subprocess.CompletedProcess:
        status = main(["launch", *args])
        return subprocess.CompletedProcess(args, status, *capsys.readouterr())

    return call


def job_of(service) -> dict:
    (job,) = service.jobs.values()
    return job.spec


def test_a_job_is_submitted_followed_and_finished(service, tmp_path):
    done = kata(
        service,
        *(
            "--target=hf:a10g-largex2",
            *KEPT,
            "--timeout=2h",
            "--env=MODE=ends",
            "--secrets=[OTHER]",
            "--",
            *TRAIN,
        ),
        WANDB_API_KEY="w" * 40,
        OTHER="other-secret",
    )
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("line")] == [
        "line 1",
        "line 2",
        "line 3",
    ]
    assert "a10g-largex2, at most 2h00m and $6.00" in done.stdout
    assert "COMPLETED" in done.stderr
    spec = job_of(service)
    assert (spec["dockerImage"], spec["flavor"], spec["timeoutSeconds"]) == (
        "me/kata",
        "a10g-largex2",
        7200,
    )
    assert spec["secrets"] == {
        "HF_TOKEN": TOKEN,
        "WANDB_API_KEY": "w" * 40,
        "OTHER": "other-secret",
    }
    assert spec["environment"] == {"MODE": "ends"}
    assert spec["command"] == [
        *(
            "kata",
            "launch",
            "--gpus=2",
            "--stop_after=6600s",
            "--log_dir=/tmp/kata/logs",
            "--checkpoint_repo=me/run",
        ),
        *(
            "--",
            *TRAIN[:1],
            "--policy.type=act",
            "--dataset.repo_id=a/b",
            "--policy.push_to_hub=false",
        ),
        *("--output_dir=/tmp/kata/run", "--resume=true"),
    ]
    shown = shlex.join(spec["command"]) + done.stdout + done.stderr
    assert not [word for word in (TOKEN, "w" * 40, "other-secret") if word in shown]


def test_a_job_that_fails(service, kata_here):
    done = kata_here(
        "--target=hf:cpu-basic", *KEPT, "--env=MODE=fails", "--restarts=2", "--", *TRAIN
    )
    assert done.returncode == 1
    assert "ValueError: a bad sample" in done.stdout
    assert "ERROR, Job failed with exit code: 1" in done.stderr
    assert "no --timeout: the service ends the job after 30 minutes" in done.stderr
    assert "timeoutSeconds" in job_of(service)
    assert "--ranks=1" in job_of(service)["command"]


def test_one_that_runs_out_of_time_is_submitted_again(service, kata_here):
    options = ("--timeout=2", "--restarts=1", "--env=MODE=hangs")
    done = kata_here("--target=hf:cpu-basic", *KEPT, *options, "--", *TRAIN)
    assert done.returncode == 1
    assert len(service.jobs) == 2
    assert done.stderr.count("the job ran out of time") == 2
    assert "submitted again; 0 more times at most" in done.stderr
    assert TOKEN not in done.stdout
    assert "token ***" in done.stdout


def test_one_that_saved_is_submitted_again(service, kata_here):
    done = kata_here(
        "--target=hf:cpu-basic", *KEPT, "--restarts=2", "--env=MODE=saves", "--", *TRAIN
    )
    assert done.returncode == 85
    assert len(service.jobs) == 3


def test_detached_looked_at_and_cancelled(service, kata_here):
    done = kata_here("--target=hf:cpu-basic", *KEPT, "--detach", "--env=MODE=hangs", "--", *TRAIN)
    assert done.returncode == 0
    (job,) = service.jobs
    assert f"kata launch logs {job}" in done.stdout
    deadline = time.monotonic() + WAIT_S
    while not service.jobs[job].events:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert f"job {job}: RUNNING, cpu-basic" in kata_here("status", job).stdout
    assert kata_here("cancel", job).stdout == f"job {job}: cancelled\n"
    followed = kata_here("logs", job, "--follow")
    assert followed.returncode == 1
    assert "token" in followed.stdout
    assert "CANCELED" in followed.stderr
    unknown = kata_here("status", "f" * 24)
    assert unknown.returncode == 2
    assert "Traceback" not in unknown.stderr


def test_all_machines_are_read_live_or_said_to_be_old(service, kata_here):
    live = kata_here("flavors").stdout
    assert "b300x16" in live
    assert "a100x8" not in live
    wrong = kata_here("--target=hf:a10g-largex4", *KEPT, "--", *TRAIN)
    assert wrong.returncode == 2
    assert "did you mean 'a10g-largex2'" in wrong.stderr
    service.refuses.add("hardware")
    old = kata_here("flavors")
    assert "going by those of August 2026" in old.stderr
    assert len(old.stdout.splitlines()) == 1 + len(known_flavors()) == 27
    assert "a100x8" in old.stdout


def test_a_config_file_travels_in_the_command(tmp_path):
    (tmp_path / "run.yaml").write_text(
        "policy: {type: act, chunk_size: 20, n_action_steps: 20, push_to_hub: false}\n"
        "dataset: {repo_id: me/data}\noptimizer: {lr: 1.0e-5}\nrename_map: {a.b: c}\nsteps: 7\n"
    )
    args = [
        "train",
        f"--config={tmp_path}/run.yaml",
        "--policy.chunk_size=30",
        "--policy.n_action_steps=5",
        "--tf32=no",
    ]
    run = checked_run(args, 1)
    words = carried(args, run)
    assert not [word for word in words if "run.yaml" in word]
    there, _ = resolve_run(words[1:])
    expected = encode(run) | {"output_dir": "/tmp/kata/run", "resume": True}
    assert encode(there) == expected
    assert there.policy.chunk_size == 30


def test_time_is_kept_for_saving():
    assert [saving_s(t) for t in (5, 100, 1800, 7200, 86_400)] == [0, 10, 180, 600, 600]


@pytest.mark.parametrize(
    ("options", "train_args", "value"),
    [
        (["--checkpoint_repo=me/run"], [], "image: not given"),
        (["--image=me/kata"], [], "checkpoint_repo: not given, and the policy is not uploaded"),
        ([*KEPT, "--timeout=soon"], [], "timeout=soon"),
        (["--image=x", "--checkpoint_repo=run"], [], "checkpoint_repo=run"),
        (["--image=x", "--restarts=2"], [], "restarts=2"),
        ([*KEPT, "--detach", "--restarts=2"], [], "restarts=2"),
        ([*KEPT, "--secrets=[ABSENT_KEY]"], [], "secrets=ABSENT_KEY"),
        ([*KEPT, "--nodes=2"], [], "--nodes: an option of --target=slurm"),
        (KEPT, ["--dataset.root=data/x"], "dataset.root=data/x"),
        ([*KEPT, f"--env=KEY={TOKEN}"], [], "env: KEY=*** holds a password or token"),
    ],
)
def test_bad_input_costs_nothing(monkeypatch, capsys, options, train_args, value):
    monkeypatch.setattr("kata.launch.hf_jobs.chosen_flavor", known_flavors().__getitem__)
    monkeypatch.setattr("kata.launch.hf_jobs.get_token", lambda: TOKEN)
    monkeypatch.setattr("kata.launch.hf_jobs.submit", None)
    assert main(["launch", "--target=hf:cpu-basic", *options, "--", *TRAIN, *train_args]) == 2
    assert f"kata: {value}" in capsys.readouterr().err


def test_without_a_token(monkeypatch, tmp_path):
    monkeypatch.setattr("kata.launch.hf_jobs.get_token", lambda: None)
    options = Jobs(image="x", checkpoint_repo="me/run")
    with pytest.raises(ConfigError, match="no Hugging Face token"):
        planned(options, known_flavors()["cpu-basic"], TRAIN)


@pytest.mark.long
def test_a_job_goes_on_from_the_last_pushed_checkpoint(
    service, vector_dataset, vector_run, tmp_path
):
    """Real runs: the service kills the first in its midst; the second ends with the weights of a
    straight run.
    """
    options = ("--steps=200", "--save_freq=10", "--keep_last=1", "--log_freq=100")
    straight = train(vector_run(*options, f"--output_dir={tmp_path}/straight"))
    # What a job's container holds: kata itself, and the dataset below its own cache.
    (tmp_path / "bin/kata").write_text(
        f'#!/bin/bash\nargs=("${{@/--output_dir=/--dataset.root={vector_dataset} '
        '--output_dir=}")\n'
        f"exec {sys.executable} -c 'import sys, kata.launch.hub_sync as c; c.POLL_S = 0.1\n"
        "from kata.cli import main\n"
        f'args = " ".join(sys.argv[1:]).split(" ")\nsys.exit(main(args))\' "${{args[@]}}"\n'
    )
    train_args = ["train", "--dataset.repo_id=tests/vectors", *TINY_ACT, *options]
    slow = "--env=OMP_NUM_THREADS=1"
    launch = ("--target=hf:cpu-basic", *KEPT, slow, "--", *train_args)
    first = subprocess.Popen(
        [sys.executable, "-m", "kata", "launch", *launch],
        env={**os.environ, **service.environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    deadline = time.monotonic() + WAIT_S
    while not [name for name in service.repos.get("me/run", {}) if name.startswith("checkpoints/")]:
        assert time.monotonic() < deadline
        assert first.poll() is None, first.communicate()[0]
        time.sleep(0.02)
    (job,) = service.jobs.values()
    service._out_of_time(job)
    assert "the job ran out of time" in first.communicate(timeout=WAIT_S)[0]
    held = sorted(
        {name.split("/")[1] for name in service.repos["me/run"] if name.startswith("checkpoints/")}
    )
    assert len(held) == 1
    assert held < ["000200"]
    done = kata(service, *launch)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "kata: 1 rank on the CPU, port " in done.stdout
    assert "OMP_NUM_THREADS=1 (as set)" in done.stdout
    assert f"checkpoints brought back from me/run: {held[0]}" in done.stdout
    repo = tmp_path / "repo"
    for name, content in service.repos["me/run"].items():
        (repo / name).parent.mkdir(parents=True, exist_ok=True)
        (repo / name).write_bytes(content)
    last = {name: content for name, content in saved(straight.folder).items() if "000200" in name}
    assert {name: content for name, content in saved(repo).items() if "000200" in name} == last
    assert json.loads((repo / "pointers.json").read_text())["last"] == "000200"
