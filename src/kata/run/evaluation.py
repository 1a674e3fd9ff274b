"""Which environment a policy acts in, and how many episodes; for `kata eval` and beside training. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kata.errors import ConfigError

AUTO_BATCH = 16


@dataclass(frozen=True, kw_only=True)
class EnvConfig:
    """Which environment. `type` is a name of kata's table, or `gym` for any gymnasium `id`.

    id: with type gym; 'module:Name-v0' imports the module that registers it.
    task: another environment of the same package, as AlohaInsertion-v0 of aloha.
    instruction: the sentence that a language-conditioned policy is told.
    kwargs: given to gymnasium.make over the table's.
    observation_map: policy key -> path in the observation, such as 'pixels.top'; '.' is the whole observation.
    action_key: where the action goes when the environment takes a dict of actions.
    success_key: path in `info` that says success, or 'terminated' where ending is succeeding.
    max_steps: the environment's own limit where null. fps: of the videos.
    clip: false sends actions outside the environment's bounds as they are.
    options: start states; episode k is reset with options[k modulo their number].
    """

    type: str
    id: str | None = None
    task: str | None = None
    instruction: str | None = None
    kwargs: dict[str, Any] = field(default_factory=dict)
    observation_map: dict[str, str] = field(default_factory=dict)
    action_key: str | None = None
    success_key: str | None = None
    max_steps: int | None = None
    fps: int | None = None
    clip: bool | None = None
    options: list[dict[str, Any]] | None = None

    def __post_init__(self) -> None:
        for name, value in (("max_steps", self.max_steps), ("fps", self.fps)):
            if value is not None and value < 1:
                raise _refuse(
                    f"env.{name}", value, "a whole number of at least 1, or null", "leave it out"
                )
        if self.options == []:
            raise _refuse(
                "env.options",
                [],
                "at least one start state",
                "leave it out to start from seeds alone",
            )


@dataclass(frozen=True, kw_only=True)
class EvalConfig:
    """How many episodes, and how. batch_size 0 chooses; it changes the speed and not the result.

    use_async_envs steps the environments in processes of their own. videos: how many episodes are kept as mp4.
    """

    n_episodes: int = 50
    batch_size: int = 0
    use_async_envs: bool = False
    videos: int = 8

    @property
    def round_size(self) -> int:
        """How many episodes start together; the last round may have fewer."""
        return min(self.n_episodes, self.batch_size or AUTO_BATCH)

    def share(self, rank: int, ranks: int) -> range:
        """The episodes that one of several ranks plays: whole rounds where each rank gets as many, since the policy is
        asked for whole ones anyway; else as many episodes as each other rank, or one more or fewer.

        Rank 0 has one at least; where there are fewer episodes than ranks, those with one lie far apart.
        """
        rounds = -(-self.n_episodes // self.round_size)
        pieces, size = (self.n_episodes, 1) if rounds % ranks else (rounds, self.round_size)
        first, end = (-(-pieces * number // ranks) * size for number in (rank, rank + 1))
        return range(first, min(end, self.n_episodes))

    def __post_init__(self) -> None:
        for name, least in (("n_episodes", 1), ("batch_size", 0), ("videos", 0)):
            value = getattr(self, name)
            if value < least:
                raise _refuse(
                    f"eval.{name}",
                    value,
                    f"a whole number of at least {least}",
                    f"--eval.{name}={least or 8}",
                )


def _refuse(name: str, value: object, rule: str, remedy: str) -> ConfigError:
    return ConfigError(f"{name}={value}", rule=rule, remedy=remedy)
