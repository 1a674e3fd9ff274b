"""Writing files so that an interruption or a power cut leaves a whole file or none."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of a disk that takes no more: they cost what was to be written, not the run."""


def fsync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk, so that a power cut cannot
    undo them.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_json(path: Path, value: Any, *, indent: int = 4, allow_nan: bool = True) -> None:
    """Write JSON as LeRobot formats it. The file appears whole or not at all.

    Raises: ValueError for NaN or infinity with `allow_nan=False`; OSError where the folder cannot
        be written to.
    """
    partial = path.with_name(path.name + ".partial")
    text = json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=allow_nan)
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)
