"""SmolVLA: an action expert reads the keys and values of a vision-language model.

Cameras, the sentence and the state form a prefix, which never sees the actions. It passes through
the language model first; the expert then reads its keys and values, in training as in acting.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kata.errors import PolicyError
from kata.nn.attention import (
    KeysValues,
    positions_of,
    prefix_then_causal,
    score_bias,
    seen_then_causal,
)
from kata.nn.decoder import CrossLayer, DecoderSizes, LlamaLayer, RMSNorm
from kata.nn.flow import time_sinusoid
from kata.nn.images import resize_with_padding
from kata.nn.rope import rotation_at
from kata.nn.siglip import SiglipVision, pixel_shuffle
from kata.policies.base import KeyMap
from kata.policies.rules import refuse_broken_rules
from kata.policies.smolvla.backbone import TextModel, load_vlm, mark_tokens, vlm_sizes
from kata.policies.smolvla.config import Config
from kata.policies.vla_policy import (
    DTYPES,
    FlowVlaPolicy,
    images_as_features,
    images_of_features,
    latest,
    layers_as_features,
    layers_of_features,
    padded,
)
from kata.spec import LANGUAGE_MASK, LANGUAGE_TOKENS, STATE, Batch, missing_key, pad_key

ROPE_BASE = 10_000.0
"""Base of the rotary positions, which the published weights were trained with. The language model
itself has another.
"""

VLM = "model.vlm_with_expert.vlm."
"""Beginning of the vision-language model's names in LeRobot's files."""

PREFIXES = (
    ("vision.", f"{VLM}model.vision_model."),
    ("connector.", f"{VLM}model.connector.modality_projection.proj."),
    ("text.", f"{VLM}model.text_model."),
    ("lm_head.", f"{VLM}lm_head."),
    ("expert.", "model.vlm_with_expert.lm_expert."),
    ("state_proj.", "model.state_proj."),
    ("action_", "model.action_"),
)
TIED = {f"{VLM}model.text_model.embed_tokens.weight": f"{VLM}lm_head.weight"}


class Encoded(NamedTuple):
    """An encoded observation: keys and values of each layer, and which tokens are real, (B, P)."""

    layers: list[KeysValues]
    valid: Tensor


class ActionExpert(nn.Module):
    """The action expert's layers and its last norm."""

    def __init__(self, config: Config, text: DecoderSizes, layers: int) -> None:
        super().__init__()
        width = int(text.width * config.expert_width_multiplier)
        # LeRobot's width of the perceptron: two thirds of four times the width, rounded up.
        mlp = 256 * math.ceil(4 * int(2 * width / 3) / 256)
        sizes = DecoderSizes(width, mlp, text.heads, text.kv_heads, text.head_dim, text.eps)
        every = config.self_attn_every_n_layers
        made: list[LlamaLayer] = []
        for i in range(layers):
            is_self = config.attention_mode == "self_attn" or (every > 0 and i % every == 0)
            inner = text.kv_heads * text.head_dim
            made.append(LlamaLayer(sizes) if is_self else CrossLayer(sizes, kv_input=inner))
        self.width = width
        self.layers = nn.ModuleList(made)
        self.norm = RMSNorm(width, text.eps)


