"""Windows of observations, crops and ResNets, which the configs of several policies share.
Torch-free.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kata.config import Options, encode, option
from kata.policies.config import PolicyConfig
from kata.policies.rules import Rule
from kata.spec import ACTION, STATE, Draw, Feature, Windows

RESNET_WEIGHTS: dict[str, tuple[str, ...]] = {
    "resnet18": ("IMAGENET1K_V1", "DEFAULT"),
    "resnet34": ("IMAGENET1K_V1", "DEFAULT"),
    "resnet50": ("IMAGENET1K_V1", "IMAGENET1K_V2", "DEFAULT"),
    "resnet101": ("IMAGENET1K_V1", "IMAGENET1K_V2", "DEFAULT"),
    "resnet152": ("IMAGENET1K_V1", "IMAGENET1K_V2", "DEFAULT"),
}
"""ResNets that encode images, and torchvision's weights for each."""


@dataclass(frozen=True, kw_only=True)
class RandomCropConfig(Options):
    """Options of cropping. Each policy sets its own defaults.

    With `crop_is_random`, training crops at a random place. As in LeRobot, it is the same place for
    the whole batch. One encoder for all cameras also shares it between cameras. With
    `crop_per_sample` each sample has its own place.
    """

    crop_shape: tuple[int, int] | None = option(
        None,
        "Height and width of the crop that the encoder sees, in pixels; null for no crop.",
        least=1,
    )
    crop_is_random: bool = option(
        True, "Crop at a random place in training; acting always crops in the middle."
    )
    crop_per_sample: bool = option(
        False, "Draw a random crop for each sample instead of one for the whole batch.", is_own=True
    )

    def crop_draws(self, cameras: int) -> dict[str, Draw]:
        """Return the random place of the crop per camera (see `crop_draws`); empty if it is not
        random.
        """
        random = self.crop_shape is not None and self.crop_is_random
        return crop_draws(cameras if random else 0, per_sample=self.crop_per_sample)

    def size_before_crop(self, camera: Feature) -> tuple[int, ...]:
        """Return height and width in pixels of the image that is cropped."""
        return camera.shape[1:]

    def crop_fits_rules(self, cameras: Mapping[str, Feature]) -> Iterator[Rule]:
        """Yield a rule per camera: the crop fits into the image."""
        for key, feature in cameras.items():
            yield fit_rule("crop_shape", self.crop_shape, key, self.size_before_crop(feature))


