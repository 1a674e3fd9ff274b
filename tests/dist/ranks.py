"""Ranks for tests: processes forked from one that has imported everything, so that each starts
in a moment.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import time
import traceback
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import kata.policies.act.model
import kata.policies.vqbet.model
import kata.train.command  # noqa: F401 - imported once, for all ranks
from kata.cli import main

LIMIT_S = 120.0
LATE = ("accelerate", "matplotlib.figure", "matplotlib.backends.backend_svg")
"""What kata imports when it comes to need it: each rank of each run would."""
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload([__name__, *LATE])


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@dataclass
class Team:
    """Started ranks; what each writes is in its file."""

    processes: list[ForkServerProcess]
    files: list[Path]

    def ended(self, limit_s: float = LIMIT_S) -> list[int | None]:
        """The exit status of each rank; those that are still there after the limit are killed,
        and have None.
        """
        until_s = time.monotonic() + limit_s
        left = {p.sentinel: p for p in self.processes}
        while left and (rest_s := until_s - time.monotonic()) > 0:
            for sentinel in wait(list(left), rest_s):
                left.pop(sentinel)
        late = set(left.values())
        for process in late:
            process.kill()
        for process in self.processes:
            process.join()
        return [None if p in late else p.exitcode for p in self.processes]

    def said(self, rank: int) -> str:
        return self.files[rank].read_text()


def start(
    size: int,
    work: Callable[..., Any],
    *args: Any,
    folder: Path,
    each: dict[int, list[Any]] | None = None,
) -> Team:
    """Call work(*args) in `size` ranks, or work(*each[rank]) where a rank has arguments of its
    own.
    """
    folder.mkdir(parents=True, exist_ok=True)
    port, processes, files = free_port(), [], []
    for rank in range(size):
        own = {
            "RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1",  # noqa: E501
            "MASTER_PORT": str(port),
        }  # fmt: skip
        files.append(folder / f"rank-{rank}.txt")
        wanted = (each or {}).get(rank, list(args))
        processes.append(
            _context.Process(target=_rank, args=(own, files[-1], work, wanted), daemon=True)
        )
    for process in processes:
        process.start()
    return Team(processes, files)


def train(size: int, *args: str, folder: Path, each: dict[int, list[str]] | None = None) -> Team:
    """`kata train` on so many ranks."""
    own = {rank: [["train", *more]] for rank, more in (each or {}).items()}
    return start(size, main, ["train", *args], folder=folder, each=own)


def _rank(
    environment: dict[str, str], file: Path, work: Callable[..., Any], args: list[Any]
) -> None:
    os.environ.update(environment)
    with file.open("w", buffering=1) as out, redirect_stdout(out), redirect_stderr(out):
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
        try:
            status = work(*args)
        except SystemExit as ended:
            status = ended.code
        except BaseException:  # noqa: BLE001  # a process ends here, and says why
            traceback.print_exc()
            status = 70
        out.flush()
    os._exit(status if isinstance(status, int) else 0)
