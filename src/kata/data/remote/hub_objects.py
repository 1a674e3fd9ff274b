"""Datasets and buckets of the Hub: hf://datasets/owner/name@revision and hf://buckets/owner/name.

The Hub answers a request for a large file with a signed address of its storage. That address is
asked for once per file and kept until it expires, so reading costs the Hub one request per file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any
from urllib.parse import quote, urljoin

from huggingface_hub import BucketFile, HfApi, RepoFile, constants
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import build_hf_headers, get_session

from kata.data.remote.http_ranges import (
    TRANSPORT_ERROR,
    read_range,
    retry_after_s,
    translated,
)
from kata.data.remote.refusals import DENIED, RefusedError, TransientError
from kata.data.storage.file_stamp import Stamp
from kata.errors import DataError

_PLACE = re.compile(
    r"(?P<kind>datasets|buckets)/(?P<repo>[^/@]+/[^/@]+)"
    r"(?:@(?P<revision>refs/(?:convert|pr)/[^/]+|[^/]+))?(?:/(?P<folder>.+))?"
)
_TIMEOUT_S = 30.0
_PASSING = (408, 429, 500, 502, 503, 504)


@dataclass(frozen=True)
class HubPlace:
    """A dataset or a bucket of the Hub.

    Attributes:
        kind: 'datasets' or 'buckets'.
        repo_id: <owner>/<name>.
        revision: tag, branch or commit of a dataset, or None for main.
        folder: below it, or empty.
    """

    kind: str
    repo_id: str
    revision: str | None = None
    folder: str = ""

    @staticmethod
    def of(url: str) -> HubPlace:
        """Return the place that an address names.

        Raises:
            DataError: The address has another form.
        """
        found = _PLACE.fullmatch(url.removeprefix("hf://").strip("/"))
        if found is None or (found["kind"] == "buckets" and found["revision"]):
            raise DataError(
                f"{url} names no dataset or bucket",
                rule="hf://datasets/<owner>/<name>[@<revision>] or hf://buckets/<owner>/<name>, "
                "perhaps with a folder below it",
                remedy="correct --dataset.root",
            )
        revision = found["revision"]
        return HubPlace(
            found["kind"],
            found["repo"],
            revision.replace("%2F", "/") if revision else None,
            found["folder"] or "",
        )

    @property
    def url(self) -> str:
        """Return the address."""
        at = f"@{self.revision}" if self.revision else ""
        below = f"/{self.folder}" if self.folder else ""
        return f"hf://{self.kind}/{self.repo_id}{at}{below}"


class HubObjects:
    """The files of a dataset at one commit, or of a bucket.

    Args:
        place: of the files; a tag or branch is resolved to its commit when it is first needed.
    """

    login = (
        "log in with `hf auth login` or set HF_TOKEN, and ask for access on the page of the dataset"
    )

    def __init__(self, place: HubPlace) -> None:
        self.url = place.url
        self._place = place
        self._lock = Lock()
        self._commit: str | None = None
        self._signed: dict[str, str] = {}

    def location(self, name: str) -> str:
        """Return the address of a file with the prefix hf://."""
        return f"{self.url}/{name}" if name else self.url

    def find(self, folder: str) -> dict[str, Stamp] | None:
        """Return size and hash of all files below a folder, a thousand per request."""
        below = "/".join(part for part in (self._place.folder, folder) if part)
        try:
            files = [each for each in self._tree(below) if isinstance(each, RepoFile | BucketFile)]
        except _NOT_FOUND as error:
            raise RefusedError(404, type(error).__name__) from error
        except HfHubHTTPError as error:
            raise _refused(error) from error
        except (TRANSPORT_ERROR, OSError) as error:
            raise translated(error, self.url) from error
        skip = len(self._place.folder) + 1 if self._place.folder else 0
        return {file.path[skip:]: Stamp(file.size, _identity(file)) for file in files}

    def look(self, name: str) -> Stamp:
        """Return size and hash of a file."""
        folder, _, _ = name.rpartition("/")
        found = (self.find(folder) or {}).get(name)
        if found is None:
            raise RefusedError(404, "not in the listing")
        return found

    def read(self, name: str, begin: int, size: int, stamp: Stamp) -> bytes:
        """Return `size` bytes of a file from `begin` on."""
        # The storage has other entity tags than the Hub. A commit does not change, so the size
        # suffices.
        untagged = Stamp(stamp.size, "")
        address, headers = self._address(name)
        try:
            return read_range(address, headers, begin, size, untagged, self.location(name))
        except RefusedError as error:
            with self._lock:
                was_kept = self._signed.pop(name, None)
            if was_kept is None or error.status not in DENIED:
                raise
            # A signed address expires after some hours; the next attempt asks for another one.
            raise TransientError(f"{error.status} {error.reason}") from error

    def write(self, name: str, data: bytes) -> None:
        """Upload a file, as a commit on the revision of this place."""
        if self._place.kind == "buckets":
            raise RefusedError(405, "kata writes no files into buckets")
        below = f"{self._place.folder}/{name}" if self._place.folder else name
        try:
            HfApi(constants.ENDPOINT).upload_file(
                path_or_fileobj=data,
                path_in_repo=below,
                repo_id=self._place.repo_id,
                repo_type="dataset",
                revision=self._place.revision,
                commit_message=f"Add {name}",
            )
        except HfHubHTTPError as error:
            raise _refused(error) from error
        except (TRANSPORT_ERROR, OSError) as error:
            raise translated(error, self.url) from error

    def commit(self) -> str:
        """Return the commit of the revision, which the first call asks for."""
        with self._lock:
            if self._commit is None:
                self._commit = self._ask_commit()
            return self._commit

    def _ask_commit(self) -> str:
        place = self._place
        try:
            info = HfApi(constants.ENDPOINT).dataset_info(
                place.repo_id, revision=place.revision, timeout=_TIMEOUT_S
            )
        except (RepositoryNotFoundError, RevisionNotFoundError, HFValidationError) as error:
            raise RefusedError(404, type(error).__name__) from error
        except HfHubHTTPError as error:
            raise _refused(error) from error
        except (TRANSPORT_ERROR, OSError) as error:
            raise translated(error, self.url) from error
        return str(info.sha)

    def _tree(self, below: str) -> Iterable[Any]:
        api, repo = HfApi(constants.ENDPOINT), self._place.repo_id
        if self._place.kind == "buckets":
            prefix = f"{below}/" if below else None
            return list(api.list_bucket_tree(repo, prefix, recursive=True))
        return list(
            api.list_repo_tree(
                repo, below or None, recursive=True, revision=self.commit(), repo_type="dataset"
            )
        )

    def _address(self, name: str) -> tuple[str, dict[str, str]]:
        """Return the address that serves a file, and the headers that it wants."""
        with self._lock:
            kept = self._signed.get(name)
        if kept is not None:
            return kept, {}
        asked, headers = self._hub_address(name), build_hf_headers()
        answer = self._head(asked, headers, self.location(name))
        location = answer.headers.get("location")
        if location is None:
            return asked, headers
        # No token for another host: the signature in the address lets us in.
        signed = urljoin(asked, location)
        with self._lock:
            self._signed[name] = signed
        return signed, {}

    def _hub_address(self, name: str) -> str:
        below = f"{self._place.folder}/{name}" if self._place.folder else name
        if self._place.kind == "buckets":
            return f"{constants.ENDPOINT}/buckets/{self._place.repo_id}/resolve/{quote(below)}"
        revision = quote(self.commit(), safe="")
        repo = f"{constants.ENDPOINT}/datasets/{self._place.repo_id}"
        return f"{repo}/resolve/{revision}/{quote(below)}"

    def _head(self, url: str, headers: dict[str, str], location: str) -> Any:
        session: Any = get_session()
        try:
            answer = session.request(
                "HEAD",
                url,
                headers={**headers, "Accept-Encoding": "identity"},
                timeout=_TIMEOUT_S,
                follow_redirects=False,
            )
        except (TRANSPORT_ERROR, OSError) as error:
            raise translated(error, location) from error
        if answer.status_code in _PASSING:
            raise TransientError(
                f"{answer.status_code} {answer.reason_phrase}", retry_after_s(answer.headers)
            )
        if answer.status_code >= 400:
            code = answer.headers.get("x-error-code") or answer.reason_phrase
            raise RefusedError(answer.status_code, code)
        return answer


_NOT_FOUND = (RepositoryNotFoundError, RevisionNotFoundError, HFValidationError)


def newest_revision(repo_id: str, candidates: Iterable[str]) -> str | None:
    """Return the first of these revisions that a dataset has, or None.

    Raises:
        TransientError: Another attempt may succeed.
        RefusedError: The dataset does not exist or may not be read.
    """
    for revision in candidates:
        objects = HubObjects(replace(HubPlace("datasets", repo_id), revision=revision))
        try:
            objects.commit()
        except RefusedError as error:
            if error.reason == RevisionNotFoundError.__name__:
                continue
            raise
        return revision
    return None


def _identity(file: RepoFile | BucketFile) -> str:
    """Return the hash of a file in a listing."""
    if isinstance(file, BucketFile):
        return file.xet_hash
    return file.lfs.sha256 if file.lfs else file.blob_id


def _refused(error: HfHubHTTPError) -> Exception:
    response: Any = error.response
    status = int(response.status_code)
    if status in _PASSING:
        return TransientError(f"{status} {response.reason_phrase}", retry_after_s(response.headers))
    return RefusedError(status, response.headers.get("x-error-code") or response.reason_phrase)
