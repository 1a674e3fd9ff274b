"""Augmentation: the same as torchvision with the same parameters, per sample, and keyed by the
numbers given.
"""

import math

import numpy as np
import pytest
import torch
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as F

from kata.errors import ConfigError
from kata.processors.augment import KINDS, build_augment
from kata.processors.augment.color import RandomAffine
from kata.run.dataset import ImageTransformConfig, ImageTransformsConfig, default_transforms

DEFAULTS = default_transforms()


def frames(n=3, steps=2, channels=3, height=24, width=32, seed=0):
    return torch.rand(
        n, steps, channels, height, width, generator=torch.Generator().manual_seed(seed)
    )


def numbers(n, size, seed=0):
    return np.random.default_rng(seed).uniform(1e-6, 1 - 1e-6, (n, size)).astype(np.float32)


def alone(kind, kwargs, count=1):
    return build_augment(
        {"it": ImageTransformConfig(type=kind, kwargs=kwargs)}, count=count, random_order=False
    )


@pytest.mark.parametrize(
    ("kind", "name", "theirs"),
    [
        ("ColorJitter", "brightness", F.adjust_brightness),
        ("ColorJitter", "contrast", F.adjust_contrast),
        ("ColorJitter", "saturation", F.adjust_saturation),
        ("SharpnessJitter", "sharpness", F.adjust_sharpness),
    ],
)
@pytest.mark.parametrize("factor", [0.0, 0.55, 1.0, 1.7])
@pytest.mark.parametrize("channels", [1, 3])
def test_factors_do_what_torchvisions_do(kind, name, theirs, factor, channels):
    given = frames(channels=channels)
    augment = alone(kind, {name: [factor, factor]})
    ours = augment(given, numbers(3, augment.uniforms))
    wanted = torch.stack([torch.stack([theirs(image, factor) for image in one]) for one in given])
    torch.testing.assert_close(ours, wanted, rtol=0, atol=2e-6)


@pytest.mark.parametrize("turn", [-0.5, -0.05, 0.0, 0.2, 0.5])
def test_hue_turns_as_in_torchvision(turn):
    given = frames()
    given[0, 0, :, :2] = 0.3  # without colour
    given[0, 1, 0, :, :3] = given[0, 1, 1, :, :3]  # two largest channels alike
    augment = alone("ColorJitter", {"hue": [turn, turn]})
    wanted = F.adjust_hue(given.flatten(0, 1), turn).reshape(given.shape)
    torch.testing.assert_close(
        augment(given, numbers(3, augment.uniforms)), wanted, rtol=0, atol=2e-5
    )


@pytest.mark.parametrize("size", [(24, 32), (31, 17)])
def test_affine_moves_as_in_torchvision(size):
    given = frames(height=size[0], width=size[1])
    u = numbers(3, 6, seed=4)
    move = RandomAffine(
        degrees=[-30, 30], translate=[0.2, 0.1], scale=[0.7, 1.3], shear=[-10, 10, -5, 5]
    )
    ours = move(given, u)
    spread = 2 * u.astype(np.float64) - 1
    for n in range(3):
        wanted = F.affine(
            given[n],
            angle=30 * spread[n, 0],
            translate=[round(0.2 * size[1] * spread[n, 1]), round(0.1 * size[0] * spread[n, 2])],
            scale=0.7 + 0.6 * float(u[n, 3]),
            shear=[10 * spread[n, 4], 5 * spread[n, 5]],
            interpolation=InterpolationMode.NEAREST,
        )
        # A place right between two pixels may be rounded either way.
        assert (ours[n] == wanted).float().mean() > 0.99


def test_a_sample_is_changed_alike_in_any_batch_and_all_frames_of_it_alike():
    augment = build_augment(DEFAULTS, count=3, random_order=True)
    given, u = frames(n=8), numbers(8, augment.uniforms)
    whole = augment(given, u)
    order = torch.tensor([5, 2, 7])
    torch.testing.assert_close(
        augment(given[order], u[order.numpy()]), whole[order], rtol=0, atol=1e-6
    )
    still = given[:, :1].expand(-1, 2, -1, -1, -1)
    moved = augment(still, u)
    assert torch.equal(moved[:, 0], moved[:, 1])
    assert torch.equal(augment(given[:, 0], u), augment(given[:, :1], u)[:, 0])


def test_the_given_frames_stay_as_they_are():
    augment = build_augment(DEFAULTS, count=6, random_order=False)
    given = frames()
    before = given.clone()
    assert not torch.equal(augment(given, numbers(3, augment.uniforms)), before)
    assert torch.equal(given, before)


