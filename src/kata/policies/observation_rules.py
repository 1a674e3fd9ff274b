"""What the configs of several policies say about observations over time, and about crops.

Torch-free.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kata.config import Options, option
from kata.policies.config import PolicyConfig
from kata.policies.rules import Rule
from kata.spec import ACTION, Draw, Feature, Windows


@dataclass(frozen=True, kw_only=True)
class RandomCropConfig(Options):
    """Cropping of frames. The fields' defaults belong to each policy.

    In training the crop lies at random where crop_is_random says so: at one place for a whole batch
    (and, with one encoder for all cameras, for all cameras) as in LeRobot, or with crop_per_sample
    at a place of each sample's own.
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
        """Where the crop lies, per camera, as shares of the way (rows, columns); nothing without
        a random crop.
        """
        random = self.crop_shape is not None and self.crop_is_random
        return crop_draws(cameras if random else 0, per_sample=self.crop_per_sample)

    def size_before_crop(self, camera: Feature) -> tuple[int, ...]:
        """Height and width that the crop is taken from."""
        return camera.shape[1:]

    def crop_fits_rules(self, cameras: Mapping[str, Feature]) -> Iterator[Rule]:
        """The crop is no larger than what it is taken from."""
        for key, feature in cameras.items():
            yield fit_rule("crop_shape", self.crop_shape, key, self.size_before_crop(feature))


@dataclass(frozen=True, kw_only=True)
class CropConfig(RandomCropConfig):
    """Resizing before the crop, too."""

    resize_shape: tuple[int, int] | None = option(
        None,
        "Height and width that frames are resized to first, in pixels; null keeps them.",
        least=1,
    )
    crop_ratio: float = option(
        1.0, "Share of the resized frame that a crop keeps; 1 for no crop.", above=0, most=1
    )

    def resizes_to(self) -> tuple[int, int] | None:
        """See PolicyConfig."""
        return self.resize_shape

    def crop_of_resized(self, size: tuple[int, int]) -> tuple[int, int] | None:
        """The crop of frames resized to `size`: crop_ratio of it, or none."""
        return (
            None
            if self.crop_ratio >= 1.0
            else (int(size[0] * self.crop_ratio), int(size[1] * self.crop_ratio))
        )

    def size_before_crop(self, camera: Feature) -> tuple[int, ...]:
        """resize_shape, or the camera's own size."""
        return self.resize_shape or camera.shape[1:]


def crop_draws(cameras: int, *, per_sample: bool) -> dict[str, Draw]:
    """Where random crops lie, per camera, as shares of the way (rows, columns); nothing for no
    cameras.
    """
    return {"crop": Draw("uniform", (cameras, 2), shared=not per_sample)} if cameras else {}


def fit_rule(name: str, crop: tuple[int, int] | None, key: str, size: tuple[int, ...]) -> Rule:
    """The crop of option `name` is no larger than camera `key`'s picture before it."""
    crop = crop or (size[0], size[1])
    return (
        crop[0] > size[0] or crop[1] > size[1],
        f"policy.{name}={list(crop)} of {key}, which is {size[0]}x{size[1]}",
        "a crop is no larger than the picture",
        f"--policy.{name}=[{min(crop[0], size[0])},{min(crop[1], size[1])}], or null for none",
    )


def chunk_windows(config: PolicyConfig, horizon: int) -> Windows:
    """n_obs_steps observations up to the anchor, and `horizon` actions from the first of them
    on.
    """
    first = 1 - config.n_obs_steps
    seen = tuple(range(first, 1))
    return {
        **dict.fromkeys(config.input_features, seen),
        ACTION: tuple(range(first, first + horizon)),
    }


def vector_rules(config: PolicyConfig, name: str) -> Iterator[Rule]:
    """A camera or an environment state, beside what shape_rules ask for."""
    yield (
        not config.cameras and config.env_state is None,
        f"inputs of {name}: {', '.join(config.input_features) or 'none'}",
        "at least one camera or 'observation.environment_state'",
        "choose a dataset with one, or keep one among the policy's inputs",
    )
    yield from shape_rules(config, name)


def shape_rules(config: PolicyConfig, name: str) -> Iterator[Rule]:
    """An action vector; vectors where vectors are meant; colour cameras."""
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


def same_size_rules(config: PolicyConfig) -> Iterator[Rule]:
    """All cameras have one size, as in LeRobot, which stacks them."""
    sizes = {key: feature.shape for key, feature in config.cameras.items()}
    yield (
        len(set(sizes.values())) > 1,
        "cameras: " + ", ".join(f"{key} {shape[1]}x{shape[2]}" for key, shape in sizes.items()),
        f"{config.type} takes cameras of one size: their frames are stacked",
        "keep cameras of one size among the policy's inputs (--policy.input_features), or write "
        "the dataset anew with "
        "`kata data transcode --size=HxW`",
    )
