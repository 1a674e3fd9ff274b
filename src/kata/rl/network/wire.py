"""The protocol between actors and learner: names, messages and refusals. Torch-free.

    GET  /v1/run                   what the run is
    POST /v1/hello                 an actor, and what it will send
    PUT  /v1/episodes/<number>     an episode; answered when it is on the learner's disk
    GET  /v1/weights?have=<v>      newer weights; waits for them for a while, then 204
    POST /v1/beat                  a sign of life
    POST /v1/bye                   the actor leaves

Bodies are JSON or safetensors. Refusals are JSON objects with what, rule and remedy.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from kata.errors import ConfigError, KataError

PREFIX = "/v1"
RUN = "kata-run"
ACTOR = "kata-actor"
INSTANCE = "kata-instance"
"""Headers by which an actor says who it is and whose run it takes part in."""

WEIGHTS = "kata-weights"
VERSION = "kata-version"
UPDATES = "kata-updates"
STOP = "kata-stop"
"""Headers: updates that a policy had seen; version of weights; updates done; the run's end."""

JSON_BYTES = 1_000_000
"""Largest JSON body."""

HEADER_BYTES = 65_536
"""Room for the header of a safetensors body, beside its arrays."""

POLL_S = 2.0
"""Longest wait for newer weights."""

SILENT_S = 15.0
"""An actor that was not heard for this long is away."""

BAD = 400
UNAUTHORIZED = 401
FORBIDDEN = 403
CONFLICT = 409
TOO_LARGE = 413
MALFORMED = 422
BUSY = 429
BROKEN = 500
AWAY = 503
FULL = 507
RETRIED = (BUSY, BROKEN, AWAY, FULL)
"""Statuses after which an actor tries again; after any other refusal it stops."""


class NetworkError(KataError):
    """A refusal between actor and learner.

    Args:
        status: of HTTP.
        what: see KataError.
        rule: see KataError.
        remedy: see KataError.
    """

    def __init__(self, status: int, what: str, *, rule: str = "", remedy: str = "") -> None:
        super().__init__(what, rule=rule, remedy=remedy)
        self.status = status


@dataclass(frozen=True)
class RunFacts:
    """The facts of a run that an actor needs.

    Attributes:
        run_id: differs between runs.
        schema: digest of the schema of episodes.
        env: see `kata.rl.network.env_record`.
        seed: of the run.
        reward: see `RlConfig`.
        policy: the policy's config as plain values, with statistics.
        takeover: the run's `TakeoverConfig` as plain values.
        judge: digest and threshold of the reward classifier; empty without one.
        episode_bytes: size of the largest episode.
        weights_bytes: size of the arrays of the weights.
    """

    run_id: str
    schema: str
    env: dict[str, Any]
    seed: int
    reward: str
    policy: dict[str, Any]
    takeover: dict[str, Any]
    judge: dict[str, Any]
    episode_bytes: int
    weights_bytes: int


@dataclass(frozen=True)
class Greeting:
    """A hello.

    Attributes:
        run_id: of the run.
        name: of the actor.
        instance: drawn once for the actor's folder.
        schema: see `RunFacts`.
        env: of the actor, see `RunFacts`.
    """

    run_id: str
    name: str
    instance: str
    schema: str
    env: dict[str, Any]


@dataclass(frozen=True)
class Welcome:
    """The answer to a hello.

    Attributes:
        next_sequence: number that the actor's next episode has in the journal.
        steps: of the actor's episodes before.
    """

    next_sequence: int
    steps: int


def to_message(value: Any) -> bytes:
    """Return a dataclass of this module as JSON."""
    return json.dumps(asdict(value)).encode()


def from_message(cls: type[Any], raw: bytes) -> Any:
    """Return the message of a class.

    Raises:
        NetworkError: it is none.
    """
    try:
        found = json.loads(raw)
        known = {field.name: field.type for field in fields(cls)}
        if not isinstance(found, dict) or found.keys() != known.keys():
            raise ValueError(f"fields {', '.join(known)} are needed")
        for name, kind in known.items():
            wanted = {"str": str, "int": int}.get(str(kind), dict)
            if not isinstance(found[name], wanted):
                raise ValueError(f"{name} is not of the type {wanted.__name__}")
        return cls(**found)
    except (ValueError, TypeError, RecursionError) as error:
        raise NetworkError(
            BAD,
            f"a message {cls.__name__} that cannot be read ({error})",
            rule="a JSON object of kata's protocol",
            remedy="use the same version of kata on both sides",
        ) from error


def refusal_of(status: int, raw: bytes) -> NetworkError:
    """Return the refusal that an answer tells, whatever its body is."""
    try:
        found = json.loads(raw)
        texts = [str(found[name]) for name in ("what", "rule", "remedy")]
    except (ValueError, KeyError, TypeError, RecursionError):
        return NetworkError(
            status,
            f"the learner answers with status {status}",
            rule="a learner of kata is at this address",
            remedy="check --rl.learner, and the learner's rl.log",
        )
    return NetworkError(status, texts[0], rule=texts[1], remedy=texts[2])


def refusal_message(error: KataError) -> Mapping[str, str]:
    """Return a refusal as JSON values."""
    return {"what": error.what, "rule": error.rule, "remedy": error.remedy}


def library(name: str) -> Any:
    """Return a module of the extra `rl`.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"{name} is not installed ({error})",
            rule="`kata rl learn` and `kata rl act` talk HTTP by starlette, uvicorn and httpx, "
            "which come with kata's extra `rl`",
            remedy="uv pip install 'kata[rl]'",
        ) from error
