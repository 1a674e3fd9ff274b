"""The options of `kata launch`, one class per target. Torch-free."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from kata.config import DURATION, HUB_NAME, REQUIRED, VARIABLE, Form, Options, option
from kata.errors import ConfigError, did_you_mean

LOGS = "outputs/launch"
PORT_MAX = 65_535
SLURM_TIME = Form(
    "a time limit as SLURM writes it", "12:00:00", re.compile(r"(\d+-)?\d+(:\d\d){0,2}").fullmatch
)
SBATCH = Form("an option of sbatch, in one line", "[--exclusive]", re.compile(r"-\S.*").fullmatch)
NAME = Form("names of environment variables", "[MY_KEY]", re.compile(r"[A-Za-z_]\w*").fullmatch)


def option_error(name: str, value: object, rule: str, remedy: str) -> ConfigError:
    """Return the error for an option's impossible value."""
    return ConfigError(f"{name}={value}", rule=rule, remedy=remedy)


@dataclass(frozen=True, kw_only=True)
class LaunchTarget(Options):
    """The place where a run goes."""

    target: str = option(
        "local",
        "Where the run goes: this machine, a SLURM cluster, or a Hugging Face Job on a machine "
        "such as "
        "hf:a10g-large (`kata launch flavors` lists them).",
        is_common=True,
    )


