"""Environments by name, and what they declare about themselves. Torch-free."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import gymnasium
from gymnasium import spaces

from kata.errors import ConfigError, PolicyError, did_you_mean, nearest
from kata.eval.envs.reach import ENV_ID, INSTRUCTION, MAX_STEPS, SENTENCES, TWO_ID
from kata.eval.options import EnvConfig

TERMINATED = "terminated"
"""As `success_key`: ending before the time is up is succeeding."""

_VIDEO_FPS = 10


@dataclass(frozen=True)
class EnvSpec:
    """All that is needed to make an environment and to judge its episodes; plain values, so that
    processes share it.

    module: registers the id when imported. extra: of kata's package, that installs the module. The
        rest is as in EnvConfig, resolved. max_steps None is the limit that the environment is
        registered with.
    """

    id: str
    module: str | None = None
    extra: str | None = None
    kwargs: dict[str, Any] = field(default_factory=dict)
    observation_map: dict[str, str] = field(default_factory=dict)
    action_key: str | None = None
    success_key: str = "is_success"
    instruction: str = ""
    max_steps: int | None = None
    fps: int | None = None
    clip: bool = True
    options: tuple[dict[str, Any], ...] = ()


ENVIRONMENTS: dict[str, EnvSpec] = {
    "kata": EnvSpec(
        ENV_ID,
        module="kata.eval.envs.reach",
        kwargs={"render_mode": "rgb_array"},
        instruction=INSTRUCTION,
        max_steps=MAX_STEPS,
    ),
    "pusht": EnvSpec(
        "kata/PushT-v0",
        module="kata.eval.envs.pusht",
        extra="pusht",
        kwargs={"render_mode": "rgb_array"},
        instruction="Push the T-shaped block onto the T-shaped target.",
        max_steps=300,
    ),
    "aloha": EnvSpec(
        "kata/AlohaTransferCube-v0",
        module="kata.eval.envs.aloha",
        extra="aloha",
        kwargs={"render_mode": "rgb_array"},
        instruction="Pick up the cube with the right arm and transfer it to the left arm.",
        max_steps=400,  # as LeRobot evaluates, so that success rates compare
    ),
}
"""The short names of --env.type."""


def resolve_env(config: EnvConfig) -> EnvSpec:
    """The table's entry with the user's options over it; ConfigError for unknown names."""
    base = _base(config)
    if base.id == TWO_ID:
        target = str(config.kwargs.get("target", "green"))
        base = dataclasses.replace(base, instruction=SENTENCES.get(target, ""))
    changed = {
        name: value
        for name in ("action_key", "success_key", "instruction", "max_steps", "fps", "clip")
        if (value := getattr(config, name)) is not None
    }
    return dataclasses.replace(
        base,
        kwargs={**base.kwargs, **config.kwargs},
        observation_map={**base.observation_map, **config.observation_map},
        options=tuple(config.options or ()),
        **changed,
    )


def _base(config: EnvConfig) -> EnvSpec:
    if config.type == "gym":
        if not config.id:
            raise ConfigError(
                "env.id: not given",
                rule="--env.type=gym needs the environment's gymnasium id",
                remedy="for example --env.id=my_module:MyTask-v0",
            )
        module, colon, name = config.id.rpartition(":")
        return EnvSpec(name, module=module if colon else None)
    if config.type not in ENVIRONMENTS:
        raise ConfigError(
            f"env.type={config.type}: no such environment",
            rule=f"environments: {', '.join(ENVIRONMENTS)}, or gym with --env.id",
            remedy=did_you_mean(config.type, [*ENVIRONMENTS, "gym"]),
        )
    if config.id is not None:
        raise ConfigError(
            f"env.id={config.id} together with env.type={config.type}",
            rule="env.id belongs to --env.type=gym",
            remedy="leave out one of the two",
        )
    base = ENVIRONMENTS[config.type]
    other = base.id.partition("/")[0] + f"/{config.task}"
    if config.task is None or other == base.id:
        return base
    return dataclasses.replace(base, id=other, instruction="")


def register_env(spec: EnvSpec) -> None:
    """Import what registers the environment.

    Raises: ConfigError when the package is not installed, or gymnasium does not know the id
        afterwards.
    """
    if spec.module is not None:
        try:
            importlib.import_module(spec.module)
        except ModuleNotFoundError as error:
            install = (
                f"uv pip install 'kata[{spec.extra}]'"
                if spec.extra
                else "install it, or check its name"
            )
            raise ConfigError(
                f"{spec.id}: needs the Python package {error.name}, which is not installed",
                rule=f"the environment comes with {spec.module}",
                remedy=install,
            ) from error
    if spec.id not in gymnasium.registry:
        close = nearest(spec.id, gymnasium.registry)
        raise ConfigError(
            f"{spec.id}: no such environment",
            rule="an id that is registered with gymnasium",
            remedy=f"did you mean '{close}'?"
            if close
            else "name the module that registers it: --env.id=module:Name-v0",
        )


def make(spec: EnvSpec) -> gymnasium.Env[Any, Any]:
    """A new environment. Whatever its own code raises comes through."""
    register_env(spec)
    limit = {} if spec.max_steps is None else {"max_episode_steps": spec.max_steps}
    return gymnasium.make(spec.id, disable_env_checker=True, **limit, **spec.kwargs)


@dataclass(frozen=True)
class Leaf:
    """One array of an observation: the keys that lead to it, its shape and its type's name."""

    keys: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str

    @property
    def is_picture(self) -> bool:
        """True for uint8 (H, W, C)."""
        return self.dtype == "uint8" and len(self.shape) == 3


