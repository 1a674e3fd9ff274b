"""A file that a run appends to. A full disk does not end the run."""

from __future__ import annotations

import errno
import logging
from io import RawIOBase
from pathlib import Path

from kata.files import FULL

_log = logging.getLogger(__name__)


class AppendLog:
    """A file that bytes are appended to. Bytes that a full disk refuses are kept and written later.

    The file is created with the first bytes.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: RawIOBase | None = None
        self._unwritten = b""

    def add(self, raw: bytes) -> None:
        """Write these bytes after those left from before.

        Raises:
            OSError: the write failed, and neither a full disk nor a moved folder is the cause.
        """
        said = bool(self._unwritten)
        self._unwritten += raw
        try:
            while self._unwritten:
                if self._file is None:
                    self._file = self.path.open("ab", buffering=0)
                self._unwritten = self._unwritten[self._file.write(self._unwritten) :]
        except OSError as error:
            if error.errno not in (*FULL, errno.ENOENT):  # the latter: the folder was moved away
                raise
            if not said:
                _log.warning(
                    "%s: %s; what it lacks is kept in memory until there is space",
                    self.path,
                    error.strerror,
                )

    def close(self) -> None:
        """Try once more to write, and close the file."""
        self.add(b"")
        if self._file is not None:
            self._file.close()
