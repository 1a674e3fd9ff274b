"""A task that needs nothing but numpy: `gymnasium.make("kata/Reach-v0")`, with an expert that
shows it.
"""

from __future__ import annotations

import gymnasium

from kata.eval.envs.reach.expert import Expert
from kata.eval.envs.reach.reach import (
    CAMERAS,
    FPS,
    INSTRUCTION,
    LARGEST,
    MAX_STEPS,
    PLACE_NAMES,
    SENTENCES,
    SIZE,
    SMALLEST,
    WAY_NAMES,
    ReachEnv,
    ReachOneOfTwoEnv,
)

__all__ = [
    "CAMERAS",
    "ENV_ID",
    "FPS",
    "INSTRUCTION",
    "LARGEST",
    "MAX_STEPS",
    "PLACE_NAMES",
    "SENTENCES",
    "SIZE",
    "SMALLEST",
    "TWO_ID",
    "WAY_NAMES",
    "Expert",
    "ReachEnv",
    "ReachOneOfTwoEnv",
    "register_reach",
]

ENV_ID = "kata/Reach-v0"
TWO_ID = "kata/ReachOneOfTwo-v0"
"""The task with two targets, of which a sentence names one."""


def register_reach() -> None:
    """Make both tasks known to gymnasium; a second call changes nothing."""
    for name, kind in ((ENV_ID, "ReachEnv"), (TWO_ID, "ReachOneOfTwoEnv")):
        if name not in gymnasium.registry:
            gymnasium.register(id=name, entry_point=f"kata.eval.envs.reach.reach:{kind}")


register_reach()