@dataclass(frozen=True, kw_only=True)
class Local(LaunchTarget):
    """Ranks on this machine."""

    gpus: int | list[int] | None = option(
        None,
        "Number of the visible GPUs, or which: [0,2] are places in CUDA_VISIBLE_DEVICES where that "
        "is "
        "set, else the GPUs' numbers. null takes all.",
    )
    ranks: int | None = option(None, "Ranks on the CPU instead.", least=1)
    port: int = option(0, "Port of the rendezvous; 0 takes a free one.", least=0, most=PORT_MAX)
    log_dir: str | None = option(
        None,
        "Folder for the output of all ranks but the first; null makes one below outputs/launch.",
    )
    stop_after: str | None = option(
        None, "Time after which the run is asked to save and leave (status 85).", form=DURATION
    )
    checkpoint_repo: str | None = option(
        None,
        "Hub repository that gets every checkpoint, and that a run without checkpoints continues "
        "from.",
        form=HUB_NAME,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gpus is not None and self.ranks is not None:
            raise option_error(
                "ranks",
                self.ranks,
                "--gpus starts a rank per GPU, --ranks starts CPU ranks",
                "leave out one of them",
            )
        if isinstance(self.gpus, int) and self.gpus < 1:
            raise option_error(
                "gpus",
                self.gpus,
                "a number from 1 on, or a list of GPUs",
                "--ranks=2 starts two CPU ranks",
            )
        if isinstance(self.gpus, list) and (not self.gpus or len(set(self.gpus)) < len(self.gpus)):
            raise option_error(
                "gpus", self.gpus, "at least one GPU, each once", "for example --gpus=[0,1]"
            )


@dataclass(frozen=True, kw_only=True)
class Slurm(LaunchTarget):
    """A batch job on a SLURM cluster: one torchrun per node.

    The run needs --output_dir on a file system that all nodes share: it is started with
    --resume=true, so that it continues after a requeue.
    """

    nodes: int = option(1, "Nodes.", least=1)
    gpus_per_node: int = option(1, "GPUs, and ranks, of a node.", least=0)
    ranks_per_node: int = option(0, "CPU ranks of a node, with gpus_per_node=0.", least=0)
    cpus_per_task: int | None = option(None, "CPU cores of a node's task.", least=1)
    mem: str | None = option(None, "Memory of a node as SLURM writes it, such as 64G.")
    time: str | None = option(
        None,
        "Time limit of the job: 12:00:00, 1-00:00:00, or minutes. null leaves the partition's, or "
        "takes the planned time where gpu is given.",
        form=SLURM_TIME,
    )
    gpu: str | None = option(
        None,
        "GPU of the nodes as `kata plan` names it, such as a100-80gb. With it a job that is not "
        "requeued is refused if its time limit is below the shortest planned time.",
    )
    partition: str | None = option(None, "Partition.")
    account: str | None = option(None, "Account that pays.")
    qos: str | None = option(None, "Quality of service.")
    job_name: str | None = option(None, "Name of the job; null takes the run's.")
    signal_s: int = option(
        300,
        "Time before the limit at which the run is asked to save; the job then goes back into the "
        "queue.",
        unit="s",
        least=1,
    )
    requeue: bool = option(True, "Let the job go back into the queue.")
    setup: list[str] = option(
        list, "Shell lines to run first, ['module load cuda', 'source .venv/bin/activate']."
    )
    env: list[str] = option(list, "Environment of the ranks, [NAME=VALUE].", form=VARIABLE)
    sbatch: list[str] = option(
        list, "Further options of sbatch, as they are, ['--exclusive'].", form=SBATCH
    )
    python: str | None = option(None, "Python interpreter on the nodes; null takes this one.")
    log_dir: str = option(
        LOGS, "Folder of script and output, on a file system that all nodes share."
    )
    port: int = option(
        0, "Port of the rendezvous; 0 derives one from the job's number.", least=0, most=PORT_MAX
    )
    dry_run: bool = option(False, "Print the script and submit nothing.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.gpus_per_node) == bool(self.ranks_per_node):
            raise option_error(
                "ranks_per_node",
                self.ranks_per_node,
                "a node has a rank per GPU (--gpus_per_node), or CPU ranks (--gpus_per_node=0 "
                "--ranks_per_node=N)",
                "set one of them to 0",
            )

    @property
    def per_node(self) -> int:
        """Ranks of a node."""
        return self.gpus_per_node or self.ranks_per_node


@dataclass(frozen=True, kw_only=True)
class Jobs(LaunchTarget):
    """A Hugging Face Job."""

    image: str | None = option(
        None,
        "Container image that holds kata (see Dockerfile) and that the service can pull; required.",
    )
    timeout: str | None = option(
        None,
        "Time after which the service ends the job: 90s, 2h, 1d; null leaves the service's 30 "
        "minutes.",
        form=DURATION,
    )
    checkpoint_repo: str | None = option(
        None,
        "Hub repository that gets every checkpoint, and that a job without checkpoints continues "
        "from; "
        "created private.",
        form=HUB_NAME,
    )
    restarts: int = option(
        0,
        "Times that a job that ran out of time, or stopped and saved, is submitted again while "
        "this "
        "command follows it.",
        least=0,
    )
    namespace: str | None = option(None, "User or organization that pays; null is your own.")
    job_name: str | None = option(None, "Name of the job; null takes the run's.")
    env: list[str] = option(list, "Environment of the job, [NAME=VALUE].", form=VARIABLE)
    secrets: list[str] = option(
        list,
        "Environment variables that the job gets as secrets, besides HF_TOKEN and WANDB_API_KEY.",
    )
    detach: bool = option(False, "Submit, say how to look at the job, and leave.")
    dry_run: bool = option(False, "Print what would be submitted.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.image is None:
            raise ConfigError(
                "image: not given",
                rule=(
                    "a job runs in a container image that holds kata and that the service can pull"
                ),
                remedy=(
                    "docker build -t <user>/kata . && docker push <user>/kata, then "
                    "--image=<user>/kata"
                ),
            )
        if self.restarts and self.checkpoint_repo is None:
            raise option_error(
                "restarts",
                self.restarts,
                "a job continues from what was pushed: its own disk goes with it",
                "add --checkpoint_repo=<user>/<name>",
            )
        if self.restarts and self.detach:
            raise option_error(
                "restarts", self.restarts, "this command submits again", "leave out --detach"
            )
        for name in self.secrets:
            if not NAME.fits(name):
                raise option_error(
                    "secrets", "***", NAME.rule, f"for example --secrets={NAME.example}"
                )


@dataclass(frozen=True, kw_only=True)
class JobOptions(Options):
    """Options of the verbs that look after a job."""

    at: ClassVar[str] = ""

    job: str = option(
        REQUIRED, "The job's number or name, as its launch printed it; it stands first."
    )
    log_dir: str = option(LOGS, "The --log_dir of its launch, with SLURM.")
    namespace: str | None = option(None, "Its user or organization, with Hugging Face.")


@dataclass(frozen=True, kw_only=True)
class LogOptions(JobOptions):
    """Options of `kata launch logs`."""

    follow: bool = option(False, "Show new lines as they come.")


@dataclass(frozen=True, kw_only=True)
class FlavorOptions(Options):
    """`kata launch flavors` has no options."""


@dataclass(frozen=True, kw_only=True)
class DoctorOptions(Options):
    """Options of `kata doctor`."""

    output_dir: str = option("outputs", "Folder on the disk whose speed is measured.")
    json: bool = option(False, "Print everything as JSON.")


HEADINGS: dict[str, type[LaunchTarget]] = {
    "--target=local": Local,
    "--target=slurm": Slurm,
    "--target=hf:<flavor>": Jobs,
}


def target_classes(target: str) -> dict[str, type[LaunchTarget]]:
    """Return the options of a target by heading: of 'local', 'slurm' or 'hf:<flavor>'; '*': of all.

    Raises: ConfigError for another target.
    """
    if target == "*":
        return HEADINGS
    if target in ("", "local"):
        return {"--target=local": Local}
    if target == "slurm":
        return {"--target=slurm": Slurm}
    if target.startswith("hf:"):
        return {"--target=hf:<flavor>": Jobs}
    known = ["local", "slurm", "hf:a10g-large"]
    raise option_error("target", target, "local, slurm or hf:<flavor>", did_you_mean(target, known))
