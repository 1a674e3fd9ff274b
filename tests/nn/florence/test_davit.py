"""DaViT: windows with zeros at their ends, groups of channels, dropped branches, positions."""

import pytest
import torch

from kata.nn.florence.davit import (
    ChannelAttention,
    Davit,
    ImageProjector,
    WindowAttention,
    frame_positions,
)
from kata.nn.florence.sizes import DavitSizes, DavitStage


def sizes(**changed):
    stages = (
        DavitStage(3, 8, 1, 2, 2, patch=7, stride=4, padding=3, norm_first=False),
        DavitStage(8, 12, 2, 3, 4, patch=3, stride=2, padding=1, norm_first=True),
    )
    options = {
        "stages": stages, "window": 3, "mlp_ratio": 2.0, "drop_path": 0.0, "qkv_bias": True,
        "activation": "gelu", "projected": 16, "positions": 8, "frames": 4, "std": 0.02,
    }  # fmt: skip
    return DavitSizes(**{**options, **changed})


def attention(x, layer, parts, scale):
    """Attention written out, (tokens, width) each with its own features."""
    query, keys, values = layer.qkv(x).chunk(3, dim=-1)
    found = []
    for q, k, v in zip(*(t.chunk(parts, -1) for t in (query, keys, values)), strict=True):
        found.append((q @ k.T * scale).softmax(-1) @ v)
    return layer.proj(torch.cat(found, -1))


def test_a_window_attends_to_its_cells_and_to_zeros_that_fill_it_up():
    torch.manual_seed(0)
    layer = WindowAttention(8, 2, 3, bias=True)
    x = torch.randn(2, 4 * 5, 8)
    found = layer(x, 4, 5).view(2, 4, 5, 8)
    # The window at the right end of the second row of windows: a row of two cells, and zeros.
    cells = torch.zeros(3, 3, 8)
    cells[:1, :2] = x[1].view(4, 5, 8)[3:, 3:]
    expected = attention(cells.view(9, 8), layer, 2, 4**-0.5).view(3, 3, 8)
    torch.testing.assert_close(found[1, 3:, 3:], expected[:1, :2])


def test_channels_of_a_group_attend_to_each_other():
    torch.manual_seed(0)
    layer = ChannelAttention(8, 2, bias=True)
    x = torch.randn(1, 6, 8)
    query, keys, values = layer.qkv(x)[0].chunk(3, dim=-1)
    found = []
    for group in (slice(0, 4), slice(4, 8)):
        q, k, v = (t[:, group].T for t in (query, keys, values))
        found.append((q @ k.T / 6**0.5).softmax(-1) @ v)
    torch.testing.assert_close(layer(x)[0], layer.proj(torch.cat(found).T))


def test_grids_are_those_of_the_convolutions():
    tower, small = Davit(sizes()), sizes()
    for height, width in ((32, 32), (30, 41)):
        cells = tower(torch.zeros(1, 3, height, width))
        assert cells.shape[2:] == small.grid(height, width)
    assert len(tower.stages()) == 2
    assert [len(stage) for stage in tower.stages()] == [3, 5]


def test_branches_are_dropped_by_sample_in_training_alone():
    torch.manual_seed(0)
    tower = Davit(sizes(drop_path=0.9))
    rates = [half.drop_path for stage in tower.stages() for half in stage[1:]]
    assert rates == pytest.approx([0.0, 0.18, 0.36, 0.54, 0.72, 0.9])
    images = torch.rand(1, 3, 32, 32).expand(4, -1, -1, -1)
    whole = tower.eval()(images)
    torch.testing.assert_close(whole[0], whole[3])
    dropped = tower.train()(images)
    assert not torch.allclose(dropped[0], dropped[1])


def test_tokens_are_the_mean_and_all_cells_with_their_positions():
    torch.manual_seed(0)
    layer = ImageProjector(sizes())
    cells = torch.randn(2, 12, 2, 3)
    found = layer(cells)
    assert found.shape == (2, 7, 16)
    place = layer.image_position_embed
    at = torch.cat((place.column_embeddings.weight[2], place.row_embeddings.weight[1]))
    one = cells[0, :, 1, 2] + at + frame_positions(4, 12)[0]
    expected = layer.image_proj_norm(layer.image_projection(one))
    torch.testing.assert_close(found[0, 6], expected)


def test_positions_of_frames_are_sines_and_cosines():
    found = frame_positions(3, 4)
    expected = torch.tensor([[0.0, 1.0, 0.0, 1.0]])
    assert torch.equal(found[:1], expected)
    torch.testing.assert_close(
        found[2, 2:], torch.tensor([0.02]).sin().new_tensor([0.019999, 0.9998]), atol=1e-6, rtol=0
    )
