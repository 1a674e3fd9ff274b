"""Ranges of objects over HTTP, through the client of huggingface_hub.

That client takes proxies and certificates from the environment, and `set_client_factory` replaces
it where a site needs another one.
"""

from __future__ import annotations

import email.utils
import re
import time
from collections.abc import Mapping
from functools import cache
from typing import Any

from huggingface_hub import constants
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled
from huggingface_hub.utils import get_session

from kata.data.remote.http_connections import is_shut, range_of
from kata.data.remote.refusals import (
    RefusedError,
    TransientError,
    bad_certificate,
    ignores_ranges,
    is_certificate_error,
)
from kata.data.storage.file_stamp import Stamp, replaced
from kata.errors import DataError

TRANSPORT_ERROR: type[Exception] = HfHubHTTPError.__bases__[0]
"""Base class of the HTTP library's errors, including lost connections. It is derived, because
huggingface_hub has changed that library twice.
"""

_TIMEOUT_S = 30.0
"""Time to connect, and between two pieces of an answer."""

_PASSING = (408, 425, 429, 500, 502, 503, 504)
_CONTENT_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)")
_RATE_LIMIT = re.compile(r'"\w+"\s*;\s*r\s*=\s*0\s*;\s*t\s*=\s*(\d+)')


def read_range(
    url: str, headers: Mapping[str, str], begin: int, size: int, stamp: Stamp, location: str
) -> bytes:
    """Return bytes of an object.

    Args:
        url: of the object.
        headers: of the request, such as credentials.
        begin: position of the first byte.
        size: number of bytes, at least one.
        stamp: of the object; its version is the entity tag, or empty where none is compared.
        location: of the object, for messages.

    Raises:
        TransientError: Another attempt may succeed.
        RefusedError: The store refuses.
        DataError: The object has changed, or the store sends whole files.
    """
    # Compressed bodies would have other lengths than the ranges.
    asked = {
        **headers,
        "Range": f"bytes={begin}-{begin + size - 1}",
        "Accept-Encoding": "identity",
    }
    answer = range_of(url, asked, size)
    if answer is not None:
        _check_status(answer)
        _check_range(answer, begin, size, stamp, location)
        found = answer.body
    else:
        with _Answer(url, asked, location) as response:
            _check_range(response, begin, size, stamp, location)
            found = b"".join(response.iter_raw())
    if len(found) != size:
        raise TransientError(f"{len(found)} of {size} bytes")
    return found


def _check_range(response: Any, begin: int, size: int, stamp: Stamp, location: str) -> None:
    """Check that an answer has the range that was asked for, of the object with this stamp."""
    if response.status_code == 200 and (begin, size) != (0, stamp.size):
        raise ignores_ranges(location)
    _check_same(response, stamp, location)
    if response.status_code == 206:
        first, total = _content_range(response)
        if total is not None and total != stamp.size:
            raise replaced(location, f"has {total} bytes instead of {stamp.size}")
        if first != begin:
            raise TransientError(f"bytes from {first} on instead of {begin}")


def look_at(url: str, headers: Mapping[str, str], location: str) -> Stamp:
    """Return size and entity tag of an object, from a request for its first byte.

    A request for the head alone would not show whether the store knows ranges, and some refuse it.

    Raises:
        TransientError: Another attempt may succeed.
        RefusedError: The store refuses.
        DataError: The store sends whole files.
    """
    with _Answer(url, {**headers, "Range": "bytes=0-0"}, location, empty=True) as response:
        if response.status_code == 416:
            return Stamp(0, _tag(response))
        if response.status_code == 200:
            if response.headers.get("content-length") != "0":
                raise ignores_ranges(location)
            return Stamp(0, _tag(response))
        _, total = _content_range(response)
    if total is None:
        raise RefusedError(response.status_code, "without the size of the file")
    return Stamp(total, _tag(response))


