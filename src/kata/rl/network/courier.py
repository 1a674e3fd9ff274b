"""The courier: sends episodes and fetches weights in the background, as long as it takes."""

from __future__ import annotations

import logging
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from urllib.parse import urlsplit

import httpx

from kata.closing import Closing
from kata.errors import ConfigError
from kata.rl.network.options import LOOPBACK, CallingConfig, read_token
from kata.rl.network.spool import ActorIdentity, Spool, Spooled
from kata.rl.network.wire import (
    ACTOR,
    AWAY,
    FORBIDDEN,
    HEADER_BYTES,
    INSTANCE,
    JSON_BYTES,
    POLL_S,
    PREFIX,
    RETRIED,
    RUN,
    STOP,
    TOO_LARGE,
    VERSION,
    WEIGHTS,
    Greeting,
    NetworkError,
    RunFacts,
    Welcome,
    from_message,
    refusal_of,
    to_message,
)
from kata.units import duration_s, seconds_text

SAID_S = 10.0
"""Time between messages that the learner is away."""

UNENCRYPTED = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE")
"""Words of OpenSSL's messages about an answer that is none of TLS."""

UNTRUSTED = "CERTIFICATE_VERIFY_FAILED"
"""Words of OpenSSL's messages about certificates."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 2.0
"""Pauses before another try."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Answer:
    """A learner's answer."""

    status: int
    headers: httpx.Headers
    body: bytes


@dataclass(frozen=True)
class Fetched:
    """Weights from the learner.

    Attributes:
        version: of the learner's.
        updates: done when they were taken.
        body: safetensors.
    """

    version: str
    updates: int
    body: bytes


class Line(Closing):
    """A line to the learner: requests with a token, each with limits of time and size.

    Args:
        options: of the network.

    Raises:
        ConfigError: a token or certificate cannot be read.
    """

    def __init__(self, options: CallingConfig) -> None:
        token = read_token(options.token_file)
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        where = urlsplit(options.learner)
        if token is not None and where.scheme == "http" and where.hostname not in LOOPBACK:
            _log.warning("%s: token and episodes travel unencrypted", options.learner)
        try:
            self._client = httpx.Client(
                base_url=options.learner.rstrip("/") + PREFIX,
                headers=headers,
                verify=_trusted(options.ca_file),
                timeout=httpx.Timeout(30.0, connect=5.0),
                trust_env=False,
            )
        except OSError as error:
            raise ConfigError(
                f"rl.ca_file={options.ca_file}: {error}",
                rule="a PEM file of certificates",
                remedy="the learner's --rl.certificate, or leave it out",
            ) from error

    def ask(self, method: str, path: str, most: int, body: bytes = b"", **headers: str) -> Answer:
        """Send a request and return its answer.

        Args:
            method: of HTTP.
            path: below the protocol's prefix.
            most: bytes of the answer's body.
            body: of the request.
            headers: with _ for -.

        Raises:
            NetworkError: the learner refuses, or its answer is too large.
            httpx.TransportError: there is no answer.
        """
        try:
            return self._asked(method, path, most, body, headers)
        except httpx.ConnectError as error:
            if UNTRUSTED in str(error):  # waiting does not help
                raise _untrusted(self._client.base_url, error) from error
            if any(words in str(error) for words in UNENCRYPTED):
                raise _other_scheme(self._client.base_url, "http") from error
            raise
        except (httpx.RemoteProtocolError, httpx.ReadError) as error:
            # A learner that goes cuts the connection in the same way, so it is asked.
            url = self._client.base_url
            if url.scheme == "http" and _speaks_tls(url):
                raise _other_scheme(url, "https") from error
            raise

    def _asked(
        self, method: str, path: str, most: int, body: bytes, headers: Mapping[str, str]
    ) -> Answer:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        found = bytearray()
        with self._client.stream(method, path, content=body, headers=given) as response:
            for part in response.iter_raw():
                found += part
                if len(found) > most:
                    raise NetworkError(
                        TOO_LARGE,
                        f"{path}: an answer of more than {most} bytes",
                        rule="weights of the run's policy",
                        remedy="use the same version of kata on both sides",
                    )
            if response.status_code not in (200, 204):
                raise refusal_of(response.status_code, bytes(found))
            return Answer(response.status_code, response.headers, bytes(found))

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


