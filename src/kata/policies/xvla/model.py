"""X-VLA: Florence-2 reads the first view and the sentence, a transformer with soft prompts reads
its tokens, those of other views and noisy actions, and predicts the clean actions.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kata.errors import PolicyError
from kata.nn.florence.bart import BartEncoder
from kata.nn.florence.davit import Davit, ImageProjector, frame_positions
from kata.nn.images import resize_with_padding
from kata.policies.base import KeyMap, Loss, ParamGroup, Term, evaluating
from kata.policies.vla_policy import DTYPES, QueuePolicy, latest, padded
from kata.policies.xvla.config import DOMAIN, Config
from kata.policies.xvla.old_names import modern
from kata.policies.xvla.transformer import SoftPromptedTransformer
from kata.spec import (
    ACTION,
    LANGUAGE_TOKENS,
    STATE,
    Batch,
    dim_pad_key,
    frozen_key,
    missing_key,
    pad_key,
)

TIME_END = 1 - 1e-5
"""Times of noise are below it."""

VLM = "model.vlm."
"""Beginning of Florence-2's names in LeRobot's files."""

EMBEDDINGS = f"{VLM}language_model.encoder.embed_tokens.weight"
SHARED = f"{VLM}language_model.shared.weight"
FRAMES = f"{VLM}multi_modal_projector.visual_temporal_embed.pos_idx_to_embed"


class Seen(NamedTuple):
    """An encoded observation.

    Attributes:
        context: the tokens after those of the actions, (B, L, width).
        proprio: state (B, D).
        domain: numbers of the robots, int64 (B,).
    """

    context: Tensor
    proprio: Tensor
    domain: Tensor


class Policy(QueuePolicy):
    """X-VLA with its loss and acting."""

    _shown: Tensor
    _switches: Tensor
    _logits: Tensor
    _members: Tensor

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.options: Config = config
        davit, bart = config.florence()
        self.sizes = davit
        # 1. Florence-2 without its text decoder, and the transformer.
        self.vision = Davit(davit)
        self.projector = ImageProjector(davit)
        self.encoder = BartEncoder(bart)
        for module, std in (
            (self.vision, davit.std),
            (self.projector, davit.std),
            (self.encoder, bart.std),
        ):
            _draw_weights(module, std)
        self.transformer = SoftPromptedTransformer(config, bart.width)
        # 2. The precision, what is trained, and the layout of actions.
        self.to(DTYPES[config.dtype])
        self._freeze()
        self.mode = config.mode
        self._register_layout()

    def _register_layout(self) -> None:
        """Keep what follows from the layout of actions on the device."""
        mode, width = self.mode, self.mode.width
        shown = torch.ones(max(width, self.options.proprio_width))
        shown[list(mode.hidden)] = 0.0
        members = torch.zeros(width, len(mode.parts))
        for number, part in enumerate(mode.parts):
            members[list(part.dims), number] = 1.0
        marks = {"_switches": mode.switches, "_logits": mode.logits}
        for name, dims in marks.items():
            chosen = torch.zeros(width, dtype=torch.bool)
            chosen[list(dims)] = True
            self.register_buffer(name, chosen, persistent=False)
        self.register_buffer("_shown", shown, persistent=False)
        self.register_buffer("_members", members, persistent=False)

    def _freeze(self) -> None:
        config = self.options
        for module in self.frozen_modules():
            module.requires_grad_(False)
        if not config.train_policy_transformer:
            self.transformer.pos_emb.requires_grad_(False)

    def frozen_modules(self) -> list[nn.Module]:
        """Return what the options keep as it is."""
        config = self.options
        chosen: list[nn.Module] = []
        if config.freeze_vision_encoder:
            chosen.append(self.vision)
        if config.freeze_language_encoder:
            chosen.append(self.encoder)
        for name, module in self.transformer.named_children():
            is_prompt = name == "soft_prompt_hub"
            trains = config.train_soft_prompts if is_prompt else config.train_policy_transformer
            if not trains:
                chosen.append(module)
        return chosen

    def forward(
        self,
        batch: Batch,
        *,
        noise: Tensor | None = None,
        time: Tensor | None = None,
        **draws: Tensor,
    ) -> Loss:
        """Compute sums of the errors of clean actions.

        Args:
            batch: observations, tokens, and actions (B, T, A).
            noise: (B, T, width of the mode), standard normal; None draws it.
            time: (B, 1) in [0, 2): one uniform number for the whole batch, and each sample's place
                in it; None draws it for these samples alone.
            draws: ignored.
        """
        del draws
        # 1. Noisy actions; times are spread evenly over the batch.
        clean = padded(batch[ACTION], self.mode.width).float()
        noise = torch.randn_like(clean) if noise is None else noise
        if time is None:
            place = torch.arange(len(clean), device=clean.device)[:, None] / len(clean)
            time = torch.rand(1, 1, device=clean.device) + place
        at = time % TIME_END
        noisy = at[..., None] * noise + (1 - at[..., None]) * clean
        # 2. Errors in float32, without padded steps and dimensions.
        found = self.clean_actions(self.encode(batch), noisy, at[:, 0])
        error = (found - clean).square()
        if self.mode.logits:
            logit = F.binary_cross_entropy_with_logits(found, clean, reduction="none")
            error = torch.where(self._logits, logit, error)
        if self.options.do_mask_loss_for_padding and pad_key(ACTION) in batch:
            error = error * ~batch[pad_key(ACTION)][..., None]
        if dim_pad_key(ACTION) in batch:
            lacking = batch[dim_pad_key(ACTION)]
            error = error * ~F.pad(lacking, (0, error.shape[2] - lacking.shape[1]))[:, None]
        # 3. The terms of each sample.
        detail = error.sum(1) @ self._members.float()
        sums = detail.sum(0)
        terms = {p.name: Term(sums[i], p.scale) for i, p in enumerate(self.mode.parts)}
        kept = detail.detach()
        return Loss(terms, {p.name: kept[:, i] for i, p in enumerate(self.mode.parts)})

    def encode(self, batch: Batch) -> Seen:
        """Return what the transformer reads of cameras, sentence and robot."""
        config = self.options
        # 1. The tokens of all views. The first view and the sentence pass through the encoder,
        # which leads gradients to the projector even where it is frozen.
        views = self._views(batch)
        words = self.encoder.words(batch[LANGUAGE_TOKENS])
        encoded = self.encoder(torch.cat((views[:, 0], words), dim=1))
        # 2. What the transformer makes of them does not depend on the actions.
        domain = self._domains(batch, len(views)).to(views.device)
        others = views[:, 1:].flatten(1, 2)
        context = self.transformer.context(encoded, others, domain, config.chunk_size)
        return Seen(context, self._proprio(batch, views), domain)

    def _proprio(self, batch: Batch, like: Tensor) -> Tensor:
        """Return the state (B, width) as the network reads it, without what the mode hides."""
        width = self.options.proprio_width
        if not width:
            return like.new_zeros(len(like), 0)
        state = padded(latest(batch[STATE], 2), width).to(like.dtype)
        return state * self._shown[:width].to(like.dtype)

    def _views(self, batch: Batch) -> Tensor:
        """Return the tokens of all views, (B, views, L, width).

        Views without a camera are zeros that the network reads. As in LeRobot, they come last.
        """
        cells, seen = self._cells(batch)
        tokens = self.projector(cells.flatten(0, 1)).unflatten(0, cells.shape[:2])
        if seen is not None:
            order = (~seen).long().argsort(dim=1, stable=True)
            rows = torch.arange(len(tokens), device=tokens.device)[:, None]
            tokens = (tokens * seen[..., None, None])[rows, order]
        absent = self.options.views - tokens.shape[1]
        return F.pad(tokens, (0, 0, 0, 0, 0, absent)) if absent > 0 else tokens

    def _cells(self, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """Return the cells of the batch's cameras (B, cameras, width, h, w), and which of them
        samples have, bool (B, cameras); None if all have all.
        """
        if frozen_key("cells") in batch:
            return batch[frozen_key("cells")], batch[frozen_key("seen")]
        present = self.present_cameras(batch)
        frames = torch.stack([self._fitted(latest(batch[key], 4)) for key in present], dim=1)
        frames = frames.to(self.projector.image_proj_norm.weight.dtype)
        with torch.no_grad() if self.options.freeze_vision_encoder else nullcontext():
            cells = self.vision(frames.flatten(0, 1)).unflatten(0, frames.shape[:2])
        marks = [missing_key(key) for key in present]
        if not any(mark in batch for mark in marks):
            return cells, None
        none = torch.zeros(len(cells), dtype=torch.bool, device=cells.device)
        return cells, ~torch.stack([batch.get(mark, none) for mark in marks], dim=1)

    def frozen_features(self, batch: Batch, kind: str) -> dict[str, Tensor]:
        """Return the cells of cameras; see `Policy.frozen_features`."""
        del kind
        with torch.no_grad():
            cells, seen = self._cells(batch)
        if seen is None:
            seen = torch.ones(cells.shape[:2], dtype=torch.bool, device=cells.device)
        return {"cells": cells, "seen": seen}

    def _fitted(self, frames: Tensor) -> Tensor:
        """Return frames (B, 3, H, W) in the size of the options; padding has the mean color."""
        size = self.options.resize_imgs_with_padding
        return frames if size is None else resize_with_padding(frames, size)

    def _domains(self, batch: Batch, size: int) -> Tensor:
        """Return the number of each sample's robot, int64 (B,)."""
        key = self.options.domain_feature_key
        found = batch.get(DOMAIN) if key is None or key not in batch else batch[key]
        if found is None:
            return torch.full((size,), self.options.domain_id)
        found = found.reshape(len(found), -1)[:, 0].long().expand(size)
        # On a GPU the host would wait for the answer.
        if found.device.type == "cpu" and not self._knows(found):
            raise PolicyError(
                f"robots {sorted(set(found.tolist()))}",
                rule=f"numbers from 0 to {self.options.num_domains - 1}",
                remedy=f"--policy.num_domains, or the values of {key or DOMAIN}",
            )
        return found

    def _knows(self, domain: Tensor) -> bool:
        return bool(((domain >= 0) & (domain < self.options.num_domains)).all())

    def clean_actions(self, seen: Seen, noisy: Tensor, time: Tensor) -> Tensor:
        """Return the network's clean actions (B, T, width of the mode), float32.

        Args:
            seen: the encoded observation.
            noisy: noisy actions of the same shape, float32.
            time: float32 (B,); 1 for noise alone.
        """
        given = (noisy * self._shown[: self.mode.width]).to(seen.context.dtype)
        found = self.transformer(seen.context, given, seen.proprio, time, seen.domain)
        return found.float()

    @torch.no_grad()
    def predict_chunk(
        self, batch: Batch, *, noise: Tensor | None = None, **draws: Tensor
    ) -> Tensor:
        """Return a chunk of actions (B, T, A); switches are shares from 0 to 1.

        Args:
            batch: observations and tokens.
            noise: (B, T, width of the mode), standard normal; None draws from torch's stream.
            draws: ignored.
        """
        del draws
        steps = self.options.num_denoising_steps
        with evaluating(self):
            seen = self.encode(batch)
            if noise is None:
                shape = (len(seen.domain), self.options.chunk_size, self.mode.width)
                noise = torch.randn(shape, device=seen.context.device)
            found = torch.zeros_like(noise)
            for step in range(steps, 0, -1):
                share = step / steps
                time = torch.full((len(noise),), share, device=noise.device)
                noisy = noise * share + found * (1 - share)
                found = self.clean_actions(seen, noisy, time)
        if self.mode.switches:
            found = torch.where(self._switches, found.sigmoid(), found)
        return found[..., : self.options.action.shape[0]]

    def param_groups(self) -> list[ParamGroup]:
        """Return LeRobot's groups: names with "vlm", the learned tokens of robots, and the rest."""
        config, key_map = self.options, self.key_map()
        groups: dict[str, list[nn.Parameter]] = {"vlm": [], "soft_prompts": [], "other": []}
        for name, parameter in self.named_parameters():
            stored = key_map.to_lerobot(name)
            rest = "soft_prompts" if "soft_prompt" in stored else "other"
            if parameter.requires_grad:
                groups["vlm" if "vlm" in stored else rest].append(parameter)
        prompts = config.optimizer_soft_prompt_warmup_lr_scale
        prompts = config.optimizer_soft_prompt_lr_scale if prompts is None else prompts
        rates = {"vlm": (0.1, 0.1), "soft_prompts": (prompts, 1.0), "other": (1.0, 1.0)}
        found: list[ParamGroup] = []
        for name, params in groups.items():
            lr, decay = rates[name]
            found.append(ParamGroup(name, params, lr_scale=lr, decay_scale=decay))
        # The first group's rate is the one that is logged.
        return [group for group in reversed(found) if group.params]

    def preflight_rows(self) -> list[tuple[str, str]]:
        """Return rows that say what actions mean and which robot is trained."""
        config, mode = self.options, self.mode
        own = config.action.shape[0]
        filled = f"{own} of {mode.real} numbers are the dataset's, the others are learnt as zeros"
        rest = "" if own == mode.real else f": {filled} (--policy.action_mode=auto has no others)"
        source = config.domain_feature_key or f"{config.domain_id} of {config.num_domains}"
        return [("action mode", config.action_mode + rest), ("robot", f"domain {source}")]

    def shard_units(self) -> list[nn.Module]:
        """Return the halves of the image encoder's blocks, and the layers of both others."""
        halves: list[nn.Module] = []
        for stage in self.vision.stages():
            halves += stage[1:]
        return [*halves, *self.encoder.layers, *self.transformer.blocks]

    def key_map(self) -> KeyMap:
        """Return the adapter to LeRobot's names."""
        width, frames = self.sizes.stages[-1].width, self.sizes.frames
        dtype = DTYPES[self.options.dtype]
        return KeyMap(
            (
                ("vision.", f"{VLM}vision_tower."),
                ("projector.", f"{VLM}multi_modal_projector."),
                ("encoder.", f"{VLM}language_model.encoder."),
                ("transformer.", "model.transformer."),
            ),
            aliases={SHARED: EMBEDDINGS},
            stand_ins={EMBEDDINGS: SHARED},
            constants={FRAMES: lambda: frame_positions(frames, width).to(dtype)},
            modern=modern,
        )


def _draw_weights(module: nn.Module, std: float) -> None:
    """Draw new weights of linear maps, convolutions and tables as transformers does."""
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Conv2d | nn.Embedding):
            nn.init.normal_(part.weight, std=std)
        if isinstance(part, nn.Linear | nn.Conv2d) and part.bias is not None:
            nn.init.zeros_(part.bias)
        if isinstance(part, nn.Embedding) and part.padding_idx is not None:
            nn.init.zeros_(part.weight[part.padding_idx])
