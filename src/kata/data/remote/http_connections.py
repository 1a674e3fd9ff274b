"""Kept-alive connections for ranges, the last used first.

A range through the client of huggingface_hub takes 0.6 to 0.8 ms of CPU time, most of it in the
client; one through the standard library takes 0.2 ms. What the standard library does not do here
(proxies, redirects, certificates of another place) is left to that client: `range_of` then returns
None, for this host from then on.
"""

from __future__ import annotations

import http.client
import os
import ssl
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from threading import Lock
from typing import TypeAlias
from urllib.parse import urlsplit

from huggingface_hub import constants

from kata.data.remote.refusals import TransientError

_CONNECT_S = 10.0
_TIMEOUT_S = 30.0
"""Time to connect, and between two pieces of an answer."""

_MOST_HOSTS = 4
"""Hosts whose connections are kept: a dataset of the Hub comes from one or two."""

_MOST_IDLE = 64
"""Connections of a host that are kept: a pool of fetched bytes sends as many requests at a time."""

_REDIRECTS = (301, 302, 303, 307, 308)


@dataclass(frozen=True)
class RangeAnswer:
    """The answer to a request for a range.

    Attributes:
        status_code: HTTP's number.
        reason_phrase: the same in words.
        headers: by name, in any case.
        body: the bytes, at most one more than were asked for; empty unless the status is 200 or
            206.
    """

    status_code: int
    reason_phrase: str
    headers: http.client.HTTPMessage
    body: bytes


_Host: TypeAlias = tuple[str, str]


class _Idle:
    """The connections that no thread uses, by host; the host used last comes last."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._by_host: dict[_Host, list[http.client.HTTPConnection]] = {}

    def take(self, host: _Host) -> http.client.HTTPConnection | None:
        with self._lock:
            kept = self._by_host.get(host)
            return kept.pop() if kept else None

    def give(self, host: _Host, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            kept = self._by_host.pop(host, [])
            self._by_host[host] = kept
            gone = [connection] if len(kept) >= _MOST_IDLE else []
            if not gone:
                kept.append(connection)
            if len(self._by_host) > _MOST_HOSTS:
                gone += self._by_host.pop(next(iter(self._by_host)))
        for each in gone:
            each.close()

    def forget(self) -> None:
        """Use none of the connections again: the process that this one is a copy of has them."""
        self._lock = Lock()
        self._by_host = {}


_idle = _Idle()
os.register_at_fork(after_in_child=_idle.forget)
_unsuited: set[_Host] = set()
"""Hosts that the other client reaches, and these connections do not."""

_reached: set[_Host] = set()


def range_of(url: str, headers: Mapping[str, str], size: int) -> RangeAnswer | None:
    """Return the answer to a GET, or None where the client of huggingface_hub is to be asked.

    Args:
        url: of the object.
        headers: of the request.
        size: bytes that are asked for.

    Raises:
        TransientError: The connection was lost.
    """
    parts = urlsplit(url)
    host = (parts.scheme, parts.netloc)
    if host in _unsuited or constants.is_offline_mode() or _is_proxied(*host):
        return None
    target = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
    try:
        answer = _asked(host, target, headers, size)
    except (OSError, http.client.HTTPException) as error:
        if host in _reached:
            raise TransientError(f"{type(error).__name__}: {error}") from error
        # It may need what only the other client has, such as another certificate.
        _unsuited.add(host)
        return None
    if answer.status_code in _REDIRECTS:
        _unsuited.add(host)
        return None
    _reached.add(host)
    return answer


@cache
def _is_proxied(scheme: str, netloc: str) -> bool:
    named = urllib.request.getproxies()
    return bool({scheme, "all"} & named.keys()) and not urllib.request.proxy_bypass(netloc)


def _asked(host: _Host, target: str, headers: Mapping[str, str], size: int) -> RangeAnswer:
    """Send a request on a kept connection; once more on a new one if it was closed meanwhile."""
    known = _idle.take(host)
    if known is not None:
        try:
            return _exchange(host, known, target, headers, size)
        except (http.client.BadStatusLine, ConnectionError, ssl.SSLError):
            pass  # servers close connections that were idle for some seconds
    return _exchange(host, _opened(*host), target, headers, size)


def _opened(scheme: str, netloc: str) -> http.client.HTTPConnection:
    if scheme == "https":
        found: http.client.HTTPConnection = http.client.HTTPSConnection(
            netloc, timeout=_CONNECT_S, context=_trusting(os.environ.get("SSL_CERT_FILE"))
        )
    else:
        found = http.client.HTTPConnection(netloc, timeout=_CONNECT_S)
    found.connect()
    found.sock.settimeout(_TIMEOUT_S)
    return found


@cache
def _trusting(file: str | None) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=file)


def _exchange(
    host: _Host,
    connection: http.client.HTTPConnection,
    target: str,
    headers: Mapping[str, str],
    size: int,
) -> RangeAnswer:
    """Send a request and read its answer; the connection is kept if it is at the answer's end."""
    try:
        connection.request("GET", target, headers=dict(headers))
        response = connection.getresponse()
        is_wanted = response.status in (200, 206)
        # A whole file that was not asked for is not read: its connection is closed instead.
        is_longer = response.length is not None and response.length > size
        if is_longer and response.status == 206:
            raise http.client.HTTPException(f"{response.length} bytes instead of {size}")
        body = response.read(size + 1) if is_wanted and not is_longer else b""
        is_at_end = is_wanted and response.isclosed()
    except BaseException:
        connection.close()
        raise
    if is_at_end and not response.will_close:
        _idle.give(host, connection)
    else:
        response.close()
        connection.close()
    return RangeAnswer(response.status, response.reason, response.headers, body)
