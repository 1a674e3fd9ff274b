"""Ranges on kept connections: few are opened; what they cannot do is the other client's."""

from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from benchmarks.streaming.servers.files import FileHandler, FileServer, serving
from kata.data.remote.http_connections import range_of
from kata.data.remote.http_objects import HttpObjects
from kata.data.remote.refusals import TransientError
from kata.data.storage.file_stamp import Stamp

DATA = bytes(range(200)) * 5


class Handler(FileHandler):
    """Counts connections, and closes or misleads as its server says."""

    def setup(self) -> None:
        super().setup()
        self.server.opened += 1

    def send_file(self, file: Path) -> None:
        if self.server.moved is not None:
            self.send(302, b"", {"Location": self.server.moved})
            return
        # Read before the answer is sent: the test goes on as soon as it has the bytes.
        closes = self.server.closes
        super().send_file(file)
        self.close_connection = closes

    def send(self, status: int, data: bytes, headers: dict[str, str] | None = None) -> None:
        super().send(status, data + self.server.more, headers)


class Server(FileServer):
    """A server of one file."""

    def __init__(self, folder: Path) -> None:
        (folder / "a.bin").write_bytes(DATA)
        super().__init__(folder, Handler)
        self.opened, self.closes, self.more = 0, False, b""
        self.moved: str | None = None


def read(server: Server, begin: int, size: int) -> bytes:
    objects = HttpObjects(server.url)
    return objects.read("a.bin", begin, size, Stamp(len(DATA), ""))


def test_requests_share_a_connection_until_it_is_closed(tmp_path: Path) -> None:
    server = Server(tmp_path)
    with serving(server):
        for begin in (0, 7, 900):
            assert read(server, begin, 100) == DATA[begin : begin + 100]
        assert server.opened == 1
        server.closes = True
        assert read(server, 3, 10) == DATA[3:13]
        server.closes = False
        assert read(server, 4, 10) == DATA[4:14]
        assert server.opened == 2


def test_an_answer_of_another_length_is_asked_for_again(tmp_path: Path) -> None:
    server = Server(tmp_path)
    with serving(server):
        assert read(server, 0, 100) == DATA[:100]
        server.more = b"x"
        with pytest.raises(TransientError):
            read(server, 0, 100)
        server.more = b""
        assert read(server, 0, 100) == DATA[:100]


def test_a_redirect_is_followed_by_the_other_client(tmp_path: Path) -> None:
    server, other = Server(tmp_path), Server(tmp_path)
    with serving(server), serving(other):
        server.moved = f"{other.url}/a.bin"
        assert range_of(f"{server.url}/a.bin", {}, 10) is None
        assert read(server, 5, 10) == DATA[5:15]


def test_a_host_behind_a_proxy_is_left_to_the_other_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = Server(tmp_path)
    with serving(proxy):
        monkeypatch.setenv("http_proxy", proxy.url)
        assert range_of("http://a.host.that.is.absent/a.bin", {}, 10) is None
        assert not proxy.asked


def test_a_host_that_cannot_be_reached_is_left_to_the_other_client() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), FileHandler)
    port = server.server_address[1]
    server.server_close()
    assert range_of(f"http://127.0.0.1:{port}/a.bin", {}, 10) is None
