"""A run under a real SLURM: preempted by its signal, requeued, and equal to one that nobody
touched.

    python tools/slurm/run.py [--install] [--ranks-per-node 1] [--keep FOLDER]

Starts munged, one slurmctld and two slurmd ("n1" and "n2") on this machine, in a temporary folder
and on free ports; submits a run of two nodes with `kata launch --target=slurm`; sends its batch
shell the signal that SLURM sends before a time limit; waits until the job has saved, gone back into
the queue, started again and ended; compares every tensor of its last checkpoint with a run of as
many ranks that `kata launch` started here. The daemons are ended by the numbers of their processes.
Leaves with 1 when anything differs. --install gets Debian's packages with apt; needs root.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from kata.data.writing.dataset_writer import DatasetWriter
from kata.spec import Column

PACKAGES = ("slurm-wlm", "munge")
COMMANDS = ("slurmctld", "slurmd", "munged", "sbatch", "scontrol", "scancel", "srun")
WAIT_S = 300.0
NODES = ("n1", "n2")
OPTIONS = [
    "--dataset.repo_id=slurm/vectors", "--policy.type=act", "--policy.pretrained_backbone_weights=null",  # noqa: E501
    "--policy.dim_model=16", "--policy.n_heads=2", "--policy.dim_feedforward=16", "--policy.n_encoder_layers=1",  # noqa: E501
    "--policy.n_vae_encoder_layers=1", "--policy.latent_dim=4", "--policy.chunk_size=4", "--policy.n_action_steps=4",  # noqa: E501
    "--policy.device=cpu", "--policy.push_to_hub=false", "--batch_size=4", "--log_freq=20", "--num_workers=1",  # noqa: E501
    "--save_freq=50", "--steps=600", "--optimizer.lr=1e-3",
]  # fmt: skip

CONF = """\
ClusterName=kata
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={home}/munge/socket
StateSaveLocation={home}/state
SlurmdSpoolDir={home}/spool-%n
SlurmctldPidFile={home}/slurmctld.pid
SlurmdPidFile={home}/slurmd-%n.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
KillWait=30
{nodes}
PartitionName=all Nodes=n[1-2] Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
"""
NODE = (
    "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=4 RealMemory=512 "
    "State=UNKNOWN\n"
)


def install() -> None:
    """SLURM and munge from Debian, where they are absent."""
    if not missing():
        return
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", "update", "-qq"], check=True, env=quiet)
    subprocess.run(
        ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *PACKAGES],
        check=True,
        env=quiet,
    )


def missing() -> list[str]:
    """The commands that are not there."""
    return [name for name in COMMANDS if shutil.which(name) is None]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def cluster(home: Path) -> Iterator[None]:
    """A controller and two nodes; SLURM_CONF points its commands to them."""
    home.chmod(0o755)  # munged runs as another user
    for name in ("state", "munge", *(f"spool-{node}" for node in NODES)):
        (home / name).mkdir(mode=0o755)
    key = home / "munge" / "key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    for path in (home / "munge", key):
        shutil.chown(path, "munge", "munge")
    host = socket.gethostname()
    nodes = "".join(NODE.format(name=name, host=host, port=free_port()) for name in NODES)
    conf = home / "slurm.conf"
    conf.write_text(CONF.format(home=home, host=host, controller=free_port(), nodes=nodes))
    os.environ["SLURM_CONF"] = str(conf)
    munged = ["munged", "--foreground", f"--key-file={key}", f"--socket={home}/munge/socket"]
    munged += [
        f"--pid-file={home}/munge/pid",
        f"--log-file={home}/munge/log",
        f"--seed-file={home}/munge/seed",
    ]
    with contextlib.ExitStack() as daemons:
        daemons.enter_context(
            daemon(munged, home / "munged.out", user="munge", group="munge", extra_groups=[])
        )
        wait_for("munged", lambda: (home / "munge/socket").exists())
        daemons.enter_context(daemon(["slurmctld", "-D", "-i"], home / "slurmctld.out"))
        for node in NODES:
            daemons.enter_context(daemon(["slurmd", "-D", "-N", node], home / f"slurmd-{node}.out"))
        wait_for(
            "two idle nodes", lambda: said("sinfo", "-h", "-o", "%D %t").split() == ["2", "idle"]
        )
        yield


@contextlib.contextmanager
def daemon(command: list[str], output: Path, **user: Any) -> Iterator[None]:
    with output.open("wb") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True, **user
        )
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def said(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def wait_for(what: str, happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not happened():
        if time.monotonic() > deadline:
            raise SystemExit(f"{what}: not within {WAIT_S:g} s")
        time.sleep(0.5)


def make_dataset(root: Path) -> None:
    """Four episodes of sixteen frames without pictures."""
    sizes = {"observation.state": 3, "observation.environment_state": 2, "action": 2}
    rng = np.random.default_rng(0)
    with DatasetWriter.create(
        root, fps=10, features={n: Column("float32", (s,)) for n, s in sizes.items()}
    ) as writer:
        for _ in range(4):
            for _ in range(16):
                frame = {
                    name: rng.normal(size=size).astype(np.float32) for name, size in sizes.items()
                }
                writer.add_frame(frame, task="go")
            writer.save_episode()


def kata(*args: str, output: IO[str] | None = None) -> str:
    """What a kata command prints, or where it writes; ends the program where it fails."""
    done = subprocess.run(
        [sys.executable, "-m", "kata", *args],
        text=True,
        stdout=output or subprocess.PIPE,
        stderr=output,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(
            f"kata {' '.join(args[:3])} … left with {done.returncode}\n{done.stdout or ''}"
        )
    return done.stdout or ""


def state(job: str) -> dict[str, str]:
    return dict(re.findall(r"(\w+)=(\S+)", said("scontrol", "-o", "show", "job", job)))


def preempt(job: str, run: Path, logs: Path) -> None:
    """Ask the job to save once it has a checkpoint; see it go back into the queue and to its
    end.
    """
    wait_for("a checkpoint", lambda: any((run / "checkpoints").glob("0*")))
    print(
        f"job {job} is running on {state(job)['NodeList']} and has saved once: signalling it",
        flush=True,
    )
    subprocess.run(["scancel", "--batch", "--signal=USR1", job], check=True)
    wait_for("the requeue", lambda: state(job).get("Restarts") == "1")
    at = sorted(path.name for path in (run / "checkpoints").glob("0*"))[-1]
    if at >= "000600":
        raise SystemExit(f"the run had ended (step {at}) before it was signalled")
    print(f"requeued at step {int(at)}", flush=True)
    # SLURM lets a requeued job wait for two minutes, for its nodes to be clean.
    wait_for("the queue", lambda: state(job).get("JobState") in ("PENDING", "RUNNING", "COMPLETED"))
    if state(job)["JobState"] == "PENDING":
        subprocess.run(["scontrol", "update", f"JobId={job}", "StartTime=now"], check=True)
    wait_for(
        "the end",
        lambda: state(job).get("JobState") in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT"),
    )
    shown = state(job)
    print(f"job {job}: {shown['JobState']}, restarts {shown['Restarts']}", flush=True)
    if shown["JobState"] != "COMPLETED":
        raise SystemExit("\n".join(path.read_text() for path in sorted(logs.glob(f"{job}*.log"))))


def differences(one: Path, other: Path) -> list[str]:
    """The tensor files of two runs' last checkpoints that are absent or not the same bytes."""
    last = [folder / "checkpoints" / "last" for folder in (one, other)]
    names = {
        str(path.relative_to(folder)) for folder in last for path in folder.rglob("*.safetensors")
    }
    if not names:
        return ["no tensors at all"]

    def content(folder: Path, name: str) -> bytes | None:
        return (folder / name).read_bytes() if (folder / name).is_file() else None

    return sorted(name for name in names if content(last[0], name) != content(last[1], name))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--install", action="store_true")
    parser.add_argument("--ranks-per-node", type=int, default=1)
    parser.add_argument("--keep", type=Path)
    asked = parser.parse_args()
    if asked.install:
        install()
    if missing():
        raise SystemExit(
            f"not installed: {', '.join(missing())}; --install gets {' and '.join(PACKAGES)} with "
            "apt"
        )
    os.environ["OMP_NUM_THREADS"] = "1"
    home = asked.keep or Path(tempfile.mkdtemp(prefix="kata-slurm-"))
    home.mkdir(parents=True, exist_ok=True)
    make_dataset(home / "data")
    train = ["train", f"--dataset.root={home}/data", *OPTIONS]
    job = str(asked.ranks_per_node)
    with cluster(home):
        launch = [
            "launch",
            "--target=slurm",
            "--nodes=2",
            "--gpus-per-node=0",
            f"--ranks-per-node={job}",
            "--time=30",
        ]
        launch += [f"--log-dir={home}/logs", "--cpus-per-task=2"]
        number = (
            kata(*launch, "--", *train, f"--output_dir={home}/preempted").split()[1].rstrip(":")
        )
        preempt(number, home / "preempted", home / "logs")
    with (home / "straight.log").open("w") as log:
        ranks = f"--ranks={2 * asked.ranks_per_node}"
        kata(
            "launch",
            ranks,
            f"--log-dir={home}/ranks",
            "--",
            *train,
            f"--output_dir={home}/straight",
            output=log,
        )
    found = differences(home / "preempted", home / "straight")
    print(
        f"differs: {', '.join(found)}" if found else "every tensor of the last checkpoint is equal",
        flush=True,
    )
    if not asked.keep:
        shutil.rmtree(home)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
