"""Stores by their addresses."""

from __future__ import annotations

from kata.data.remote.objects import Objects
from kata.errors import DataError

_EXTRAS = {"s3": "s3", "gs": "gcs", "gcs": "gcs"}
"""Extras of the package, by the scheme that needs them."""


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
        rule=f"{scheme}:// is read through its file system of fsspec",
        remedy=f"pip install 'kata[{extra}]'" if extra else "install the package that is named",
    )
