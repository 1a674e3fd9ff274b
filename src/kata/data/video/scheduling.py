"""Operating-system scheduling of the threads that video encoders start."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def kept_scheduling() -> Generator[None]:
    """Keep the caller, and the threads started inside, in the caller's scheduling class.

    SVT-AV1, when root opens it on Linux, moves its threads and the caller to the real-time class
    SCHED_FIFO with the highest priority. They would stay there after the encoder is closed, and
    all other processes of the machine would wait for them.
    """
    if sys.platform != "linux":
        yield
        return
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    earlier = _threads()
    try:
        yield
    finally:
        for thread in {0, *(_threads() - earlier)}:
            try:
                if os.sched_getscheduler(thread) != policy:
                    os.sched_setscheduler(thread, policy, parameters)
            except ProcessLookupError:  # it has ended
                continue


def _threads() -> set[int]:
    """Return the kernel's numbers of this process's threads."""
    return {int(name) for name in os.listdir("/proc/self/task")}
