"""GR00T N1.7: a diffusion transformer reads features of cameras and a sentence.

A Qwen3-VL, cut to its first layers, makes the features; no output map is computed. They are mixed,
and the transformer then reads those of words and those of images in turns.
"""

from __future__ import annotations

import re
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from kata.errors import PolicyError
from kata.nn.attention import KeysValues
from kata.nn.flow import beta_quantile
from kata.nn.images import crop
from kata.nn.qwen3.places import image_split, token_places
from kata.nn.qwen3.text import Qwen3Text
from kata.nn.qwen3.vision import Qwen3Vision
from kata.policies.base import KeyMap, Loss, ParamGroup, Term, evaluating
from kata.policies.groot.backbone import backbone_sizes, load_base
from kata.policies.groot.config import TERM, Config
from kata.policies.groot.continued import ramp
from kata.policies.groot.head import ActionHead, BackboneFeatures, Context
from kata.policies.groot.transformer import BlockSizes
from kata.policies.vla_policy import DTYPES, ContinuingPolicy, latest, padded
from kata.processors.groot.encode import EncodePrompt, image_rules
from kata.processors.groot.images import bicubic, crop_size, geometry_of, shortest_edge
from kata.processors.pipeline import Pipeline
from kata.spec import (
    ACTION,
    LANGUAGE_MASK,
    LANGUAGE_TOKENS,
    STATE,
    VIEW,
    Batch,
    dim_pad_key,
    frozen_key,
    missing_key,
    pad_key,
)

RAW = "backbone.model."
"""Beginning of the backbone's names in NVIDIA's files."""

LEROBOT = "_groot_model."
"""LeRobot's prefix of NVIDIA's names."""

PREFIXES = (
    ("visual.", f"{LEROBOT}{RAW}model.visual."),
    ("text.", f"{LEROBOT}{RAW}model.language_model."),
    ("head.", f"{LEROBOT}action_head."),
)
WORDS = f"{LEROBOT}{RAW}model.language_model.embed_tokens.weight"
LM_HEAD = f"{LEROBOT}{RAW}lm_head.weight"

UNDECAYED = re.compile(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)")
"""Names of parameters without weight decay, besides those of norms."""


