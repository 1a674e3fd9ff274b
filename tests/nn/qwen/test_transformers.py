"""The parts of Qwen2.5-VL against those of transformers, with the same weights."""

import importlib

import pytest
import torch

from kata.nn.attention import score_bias, seen_then_causal
from kata.nn.decoder import DecoderSizes
from kata.nn.qwen.patches import normalized, patches_of
from kata.nn.qwen.rope import interleaved_axes, multimodal_rotation, sectioned_axes
from kata.nn.qwen.text import QwenText, TextSizes
from kata.nn.qwen.vision import MEAN, STD, QwenVision, VisionSizes

SIZES = VisionSizes(
    width=32, mlp=48, layers=3, heads=2, out=24, whole=(1,), patch=4, merge=2, window=16
)
TEXT = TextSizes(
    DecoderSizes(32, 48, heads=4, kv_heads=2, head_dim=8, eps=1e-6), 2, 40, sections=(1, 2, 1)
)


@pytest.fixture(scope="module")
def qwen():
    return importlib.import_module("transformers.models.qwen2_5_vl.modeling_qwen2_5_vl")


def filled(module):
    stream = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=stream))
    return module


def peer_vision(qwen):
    sizes = qwen.Qwen2_5_VLVisionConfig(
        depth=3, hidden_size=32, intermediate_size=48, num_heads=2, out_hidden_size=24,
        patch_size=4, window_size=16, fullatt_block_indexes=[1],
    )  # fmt: skip
    return qwen.Qwen2_5_VisionTransformerPretrainedModel(sizes)


def test_tokens_of_images_and_every_gradient_are_those_of_transformers(qwen):
    own, peer = filled(QwenVision(SIZES)), peer_vision(qwen)
    peer.load_state_dict(own.state_dict())
    stream = torch.Generator().manual_seed(1)
    # Windows of 2 x 2 tokens: the first grid has whole ones only, the others smaller ones at edges.
    cameras = [torch.rand(2, 3, *size, generator=stream) for size in ((32, 16), (24, 40), (8, 8))]
    patches, grids = [], []
    for frames in cameras:
        patches.append(patches_of(normalized(frames, MEAN, STD), 4, 2).flatten(0, 1))
        grids += [[1, frames.shape[2] // 4, frames.shape[3] // 4]] * 2
    pairs = torch.cat(patches).unflatten(1, (3, 1, 16)).expand(-1, -1, 2, -1).flatten(1)
    theirs = peer(pairs, grid_thw=torch.tensor(grids)).pooler_output
    ours = own(cameras)
    assert [tuple(camera.shape) for camera in ours] == [(2, 8, 24), (2, 15, 24), (2, 1, 24)]
    torch.testing.assert_close(torch.cat([c.flatten(0, 1) for c in ours]), theirs)
    factors = torch.randn(theirs.shape, generator=stream)
    (theirs * factors).sum().backward()
    (torch.cat([c.flatten(0, 1) for c in ours]) * factors).sum().backward()
    gradients = {name: parameter.grad for name, parameter in peer.named_parameters()}
    for name, parameter in own.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name], rtol=2e-5, atol=2e-4)


def test_tokens_of_the_decoder_and_kept_keys_are_those_of_transformers(qwen):
    sizes = qwen.Qwen2_5_VLTextConfig(
        vocab_size=40, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6, "mrope_section": [1, 2, 1]},
    )  # fmt: skip
    own, peer = filled(QwenText(TEXT)), qwen.Qwen2_5_VLTextModel(sizes)
    peer.load_state_dict(own.state_dict())
    stream = torch.Generator().manual_seed(1)
    tokens = torch.randint(40, (2, 7), generator=stream)
    places = torch.randint(30, (2, 3, 7), generator=stream)
    theirs = peer(tokens, position_ids=places.transpose(0, 1)).last_hidden_state
    rotation, x, kept = own.rotation(places), own.embed_tokens(tokens), []
    bias = score_bias(seen_then_causal(torch.ones(2, 0).bool(), 7), x.dtype)
    for layer in own.layers:
        wanted = 3 if layer is own.layers[-1] else 0
        x, given = layer(x, rotation, bias, wanted=wanted)
        kept.append(given)
    torch.testing.assert_close(own.norm(x), theirs[:, -3:])
    # Later tokens read what is kept of the earlier ones.
    rotation, x = own.rotation(places[:, :, 4:]), own.embed_tokens(tokens[:, 4:])
    bias = score_bias(seen_then_causal(torch.ones(2, 4).bool(), 3), x.dtype)
    for layer, past in zip(own.layers, kept, strict=True):
        x, _ = layer(x, rotation, bias, type(past)(*(half[:, :, :4] for half in past)))
    torch.testing.assert_close(own.norm(x), theirs[:, -3:])


def test_pairs_follow_the_axes_of_both_generations():
    assert sectioned_axes((1, 2, 1)) == (0, 1, 1, 2)
    # transformers sets rows at 1, 4 and columns at 2, 5 of [4, 2, 2]; the rest follows time.
    assert interleaved_axes((4, 2, 2)) == (0, 1, 2, 0, 1, 2, 0, 0)
    places = torch.tensor([[[5], [7], [11]]])
    turned = multimodal_rotation(places, (0, 1, 2, 0), 10_000.0)
    angles = torch.tensor([5.0, 0.7, 0.11, 0.005])
    torch.testing.assert_close(turned.cos[0, 0, 0], angles.cos())
    torch.testing.assert_close(turned.sin[0, 0, 0], angles.sin())
