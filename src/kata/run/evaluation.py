"""Options of evaluating a policy in an environment, alone or while training. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from kata.config import REQUIRED, Options, option
from kata.errors import ConfigError

AUTO_BATCH = 16


@dataclass(frozen=True, kw_only=True)
class EnvConfig(Options):
    """An environment: a name of kata's table, or `gym` for any gymnasium `id`."""

    at: ClassVar[str] = "env."

    type: str = option(
        REQUIRED,
        "Environment: kata (built in), pusht, aloha, or gym with env.id.",
        is_common=True,
    )
    id: str | None = option(
        None,
        "gymnasium id, with type gym; 'module:Name-v0' imports the module that registers it.",
    )
    task: str | None = option(
        None, "Another environment of the same package, such as AlohaInsertion-v0 of aloha."
    )
    instruction: str | None = option(None, "Sentence for a language-conditioned policy.")
    kwargs: dict[str, Any] = option(dict, "Arguments of gymnasium.make.")
    observation_map: dict[str, str] = option(
        dict,
        "Policy key to path in the observation, {observation.images.top: pixels.top}; '.' is the "
        "whole.",
    )
    action_key: str | None = option(
        None, "Key of the action, where the environment takes a dict of actions."
    )
    success_key: str | None = option(
        None, "Path in `info` that tells success, or 'terminated' where ending is succeeding."
    )
    max_steps: int | None = option(
        None, "Steps of an episode; null takes the environment's own limit.", least=1
    )
    fps: int | None = option(None, "Frames per second of the videos.", least=1)
    clip: bool | None = option(
        None, "Clip actions to the environment's bounds; false sends them as they are."
    )
    options: list[dict[str, Any]] | None = option(
        None, "Start states; episode k is reset with entry k modulo their number."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.options == []:
            raise ConfigError(
                "env.options=[]",
                rule="at least one start state",
                remedy="leave it out to start from seeds alone",
            )


@dataclass(frozen=True, kw_only=True)
class EvalConfig(Options):
    """The number of episodes and the way they are played."""

    at: ClassVar[str] = "eval."

    n_episodes: int = option(50, "Episodes.", least=1, is_common=True)
    batch_size: int = option(
        0, "Episodes played at a time; 0 chooses. It changes the speed and not the result.", least=0
    )
    use_async_envs: bool = option(False, "Step the environments in processes of their own.")
    videos: int = option(8, "Episodes that are kept as mp4.", least=0)
    inference_delay: int = option(
        0,
        "Steps that pass from an observation to the chunk of actions that follows from it; the "
        "robot goes on with the last chunk meanwhile. For policies that denoise chunks.",
        least=0,
    )

    @property
    def round_size(self) -> int:
        """The number of episodes that start together; the last round may have fewer."""
        return min(self.n_episodes, self.batch_size or AUTO_BATCH)

    def share(self, rank: int, ranks: int) -> range:
        """Return the episodes that one of several ranks plays.

        Each rank gets whole rounds where they divide evenly, because the policy predicts for whole
        rounds anyway. Otherwise the numbers of episodes differ by one at most. Rank 0 has at least
        one.
        """
        rounds = -(-self.n_episodes // self.round_size)
        pieces, size = (self.n_episodes, 1) if rounds % ranks else (rounds, self.round_size)
        first, end = (-(-pieces * number // ranks) * size for number in (rank, rank + 1))
        return range(first, min(end, self.n_episodes))
