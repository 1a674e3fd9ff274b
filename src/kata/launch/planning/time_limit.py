"""The time limit of a job against the planned time of its run. Torch-free."""

from __future__ import annotations

from kata.data.format.source import lerobot_home
from kata.errors import ConfigError
from kata.launch.planning.subject import flavor_machine, with_dataset
from kata.plan.forecast import Forecast, forecast
from kata.plan.trace_store import step_trace_of
from kata.run import Run
from kata.units import seconds_text


def refuse_short_limit(run: Run, flavor: str, limit_s: float) -> None:
    """Refuse a job that the service would end before its run is done.

    A dataset that is only on the Hub is not looked at here: its job starts without this check.

    Args:
        run: the run of the job.
        flavor: its machine.
        limit_s: time after which the service ends it.

    Raises:
        ConfigError: even the shortest planned time is longer.
    """
    name = run.dataset.repo_id
    if run.force or name is None or not (lerobot_home() / name / "meta/info.json").is_file():
        return
    run, data = with_dataset(run)
    check_limit(forecast(run, step_trace_of(run), data, flavor_machine(flavor)), limit_s)


def check_limit(found: Forecast, limit_s: float) -> None:
    """Raise ConfigError if even the shortest planned time is over a limit."""
    low, expected, high = found.wall_clock_s(found.run.steps)
    if low <= limit_s:
        return
    raise ConfigError(
        f"timeout={seconds_text(limit_s)}: the run is planned at {seconds_text(expected)} "
        f"({seconds_text(low)} to {seconds_text(high)}) on {found.machine.gpu.name}",
        rule="a job ends with its run, not in the middle of it",
        remedy=f"--timeout={int(high) + 1}s before --; or fewer --steps after it; or --restarts=1 "
        "with --checkpoint_repo; or --force=true after -- to submit it all the same",
    )
