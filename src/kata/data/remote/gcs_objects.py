"""Objects of Google Cloud Storage: gs://bucket/folder, through its JSON API.

Credentials come from where Google's own tools take them (`google.auth.default`); without any, only
public buckets are read. STORAGE_EMULATOR_HOST names another server.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from threading import Lock
from typing import Any
from urllib.parse import quote, urlencode

from google.auth import default
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError, TransportError
from google.auth.transport.requests import Request

from kata.data.remote.http_ranges import answer_of, read_range
from kata.data.remote.refusals import TransientError, no_credentials
from kata.data.storage.file_stamp import Stamp

_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
_SERVER = "https://storage.googleapis.com"


class GcsObjects:
    """The objects below an address of Google Cloud Storage.

    Args:
        url: gs://<bucket>/<folder>.
    """

    login = (
        "`gcloud auth application-default login`, or GOOGLE_APPLICATION_CREDENTIALS with the file "
        "of a service account that may read the bucket"
    )

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._bucket, _, self._folder = self.url.partition("://")[2].partition("/")
        server = os.environ.get("STORAGE_EMULATOR_HOST") or _SERVER
        self._server = server.rstrip("/") if "://" in server else f"http://{server}"
        self._lock = Lock()
        self._credentials: Any = _credentials(is_emulated=server != _SERVER)

    def location(self, name: str) -> str:
        """Return the address of an object."""
        return f"{self.url}/{name}" if name else self.url

    def find(self, folder: str) -> dict[str, Stamp] | None:
        """Return size and generation of all objects below a folder, a thousand per request."""
        below = "/".join(part for part in (self._folder, folder) if part)
        asked = {"fields": "items(name,size,generation),nextPageToken"}
        asked["prefix"] = f"{below}/" if below else ""
        skip = len(self._folder) + 1 if self._folder else 0
        found: dict[str, Stamp] = {}
        while True:
            page = self._asked("GET", self._address("storage", "", asked), self.location(folder))
            for each in page.get("items", []):
                # Consoles make objects with such names for empty folders.
                if not each["name"].endswith("/"):
                    found[each["name"][skip:]] = _stamp(each)
            if not page.get("nextPageToken"):
                return found
            asked["pageToken"] = page["nextPageToken"]

    def look(self, name: str) -> Stamp:
        """Return size and generation of an object."""
        address = self._address("storage", self._path(name), {"fields": "size,generation"})
        return _stamp(self._asked("GET", address, self.location(name)))

    def read(self, name: str, begin: int, size: int, stamp: Stamp) -> bytes:
        """Return `size` bytes of an object from `begin` on, if it still has its generation."""
        # The generation is compared there, for answers have another entity tag than listings.
        same = {"alt": "media", "ifGenerationMatch": str(stamp.version)}
        address = self._address("download/storage", self._path(name), same)
        location, untagged = self.location(name), Stamp(stamp.size, "")
        return read_range(address, self._headers(location), begin, size, untagged, location)

    def write(self, name: str, data: bytes) -> None:
        """Create or replace an object."""
        asked = {"uploadType": "media", "name": self._path(name)}
        self._asked("POST", self._address("upload/storage", "", asked), self.location(name), data)

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}" if self._folder else name

    def _address(self, service: str, path: str, asked: Mapping[str, str]) -> str:
        """Return the address of an object's resource, or of the list of all."""
        objects = f"{self._server}/{service}/v1/b/{quote(self._bucket, safe='')}/o"
        own = f"/{quote(path, safe='')}" if path else ""
        return f"{objects}{own}?{urlencode(asked)}"

    def _asked(self, method: str, address: str, location: str, data: bytes = b"") -> Any:
        """Return the answer to a request, which is JSON."""
        headers = self._headers(location)
        return json.loads(answer_of(method, address, headers, location, data))

    def _headers(self, location: str) -> dict[str, str]:
        """Return headers with a token that is valid for now, or none."""
        if self._credentials is None:
            return {}
        try:
            # One thread renews the token, while the others wait for it.
            with self._lock:
                if not self._credentials.valid:
                    self._credentials.refresh(Request())
        except TransportError as error:
            raise TransientError(f"{type(error).__name__}: {error}") from error
        except GoogleAuthError as error:
            raise no_credentials(location, self.login) from error
        headers: dict[str, str] = {}
        self._credentials.apply(headers)
        return headers


def _credentials(*, is_emulated: bool) -> Any:
    """Return Google's credentials of this machine, or None where it has none."""
    if is_emulated:
        return None
    try:
        return default(scopes=[_SCOPE])[0]
    except DefaultCredentialsError:
        return None


def _stamp(about: Mapping[str, Any]) -> Stamp:
    return Stamp(int(about["size"]), str(about["generation"]))
