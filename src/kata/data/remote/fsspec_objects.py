"""Objects of any store that fsspec knows: az://, memory:// and others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import fsspec

from kata.data.remote.refusals import (
    RefusedError,
    TransientError,
    bad_certificate,
    is_certificate_error,
)
from kata.data.storage.file_stamp import Stamp

_VERSIONS = ("ETag", "etag", "md5Hash", "content_md5", "mtime", "created")
"""Keys that file systems give to what changes with an object, the best first."""

T = TypeVar("T")


class FsspecObjects:
    """The objects below an address that fsspec opens.

    Args:
        url: the address.
        options: of the file system.
    """

    login = "log in with the tools of the store, as the documentation of its file system says"
    failures: ClassVar[tuple[type[Exception], ...]] = (OSError, RuntimeError)

    def __init__(self, url: str, **options: Any) -> None:
        self.url = url.rstrip("/")
        # Listings are asked for once, and must be fresh.
        system, root = fsspec.core.url_to_fs(self.url, use_listings_cache=False, **options)
        self.system: Any = system
        self._root = root.rstrip("/")

    def location(self, name: str) -> str:
        """Return the address of an object."""
        return f"{self.url}/{name}" if name else self.url

    def find(self, folder: str) -> dict[str, Stamp] | None:
        """Return the stamps of all objects below a folder."""
        found = self.asked(folder, lambda: self.system.find(self.path(folder), detail=True))
        skip = len(self._root) + 1
        return {path[skip:]: _stamp(about) for path, about in found.items()}

    def look(self, name: str) -> Stamp:
        """Return the stamp of an object."""
        return _stamp(self.asked(name, lambda: self.system.info(self.path(name))))

    def read(self, name: str, begin: int, size: int, stamp: Stamp) -> bytes:
        """Return `size` bytes of an object from `begin` on; its stamp is not compared."""
        del stamp
        end = begin + size
        found = self.asked(name, lambda: self.system.cat_file(self.path(name), begin, end))
        if len(found) != size:
            raise TransientError(f"{len(found)} of {size} bytes")
        return found

    def write(self, name: str, data: bytes) -> None:
        """Create or replace an object."""
        self.asked(name, lambda: self.system.pipe_file(self.path(name), data))

    def path(self, name: str) -> str:
        """Return what the file system calls an object."""
        return f"{self._root}/{name}" if name else self._root

    def asked(self, name: str, call: Callable[[], T]) -> T:
        """Return the result of a call, with its errors translated."""
        try:
            return call()
        except self.failures as error:
            raise self.translated(error, self.location(name)) from error

    def translated(self, error: Exception, location: str) -> Exception:
        """Return what an error of the file system means: one to retry, a refusal or a message."""
        if is_certificate_error(error):
            return bad_certificate(location, error)
        if isinstance(error, FileNotFoundError):
            return RefusedError(404, "no such object")
        if isinstance(error, PermissionError):
            return RefusedError(403, str(error))
        return TransientError(f"{type(error).__name__}: {error}")


def _stamp(about: dict[str, Any]) -> Stamp:
    version = next((str(about[key]) for key in _VERSIONS if about.get(key)), "")
    return Stamp(int(about["size"]), version)
