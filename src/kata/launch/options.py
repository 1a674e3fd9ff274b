"""The options of `kata launch`, one class per target. Torch-free."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from kata.errors import ConfigError, did_you_mean
from kata.units import duration_s

LOGS = "outputs/launch"


def refuse(name: str, value: object, rule: str, remedy: str) -> ConfigError:
    """The error for an option's impossible value."""
    return ConfigError(f"{name}={value}", rule=rule, remedy=remedy)


def _check_count(name: str, value: int, least: int = 1) -> None:
    if value < least:
        raise refuse(
            name, value, f"a whole number of at least {least}", "leave it out for the default"
        )


def _check_duration(name: str, value: str | None) -> None:
    if value is not None and not 0 < duration_s(value) < math.inf:
        raise refuse(
            name, value, "seconds, or a number with s, m, h or d", f"for example --{name}=2h"
        )


def _check_repo(name: str, value: str | None) -> None:
    if value is not None and not re.fullmatch(r"[\w.-]+/[\w.-]+", value):
        raise refuse(
            name, value, "a Hub repository, <user>/<name>", f"for example --{name}=me/my-run"
        )


@dataclass(frozen=True, kw_only=True)
class Local:
    """Ranks on this machine.

    gpus: how many of the visible GPUs, or which ([0, 2]: places in CUDA_VISIBLE_DEVICES where that is set, else the
    GPUs' numbers); null takes all. ranks: so many ranks on the CPU instead. port: where the ranks meet; 0 takes a free
    one. log_dir: output of all ranks but the first; null makes a folder below outputs/launch. stop_after: after so long
    the run is asked to save and leave (status 85). checkpoint_repo: a Hub repository that gets every checkpoint of the
    run, and that a run without checkpoints of its own continues from.
    """

    gpus: int | list[int] | None = None
    ranks: int | None = None
    port: int = 0
    log_dir: str | None = None
    stop_after: str | None = None
    checkpoint_repo: str | None = None

    def __post_init__(self) -> None:
        if self.gpus is not None and self.ranks is not None:
            raise refuse(
                "ranks",
                self.ranks,
                "--gpus starts a rank per GPU, --ranks starts CPU ranks",
                "leave out one of them",
            )
        if self.ranks is not None:
            _check_count("ranks", self.ranks)
        if isinstance(self.gpus, int) and self.gpus < 1:
            raise refuse(
                "gpus",
                self.gpus,
                "a number from 1 on, or a list of GPUs",
                "--ranks=2 starts two CPU ranks",
            )
        if isinstance(self.gpus, list) and (not self.gpus or len(set(self.gpus)) < len(self.gpus)):
            raise refuse(
                "gpus", self.gpus, "at least one GPU, each once", "for example --gpus=[0,1]"
            )
        if not 0 <= self.port <= 65_535:
            raise refuse(
                "port", self.port, "a port number up to 65535", "leave it out: a free one is taken"
            )
        _check_duration("stop_after", self.stop_after)
        _check_repo("checkpoint_repo", self.checkpoint_repo)


