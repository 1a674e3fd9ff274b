"""A Store whose files are objects on the network: requests with retries, errors as messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import TypeVar

from kata.data.remote.objects import Objects
from kata.data.remote.packed_file import PackedFile
from kata.data.remote.refusals import ABSENT, RefusedError, refusal
from kata.data.remote.retry import Retry, RetryLimits
from kata.data.storage.file_stamp import Stamp, replaced

T = TypeVar("T")

_AT_ONCE = 32
"""Requests for stamps in flight, for stores without listings."""


class RemoteStore:
    """The files of a dataset in a store on the network.

    A file keeps the stamp that it had when the run first saw it; a read that finds another content
    ends with a message.

    Args:
        objects: the store.
        limits: of retries.

    Attributes:
        packed: the packet indexes that are stored beside the dataset, once its metadata is here.
    """

    def __init__(self, objects: Objects, limits: RetryLimits | None = None) -> None:
        self.objects = objects
        self._retry = Retry(limits)
        self._lock = Lock()
        self._stamps: dict[str, Stamp | None] = {}
        self._is_listed: bool | None = None
        self.packed: PackedFile | None = None

    @property
    def url(self) -> str:
        """Return the address of the store, without credentials."""
        return self.objects.url

    @property
    def retries(self) -> int:
        """Return the number of requests that were repeated."""
        return self._retry.retries

    def path(self, name: str) -> Path | None:
        """Return None: no file is on this machine."""
        del name

    def location(self, name: str) -> str:
        """Return the address of a file, without credentials."""
        return self.objects.location(name)

    def listing(self) -> dict[str, Stamp] | None:
        """Return the stamps of all files, or None if the store has no listings.

        Raises:
            DataError: The store does not answer, or refuses to.
        """
        if self._is_listed is None:
            found = self._send("", lambda: self.objects.find(""))
            with self._lock:
                self._is_listed = found is not None
                self._stamps.update(found or {})
        if not self._is_listed:
            return None
        return {name: stamp for name, stamp in self._stamps.items() if stamp is not None}

    def stamps(self, names: Iterable[str]) -> dict[str, Stamp]:
        """Return the stamps of the files that exist; see `Store.stamps`."""
        wanted = list(names)
        if self.listing() is None:
            unknown = [name for name in wanted if name not in self._stamps]
            self._look_at(unknown)
        found: dict[str, Stamp] = {}
        for name in wanted:
            stamp = self._stamps.get(name)
            if stamp is not None:
                found[name] = stamp
        return found

    def packed_index(self, name: str, stamp: Stamp) -> bytes | None:
        """Return the packet index of a video that is stored beside the dataset, or None."""
        return None if self.packed is None else self.packed.block(name, stamp, self.url)

    def read_into(self, name: str, begin: int, pieces: Sequence[memoryview], stamp: Stamp) -> None:
        """Fill buffers with a range of a file; see `Store.read_into`."""
        size = sum(map(len, pieces))
        if begin + size > stamp.size:
            raise replaced(self.location(name), "is shorter")
        if not size:
            return
        data = memoryview(self._send(name, lambda: self.objects.read(name, begin, size, stamp)))
        place = 0
        for piece in pieces:
            piece[:] = data[place : place + len(piece)]
            place += len(piece)

    def write(self, name: str, data: bytes) -> None:
        """Create or replace a file.

        Raises:
            DataError: The store does not answer, or refuses to.
        """
        self._send(name, lambda: self.objects.write(name, data))

    def close(self) -> None:
        """End all waits for the store."""
        self._retry.close()

    def _look_at(self, names: list[str]) -> None:
        """Ask for the stamps of files one by one, several at a time."""
        if not names:
            return
        with ThreadPoolExecutor(min(_AT_ONCE, len(names)), "kata-stamps") as pool:
            found = dict(zip(names, pool.map(self._look, names), strict=True))
        with self._lock:
            self._stamps.update(found)

    def _look(self, name: str) -> Stamp | None:
        try:
            return self._retry.run(self.location(name), lambda: self.objects.look(name))
        except RefusedError as error:
            # Stores that hide what they have answer 403 for a file that does not exist.
            if error.status in (*ABSENT, 403):
                return None
            raise refusal(self.location(name), error, self.objects.login) from error

    def _send(self, name: str, request: Callable[[], T]) -> T:
        location = self.location(name)
        try:
            return self._retry.run(location, request)
        except RefusedError as error:
            raise refusal(location, error, self.objects.login) from error
