"""An HTTP server of the files of a folder, with ranges and entity tags.

`python -m benchmarks.streaming.servers.files <folder>` runs one until its standard input is closed,
and prints its address first.
"""

from __future__ import annotations

import hashlib
import re
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


class FileServer(ThreadingHTTPServer):
    """A server of the files below a folder.

    Args:
        folder: the files.
        handler: answers the requests.

    Attributes:
        asked: (method, path, range) of every request, in order of arrival.
        has_ranges: False to answer every request with the whole file.
        has_etags: False to leave entity tags out.
        statuses: answers that are given instead of the file, by path.
        token: the bearer token that requests must carry, or None.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, folder: Path, handler: type[FileHandler] | None = None) -> None:
        super().__init__(("127.0.0.1", 0), handler or FileHandler)
        self.folder = folder
        self.asked: list[tuple[str, str, str]] = []
        self.has_ranges = True
        self.has_etags = True
        self.statuses: dict[str, int] = {}
        self.token: str | None = None

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing for a connection that the client or a proxy has reset."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    @cached_property
    def port(self) -> int:
        """Return the number of the port."""
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        """Return the address of the folder, without a slash at the end."""
        return f"http://127.0.0.1:{self.port}"

    def names(self) -> list[str]:
        """Return the names of all files, sorted."""
        files = sorted(path for path in self.folder.rglob("*") if path.is_file())
        return [path.relative_to(self.folder).as_posix() for path in files]

    def asked_for(self, *ends: str) -> list[tuple[str, str, str]]:
        """Return the GET requests whose path has one of these endings."""
        return [each for each in self.asked if each[0] == "GET" and each[1].endswith(ends)]


class FileHandler(BaseHTTPRequestHandler):
    """The answer to GET and HEAD of a file, whole or a range of it."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else a body waits 40 ms for the acknowledgement of its head
    server: Any  # a FileServer; the base class declares another type

    def do_HEAD(self) -> None:
        """Answer without the body."""
        self._answer()

    def do_GET(self) -> None:
        """Answer with the body."""
        self._answer()

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.asked.append((self.command, path, self.headers.get("Range") or ""))
        token = self.server.token
        if token is not None and self.headers.get("Authorization") != f"Bearer {token}":
            self.send(401, b"who are you?")
        elif path in self.server.statuses:
            self.send(self.server.statuses[path], b"no")
        else:
            self.route(path)

    def route(self, path: str) -> None:
        """Answer a request for a path that is neither refused nor broken on purpose."""
        file = self.server.folder / path.lstrip("/")
        if file.is_file():
            self.send_file(file)
        else:
            self.send(404, b"no such file")

    def send_file(self, file: Path) -> None:
        """Send a file, or the range of it that is asked for."""
        tag = etag(file)
        size = file.stat().st_size
        headers = {"ETag": f'"{tag}"'} if self.server.has_etags else {}
        expected = self.headers.get("If-Match")
        if expected is not None and expected.strip('"') != tag:
            self.send(412, b"")
            return
        found = _RANGE.fullmatch(self.headers.get("Range") or "")
        if found is None or not self.server.has_ranges:
            self.send(200, file.read_bytes(), headers)
            return
        begin = int(found[1])
        end = min(int(found[2] or size - 1) + 1, size)
        if begin >= size:
            self.send(416, b"", {"Content-Range": f"bytes */{size}"})
            return
        with file.open("rb") as opened:
            opened.seek(begin)
            data = opened.read(end - begin)
        self.send(206, data, headers | {"Content-Range": f"bytes {begin}-{end - 1}/{size}"})

    def send(self, status: int, data: bytes, headers: dict[str, str] | None = None) -> None:
        """Send a whole answer."""
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


def etag(file: Path) -> str:
    """Return a tag that changes with size, time or inode of a file."""
    stat = file.stat()
    facts = f"{file.name} {stat.st_size} {stat.st_mtime_ns} {stat.st_ino}"
    return hashlib.sha1(facts.encode()).hexdigest()


@contextmanager
def serving(server: ThreadingHTTPServer) -> Generator[None]:
    """Serve in a thread until the context ends."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def main() -> None:
    """Serve a folder in a process of its own."""
    server = FileServer(Path(sys.argv[1]))
    with serving(server):
        print(server.url, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
