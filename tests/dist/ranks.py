"""Ranks for tests, see `tests/forked.py`."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kata.cli import main
from tests.forked import Team
from tests.forked import start as start_process


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


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
    port = free_port()
    processes, files = [], []
    for rank in range(size):
        own = {
            "RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1",  # noqa: E501
            "MASTER_PORT": str(port),
        }  # fmt: skip
        files.append(folder / f"rank-{rank}.txt")
        wanted = (each or {}).get(rank, list(args))
        processes.append(start_process(work, wanted, files[-1], {**os.environ, **own}))
    return Team(processes, files)


def train(size: int, *args: str, folder: Path, each: dict[int, list[str]] | None = None) -> Team:
    """`kata train` on so many ranks."""
    own = {rank: [["train", *more]] for rank, more in (each or {}).items()}
    return start(size, main, ["train", *args], folder=folder, each=own)
