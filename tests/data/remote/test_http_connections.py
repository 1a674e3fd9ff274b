"""Ranges on kept connections: few are opened; what they cannot do is the other client's."""

import os
import socket
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from benchmarks.streaming.servers.files import FileHandler, FileServer, serving
from kata.data.remote import http_connections
from kata.data.remote.http_connections import range_of
from kata.data.remote.http_objects import HttpObjects
from kata.data.remote.refusals import TransientError
from kata.data.storage.file_stamp import Stamp
from tests.data.remote.certificates import secure, self_signed

DATA = bytes(range(200)) * 5


class Handler(FileHandler):
    """Counts connections, and closes or misleads as its server says."""

    def setup(self) -> None:
        super().setup()
        self.server.opened += 1
        self.timeout = self.server.idle_s
        self.connection.settimeout(self.timeout)

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
        self.idle_s: float | None = None


def read(server: Server, begin: int, size: int, scheme: str = "http") -> bytes:
    objects = HttpObjects(f"{scheme}://127.0.0.1:{server.port}")
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


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key and a certificate that no one trusts unasked."""
    return self_signed(tmp_path_factory.mktemp("tls") / "server.pem")


@pytest.fixture(params=["http", "https"])
def either(
    tmp_path: Path,
    certificate: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Iterator[tuple[Server, str]]:
    """A server that speaks HTTP or HTTPS, and the scheme; its certificate is trusted."""
    server = Server(tmp_path)
    if request.param == "https":
        secure(server, certificate)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with serving(server):
        yield server, request.param


def test_a_connection_that_the_server_closed_while_idle_is_opened_again(
    either: tuple[Server, str],
) -> None:
    server, scheme = either
    server.idle_s = 0.05
    assert read(server, 0, 100, scheme) == DATA[:100]
    time.sleep(0.2)
    server.idle_s = None
    for begin in (7, 900):
        assert read(server, begin, 100, scheme) == DATA[begin : begin + 100]
    assert server.opened == 2


def test_many_idle_connections_that_were_closed_cost_one_more_try(
    either: tuple[Server, str],
) -> None:
    server, scheme = either
    server.idle_s = 0.3
    with ThreadPoolExecutor(4) as pool:
        asked = range(0, 80, 10)
        found = list(pool.map(lambda begin: read(server, begin, 10, scheme), asked))
        assert found == [DATA[begin : begin + 10] for begin in asked]
        opened = server.opened
        time.sleep(0.6)
        found = list(pool.map(lambda begin: read(server, begin, 10, scheme), asked))
    assert found == [DATA[begin : begin + 10] for begin in asked]
    assert server.opened <= opened + len(asked)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_opens_connections_of_its_own(either: tuple[Server, str]) -> None:
    server, scheme = either
    assert read(server, 0, 100, scheme) == DATA[:100]
    child = os.fork()  # beside threads, as DataLoader starts its workers
    if not child:
        # Nothing of pytest may run here.
        os._exit(0 if read(server, 7, 100, scheme) == DATA[7:107] else 1)
    _, status = os.waitpid(child, 0)
    assert status == 0
    assert read(server, 900, 100, scheme) == DATA[900:1000]
    assert server.opened == 2


def test_a_certificate_that_is_not_trusted_is_left_to_the_other_client(
    tmp_path: Path, certificate: Path
) -> None:
    server = Server(tmp_path)
    secure(server, certificate)
    with serving(server):
        assert range_of(f"https://127.0.0.1:{server.port}/a.bin", {}, 10) is None


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


def test_a_host_that_no_proxy_names_is_asked_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy, server = Server(tmp_path), Server(tmp_path)
    with serving(proxy), serving(server):
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.setenv("no_proxy", "another.host,127.0.0.1")
        for begin in (0, 7):
            answer = range_of(f"{server.url}/a.bin", {"Range": f"bytes={begin}-99"}, 100 - begin)
            assert answer is not None
            assert answer.body == DATA[begin:100]
        assert not proxy.asked
        assert server.opened == 1


def test_a_host_that_cannot_be_reached_is_left_to_the_other_client() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), FileHandler)
    port = server.server_address[1]
    server.server_close()
    assert range_of(f"http://127.0.0.1:{port}/a.bin", {}, 10) is None


@contextmanager
def speaking(pieces: Sequence[bytes], pause_s: float = 0.01) -> Generator[str]:
    """Answer the request of every connection with these pieces, one by one, and close it."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return  # it was shut down
            with connection, suppress(ConnectionError):  # the client may have given up
                connection.recv(1 << 16)
                for piece in pieces:
                    time.sleep(pause_s)
                    connection.sendall(piece)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/a.bin"
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join()


HEAD = b"HTTP/1.1 206 Partial Content\r\nETag: tag\r\n"


@pytest.mark.parametrize(
    ("pieces", "body"),
    [
        pytest.param([HEAD + b"Content-Length: 4\r\n\r\nabcd"], b"abcd", id="at once"),
        pytest.param(
            [HEAD[:9], HEAD[9:-1], b"\nContent-Le", b"ngth:4\r\n\r", b"\n", b"a", b"bc", b"d"],
            b"abcd",
            id="in pieces",
        ),
        pytest.param([HEAD + b"\r\nab", b"cd"], b"abcd", id="without a length"),
        pytest.param([HEAD + b"Content-Length: 4\r\n\r\nab"], b"ab", id="cut off"),
    ],
)
def test_an_answer_is_read_however_it_comes(pieces: Sequence[bytes], body: bytes) -> None:
    with speaking(pieces) as url:
        answer = range_of(url, {}, 4)
    assert answer is not None
    assert (answer.status_code, answer.reason_phrase) == (206, "Partial Content")
    assert answer.headers["etag"] == "tag"
    assert answer.body == body


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n", id="chunks"),
        pytest.param(b"220 mail.example.com ESMTP\r\n\r\n", id="another protocol"),
        pytest.param(HEAD + b"Content-Length: -4\r\n\r\n", id="a length below zero"),
        pytest.param(HEAD, id="half a head"),
    ],
)
def test_an_answer_that_is_not_understood_is_left_to_the_other_client(answer: bytes) -> None:
    with speaking([answer]) as url:
        assert range_of(url, {}, 4) is None


@pytest.mark.parametrize(
    ("path", "headers"), [("a b", {}), ("a", {"Authorization": "Bearer x\r\nHost: other"})]
)
def test_a_request_with_a_line_of_its_own_is_not_sent(path: str, headers: dict[str, str]) -> None:
    with speaking([HEAD + b"Content-Length: 4\r\n\r\nabcd"]) as url:
        assert range_of(url.replace("a.bin", path), headers, 4) is None


def test_a_server_that_falls_silent_is_given_up_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_connections, "_TIMEOUT_S", 0.1)
    whole = HEAD + b"Content-Length: 4\r\n\r\nabcd"
    with speaking([whole[:-2], whole[-2:]], pause_s=0.02) as url:
        assert range_of(url, {}, 4) is not None
    with speaking([whole[:-2], whole[-2:]], pause_s=0.4) as url:
        http_connections._reached.add(("http", url.split("/")[2]))
        with pytest.raises(TransientError, match="nothing came"):
            range_of(url, {}, 4)
