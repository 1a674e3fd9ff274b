"""SigLIP's tokens lie in memory as the layers read them."""

import torch
from torch import nn

from kata.nn.siglip import SiglipSizes, SiglipVision


def test_no_layer_has_to_copy_tokens_whose_channels_are_far_apart():
    tower = SiglipVision(SiglipSizes(width=8, mlp=16, layers=2, heads=2, image=32, patch=8))
    read: list[bool] = []
    for module in tower.modules():
        if isinstance(module, nn.LayerNorm):
            module.register_forward_pre_hook(lambda _, given: read.append(given[0].is_contiguous()))
    tower(torch.rand(3, 3, 32, 24))
    assert read == [True] * 5
