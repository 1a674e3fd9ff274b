"""Qwen3-VL beside transformers' on the same weights: images, words, and features of depths."""

import sys
from pathlib import Path

import torch

from kata.nn.qwen3.places import image_split, token_places
from kata.nn.qwen3.text import Qwen3Text
from kata.nn.qwen3.vision import Qwen3Vision
from kata.policies.groot.backbone import backbone_sizes

TOOLS = str(Path(__file__).parents[3] / "tools/peer")


def test_images_and_tokens_are_transformers_own(tmp_path, monkeypatch):
    from transformers import AutoConfig, Qwen3VLForConditionalGeneration

    monkeypatch.syspath_prepend(TOOLS)
    import tiny_groot

    folder = str(tiny_groot.write_qwen(tmp_path))
    torch.manual_seed(0)
    theirs = Qwen3VLForConditionalGeneration._from_config(AutoConfig.from_pretrained(folder)).model
    sizes = backbone_sizes(folder)
    visual, text = Qwen3Vision(sizes.vision), Qwen3Text(sizes.text, sizes.text.layers)
    visual.load_state_dict(theirs.visual.state_dict())
    text.load_state_dict(theirs.language_model.state_dict())
    frames = torch.rand(1, 3, 32, 96)
    grid = torch.tensor([[1, 2, 6]])
    patches = frames[:, None].repeat(1, 2, 1, 1, 1)
    split = patches.view(1, 2, 3, 1, 2, 16, 3, 2, 16).permute(0, 3, 6, 4, 7, 2, 1, 5, 8)
    found, expected = visual(frames), theirs.get_image_features(split.reshape(12, -1), grid)
    torch.testing.assert_close(found.tokens[0], torch.cat(tuple(expected.pooler_output)))
    assert len(found.deep) == 2
    for mine, other in zip(found.deep, expected.deepstack_features, strict=True):
        torch.testing.assert_close(mine[0], torch.cat(tuple(other)))
    words = torch.tensor([[1, 30, 3, 6, 6, 6, 4, 40, 41]])
    seen = torch.ones_like(words)
    told = {"mm_token_type_ids": (words == 6).int(), "attention_mask": seen}
    hidden = theirs(
        input_ids=words, pixel_values=split.reshape(12, -1), image_grid_thw=grid, **told
    ).last_hidden_state
    is_image = words == 6
    where = image_split(is_image, 3).images
    x = text.embed_tokens(words).scatter(1, where[..., None].expand(-1, -1, 32), found.tokens)
    places = token_places(is_image, seen.bool(), [(1, 3)])
    mine = text(x, places, seen.bool(), images=where, deep=found.deep)
    torch.testing.assert_close(text.norm(mine), hidden)
    assert TOOLS in sys.path