@dataclass(frozen=True, kw_only=True)
class Slurm:
    """A batch job on a SLURM cluster: one torchrun per node.

    time: the job's limit as SLURM writes it ('12:00:00', '1-00:00:00', minutes). ranks_per_node: CPU ranks where
    gpus_per_node is 0. signal_s: so long before the limit the run is asked to save; its job then goes back into the
    queue. setup: shell lines to run first ('module load cuda', 'source .venv/bin/activate'). env: NAME=VALUE for the
    ranks. sbatch: further options of sbatch, as they are ('--exclusive'). python: the interpreter on the nodes; null
    is this one. log_dir: script and output; must be on a file system that all nodes share. port: 0 derives one from
    the job's number. dry_run: print the script and submit nothing.

    The run needs --output_dir on such a file system too: it is started with --resume=true, so that it goes on after a
    requeue.
    """

    nodes: int = 1
    gpus_per_node: int = 1
    ranks_per_node: int = 0
    cpus_per_task: int | None = None
    mem: str | int | None = None
    time: str | None = None
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    job_name: str | None = None
    signal_s: int = 300
    requeue: bool = True
    setup: list[str] = field(default_factory=list)
    env: list[str] = field(default_factory=list)
    sbatch: list[str] = field(default_factory=list)
    python: str | None = None
    log_dir: str = LOGS
    port: int = 0
    dry_run: bool = False

    def __post_init__(self) -> None:
        _check_count("nodes", self.nodes)
        _check_count("gpus_per_node", self.gpus_per_node, least=0)
        _check_count("ranks_per_node", self.ranks_per_node, least=0)
        _check_count("signal_s", self.signal_s)
        if self.cpus_per_task is not None:
            _check_count("cpus_per_task", self.cpus_per_task)
        if bool(self.gpus_per_node) == bool(self.ranks_per_node):
            raise refuse(
                "ranks_per_node",
                self.ranks_per_node,
                "a node has a rank per GPU (--gpus_per_node), or CPU ranks (--gpus_per_node=0 --ranks_per_node=N)",
                "set one of them to 0",
            )
        if self.time is not None and not re.fullmatch(r"(\d+-)?\d+(:\d\d){0,2}", self.time):
            raise refuse(
                "time", self.time, "a time limit as SLURM writes it", "for example --time=12:00:00"
            )
        if not 0 <= self.port <= 65_535:
            raise refuse("port", self.port, "a port number up to 65535", "leave it out")
        for option in self.sbatch:
            if not re.fullmatch(r"-\S.*", option) or "\n" in option:
                raise refuse(
                    "sbatch",
                    option,
                    "an option of sbatch, in one line",
                    "for example --sbatch='[--exclusive]'",
                )
        check_env(self.env)

    @property
    def per_node(self) -> int:
        """Ranks of a node."""
        return self.gpus_per_node or self.ranks_per_node


@dataclass(frozen=True, kw_only=True)
class Jobs:
    """A Hugging Face Job.

    image: a container image that holds kata (see Dockerfile). timeout: the service ends the job after it ('90s', '2h',
    '1d'); null leaves the service's 30 minutes. checkpoint_repo: gets every checkpoint, and a job without checkpoints
    continues from it; created private. restarts: a job that ran out of time, or stopped and saved, is submitted again
    so often while this command follows it. namespace: user or organisation that pays; null is your own. env: NAME=VALUE
    for the job. secrets: names of environment variables that the job gets as secrets, beside HF_TOKEN and
    WANDB_API_KEY. detach: submit, say how to look at it, and leave. dry_run: print what would be submitted.
    """

    image: str | None = None
    timeout: str | int | None = None
    checkpoint_repo: str | None = None
    restarts: int = 0
    namespace: str | None = None
    job_name: str | None = None
    env: list[str] = field(default_factory=list)
    secrets: list[str] = field(default_factory=list)
    detach: bool = False
    dry_run: bool = False

    def __post_init__(self) -> None:
        if self.image is None:
            raise ConfigError(
                "image: not given",
                rule="a job runs in a container image that holds kata and that the service can pull",
                remedy="docker build -t <user>/kata . && docker push <user>/kata, then --image=<user>/kata",
            )
        _check_duration("timeout", None if self.timeout is None else str(self.timeout))
        _check_repo("checkpoint_repo", self.checkpoint_repo)
        _check_count("restarts", self.restarts, least=0)
        if self.restarts and self.checkpoint_repo is None:
            raise refuse(
                "restarts",
                self.restarts,
                "a job continues from what was pushed: its own disk goes with it",
                "add --checkpoint_repo=<user>/<name>",
            )
        if self.restarts and self.detach:
            raise refuse(
                "restarts", self.restarts, "this command submits again", "leave out --detach"
            )
        check_env(self.env)
        for name in self.secrets:
            if not re.fullmatch(r"[A-Za-z_]\w*", name):
                raise refuse(
                    "secrets",
                    "***",
                    "names of environment variables",
                    "for example --secrets=[MY_KEY]",
                )


def check_env(entries: list[str]) -> None:
    """ConfigError for an entry that is not NAME=VALUE."""
    for entry in entries:
        if not re.fullmatch(r"[A-Za-z_]\w*=[^\n]*", entry):
            raise refuse("env", entry, "NAME=VALUE", "for example --env=[NCCL_DEBUG=INFO]")


def target_class(target: str) -> type[Local | Slurm | Jobs]:
    """The options of a target: 'local', 'slurm' or 'hf:<flavor>'."""
    if target == "local":
        return Local
    if target == "slurm":
        return Slurm
    if target.startswith("hf:"):
        return Jobs
    raise refuse(
        "target",
        target,
        "local, slurm or hf:<flavor>",
        did_you_mean(target, ["local", "slurm", "hf:a10g-large"]),
    )
