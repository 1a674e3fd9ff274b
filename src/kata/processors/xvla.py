"""The steps of X-VLA: frames with ImageNet's mean and spread, numbers of robots, rotations."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from kata.errors import DataError
from kata.processors.steps import STEPS, Step
from kata.spec import ACTION, IMAGENET_MEAN, IMAGENET_STD, Batch

CAMERAS = "observation.images"


@dataclass(frozen=True)
class ImageStep(Step):
    """A step that changes the frames of some cameras.

    Attributes:
        image_keys: their keys; None takes all frames whose key begins as LeRobot's cameras do.
    """

    image_keys: list[str] | None = None

    def __call__(self, batch: Batch) -> Batch:
        """Return the batch with changed frames."""
        return {**batch, **{key: self.changed(key, batch[key]) for key in self.keys(batch)}}

    def keys(self, batch: Batch) -> list[str]:
        """Return the keys of the frames that this step changes."""
        if self.image_keys is not None:
            return [key for key in self.image_keys if key in batch]
        return [k for k, v in batch.items() if k.startswith(CAMERAS) and _is_frames(v)]

    @abstractmethod
    def changed(self, key: str, frames: Tensor) -> Tensor:
        """Return the frames of one camera as they should be."""

    def config(self) -> dict[str, Any]:
        """Return the fields."""
        return dict(vars(self))


def _is_frames(value: Any) -> bool:
    """Return True for frames; masks of cameras have fewer axes."""
    return isinstance(value, Tensor) and value.ndim >= 3


def _range(key: str, frames: Tensor) -> tuple[float, float]:
    """Return the smallest and the largest number of frames that are on the CPU.

    On a GPU the host would wait for them. Frames that come from a dataset are in [0, 1].
    """
    if frames.device.type != "cpu" or frames.numel() == 0:
        return 0.0, 1.0
    low, high = torch.aminmax(frames)
    return float(low), float(high)


@dataclass(frozen=True)
class ImageToFloat(ImageStep):
    """A step that brings frames in [0, 255] to [0, 1]; uint8 frames always are.

    Attributes:
        validate_range: refuse numbers outside of [0, 255].
    """

    registry_name: ClassVar[str] = "xvla_image_to_float"
    validate_range: bool = True

    def changed(self, key: str, frames: Tensor) -> Tensor:
        """Return float32 frames in [0, 1]; DataError for other numbers."""
        if frames.dtype == torch.uint8:
            return frames.float() / 255.0
        low, high = _range(key, frames)
        if high <= 1.0:
            return frames.float()
        if self.validate_range and (low < 0.0 or high > 255.0):
            raise DataError(
                f"{key}: numbers from {low:.4g} to {high:.4g}",
                rule="frames are in [0, 1], or in [0, 255]",
                remedy="give the camera's frames as they are",
            )
        return frames.float() / 255.0


@dataclass(frozen=True)
class ImagenetNormalize(ImageStep):
    """A step that subtracts ImageNet's mean from frames in [0, 1], and divides by its spread."""

    registry_name: ClassVar[str] = "xvla_imagenet_normalize"

    def changed(self, key: str, frames: Tensor) -> Tensor:
        """Return normalized frames; DataError for numbers outside of [0, 1]."""
        low, high = _range(key, frames)
        if low < 0.0 or high > 1.0:
            raise DataError(
                f"{key}: numbers from {low:.4g} to {high:.4g}",
                rule="frames are in [0, 1] before ImageNet's mean is subtracted",
                remedy="leave the policy's step xvla_image_to_float in its pipeline",
            )
        mean, std = (
            torch.tensor(values, dtype=frames.dtype).to(frames.device, non_blocking=True)
            for values in (IMAGENET_MEAN, IMAGENET_STD)
        )
        return (frames - mean[:, None, None]) / std[:, None, None]


@dataclass(frozen=True)
class ImageScale(ImageStep):
    """A step that brings frames in [0, 1] to [0, 255]."""

    registry_name: ClassVar[str] = "xvla_image_scale"

    def changed(self, key: str, frames: Tensor) -> Tensor:
        """Return frames in [0, 255]."""
        return frames * 255


