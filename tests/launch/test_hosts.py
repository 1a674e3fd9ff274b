"""One run on several machines, which are network namespaces; skipped, with the reason, where
none can be made.
"""

import os
import re
import subprocess
import sys
import time

import pytest

from tests.conftest import TINY_ACT
from tests.launch.hosts import Hosts, why_not
from tests.train.test_kill import saved

pytestmark = [pytest.mark.long, pytest.mark.skipif(why_not() is not None, reason=str(why_not()))]
LIMIT_S = 10  # of a collective: --dist_timeout
BUSY_S = 60.0  # others may want this machine's cores too
WAIT_S = 500.0


class Machines(Hosts):
    """Hosts that run `kata train` under torchrun, each with one rank; what they say is in files."""

    def __init__(self, count, folder, options):
        super().__init__(count)
        self.folder, self.options = folder, options

    def train(self, *more: str, restarts: int = 0) -> None:
        for host in range(self.count):
            command = [*self.launcher(host, restarts), "-m", "kata", "train", *self.options, *more]
            env = {
                **os.environ,
                "GLOO_SOCKET_IFNAME": "eth0",
                "OMP_NUM_THREADS": "1",
                "PYTHONUNBUFFERED": "1",
            }
            with self.said(host).open("a") as output:
                self.start(host, command, env=env, stdout=output, stderr=subprocess.STDOUT)

    def launcher(self, host: int, restarts: int) -> list[str]:
        """What starts this host's rank."""
        return [
            *(
                sys.executable,
                "-m",
                "torch.distributed.run",
                f"--nnodes={self.count}",
                "--nproc-per-node=1",
            ),
            *("--rdzv-backend=c10d", f"--rdzv-endpoint={self.address(0)}:29400", "--rdzv-id=test"),
            *(
                f"--rdzv-conf=is_host={int(host == 0)},join_timeout=300,read_timeout={LIMIT_S}",
                f"--local-addr={self.address(host)}",
            ),
            f"--max-restarts={restarts}",
        ]

    def said(self, host):
        return self.folder / f"host{host}.log"

    def ended(self, *hosts: int, limit_s: float = WAIT_S) -> list[int]:
        deadline = time.monotonic() + limit_s
        return [
            self.processes[host][-1].wait(timeout=max(1, deadline - time.monotonic()))
            for host in hosts
        ]

    def until_saved(self, run) -> None:
        deadline = time.monotonic() + WAIT_S
        while not list((run / "checkpoints").glob("0*")):
            assert time.monotonic() < deadline, self.said(0).read_text()
            assert self.processes[0][-1].poll() is None, self.said(0).read_text()
            time.sleep(0.1)


class Accelerated(Machines):
    """The same under `accelerate launch`, with a number for each machine."""

    def launcher(self, host: int, restarts: int) -> list[str]:
        """What starts this host's rank."""
        return [
            *(
                sys.executable,
                "-m",
                "accelerate.commands.launch",
                "--multi_gpu",
                f"--num_processes={self.count}",
            ),
            *(
                f"--num_machines={self.count}",
                f"--machine_rank={host}",
                f"--main_process_ip={self.address(0)}",
            ),
            *("--main_process_port=29400", "--mixed_precision=no", "--dynamo_backend=no"),
            f"--max_restarts={restarts}",
        ]


@pytest.fixture
def options(vector_dataset):
    data = [f"--dataset.root={vector_dataset}", "--dataset.repo_id=tests/vectors"]
    return [*data, *TINY_ACT, f"--dist_timeout={LIMIT_S}s", "--save_freq=10", "--log_freq=20"]


