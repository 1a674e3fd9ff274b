"""Options of image augmentation: LeRobot's names and defaults. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kata.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class ImageTransformConfig:
    """One augmentation. `type` is a class of `kata.adapt.augment` or of torchvision.transforms.v2, `kwargs` its range.

    `weight` is its share when the subset of a sample is drawn; 0 leaves it out.
    """

    weight: float = 1.0
    type: str = "Identity"
    kwargs: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.weight >= 0:
            raise ConfigError(
                f"dataset.image_transforms: weight={self.weight}",
                rule="a share of at least 0",
                remedy="use 0 to leave the transform out",
            )


def default_transforms() -> dict[str, ImageTransformConfig]:
    """LeRobot's six: brightness, contrast, saturation, hue, sharpness, affine."""
    ranges: dict[str, tuple[str, dict[str, Any]]] = {
        "brightness": ("ColorJitter", {"brightness": [0.8, 1.2]}),
        "contrast": ("ColorJitter", {"contrast": [0.8, 1.2]}),
        "saturation": ("ColorJitter", {"saturation": [0.5, 1.5]}),
        "hue": ("ColorJitter", {"hue": [-0.05, 0.05]}),
        "sharpness": ("SharpnessJitter", {"sharpness": [0.5, 1.5]}),
        "affine": ("RandomAffine", {"degrees": [-5.0, 5.0], "translate": [0.05, 0.05]}),
    }
    return {name: ImageTransformConfig(type=kind, kwargs=kwargs) for name, (kind, kwargs) in ranges.items()}


@dataclass(frozen=True, kw_only=True)
class ImageTransformsConfig:
    """Augmentation of training frames: of the `tfs`, up to `max_num_transforms` are drawn per sample and camera.

    They are applied in the order of `tfs`, or in a random one. A `tfs` that is given replaces all six defaults.
    """

    enable: bool = False
    max_num_transforms: int = 3
    random_order: bool = False
    tfs: dict[str, ImageTransformConfig] = field(default_factory=default_transforms)

    def __post_init__(self) -> None:
        if self.max_num_transforms < 1:
            raise ConfigError(
                f"dataset.image_transforms.max_num_transforms={self.max_num_transforms}",
                rule="at least 1",
                remedy="leave --dataset.image_transforms.enable out for no transforms",
            )
        if self.enable and not any(tf.weight > 0 for tf in self.tfs.values()):
            raise ConfigError(
                "dataset.image_transforms.enable=true, but no transform has a weight above 0",
                rule="at least one transform that can be drawn",
                remedy="leave --dataset.image_transforms.tfs out for the defaults",
            )
