"""GR00T's head: what predicts the velocity of noisy actions from features of Qwen3-VL."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kata.nn.attention import KeysValues, score_bias
from kata.nn.domains.linear import DomainLinear
from kata.policies.groot.base_model import HeadSizes
from kata.policies.groot.transformer import BlockSizes, HeadBlock

PERIOD = 10_000.0
"""Longest period of embedded times."""

CHANNELS = 256
"""Numbers that a time is written in for the transformer."""


class BackboneFeatures(NamedTuple):
    """Cameras and a sentence as the backbone encodes them.

    Attributes:
        tokens: (B, S, width), those of images first.
        valid: which of them are read, bool (B, S).
        images: number of image tokens.
    """

    tokens: Tensor
    valid: Tensor
    images: int


class Context(NamedTuple):
    """BackboneFeatures as the transformer reads them: tokens, and bias of the scores, of two kinds.

    Attributes:
        images: tokens of cameras (B, I, width).
        words: the other tokens (B, S - I, width).
        image_bias: None if all are seen.
        word_bias: leaves out padding.
    """

    images: Tensor
    words: Tensor
    image_bias: Tensor | None
    word_bias: Tensor


class DomainMLP(nn.Module):
    """Two linear maps per robot."""

    def __init__(self, inputs: int, inner: int, outputs: int, domains: int) -> None:
        super().__init__()
        self.layer1 = DomainLinear(inputs, inner, domains)
        self.layer2 = DomainLinear(inner, outputs, domains)

    def forward(self, x: Tensor, domain: Tensor) -> Tensor:
        """(B, T, inputs) -> (B, T, outputs)."""
        return self.layer2(F.relu(self.layer1(x, domain)), domain)


class DomainActions(nn.Module):
    """The map of noisy actions and their time to tokens, with weights per robot."""

    def __init__(self, actions: int, width: int, domains: int) -> None:
        super().__init__()
        self.W1 = DomainLinear(actions, width, domains)
        self.W2 = DomainLinear(2 * width, width, domains)
        self.W3 = DomainLinear(width, width, domains)
        self.width = width

    def forward(self, noisy: Tensor, bucket: Tensor, domain: Tensor) -> Tensor:
        """Map actions (B, T, actions) at times int64 (B,) to tokens (B, T, width)."""
        action = self.W1(noisy, domain)
        number = torch.arange(self.width // 2, dtype=torch.float32, device=noisy.device)
        step = torch.full_like(number[:1], math.log(PERIOD)) / len(number)
        at = bucket[:, None].float() * (-number * step).exp()
        at = torch.cat((at.sin(), at.cos()), dim=1).to(action.dtype)
        at = at[:, None].expand_as(action)
        return self.W3(F.silu(self.W2(torch.cat((action, at), dim=2), domain)), domain)


class TimeEmbedder(nn.Module):
    """Two linear maps of an embedded time."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear_1 = nn.Linear(CHANNELS, width)
        self.linear_2 = nn.Linear(width, width)

    def forward(self, bucket: Tensor) -> Tensor:
        """Map times int64 (B,) to (B, width)."""
        number = torch.arange(CHANNELS // 2, dtype=torch.float32, device=bucket.device)
        # Far times feel each rounding, so that the order is that of diffusers.
        exponent = -math.log(PERIOD) * number / (len(number) - 1)
        at = bucket[:, None].float() * exponent.exp()
        at = torch.cat((at.cos(), at.sin()), dim=1).to(self.linear_1.weight.dtype)
        return self.linear_2(F.silu(self.linear_1(at)))


class TimeEncoder(nn.Module):
    """The level at which checkpoints have the embedder."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.timestep_embedder = TimeEmbedder(width)

    def forward(self, bucket: Tensor) -> Tensor:
        """Map times int64 (B,) to (B, width)."""
        return self.timestep_embedder(bucket)


class AlternatingTransformer(nn.Module):
    """Blocks that read words, each other, image tokens, and each other again, in turns."""

    def __init__(self, sizes: BlockSizes, context: int, output: int, text_every: int) -> None:
        super().__init__()
        width = sizes.width
        self.text_every = text_every
        self.timestep_encoder = TimeEncoder(width)
        blocks: list[HeadBlock] = []
        for number in range(sizes.layers):
            blocks.append(HeadBlock(sizes, None if number % 2 else context, is_timed=True))
        self.transformer_blocks = nn.ModuleList(blocks)
        self.proj_out_1 = nn.Linear(width, 2 * width)
        self.proj_out_2 = nn.Linear(width, output)

    def forward(
        self, x: Tensor, bucket: Tensor, context: Context, kept: list[KeysValues | None]
    ) -> Tensor:
        """Map tokens (B, T, width) at times int64 (B,) to (B, T, output).

        Args:
            x: tokens of state and actions.
            bucket: times.
            context: features.
            kept: keys and values of the features in each block, which an earlier pass has left
                here; empty for none. This pass leaves its own.
        """
        time = self.timestep_encoder(bucket)
        found: list[KeysValues | None] = []
        for number, block in enumerate(self.transformer_blocks):
            given = kept[number] if kept else None
            if number % 2:
                x, given = block(x, time)
            elif number % (2 * self.text_every) == 0:
                bias = context.word_bias
                x, given = block(x, time, context=context.words, given=given, bias=bias)
            else:
                bias = context.image_bias
                x, given = block(x, time, context=context.images, given=given, bias=bias)
            found.append(given)
        kept[:] = found
        shift, scale = self.proj_out_1(F.silu(time)).chunk(2, dim=1)
        x = F.layer_norm(x, x.shape[-1:], eps=1e-6) * (1 + scale[:, None]) + shift[:, None]
        return self.proj_out_2(x)


class FeatureMixer(nn.Module):
    """Blocks in which features read each other."""

    def __init__(self, sizes: BlockSizes) -> None:
        super().__init__()
        self.transformer_blocks = nn.ModuleList(
            HeadBlock(sizes, None, is_timed=False) for _ in range(sizes.layers)
        )

    def forward(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """(B, S, width) -> (B, S, width)."""
        for block in self.transformer_blocks:
            x, _ = block(x, bias=bias)
        return x


class ActionHead(nn.Module):
    """The trainable part of GR00T."""

    def __init__(self, sizes: HeadSizes, blocks: BlockSizes, mixer: BlockSizes | None) -> None:
        super().__init__()
        self.model = AlternatingTransformer(blocks, sizes.features, sizes.hidden, sizes.text_every)
        many = sizes.embodiments
        self.state_encoder = DomainMLP(sizes.state_dim, sizes.hidden, sizes.width, many)
        self.action_encoder = DomainActions(sizes.action_dim, sizes.width, many)
        self.action_decoder = DomainMLP(sizes.hidden, sizes.hidden, sizes.action_dim, many)
        self.vlln = nn.LayerNorm(sizes.features) if sizes.has_norm else nn.Identity()
        self.vl_self_attention = nn.Identity() if mixer is None else FeatureMixer(mixer)
        if sizes.has_positions:
            self.position_embedding = nn.Embedding(sizes.positions, sizes.width)
            nn.init.normal_(self.position_embedding.weight, std=0.02)
        self.has_positions = sizes.has_positions

    @property
    def blocks(self) -> list[nn.Module]:
        """Return the blocks that mix features, and those of the transformer."""
        mixer = self.vl_self_attention
        mixing = [*mixer.transformer_blocks] if isinstance(mixer, FeatureMixer) else []
        return [*mixing, *self.model.transformer_blocks]

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype of the weights."""
        return self.model.proj_out_2.weight.dtype

    def context(
        self, features: BackboneFeatures, *, mixes_padding: bool, has_gaps: bool
    ) -> Context:
        """Return features as the transformer reads them.

        Args:
            features: of the backbone.
            mixes_padding: let features read padding among each other.
            has_gaps: image tokens may be invalid, because samples lack cameras.
        """
        tokens, valid, images = features
        tokens = self.vlln(tokens.to(self.dtype))
        if isinstance(self.vl_self_attention, FeatureMixer):
            bias = None if mixes_padding else score_bias(valid[:, None, None], tokens.dtype)
            tokens = self.vl_self_attention(tokens, bias)
        seen = valid[:, None, None]
        return Context(
            tokens[:, :images],
            tokens[:, images:],
            score_bias(seen[..., :images], tokens.dtype) if has_gaps else None,
            score_bias(seen[..., images:], tokens.dtype),
        )

    def velocity(
        self,
        context: Context,
        state: Tensor,
        noisy: Tensor,
        bucket: Tensor,
        domain: Tensor,
        kept: list[KeysValues | None],
    ) -> Tensor:
        """Return the velocity towards the actions, (B, T, action_dim).

        Args:
            context: features.
            state: its token (B, 1, width).
            noisy: actions with noise (B, T, action_dim).
            bucket: times, int64 (B,).
            domain: number of each sample's robot, int64 (B,).
            kept: see `AlternatingTransformer`.
        """
        action = self.action_encoder(noisy.to(self.dtype), bucket, domain)
        if self.has_positions:
            action = action + self.position_embedding.weight[: action.shape[1]]
        found = self.model(torch.cat((state, action), dim=1), bucket, context, kept)
        return self.action_decoder(found[:, -noisy.shape[1] :], domain)