def _trusted(ca_file: str | None) -> ssl.SSLContext | bool:
    if ca_file is None:
        return True
    return ssl.create_default_context(cafile=ca_file)


def _untrusted(url: httpx.URL, error: httpx.ConnectError) -> NetworkError:
    return NetworkError(
        FORBIDDEN,
        f"{url.scheme}://{url.netloc.decode()}: its certificate is not trusted ({error})",
        rule="the learner's certificate names its address, and is signed by who is trusted here",
        remedy="--rl.ca_file=<the learner's --rl.certificate>; the certificate's subjectAltName "
        "has the host of --rl.learner",
    )


def _speaks_tls(url: httpx.URL) -> bool:
    """Return True if a server answers a handshake of TLS. Nothing is sent, so nobody is trusted."""
    anybody = ssl.create_default_context()
    anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            socket.create_connection((url.host, url.port or 80), timeout=5.0) as plain,
            anybody.wrap_socket(plain, server_hostname=url.host),
        ):
            return True
    except OSError:  # ssl's errors are among them
        return False


def _other_scheme(url: httpx.URL, scheme: str) -> NetworkError:
    return NetworkError(
        FORBIDDEN,
        f"{url.scheme}://{url.netloc.decode()}: the learner speaks {scheme}",
        rule="https:// where the learner has --rl.certificate, else http://",
        remedy=f"--rl.learner={scheme}://{url.netloc.decode()}",
    )


class Patience:
    """The time for which the learner was not heard.

    Args:
        limit_s: after which the actor stops.

    Attributes:
        is_away: True while the learner does not answer.
    """

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._heard_s = self._said_s = time.monotonic()
        self.is_away = False

    @property
    def is_over(self) -> bool:
        """Return True if the learner is away for too long."""
        return time.monotonic() - self._heard_s > self.limit_s

    def heard(self) -> None:
        """Note that the learner is there."""
        if self.is_away:
            _log.info("the learner is back")
        self.is_away, self._heard_s = False, time.monotonic()

    def missed(self, why: str) -> None:
        """Note that the learner did not answer, and log it now and then."""
        now = time.monotonic()
        if not self.is_away or now - self._said_s >= SAID_S:
            self._said_s = now
            away = seconds_text(now - self._heard_s)
            limit = seconds_text(self.limit_s)
            _log.warning("the learner is away for %s of %s (%s)", away, limit, why)
        self.is_away = True

    def error(self, learner: str, waiting: int) -> NetworkError:
        """Return the message of an actor that waited for too long."""
        return NetworkError(
            AWAY,
            f"{learner}: no answer for {seconds_text(self.limit_s)}",
            rule=f"--rl.patience; {waiting} episodes wait in the spool and are not lost",
            remedy="start the learner, then the actor again with the same --output_dir",
        )


