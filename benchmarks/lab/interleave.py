"""Two processes that measure by turns: one runs while the other stands still, so that what
disturbs the machine falls on both.

The measured side begins with `begin` and ends with `end`; the measuring side holds a `Child` of
each and calls `take_turns`. They exchange lines: the child says that it is ready and stops itself,
then that it has measured, and receives its `ProcessPauses` as JSON. A child that measures as long
as the other says nothing, and receives them when it is to end.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import cycle
from pathlib import Path
from typing import IO, Any

from kata.bench import process_stats
from kata.bench.course import ProcessPauses
from kata.bench.worker_result import last_line, worker_error
from kata.closing import Closing
from kata.errors import ConfigError

TURN_S = 0.35
"""Of a turn on average: long against the few milliseconds that refill the processor's caches, and
short against a neighbour's bursts of seconds.
"""

LIMIT_S = 3600.0
"""Of setting up, and of measuring: far beyond what either takes, so that a child that hangs does
not hold the rest.
"""

_GOLDEN = (5**0.5 - 1) / 2  # its multiples spread evenly over [0, 1)
_PARENT_DEATH = 1  # PR_SET_PDEATHSIG


def begin() -> None:
    """Say that this process is set up, and stand still until the first turn."""
    # A stopped process would outlast a parent that was killed.
    ctypes.CDLL(None).prctl(_PARENT_DEATH, signal.SIGKILL)
    print("ready", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)


def end(*, is_first: bool) -> ProcessPauses:
    """Return the pauses that were made for the partner.

    The process that ends first says so; the other waits here for the word to end.
    """
    if is_first:
        print("measured", flush=True)
    return ProcessPauses(**json.loads(sys.stdin.readline()))


class Child(Closing):
    """A process that measures and prints its figures as JSON on its last line.

    Leaving its context kills it.

    Args:
        name: The measurement, for messages.
        command: What it runs.
        env: Its environment; None for this process's.
        folder: Its working folder; None for this process's.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        env: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> None:
        self.name = name
        self.stops: list[tuple[float, float]] = []
        self._stopped_s = 0.0
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=self._errors, env=env, cwd=folder
        )

    def close(self) -> None:
        """Kill it; a stopped process ends too."""
        self._process.kill()
        with self._errors, self._process:
            pass

    @property
    def pid(self) -> int:
        """Return the number of its process."""
        return self._process.pid

    @property
    def cpu_s(self) -> float:
        """Return the CPU seconds that it has used."""
        return process_stats.cpu_s(self.pid)

    def speaks(self, limit_s: float) -> bool:
        """Return True if it says something within `limit_s`.

        Raises:
            ConfigError: It has ended without a word.
        """
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], limit_s)[0]:
            return False
        if not self._process.stdout.readline():
            raise self._failed()
        return True

    def set_up(self, limit_s: float = LIMIT_S) -> None:
        """Wait until it is ready and stands still.

        Raises:
            ConfigError: It ends, or takes longer than the limit.
        """
        if not self.speaks(limit_s):
            raise self.late(limit_s)
        self._await_stop()

    def stop(self) -> None:
        """Make it stand still; it does when this returns."""
        os.kill(self.pid, signal.SIGSTOP)
        self._await_stop()

    def resume(self) -> None:
        """Let it run."""
        self.stops.append((self._stopped_s, time.perf_counter()))
        os.kill(self.pid, signal.SIGCONT)

    def figures(
        self, pauses: ProcessPauses | None = None, limit_s: float | None = None
    ) -> dict[str, Any]:
        """Return the figures that it prints at its end.

        Args:
            pauses: What it waits to receive first; None for nothing.
            limit_s: The seconds that it may take.

        Raises:
            ConfigError: It fails, or takes longer than the limit.
        """
        word = None if pauses is None else (json.dumps(asdict(pauses)) + "\n").encode()
        try:
            said, _ = self._process.communicate(word, limit_s)
        except subprocess.TimeoutExpired as error:
            raise self.late(error.timeout) from error
        if self._process.returncode:
            raise self._failed()
        return last_line(said)

    def _await_stop(self) -> None:
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        self._stopped_s = time.perf_counter()

    def late(self, limit_s: float) -> ConfigError:
        """Return the error of a child that takes longer than `limit_s`."""
        return ConfigError(
            f"{self.name}: not done within {limit_s:g} s",
            rule="a measurement ends",
            remedy="read a smaller dataset",
        )

    def _failed(self) -> ConfigError:
        status = self._process.wait()
        self._errors.seek(0)
        return worker_error(self.name, status, self._errors.read())


def turn_s(pair: int) -> float:
    """Return the length of each turn of a pair: uneven, so that a neighbour's rhythm does not fall
    on one side alone.
    """
    return TURN_S * (0.5 + pair * _GOLDEN % 1)


def take_turns(
    first: Child, other: Child, limit_s: float = LIMIT_S
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the figures of two children that are set up and stand still.

    The other measures until the first has measured. Both end with their contexts.

    Raises:
        ConfigError: One fails, or takes longer than the limit.
    """
    until_s = time.monotonic() + limit_s
    other_cpu_s = other.cpu_s
    for number, child in enumerate(cycle((first, other))):
        child.resume()
        if child.speaks(turn_s(number // 2)):
            break
        child.stop()
        if time.monotonic() > until_s:
            raise first.late(limit_s)
    found = first.figures(ProcessPauses(first.stops, other.cpu_s - other_cpu_s), limit_s)
    other.resume()
    return found, other.figures(ProcessPauses(other.stops), limit_s)
