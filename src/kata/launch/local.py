"""`kata launch -- train …`: one rank per GPU of this machine, or CPU ranks."""

from __future__ import annotations

import contextlib
import datetime
import os
import socket
import sys
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path

from kata.errors import ConfigError
from kata.launch.gpus import visible_gpus
from kata.launch.local_ranks import STOPPED, log_of, run_local_ranks
from kata.launch.options import LOGS, Local, option_error
from kata.launch.train_args import checked_run, refuse_taken
from kata.run import Run
from kata.units import duration_s

HOST = "127.0.0.1"

SAVED = "kata: the run was asked to stop, and has saved"
"""Said when the ranks leave with 85; whoever follows a job's output looks for it."""


def launch_local(options: Local, args: Sequence[str]) -> int:
    """Start the ranks of `kata <args>` and return their exit status; see `run_local_ranks`."""
    gpus = None if options.ranks is not None else chosen_gpus(options.gpus, visible_gpus())
    ranks = options.ranks or len(gpus or ())
    run = checked_run(args, ranks)
    port = free_port() if options.port == 0 else checked_port(options.port)
    threads = os.environ.get("OMP_NUM_THREADS") or str(max(1, usable_cores() // ranks))
    log_dir = Path(
        options.log_dir or f"{LOGS}/{datetime.datetime.now():%Y%m%d_%H%M%S}_{os.getpid()}"
    ).expanduser()
    where = f"GPUs {','.join(gpus)}" if gpus is not None else "the CPU"
    logs = f"; ranks 1 to {ranks - 1} write to {log_of(log_dir, 1).parent}" if ranks > 1 else ""
    said = "as set" if "OMP_NUM_THREADS" in os.environ else f"{usable_cores()} cores"
    print(
        f"kata: {ranks} {'rank' if ranks == 1 else 'ranks'} on {where}, port {port}, "
        f"OMP_NUM_THREADS={threads} ({said}){logs}",
        file=sys.stderr,
    )
    envs = rank_envs(ranks, gpus, port, threads)
    stop_after_s = None if options.stop_after is None else duration_s(options.stop_after)
    if stop_after_s is not None and gpus is not None and options.checkpoint_repo is None:
        _refuse_early_stop(run, ranks, stop_after_s)
    with contextlib.ExitStack() as beside:
        if options.checkpoint_repo is not None:
            args = beside.enter_context(_courier(options.checkpoint_repo, run, args))
        status = run_local_ranks(
            [sys.executable, "-P", "-m", "kata", *args], envs, log_dir, stop_after_s
        )
    if status == STOPPED:
        print(SAVED, file=sys.stderr)
    return status


def _refuse_early_stop(run: Run, ranks: int, stop_after_s: float) -> None:
    """Refuse a run that would be stopped before its end, on a GPU that the catalogue has.

    With a checkpoint repository a later start continues it, so that is not asked.

    Raises:
        ConfigError: even the shortest planned time is longer.
    """
    # Here, since plans import the data engine, which other launches do not need.
    from kata.launch.planning.subject import gpu_here
    from kata.launch.planning.time_limit import check_limit, launch_forecast
    from kata.plan.forecast import Machine

    gpu = gpu_here()
    found = None if gpu is None else launch_forecast(run, Machine(gpu=gpu, ranks=ranks))
    if found is not None:
        longer = "leave out --stop_after, or --checkpoint_repo=<user>/<name> to continue later"
        check_limit(found, stop_after_s, "stop_after", longer)


@contextlib.contextmanager
def _courier(repo_id: str, run: Run, args: Sequence[str]) -> Generator[Sequence[str]]:
    """The run's checkpoints go to the Hub; what is there is the run's to continue, so its
    arguments say so.
    """
    if run.output_dir is None:
        raise ConfigError(
            "output_dir: not given",
            rule="--checkpoint_repo uploads what a run saves in its folder",
            remedy="add --output_dir=<folder> to the options of train",
        )
    from kata.launch.hub_sync import Courier

    folder = Path(run.output_dir).expanduser()
    refuse_taken(run, folder)
    with Courier(repo_id, folder):
        yield [*args, *([] if run.resume else ["--resume=true"])]


def chosen_gpus(asked: int | list[int] | None, visible: list[str]) -> list[str]:
    """Return the requested GPUs among the visible ones.

    Raises:
        ConfigError: fewer are visible than requested.
    """
    if not visible:
        raise ConfigError(
            "no GPU is visible",
            rule="a rank per GPU; CUDA_VISIBLE_DEVICES says which, or nvidia-smi lists them",
            remedy="--ranks=2 starts two CPU ranks; `kata doctor` says what is wrong with a GPU "
            "that should be there",
        )
    if asked is None:
        return visible
    if isinstance(asked, int):
        if asked > len(visible):
            raise option_error(
                "gpus",
                asked,
                f"at most the {len(visible)} that are visible: {','.join(visible)}",
                "ask for fewer",
            )
        return visible[:asked]
    wrong = [n for n in asked if not 0 <= n < len(visible)]
    if wrong:
        raise option_error(
            "gpus",
            asked,
            f"places from 0 to {len(visible) - 1} in {','.join(visible)}",
            f"leave out {wrong[0]}",
        )
    return [visible[n] for n in asked]


def rank_envs(
    ranks: int, gpus: Sequence[str] | None, port: int, threads: str
) -> list[Mapping[str, str]]:
    """The environment of each rank. CPU ranks see no GPU."""
    shared = {
        **os.environ,
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "GROUP_RANK": "0",
        "MASTER_ADDR": HOST,
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": threads,
        "CUDA_VISIBLE_DEVICES": "" if gpus is None else ",".join(gpus),
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
    }
    return [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]


def usable_cores() -> int:
    """The cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def free_port() -> int:
    """A port that nobody listens on at present."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def checked_port(port: int) -> int:
    """The port, where nobody listens on it; else ConfigError."""
    with socket.socket() as probe:
        probe.setsockopt(
            socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
        )  # one that lingers from a run before is free
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise option_error(
                "port",
                port,
                f"a port that is free and may be used ({error.strerror})",
                "leave --port out: a free one is taken; or end what listens there (`ss -ltnp` "
                "names it)",
            ) from error
    return port