def test_the_subset_follows_the_weights():
    tfs = {
        name: ImageTransformConfig(weight=w, type="Identity")
        for name, w in (("a", 1.0), ("b", 2.0), ("c", 0.0), ("d", 1))
    }
    augment = build_augment(tfs, count=1, random_order=False)
    first = augment._chosen(numbers(20_000, 3))[:, 0]
    assert np.bincount(first, minlength=3) / 20_000 == pytest.approx([0.25, 0.5, 0.25], abs=0.015)
    pairs = build_augment(tfs, count=2, random_order=True)._chosen(numbers(20_000, 3, seed=1))
    assert (pairs[:, 0] != pairs[:, 1]).all()
    # b first (1/2), then a of {a, d} (1/2); a first (1/4), then b of {b, d} (2/3).
    assert np.mean((pairs == [1, 0]).all(1)) == pytest.approx(1 / 4, abs=0.015)
    assert np.mean((pairs == [0, 1]).all(1)) == pytest.approx(1 / 6, abs=0.015)


@pytest.mark.parametrize(
    "kind", sorted(set(KINDS) - {"Identity", "ColorJitter", "SharpnessJitter", "RandomAffine"})
)
@pytest.mark.parametrize("channels", [1, 3])
def test_every_kind_of_lerobot_changes_frames_and_repeats_itself(kind, channels):
    augment, given = alone(kind, {}), frames(n=4, channels=channels)
    u = numbers(4, augment.uniforms, seed=3)
    once = augment(given, u)
    assert once.shape == given.shape
    assert once.min() >= 0
    assert once.max() <= 1
    assert torch.equal(once, augment(given, u))
    assert torch.equal(once, given) == (kind == "PlanckianJitter" and channels == 1)
    torch.testing.assert_close(augment(given[2:3], u[2:3]), once[2:3], rtol=0, atol=1e-6)


def test_noise_has_the_spread_that_was_asked_for():
    augment = alone("GaussianNoise", {"std": [10, 10]})
    given = torch.full((2, 1, 3, 64, 64), 0.5)
    noise = augment(given, numbers(2, augment.uniforms)) - given
    assert noise.std().item() * 255 == pytest.approx(10, rel=0.03)
    assert not torch.equal(noise[0], noise[1])


def test_motion_blur_keeps_an_even_picture_and_spreads_a_point():
    augment = alone("MotionBlur", {"kernel_size": 5})
    even = torch.full((1, 1, 3, 16, 16), 0.25)
    u = numbers(1, augment.uniforms)
    torch.testing.assert_close(augment(even, u), even)
    point = torch.zeros(1, 1, 1, 16, 16)
    point[..., 8, 8] = 1
    spread = augment(point, u)
    assert spread.sum().item() == pytest.approx(1, abs=1e-5)
    assert (spread > 0).sum() in (3, 5)  # steps of a line that fall on one pixel count once


def test_gamma_is_even_in_its_logarithm():
    augment = alone("GammaCorrection", {"gamma": [0.5, 2.0]})
    u = np.array([[0.5, 0.5], [0.5, 0.25]], np.float32)
    out = augment(torch.full((2, 1, 3, 2, 2), 0.25), u)
    assert out[0].mean().item() == pytest.approx(0.25)
    assert out[1].mean().item() == pytest.approx(0.25 ** math.exp(-0.5 * math.log(2)))


def test_any_class_of_torchvision_works_sample_by_sample():
    augment, given = alone("RandomHorizontalFlip", {"p": 0.5}), frames(n=16)
    u = numbers(16, augment.uniforms)
    state = torch.get_rng_state()
    out = augment(given, u)
    assert torch.equal(state, torch.get_rng_state())
    flipped = [torch.equal(a, b.flip(-1)) for a, b in zip(out, given, strict=True)]
    assert 2 < sum(flipped) < 14
    assert torch.equal(out, augment(given, u))


@pytest.mark.parametrize(
    ("kind", "kwargs", "said"),
    [
        ("ColourJitter", {}, "ColorJitter"),
        ("ColorJitter", {"brightnes": [0.8, 1.2]}, "brightnes"),
        ("SharpnessJitter", {"sharpness": [2, 1]}, "sharpness"),
        ("JPEGCompression", {"quality": [0, 50]}, "quality"),
        ("CoarseDropout", {"max_holes": 0}, "max_holes"),
        ("MotionBlur", {"kernel_size": [2, 2]}, "kernel_size"),
        ("RandomErasing", {"q": 3}, "q"),
    ],
)
def test_what_cannot_work_is_refused_by_name(kind, kwargs, said):
    with pytest.raises(ConfigError, match="image_transforms") as caught:
        alone(kind, kwargs)
    assert said in str(caught.value)


def test_a_transform_that_changes_the_size_is_refused():
    augment = alone("Resize", {"size": [8, 8]})
    with pytest.raises(ConfigError, match="keeps the size"):
        augment(frames(), numbers(3, augment.uniforms))


def test_nothing_to_draw_from_is_refused():
    with pytest.raises(ConfigError, match="weight"):
        ImageTransformsConfig(enable=True, tfs={})
    with pytest.raises(ConfigError, match="max_num_transforms"):
        ImageTransformsConfig(max_num_transforms=0)
