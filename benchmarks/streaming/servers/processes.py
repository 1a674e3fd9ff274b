"""Servers in processes of their own, so that they take no CPU time of the reader they serve."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Generator, Sequence
from pathlib import Path

_PLACE = "benchmarks.streaming.servers"
_ROOT = Path(__file__).parents[3]
"""The repository, below which the processes find this package."""


@contextlib.contextmanager
def served(folder: Path, *faults: str) -> Generator[str]:
    """Serve a folder over HTTP behind a proxy; both processes end with the context.

    Args:
        folder: the files.
        faults: options of the proxy, such as '--latency_ms=20'.

    Yields:
        The address of the folder.
    """
    with contextlib.ExitStack() as live:
        server = _started(live, [f"{_PLACE}.files", str(folder.resolve())])
        upstream = f"--upstream={server.removeprefix('http://')}"
        yield _started(live, [f"{_PLACE}.proxy", upstream, *faults])


def _started(live: contextlib.ExitStack, words: Sequence[str]) -> str:
    """Start a module that prints its address first and ends when its input is closed."""
    process = subprocess.Popen(
        [sys.executable, "-m", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=_ROOT,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    live.callback(process.wait, 10)
    live.callback(process.stdin.close)
    return process.stdout.readline().strip()