def answer_of(
    method: str, url: str, headers: Mapping[str, str], location: str, data: bytes = b""
) -> bytes:
    """Return the body of the answer to a small request.

    Raises:
        TransientError: Another attempt may succeed.
        RefusedError: The store refuses.
    """
    with _Answer(url, headers, location, method=method, data=data) as response:
        found = b"".join(response.iter_raw())
        expected = response.headers.get("content-length")
    if expected is not None and int(expected) != len(found):
        raise TransientError(f"{len(found)} of {expected} bytes")
    return found


class _Answer:
    """A context with an answer whose body has not been read; errors are translated.

    Args:
        url: of the object.
        headers: of the request.
        location: of the object, for messages.
        empty: True to accept 416, the answer for a range of an empty object.
        method: of the request.
        data: its body.
    """

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        location: str,
        *,
        empty: bool = False,
        method: str = "GET",
        data: bytes = b"",
    ) -> None:
        self._method, self._data = method, data
        self._headers = {**headers, "Accept-Encoding": "identity"}
        self._url = url
        self._location = location
        self._empty = empty
        self._stream: Any = None

    def __enter__(self) -> Any:
        session: Any = get_session()
        if constants.is_offline_mode() and not is_shut(self._url):
            # The Hub's client would refuse any server.
            session = _other_client(type(session))
        self._stream = session.stream(
            self._method,
            self._url,
            headers=self._headers,
            content=self._data or None,
            timeout=_TIMEOUT_S,
            follow_redirects=True,
        )
        try:
            response = self._stream.__enter__()
        except (TRANSPORT_ERROR, OSError) as error:
            raise translated(error, self._location) from error
        try:
            if not (self._empty and int(response.status_code) == 416):
                _check_status(response)
        except BaseException:
            self._stream.__exit__(None, None, None)
            raise
        return response

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._stream.__exit__(kind, error, trace)
        if isinstance(error, (TRANSPORT_ERROR, OSError)):
            raise translated(error, self._location) from error


@cache
def _other_client(kind: Any) -> Any:
    """Return a client of the same library that is not the Hub's."""
    return kind()


def _check_status(response: Any) -> None:
    status = int(response.status_code)
    if status in (200, 206):
        return
    reason = str(response.reason_phrase)
    if status in _PASSING:
        raise TransientError(f"{status} {reason}", retry_after_s(response.headers))
    raise RefusedError(status, reason)


def translated(error: Exception, location: str) -> Exception:
    """Return what an error of the HTTP library means: one to retry, or a message."""
    if is_certificate_error(error):
        return bad_certificate(location, error)
    if isinstance(error, OfflineModeIsEnabled):
        return DataError(
            f"{location} is not read: HF_HUB_OFFLINE is set",
            rule="a dataset in a store is read over the network",
            remedy="unset HF_HUB_OFFLINE, or name a folder with --dataset.root",
        )
    return TransientError(f"{type(error).__name__}: {error}")


def retry_after_s(headers: Mapping[str, str]) -> float:
    """Return the seconds that a store asks to wait, from Retry-After or the Hub's RateLimit."""
    text = headers.get("retry-after", "").strip()
    if text:
        try:
            return max(float(text), 0.0)
        except ValueError:
            pass  # a date
        try:
            moment = email.utils.parsedate_to_datetime(text)
        except ValueError:
            return 0.0
        return max(moment.timestamp() - time.time(), 0.0)
    found = _RATE_LIMIT.search(headers.get("ratelimit", ""))
    return float(found[1]) if found else 0.0


def _check_same(response: Any, stamp: Stamp, location: str) -> None:
    tag = _tag(response)
    if stamp.version and tag and tag != stamp.version:
        raise replaced(location, "has another entity tag")


def _tag(response: Any) -> str:
    """Return the entity tag of an answer, or the time of the last change where it has none."""
    return response.headers.get("etag") or response.headers.get("last-modified") or ""


def _content_range(response: Any) -> tuple[int, int | None]:
    found = _CONTENT_RANGE.fullmatch(response.headers.get("content-range", ""))
    if found is None:
        raise TransientError("206 without a Content-Range")
    return int(found[1] or 0), None if found[3] == "*" else int(found[3])
