"""A task that needs nothing but numpy: `gymnasium.make("kata/Reach-v0")`, with an expert that
shows it.
"""

from __future__ import annotations

import gymnasium

from kata.eval.envs.reach.expert import Expert
from kata.eval.envs.reach.reach import CAMERAS, FPS, INSTRUCTION, MAX_STEPS, SIZE, ReachEnv

__all__ = [
    "CAMERAS",
    "ENV_ID",
    "FPS",
    "INSTRUCTION",
    "MAX_STEPS",
    "SIZE",
    "Expert",
    "ReachEnv",
    "register_reach",
]

ENV_ID = "kata/Reach-v0"


def register_reach() -> None:
    """Make the task known to gymnasium; a second call changes nothing."""
    if ENV_ID not in gymnasium.registry:
        gymnasium.register(id=ENV_ID, entry_point="kata.eval.envs.reach.reach:ReachEnv")


register_reach()
