"""`kata launch status|logs|cancel <job>`: a job after it was submitted. SLURM's numbers are digits alone."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from kata.config import parse_flags
from kata.errors import ConfigError, KataError, did_you_mean
from kata.launch.options import LOGS
from kata.launch.slurm import slurm

OPTIONS = {"log_dir": LOGS, "follow": False, "namespace": None}


def look(verb: str, args: Sequence[str]) -> int:
    """Run a verb on a job of SLURM or of Hugging Face, and return the exit status."""
    if verb == "flavors":
        from kata.launch.flavors import flavors_text

        print(flavors_text(), end="")
        return 0
    if not args or args[0].startswith("--"):
        raise ConfigError(
            f"launch {verb}: no job",
            rule="a verb works on a job",
            remedy=f"kata launch {verb} <the number it was given>",
        )
    job = args[0]
    given = {name.replace("-", "_"): value for name, value in parse_flags(args[1:]).items()}
    for name in given:
        if name not in OPTIONS:
            raise ConfigError(
                f"{name}: no such option",
                rule=f"options: {', '.join(OPTIONS)}",
                remedy=did_you_mean(name, OPTIONS),
            )
    options = {**OPTIONS, **given}
    follow = options["follow"] is True
    if not re.fullmatch(r"\d{1,12}", job):
        namespace = None if options["namespace"] is None else str(options["namespace"])
        return _look_at_hugging_face(verb, job, namespace, follow=follow)
    if verb == "status":
        print(_slurm_status(job))
    elif verb == "cancel":
        slurm("scancel", job)
        print(f"job {job}: cancelled")
    else:
        _slurm_logs(job, Path(str(options["log_dir"])).expanduser(), follow=follow)
    return 0


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


def _look_at_hugging_face(verb: str, job: str, namespace: str | None, *, follow: bool) -> int:
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
            return hf_jobs.follow(api, job, namespace)[0]
        else:
            for line in api.fetch_job_logs(job_id=job, namespace=namespace):
                print(line)
    except HUB_ERRORS as error:
        raise hf_jobs.service_error(job, error) from error
    return 0
