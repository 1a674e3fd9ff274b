"""The learner's HTTP server: it checks what comes, and leaves it at the desk."""

from __future__ import annotations

import asyncio
import hmac
import socket
import threading
import time
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from kata.closing import Closing
from kata.errors import ConfigError, DataError, KataError
from kata.rl.episodes.episode import PlayedEpisode, Schema
from kata.rl.network.desk import Desk, Submission
from kata.rl.network.options import ServingConfig
from kata.rl.network.wire import (
    ACTOR,
    AWAY,
    BAD,
    INSTANCE,
    JSON_BYTES,
    MALFORMED,
    POLL_S,
    PREFIX,
    RUN,
    STOP,
    TOO_LARGE,
    UNAUTHORIZED,
    UPDATES,
    VERSION,
    WEIGHTS,
    Greeting,
    NetworkError,
    from_message,
    refusal_message,
    to_message,
)

ADMITTED_S = 20.0
"""Longest wait for the learner to take an episode; the actor sends it again after that."""

BODY_S = 120.0
"""Longest time that a body may take to arrive."""


class _Handlers:
    """The answers to requests."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def run(self, request: Request) -> Response:
        del request
        return Response(to_message(self._desk.facts), media_type="application/json")

    async def hello(self, request: Request) -> Response:
        greeting: Greeting = from_message(Greeting, await _body(request, JSON_BYTES))
        welcome = await run_in_threadpool(self._desk.hello, greeting)
        return Response(to_message(welcome), media_type="application/json")

    async def episode(self, request: Request) -> Response:
        name = self._identify(request)
        sequence = _number(request.path_params["sequence"], "the episode's number")
        weights = _number(request.headers.get(WEIGHTS, ""), WEIGHTS)
        with self._desk.sending(name):
            body = await _body(request, self._desk.facts.episode_bytes)
            source = f"actor {name}, episode {sequence}"
            episode = await run_in_threadpool(_parsed, body, self._desk.schema, source)
            _refuse_long(episode, self._desk.max_steps, source)
            submission = Submission(name, sequence, weights, episode)
            self._desk.submit(submission)
            try:
                await asyncio.wait_for(asyncio.wrap_future(submission.answer), ADMITTED_S)
            except TimeoutError as error:
                raise NetworkError(
                    AWAY,
                    f"{source}: not taken within {ADMITTED_S:g} s",
                    rule="the learner takes episodes between updates and evaluations",
                    remedy="send it again",
                ) from error
        return self._answer()

    async def weights(self, request: Request) -> Response:
        self._identify(request)
        have, until = request.query_params.get("have", ""), time.monotonic() + POLL_S
        while True:
            found = self._desk.published
            if found is not None and found.version != have:
                response = self._answer(200, found.body, "application/octet-stream")
                response.headers[VERSION] = found.version
                response.headers[WEIGHTS] = str(found.updates)
                return response
            if self._desk.is_over or time.monotonic() >= until:
                return self._answer()
            await asyncio.sleep(0.02)

    async def beat(self, request: Request) -> Response:
        self._identify(request)
        return self._answer()

    async def bye(self, request: Request) -> Response:
        self._desk.leave(self._identify(request))
        return self._answer()

    def _identify(self, request: Request) -> str:
        who = (request.headers.get(each, "") for each in (RUN, ACTOR, INSTANCE))
        return self._desk.identify(*who)

    def _answer(self, status: int = 204, body: bytes = b"", kind: str | None = None) -> Response:
        headers = {UPDATES: str(self._desk.updates), STOP: str(int(self._desk.is_over))}
        return Response(body, status, headers, kind)


async def _body(request: Request, most: int) -> bytes:
    """Return a body, and refuse one that is too large before it is read."""
    declared = request.headers.get("content-length")
    if declared is None:
        raise NetworkError(
            BAD, "a body of unknown size", rule="content-length", remedy="say the size"
        )
    if _number(declared, "content-length") > most:
        raise NetworkError(
            TOO_LARGE,
            f"a body of {declared} bytes",
            rule=f"at most {most}, which a whole episode of the run takes",
            remedy="give `kata rl act` the --env.max_steps of `kata rl learn`, or `kata rl learn` "
            "a larger --rl.max_episode_mb",
        )
    parts = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            async for part in request.stream():  # the server ends it at the declared size
                parts += part
    except (ClientDisconnect, TimeoutError) as error:
        raise NetworkError(
            BAD, f"a body that ended after {len(parts)} of {declared} bytes", remedy="send it again"
        ) from error
    return bytes(parts)


def _parsed(body: bytes, schema: Schema, source: str) -> PlayedEpisode:
    """Return an episode that is what the run needs."""
    try:
        return PlayedEpisode.admitted(body, schema, source)
    except DataError as error:
        raise NetworkError(
            MALFORMED, error.what, rule=error.rule, remedy="repair the actor's environment"
        ) from error
    # The header is what anybody may send: numbers that are none, lists in lists.
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as e:
        raise NetworkError(
            MALFORMED,
            f"{source}: a body that cannot be read ({e})",
            rule="an episode as safetensors, as kata writes it",
            remedy="use the same version of kata on both sides",
        ) from e


def _refuse_long(episode: PlayedEpisode, most: int, source: str) -> None:
    if episode.steps > most:
        raise NetworkError(
            TOO_LARGE,
            f"{source}: {episode.steps} steps",
            rule=f"at most {most}: what the learner's environment allows (--env.max_steps), and "
            "every buffer holds",
            remedy="give `kata rl act` the --env.max_steps of `kata rl learn`",
        )


def _number(text: str, name: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 15):
        raise NetworkError(
            BAD, f"{name}: {text[:40]!r}", rule="a whole number", remedy="use kata's actor"
        )
    return int(text)


def application(desk: Desk, token: str | None) -> ASGIApp:
    """Return the server's application.

    Args:
        desk: where episodes go.
        token: that every request must have, or None.
    """
    handlers = _Handlers(desk)
    routes = [
        Route(f"{PREFIX}/run", handlers.run, methods=["GET"]),
        Route(f"{PREFIX}/hello", handlers.hello, methods=["POST"]),
        Route(f"{PREFIX}/episodes/{{sequence}}", handlers.episode, methods=["PUT"]),
        Route(f"{PREFIX}/weights", handlers.weights, methods=["GET"]),
        Route(f"{PREFIX}/beat", handlers.beat, methods=["POST"]),
        Route(f"{PREFIX}/bye", handlers.bye, methods=["POST"]),
    ]
    answers: Any = {KataError: _refusal, 404: _unknown, 405: _unknown}
    inner = Starlette(routes=routes, exception_handlers=answers)
    wanted = None if token is None else f"Bearer {token}".encode()

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        given = dict(scope.get("headers", [])).get(b"authorization", b"")
        if wanted is None or hmac.compare_digest(given, wanted):
            await inner(scope, receive, send)
            return
        error = NetworkError(
            UNAUTHORIZED,
            "the learner's token: " + ("another one" if given else "not given"),
            rule="every request has the token of the learner's --rl.token_file",
            remedy="--rl.token_file=<the same file's content> for `kata rl act`",
        )
        await JSONResponse(refusal_message(error), UNAUTHORIZED)(scope, receive, send)

    return guarded


async def _refusal(request: Request, error: Exception) -> Response:
    del request
    assert isinstance(error, KataError)
    status = error.status if isinstance(error, NetworkError) else 500
    return JSONResponse(refusal_message(error), status)


async def _unknown(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    refusal = NetworkError(
        error.status_code,
        f"{request.method} {request.url.path[:60]}: no such request",
        rule=f"requests of kata's protocol, below {PREFIX}",
        remedy="use the same version of kata on both sides",
    )
    return JSONResponse(refusal_message(refusal), error.status_code, error.headers)


class Serving(Closing):
    """A server that holds its address, and answers in a thread from `start` until it is closed.

    Args:
        desk: where episodes go.
        options: address, TLS and limits.
        token: see `application`.

    Attributes:
        url: by which this machine reaches it.

    Raises:
        ConfigError: the address is taken, or a certificate cannot be read.
    """

    def __init__(self, desk: Desk, options: ServingConfig, token: str | None) -> None:
        self._server = uvicorn.Server(_settings(application(desk, token), options))
        self._socket = _bound(options.host, options.port)
        host, port = self._socket.getsockname()[:2]
        scheme = "https" if options.certificate else "http"
        self.url = f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True
        )

    def start(self) -> None:
        """Answer from now on."""
        self._thread.start()
        while not self._server.started and self._thread.is_alive():
            time.sleep(0.005)

    def close(self) -> None:
        """Answer what is under way, and stop."""
        self._server.should_exit = True
        if self._thread.ident is not None:
            self._thread.join()
        self._socket.close()


def _settings(app: ASGIApp, options: ServingConfig) -> uvicorn.Config:
    plain: dict[str, Any] = {
        "log_config": None,
        "access_log": False,
        "server_header": False,
        "lifespan": "off",
        "ws": "none",
        "http": "h11",
        "limit_concurrency": 4 * options.max_actors + 8,
        "timeout_graceful_shutdown": 3,
        "ssl_certfile": options.certificate,
        "ssl_keyfile": options.private_key,
    }
    config = uvicorn.Config(app, **plain)
    try:
        config.load()
    except OSError as error:  # ssl's errors are among them
        raise ConfigError(
            f"rl.certificate={options.certificate}, rl.private_key={options.private_key}: {error}",
            rule="a certificate and its key as PEM files",
            remedy="openssl req -x509 -newkey rsa:2048 -nodes -days 365 -subj /CN=<host> -addext "
            "subjectAltName=DNS:<host> -keyout key.pem -out certificate.pem",
        ) from error
    return config


def _bound(host: str, port: int) -> socket.socket:
    """Return a socket that listens at an address."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
        except OSError:
            bound.close()
            raise
    except OSError as error:
        raise ConfigError(
            f"rl.host={host}, rl.port={port}: {error}",
            rule="an address of this machine at which nobody listens",
            remedy="another --rl.port (0 takes a free one), or end who listens there",
        ) from error
    return bound
