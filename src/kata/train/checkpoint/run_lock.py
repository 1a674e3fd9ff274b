"""The lock of a run folder. A second process is refused; the lock of a dead one is taken over.

Torch-free. The lock is the kernel's (flock) on `<run>/.lock`, so it ends with its process. The file
names the holder. Some file systems have no flock. There a process of this machine is looked up by
number and start time. A holder on another machine renews the file's time every BEAT_S, and counts
as alive while that time is recent.
"""

from __future__ import annotations

import datetime
import json
import os
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any, Self

from kata.closing import Closing
from kata.errors import CheckpointError
from kata.run.outputs import LOCK

BEAT_S = 30.0
SILENT_S = 4 * BEAT_S
"""A holder on another machine counts as dead after this long without a sign."""


class FolderLock(Closing):
    """A lock that holds an existing folder from `with` on.

    Attributes:
        path: The lock file.
        note: A sentence about the dead process whose lock was taken over, or None.

    Raises:
        CheckpointError: Another process holds the folder; the message names it.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOCK
        self.note: str | None = None
        self._handle = -1
        self._over = threading.Event()

    def __enter__(self) -> Self:
        # 1. The kernel decides; the file counts only where the kernel does not say.
        kernel = self._open()
        holder = _read(self.path)
        if kernel is False or (kernel is None and holder is not None and self._alive(holder)):
            os.close(self._handle)
            raise _refused(self.path.parent, holder or {})
        # 2. A holder that is still named here died without removing the file.
        if holder is not None:
            self.note = f"took over the lock of {_named(holder)}, which is gone"
        # 3. Written in place: a new file would have no lock of the kernel.
        os.ftruncate(self._handle, 0)
        os.pwrite(self._handle, json.dumps(_self()).encode(), 0)
        if kernel is None:
            threading.Thread(target=self._beat, name="kata-lock", daemon=True).start()
        return self

    def close(self) -> None:
        """Release the folder."""
        self._over.set()
        self.path.unlink(missing_ok=True)
        os.close(self._handle)

    def _open(self) -> bool | None:
        """Open the file and lock it: True if it is ours, False if another's, None if unknown."""
        while True:
            self._handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
            answer = _flock(self._handle)
            # Its last holder may have removed the file between our opening and our locking it.
            if answer is False or (
                self.path.exists() and os.path.samestat(os.fstat(self._handle), self.path.stat())
            ):
                return answer
            os.close(self._handle)

    def _alive(self, holder: dict[str, Any]) -> bool:
        # On this machine the process table decides at once; of another one only the file's time
        # is known, and a dead holder there blocks the folder for SILENT_S.
        mine = _self()
        if (holder.get("host"), holder.get("boot")) == (mine["host"], mine["boot"]) and mine[
            "process_start"
        ]:
            return _process_start(int(holder["pid"])) == holder.get("process_start")
        return time.time() - os.fstat(self._handle).st_mtime < SILENT_S

    def _beat(self) -> None:
        while not self._over.wait(BEAT_S):
            os.utime(self._handle)


def _flock(handle: int) -> bool | None:
    if sys.platform == "win32":
        return None
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # ENOLCK, ENOSYS, EOPNOTSUPP: a network file system without locks
        return None
    return True


def _self() -> dict[str, Any]:
    """Return this process as the lock file describes a holder."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "started": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "process_start": _process_start(os.getpid()),
        "boot": boot.read_text().strip() if boot.is_file() else "",
    }


def _process_start(pid: int) -> int | None:
    """Return the start of a process of this machine in ticks since boot, or None.

    Numbers are reused; number and start together name one process only.
    """
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


def _read(path: Path) -> dict[str, Any] | None:
    """Return the holder that the file names, or None for a new file."""
    text = path.read_bytes()
    if not text:
        return None
    try:
        holder = json.loads(text)
    except ValueError:
        return {}
    return holder if isinstance(holder, dict) else {}


def _named(holder: dict[str, Any]) -> str:
    names = (holder.get(name, "?") for name in ("pid", "host", "started"))
    return "process {} on {} (since {})".format(*names)


def _refused(folder: Path, holder: dict[str, Any]) -> CheckpointError:
    return CheckpointError(
        f"{folder}: in use by {_named(holder)}",
        rule="one process at a time works in a run folder",
        remedy="wait for it or end it, or give another --output_dir; if it is surely gone, delete "
        f"{folder / LOCK} and start again",
    )
