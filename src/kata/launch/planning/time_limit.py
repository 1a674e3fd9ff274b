"""The time limit of a launched run against its planned time. Torch-free."""

from __future__ import annotations

import math
from pathlib import Path

from kata.data.format.source import lerobot_home
from kata.errors import ConfigError
from kata.launch.planning.subject import flavor_machine, with_dataset
from kata.plan.forecast import Forecast, Machine, forecast
from kata.plan.trace_store import step_trace_of
from kata.run import Run
from kata.units import seconds_text

_DAY_S = 86_400
_HOUR_S = 3_600
_MINUTE_S = 60


def refuse_short_limit(run: Run, flavor: str, limit_s: float) -> None:
    """Refuse a job that the service would end before its run is done.

    Args:
        run: the run of the job.
        flavor: its machine.
        limit_s: time after which the service ends it.

    Raises:
        ConfigError: even the shortest planned time is longer.
    """
    found = launch_forecast(run, flavor_machine(flavor))
    if found is not None:
        check_limit(found, limit_s)


def launch_forecast(run: Run, machine: Machine) -> Forecast | None:
    """Return the forecast of a run that is about to be launched.

    Returns:
        None for a run with --force, and for one whose dataset is not on this machine: a launch
        downloads nothing, so such a run starts unchecked.
    """
    if run.force or not _has_dataset(run):
        return None
    run, data = with_dataset(run)
    return forecast(run, step_trace_of(run), data, machine)


def _has_dataset(run: Run) -> bool:
    name, root = run.dataset.repo_id, run.dataset.root
    if root is not None:
        return (Path(root).expanduser() / "meta/info.json").is_file()
    return name is not None and (lerobot_home() / name / "meta/info.json").is_file()


def check_limit(
    found: Forecast, limit_s: float, option: str = "timeout", longer: str | None = None
) -> None:
    """Raise ConfigError if even the shortest planned time is over a limit.

    Args:
        found: the forecast of the run.
        limit_s: the limit.
        option: name of the option that sets it.
        longer: what to do instead; None takes the answer for a Hugging Face Job.
    """
    low, expected, high = found.wall_clock_s(found.run.steps)
    if low <= limit_s:
        return
    longer = longer or (
        f"--timeout={int(high) + 1}s before --; or fewer --steps after it; or --restarts=1 with "
        "--checkpoint_repo"
    )
    raise ConfigError(
        f"{option}={seconds_text(limit_s)}: the run is planned at {seconds_text(expected)} "
        f"({seconds_text(low)} to {seconds_text(high)}) on {found.machine.gpu.name}",
        rule="a job ends with its run, not in the middle of it",
        remedy=f"{longer}; or --force=true after -- to start it all the same",
    )


def slurm_time(seconds: float) -> str:
    """Return a time limit in SLURM's words, rounded up to minutes, such as 1-02:30:00."""
    minutes = math.ceil(seconds / _MINUTE_S)
    days, minutes = divmod(minutes, _DAY_S // _MINUTE_S)
    hours, minutes = divmod(minutes, _HOUR_S // _MINUTE_S)
    whole = f"{hours:02}:{minutes:02}:00"
    return f"{days}-{whole}" if days else whole


def slurm_seconds(text: str) -> int:
    """Return the seconds of a time limit in SLURM's words.

    It is minutes, minutes:seconds or hours:minutes:seconds. After days and a hyphen it begins with
    hours.
    """
    days, hyphen, rest = text.rpartition("-")
    fields = [int(field) for field in rest.split(":")]
    if hyphen:
        units = (_HOUR_S, _MINUTE_S, 1)
    else:
        units = (_MINUTE_S, 1) if len(fields) < 3 else (_HOUR_S, _MINUTE_S, 1)
    total = int(days) * _DAY_S if hyphen else 0
    for field, unit in zip(fields, units, strict=False):
        total += field * unit
    return total
