"""Sizes of images: areas as OpenCV averages them, crops, and sides that patches divide."""

import pytest
import torch

from kata.processors.groot.images import (
    Geometry,
    area_weights,
    before_crop,
    crop_size,
    fitting_size,
    for_model,
    shortest_edge,
)


def test_areas_are_averaged_and_larger_images_interpolated():
    assert torch.allclose(
        area_weights(5, 2), torch.tensor([[0.4, 0.4, 0.2, 0, 0], [0, 0, 0.2, 0.4, 0.4]])
    )
    large = area_weights(2, 4)
    assert torch.allclose(large, torch.tensor([[1, 0], [1, 0], [0.5, 0.5], [0, 1.0]])) is False
    assert torch.allclose(large.sum(1), torch.ones(4))
    frames = torch.full((1, 3, 48, 96), 77, dtype=torch.uint8)
    assert shortest_edge(frames, 32).shape == (1, 3, 32, 64)
    assert (shortest_edge(frames, 60) == 77).all()


def test_frames_are_squared_resized_and_cropped():
    frames = torch.zeros(2, 3, 20, 60, dtype=torch.uint8)
    frames[:, :, :, 30:] = 255
    geometry = Geometry(image_crop_size=[48, 48], image_target_size=[64, 64])
    assert for_model(frames, geometry).shape == (2, 3, 64, 64)
    boxed = for_model(frames, Geometry([48, 48], [64, 64], letter_box_transform=True))
    assert (boxed[:, :, :8] == 0).all()
    assert boxed[:, :, 32, 60].min() > 250
    assert for_model(frames, Geometry()) is frames
    assert before_crop(frames, geometry).shape == (2, 3, 64, 192)
    assert crop_size((64, 192), geometry) == (48, 144)
    assert crop_size((64, 192), Geometry()) == (64, 192)


@pytest.mark.parametrize(
    ("size", "fitted"),
    [((256, 256), (256, 256)), ((100, 200), (192, 384)), ((90, 4000), (96, 4000))],
)
def test_sides_become_multiples_within_the_area(size, fitted):
    assert fitting_size(size, 32, 65_536, 16_777_216) == fitted
    assert fitting_size((3000, 1000), 32, 1024, 65_536) == (416, 128)
