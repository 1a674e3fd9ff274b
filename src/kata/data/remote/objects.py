"""The protocol of stores on the network, below retries and messages."""

from __future__ import annotations

from typing import Protocol

from kata.data.storage.file_stamp import Stamp


class Objects(Protocol):
    """The objects below one address. Any thread may call any method.

    All methods raise TransientError where another attempt may succeed, RefusedError where it would
    not, and DataError for the rest.

    Attributes:
        url: the address, without credentials and without a slash at the end.
        login: what the user of this kind of store can do to be let in.
    """

    url: str
    login: str

    def location(self, name: str) -> str:
        """Return what messages call an object."""
        ...

    def find(self, folder: str) -> dict[str, Stamp] | None:
        """Return the stamps of all objects below a folder, or None if the store has no listings.

        Args:
            folder: below the address; empty for all.
        """
        ...

    def look(self, name: str) -> Stamp:
        """Return the stamp of one object."""
        ...

    def read(self, name: str, begin: int, size: int, stamp: Stamp) -> bytes:
        """Return `size` bytes of an object from `begin` on.

        Args:
            name: below the address.
            begin: position of the first byte.
            size: at least one.
            stamp: that the object must have.
        """
        ...

    def write(self, name: str, data: bytes) -> None:
        """Create or replace an object."""
        ...
