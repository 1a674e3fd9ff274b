"""The options of `kata eval`, with LeRobot's names where LeRobot has them. Torch-free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kata.config import assign, decode, parse_flags, read_config
from kata.errors import ConfigError
from kata.run import EnvConfig, EvalConfig


@dataclass(frozen=True, kw_only=True)
class PolicyChoice:
    """Which weights act, and where: a checkpoint or run folder or a Hub name; `device` null is the best here."""

    path: str
    device: str | None = None
    pretrained_revision: str | None = None


@dataclass(frozen=True, kw_only=True)
class EvalRun:
    """One evaluation. Episode k starts from seed + k. rename_map: environment's key -> policy's key."""

    policy: PolicyChoice
    env: EnvConfig
    eval: EvalConfig = field(default_factory=EvalConfig)
    seed: int = 1000
    output_dir: str | None = None
    rename_map: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise _refuse(
                "seed", self.seed, "a whole number of at least 0", "for example --seed=1000"
            )


def resolve_eval(args: Sequence[str]) -> EvalRun:
    """The evaluation that these arguments ask for: the file of `--config` with the flags over it.

    Raises ConfigError for an unknown name (with the nearest), a wrong value, or no policy or environment.
    """
    flags = parse_flags(args)
    paths = [flags.pop(name) for name in ("config", "config_path") if name in flags]
    given = read_config(Path(str(paths[-1]))) if paths else {}
    for dotted, value in flags.items():
        assign(given, dotted, value)
    for group, name, example in (
        ("policy", "path", "<checkpoint folder>"),
        ("env", "type", "kata"),
    ):
        inner = given.get(group, {})
        if not isinstance(inner, dict) or inner.get(name) is None:
            raise ConfigError(
                f"{group}.{name}: not given",
                rule="an evaluation needs a policy and an environment",
                remedy=f"add --{group}.{name}={example}",
            )
    return decode(EvalRun, given)


def _refuse(name: str, value: object, rule: str, remedy: str) -> ConfigError:
    return ConfigError(f"{name}={value}", rule=rule, remedy=remedy)