def test_a_killed_host_is_named_and_the_run_continues_exactly(options, tmp_path):
    """Two hosts, one loses its power; started again, they end as two ranks of one machine that
    nobody touched.
    """
    run = tmp_path / "run"
    with Machines(2, tmp_path, options) as machines:
        machines.train("--steps=100000", f"--output_dir={run}")
        machines.until_saved(run)
        began_s = time.monotonic()
        machines.kill(1)
        assert machines.ended(0) != [0]
        assert time.monotonic() - began_s < LIMIT_S + BUSY_S
        assert re.search(
            r"rank 1 \(process \d+ on .*\): no sign of life", machines.said(0).read_text()
        )
        assert sorted(p.name for p in (run / "checkpoints").glob("0*"))[-1] < "000120"
        machines.train("--steps=120", f"--output_dir={run}", "--resume=true")
        assert machines.ended(0, 1) == [0, 0], machines.said(0).read_text()
    last = saved(together(options, 2, tmp_path, "--steps=120") / "checkpoints/000120")
    assert last
    assert saved(run / "checkpoints/000120") == last


def test_torchrun_restarts_the_ranks_of_all_hosts_when_one_is_killed(options, tmp_path):
    """Each machine's torchrun counts its own restarts, and serves the store that the first ranks
    met at.
    """
    run = tmp_path / "run"
    with Machines(2, tmp_path, options) as machines:
        machines.train("--steps=120", f"--output_dir={run}", "--resume=true", restarts=1)
        machines.until_saved(run)
        subprocess.run(["pkill", "-KILL", "-P", str(machines.processes[1][-1].pid)], check=True)
        assert machines.ended(0, 1) == [0, 0], (
            machines.said(0).read_text() + machines.said(1).read_text()
        )
    # Which of them has rank 0 is torchrun's choice, at each start.
    assert "continuing from" in machines.said(0).read_text() + machines.said(1).read_text()
    last = saved(together(options, 2, tmp_path, "--steps=120") / "checkpoints/000120")
    assert last
    assert saved(run / "checkpoints/000120") == last


def test_a_host_that_is_cut_off_is_named_and_all_end(options, tmp_path):
    """Three hosts: what the third sends is lost without a word, and it hears nothing; it ends
    too.
    """
    run = tmp_path / "run"
    with Machines(3, tmp_path, options) as machines:
        machines.train("--steps=100000", f"--output_dir={run}")
        machines.until_saved(run)
        began_s = time.monotonic()
        machines.cut_off(2)
        assert 0 not in machines.ended(0, 1)
        assert time.monotonic() - began_s < LIMIT_S + BUSY_S
        for host in (0, 1):
            assert re.search(
                r"rank \d \(process \d+ on .*\): no sign of life", machines.said(host).read_text()
            )
        # Its rank ends; torchrun's agent there still waits for an answer to a question of its own.
        until_s = began_s + LIMIT_S + BUSY_S
        while not re.search(
            r"rank 0 \(process \d+ on .*\): no sign of life", machines.said(2).read_text()
        ):
            assert time.monotonic() < until_s, machines.said(2).read_text()
            time.sleep(1)


def together(options, ranks, folder, *more):
    """So many ranks of one machine that nobody touches."""
    command = [
        sys.executable,
        "-m",
        "kata",
        "launch",
        f"--ranks={ranks}",
        f"--log_dir={folder}/logs",
        "--",
        "train",
    ]
    command += [*options, *more, f"--output_dir={folder}/straight"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=WAIT_S)
    assert done.returncode == 0, done.stderr
    return folder / "straight"


@pytest.mark.parametrize("count", [2, 3])
def test_accelerate_starts_each_machine_by_its_number(count, options, tmp_path):
    """What comes out is what so many ranks of one machine make."""
    steps = ("--steps=20",)
    with Accelerated(count, tmp_path, options) as machines:
        machines.train(*steps, f"--output_dir={tmp_path}/run")
        assert machines.ended(*range(count)) == [0] * count, machines.said(0).read_text()
    assert "accelerate" in machines.said(0).read_text()
    last = saved(together(options, count, tmp_path, *steps) / "checkpoints/000020")
    assert last
    assert saved(tmp_path / "run/checkpoints/000020") == last