class EpisodeCourier(Closing):
    """Two threads of an actor: one sends its episodes in order, one asks for weights and so shows
    that the actor lives.

    Args:
        line: to the learner.
        spool: of the actor.
        who: is the actor.
        weights_bytes: size of the weights' arrays.
        patience: of the actor.

    Attributes:
        is_told_to_stop: True once the learner has enough.
        sent: episodes that this process has sent.
    """

    def __init__(
        self, line: Line, spool: Spool, who: ActorIdentity, weights_bytes: int, patience: Patience
    ) -> None:
        self._line = line
        self._spool = spool
        self._who = {RUN: who.run_id, ACTOR: who.name, INSTANCE: who.instance}
        self._most = weights_bytes + HEADER_BYTES
        self._patience = patience
        self._ends = threading.Event()
        self._fetched: Fetched | None = None
        self._have = threading.Event()
        self.is_told_to_stop = False
        self.sent = 0
        pool = ThreadPoolExecutor(2, thread_name_prefix="kata-courier")
        self._work: list[Future[None]] = [pool.submit(self._send_all), pool.submit(self._fetch_all)]
        pool.shutdown(wait=False)

    def check(self) -> None:
        """Raise what ended a thread, if one has ended."""
        for future in self._work:
            if future.done() and not self._ends.is_set():
                future.result()

    def newest(self, wait_s: float = 0.0) -> Fetched | None:
        """Return the newest weights, or None before the first; wait for those for a while."""
        self._have.wait(wait_s)
        return self._fetched

    def close(self) -> None:
        """Say goodbye, and end both threads."""
        self._ends.set()
        for future in self._work:
            future.exception()
        try:
            self._line.ask("POST", "/bye", JSON_BYTES, b"", **self._who)
        except (httpx.TransportError, NetworkError) as error:
            _log.info("left without a goodbye (%s)", error)

    def _send_all(self) -> None:
        while not self._ends.is_set():
            found = self._spool.oldest(0.2)
            if found is not None and self._send(found):
                self._spool.remove(found)
                self.sent += 1

    def _send(self, found: Spooled) -> bool:
        """Return True once the learner has an episode on its disk, False if the actor ends."""
        raw, path = found.path.read_bytes(), f"/episodes/{found.sequence}"
        answer = self._asked("PUT", path, JSON_BYTES, raw, **{WEIGHTS: str(found.weights)})
        return answer is not None

    def _fetch_all(self) -> None:
        while not self._ends.is_set():
            if self.is_told_to_stop:  # weights are not needed any more
                answer = self._asked("POST", "/beat", JSON_BYTES)
            else:
                have = "" if self._fetched is None else self._fetched.version
                answer = self._asked("GET", f"/weights?have={have}", self._most)
            if answer is None:
                return
            self.is_told_to_stop = answer.headers.get(STOP) == "1"
            if answer.status == 200:
                updates = int(answer.headers[WEIGHTS])
                self._fetched = Fetched(answer.headers[VERSION], updates, answer.body)
                self._have.set()
            if self.is_told_to_stop:
                self._ends.wait(POLL_S / 4)

    def _asked(
        self, method: str, path: str, most: int, body: bytes = b"", **headers: str
    ) -> Answer | None:
        """Ask until there is an answer; None if the actor ends before."""
        pause_s = FIRST_PAUSE_S
        while not self._ends.is_set():
            try:
                answer = self._line.ask(method, path, most, body, **self._who, **headers)
            except httpx.TransportError as error:
                self._patience.missed(f"{type(error).__name__}: {error}")
            except NetworkError as error:
                if error.status not in RETRIED:
                    raise
                self._patience.missed(error.what)
            else:
                self._patience.heard()
                return answer
            self._ends.wait(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        return None


def meet(line: Line, patience: Patience, learner: str) -> RunFacts:
    """Return what the learner's run is, waiting for the learner.

    Raises:
        NetworkError: the learner refuses, or the patience is over.
    """
    return from_message(RunFacts, _patient(line, patience, learner, "GET", "/run", b""))


def greet(line: Line, patience: Patience, learner: str, greeting: Greeting) -> Welcome:
    """Say hello, and return how far the learner knows this actor to be; see `meet`."""
    body = to_message(greeting)
    return from_message(Welcome, _patient(line, patience, learner, "POST", "/hello", body))


def _patient(
    line: Line, patience: Patience, learner: str, method: str, path: str, body: bytes
) -> bytes:
    while True:
        try:
            answer = line.ask(method, path, JSON_BYTES, body)
        except httpx.TransportError as error:
            patience.missed(f"{type(error).__name__}: {error}")
        except NetworkError as error:
            if error.status not in RETRIED:
                raise
            patience.missed(error.what)
        else:
            patience.heard()
            return answer.body
        if patience.is_over:
            raise patience.error(learner, 0)
        time.sleep(LONGEST_PAUSE_S / 4)


def patience_of(options: CallingConfig) -> Patience:
    """Return the patience of these options."""
    return Patience(duration_s(options.patience))
