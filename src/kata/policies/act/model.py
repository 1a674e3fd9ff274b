"""ACT: a conditional VAE over action chunks whose decoder is a DETR-like transformer (arXiv
2304.13705).
"""

from __future__ import annotations

from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor, nn

from kata.policies.act.backbone import build_backbone
from kata.policies.act.blocks import (
    TransformerDecoder,
    TransformerEncoder,
    line_sinusoid,
    map_sinusoid,
)
from kata.policies.act.config import Config
from kata.policies.act.load import KEY_MAP
from kata.policies.base import (
    ActState,
    KeyMap,
    Loss,
    ParamGroup,
    Term,
    chunk_origin,
    evaluating,
)
from kata.policies.base import Policy as BasePolicy
from kata.spec import ACTION, ENV_STATE, STATE, Batch, dim_pad_key, pad_key


class Latent(NamedTuple):
    """A diagonal normal distribution (B, L): its mean and the logarithm of its variance,
    float32.
    """

    mean: Tensor
    log_variance: Tensor


class ACTNetwork(nn.Module):
    """ACT's modules under LeRobot's names."""

    vae_encoder_pos_enc: Tensor

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        width = config.dim_model
        state = config.state
        env_state = config.env_state
        action_dim = config.action.shape[0]
        # 1. The VAE encoder. Its modules are there only if it is used, as in LeRobot's checkpoints.
        if config.use_vae:
            self.vae_encoder = TransformerEncoder(config, config.n_vae_encoder_layers)
            self.vae_encoder_cls_embed = nn.Embedding(1, width)
            if state:
                self.vae_encoder_robot_state_input_proj = nn.Linear(state.shape[0], width)
            self.vae_encoder_action_input_proj = nn.Linear(action_dim, width)
            self.vae_encoder_latent_output_proj = nn.Linear(width, 2 * config.latent_dim)
            tokens = 1 + bool(state) + config.chunk_size
            self.register_buffer("vae_encoder_pos_enc", line_sinusoid(tokens, width)[None])
        # 2. The transformer, with a projection for each kind of input token.
        self.encoder = TransformerEncoder(config, config.n_encoder_layers)
        self.decoder = TransformerDecoder(config)
        if state:
            self.encoder_robot_state_input_proj = nn.Linear(state.shape[0], width)
        if env_state:
            self.encoder_env_state_input_proj = nn.Linear(env_state.shape[0], width)
        self.encoder_latent_input_proj = nn.Linear(config.latent_dim, width)
        if config.cameras:
            self.backbone, channels = build_backbone(config)
            self.encoder_img_feat_input_proj = nn.Conv2d(channels, width, kernel_size=1)
        self.encoder_1d_feature_pos_embed = nn.Embedding(1 + bool(state) + bool(env_state), width)
        self.decoder_pos_embed = nn.Embedding(config.chunk_size, width)
        self.action_head = nn.Linear(width, action_dim)
        # Derived, so no buffer: depends on the frames' size and on the device alone.
        self._map_positions: dict[tuple[int, int, torch.device], Tensor] = {}
        # 3. Xavier's initialization for the transformer alone, as DETR has it.
        for module in (self.encoder, self.decoder):
            for parameter in module.parameters():
                if parameter.dim() > 1:
                    nn.init.xavier_uniform_(parameter)

    def latent(self, batch: Batch) -> Latent:
        """Return the VAE encoder's distribution of the latent, from [class token, state,
        actions].
        """
        action = batch[ACTION]
        tokens = [self.vae_encoder_cls_embed.weight.expand(len(action), 1, -1)]
        if self.config.state:
            tokens.append(self.vae_encoder_robot_state_input_proj(batch[STATE])[:, None])
        allowed = None
        if pad_key(ACTION) in batch:
            allowed = nn.functional.pad(~batch[pad_key(ACTION)], (len(tokens), 0), value=True)
        tokens.append(self.vae_encoder_action_input_proj(action))
        out = self.vae_encoder(torch.cat(tokens, dim=1), self.vae_encoder_pos_enc, allowed)
        mean, log_variance = self.vae_encoder_latent_output_proj(out[:, 0]).float().chunk(2, dim=-1)
        return Latent(mean, log_variance)

    def _camera_tokens(self, frames: Tensor) -> tuple[Tensor, Tensor]:
        """Map frames (B, 3, H, W) to tokens (B, h * w, D) and their positions (h * w, D)."""
        features = self.encoder_img_feat_input_proj(self.backbone(frames))
        height, width = features.shape[-2:]
        key = (height, width, features.device)
        if key not in self._map_positions:
            self._map_positions[key] = map_sinusoid(
                height, width, self.config.dim_model, features.device
            )
        return features.flatten(2).transpose(1, 2), self._map_positions[key]

    def forward(self, batch: Batch, latent_bl: Tensor | None) -> Tensor:
        """Return actions (B, T, A) for observations and a latent (B, L); None stands for zero, the
        prior's mean.
        """
        config, project = self.config, self.encoder_latent_input_proj
        if latent_bl is None:
            size = len(batch[next(iter(config.cameras), ENV_STATE)])
            latent_bl = project.weight.new_zeros(size, config.latent_dim)
        # 1. Tokens: the latent, the vectors, then each camera's feature map in reading order.
        tokens = [project(latent_bl.to(project.weight.dtype))[:, None]]
        if config.state:
            tokens.append(self.encoder_robot_state_input_proj(batch[STATE])[:, None])
        if config.env_state:
            tokens.append(self.encoder_env_state_input_proj(batch[ENV_STATE])[:, None])
        positions = [self.encoder_1d_feature_pos_embed.weight]
        for key in config.cameras:
            camera_tokens, camera_positions = self._camera_tokens(batch[key])
            tokens.append(camera_tokens)
            positions.append(camera_positions.to(positions[0].dtype))
        # 2. The decoder starts from zeros; the learned position tells each query its time step.
        position = torch.cat(positions)[None]
        memory = self.encoder(torch.cat(tokens, dim=1), position)
        query_position = self.decoder_pos_embed.weight[None]
        query = torch.zeros_like(query_position).expand(len(memory), -1, -1)
        return self.action_head(self.decoder(query, query_position, memory, position))


