"""The verbs `kata launch status|logs|cancel <job>`. A job whose name is a number is SLURM's."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from kata.errors import ConfigError, KataError
from kata.launch.options import FlavorOptions, JobOptions, LogOptions
from kata.launch.slurm import slurm

SLURM_JOB = re.compile(r"\d{1,12}")


def show_flavors(options: FlavorOptions) -> int:
    """Print the machines of Hugging Face Jobs."""
    del options
    from kata.launch.flavors import flavors_text

    print(flavors_text(), end="")
    return 0


def show_status(options: JobOptions) -> int:
    """Print how a job is."""
    if SLURM_JOB.fullmatch(options.job):
        print(_slurm_status(options.job))
        return 0
    return _look_at_hugging_face("status", options)


def show_logs(options: LogOptions) -> int:
    """Print a job's output."""
    if SLURM_JOB.fullmatch(options.job):
        _slurm_logs(options.job, Path(options.log_dir).expanduser(), follow=options.follow)
        return 0
    return _look_at_hugging_face("logs", options, follow=options.follow)


def cancel(options: JobOptions) -> int:
    """End a job."""
    if SLURM_JOB.fullmatch(options.job):
        slurm("scancel", options.job)
        print(f"job {options.job}: cancelled")
        return 0
    return _look_at_hugging_face("cancel", options)


def _slurm_status(job: str) -> str:
    """From the controller while it knows the job, else from the accounting."""
    try:
        shown = slurm("scontrol", "-o", "show", "job", job)
    except ConfigError:
        raise
    except KataError:
        past = slurm(
            "sacct", "-X", "-n", "-P", "-j", job, "-o", "State,ExitCode,Elapsed,NodeList"
        ).strip()
        return f"job {job}: {past.replace('|', ', ') or 'unknown to SLURM'}"
    facts = dict(re.findall(r"(\w+)=(\S+)", shown))
    parts = [
        facts.get("JobState", "?"),
        f"reason {facts.get('Reason', '?')}",
        f"ran {facts.get('RunTime', '?')}",
    ]
    parts += [f"restarts {facts.get('Restarts', '?')}", f"nodes {facts.get('NodeList', '?')}"]
    return f"job {job}: {', '.join(parts)}"


def _slurm_logs(job: str, log_dir: Path, *, follow: bool) -> None:
    logs = [
        path
        for path in [log_dir / f"{job}.log", *sorted(log_dir.glob(f"{job}-*.log"))]
        if path.is_file()
    ]
    if not logs:
        raise ConfigError(
            f"{log_dir}/{job}.log: no such file",
            rule="a job's output appears when it starts",
            remedy=f"see `kata launch status {job}`, or give the --log_dir of its launch",
        )
    command = ["tail", "-n", "+1", "-v", *(["-F"] if follow else []), *map(str, logs)]
    subprocess.run(command, check=True)


def _look_at_hugging_face(verb: str, options: JobOptions, *, follow: bool = False) -> int:
    job, namespace = options.job, options.namespace
    from huggingface_hub import HfApi

    from kata.launch import hf_jobs
    from kata.launch.hub_errors import HUB_ERRORS

    api = HfApi()
    try:
        if verb == "status":
            print(hf_jobs.status_text(api.inspect_job(job_id=job, namespace=namespace)))
        elif verb == "cancel":
            api.cancel_job(job_id=job, namespace=namespace)
            print(f"job {job}: cancelled")
        elif follow:
            return hf_jobs.follow_job(api, job, namespace)[0]
        else:
            for line in api.fetch_job_logs(job_id=job, namespace=namespace):
                print(line)
    except HUB_ERRORS as error:
        raise hf_jobs.service_error(job, error) from error
    return 0
