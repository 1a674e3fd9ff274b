"""Processes for tests, forked from one that has imported everything: each starts in a moment.

They have their own environment, output, signals and exit status; charts in their reports are text.
Tests of the start itself, and of the interpreter's end, start Python.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import undrawn_charts

LIMIT_S = 120.0
RAISED = 70
"""The exit status where an exception ended the work."""
PRELOADED = (
    "kata.train.command", "kata.policies.act.model", "kata.policies.vqbet.model",
    "torch._dynamo", "accelerate", "tests.conftest",
)  # fmt: skip
"""What `kata train` imports, some of it late: each process of each test would."""
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(list(PRELOADED))


@dataclass
class Team:
    """Started processes; what each writes is in its file."""

    processes: list[ForkServerProcess]
    files: list[Path]

    def ended(self, limit_s: float = LIMIT_S) -> list[int | None]:
        """Wait for all and return their exit statuses.

        Those that are still there after the limit are killed, and have None.
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

    def said(self, index: int = 0) -> str:
        return self.files[index].read_text()

    def send_signal(self, number: int, index: int = 0) -> None:
        pid = self.processes[index].pid
        assert pid is not None
        os.kill(pid, number)


def start(
    work: Callable[..., Any],
    args: list[Any],
    file: Path,
    environment: Mapping[str, str] | None = None,
) -> ForkServerProcess:
    """Call work(*args) in a process whose output goes to the file; what it returns is its status.

    Its environment is the present one, unless another is given.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    variables = dict(os.environ if environment is None else environment)
    target = (work, args, file, variables)
    process = _context.Process(target=_run, args=target, daemon=True)
    process.start()
    return process


def kata(words: list[str], file: Path) -> Team:
    """`kata` with these words."""
    from kata.cli import main

    return Team([start(main, [words], file)], [file])


def _run(
    work: Callable[..., Any], args: list[Any], file: Path, environment: dict[str, str]
) -> None:
    os.environ.clear()
    os.environ.update(environment)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored where the tests run under nohup
    output = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for number in (1, 2):
        os.dup2(output, number)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    undrawn_charts(pytest.MonkeyPatch())
    try:
        status = work(*args)
    except SystemExit as ended:
        status = ended.code
    except BaseException:  # noqa: BLE001  # a process ends here, and says why
        traceback.print_exc()
        status = RAISED
    if isinstance(status, str):
        print(status, file=sys.stderr)
        status = 1
    sys.stdout.flush()
    os._exit(status or 0)