@dataclass(frozen=True)
class Facts:
    """The declarations of an environment.

    They are its arrays by dotted path, the bounds of its action, its step limit, its rate, and its
    attribute `action_names`, what the numbers of its action are; () without one.
    """

    leaves: dict[str, Leaf]
    action: spaces.Box
    max_steps: int
    fps: int
    action_names: tuple[str, ...] = ()


def inspect(spec: EnvSpec) -> Facts:
    """Make the environment once and read its declarations.

    Raises: ConfigError when it cannot be made or never ends; PolicyError for actions that no policy
        gives.
    """
    try:
        env = make(spec)
    except ConfigError:
        raise
    except Exception as error:  # foreign code may raise anything, and the user needs to see what
        raise ConfigError(
            f"{spec.id}: cannot be made ({type(error).__name__}: {error})",
            rule=f"gymnasium.make with {spec.kwargs}",
            remedy="check --env.kwargs, and what the environment needs on this machine",
        ) from error
    try:
        limit = spec.max_steps or (env.spec.max_episode_steps if env.spec else None)
        if limit is None:
            raise ConfigError(
                f"{spec.id}: has no limit of steps",
                rule="an episode must end",
                remedy="add --env.max_steps=300",
            )
        space = env.action_space
        if spec.action_key is not None and isinstance(space, spaces.Dict):
            space = space.spaces.get(spec.action_key, space)
        if not isinstance(space, spaces.Box):
            raise PolicyError(
                f"{spec.id}: takes the action {space}",
                rule="a vector of numbers (a Box)",
                remedy="name the vector in a dict of actions with --env.action_key, or wrap the "
                "environment",
            )
        rate = spec.fps or env.metadata.get("render_fps") or _VIDEO_FPS
        leaves = {".".join(leaf.keys) or ".": leaf for leaf in _leaves(env.observation_space, ())}
        names = tuple(getattr(env.unwrapped, "action_names", ()))
        return Facts(leaves, space, limit, round(rate), names)
    finally:
        env.close()


def _leaves(space: spaces.Space[Any], keys: tuple[str, ...]) -> Iterator[Leaf]:
    if isinstance(space, spaces.Dict):
        for key, inner in space.spaces.items():
            yield from _leaves(inner, (*keys, key))
    elif isinstance(space, spaces.Box):
        yield Leaf(keys, space.shape or (1,), space.dtype.name)
