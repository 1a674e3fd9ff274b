"""Writing that waits for room where the disk is full, so that nothing is lost. Torch-free."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from kata.errors import CheckpointError
from kata.files import FULL

SAID_S = 10.0
"""Time between messages that there is no room."""

PAUSE_S = 0.5

Written = TypeVar("Written")

_log = logging.getLogger(__name__)


def write_when_room(
    write: Callable[[], Written],
    what: str,
    should_stop: Callable[[], bool],
    wait: Callable[[float], object] = time.sleep,
) -> Written:
    """Return what a write returns, once the disk has room for it.

    Args:
        write: leaves nothing behind where the disk refuses.
        what: is written, for messages.
        should_stop: ends the wait.
        wait: is called with seconds between two attempts.

    Raises:
        CheckpointError: somebody asks to stop, and there is no room yet.
        OSError: the disk refuses for another reason.
    """
    said_s = -SAID_S
    while True:
        try:
            return write()
        except OSError as error:
            if error.errno not in FULL:
                raise
            if should_stop():
                raise CheckpointError(
                    f"{what}: not written, the disk is full ({error.strerror})",
                    rule="what is kept has room on the disk",
                    remedy="make room, then start the same command again (`kata rl train` and "
                    "`kata rl learn` with --resume=true); what was written before is whole",
                ) from error
            now_s = time.monotonic()
            if now_s - said_s >= SAID_S:
                said_s = now_s
                _log.warning("%s: the disk is full (%s); waits for room", what, error.strerror)
        wait(PAUSE_S)
