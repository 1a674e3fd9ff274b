"""Files of a web server: https://host/folder/."""

from __future__ import annotations

import os
from urllib.parse import quote

from kata.data.remote.http_ranges import look_at, read_range
from kata.data.remote.refusals import RefusedError
from kata.data.storage.file_stamp import Stamp


class HttpObjects:
    """The files below an address of a web server, which has no listings.

    $KATA_HTTP_TOKEN is sent as a bearer token.

    Args:
        url: the address of the folder.
    """

    login = "set KATA_HTTP_TOKEN to a token that the server accepts"

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        token = os.environ.get("KATA_HTTP_TOKEN")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def location(self, name: str) -> str:
        """Return the address of a file."""
        return f"{self.url}/{name}" if name else self.url

    def find(self, folder: str) -> dict[str, Stamp] | None:
        """Return None: web servers have no listings."""
        del folder

    def look(self, name: str) -> Stamp:
        """Return size and entity tag of a file."""
        return look_at(self._address(name), self._headers, self.location(name))

    def read(self, name: str, begin: int, size: int, stamp: Stamp) -> bytes:
        """Return `size` bytes of a file from `begin` on."""
        return read_range(
            self._address(name), self._headers, begin, size, stamp, self.location(name)
        )

    def write(self, name: str, data: bytes) -> None:
        """Refuse: web servers are read-only here."""
        del name, data
        raise RefusedError(405, "files of a web server are only read")

    def _address(self, name: str) -> str:
        return f"{self.url}/{quote(name)}"
