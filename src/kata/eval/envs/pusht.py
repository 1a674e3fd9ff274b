"""PushT as Diffusion Policy evaluates it: `gymnasium.make("kata/PushT-v0")`, the task of the
`lerobot/pusht` data.

Physics, pictures and random starts are gym-pusht's (extra `pusht`), so success rates compare with
LeRobot's. What is added is a reset to a recorded state that is exact: gym-pusht's own option sets
the block's position before its angle, and turning the block about its centre of mass then moves it
by up to 90 units.
"""

from __future__ import annotations

import importlib
import math
import os
import warnings
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from kata.errors import ConfigError

os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")  # it would greet on stdout
with warnings.catch_warnings():
    warnings.filterwarnings(
        "ignore", message="pkg_resources is deprecated"
    )  # pygame's own business
    _pusht = importlib.import_module("gym_pusht.envs.pusht")

ENV_ID = "kata/PushT-v0"
FPS = 10
MAX_STEPS = 300
INSTRUCTION = "Push the T-shaped block onto the T-shaped target."
SUCCESS_COVERAGE = 0.95

Observation = dict[str, Any]


class PushTEnv(
    gymnasium.Wrapper[Observation, NDArray[np.float32], Observation, NDArray[np.float32]]
):
    """Push the T onto its outline with a round tool; 10 steps per second, board units 0 to 512, y
    downwards.

    Observation: `agent_pos` float64 (2,), where the tool is; `pixels` uint8 (96, 96, 3). Action:
    float32 (2,), where the tool shall go. Reward: the covered share of the outline divided by 0.95,
    at most 1. `info["coverage"]` is the share itself. Success: a share above 0.95, which ends the
    episode; it has 300 steps. Diffusion Policy's score of an episode is
        its highest reward (C. Chi et al., RSS 2023).
    """

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start at random, or exactly at `options["state"]`: tool x, y, block x, y, and the block's
        angle in rad.

        The block's position is that of its frame's origin, the middle of the T's upper edge, as in
        recordings.

        Raises: ConfigError for a state that is not five finite numbers.
        """
        state = (options or {}).get("state")
        if state is None:
            return self.env.reset(seed=seed, options=options)
        tool_x, tool_y, x, y, angle = _state(state)
        self.env.reset(seed=seed)
        block: Any = self.env.get_wrapper_attr("block")
        centre_x, centre_y = block.center_of_gravity
        # gym-pusht turns the block about its centre of mass after placing it; undo that beforehand.
        turned_x = math.cos(angle) * centre_x - math.sin(angle) * centre_y
        turned_y = math.sin(angle) * centre_x + math.cos(angle) * centre_y
        placed = [tool_x, tool_y, x + turned_x - centre_x, y + turned_y - centre_y, angle]
        return self.env.reset(options={"reset_to_state": placed})


def make_pusht(**kwargs: Any) -> PushTEnv:
    """A new environment, with gym-pusht's options over those of `lerobot/pusht` (pictures of
    96x96, tool position).
    """
    usual = {
        "obs_type": "pixels_agent_pos",
        "visualization_width": 384,
        "visualization_height": 384,
    }
    return PushTEnv(_pusht.PushTEnv(**usual | kwargs))


def _state(state: Any) -> list[float]:
    numbers = np.asarray(state, dtype=np.float64)
    if numbers.shape != (5,) or not np.isfinite(numbers).all():
        raise ConfigError(
            f"state {state}",
            rule="five finite numbers: tool x, y, block x, y, angle in rad",
            remedy="leave it out for a random start",
        )
    return numbers.tolist()


def register_pusht() -> None:
    """Make the task known to gymnasium; a second call changes nothing."""
    if ENV_ID not in gymnasium.registry:
        gymnasium.register(
            id=ENV_ID, entry_point="kata.eval.envs.pusht:make_pusht", max_episode_steps=MAX_STEPS
        )


register_pusht()
