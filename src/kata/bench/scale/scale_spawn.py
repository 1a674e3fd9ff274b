"""Starts the ranks of a measurement, and ends all of them when one fails."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kata.errors import ConfigError

HOST = "127.0.0.1"
LOOK_S = 0.2


def run_ranks(
    module: str, asked: Mapping[str, Any], size: int, threads: int, limit_s: float
) -> Any:
    """Run a module in `size` processes and return the JSON on the last line of rank 0.

    Raises:
        ConfigError: A rank failed, with its last words, or did not end within `limit_s`.
    """
    command = [sys.executable, "-m", module, json.dumps(asked)]
    with tempfile.TemporaryDirectory(prefix="kata_scale_") as folder:
        files = [Path(folder) / f"rank-{rank}" for rank in range(size)]
        started: list[subprocess.Popen[bytes]] = []
        try:
            for env, file in zip(_environments(size, threads), files, strict=True):
                with file.open("wb") as out, file.with_suffix(".err").open("wb") as err:
                    started.append(subprocess.Popen(command, env=env, stdout=out, stderr=err))
            failed = _failed(started, time.monotonic() + limit_s)
        finally:
            for process in started:
                process.kill()
                process.wait()
        if failed is not None:
            said = (
                files[failed].with_suffix(".err").read_text(errors="replace").strip().splitlines()
            )
            raise ConfigError(
                f"rank {failed} of {size}: "
                f"{said[-1] if said else f'did not end within {limit_s:g} s'}",
                rule="a measurement ends well",
                remedy="try the options after '--' with `kata train` first",
            )
        return json.loads(files[0].read_text().strip().splitlines()[-1])


def _failed(started: Sequence[subprocess.Popen[bytes]], until_s: float) -> int | None:
    """Return the first rank that fails or takes too long; None when all ended well."""
    while True:
        ended = [process.poll() for process in started]
        wrong = [rank for rank, status in enumerate(ended) if status]
        if wrong:
            return wrong[0]
        if None not in ended:
            return None
        if time.monotonic() > until_s:
            return ended.index(None)
        time.sleep(LOOK_S)


def _environments(size: int, threads: int) -> list[dict[str, str]]:
    shared = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    if size == 1:
        return [shared]
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port = probe.getsockname()[1]
    shared |= {"WORLD_SIZE": str(size), "MASTER_ADDR": HOST, "MASTER_PORT": str(port)}
    return [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(size)]
