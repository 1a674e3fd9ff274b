"""The protocol of stores on the network, below retries and messages, and stores by address."""

from __future__ import annotations

from typing import Protocol

from kata.data.storage.file_stamp import Stamp
from kata.errors import DataError

_EXTRAS = {"s3": "s3", "gs": "gcs", "gcs": "gcs"}
"""Extras of the package, by the scheme that needs them."""


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


def open_objects(url: str) -> Objects:
    """Return the objects below an address.

    Args:
        url: such as s3://bucket/folder, without credentials.

    Raises:
        DataError: The address has no meaning here, or a package is missing.
    """
    scheme = url.partition("://")[0].lower()
    if scheme in ("http", "https"):
        from kata.data.remote.http_objects import HttpObjects

        return HttpObjects(url)
    if scheme == "hf":
        from kata.data.remote.hub_objects import HubObjects, HubPlace

        return HubObjects(HubPlace.of(url))
    try:
        if scheme == "s3":
            from kata.data.remote.s3_objects import S3Objects

            return S3Objects(url)
        if scheme in ("gs", "gcs"):
            from kata.data.remote.gcs_objects import GcsObjects

            return GcsObjects(url)
        from kata.data.remote.fsspec_objects import FsspecObjects

        return FsspecObjects(url)
    except ImportError as error:
        raise _not_installed(url, scheme, error) from error
    except ValueError as error:
        raise DataError(
            f"{url}: {scheme}:// is not known ({error})",
            rule="s3://, gs://, hf://, https://, file://, or another scheme of fsspec",
            remedy="correct --dataset.root",
        ) from error


def _not_installed(url: str, scheme: str, error: ImportError) -> DataError:
    extra = _EXTRAS.get(scheme)
    return DataError(
        f"{url} needs a package that is not installed ({error})",
        rule=f"{scheme}:// is read through a package of its own",
        remedy=f"pip install 'kata[{extra}]'" if extra else "install the package that is named",
    )
