"""Steps of GR00T N1.5, which LeRobot has removed: they are refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from kata.errors import CheckpointError
from kata.processors.steps import STEPS, StateDict, Step

NAMES = (
    "groot_pack_inputs_v3",
    "groot_eagle_encode_v3",
    "groot_eagle_collate_v3",
    "groot_action_unpack_unnormalize_v1",
)


class RemovedStep(Step):
    """A step that cannot be built."""

    registry_name: ClassVar[str] = NAMES[0]

    @classmethod
    def build(cls, config: Mapping[str, Any], state: StateDict) -> Step:
        """Raise CheckpointError."""
        del config, state
        raise CheckpointError(
            f"{cls.registry_name}: a step of GR00T N1.5",
            rule="LeRobot 0.6 and kata have GR00T N1.7",
            remedy="--policy.type=groot --policy.base_model_path=nvidia/GR00T-N1.7-3B, or LeRobot "
            "0.5.1 for this checkpoint",
        )


for name in NAMES:
    STEPS[name] = type("RemovedStep", (RemovedStep,), {"registry_name": name})
