"""The files of a dataset by name, wherever their bytes are: on a disk, or in a store far away."""

from __future__ import annotations

import io
import os
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG
from threading import Lock
from typing import Any, BinaryIO, Protocol

from kata.data.storage.file_stamp import Stamp, replaced

_OPEN_FILES = 64
"""Files that a local store keeps open, for all threads. To open and close a file for each GOP of
two frames took 1 % of reading.
"""

_BLOCK_BYTES = 256 * 1024
"""Bytes that a reader of a far file asks for at a time: a request costs as much as these take."""


class Store(Protocol):
    """The files of one dataset, by name relative to its root. Any thread may call any method."""

    def path(self, name: str) -> Path | None:
        """Return the path of a file on this machine, or None if its bytes are elsewhere."""
        ...

    def location(self, name: str) -> str:
        """Return what messages call a file: its path, or its URL without credentials."""
        ...

    def stamps(self, names: Iterable[str]) -> dict[str, Stamp]:
        """Return the stamps of the files that exist.

        Raises:
            DataError: The store does not answer, or refuses to.
        """
        ...

    def packed_index(self, name: str, stamp: Stamp) -> bytes | None:
        """Return the packet index of a video that is stored beside the dataset, or None."""
        ...

    def read_into(self, name: str, begin: int, pieces: Sequence[memoryview], stamp: Stamp) -> None:
        """Fill buffers one after the other with the bytes of a file from `begin` on.

        Args:
            name: of the file.
            begin: position of the first byte.
            pieces: writable buffers.
            stamp: of the file when it was opened.

        Raises:
            DataError: The file is absent, has another stamp or ends too early, or the store does
                not answer.
        """
        ...


@dataclass(frozen=True)
class StoredFile:
    """One file of a store. `str` gives its location.

    Attributes:
        store: that has the file.
        name: relative to the root of the store.
    """

    store: Store
    name: str

    def __str__(self) -> str:
        return self.store.location(self.name)

    @property
    def path(self) -> Path | None:
        """Return the path on this machine, or None."""
        return self.store.path(self.name)

    def stamp(self) -> Stamp:
        """Return the file's stamp.

        Raises:
            FileNotFoundError: There is no such file.
            DataError: See `Store.stamps`.
        """
        found = self.store.stamps([self.name]).get(self.name)
        if found is None:
            raise FileNotFoundError(f"{self} does not exist")
        return found

    def read_into(self, begin: int, pieces: Sequence[memoryview], stamp: Stamp) -> None:
        """Fill buffers with the bytes from `begin` on; see `Store.read_into`."""
        self.store.read_into(self.name, begin, pieces, stamp)

    def read(self, begin: int, size: int, stamp: Stamp) -> bytearray:
        """Return `size` bytes from `begin` on; see `Store.read_into`."""
        found = bytearray(size)
        self.store.read_into(self.name, begin, [memoryview(found)], stamp)
        return found

    def open(self) -> BinaryIO:
        """Open the file for reading; far bytes come in blocks, of which the last few are kept.

        Raises:
            FileNotFoundError: There is no such file.
            DataError: See `Store.stamps`. Reading raises the errors of `Store.read_into`.
        """
        if self.path is not None:
            return self.path.open("rb")
        return io.BufferedReader(_BlockReader(self))


def is_far(store: Store) -> bool:
    """Return True if a store's files are not on this machine."""
    return store.path("") is None


def local_file(path: Path) -> StoredFile:
    """Return a file on this machine as one of a store."""
    return StoredFile(LocalStore(path.parent), path.name)


class LocalStore:
    """The files below a folder. Descriptors stay open, and are shared by all threads.

    Args:
        root: the folder.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._lock = Lock()
        self._files: OrderedDict[str, _Descriptor] = OrderedDict()

    def path(self, name: str) -> Path:
        """Return the path of a file."""
        return self._root / name

    def location(self, name: str) -> str:
        """Return the path of a file, for messages."""
        return str(self._root / name)

    def stamps(self, names: Iterable[str]) -> dict[str, Stamp]:
        """Return the stamps of the files that exist."""
        found: dict[str, Stamp] = {}
        for name in names:
            try:
                about = os.stat(os.path.join(self._root, name))
            except (FileNotFoundError, NotADirectoryError):
                continue
            if S_ISREG(about.st_mode):
                found[name] = Stamp.of(about)
        return found

    def packed_index(self, name: str, stamp: Stamp) -> bytes | None:
        """Return None: to index a file of a disk takes a few milliseconds."""
        del name, stamp

    def read_into(self, name: str, begin: int, pieces: Sequence[memoryview], stamp: Stamp) -> None:
        """Fill buffers in one system call; see `Store.read_into`."""
        # The local keeps the descriptor open if another thread drops it meanwhile.
        file = self._open(name, stamp)
        if os.preadv(file.number, pieces, begin) < sum(map(len, pieces)):
            raise replaced(self.location(name), "is shorter")

    def _open(self, name: str, stamp: Stamp) -> _Descriptor:
        """Return the open file, once it is clear that it is still the one with this stamp."""
        with self._lock:
            file = self._files.get(name)
            if file is not None:
                self._files.move_to_end(name)
        place = os.path.join(self._root, name)
        try:
            if file is not None:
                found = Stamp.of(os.stat(place))
            else:
                file = _Descriptor(place)
                found = Stamp.of(os.fstat(file.number))
        except OSError as error:
            self._drop(name)
            raise replaced(place, f"cannot be opened ({error.strerror})") from error
        if found != stamp:
            self._drop(name)
            raise replaced(place, "is another file, or has other content")
        # Kept only after the check: a file that replaced the first one must not stay open, or it
        # would be used again once the first one is back in place.
        with self._lock:
            self._files.setdefault(name, file)
            if len(self._files) > _OPEN_FILES:
                self._files.popitem(last=False)
        return file

    def _drop(self, name: str) -> None:
        with self._lock:
            self._files.pop(name, None)


class _Descriptor:
    """A file descriptor `number` that is closed with this object."""

    def __init__(self, path: str) -> None:
        self.number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self.number)


class _BlockReader(io.RawIOBase):
    """A raw reader of a far file. Formats jump between a file's ends, so blocks are kept."""

    def __init__(self, file: StoredFile) -> None:
        self._file, self._stamp = file, file.stamp()
        self._at = 0
        self._blocks: OrderedDict[int, bytearray] = OrderedDict()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._stamp.size}[whence]
        self._at = max(start + offset, 0)
        return self._at

    def readinto(self, buffer: Any) -> int:
        out = memoryview(buffer).cast("B")
        size = max(min(len(out), self._stamp.size - self._at), 0)
        if size > _BLOCK_BYTES:
            self._file.read_into(self._at, [out[:size]], self._stamp)
        elif size:
            number, skip = divmod(self._at, _BLOCK_BYTES)
            block = self._block(number)
            size = min(size, len(block) - skip)
            out[:size] = block[skip : skip + size]
        self._at += size
        return size

    def _block(self, number: int) -> bytearray:
        block = self._blocks.pop(number, None)
        if block is None:
            begin = number * _BLOCK_BYTES
            size = min(_BLOCK_BYTES, self._stamp.size - begin)
            block = self._file.read(begin, size, self._stamp)
        self._blocks[number] = block
        if len(self._blocks) > 4:
            self._blocks.popitem(last=False)
        return block
