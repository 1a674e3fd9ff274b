"""VQ-BeT (arXiv 2403.03181): codes for chunks of actions, and a GPT that predicts them.

The GPT also predicts an offset from the chunk that the codes stand for.
"""

from __future__ import annotations

from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor, nn

from kata.nn.images import KeypointEncoder, crop
from kata.policies.base import ChunkPolicy, KeyMap, Loss, ParamGroup, Term, evaluating
from kata.policies.vqbet.config import INPUTS, LAYERS, Config, padded_chunks
from kata.policies.vqbet.gpt import GPT
from kata.policies.vqbet.load import key_map
from kata.policies.vqbet.vqvae import VqVae, mlp
from kata.spec import ACTION, STATE, Batch, pad_key

COMMITMENT_WEIGHT = 5.0
FOCAL_GAMMA = 2


class Predicted(NamedTuple):
    """logits: (B, T, LAYERS, codes). codes: (B, T, LAYERS), chosen at random. decoded: (B, T, W *
    A), what they stand for. chunks: the same with offsets.
    """

    logits: Tensor
    codes: Tensor
    decoded: Tensor
    chunks: Tensor


class Head(nn.Module):
    """From the GPT's features to codes and offsets, under LeRobot's names."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.vqvae_model = VqVae(config)
        width, codes = config.gpt_output_dim, config.vqvae_n_embed
        if config.sequentially_select:
            self.map_to_cbet_preds_primary_bin = mlp(width, codes)
            self.map_to_cbet_preds_secondary_bin = mlp(width + codes, codes)
        else:
            self.map_to_cbet_preds_bin = mlp(width, LAYERS * codes)
        numbers = config.action_chunk_size * config.action.shape[0]
        self.map_to_cbet_preds_offset = mlp(width, LAYERS * codes * numbers)

    def forward(self, features: Tensor, noise: Tensor) -> Predicted:
        """Predict codes and chunks.

        Args:
            features: (B, T, D).
            noise: (B, T, LAYERS), uniform in [0, 1), which chooses the codes.
        """
        # 1. Codes of both layers: the second one sees the first choice, or both are independent.
        if self.config.sequentially_select:
            first = self.map_to_cbet_preds_primary_bin(features)
            primary = self._choose(first, noise[..., 0])
            given = nn.functional.one_hot(primary, self.config.vqvae_n_embed).to(features.dtype)
            second = self.map_to_cbet_preds_secondary_bin(torch.cat([features, given], -1))
            logits = torch.stack([first, second], -2)
            codes = torch.stack([primary, self._choose(second, noise[..., 1])], -1)
        else:
            logits = self.map_to_cbet_preds_bin(features).unflatten(-1, (LAYERS, -1))
            codes = self._choose(logits, noise)
        # 2. An offset for every code of a layer, of which the chosen ones are summed. The head is
        # wide: it predicts codes times chunk numbers per layer.
        offsets = self.map_to_cbet_preds_offset(features).unflatten(
            -1, (LAYERS, self.config.vqvae_n_embed, -1)
        )
        offset = offsets.take_along_dim(codes[..., None, None], -2).squeeze(-2).sum(-2)
        decoded = self.vqvae_model.decode(codes)
        return Predicted(logits.float(), codes, decoded, decoded + offset)

    @torch.no_grad()
    def _choose(self, logits: Tensor, noise: Tensor) -> Tensor:
        """Return the first code at which the summed probabilities pass the noise (...)."""
        share = (logits.float() / self.config.bet_softmax_temperature).softmax(-1).cumsum(-1)
        return (share <= noise[..., None]).sum(-1).clamp(max=logits.shape[-1] - 1)


class VQBeTNetwork(nn.Module):
    """Encoders, GPT and head under LeRobot's names."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        ((self.camera, view),) = config.cameras.items()
        assert config.state is not None
        size = config.crop_shape or (view.shape[1], view.shape[2])
        keypoints, width = config.spatial_softmax_num_keypoints, config.gpt_input_dim
        self.rgb_encoder = KeypointEncoder(
            config.vision_backbone,
            config.pretrained_backbone_weights,
            size,
            keypoints,
            group_norm=config.use_group_norm,
        )
        self.action_token = nn.Parameter(torch.randn(1, 1, width))
        self.state_projector = mlp(config.state.shape[0], width)
        self.rgb_feature_projector = mlp(2 * keypoints, width)
        self.policy = GPT(config)
        self.action_head = Head(config)

    def features(self, batch: Batch, place: Tensor | None) -> Tensor:
        """Return a vector for each chunk, (B, chunks, gpt_output_dim).

        Each observation gives three tokens: the camera, the state, and one that asks for the chunk
        that begins with it. Further tokens of the last kind ask for later chunks.

        Args:
            batch: Observations (B, n_obs_steps, ...).
            place: The places of crops (B, 1, 2), or None for the center.
        """
        # 1. The tokens, three per observation in turn, then those of later chunks.
        frames, steps = batch[self.camera], self.config.n_obs_steps
        if self.config.crop_shape is not None:
            frames = crop(frames, self.config.crop_shape, None if place is None else place[:, 0])
        seen = self.rgb_encoder(frames.flatten(0, 1)).unflatten(0, frames.shape[:2])
        inputs = [self.rgb_feature_projector(seen), self.state_projector(batch[STATE].float())]
        ask = self.action_token.to(inputs[0].dtype).expand(len(frames), self.config.chunks, -1)
        tokens = torch.stack([*inputs, ask[:, :steps]], 2).flatten(1, 2)
        given = self.policy(torch.cat([tokens, ask[:, steps:]], 1))
        # 2. The outputs at the asking tokens; attention is causal, so they see no later input.
        past = given[:, : tokens.shape[1]][:, INPUTS :: INPUTS + 1]
        return torch.cat([past, given[:, tokens.shape[1] :]], 1)


