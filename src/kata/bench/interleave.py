"""Two processes measure by turns: one runs while the other stands still, so what disturbs the
machine falls on both.

The measured side begins with `begin` and ends with `end`; the measuring side holds a `Child` of
each and calls `take_turns`. Between them go lines: the child says that it is ready and stops
itself, then that it has measured, and hears `Turns` as JSON. One that goes on as long as the other
does says nothing and hears them when it is to end.
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
from dataclasses import asdict, dataclass
from itertools import cycle
from types import TracebackType
from typing import IO, Any, Self

from kata.bench import process_stats
from kata.errors import ConfigError

TURN_S = 0.35
"""Of a turn on average: long beside filling the processor's caches anew, a few milliseconds; short
beside a neighbour's bursts of seconds.
"""

LIMIT_S = 3600.0
"""Of setting up, and of measuring: far beyond what either takes, so that a child that hangs does
not hold the rest.
"""

_GOLDEN = (5**0.5 - 1) / 2  # its multiples spread evenly over [0, 1)
_PARENT_DEATH = 1  # PR_SET_PDEATHSIG


@dataclass(frozen=True)
class Turns:
    """When a process stood still, as (begin, end) by time.perf_counter, which all processes of a
    machine share.

    partner_cpu_s: what the other process used of the processor while this one measured.
    """

    stops: Sequence[tuple[float, float]] = ()
    partner_cpu_s: float = 0.0

    def running_s(self, begin_s: float, end_s: float) -> float:
        """Seconds of this span in which the process did not stand still."""
        return (
            end_s
            - begin_s
            - sum(max(0.0, min(end_s, end) - max(begin_s, begin)) for begin, end in self.stops)
        )


def begin() -> None:
    """Say that this process is set up, and stand still until the first turn."""
    # A stopped process would outlast a parent that was killed.
    ctypes.CDLL(None).prctl(_PARENT_DEATH, signal.SIGKILL)
    print("ready", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)


def end(*, first: bool) -> Turns:
    """The turns that were taken.

    The process that ends first says so; the other waits here for the word to end.
    """
    if first:
        print("measured", flush=True)
    return Turns(**json.loads(sys.stdin.readline()))


class Child:
    """A process that measures and prints its figures as JSON on its last line; killed with its
    context.
    """

    def __init__(
        self, name: str, command: Sequence[str], env: Mapping[str, str] | None = None
    ) -> None:
        self.name, self.stops = name, list[tuple[float, float]]()
        self._stopped_s = 0.0
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=self._errors, env=env
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()  # a stopped one too
        with self._errors, self._process:
            pass

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    @property
    def cpu_s(self) -> float:
        """CPU seconds that it has used."""
        return process_stats.cpu_s(self.pid)

    def speaks(self, limit_s: float) -> bool:
        """Whether it says something within so many seconds.

        Raises ConfigError when it has ended without.
        """
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], limit_s)[0]:
            return False
        if not self._process.stdout.readline():
            raise self._failed()
        return True

    def set_up(self, limit_s: float = LIMIT_S) -> None:
        """Wait until it is ready and stands still.

        Raises ConfigError when it ends, or takes longer than the limit.
        """
        if not self.speaks(limit_s):
            raise self.late(limit_s)
        self._await_stop()

    def stop(self) -> None:
        """Make it stand still; it does when this returns."""
        os.kill(self.pid, signal.SIGSTOP)
        self._await_stop()

    def go_on(self) -> None:
        """Let it run."""
        self.stops.append((self._stopped_s, time.perf_counter()))
        os.kill(self.pid, signal.SIGCONT)

    def figures(self, turns: Turns | None = None, limit_s: float | None = None) -> dict[str, Any]:
        """What it prints at its end; `turns` is what it waits to hear first.

        Raises: ConfigError when it fails, or takes longer than the limit.
        """
        word = None if turns is None else (json.dumps(asdict(turns)) + "\n").encode()
        try:
            said, _ = self._process.communicate(word, limit_s)
        except subprocess.TimeoutExpired as error:
            raise self.late(error.timeout) from error
        if self._process.returncode:
            raise self._failed()
        return json.loads(said.strip().splitlines()[-1])

    def _await_stop(self) -> None:
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        self._stopped_s = time.perf_counter()

    def late(self, limit_s: float) -> ConfigError:
        """What to raise when it takes longer than so many seconds."""
        return ConfigError(
            f"{self.name}: not done within {limit_s:g} s",
            rule="a measurement ends",
            remedy="read a smaller dataset",
        )

    def _failed(self) -> ConfigError:
        status = self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines() or [
            f"ended with {status}"
        ]
        own = [line.removeprefix("kata: ") for line in lines if line.startswith("kata: ")]
        remedy = (
            "`kata data check` says what is wrong with a dataset, docs/data.md what it must hold"
        )
        if any("episodes=available" in line for line in lines):
            remedy = (
                "make a dataset of the episodes whose files are here: "
                "kata data split <folder> --dataset.episodes=available --out=<folder>"
            )
        # A message of kata's begins with its name, and its first line has the value.
        said = own[-1] if own else lines[-1]
        return ConfigError(f"{self.name}: {said}", rule="a measurement ends well", remedy=remedy)


def turn_s(pair: int) -> float:
    """How long each turn of a pair is: of uneven length, so that a neighbour's own rhythm does
    not fall on one side.
    """
    return TURN_S * (0.5 + pair * _GOLDEN % 1)


def take_turns(
    first: Child, other: Child, limit_s: float = LIMIT_S
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The figures of two children that are set up and stand still; the other goes on until the
    first has measured.

    Raises: ConfigError when one fails, or it takes longer than the limit. Both end with their
        contexts.
    """
    until_s, other_cpu_s = time.monotonic() + limit_s, other.cpu_s
    for number, child in enumerate(cycle((first, other))):
        child.go_on()
        if child.speaks(turn_s(number // 2)):
            break
        child.stop()
        if time.monotonic() > until_s:
            raise first.late(limit_s)
    found = first.figures(Turns(first.stops, other.cpu_s - other_cpu_s), limit_s)
    other.go_on()
    return found, other.figures(Turns(other.stops), limit_s)
