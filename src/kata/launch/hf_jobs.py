"""`kata launch --target=hf:<flavor>`: a run as a Hugging Face Job."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, JobInfo, get_token

from kata.config import encode, parse_flags, plain, read_config
from kata.config.dataset import is_address
from kata.errors import ConfigError, KataError
from kata.launch.flavors import Flavor, chosen_flavor
from kata.launch.hub_errors import HUB_ERRORS, reason
from kata.launch.local import SAVED
from kata.launch.local_ranks import STOPPED
from kata.launch.options import Jobs, option_error
from kata.launch.planning.time_limit import refuse_short_limit
from kata.launch.train_args import checked_run
from kata.log import redacted
from kata.run import Run
from kata.units import duration_s, seconds_text

SERVICE_TIMEOUT_S = 1800
"""The service's limit for a job that names none."""

FOLDER = "/tmp/kata/run"
"""The run folder inside a job; it is lost with the job's disk."""

SECRETS = ("HF_TOKEN", "WANDB_API_KEY")


@dataclass(frozen=True)
class JobPlan:
    """A job to submit.

    Secrets are values. They are never shown, and are sent apart from command and environment.
    """

    flavor: Flavor
    image: str
    command: list[str]
    env: dict[str, str]
    secrets: dict[str, str]
    timeout_s: int
    name: str
    namespace: str | None

    def text(self) -> str:
        """Return the parts of the job that a user may read."""
        shown = {
            "flavor": self.flavor.name,
            "image": self.image,
            "timeout_s": self.timeout_s,
            "name": self.name,
        }
        shown |= {
            "environment": self.env,
            "secrets": sorted(self.secrets),
            "namespace": self.namespace,
        }
        return json.dumps(shown, indent=2) + "\n" + shlex.join(self.command) + "\n"


def launch_job(options: Jobs, flavor: str, args: Sequence[str]) -> int:
    """Submit `kata <args>`, show its output, and return 0, 85 (saved) or 1; with detach, submit
    only.
    """
    plan = planned(options, chosen_flavor(flavor), args)
    if options.dry_run:
        print(plan.text(), end="")
        return 0
    if options.timeout is None:
        print("kata: no --timeout: the service ends the job after 30 minutes", file=sys.stderr)
    api = HfApi()
    for left in range(options.restarts, -1, -1):
        job = submit(api, plan)
        if options.detach:
            return 0
        status, again = follow_job(api, job.id, plan.namespace, plan.timeout_s)
        if not again or not left:
            return status
        print(f"kata: submitted again; {left - 1} more times at most", file=sys.stderr)
    raise AssertionError("unreachable")


def planned(options: Jobs, flavor: Flavor, args: Sequence[str]) -> JobPlan:
    """The job of `kata <args>`.

    ConfigError for what a machine elsewhere cannot see or would lose.
    """
    run = checked_run(args, max(1, flavor.gpus))
    _check_reach(run, options)
    stated = SERVICE_TIMEOUT_S if options.timeout is None else duration_s(options.timeout)
    timeout_s = max(1, int(stated))
    if flavor.gpus and not options.restarts:
        refuse_short_limit(run, flavor.name, timeout_s)
    ranks = f"--gpus={flavor.gpus}" if flavor.gpus else "--ranks=1"
    launcher = [
        "kata",
        "launch",
        ranks,
        f"--stop_after={timeout_s - saving_s(timeout_s)}s",
        "--log_dir=/tmp/kata/logs",
    ]
    if options.checkpoint_repo is not None:
        launcher.append(f"--checkpoint_repo={options.checkpoint_repo}")
    assert options.image is not None
    return JobPlan(
        flavor=flavor,
        image=options.image,
        command=[*launcher, "--", *carried(args, run)],
        env=dict(entry.split("=", 1) for entry in options.env),
        secrets=_secrets(options),
        timeout_s=timeout_s,
        name=options.job_name or run.name,
        namespace=options.namespace,
    )