@dataclass(frozen=True, kw_only=True)
class CropConfig(RandomCropConfig):
    """Options of cropping after a resize."""

    resize_shape: tuple[int, int] | None = option(
        None,
        "Height and width that frames are resized to first, in pixels; null keeps them.",
        least=1,
    )
    crop_ratio: float = option(
        1.0, "Share of the resized frame that a crop keeps; 1 for no crop.", above=0, most=1
    )

    def resized(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return the size that frames are resized to; see `PolicyConfig.resized`."""
        return self.resize_shape or size

    def crop_of_resized(self, size: tuple[int, int]) -> tuple[int, int] | None:
        """Return height and width of the crop of frames of this size; None if `crop_ratio` keeps
        everything.
        """
        return (
            None
            if self.crop_ratio >= 1.0
            else (int(size[0] * self.crop_ratio), int(size[1] * self.crop_ratio))
        )

    def size_before_crop(self, camera: Feature) -> tuple[int, ...]:
        """Return `resize_shape`, or the size of the camera's frames."""
        return self.resize_shape or camera.shape[1:]


def crop_draws(cameras: int, *, per_sample: bool) -> dict[str, Draw]:
    """Return the place of a random crop per camera, (cameras, 2), or nothing without cameras.

    Rows and columns are fractions of the largest possible offset.
    """
    return {"crop": Draw("uniform", (cameras, 2), shared=not per_sample)} if cameras else {}


def fit_rule(name: str, crop: tuple[int, int] | None, key: str, size: tuple[int, ...]) -> Rule:
    """Return the rule that the crop of option `name` fits into the images of camera `key`."""
    crop = crop or (size[0], size[1])
    return (
        crop[0] > size[0] or crop[1] > size[1],
        f"policy.{name}={list(crop)} of {key}, which is {size[0]}x{size[1]}",
        "a crop is no larger than the picture",
        f"--policy.{name}=[{min(crop[0], size[0])},{min(crop[1], size[1])}], or null for none",
    )


def chunk_windows(config: PolicyConfig, horizon: int) -> Windows:
    """Return offsets of the last n_obs_steps observations, and of `horizon` actions from the first
    of them on.
    """
    first = 1 - config.n_obs_steps
    seen = tuple(range(first, 1))
    return {
        **dict.fromkeys(config.input_features, seen),
        ACTION: tuple(range(first, first + horizon)),
    }


def vector_rules(config: PolicyConfig, name: str) -> Iterator[Rule]:
    """Yield the rules of `shape_rules`, and one that demands a camera or an environment state."""
    yield (
        not config.cameras and config.env_state is None,
        f"inputs of {name}: {', '.join(config.input_features) or 'none'}",
        "at least one camera or 'observation.environment_state'",
        "choose a dataset with one, or keep one among the policy's inputs",
    )
    yield from shape_rules(config, name)


def shape_rules(config: PolicyConfig, name: str) -> Iterator[Rule]:
    """Yield rules on shapes: action and states are vectors, cameras have three color channels."""
    action = config.output_features.get(ACTION)
    yield (
        action is None or len(action.shape) != 1,
        f"outputs of {name}: {', '.join(config.output_features) or 'none'}",
        f"'{ACTION}' is a vector",
        "choose a dataset with an action column of shape [A]",
    )
    for key, feature in (("state", config.state), ("env_state", config.env_state)):
        wrong = feature is not None and len(feature.shape) != 1
        yield (
            wrong,
            f"{key}: shape {feature.shape if feature else ()}",
            "a vector",
            "flatten the column",
        )
    for key, feature in config.cameras.items():
        yield (
            len(feature.shape) != 3 or feature.shape[0] != 3,
            f"{key}: shape {feature.shape}",
            "the encoder takes colour images of shape (3, H, W)",
            "leave this camera out",
        )


def state_and_cameras_rules(config: PolicyConfig, name: str) -> Iterator[Rule]:
    """Yield the rule that the inputs are a state and cameras, and nothing else."""
    kept: dict[str, Any] = {}
    for key, feature in config.input_features.items():
        if key == STATE or key in config.cameras:
            kept[key] = encode(feature)
    is_enough = STATE in kept and len(kept) > 1
    yield (
        set(kept) != set(config.input_features) or not is_enough,
        f"inputs of {name}: {', '.join(config.input_features) or 'none'}",
        f"'{STATE}' and cameras: nothing else is read",
        f"--policy.input_features='{json.dumps(kept)}'"
        if is_enough
        else "choose a dataset that has both, or another policy",
    )


def same_size_rules(config: PolicyConfig) -> Iterator[Rule]:
    """Yield the rule that all cameras have one size, because their frames are stacked (as in
    LeRobot).
    """
    sizes = {key: feature.shape for key, feature in config.cameras.items()}
    yield (
        len(set(sizes.values())) > 1,
        "cameras: " + ", ".join(f"{key} {shape[1]}x{shape[2]}" for key, shape in sizes.items()),
        f"{config.type} takes cameras of one size: their frames are stacked",
        "keep cameras of one size among the policy's inputs (--policy.input_features), or write "
        "the dataset again with "
        "`kata data transcode --size=HxW`",
    )


def resnet_rules(backbone: str, weights: str | None, *, group_norm: bool = False) -> Iterator[Rule]:
    """Yield rules on `vision_backbone`, `pretrained_backbone_weights` and `use_group_norm`."""
    family = f"ResNet{backbone.removeprefix('resnet')}_Weights."
    known = RESNET_WEIGHTS[backbone]
    yield (
        weights is not None and weights.removeprefix(family) not in known,
        f"policy.pretrained_backbone_weights={weights} with policy.vision_backbone={backbone}",
        f"one of: {', '.join(family + name for name in known)}, null",
        f"--policy.pretrained_backbone_weights={family}{known[0]}",
    )
    yield (
        group_norm and weights is not None,
        "policy.use_group_norm=true with policy.pretrained_backbone_weights",
        "ImageNet's weights belong to batch norm",
        "--policy.pretrained_backbone_weights=null, or --policy.use_group_norm=false",
    )