@dataclass(frozen=True)
class AddDomainId(Step):
    """A step that adds the number of the robot, int64 (B,), where samples do not have one."""

    registry_name: ClassVar[str] = "xvla_add_domain_id"
    domain_id: int = 0

    def __call__(self, batch: Batch) -> Batch:
        """Return the batch with `domain_id`."""
        first = next((v for k, v in batch.items() if k.startswith("observation.")), None)
        size = len(first) if isinstance(first, Tensor) else 1
        return {**batch, "domain_id": torch.full((size,), int(self.domain_id))}

    def config(self) -> dict[str, Any]:
        """Return `domain_id`."""
        return {"domain_id": self.domain_id}


@dataclass(frozen=True)
class RotationToAxisAngle(Step):
    """A step after the policy that turns poses of ten numbers into seven, as LIBERO takes them.

    An action is a position, two columns of a rotation matrix, and a gripper; it becomes a position,
    an axis times its angle in radians, and -1 or 1.

    Attributes:
        expected_action_dim: a field of LeRobot's that has no effect.
    """

    registry_name: ClassVar[str] = "xvla_rotation_6d_to_axis_angle"
    expected_action_dim: int = 10

    def __call__(self, batch: Batch) -> Batch:
        """Return the batch with actions (..., 7) of actions (..., 10 or more)."""
        action = batch.get(ACTION)
        if not isinstance(action, Tensor):
            return batch
        grip = torch.where(action[..., 9:10] > 0.5, 1.0, -1.0).to(action.dtype)
        turned = axis_angle(action[..., 3:9]).to(action.dtype)
        return {**batch, ACTION: torch.cat((action[..., :3], turned, grip), dim=-1)}

    def config(self) -> dict[str, Any]:
        """Return `expected_action_dim`."""
        return {"expected_action_dim": self.expected_action_dim}


def axis_angle(columns: Tensor) -> Tensor:
    """Return axes times angles in radians, (..., 3), of rotations given by two columns, (..., 6).

    The columns are made orthonormal first. Angles are from 0 to pi.
    """
    first, second = columns.double().split(3, dim=-1)
    x = first / (first.norm(dim=-1, keepdim=True) + 1e-6)
    across = second - (x * second).sum(-1, keepdim=True) * x
    y = across / (across.norm(dim=-1, keepdim=True) + 1e-6)
    z = torch.linalg.cross(x, y)
    quaternion = _quaternion(torch.stack((x, y, z), dim=-1))
    vector, real = quaternion[..., :3], quaternion[..., 3:].clamp(-1.0, 1.0)
    length = vector.norm(dim=-1, keepdim=True)
    angle = 2 * torch.atan2(length, real)
    return torch.where(
        length < 1e-12, torch.zeros_like(vector), vector * (angle / length.clamp(1e-12))
    )


def _quaternion(rotation: Tensor) -> Tensor:
    """Return the quaternions (x, y, z, w), w >= 0, that are nearest to matrices (..., 3, 3).

    It is the eigenvector of the largest eigenvalue of a symmetric matrix (Bar-Itzhack 2000).
    """
    m = rotation
    lower = (
        (m[..., 0, 0] - m[..., 1, 1] - m[..., 2, 2],),
        (m[..., 0, 1] + m[..., 1, 0], m[..., 1, 1] - m[..., 0, 0] - m[..., 2, 2]),
        (
            m[..., 0, 2] + m[..., 2, 0],
            m[..., 1, 2] + m[..., 2, 1],
            m[..., 2, 2] - m[..., 0, 0] - m[..., 1, 1],
        ),
        (
            m[..., 2, 1] - m[..., 1, 2],
            m[..., 0, 2] - m[..., 2, 0],
            m[..., 1, 0] - m[..., 0, 1],
            m[..., 0, 0] + m[..., 1, 1] + m[..., 2, 2],
        ),
    )
    whole = torch.zeros(*m.shape[:-2], 4, 4, dtype=m.dtype, device=m.device)
    for row, values in enumerate(lower):
        for column, value in enumerate(values):
            whole[..., row, column] = value
    # eigh reads the lower triangle, and gives the largest eigenvalue last.
    found = torch.linalg.eigh(whole).eigenvectors[..., -1]
    return torch.where(found[..., 3:] < 0, -found, found)


for step in (ImageToFloat, ImagenetNormalize, ImageScale, AddDomainId, RotationToAxisAngle):
    STEPS[step.registry_name] = step
