"""torchvision's ResNets without their head, with ImageNet weights where asked for."""

from __future__ import annotations

import os
from collections.abc import Callable
from pickle import UnpicklingError

import torch
from torch import Tensor, nn
from torchvision import models

from kata.errors import PolicyError


def build_resnet(
    name: str,
    weights: str | None,
    *,
    norm_layer: Callable[..., nn.Module] | None = None,
    dilate_last: bool = False,
) -> tuple[models.ResNet, int]:
    """Return a ResNet under torchvision's names, and the channels of its last feature map.

    Args:
        name: of the ResNet, as torchvision names it.
        weights: torchvision's name of ImageNet weights, or None. Meta tensors stay empty.
        norm_layer: None for batch norm.
        dilate_last: dilate the last stage instead of striding.

    Raises: PolicyError if the weights are in no cache and cannot be downloaded.
    """
    net = models.get_model(
        name,
        weights=None,
        norm_layer=norm_layer,
        replace_stride_with_dilation=[False, False, dilate_last],
    )
    assert isinstance(net, models.ResNet)
    if weights is not None and not next(net.parameters()).is_meta:
        net.load_state_dict(_imagenet_weights(name, weights))
    return net, net.inplanes


def _imagenet_weights(backbone: str, name: str) -> dict[str, Tensor]:
    """Return torchvision's tensors from torch hub's cache, or download them into it.

    A download is checked against the hash in the file's name. Only tensors are read from the pickle
    that torchvision publishes.
    """
    weights = models.get_model_weights(backbone)[name.rpartition(".")[2]]
    try:
        return dict(weights.get_state_dict(progress=False, check_hash=True, weights_only=True))
    except (OSError, RuntimeError, UnpicklingError) as error:
        folder, file = (
            os.path.join(torch.hub.get_dir(), "checkpoints"),
            os.path.basename(weights.url),
        )
        raise PolicyError(
            f"policy.pretrained_backbone_weights={name}: {error}",
            rule=f"the weights are {file} in {folder}, or can be fetched from {weights.url}",
            remedy=f"copy {file} into {folder}, or train the backbone from scratch: "
            "--policy.pretrained_backbone_weights=null",
        ) from error
