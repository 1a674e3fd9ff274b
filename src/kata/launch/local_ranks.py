"""Processes of this machine's ranks: started, shown, signaled and ended together.

Each rank leads a separate session. A Ctrl-C in the terminal therefore reaches it once, through the
launcher. Processes that it started, such as an evaluation beside the training, end with it.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Self

from kata.closing import Closing
from kata.launch import orphan_reaper

STOPPED = 85
"""A rank's exit status that means: asked to stop, and saved. See `kata.train.stopping`."""

INTERRUPTED = 130
"""The exit status of a rank that was signaled twice, and so did not save."""

GRACE_S = 10.0
"""Time for the other ranks to leave by themselves after one has failed."""

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
PATIENCE = 2
"""Number of signals that are passed on; the next one kills."""

SHOWN_LINES = 40


def run_local_ranks(
    command: Sequence[str],
    envs: Sequence[Mapping[str, str]],
    log_dir: Path,
    stop_after_s: float | None = None,
) -> int:
    """Run `command` once per entry of `envs`, its environment.

    Rank 0's output is shown, and the others' goes to log files. When a rank fails, the others are
    ended, and its last output is shown. No process that the ranks started in their process groups
    outlives them.

    Args:
        command: The program and its arguments.
        envs: The environment of each rank.
        log_dir: The folder of the log files.
        stop_after_s: Seconds after which all get SIGUSR1, which asks a run to save and leave.

    Returns:
        0 when all ranks return 0; the failed rank's exit status, or 128 + n where signal n ended
        it; otherwise 85 where a rank left with that status.
    """
    log_dir.mkdir(parents=True, exist_ok=True)
    with _Ranks(log_dir) as ranks:
        for rank, env in enumerate(envs):
            ranks.start(rank, command, env)
        return ranks.wait(stop_after_s)


def log_of(log_dir: Path, rank: int) -> Path:
    """Return the file of a rank's output; rank 0 writes to the terminal."""
    return log_dir / f"rank{rank}.log"


@dataclass
class _Ranks(Closing):
    log_dir: Path
    running: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    ended: queue.SimpleQueue[tuple[int, int]] = field(default_factory=queue.SimpleQueue)
    signals: list[int] = field(default_factory=list)
    kill_at_s: float = float("inf")
    _keeper: subprocess.Popen[str] | None = None
    _before: dict[int, Any] = field(default_factory=dict)

    def __enter__(self) -> Self:
        # Before the first rank: a signal between two starts must not leave one behind.
        # Under nohup SIGHUP is ignored, by the ranks too, and stays so.
        self._before = {
            number: signal.signal(number, self._pass_on)
            for number in FORWARDED
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN
        }
        script = [sys.executable, "-I", "-S", str(orphan_reaper.__file__)]
        self._keeper = subprocess.Popen(
            script, stdin=subprocess.PIPE, text=True, start_new_session=True
        )
        return self

    def close(self) -> None:
        """End every rank."""
        self.kill()
        for process in self.running.values():
            process.wait()
        self._tell("done\n")
        assert self._keeper is not None
        self._keeper.wait()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def start(self, rank: int, command: Sequence[str], env: Mapping[str, str]) -> None:
        # 1. The rank keeps its copy of the log's handle, so that this one can be closed at once.
        with contextlib.ExitStack() as files:
            output = (
                None if rank == 0 else files.enter_context(log_of(self.log_dir, rank).open("wb"))
            )
            process = subprocess.Popen(
                command,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=None if output is None else subprocess.STDOUT,
                start_new_session=True,
            )
        # 2. From here on signals reach it, and the reaper ends it if this process is killed.
        self.running[rank] = process
        self._tell(f"{process.pid}\n")
        for number in self.signals:  # one that came before this rank is meant for it too
            process.send_signal(number)
        # 3. A thread per rank waits for its end: `wait` reads all ends from one queue.
        threading.Thread(target=lambda: self.ended.put((rank, process.wait())), daemon=True).start()

    def wait(self, stop_after_s: float | None) -> int:
        """Wait for all ranks, end them when one fails, and return the exit status of all."""
        stop_at_s = float("inf") if stop_after_s is None else time.monotonic() + stop_after_s
        failed: tuple[int, int] | None = None
        stopped = False
        while self.running:
            # 1. The two deadlines: to ask once for a save, and to kill, again every second.
            now_s = time.monotonic()
            if now_s >= stop_at_s:
                print(
                    f"kata: {stop_after_s:g} s are over: asking the ranks to save and leave",
                    file=sys.stderr,
                )
                self.send(signal.SIGUSR1)
                stop_at_s = float("inf")
            if now_s >= self.kill_at_s:
                self.kill()
                self.kill_at_s = now_s + 1.0
            # 2. The next end. At most a second passes without a look at the deadlines.
            try:
                rank, status = self.ended.get(
                    timeout=max(0.0, min(1.0, stop_at_s - now_s, self.kill_at_s - now_s))
                )
            except queue.Empty:
                continue
            # 3. Its children go with it. Only the first failure is reported: others follow from it.
            _kill_group(self.running.pop(rank).pid)
            stopped = stopped or status == STOPPED
            if status not in (0, STOPPED) and failed is None:
                failed = rank, status
                if self.running:
                    self.send(signal.SIGTERM)
                    self.kill_at_s = time.monotonic() + GRACE_S
        # 4. A rank that the user's signal ended has not failed, and its output tells nothing.
        if failed is None:
            return STOPPED if stopped else 0
        if self.signals and failed[1] in (INTERRUPTED, *(-number for number in self.signals)):
            print(f"kata: ended by {signal.Signals(self.signals[-1]).name}", file=sys.stderr)
        else:
            self._show(*failed)
        return failed[1] if failed[1] > 0 else 128 - failed[1]

    def send(self, number: int) -> None:
        """Send a signal to the ranks alone, which end the processes that they started."""
        for process in list(self.running.values()):
            process.send_signal(number)

    def kill(self) -> None:
        for process in list(self.running.values()):
            _kill_group(process.pid)

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        del frame
        self.signals.append(number)
        if len(self.signals) > PATIENCE:
            self.kill()
        else:
            self.send(number)

    def _tell(self, line: str) -> None:
        assert self._keeper is not None
        assert self._keeper.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the keeper was killed; the ranks run on
            self._keeper.stdin.write(line)
            self._keeper.stdin.flush()

    def _show(self, rank: int, status: int) -> None:
        """Print the reason why the run ended, below all other output."""
        how = (
            f"left with exit status {status}"
            if status > 0
            else f"was ended by {signal.Signals(-status).name}"
        )
        if status == -signal.SIGKILL:
            how += " (often the kernel, out of memory: `dmesg` says so)"
        print(f"kata: rank {rank} {how}; all others were ended.", file=sys.stderr)
        if rank == 0:
            print("kata: its output stands above.", file=sys.stderr)
            return
        log = log_of(self.log_dir, rank)
        print(f"kata: the end of {log}:\n{tail(log)}", file=sys.stderr)


def tail(log: Path) -> str:
    """Return the last lines of a log, from its last traceback on where there is one."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    tracebacks = [
        n
        for n, line in enumerate(lines)
        if line.startswith(("Traceback (most recent", "Fatal Python error"))
    ]
    start = max(0, len(lines) - SHOWN_LINES)
    return "\n".join(lines[min(start, tracebacks[-1]) if tracebacks else start :])


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