class Policy(ContinuingPolicy):
    """GR00T with its loss and acting."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.options: Config = config
        base = config.base
        sizes = backbone_sizes(base.backbone)
        self.base, self.sizes = base, sizes
        self.robot = config.robot
        layers = min(base.layers, sizes.text.layers)
        if config.tune_top_llm_layers > layers:
            raise PolicyError(
                f"policy.tune_top_llm_layers={config.tune_top_llm_layers}",
                rule=f"{base.source} uses {layers} layers of its language model",
                remedy="--policy.tune_llm=true to train them all",
            )
        self.visual = Qwen3Vision(sizes.vision)
        self.text = Qwen3Text(sizes.text, layers)
        mixer = None if base.mixer is None else _block_sizes(base.mixer)
        self.head = ActionHead(base.head, _block_sizes(base.transformer), mixer)
        self.rules = image_rules(config.text_tokenizer_name)
        self.geometry = geometry_of(config.image_options)
        if not config.model_params_fp32:
            self.to(DTYPES[base.dtype])
        for module in self.frozen_modules():
            module.requires_grad_(False)
        if config.frozen_dtype != "float32":
            for parameter in chain(self.visual.parameters(), self.text.parameters()):
                if not parameter.requires_grad:
                    parameter.data = parameter.data.to(DTYPES[config.frozen_dtype])
        if config.load_base_weights:
            self._load_base()

    def _load_base(self) -> None:
        wanted: dict[str, Tensor] = {}
        key_map = self.key_map()
        for name, tensor in self.state_dict().items():
            wanted[key_map.to_lerobot(name).removeprefix(LEROBOT)] = tensor
        load_base(self.base.source, wanted, LM_HEAD.removeprefix(LEROBOT))

    def use_pipeline(self, before: Pipeline) -> None:
        """Take the rules of images from a checkpoint's own steps."""
        for step in before.steps:
            if isinstance(step, EncodePrompt):
                self.rules, self.geometry = step.rules, step.geometry

    @property
    def token_side(self) -> int:
        """Return the side in pixels of an image token."""
        return self.sizes.vision.patch * self.sizes.vision.merge

    # --- features

    def features(self, batch: Batch, place: Tensor | None = None) -> BackboneFeatures:
        """Return what the backbone makes of cameras and the sentence.

        Args:
            batch: images in the order of the prompt, and its tokens.
            place: of a random crop, (B, 2) in [0, 1); None takes the center.
        """
        # 1. Images of one size pass in one call.
        views = list(_views(batch))
        if not views:
            raise PolicyError(
                "a batch without images",
                rule="groot sees at least one camera",
                remedy="give the policy the cameras that it was trained with",
            )
        images = [self._final(batch[key], place) for key in views]
        tokens, deep, grids = self._image_tokens(images)
        # 2. They take the places that the prompt keeps for them.
        words, valid = batch[LANGUAGE_TOKENS], batch[LANGUAGE_MASK].bool()
        is_image = words == self.sizes.image_token
        split = image_split(is_image, tokens.shape[1])
        x = self.text.embed_tokens(words)
        where = split.images[..., None].expand(-1, -1, x.shape[2])
        x = x.scatter(1, where, tokens.to(x.dtype))
        real = valid
        if any(missing_key(key) in batch for key in views):
            seen = self._seen(batch, views, grids, valid)
            real = valid & torch.ones_like(valid).scatter(1, split.images, seen)
        x = self.text(
            x,
            token_places(is_image, valid, grids),
            real,
            images=split.images,
            deep=deep,
            sees=valid[..., None] if self.options.attend_padding else None,
        )
        # 3. Image tokens first: the head reads the two kinds apart.
        order = torch.cat(split, dim=1)
        ordered = x.gather(1, order[..., None].expand_as(x))
        return BackboneFeatures(ordered, real.gather(1, order), tokens.shape[1])

    def _final(self, frames: Tensor, place: Tensor | None) -> Tensor:
        """Return images in the size of the encoder, after albumentations' crop if there is one."""
        if not self.geometry.use_albumentations:
            return frames
        size = (frames.shape[-2], frames.shape[-1])
        frames = _cropped(frames, crop_size(size, self.geometry), place)
        frames = shortest_edge(frames, self.geometry.edge)
        size = self.rules.fitted((frames.shape[-2], frames.shape[-1]))
        return frames if frames.shape[-2:] == size else bicubic(frames, size)

    def _image_tokens(
        self, images: list[Tensor]
    ) -> tuple[Tensor, list[Tensor], list[tuple[int, int]]]:
        """Return tokens (B, I, width) of all images of a prompt, deep ones, and their grids."""
        factor, count = self.token_side, len(images[0])
        grids = [(image.shape[-2] // factor, image.shape[-1] // factor) for image in images]
        parts: list[tuple[Tensor, ...]] = [()] * len(images)
        for size in dict.fromkeys(image.shape[-2:] for image in images):
            mine = [number for number, image in enumerate(images) if image.shape[-2:] == size]
            given = torch.cat([images[number] for number in mine])
            found = self.visual(self._normalized(given))
            kinds = [kind.split(count) for kind in (found.tokens, *found.deep)]
            for number, *own in zip(mine, *kinds, strict=True):
                parts[number] = tuple(own)
        tokens, *deep = (torch.cat(kind, dim=1) for kind in zip(*parts, strict=True))
        return tokens, deep, grids

    def _normalized(self, frames: Tensor) -> Tensor:
        """Return uint8 images (N, 3, H, W) as the encoder reads them."""
        colors: list[Tensor] = []
        for number, (mean, std) in enumerate(zip(self.rules.mean, self.rules.std, strict=True)):
            colors.append((frames[:, number].float() - 255 * mean) / (255 * std))
        return torch.stack(colors, dim=1)

    def _seen(
        self, batch: Batch, views: list[str], grids: list[tuple[int, int]], valid: Tensor
    ) -> Tensor:
        """Return which image tokens are those of cameras that a sample has, bool (B, I)."""
        parts: list[Tensor] = []
        for key, (rows, columns) in zip(views, grids, strict=True):
            missing = batch.get(missing_key(key))
            seen = valid[:, :1] | True if missing is None else ~missing[:, None].to(valid.device)
            parts.append(seen.expand(-1, rows * columns))
        return torch.cat(parts, dim=1)

    def frozen_features(self, batch: Batch, kind: str) -> dict[str, Tensor]:
        """Return what the backbone makes of cameras and sentence; see `Policy.frozen_features`."""
        del kind
        # Sentences are as long as the longest of their batch, and features always as long.
        room, told = self.options.cached_prompt_tokens, batch[LANGUAGE_TOKENS]
        images = int(sum(_tokens_of(image, self.token_side) for image in _views(batch).values()))
        longest = told.shape[1] - images
        if longest > room:
            raise PolicyError(
                f"a prompt of {longest} tokens beside images, with "
                f"policy.cached_prompt_tokens={room}",
                rule="cached features have one length for all sentences",
                remedy=f"--policy.cached_prompt_tokens={longest}",
            )
        pad = (0, room - longest)
        words = {
            LANGUAGE_TOKENS: nn.functional.pad(told, pad),
            LANGUAGE_MASK: nn.functional.pad(batch[LANGUAGE_MASK], pad),
        }
        with torch.no_grad():
            found = self.features({**batch, **words})
        tokens, valid = found.tokens, found.valid
        return {
            "images": tokens[:, :images],
            "image_valid": valid[:, :images],
            "words": tokens[:, images:],
            "word_valid": valid[:, images:],
        }

    # --- the loss

    def forward(
        self,
        batch: Batch,
        *,
        noise: Tensor | None = None,
        time: Tensor | None = None,
        state_dropout: Tensor | None = None,
        crop: Tensor | None = None,
        **draws: Tensor,
    ) -> Loss:
        """Compute the sum of squared errors of the velocity.

        Args:
            batch: observations, tokens, and actions (B, T, A).
            noise: (B, horizon, max_action_dim), standard normal; None draws it.
            time: (B, 1), uniform in [0, 1); None draws it.
            state_dropout: (B, 2), uniform in [0, 1): which samples go without their state, and
                without its token; None draws it.
            crop: (B, 2), uniform in [0, 1), the place of the crop; None takes the center.
            draws: ignored.
        """
        del draws
        context = self._context(batch, crop if self.training else None)
        # 1. Noisy actions at one time per sample, zero where nothing counts.
        counts = self._counted(batch)
        action = padded(batch[ACTION], self.options.max_action_dim)
        action = nn.functional.pad(action, (0, 0, 0, counts.shape[1] - action.shape[1])) * counts
        noise = torch.randn_like(action) if noise is None else noise
        share = torch.rand(len(action), 1, device=action.device) if time is None else time
        at = self._training_time(share)[..., None]
        noisy = (1 - at) * noise + at * action
        bucket = (at[:, 0, 0] * self.base.buckets).long()
        # 2. The error in float32.
        state = self._state(batch, self._dropped(batch, state_dropout))
        robot = self._robots(bucket)
        velocity = self.head.velocity(context, state, noisy, bucket, robot, [])
        error = (velocity.float() - (action - noise)).square() * counts
        return Loss({TERM: Term(error.sum())}, {TERM: error.detach().sum((1, 2))})

    def _context(self, batch: Batch, place: Tensor | None) -> Context:
        has_gaps = any(key.startswith(VIEW) and key.endswith("_is_missing") for key in batch)
        known = _kept_features(batch)
        return self.head.context(
            self.features(batch, place) if known is None else known,
            mixes_padding=self.options.attend_padding,
            has_gaps=has_gaps or known is not None,
        )

    def _counted(self, batch: Batch) -> Tensor:
        """Return which numbers of actions count, float32 (B, horizon, max_action_dim)."""
        config, given = self.options, batch[ACTION]
        size, steps, width = given.shape
        real = torch.ones(size, steps, dtype=torch.bool, device=given.device)
        if pad_key(ACTION) in batch:
            real = ~batch[pad_key(ACTION)]
        real = real & (torch.arange(steps, device=given.device) < config.valid_horizon)
        dims = torch.ones(size, width, dtype=torch.bool, device=given.device)
        if dim_pad_key(ACTION) in batch:
            dims = ~batch[dim_pad_key(ACTION)]
        counts = (real[..., None] & dims[:, None]).float()
        room = (0, config.max_action_dim - width, 0, config.horizon - steps)
        return nn.functional.pad(counts, room)

    def _training_time(self, share: Tensor) -> Tensor:
        """Return times in [0, 1), 1 for no noise, from uniform numbers; most are near the noise."""
        alpha, beta, scale = self.base.noise
        return (1 - beta_quantile(share, alpha, beta)) * scale

    def _dropped(self, batch: Batch, share: Tensor | None) -> tuple[Tensor, Tensor] | None:
        """Return which samples go without their state, and without its token, each bool (B,)."""
        given, token = self.options.state_dropouts
        if not self.training or not (given or token):
            return None
        state = batch[STATE]
        share = torch.rand(len(state), 2, device=state.device) if share is None else share
        return share[:, 0] < given, share[:, 1] < token

    def _state(self, batch: Batch, dropped: tuple[Tensor, Tensor] | None) -> Tensor:
        """Return the token of the state, (B, 1, width)."""
        state = padded(latest(batch[STATE], 2), self.options.max_state_dim)[:, None]
        if dropped is not None:
            state = state.masked_fill(dropped[0][:, None, None], 0)
        found = self.head.state_encoder(state.to(self.head.dtype), self._robots(state))
        return found if dropped is None else found * ~dropped[1][:, None, None]

    def _robots(self, like: Tensor) -> Tensor:
        """Return the number of each sample's robot, int64 (B,)."""
        return torch.full((len(like),), self.robot, device=like.device)

    # --- acting

    @torch.no_grad()
    def predict_chunk(
        self, batch: Batch, *, noise: Tensor | None = None, **draws: Tensor
    ) -> Tensor:
        """Return a chunk of actions (B, T, A).

        Args:
            batch: observations and tokens.
            noise: (B, the base model's horizon, max_action_dim); None draws from torch's stream.
            draws: ignored.
        """
        del draws
        return self.chunk_after(batch, None, 0, noise)

    def chunk_after(
        self, batch: Batch, left_over: Tensor | None, delay: int, noise: Tensor | None
    ) -> Tensor:
        """Return a chunk that continues another; see `ContinuingPolicy.continued`."""
        config, steps = self.options, self._steps()
        with evaluating(self):
            context = self._context(batch, None)
            state = self._state(batch, None)
            if noise is None:
                shape = (len(state), self.base.horizon, config.max_action_dim)
                noise = torch.randn(shape, device=state.device)
            x, strength = noise, None
            robot = self._robots(noise)
            if left_over is not None and left_over.shape[1]:
                length = min(left_over.shape[1], x.shape[1])
                given = padded(left_over[:, :length], config.max_action_dim).to(x)
                x = torch.cat((given, x[:, length:]), dim=1)
                rate = config.rtc_ramp_rate or self.base.ramp_rate
                strength = ramp(x.shape[1], length, delay, rate).to(x.device)[:, None]
            kept: list[KeysValues | None] = []
            for step in range(steps):
                bucket = torch.full_like(robot, int(step / float(steps) * self.base.buckets))
                velocity = self.head.velocity(context, state, x, bucket, robot, kept).float()
                velocity = velocity if strength is None else velocity * strength
                x = x + 1.0 / steps * velocity
        return x[:, : config.predicted, : config.action.shape[0]]

    def next_chunk(
        self, queue: Tensor | None, delay: int, batch: Batch, drawn: dict[str, Tensor]
    ) -> Tensor:
        """Return the next chunk, which continues the queue where predictions take time."""
        if queue is None or delay == 0:
            return self.predict_chunk(batch, **drawn)
        return self.continued(batch, queue, delay, **drawn)

    def _steps(self) -> int:
        return self.options.num_inference_timesteps or self.base.steps

    @property
    def executed_steps(self) -> int:
        """Return how many actions are executed before the next prediction."""
        return self.options.executed

    def origins_in_chunk(self, origin: Tensor, length: int) -> Tensor:
        """Return the state at which a chunk begins, and each action's number in the chunk."""
        each = super().origins_in_chunk(origin, length)
        number = torch.arange(length, device=each.device, dtype=each.dtype)
        return torch.cat((each, number[None, :, None].expand(len(each), -1, 1)), dim=2)

    # --- parts

    def param_groups(self) -> list[ParamGroup]:
        """Return parameters with weight decay and without, by LeRobot's rule."""
        norms = [m for m in self.modules() if isinstance(m, nn.LayerNorm)]
        undecayed = set(chain.from_iterable(norm.parameters() for norm in norms))
        groups: tuple[list[nn.Parameter], list[nn.Parameter]] = ([], [])
        for name, parameter in self.named_parameters():
            if parameter.requires_grad:
                is_free = parameter in undecayed or UNDECAYED.search(name.lower()) is not None
                groups[is_free].append(parameter)
        return [ParamGroup("main", groups[0]), ParamGroup("no_decay", groups[1], weight_decay=0.0)]

    def frozen_modules(self) -> list[nn.Module]:
        """Return what the options keep as it is, and what nothing reads."""
        config, head = self.options, self.head
        text: list[nn.Module] = [self.text.norm]
        if not config.tune_llm:
            last = len(self.text.layers) - config.tune_top_llm_layers
            text += [self.text.embed_tokens, *self.text.layers[:last]]
        maps: list[nn.Module] = [head.state_encoder, head.action_encoder, head.action_decoder]
        maps += [head.position_embedding] if head.has_positions else []
        return [
            *text,
            *([] if config.tune_visual else [self.visual]),
            *([] if config.tune_projector else maps),
            *([] if config.tune_diffusion_model else [head.model]),
            *([] if config.tune_vlln else [head.vlln, head.vl_self_attention]),
        ]

    def shard_units(self) -> list[nn.Module]:
        """Return the layers of the image encoder and the language model, and the head's blocks.

        Where frozen parts have another type, what is left of the encoder and of the language model
        is apart from the rest of the head.
        """
        units = [*self.visual.blocks, *self.text.layers, *self.head.blocks]
        if self.options.frozen_dtype == "float32":
            return units
        return [*units, self.text.embed_tokens, self.visual, self.text]

    def recompute_units(self) -> list[nn.Module]:
        """Return the layers that are trained, or that lie behind one that is."""
        units = self.head.blocks
        config = self.options
        if config.tune_llm or config.tune_visual or config.tune_top_llm_layers:
            units = [*self.text.layers, *units]
        return [*self.visual.blocks, *units] if config.tune_visual else units

    def key_map(self) -> KeyMap:
        """Return the adapter to LeRobot's names; the output map is the table of words."""
        return KeyMap(PREFIXES, aliases={LM_HEAD: WORDS}, stand_ins={WORDS: LM_HEAD})


def _views(batch: Batch) -> dict[str, Tensor]:
    """Return the images of a batch in the order of the prompt, by key."""
    names = [key for key in batch if key.startswith(VIEW) and key[len(VIEW) :].isdigit()]
    return {key: batch[key] for key in sorted(names, key=lambda key: int(key[len(VIEW) :]))}


def _tokens_of(image: Tensor, side: int) -> int:
    """Return the number of tokens of images (B, 3, H, W), each of `side` x `side` pixels."""
    return (image.shape[-2] // side) * (image.shape[-1] // side)


def _kept_features(batch: Batch) -> BackboneFeatures | None:
    """Return the features that a cache has kept, if the batch has them."""
    if frozen_key("images") not in batch:
        return None
    images, words = batch[frozen_key("images")], batch[frozen_key("words")]
    valid = torch.cat((batch[frozen_key("image_valid")], batch[frozen_key("word_valid")]), dim=1)
    return BackboneFeatures(torch.cat((images, words), dim=1), valid, images.shape[1])


def _block_sizes(options: Any) -> BlockSizes:
    return BlockSizes(
        layers=options["num_layers"],
        heads=options["num_attention_heads"],
        head_dim=options["attention_head_dim"],
        dropout=options["dropout"],
        final_dropout=options["final_dropout"],
    )


def _cropped(frames: Tensor, size: tuple[int, int], place: Tensor | None) -> Tensor:
    """Return uint8 frames (B, 3, H, W) cropped to `size`, in the middle or at each one's place."""
    if frames.shape[-2:] == size:
        return frames
    if place is None:
        top, left = ((frames.shape[axis] - size[axis]) // 2 for axis in (-2, -1))
        return frames[..., top : top + size[0], left : left + size[1]]
    return crop(frames, size, place)