def saving_s(timeout_s: int) -> int:
    """Of a job's time, what is kept for saving and uploading: a tenth, at most ten minutes."""
    return min(600, timeout_s // 10)


def carried(args: Sequence[str], run: Run) -> list[str]:
    """The arguments as a machine elsewhere can read them: what a config file says stands in the
    command.
    """
    flags = parse_flags(args[1:])
    path = [flags.pop(name) for name in ("config", "config_path") if name in flags][-1:]
    stated: dict[str, Any] = {**(read_config(Path(str(path[0]))) if path else {}), **flags}
    mix = stated.get("dataset.mix")
    if isinstance(mix, str) and not mix.startswith("["):
        stated["dataset.mix"] = encode(run.dataset.mix)
    # What the files of kept ranges say is in the run already.
    if run.dataset.keep_ranges is not None:
        stated["dataset.keep_ranges"] = encode(run.dataset.keep_ranges)
    if any(entry.keep_ranges is not None for entry in run.dataset.mix or ()):
        stated["dataset.mix"] = encode(run.dataset.mix)
    stated |= {"output_dir": run.output_dir or FOLDER, "resume": True}
    return [args[0], *(f"--{name}={_word(value)}" for name, value in stated.items())]


def _word(value: Any) -> str:
    """Return a value as a flag that reads as the same value."""
    return value if isinstance(value, str) else json.dumps(plain(value))


def _check_reach(run: Run, options: Jobs) -> None:
    roots = [run.dataset.root, *(entry.root for entry in run.dataset.mix or ())]
    local = [("dataset.root", root) for root in roots if root and not is_address(root)]
    pretrained = run.policy.pretrained_path
    if pretrained is not None and Path(str(pretrained)).expanduser().exists():
        local.append(("policy.path", str(pretrained)))
    if local:
        raise option_error(
            *local[0],
            "a job sees nothing of this machine's disk",
            "name a dataset or policy of the Hub, and leave the folder out",
        )
    if options.checkpoint_repo is None and not (run.policy.push_to_hub and run.policy.repo_id):
        raise ConfigError(
            "checkpoint_repo: not given, and the policy is not uploaded",
            rule="a job's disk goes with it: what is to stay must be pushed",
            remedy="add --checkpoint_repo=<user>/<name> before --, or "
            "--policy.repo_id=<user>/<name> after it",
        )


def _secrets(options: Jobs) -> dict[str, str]:
    """Return secrets by name, from this process's environment; the Hub's token also from its
    login.
    """
    found = {name: os.environ[name] for name in SECRETS if os.environ.get(name)}
    token = get_token()
    if token is None:
        raise ConfigError(
            "no Hugging Face token",
            rule="jobs are submitted, and push, with your account",
            remedy="`hf auth login`, or set HF_TOKEN",
        )
    for name in options.secrets:
        if not os.environ.get(name):
            raise option_error(
                "secrets", name, "a variable that is set in this environment", f"export {name}=…"
            )
        found[name] = os.environ[name]
    return {**found, "HF_TOKEN": token}


def submit(api: HfApi, plan: JobPlan) -> JobInfo:
    """Hand the job over and say where it is.

    Raises KataError with the service's words where it refuses.
    """
    try:
        job = api.run_job(
            image=plan.image,
            command=plan.command,
            env=plan.env,
            secrets=plan.secrets,
            flavor=plan.flavor.name,
            timeout=plan.timeout_s,
            name="".join(c if c.isalnum() or c in "_-" else "-" for c in plan.name),
            namespace=plan.namespace,
        )
    except HUB_ERRORS as error:
        raise service_error("run", error) from error
    cost = plan.flavor.usd_per_hour * plan.timeout_s / 3600
    print(f"job {job.id}: {job.url}")
    print(f"  {plan.flavor.name}, at most {seconds_text(plan.timeout_s)} and ${cost:.2f}")
    print(
        f"  kata launch status {job.id} | kata launch logs {job.id} | kata launch cancel {job.id}",
        flush=True,
    )
    return job


def follow_job(
    api: HfApi, job_id: str, namespace: str | None, timeout_s: int | None = None
) -> tuple[int, bool]:
    """Show a job's output to its end. Returns the exit status, and whether submitting it again
    makes sense.

    Ctrl-C leaves the job running and returns 0.
    """
    saved = False
    try:
        for line in api.fetch_job_logs(job_id=job_id, namespace=namespace, follow=True):
            print(redacted(line), flush=True)
            saved = saved or SAVED in line
        job = api.wait_for_job(job_id, namespace=namespace)
    except KeyboardInterrupt:
        print(
            f"\nkata: detached; the job continues: kata launch logs {job_id} --follow",
            file=sys.stderr,
        )
        return 0, False
    except HUB_ERRORS as error:
        raise service_error(job_id, error) from error
    print(status_text(job), file=sys.stderr)
    if job.status.stage == "COMPLETED":
        return 0, False
    ran_s = job.durations.running_secs if job.durations is not None else None
    timed_out = "timeout" in (job.status.message or "").lower() or bool(
        timeout_s and ran_s and ran_s >= timeout_s
    )
    if timed_out:
        print(
            "kata: the job ran out of time: a longer --timeout, or --restarts=<n>", file=sys.stderr
        )
    # One that its owner cancelled may have saved too: it is not started again.
    return (STOPPED if saved else 1), timed_out or (saved and job.status.stage == "ERROR")


def status_text(job: JobInfo) -> str:
    """One line on a job."""
    ran_s = job.durations.running_secs if job.durations is not None else None
    parts = [
        str(job.status.stage),
        *([job.status.message] if job.status.message else []),
        str(job.flavor),
    ]
    parts += [f"ran {seconds_text(ran_s)}"] if ran_s else []
    return redacted(f"job {job.id}: {', '.join(parts)}; {job.url}")


def service_error(what: str, error: Exception) -> KataError:
    """Return an error with the service's message, without its page of details."""
    return KataError(
        f"job {what}: {reason(error)}",
        rule="the service answers, and your account may run jobs (a positive balance of credits)",
        remedy="check the job's number, the namespace and `hf auth whoami`",
    )