class Policy(ChunkPolicy):
    """VQ-BeT with the losses of its two phases, and acting from a history of observations."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        config.validate_features()
        self.config = config
        self.vqbet = VQBeTNetwork(config)

    @property
    def _vqvae(self) -> VqVae:
        return self.vqbet.action_head.vqvae_model

    def forward(
        self,
        batch: Batch,
        *,
        noise: Tensor | None = None,
        crop: Tensor | None = None,
        **draws: Tensor,
    ) -> Loss:
        """Compute the loss of the current phase.

        The first phase learns codes: the loss is the error of chunks decoded from them. The second
        phase predicts codes and offsets. `decoded_error` and the `match` terms are only measured.

        Args:
            batch: observations and actions, batch axis first.
            noise: (B, chunks, LAYERS), uniform in [0, 1), samples codes; None draws it.
            crop: (B, 1, 2) in [0, 1), places of crops, used in training only; None draws it.
            draws: ignored.
        """
        # 1. All chunks of the window, flat, and those that do not reach beyond the episode.
        del draws
        config, chunk = self.vqbet.config, self.vqbet.config.action_chunk_size
        target = batch[ACTION].unfold(1, chunk, 1).transpose(2, 3).flatten(2)
        valid = None
        if config.do_mask_loss_for_padding and pad_key(ACTION) in batch:
            valid = ~padded_chunks(batch[pad_key(ACTION)], chunk)
        # 2. The summands of the phase that the codebooks are in.
        if not self._vqvae.has_codes():
            parts = self._learn_codes(target, valid)
        else:
            parts = self._predict_codes(batch, target, noise, crop)
        scales = {
            "commitment_loss": COMMITMENT_WEIGHT,
            "offset_loss": config.offset_loss_weight,
            "primary_code_loss": config.primary_code_loss_weight,
            "secondary_code_loss": config.secondary_code_loss_weight,
            **dict.fromkeys(("primary_code_match", "secondary_code_match", "decoded_error"), 0.0),
        }
        sums = {
            name: (part if valid is None else part * valid).sum(1) for name, part in parts.items()
        }
        terms = {name: Term(part.sum(), scales.get(name, 1.0)) for name, part in sums.items()}
        return Loss(terms, {name: part.detach() for name, part in sums.items()})

    def _learn_codes(self, target: Tensor, valid: Tensor | None) -> dict[str, Tensor]:
        """Return the first phase's summands of each term, (B, chunks), for flat chunks (B, chunks,
        W * A).
        """
        flat = target.flatten(0, 1)
        decoded, quantized = self._vqvae(flat, None if valid is None else valid.flatten())
        parts = {
            "reconstruction_loss": (flat - decoded).abs().sum(1),
            "commitment_loss": quantized.distance.sum(1),
        }
        return {name: part.unflatten(0, target.shape[:2]) for name, part in parts.items()}

    def _predict_codes(
        self, batch: Batch, target: Tensor, noise: Tensor | None, place: Tensor | None
    ) -> dict[str, Tensor]:
        """Return the second phase's summands of each term, (B, chunks)."""
        config, size = self.vqbet.config, target.shape[:2]
        if noise is None:
            noise = torch.rand(*size, LAYERS, device=target.device)
        if not (self.training and config.crop_is_random):
            place = None
        elif place is None:
            place = torch.rand(size[0], 1, 2, device=target.device)
        # The recorded chunks have codes as well, which are the classes to predict.
        found = self.vqbet.action_head(self.vqbet.features(batch, place), noise)
        wanted = self._vqvae.codes(target.flatten(0, 1)).unflatten(0, size)
        likely = found.logits.log_softmax(-1).gather(-1, wanted[..., None]).squeeze(-1)
        # Focal loss (arXiv 1708.02002): what is predicted well already counts less.
        primary, secondary = (-((1 - likely.exp()) ** FOCAL_GAMMA) * likely).unbind(-1)
        primary_match, secondary_match = (found.codes == wanted).float().unbind(-1)
        return {
            "offset_loss": (target - found.chunks).abs().sum(-1),
            "primary_code_loss": primary,
            "secondary_code_loss": secondary,
            "primary_code_match": primary_match,
            "secondary_code_match": secondary_match,
            "decoded_error": (target - found.decoded).abs().sum(-1),
        }

    @torch.no_grad()
    def predict_chunk(
        self, batch: Batch, *, noise: Tensor | None = None, **draws: Tensor
    ) -> Tensor:
        """Return actions (B, action_chunk_size, A) from the latest observation on, with sampled
        codes.

        Args:
            batch: observations (B, n_obs_steps, ...).
            noise: (B, chunks, LAYERS), uniform in [0, 1); None draws from torch's stream.
            draws: ignored.
        """
        del draws
        config, now = self.vqbet.config, self.vqbet.config.chunk_start()
        with evaluating(self):
            features = self.vqbet.features(batch, None)
            if noise is None:
                noise = torch.rand(len(features), config.chunks, LAYERS, device=features.device)
            here = slice(now, now + 1)
            chunk = self.vqbet.action_head(features[:, here], noise[:, here]).chunks
        return chunk.unflatten(-1, (config.action_chunk_size, -1))[:, 0]

    def param_groups(self) -> list[ParamGroup]:
        """Return the GPT's side with weight decay, the same without, and the VQ-VAE with other
        rates.

        In either phase the parameters of the other have no gradient, so no optimizer step moves
        them.
        """
        network, config = self.vqbet, self.vqbet.config
        decay, no_decay = network.policy.groups()
        inside = {id(p) for p in (*network.policy.parameters(), *self._vqvae.parameters())}
        decay += [p for p in self.parameters() if id(p) not in inside]
        codes = [*self._vqvae.encoder.parameters(), *self._vqvae.decoder.parameters()]
        return [
            ParamGroup("main", decay),
            ParamGroup(
                "vqvae", codes, config.optimizer_vqvae_lr, config.optimizer_vqvae_weight_decay
            ),
            ParamGroup("no_decay", no_decay, weight_decay=0.0),
        ]

    def step_sums(self) -> list[Tensor]:
        """Return the sums that move the codebooks."""
        return list(chain.from_iterable(book.sums for book in self._vqvae.vq_layer.books()))

    def after_step(self, step: int, bad: Tensor) -> dict[str, Tensor]:
        """Move the codebooks, and fix them after n_vqvae_training_steps.

        The phase follows from the run's step, so that it needs no counter and survives a resume.
        """
        if self._vqvae.has_codes():
            return {}
        primary, secondary = (book.update(bad) for book in self._vqvae.vq_layer.books())
        if step >= self.vqbet.config.n_vqvae_training_steps:
            self._vqvae.fix_codes()
        return {"primary_codes_used": primary, "secondary_codes_used": secondary}

    def shard_units(self) -> list[nn.Module]:
        """Return the GPT's blocks and the image encoder."""
        return [*self.vqbet.policy.transformer.h, self.vqbet.rgb_encoder]

    def recompute_units(self) -> list[nn.Module]:
        """Return the GPT's blocks. Batch norm must not see its input twice."""
        return list(self.vqbet.policy.transformer.h)

    def key_map(self) -> KeyMap:
        """Return the adapter from kata's tensor names to LeRobot's."""
        return key_map(self.vqbet.config)
