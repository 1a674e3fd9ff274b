"""Frames that are fitted already are padded alone."""

import pytest
import torch

from kata.nn.images import resize_with_padding
from kata.spec import size_within


@pytest.mark.parametrize("is_centered", [False, True])
@pytest.mark.parametrize("size", [(48, 64), (64, 48), (50, 50), (17, 90)])
def test_fitting_twice_is_fitting_once(size, is_centered):
    frames = torch.rand(2, 3, *size)
    once = resize_with_padding(frames, (32, 32), is_centered=is_centered)
    assert once.shape == (2, 3, 32, 32)
    fitted = size_within(size, (32, 32))
    small = torch.nn.functional.interpolate(frames, fitted, mode="bilinear", align_corners=False)
    assert torch.equal(resize_with_padding(small, (32, 32), is_centered=is_centered), once)


def test_fitted_frames_touch_their_room_and_keep_proportions():
    assert size_within((480, 640), (512, 512)) == (384, 512)
    assert size_within((384, 512), (512, 512)) == (384, 512)
    assert size_within((100, 50), (512, 224)) == (448, 224)
