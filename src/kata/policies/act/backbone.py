"""The ResNet that turns camera frames into a feature map, with frozen batch norm and ImageNet weights."""

from __future__ import annotations

import os
from pickle import UnpicklingError

import torch
from torch import Tensor, nn
from torchvision import models
from torchvision.ops import FrozenBatchNorm2d

from kata.errors import PolicyError
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
        return torch.addcmul(shift.to(x.dtype)[None, :, None, None], x, scale.to(x.dtype)[None, :, None, None])


def build_backbone(config: Config) -> tuple[nn.Sequential, int]:
    """The ResNet up to its last stage, under torchvision's names, and the channels of its feature map.

    ImageNet weights are loaded where the config names them, except into meta tensors. Raises PolicyError when
    they are in no cache and cannot be fetched.
    """
    net = models.get_model(
        config.vision_backbone,
        weights=None,
        norm_layer=FrozenNorm,
        replace_stride_with_dilation=[False, False, bool(config.replace_final_stride_with_dilation)],
    )
    assert isinstance(net, models.ResNet)
    name = config.pretrained_backbone_weights
    if name is not None and not next(net.parameters()).is_meta:
        net.load_state_dict(_imagenet_weights(config.vision_backbone, name))
    stages = nn.Sequential()
    for stage, module in net.named_children():
        if stage not in ("avgpool", "fc"):
            stages.add_module(stage, module)
    return stages, net.inplanes


def _imagenet_weights(backbone: str, name: str) -> dict[str, Tensor]:
    """torchvision's tensors, from torch hub's cache or downloaded into it.

    A download is checked against the hash in the file's name; a file that is in the cache already is trusted.
    """
    weights = models.get_model_weights(backbone)[name.rpartition(".")[2]]
    try:
        return dict(weights.get_state_dict(progress=False, check_hash=True))
    except (OSError, RuntimeError, UnpicklingError) as error:
        folder, file = os.path.join(torch.hub.get_dir(), "checkpoints"), os.path.basename(weights.url)
        raise PolicyError(
            f"policy.pretrained_backbone_weights={name}: {error}",
            rule=f"the weights are {file} in {folder}, or can be fetched from {weights.url}",
            remedy=f"copy {file} into {folder}, or train the backbone from scratch: "
            "--policy.pretrained_backbone_weights=null",
        ) from error
