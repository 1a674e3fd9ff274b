"""A proxy in front of an HTTP server, with latency, limited bandwidth, and faults from a seed.

`python -m benchmarks.streaming.servers.proxy --upstream=127.0.0.1:9000 --latency_ms=20` runs one
until its standard input is closed, and prints its address first.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import math
import re
import socket
import struct
import sys
import threading
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

KINDS = ("429", "500", "reset", "truncated", "wrong_length")
_CHUNK_BYTES = 1 << 16
_HEAD_BYTES = 1 << 20
_AHEAD_S = 0.005
"""Time that the limit of bandwidth may be ahead of the clock; shorter sleeps are not exact."""


@dataclass(frozen=True, kw_only=True)
class Faults:
    """The behaviour of a proxy.

    Attributes:
        latency_s: delay of a new connection, and again of every request.
        bytes_per_s: bandwidth of all connections together.
        share: share of the requests that fail.
        kinds: ways of failing, of KINDS; equally frequent.
        retry_after_s: the Retry-After of a 429.
        seed: which requests fail. The n-th request for a range of a path fails in every run, or in
            none.
        only: a text that the path of a failing request has.
    """

    latency_s: float = 0.0
    bytes_per_s: float = math.inf
    share: float = 0.0
    kinds: tuple[str, ...] = KINDS
    retry_after_s: int = 0
    seed: int = 0
    only: str = ""

    def draw(self, request: str, count: int) -> str:
        """Return the kind of fault of the `count`-th equal request, or an empty string."""
        if self.only not in request:
            return ""
        text = f"{self.seed} {request} {count}"
        number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") / 2**64
        if number >= self.share:
            return ""
        return self.kinds[int(number / self.share * len(self.kinds))]


@dataclass
class _Message:
    """The head of a request or an answer."""

    start: str
    headers: dict[str, str]
    head: bytes

    @property
    def length(self) -> int | None:
        """Return the number of bytes in the body, or None if it is sent in chunks."""
        if "chunked" in self.headers.get("transfer-encoding", ""):
            return None
        return int(self.headers.get("content-length", 0))


class Proxy:
    """A proxy that listens on the loopback address.

    Args:
        host: of the server behind it.
        port: of the server behind it.
        faults: what it does to the traffic; may be replaced at any time.

    Attributes:
        port: where it listens.
        requests: number of requests.
        body_bytes: bytes of the bodies of answers.
        failed: number of faults by kind.
    """

    def __init__(self, host: str, port: int, faults: Faults) -> None:
        self._upstream = (host, port)
        self.faults = faults
        self.port = 0
        self.requests = 0
        self.body_bytes = 0
        self.failed: Counter[str] = Counter()
        self._seen: Counter[str] = Counter()
        self._free_at_s = 0.0
        self._open: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        """Return the address, without a slash at the end."""
        return f"http://127.0.0.1:{self.port}"

    async def run(self, ready: threading.Event, ended: asyncio.Event) -> None:
        """Serve until `ended`; set `ready` when the port is known."""
        server = await asyncio.start_server(
            self._connection, "127.0.0.1", 0, limit=_HEAD_BYTES, backlog=256
        )
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        await ended.wait()
        # A closed server cannot take connections that were just accepted, and loses their sockets.
        for listening in server.sockets:
            asyncio.get_running_loop().remove_reader(listening.fileno())
        await asyncio.sleep(0.01)
        server.close()
        # Connections end because their transports do. To cancel their tasks would leave sockets of
        # those open that have not begun.
        for _ in range(100):
            for writer in self._open:
                writer.transport.abort()
            left = asyncio.all_tasks() - {asyncio.current_task()}
            if not left:
                break
            await asyncio.wait(left, timeout=0.05)
        # A transport closes its socket in a later turn of the loop.
        await asyncio.sleep(0.01)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward the requests of one connection, one after the other."""
        self._open.add(writer)
        upstream: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        try:
            await asyncio.sleep(self.faults.latency_s)
            upstream = await asyncio.open_connection(*self._upstream, limit=_HEAD_BYTES)
            while await self._exchange((reader, writer), upstream):
                pass
        except (OSError, asyncio.IncompleteReadError):
            pass  # one side has closed: the other one sees that too
        finally:
            self._open.discard(writer)
            for end in (writer, *(upstream[1:] if upstream else ())):
                with suppress(OSError):
                    end.close()

    async def _exchange(
        self,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        upstream: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> bool:
        """Forward one request and its answer; return False if the connection has to be closed."""
        # 1. The request, and whether it fails.
        request = await _read_head(client[0])
        if "expect" in request.headers:
            # The client waits for this before it sends a body; the server is spared the question.
            client[1].write(b"HTTP/1.1 100 Continue\r\n\r\n")
            request.head = re.sub(rb"(?i)\r\nexpect:[^\r]*", b"", request.head)
        body = await _read_body(client[0], request.length)
        self.requests += 1
        faults = self.faults
        words = f"{request.start.rsplit(' ', 1)[0]} {request.headers.get('range', '')}"
        self._seen[words] += 1
        kind = faults.draw(words, self._seen[words])
        self.failed.update([kind] if kind else [])
        await asyncio.sleep(faults.latency_s)
        # 2. A failure that the server does not even see.
        if kind in ("429", "500"):
            after = f"Retry-After: {faults.retry_after_s}\r\n" if kind == "429" else ""
            status = f"HTTP/1.1 {kind} Failed\r\n{after}Content-Length: 0\r\n\r\n"
            client[1].write(status.encode())
            await client[1].drain()
            return True
        # 3. The answer, whole or spoiled.
        upstream[1].write(request.head + body)
        answer = await _read_head(upstream[0])
        status = int(answer.start.split()[1])
        has_body = not request.start.startswith("HEAD ") and status not in (204, 304)
        if kind and not (has_body and answer.length):
            kind = "reset"
        if kind == "wrong_length":
            answer.head = answer.head.replace(
                b"ontent-Length: %d" % (answer.length or 0),
                b"ontent-Length: %d" % ((answer.length or 0) - 1),
            )
        if kind != "reset":
            client[1].write(answer.head)
        if has_body or kind:
            await self._body(upstream[0], client[1], answer.length if has_body else 0, kind)
        await client[1].drain()
        return not kind and answer.headers.get("connection", "").lower() != "close"

    async def _body(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        length: int | None,
        kind: str,
    ) -> None:
        """Forward a body, or what the fault leaves of it."""
        if kind == "reset":
            _reset(writer)
            return
        if length is None:
            await self._chunks(reader, writer)
            return
        left = length
        if kind == "truncated":
            left //= 2
        elif kind == "wrong_length":
            left -= 1
        while left > 0:
            data = await reader.read(min(left, _CHUNK_BYTES))
            if not data:
                raise ConnectionResetError
            left -= len(data)
            await self._send(writer, data)

    async def _chunks(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward a body in chunks; each has its size before it, and the last is empty."""
        size = 1
        while size:
            line = await reader.readuntil(b"\r\n")
            size = int(line.split(b";")[0], 16)
            await self._send(writer, line + await reader.readexactly(size + 2))

    async def _send(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        """Write a piece of a body when the bandwidth has room for it."""
        self.body_bytes += len(data)
        now_s = asyncio.get_running_loop().time()
        self._free_at_s = max(self._free_at_s, now_s) + len(data) / self.faults.bytes_per_s
        writer.write(data)
        await writer.drain()
        if self._free_at_s - now_s > _AHEAD_S:
            await asyncio.sleep(self._free_at_s - now_s)


async def _read_head(reader: asyncio.StreamReader) -> _Message:
    head = await reader.readuntil(b"\r\n\r\n")
    start, *lines = head.decode("latin-1").strip().split("\r\n")
    headers: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    return _Message(start, headers, head)


async def _read_body(reader: asyncio.StreamReader, length: int | None) -> bytes:
    """Return the body of a request as it was sent, with the sizes of its chunks if it has some."""
    if length is not None:
        return await reader.readexactly(length)
    found = b""
    size = 1
    while size:
        line = await reader.readuntil(b"\r\n")
        size = int(line.split(b";")[0], 16)
        found += line + await reader.readexactly(size + 2)
    return found


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close a connection with a reset instead of an orderly end."""
    linger = struct.pack("ii", 1, 0)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.transport.abort()


@contextmanager
def proxied(host: str, port: int, faults: Faults | None = None) -> Generator[Proxy]:
    """Run a proxy in a thread of this process until the context ends."""
    proxy = Proxy(host, port, faults or Faults())
    ready = threading.Event()
    loop = asyncio.new_event_loop()
    ended = asyncio.Event()
    thread = threading.Thread(
        target=lambda: loop.run_until_complete(proxy.run(ready, ended)), daemon=True
    )
    thread.start()
    ready.wait(10)
    try:
        yield proxy
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(10)
        loop.close()


def main() -> None:
    """Run a proxy in a process of its own, so that it takes no time of the one it serves."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--upstream", required=True, help="host:port of the server behind it")
    parser.add_argument("--latency_ms", type=float, default=0)
    parser.add_argument("--mib_per_s", type=float, default=math.inf)
    parser.add_argument("--share", type=float, default=0, help="share of requests that fail")
    parser.add_argument("--retry_after_s", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    host, _, port = args.upstream.rpartition(":")
    faults = Faults(
        latency_s=args.latency_ms / 1000,
        bytes_per_s=args.mib_per_s * 2**20,
        share=args.share,
        retry_after_s=args.retry_after_s,
        seed=args.seed,
    )
    with proxied(host, int(port), faults) as proxy:
        print(proxy.url, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
