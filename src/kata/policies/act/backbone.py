"""The ResNet that turns camera frames into a feature map, with frozen batch norm and ImageNet
weights.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torchvision.ops import FrozenBatchNorm2d

from kata.nn.resnet import build_resnet
from kata.policies.act.config import Config


class FrozenNorm(FrozenBatchNorm2d):
    """Frozen batch norm in one pass over the activations, in their own dtype.

    torchvision's takes two passes, and its float32 buffers widen bfloat16 activations.
    """

    weight: Tensor
    bias: Tensor
    running_mean: Tensor
    running_var: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C, H, W)."""
        scale = self.weight * (self.running_var + self.eps).rsqrt()
        shift = self.bias - self.running_mean * scale
        return torch.addcmul(
            shift.to(x.dtype)[None, :, None, None], x, scale.to(x.dtype)[None, :, None, None]
        )


def build_backbone(config: Config) -> tuple[nn.Sequential, int]:
    """Return the ResNet up to its last stage, and the channels of its feature map.

    Modules have torchvision's names.

    Raises:
        PolicyError: the ImageNet weights of the config are neither cached nor can be fetched.
    """
    net, channels = build_resnet(
        config.vision_backbone,
        config.pretrained_backbone_weights,
        norm_layer=FrozenNorm,
        dilate_last=bool(config.replace_final_stride_with_dilation),
    )
    stages = nn.Sequential()
    for stage, module in net.named_children():
        if stage not in ("avgpool", "fc"):
            stages.add_module(stage, module)
    return stages, channels