class Policy(FlowVlaPolicy[Encoded]):
    """SmolVLA with its loss and acting."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.options: Config = config
        # 1. The vision-language model, cut to its first layers.
        sizes = vlm_sizes(config.vlm_model_name)
        layers = config.num_vlm_layers if config.num_vlm_layers > 0 else sizes.layers
        self.sizes = sizes
        self._refuse_sizes(layers)
        text = sizes.text
        self.vision = SiglipVision(sizes.vision)
        self.connector = nn.Linear(sizes.vision.width * sizes.shuffle**2, text.width, bias=False)
        self.text = TextModel(sizes, layers)
        if not sizes.is_tied:
            # Nothing reads it; LeRobot's files have it.
            self.lm_head = nn.Linear(text.width, sizes.vocabulary, bias=False)
        # 2. The expert, and the maps of state, actions and time.
        self.expert = ActionExpert(config, text, layers)
        width = self.expert.width
        self.state_proj = nn.Linear(config.max_state_dim, text.width)
        self.action_in_proj = nn.Linear(config.max_action_dim, width)
        self.action_out_proj = nn.Linear(width, config.max_action_dim)
        self.action_time_mlp_in = nn.Linear(2 * width, width)
        self.action_time_mlp_out = nn.Linear(width, width)
        self.marks: tuple[list[int], list[int]] = ([], [])
        if config.add_image_special_tokens:
            self.marks = mark_tokens(config.vlm_model_name)
        # 3. What is trained, and where the rest starts from.
        for module in self.frozen_modules():
            module.requires_grad_(False).to(DTYPES[config.frozen_dtype])
        self.state_proj.requires_grad_(config.train_state_proj)
        if config.load_vlm_weights:
            self._load_vlm()

    def _refuse_sizes(self, layers: int) -> None:
        config, vision = self.options, self.sizes.vision
        refuse_broken_rules([config.expert_rule(layers)])
        if layers > self.sizes.layers:
            raise PolicyError(
                f"policy.num_vlm_layers={layers}",
                rule=f"{config.vlm_model_name} has {self.sizes.layers} layers",
                remedy=f"--policy.num_vlm_layers={self.sizes.layers}",
            )
        if int(self.sizes.text.width * config.expert_width_multiplier) % 2:
            raise PolicyError(
                f"policy.expert_width_multiplier={config.expert_width_multiplier}",
                rule=f"an even width out of {self.sizes.text.width}: sines and cosines",
                remedy="--policy.expert_width_multiplier=0.75",
            )
        step = vision.patch * self.sizes.shuffle
        for key, camera in config.cameras.items():
            height, width = config.image_size or camera.shape[1:]
            if height != width or height % step:
                raise PolicyError(
                    f"{key}: frames of {height}x{width} in the image encoder",
                    rule=f"squares with a side that {step} divides, best {vision.image}",
                    remedy=f"--policy.resize_imgs_with_padding=[{vision.image},{vision.image}]",
                )

    def _load_vlm(self) -> None:
        wanted: dict[str, Tensor] = {}
        key_map = self.key_map()
        for name, tensor in self.state_dict().items():
            stored = key_map.to_lerobot(name)
            if stored.startswith(VLM):
                wanted[stored.removeprefix(VLM)] = tensor
        load_vlm(self.options.vlm_model_name, wanted)

    def encode(self, batch: Batch) -> Encoded:
        """Return keys and values of cameras, sentence and state in each layer."""
        if not self.options.train_expert_only:
            return self._encoded_at_once(batch)
        # 1. Cameras and sentence see each other, and not the state. As all of the model is frozen,
        # their keys and values are constants, and no activation is kept for a backward pass.
        with torch.no_grad():
            context, valid = layers_of_features(batch) or self._read(batch)
        # 2. The state is one token after them, which sees all.
        with nullcontext() if self.options.train_state_proj else torch.no_grad():
            seen = F.pad(valid, (0, 1), value=True)
            position = positions_of(seen)[:, -1:]
            state = self._state_token(batch)
            layers = self._through_text(state, position, seen[:, None, None], context)
        return Encoded(layers, seen)

    def _encoded_at_once(self, batch: Batch) -> Encoded:
        """Return the same from one pass, which starts fewer kernels than one for the state alone.

        It keeps what gradients need of cameras and sentence, so it is for a model that is trained.
        """
        tokens, valid = self._context(batch)
        seen = F.pad(valid, (0, 1), value=True)
        x = torch.cat((tokens, self._state_token(batch).to(tokens.dtype)), dim=1)
        layers = self._through_text(x, positions_of(seen), prefix_then_causal(valid, 1), None)
        return Encoded(layers, seen)

    def _state_token(self, batch: Batch) -> Tensor:
        """Return the token of the state, (B, 1, width)."""
        state = padded(latest(batch[STATE], 2), self.options.max_state_dim)
        return self.state_proj(state)[:, None]

    def _read(self, batch: Batch) -> tuple[list[KeysValues], Tensor]:
        """Return keys and values of cameras and sentence in each layer, and which are real."""
        tokens, valid = self._context(batch)
        return self._through_text(tokens, positions_of(valid), valid[:, None, None], None), valid

    def frozen_features(self, batch: Batch, kind: str) -> dict[str, Tensor]:
        """Return keys and values of cameras and sentence, or the tokens of cameras; see
        `Policy.frozen_features`.
        """
        with torch.no_grad():
            if kind != "prefix":
                return images_as_features(*self._camera_tokens(batch))
            # Sentences are as long as the longest of their batch, and features always as long.
            told, mask = batch[LANGUAGE_TOKENS], batch[LANGUAGE_MASK]
            room = (0, self.options.tokenizer_max_length - told.shape[1])
            words = {
                LANGUAGE_TOKENS: F.pad(told, room),
                LANGUAGE_MASK: F.pad(mask, room),
            }
            return layers_as_features(*self._read({**batch, **words}))

    def _through_text(
        self, x: Tensor, positions: Tensor, mask: Tensor, past: list[KeysValues] | None
    ) -> list[KeysValues]:
        """Return the keys and values of each layer of the language model, those of `past` first."""
        x = x.to(self.text.norm.weight.dtype)
        bias = score_bias(mask, x.dtype)
        rotation = rotation_at(positions, self.sizes.text.head_dim, ROPE_BASE)
        found: list[KeysValues] = []
        last = len(self.text.layers) - 1
        for i, layer in enumerate(self.text.layers):
            before = None if past is None else past[i]
            x, given = layer(x, rotation, bias, before, is_last=i == last)
            found.append(given)
        return found

    def _context(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the tokens of cameras and sentence (B, P, width), and which are real (B, P)."""
        scale = math.sqrt(self.sizes.text.width)
        before, after, words = self._words(batch[LANGUAGE_TOKENS])
        size = len(words)
        parts: list[Tensor] = []
        valid: list[Tensor] = []
        # 1. Each camera between its marks, if there are any. Nothing sees an empty camera, so that
        # it has its marks alone.
        images, reals = self._images(batch)
        for tokens, real in zip((images * scale).split(size), reals.unbind(1), strict=True):
            parts += [before, tokens, after]
            inner = real[:, None].expand(-1, tokens.shape[1])
            valid += [_true_like(before), inner, _true_like(after)]
        for _ in range(self.options.empty_cameras):
            parts += [before, after]
            valid += [_true_like(before), _true_like(after)]
        # 2. The sentence.
        parts.append((words * scale).to(images.dtype))
        valid.append(batch[LANGUAGE_MASK])
        return torch.cat(parts, dim=1), torch.cat(valid, dim=1)

    def _words(self, sentence: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the marks before and after an image (B, 0 to 2, width), and the words of sentences
        (B, L, width). Of these, the words alone are scaled later.

        Each lookup has a gradient as large as the whole table, so there is one for all.
        """
        before, after = self.marks
        marks = torch.tensor([*before, *after], dtype=sentence.dtype, device=sentence.device)
        ids = torch.cat((marks.expand(len(sentence), -1), sentence), dim=1)
        lengths = [len(before), len(after), sentence.shape[1]]
        first, second, words = self.text.embed_tokens(ids).split(lengths, dim=1)
        return first, second, words

    def fitted(self, images: Tensor) -> Tensor:
        """Return frames padded on the left and above; see `VlaPolicy.fitted`."""
        size = self.options.image_size
        return images if size is None else resize_with_padding(images, size)

    def _images(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the language model's tokens of all cameras (cameras * B, L, width), and which
        cameras samples have (B, cameras).
        """
        tokens, seen = images_of_features(batch) or self._camera_tokens(batch)
        return (tokens if self.options.train_expert_only else self._connected(tokens)), seen

    def _camera_tokens(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the same as far as it is frozen: before the connector, unless that is as well."""
        present, frames = self.camera_frames(batch)
        is_frozen = self.options.freeze_vision_encoder or self.options.train_expert_only
        with torch.no_grad() if is_frozen else nullcontext():
            tokens = self.vision(frames.to(self.vision.post_layernorm.weight.dtype))
        if self.options.train_expert_only:
            tokens = self._connected(tokens)
        size = len(batch[present[0]])
        seen = [self._camera_mask(batch, key, size).to(tokens.device) for key in present]
        return tokens, torch.stack(seen, dim=1)

    def _connected(self, patches: Tensor) -> Tensor:
        """Return the language model's tokens of an image's patches (N, L, width)."""
        return self.connector(pixel_shuffle(patches, self.sizes.shuffle))

    def _camera_mask(self, batch: Batch, key: str, size: int) -> Tensor:
        """Return which samples have this camera, bool (B,)."""
        if f"{key}_padding_mask" in batch:
            return batch[f"{key}_padding_mask"].bool()
        if missing_key(key) in batch:
            return ~batch[missing_key(key)]
        if pad_key(key) in batch:
            return ~latest(batch[pad_key(key)], 1)
        return torch.ones(size, dtype=torch.bool)

    def velocity(self, prefix: Encoded, noisy: Tensor, time: Tensor) -> Tensor:
        """Return the velocity; see `FlowVlaPolicy.velocity`."""
        config = self.options
        # 1. A token for each action, which holds the time as well.
        action = self.action_in_proj(noisy)
        at = time_sinusoid(time, self.expert.width, config.min_period, config.max_period)
        at = at.to(action.dtype)[:, None].expand_as(action)
        hidden = F.silu(self.action_time_mlp_in(torch.cat((action, at), dim=2)))
        x = self.action_time_mlp_out(hidden)
        # 2. Layers that read the actions continue the prefix's positions; the others start at 0.
        steps = torch.arange(x.shape[1], device=x.device)[None].expand(len(x), -1)
        width = self.sizes.text.head_dim
        own = rotation_at(steps, width, ROPE_BASE)
        continued = rotation_at(prefix.valid.sum(1, keepdim=True) + steps, width, ROPE_BASE)
        both = score_bias(seen_then_causal(prefix.valid, x.shape[1]), x.dtype)
        across = score_bias(prefix.valid[:, None, None], x.dtype)
        for layer, past in zip(self.expert.layers, prefix.layers, strict=True):
            if isinstance(layer, CrossLayer):
                x, _ = layer(x, own, across, past)
            else:
                x, _ = layer(x, continued, both, past)
        return self.action_out_proj(self.expert.norm(x).float()).float()

    def integration_steps(self) -> int:
        """Return `num_steps`."""
        return self.options.num_steps

    def frozen_modules(self) -> list[nn.Module]:
        """Return what the options keep as it is, and what nothing reads."""
        head = [] if self.sizes.is_tied else [self.lm_head]
        if self.options.train_expert_only:
            return [self.vision, self.connector, self.text, *head]
        unread = [*head, self.text.norm, self.text.layers[-1]]
        return [self.vision, *unread] if self.options.freeze_vision_encoder else unread

    def shard_units(self) -> list[nn.Module]:
        """Return the layers of image encoder, language model and expert."""
        return [*self.vision.layers, *self.text.layers, *self.expert.layers]

    def key_map(self) -> KeyMap:
        """Return the adapter to LeRobot's names."""
        return KeyMap(PREFIXES, aliases=TIED if self.sizes.is_tied else {})


def _true_like(tokens: Tensor) -> Tensor:
    """Return True for each token (B, L, width) of the argument, bool (B, L)."""
    return torch.ones(tokens.shape[:2], dtype=torch.bool, device=tokens.device)
