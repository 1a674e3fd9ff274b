"""Files of named arrays in the cache folder, written atomically and memory-mapped by every reader.

The arrays come first, then a JSON header, then a tail that holds the size of the header. A file
whose writing was cut short has no tail, so it is never mistaken for a complete one. It also gets
its name only after all bytes are on the disk.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import struct
import sys
import zlib
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import get_ident
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from kata.files import fsync

_log = logging.getLogger(__name__)

_TAIL = struct.Struct("<QII8s")  # bytes of the header, its CRC-32, CRC-32 of the arrays, magic
_MAGIC = b"kata-b01"
_ALIGN = 64
_CHECK_BYTES = 64 * 1024**2
"""Arrays up to this size are compared with their checksum when they are opened. For larger ones
only the header is compared: a check would read pages that nobody may ever touch.
"""

_READ_BYTES = 64 * 1024
"""Files up to this size are read instead of mapped: Linux allows 65,530 maps per process, and a
dataset can have more files.
"""

Shapes: TypeAlias = Mapping[str, tuple[DTypeLike, tuple[int, ...]]]
Put: TypeAlias = Callable[[str, int, NDArray[Any]], None]
"""put(name, first row, values) sets rows of one array."""
Note: TypeAlias = dict[str, Any]
Fill: TypeAlias = Callable[[Put], Note]
"""fill(put) sets every row of every array, and returns JSON values to store with them."""


@dataclass(frozen=True, eq=False)
class ArrayFile:
    """Read-only arrays by name, and the JSON values stored with them."""

    arrays: dict[str, NDArray[Any]]
    note: Note


def cache_folder() -> Path:
    """Return $KATA_CACHE, or the folder 'kata' in the platform's folder for caches."""
    if given := os.environ.get("KATA_CACHE"):
        return Path(given).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "kata"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").expanduser() / "kata"


def load(path: Path) -> ArrayFile | None:
    """Return the array file at `path`, or None if there is none.

    A damaged or unreadable file is logged, and counts as none.
    """
    try:
        whole = (
            path.read_bytes()
            if path.stat().st_size <= _READ_BYTES
            else np.memmap(path, np.uint8, "r")
        )
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        _log.warning("%s cannot be read (%s); it is made again", path, error)
        return None
    stored = _parse(np.frombuffer(whole, np.uint8) if isinstance(whole, bytes) else whole)
    if stored is None:
        _log.warning("%s is damaged; it is made again", path)
    return stored


def _parse(raw: NDArray[np.uint8]) -> ArrayFile | None:
    """Return the arrays in the bytes of a file, or None if the bytes are not a complete file."""
    end = len(raw) - _TAIL.size
    if end < 0:
        return None
    header_bytes, header_check, check, magic = _TAIL.unpack(raw[end:].tobytes())
    if magic != _MAGIC or header_bytes > end:
        return None
    text, data = raw[end - header_bytes : end].tobytes(), raw[: end - header_bytes]
    # The header is always checked; the arrays only if that is cheap (see _CHECK_BYTES).
    if zlib.crc32(text) != header_check or (
        len(data) <= _CHECK_BYTES and zlib.crc32(data.data) != check
    ):
        return None
    header = json.loads(text)
    arrays: dict[str, NDArray[Any]] = {}
    for name, (kind, shape, offset) in header["arrays"].items():
        dtype = np.dtype(kind)
        size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        # A view, not a copy: of a mapped file only the pages that are used are ever read.
        array = np.asarray(data[offset : offset + size]).view(dtype).reshape(shape)
        array.flags.writeable = False
        arrays[name] = array
    return ArrayFile(arrays, header["note"])


def save(path: Path, shapes: Shapes, fill: Fill) -> None:
    """Write an array file under a temporary name, sync it to the disk, then rename it.

    Args:
        path: of the file; missing folders are created.
        shapes: dtype and shape of each array.
        fill: sets the rows, and returns the JSON values to store.

    Raises:
        OSError: The folder cannot be written or the disk is full. Nothing is left behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    offsets, end = _offsets(shapes)
    beside = path.with_name(f"{path.name}.{os.getpid()}-{get_ident()}.part")
    with beside.open("w+b") as file:
        try:
            note = fill(
                lambda name, first, values: _write(file, shapes[name], offsets[name], first, values)
            )
            # Rows that `fill` did not reach, and the gaps of the alignment, become zeros.
            file.truncate(end)
            arrays = {
                name: [np.dtype(kind).str, shape, offsets[name]]
                for name, (kind, shape) in shapes.items()
            }
            text = json.dumps({"arrays": arrays, "note": note}).encode()
            file.seek(0)
            check = zlib.crc32(file.read(end)) if end <= _CHECK_BYTES else 0
            file.seek(end)
            file.write(text + _TAIL.pack(len(text), zlib.crc32(text), check, _MAGIC))
            file.flush()
            os.fsync(file.fileno())
            os.replace(beside, path)
        except BaseException:
            beside.unlink()
            raise
    # Without this the rename itself could be lost in a power failure.
    fsync(path.parent)


def in_memory(shapes: Shapes, fill: Fill) -> ArrayFile:
    """Return the same arrays without writing a file."""
    arrays = {name: np.empty(shape, kind) for name, (kind, shape) in shapes.items()}

    def put(name: str, first: int, values: NDArray[Any]) -> None:
        arrays[name][first : first + len(values)] = values

    return ArrayFile(arrays, fill(put))


def load_or_make(path: Path, shapes: Shapes, fill: Fill) -> ArrayFile:
    """Return the array file at `path`, and create it first if there is none.

    If the folder cannot be written, the arrays stay in memory and a warning is logged once.
    """
    found = load(path)
    if found is None:
        try:
            save(path, shapes, fill)
        except OSError as error:
            say_unwritable(error)
            return in_memory(shapes, fill)
        found = load(path)
    return in_memory(shapes, fill) if found is None else found


@contextmanager
def alone(path: Path) -> Generator[None]:
    """Hold a lock that only one process at a time can have.

    If the folder cannot be written there is no lock: several processes may then do the same work.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o666)
    except OSError:
        yield
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


_said: set[Path] = set()


def say_unwritable(error: OSError) -> None:
    """Log one warning per cache folder that cannot be written."""
    folder = cache_folder()
    if folder not in _said:
        _said.add(folder)
        _log.warning(
            "nothing can be kept in %s (%s): what is indexed is held in memory and made again by "
            "the next run; "
            "set KATA_CACHE to a folder that can be written",
            folder,
            error,
        )


def _offsets(shapes: Shapes) -> tuple[dict[str, int], int]:
    offsets: dict[str, int] = {}
    end = 0
    for name, (kind, shape) in shapes.items():
        offsets[name] = end
        size = np.dtype(kind).itemsize * int(np.prod(shape, dtype=np.int64))
        end = -(-(end + size) // _ALIGN) * _ALIGN
    return offsets, end


def _write(
    file: Any,
    spec: tuple[DTypeLike, tuple[int, ...]],
    offset: int,
    first: int,
    values: NDArray[Any],
) -> None:
    dtype, shape = np.dtype(spec[0]), spec[1]
    file.seek(offset + first * dtype.itemsize * int(np.prod(shape[1:], dtype=np.int64)))
    file.write(np.ascontiguousarray(values, dtype).data.cast("B") if values.size else b"")
