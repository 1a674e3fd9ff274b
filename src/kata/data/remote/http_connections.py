"""Kept-alive connections for ranges, the last used first.

A range through the client of huggingface_hub takes 0.6 to 0.8 ms of CPU time, and one through
`http.client` a fifth of a millisecond, most of it in parsing what nobody reads. So a request is
written here, its answer's head is split into lines, and its body received with as few calls as
possible. What is not done here (proxies, redirects, certificates of another place, bodies in
chunks) is left to that client: `range_of` then returns None, for this host from then on.
"""

from __future__ import annotations

import http.client
import os
import re
import socket
import ssl
import struct
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

_HEAD_BYTES = 1 << 16
"""Most bytes of an answer's head; as many are asked for at first."""

_UNSENDABLE = re.compile(r"[^\x21-\x7e]")
_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) (\d{3}) ?([^\r\n]*)")
_REDIRECTS = (301, 302, 303, 307, 308)


@dataclass(frozen=True)
class RangeAnswer:
    """The answer to a request for a range.

    Attributes:
        status_code: HTTP's number.
        reason_phrase: the same in words.
        headers: by name in small letters.
        body: the bytes, at most one more than were asked for; empty unless the status is 200 or
            206.
    """

    status_code: int
    reason_phrase: str
    headers: Mapping[str, str]
    body: bytes


class _UnsuitedError(Exception):
    """An answer of a kind that only the other client reads."""


_Host: TypeAlias = tuple[str, str]


class _Idle:
    """The connections that no thread uses, by host; the host used last comes last."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._by_host: dict[_Host, list[socket.socket]] = {}

    def take(self, host: _Host) -> socket.socket | None:
        with self._lock:
            kept = self._by_host.get(host)
            return kept.pop() if kept else None

    def give(self, host: _Host, connection: socket.socket) -> None:
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


def is_shut(url: str) -> bool:
    """Return True if HF_HUB_OFFLINE forbids a request: it speaks of the Hub, of no other server."""
    return constants.is_offline_mode() and url.startswith(constants.ENDPOINT.rstrip("/") + "/")


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
    if host in _unsuited or is_shut(url) or _is_proxied(*host):
        return None
    target = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
    if _UNSENDABLE.search(target):
        return None
    try:
        answer = _asked(host, target, headers, size)
    except _UnsuitedError:
        _unsuited.add(host)
        return None
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
    lines = [f"GET {target} HTTP/1.1", f"Host: {host[1]}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if any("\r" in line or "\n" in line for line in lines):
        raise _UnsuitedError
    request = "\r\n".join([*lines, "", ""]).encode("latin-1")
    known = _idle.take(host)
    if known is not None:
        try:
            return _exchange(host, known, request, size)
        except (http.client.BadStatusLine, ConnectionError, ssl.SSLError):
            pass  # servers close connections that were idle for some seconds
    return _exchange(host, _opened(*host), request, size)


def _opened(scheme: str, netloc: str) -> socket.socket:
    parts = urlsplit(f"{scheme}://{netloc}")
    place = (parts.hostname or "", parts.port or (443 if scheme == "https" else 80))
    found = socket.create_connection(place, timeout=_CONNECT_S)
    try:
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if scheme == "https":
            context = _trusting(os.environ.get("SSL_CERT_FILE"))
            found = context.wrap_socket(found, server_hostname=place[0])
            found.settimeout(_TIMEOUT_S)
            return found
        # The system keeps the time, not Python, which would ask before each call whether bytes are
        # there. So one call can wait for all of a body.
        found.settimeout(None)
        limit = struct.pack("@ll", int(_TIMEOUT_S), int(_TIMEOUT_S % 1 * 1e6))  # a timeval
        found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
    except BaseException:
        found.close()
        raise
    return found


@cache
def _trusting(file: str | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=file)
    context.set_alpn_protocols(["http/1.1"])
    return context


def _exchange(host: _Host, connection: socket.socket, request: bytes, size: int) -> RangeAnswer:
    """Send a request and read its answer; the connection is kept if it is at the answer's end."""
    try:
        connection.sendall(request)
        minor, status, reason, headers, begun = _head(connection)
        if "transfer-encoding" in headers and status not in _REDIRECTS:
            raise _UnsuitedError
        length = _length(headers)
        is_wanted = status in (200, 206)
        # A whole file that was not asked for is not read: its connection is closed instead.
        is_longer = length is not None and length > size
        if is_longer and status == 206:
            raise http.client.HTTPException(f"{length} bytes instead of {size}")
        # Without a length the body ends with the connection. One more byte shows that it is longer.
        wanted = size + 1 if length is None else length
        body = _body(connection, begun, wanted) if is_wanted and not is_longer else b""
        is_at_end = is_wanted and length is not None and len(begun) <= length == len(body)
    except BlockingIOError as error:
        connection.close()
        raise TimeoutError(f"nothing came for {_TIMEOUT_S:g} s") from error
    except BaseException:
        connection.close()
        raise
    if is_at_end and minor == b"1" and headers.get("connection", "").lower() != "close":
        _idle.give(host, connection)
    else:
        connection.close()
    return RangeAnswer(status, reason, headers, body)


def _head(connection: socket.socket) -> tuple[bytes, int, str, dict[str, str], bytes]:
    """Return HTTP's minor version, status, reason, headers and the first bytes of the body."""
    data = connection.recv(_HEAD_BYTES)
    if not data:
        raise http.client.RemoteDisconnected("the connection was closed without an answer")
    while (end := data.find(b"\r\n\r\n")) < 0:
        more = connection.recv(_HEAD_BYTES)
        if not more or len(data) > _HEAD_BYTES:
            raise http.client.BadStatusLine("an answer without the end of its head")
        data += more
    first, *lines = data[:end].split(b"\r\n")
    found = _STATUS_LINE.fullmatch(first)
    if found is None:
        raise http.client.BadStatusLine(repr(first[:80]))
    headers: dict[str, str] = {}
    for line in lines:
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip()
    return found[1], int(found[2]), found[3].decode("latin-1"), headers, data[end + 4 :]


def _length(headers: Mapping[str, str]) -> int | None:
    text = headers.get("content-length")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()):
        raise http.client.HTTPException(f"Content-Length: {text}")
    return int(text)


def _body(connection: socket.socket, begun: bytes, size: int) -> bytes:
    """Return `size` bytes of a body, of which some came with the head; fewer if it ends before."""
    body = bytearray(size)
    at = min(len(begun), size)
    body[:at] = begun[:at]
    left = memoryview(body)[at:]
    # TLS gives a record at a time; else one call waits for all bytes.
    flags = 0 if isinstance(connection, ssl.SSLSocket) else socket.MSG_WAITALL
    while len(left):
        count = connection.recv_into(left, 0, flags)
        if not count:
            return bytes(body[: size - len(left)])
        left = left[count:]
    return bytes(body)
