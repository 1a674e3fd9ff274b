"""Camera frames to keypoints: crop, ResNet, spatial softmax. Module names are LeRobot's."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torchvision.transforms.v2 import functional as F

from kata.nn.resnet import build_resnet
from kata.spec import size_within

Size = tuple[int, int]


def crop(frames: Tensor, size: Size, place: Tensor | None) -> Tensor:
    """Crop frames (B, ..., C, H, W) to `size` (h, w), each sample at a separate place.

    Args:
        frames: of one size.
        size: height and width of the crop.
        place: (B, 2) in [0, 1), rows first, from the first possible place to the last; None takes
            the center as torchvision's CenterCrop does.
    """
    height, width = frames.shape[-2:]
    if place is None:
        return F.center_crop(frames, list(size))
    room = torch.tensor([height - size[0] + 1, width - size[1] + 1], device=place.device)
    top, left = (place * room).long().minimum(room - 1).unbind(1)
    rows = top[:, None] + torch.arange(size[0], device=frames.device)
    columns = left[:, None] + torch.arange(size[1], device=frames.device)
    between = (1,) * (frames.ndim - 3)
    taken = frames.gather(
        -2, rows.reshape(-1, *between, size[0], 1).expand(*frames.shape[:-2], size[0], width)
    )
    return taken.gather(
        -1, columns.reshape(-1, *between, 1, size[1]).expand(*frames.shape[:-2], *size)
    )


def resize_and_crop(
    frames: Tensor, size: Size | None, window: Size | None, place: Tensor | None
) -> Tensor:
    """Resize frames (B, T, cameras, C, H, W) to `size`, then crop to `window`; None skips either.

    Args:
        frames: of one size.
        size: height and width after resizing.
        window: height and width of the crop.
        place: of each camera's crop (B, cameras, 2), as for `crop`; None takes the center.
    """
    if size is not None:
        resized = F.resize(frames.flatten(0, 2), list(size), antialias=True)
        frames = resized.reshape(*frames.shape[:-2], *size)
    if window is None:
        return frames
    places = [None] * frames.shape[2] if place is None else place.unbind(1)
    return torch.stack(
        [crop(one, window, at) for one, at in zip(frames.unbind(2), places, strict=True)], dim=2
    )


def resize_with_padding(frames: Tensor, size: Size, *, is_centered: bool = False) -> Tensor:
    """Resize frames (B, C, H, W) in [0, 1] to fit into `size` (h, w), and pad the rest.

    Proportions are kept; padding is black. As in LeRobot, frames are not smoothed beforehand.

    Args:
        frames: of one size.
        size: height and width of the result.
        is_centered: pad on all sides, an odd pixel on the right or below. False pads on the left
            and above.
    """
    height, width = frames.shape[-2:]
    fitted = size_within((height, width), size)
    if fitted == (height, width):
        small = frames  # as where the reader has resized them
    else:
        small = nn.functional.interpolate(frames, fitted, mode="bilinear", align_corners=False)
    wide, high = size[1] - fitted[1], size[0] - fitted[0]
    if not (wide or high):
        return small
    padding = (wide, 0, high, 0)
    if is_centered:
        padding = (wide // 2, wide - wide // 2, high // 2, high - high // 2)
    return nn.functional.pad(small, padding, value=0.0)


class SpatialSoftmax(nn.Module):
    """Expected (x, y) in [-1, 1] of `keypoints` learned maps under a softmax over pixels.

    Finn et al., "Deep spatial autoencoders for visuomotor learning", arXiv 1509.06113.
    """

    pos_grid: Tensor

    def __init__(self, channels: int, size: Size, keypoints: int) -> None:
        super().__init__()
        self.nets = nn.Conv2d(channels, keypoints, kernel_size=1)
        # NumPy's spacing, used by published weights, differs from torch's in the last bit.
        x, y = np.meshgrid(np.linspace(-1.0, 1.0, size[1]), np.linspace(-1.0, 1.0, size[0]))
        self.register_buffer(
            "pos_grid", torch.from_numpy(np.stack([x.ravel(), y.ravel()], 1)).float()
        )

    def forward(self, features: Tensor) -> Tensor:
        """(B, C, h, w) -> (B, keypoints, 2)."""
        return self.nets(features).flatten(2).softmax(-1) @ self.pos_grid


def feature_size(size: Size) -> Size:
    """Return height and width of a ResNet's last feature map: five halvings, rounded up."""
    height, width = size
    for _ in range(5):
        height, width = (height + 1) // 2, (width + 1) // 2
    return height, width


class KeypointEncoder(nn.Module):
    """Frames (B, 3, H, W) of one size to features (B, 2 * keypoints)."""

    def __init__(
        self, backbone: str, weights: str | None, size: Size, keypoints: int, *, group_norm: bool
    ) -> None:
        super().__init__()
        net, channels = build_resnet(
            backbone, weights, norm_layer=_group_norm if group_norm else None
        )
        self.backbone = nn.Sequential(*list(net.children())[:-2])
        self.pool = SpatialSoftmax(channels, feature_size(size), keypoints)
        self.out = nn.Linear(2 * keypoints, 2 * keypoints)

    def forward(self, frames: Tensor) -> Tensor:
        """Return features (B, 2 * keypoints) of frames that are cropped and resized already."""
        return self.out(self.pool(self.backbone(frames)).flatten(1)).relu()


def _group_norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(channels // 16, channels)
