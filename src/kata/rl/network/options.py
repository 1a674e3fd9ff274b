"""The options of `kata rl learn` and `kata rl act`. Torch-free."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

from kata.config import (
    DURATION,
    REQUIRED,
    Form,
    Options,
    assign,
    decode,
    option,
    parse_flags,
    refuse_unknown,
)
from kata.config.schema import entries
from kata.errors import ConfigError, did_you_mean
from kata.policies.rules import Rule
from kata.rl.options import RlRun, resolve_rl
from kata.run import EnvConfig

LOOPBACK = ("127.0.0.1", "::1", "localhost")
NAME = Form("1 to 32 letters, digits, - and _", "arm1", re.compile(r"[\w-]{1,32}", re.A).fullmatch)
LEAST_TOKEN = 16


@dataclass(frozen=True, kw_only=True)
class ServingConfig(Options):
    """The learner's side of the network."""

    at: ClassVar[str] = "rl."

    host: str = option(
        "127.0.0.1",
        "Address that actors reach; any other than loopback needs rl.token_file.",
        is_common=True,
    )
    port: int = option(50051, "Port; 0 takes a free one.", least=0, most=65535, is_common=True)
    token_file: str | None = option(
        None,
        "File with the token that actors must have, readable by its owner alone.",
        is_common=True,
    )
    certificate: str | None = option(None, "Certificate (PEM file); with it, actors use https.")
    private_key: str | None = option(None, "Private key of the certificate (PEM file).")
    utd_max: float | None = option(
        None,
        "Most updates per step in the environment: the learner pauses there. null for one per "
        "rl.update_every steps.",
        above=0,
        is_common=True,
    )
    publish_every: str = option("4s", "Least time between weights for actors.", form=DURATION)
    max_actors: int = option(16, "Names of actors that the run accepts.", least=1)
    max_episode_mb: float | None = option(
        None,
        "Largest episode, 10^6 bytes; null for the longest that the environment allows.",
        above=0,
    )
    max_journal_gb: float | None = option(
        None, "Largest journal, 10^9 bytes; null until the disk is full.", above=0
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        _refuse_broken(self._rules())

    def _rules(self) -> Iterator[Rule]:
        yield (
            self.host not in LOOPBACK and self.token_file is None,
            f"rl.host={self.host} without rl.token_file",
            "only loopback (127.0.0.1) is open without a token",
            "openssl rand -hex 32 > token; chmod 600 token; --rl.token_file=token on both sides",
        )
        yield (
            (self.certificate is None) != (self.private_key is None),
            "rl.certificate and rl.private_key: one without the other",
            "TLS needs both",
            "give both files, or none",
        )


@dataclass(frozen=True, kw_only=True)
class LearnRun(Options):
    """The options of `kata rl learn` beside those of `kata rl train`."""

    rl: ServingConfig = option(ServingConfig, "", section="network")


@dataclass(frozen=True, kw_only=True)
class CallingConfig(Options):
    """The actor's side of the network."""

    at: ClassVar[str] = "rl."

    learner: str = option(
        REQUIRED, "Address of the learner, such as http://127.0.0.1:50051.", is_common=True
    )
    name: str = option("actor", "Name of this actor in the run.", form=NAME, is_common=True)
    token_file: str | None = option(None, "File with the learner's token.", is_common=True)
    ca_file: str | None = option(
        None, "Certificates that are trusted (PEM file); null for those of the system."
    )
    patience: str = option(
        "10m",
        "Time that the actor continues with its last weights while the learner is away.",
        form=DURATION,
        is_common=True,
    )
    classifier: str | None = option(
        None,
        "Folder of the learner's reward classifier on this machine, where that is the reward.",
    )
    spool_gb: float = option(
        10.0, "Episodes that wait for the learner, 10^9 bytes; then the actor waits.", above=0
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        parts = urlsplit(self.learner)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(
                f"rl.learner={self.learner}",
                rule="an address with http:// or https://",
                remedy="for example --rl.learner=http://127.0.0.1:50051",
            )


@dataclass(frozen=True, kw_only=True)
class ActRun(Options):
    """The options of `kata rl act`. What the policy is and learns comes from the learner."""

    output_dir: str = option(
        REQUIRED,
        "Folder of this actor: who it is, and episodes that the learner does not have yet. The "
        "same folder continues.",
        is_common=True,
    )
    device: str | None = option(None, "Device that acts; null takes the best one here.")
    env: EnvConfig = option(REQUIRED, "", section="environment")
    rl: CallingConfig = option(REQUIRED, "", section="network")


def resolve_learn(args: Sequence[str]) -> tuple[ServingConfig, RlRun]:
    """Return the options of the learner's network, and those of the run.

    Raises:
        ConfigError: an unknown name or a wrong value.
    """
    mine = {entry.name for entry in entries(LearnRun)}
    known = mine | {entry.name for entry in entries(RlRun) if entry.name.startswith("rl.")}
    own: dict[str, Any] = {}
    rest: list[str] = []
    for name, value in parse_flags(args).items():
        if name in mine:
            assign(own, name, value)
        elif name.startswith("rl.") and name not in known:
            raise ConfigError(
                f"--{name}: no such option of kata rl learn",
                rule="options have fixed names; `kata rl learn --help=all` lists those of the "
                "network, `kata rl train --help=all` the others",
                remedy=did_you_mean(name, known),
            )
        else:
            rest.append(f"--{name}" if value is True else f"--{name}={value}")
    return decode(LearnRun, own, verb="kata rl learn").rl, resolve_rl(rest)


def resolve_act(args: Sequence[str]) -> ActRun:
    """Return the options of an actor.

    Raises:
        ConfigError: an unknown name, a wrong value, no environment or no learner.
    """
    given: dict[str, Any] = {}
    for name, value in parse_flags(args).items():
        assign(given, name, value)
    refuse_unknown(ActRun, given, "kata rl act")
    for group, cls in (("env", EnvConfig), ("rl", CallingConfig)):
        _refuse_misspelt(group, cls, given.get(group, {}))
    for group, what, example in (
        ("env", "type", "--env.type=kata"),
        ("rl", "learner", "--rl.learner=http://127.0.0.1:50051"),
    ):
        inner = given.get(group, {})
        if isinstance(inner, dict) and inner.get(what) is None:
            raise ConfigError(
                f"{group}.{what}: not given",
                rule="an actor needs an environment and a learner",
                remedy=f"for example {example}",
            )
    return decode(ActRun, given, verb="kata rl act")


def _refuse_misspelt(group: str, cls: type[Any], inner: Any) -> None:
    """Refuse a name in a group that is none of its options, with the nearest."""
    known = {f"{group}.{field.name}" for field in fields(cls)}
    for name in inner if isinstance(inner, dict) else ():
        if f"{group}.{name}" not in known:
            raise ConfigError(
                f"--{group}.{name}: no such option of kata rl act",
                rule="options have fixed names; `kata rl act --help=all` lists them",
                remedy=did_you_mean(f"{group}.{name}", known),
            )


def _refuse_broken(rules: Iterator[Rule]) -> None:
    """Raise ConfigError for the first rule that is broken."""
    for broken, what, rule, remedy in rules:
        if broken:
            raise ConfigError(what, rule=rule, remedy=remedy)


def read_token(path: str | None) -> str | None:
    """Return the token of a file, or None without one.

    Raises:
        ConfigError: the file cannot be read, others may read it, or the token is short.
    """
    if path is None:
        return None
    file = Path(path).expanduser()
    try:
        mode, text = file.stat().st_mode, file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"rl.token_file={path}: cannot be read ({error})",
            rule="a text file with the token",
            remedy=f"openssl rand -hex 32 > {path}; chmod 600 {path}",
        ) from error
    if mode & 0o077:
        raise ConfigError(
            f"rl.token_file={path}: mode {mode & 0o777:o}",
            rule="nobody but its owner may read a token",
            remedy=f"chmod 600 {path}",
        )
    if len(text) < LEAST_TOKEN or not text.isprintable() or " " in text:
        raise ConfigError(
            f"rl.token_file={path}: a token of {len(text)} characters",
            rule=f"at least {LEAST_TOKEN} characters in one word",
            remedy=f"openssl rand -hex 32 > {path}; chmod 600 {path}",
        )
    return text