class Policy(BasePolicy):
    """ACT with its loss and its two ways of acting: a queue of actions, or temporal ensembling."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        config.validate_features()
        self.config = config
        self.model = ACTNetwork(config)

    def forward(self, batch: Batch, *, noise: Tensor | None = None, **draws: Tensor) -> Loss:
        """Compute the L1 loss of the actions, and the KL divergence of the latent from a standard
        normal.

        Args:
            batch: observations, and actions (B, T, A) with their padding masks.
            noise: standard normal (B, L); None draws it. Eval mode uses a zero latent, without
                the KL term.
            draws: ignored.

        Returns:
            Sums over real steps and dimensions.
        """
        del draws
        # 1. A sample of the latent, by the reparameterization trick.
        latent, sample = None, None
        if self.model.config.use_vae and self.training:
            latent = self.model.latent(batch)
            noise = torch.randn_like(latent.mean) if noise is None else noise
            sample = latent.mean + (latent.log_variance / 2).exp() * noise
        # 2. The error in float32, without steps and dimensions that are only padding.
        error = (batch[ACTION] - self.model(batch, sample).float()).abs()
        if pad_key(ACTION) in batch:
            error = error * ~batch[pad_key(ACTION)][..., None]
        if dim_pad_key(ACTION) in batch:
            error = error * ~batch[dim_pad_key(ACTION)][:, None]
        terms = {"l1_loss": Term(error.sum())}
        detail = {"l1_loss": error.detach().sum((1, 2))}
        if latent is not None:
            # Kingma and Welling, arXiv 1312.6114, appendix B.
            kl = -0.5 * (1 + latent.log_variance - latent.mean**2 - latent.log_variance.exp())
            terms["kld_loss"] = Term(kl.sum(), self.model.config.kl_weight)
            detail["kld_loss"] = kl.detach().sum(1)
        return Loss(terms, detail)

    @torch.no_grad()
    def predict_chunk(self, batch: Batch, **draws: Tensor) -> Tensor:
        """Return actions (B, chunk_size, A) from a zero latent, without dropout; random numbers are
        ignored.
        """
        del draws
        with evaluating(self):
            return self.model(batch, None)

    @torch.no_grad()
    def act(self, batch: Batch, state: ActState) -> tuple[Tensor, ActState]:
        """Return the next action: the first of the queue, or the weighted mean of the temporal
        ensemble.
        """
        config = self.model.config
        if config.temporal_ensemble_coeff is not None:
            return self._ensemble(self.predict_chunk(batch), state, config.temporal_ensemble_coeff)
        queue, is_new = state.queue, self.needs_observation(state)
        if queue is None or is_new:
            queue = self.predict_chunk(batch)[:, : config.n_action_steps]
        return queue[:, 0], ActState(queue[:, 1:], chunk_origin(state, batch, is_new=is_new))

    def needs_observation(self, state: ActState) -> bool:
        """Return True if the queue of actions is empty, or if actions are ensembled."""
        if self.model.config.temporal_ensemble_coeff is not None:
            return True
        return state.queue is None or state.queue.shape[1] == 0

    @staticmethod
    def _ensemble(chunk: Tensor, state: ActState, coeff: float) -> tuple[Tensor, ActState]:
        """Average all predictions made for each future step, the i-th oldest with weight exp(-coeff
        * i).

        Kept as a running average (B, T - 1, A): the n-th step ahead has been predicted by at most
        the last T - n calls. Algorithm 2 of the paper.
        """
        calls: int = state.memory.get("calls", 0)
        average = chunk
        # The newest prediction has the least weight if coeff > 0. A step that `seen` calls have
        # predicted has an average of the weights 0 to seen - 1 so far.
        if calls:
            steps = chunk.shape[1]
            weight = torch.exp(-coeff * torch.arange(steps, device=chunk.device))
            total = weight.cumsum(0)
            seen = torch.arange(steps - 1, 0, -1, device=chunk.device).clamp(max=calls)
            older, newest, summed = (
                w[:, None] for w in (total[seen - 1], weight[seen], total[seen])
            )
            merged = (state.memory["average"] * older + chunk[:, :-1] * newest) / summed
            average = torch.cat((merged, chunk[:, -1:]), dim=1)
        return average[:, 0], ActState(memory={"calls": calls + 1, "average": average[:, 1:]})

    def param_groups(self) -> list[ParamGroup]:
        """Return the groups 'main' and, with cameras, 'backbone', which has another learning
        rate.
        """
        config = self.model.config
        backbone = list(self.model.backbone.parameters()) if config.cameras else []
        in_backbone = {id(p) for p in backbone}
        main = [p for p in self.parameters() if id(p) not in in_backbone]
        groups = [
            ParamGroup("main", [p for p in main if p.requires_grad]),
            ParamGroup(
                "backbone",
                [p for p in backbone if p.requires_grad],
                lr=config.optimizer_lr_backbone,
            ),
        ]
        return [group for group in groups if group.params]

    def shard_units(self) -> list[nn.Module]:
        """Return the transformer layers, including those of the VAE encoder."""
        stacks = [self.model.encoder, self.model.decoder]
        if self.model.config.use_vae:
            stacks.append(self.model.vae_encoder)
        return list(chain.from_iterable(stack.layers for stack in stacks))

    def key_map(self) -> KeyMap:
        """Return an adapter without changes: every name is LeRobot's."""
        return KEY_MAP
