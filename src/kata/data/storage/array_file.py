"""Named arrays in one file of the cache folder: written once, whole or not at all, and
memory-mapped by everyone.

The arrays come first, then a JSON header, then a tail that says where the header lies. A file whose
writing was cut short has no tail, so it is never taken for a whole one; it also never gets its name
before all bytes are on the disk.
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
"""Arrays up to this size are compared with their check sum when they are opened; of larger ones
only the header is, because a check would read what is otherwise mapped and never touched.
"""

_READ_BYTES = 64 * 1024
"""Files up to this size are read, not mapped: a process may hold 65,530 maps, a dataset more
files.
"""

Shapes: TypeAlias = Mapping[str, tuple[DTypeLike, tuple[int, ...]]]
Put: TypeAlias = Callable[[str, int, NDArray[Any]], None]
"""put(name, first row, values) sets rows of one array."""
Note: TypeAlias = dict[str, Any]
Fill: TypeAlias = Callable[[Put], Note]
"""Sets every row of every array; returns JSON values that are kept with them."""


@dataclass(frozen=True, eq=False)
class ArrayFile:
    """Read-only arrays by name, and the JSON values kept with them."""

    arrays: dict[str, NDArray[Any]]
    note: Note


def cache_folder() -> Path:
    """$KATA_CACHE, else 'kata' in the platform's folder for what can be made again."""
    if given := os.environ.get("KATA_CACHE"):
        return Path(given).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "kata"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").expanduser() / "kata"


def load(path: Path) -> ArrayFile | None:
    """Return the array file at `path`, or None where there is none; log a damaged one and return
    None.
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
    end = len(raw) - _TAIL.size
    if end < 0:
        return None
    header_bytes, header_check, check, magic = _TAIL.unpack(raw[end:].tobytes())
    if magic != _MAGIC or header_bytes > end:
        return None
    text, data = raw[end - header_bytes : end].tobytes(), raw[: end - header_bytes]
    if zlib.crc32(text) != header_check or (
        len(data) <= _CHECK_BYTES and zlib.crc32(data.data) != check
    ):
        return None
    header = json.loads(text)
    arrays: dict[str, NDArray[Any]] = {}
    for name, (kind, shape, offset) in header["arrays"].items():
        dtype = np.dtype(kind)
        size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        array = np.asarray(data[offset : offset + size]).view(dtype).reshape(shape)
        array.flags.writeable = False
        arrays[name] = array
    return ArrayFile(arrays, header["note"])


def save(path: Path, shapes: Shapes, fill: Fill) -> None:
    """Write an array file to a temporary name, sync it to the disk, then rename it.

    Raises: OSError when the folder cannot be written or the disk is full; then nothing is left
        behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    offsets, end = _offsets(shapes)
    beside = path.with_name(f"{path.name}.{os.getpid()}-{get_ident()}.part")
    with beside.open("w+b") as file:
        try:
            note = fill(
                lambda name, first, values: _write(file, shapes[name], offsets[name], first, values)
            )
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
    fsync(path.parent)


def in_memory(shapes: Shapes, fill: Fill) -> ArrayFile:
    """Return the same arrays without a file."""
    arrays = {name: np.empty(shape, kind) for name, (kind, shape) in shapes.items()}

    def put(name: str, first: int, values: NDArray[Any]) -> None:
        arrays[name][first : first + len(values)] = values

    return ArrayFile(arrays, fill(put))


def load_or_make(path: Path, shapes: Shapes, fill: Fill) -> ArrayFile:
    """Return the array file at `path`, made first where there is none. Where the folder cannot be
    written it stays in memory, which is said once.
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
    """Wait until no other process does the same; without a lock where the folder cannot be
    written.
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
    """One warning per cache folder."""
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
