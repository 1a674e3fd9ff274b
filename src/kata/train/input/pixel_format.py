"""The choice of the form of frames in batches: resized, or planes that the device converts."""

from __future__ import annotations

from collections.abc import Sequence

from kata.data.dataset.mixture import Mixture
from kata.data.frames.frame_format import FrameFormat, Size, colours_of_camera
from kata.errors import ConfigError
from kata.policies.config import PolicyConfig
from kata.run.dataset import DatasetConfig
from kata.spec import Colours

_RGB = "leave --dataset.pixels out"


def choose_frame_format(
    options: DatasetConfig, policy: PolicyConfig, data: Mixture, cameras: Sequence[str]
) -> tuple[FrameFormat, list[str]]:
    """Return the form that options ask for, and messages for the user.

    Raises:
        ConfigError: the option changes nothing here, or is impossible.
    """
    if options.resize != "device":
        return FrameFormat(_policy_sizes(options, policy, data, cameras)), []
    if options.pixels == "rgb":
        return FrameFormat(), []
    found = {key: colours_of_camera(data, key) for key in cameras}
    colours = {key: value for key, value in found.items() if isinstance(value, Colours)}
    left = [f"{key} ({why})" for key, why in found.items() if isinstance(why, str)]
    if not colours:
        raise ConfigError(
            f"dataset.pixels={options.pixels}: {', '.join(left) or 'no camera is read'}",
            rule="the device converts frames of videos in 8-bit 4:2:0, all of a camera in one "
            "colour space",
            remedy=_RGB,
        )
    return FrameFormat(colours=colours), [
        f"the reader converts {', '.join(left)}, the device the others"
    ] if left else []


def _policy_sizes(
    options: DatasetConfig, policy: PolicyConfig, data: Mixture, cameras: Sequence[str]
) -> dict[str, Size]:
    """Return the sizes that frames are read in: the policy's, of the cameras that it resizes."""
    sizes: dict[str, Size] = {}
    for key in cameras:
        height, width, _ = data.cameras[key].shape
        size = policy.resized((height, width))
        if size != (height, width):
            sizes[key] = size
    if not sizes:
        raise ConfigError(
            f"dataset.resize={options.resize}: {policy.type} resizes no frames here",
            rule="the reader resizes frames where the policy would, to another size than they have",
            remedy="leave the option out, or give the policy a size (--policy.resize_shape of "
            "diffusion, --policy.image_resize_shape of multi_task_dit, "
            "--policy.resize_imgs_with_padding of smolvla and xvla, --policy.image_resolution of "
            "pi0, pi05 and pi0_fast)",
        )
    return sizes
