"""The layouts of X-VLA's actions: terms of the loss, and grippers. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class LossPart:
    """A term of the loss over some numbers of an action.

    Attributes:
        name: LeRobot's.
        dims: the numbers that it is about.
        scale: weight in the loss.
        means: how many means over equally many of these numbers are added up.
    """

    name: str
    dims: tuple[int, ...]
    scale: float = 1.0
    means: int = 1


@dataclass(frozen=True)
class ActionMode:
    """The layout of an action.

    Attributes:
        width: numbers that the network reads and predicts.
        real: those that a robot gets, from the first.
        parts: terms of the loss.
        hidden: numbers of the noisy action and of the state that the network reads as zero.
        switches: numbers that are predicted as the logit of a share from 0 to 1.
        logits: those of them that are also learnt so, by their cross-entropy.
    """

    width: int
    real: int
    parts: tuple[LossPart, ...]
    hidden: tuple[int, ...] = ()
    switches: tuple[int, ...] = ()
    logits: tuple[int, ...] = ()

    def counts(self, size: int, steps: Any, dim_pad: Any) -> dict[str, float]:
        """Return the denominators of the terms over a global batch, at least 1.

        Args:
            size: its samples.
            steps: how many actions of each sample are learnt, (size,).
            dim_pad: which numbers of actions its samples lack, bool (size, A), or None.
        """
        import numpy as np  # here, so that help need not import it

        real = np.ones((size, self.width))
        if dim_pad is not None:
            real[:, : dim_pad.shape[1]] = ~dim_pad
        found: dict[str, float] = {}
        for part in self.parts:
            values = float((steps * real[:, list(part.dims)].sum(1)).sum())
            found[part.name] = max(values / part.means, 1.0)
        return found


def _both_arms(*dims: int) -> tuple[int, ...]:
    """Return these numbers of the left arm, and the same of the right one."""
    return (*dims, *(10 + dim for dim in dims))


GRIPPERS = _both_arms(9)
POSITION = LossPart("position_loss", _both_arms(0, 1, 2), scale=500.0, means=2)
ROTATION = LossPart("rotate6D_loss", _both_arms(*range(3, 9)), scale=10.0, means=2)
JOINTS_14 = tuple(dim for dim in range(14) if dim not in (6, 13))

FIXED: Mapping[str, ActionMode] = {
    "ee6d": ActionMode(
        20,
        20,
        (POSITION, ROTATION, LossPart("gripper_loss", GRIPPERS)),
        hidden=GRIPPERS,
        switches=GRIPPERS,
        logits=GRIPPERS,
    ),
    "joint": ActionMode(
        14,
        14,
        (LossPart("joints_loss", JOINTS_14), LossPart("gripper_loss", (6, 13), scale=0.1)),
        hidden=(6, 13),
        switches=(6, 13),
        logits=(6, 13),
    ),
    "agibot_ee6d": ActionMode(
        20, 20, (POSITION, ROTATION, LossPart("gripper_loss", GRIPPERS, scale=10.0))
    ),
    "franka_joint7": ActionMode(20, 7, (LossPart("joints_loss", tuple(range(7))),)),
    "so101_bimanual": ActionMode(
        20,
        12,
        (
            LossPart("joints_loss", tuple(range(12))),
            LossPart("gripper_loss", (5, 11)),
            LossPart("left_arm_loss", tuple(range(6))),
            LossPart("right_arm_loss", tuple(range(6, 12))),
        ),
        hidden=(5, 11),
        switches=(5, 11),
    ),
}
"""Modes whose layout does not depend on the dataset."""

EXACT = ("franka_joint7", "so101_bimanual")
"""Modes that take actions of exactly as many numbers as the robot has. For the others, actions of
fewer numbers are filled up with zeros, which are learnt.
"""

AUTO = "auto"
MODES = (*FIXED, AUTO)


def auto_mode(real: int, width: int) -> ActionMode:
    """Return the mode of actions of `real` numbers, in a network for `width`."""
    return ActionMode(width, real, (LossPart("joints_loss", tuple(range(real))),))
