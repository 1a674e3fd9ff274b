"""Requests to stop: a signal, or the end of the given time.

The run finishes the step, saves and exits.
"""

from __future__ import annotations

import logging
import math
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

from kata.closing import Closing

STOPPED = 85
"""Exit status of a run that was asked to stop and has saved: start the same command again with
--resume=true.
"""

SIGNALS = tuple(
    number
    for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2")
    if (number := signal.__dict__.get(name)) is not None  # Windows lacks the last three
)
"""Signals that ask a run to stop.

SIGHUP comes when the terminal closes. nohup ignores it, and kata leaves it ignored.
"""

ECHO_S = 2.0
"""A signal that comes again within this time is the same one: SLURM sends it to each process of a
job step, and the launcher above passes on what it got as well.
"""

_log = logging.getLogger(__name__)


class StopSignal(Closing):
    """A request to stop after the current step. It is a context manager.

    The first signal sets it. A second signal that is no echo of the first exits at once.

    Args:
        max_time_s: seconds after entering at which it sets itself; None never.
        agree: makes one answer for all ranks out of each rank's reason.
        saves: False if the run writes no checkpoint, so that stopping loses what it has
            learned.
        unit: what is brought to its end first, in words.

    Attributes:
        before_steps: called before each step; raises what must end the run.
    """

    def __init__(
        self,
        max_time_s: float | None = None,
        agree: Callable[[str | None], str | None] = lambda reason: reason,
        *,
        saves: bool = True,
        unit: str = "step",
    ) -> None:
        self.reason: str | None = None
        self._agree = agree
        self._saves = saves
        self._unit = unit
        self.before_steps: Callable[[], None] = lambda: None
        self._max_time_s = max_time_s
        self._began_s = time.monotonic()
        self._before: dict[int, Any] = {}
        self._heard: dict[int, float] = {}

    def should_stop(self) -> bool:
        """Return True if training should stop before the next step.

        Collective: all ranks call it at the same step and get the same answer.
        """
        self.before_steps()
        self.is_set()
        agreed = self._agree(self.reason)
        self.reason = self.reason or agreed
        return agreed is not None

    def is_set(self) -> bool:
        """Return True if this rank was asked to stop."""
        limit_s = self._max_time_s
        if (
            self.reason is None
            and limit_s is not None
            and time.monotonic() - self._began_s >= limit_s
        ):
            self.reason = f"max_time of {limit_s:g} s is over"
        return self.reason is not None

    def __enter__(self) -> Self:
        self._began_s = time.monotonic()
        # Signals reach Python's main thread alone; a run started from another thread is stopped by
        # whoever runs it.
        if threading.current_thread() is threading.main_thread():
            self._before = {
                number: signal.signal(number, self._note)
                for number in SIGNALS
                if not _is_left_alone(number)
            }
        return self

    def close(self) -> None:
        """Restore the earlier handlers of the signals."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        del frame
        name, now_s = signal.Signals(number).name, time.monotonic()
        if now_s - self._heard.get(number, -math.inf) < ECHO_S:
            return
        if self._heard:
            raise KeyboardInterrupt(name)
        self._heard[number] = now_s
        self.reason = self.reason or name
        then = "saving" if self._saves else "leaving without a save (save_checkpoint=false)"
        _log.warning(
            "%s: %s after this %s; once more after %g s leaves at once",
            name,
            then,
            self._unit,
            ECHO_S,
        )


def _is_left_alone(number: int) -> bool:
    """Return True for the SIGHUP of a process that was started under nohup."""
    is_hangup = number == signal.__dict__.get("SIGHUP")
    return is_hangup and signal.getsignal(number) == signal.SIG_IGN
