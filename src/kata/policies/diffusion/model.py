"""Diffusion Policy: a U-Net denoises a chunk of actions, conditioned on encoded observations
(arXiv 2303.04137).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from kata.nn.denoising import NoiseProcess
from kata.nn.images import KeypointEncoder, resize_and_crop
from kata.nn.unet1d import UNet1d, UNetShape
from kata.policies.base import DenoisedChunkPolicy, KeyMap, Loss, ParamGroup, Term
from kata.policies.diffusion.config import Config
from kata.policies.diffusion.load import COMPILED, PLAIN
from kata.spec import ACTION, ENV_STATE, STATE, Batch


class DiffusionNetwork(nn.Module):
    """Encoders and U-Net under LeRobot's names."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        # 1. The encoders, and the width of an encoded observation.
        cameras = list(config.cameras.values())
        width = sum(feature.shape[0] for feature in (config.state, config.env_state) if feature)
        if cameras:
            if config.use_separate_rgb_encoder_per_camera:
                self.rgb_encoder: nn.Module = nn.ModuleList(_encoder(config) for _ in cameras)
            else:
                self.rgb_encoder = _encoder(config)
            width += len(cameras) * 2 * config.spatial_softmax_num_keypoints
        # 2. The U-Net. Compiling it makes the first step slow, and the later ones faster.
        shape = UNetShape(
            channels=config.action.shape[0],
            condition=width * config.n_obs_steps,
            levels=tuple(config.down_dims),
            kernel=config.kernel_size,
            groups=config.n_groups,
            step_width=config.diffusion_step_embed_dim,
            scale=config.use_film_scale_modulation,
        )
        self.unet = UNet1d(shape, recompute=config.gradient_checkpointing)
        if config.compile_model:
            self.unet.compile(mode=config.compile_mode)

    def condition(self, batch: Batch, place: Tensor | None) -> Tensor:
        """Return observations (B, n_obs_steps, ...) as one vector per sample, (B, D).

        It holds state, cameras and environment step by step.

        Args:
            batch: The observations.
            place: The places of crops (B, cameras, 2), or None for the center.
        """
        parts = [batch[STATE]] if self.config.state else []
        if self.config.cameras:
            frames = torch.stack([batch[key] for key in self.config.cameras], dim=2)
            parts.append(self._features(frames, place))
        if self.config.env_state:
            parts.append(batch[ENV_STATE])
        return torch.cat([part.float() for part in parts], dim=-1).flatten(1)

    def _features(self, frames: Tensor, place: Tensor | None) -> Tensor:
        """Map frames (B, T, cameras, C, H, W) to (B, T, cameras * 2 keypoints)."""
        # 1. Without an encoder or a crop per camera, all cameras are cropped at one place.
        config = self.config
        if (
            place is not None
            and not config.use_separate_rgb_encoder_per_camera
            and not config.crop_per_sample
        ):
            place = place[:, :1].expand_as(place)
        frames = resize_and_crop(frames, config.resize_shape, config.crop_shape, place)
        # 2. A shared encoder takes all cameras in one pass, which keeps the GPU busier.
        steps = frames.shape[:2]
        if isinstance(self.rgb_encoder, nn.ModuleList):
            each = zip(self.rgb_encoder, frames.unbind(2), strict=True)
            return torch.cat(
                [encoder(one.flatten(0, 1)).unflatten(0, steps) for encoder, one in each], dim=-1
            )
        return self.rgb_encoder(frames.flatten(0, 2)).reshape(*steps, -1)


class Policy(DenoisedChunkPolicy):
    """Diffusion with its denoising loss, and acting from a history of observations."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        config.validate_features()
        self.config = config
        self.diffusion = DiffusionNetwork(config)
        self.process = NoiseProcess(**config.noise_process())

    def forward(
        self,
        batch: Batch,
        *,
        noise: Tensor | None = None,
        time: Tensor | None = None,
        crop: Tensor | None = None,
        **draws: Tensor,
    ) -> Loss:
        """Compute the sum of squared errors of the predicted noise (or clean actions).

        Args:
            batch: Observations, and actions (B, horizon, A).
            noise: (B, horizon, A), standard normal; None draws it.
            time: (B, 1) in [0, 1), the noising step as a share of all; None draws it.
            crop: (B, cameras, 2) in [0, 1), used in training alone; None draws it.
            draws: Ignored.
        """
        # 1. The random numbers, drawn here only if the caller gives none.
        del draws
        action, config = batch[ACTION], self.diffusion.config
        noise, time = self.drawn(action, noise, time)
        place = self.crop_place(crop, action, is_random=config.crop_is_random)
        # 2. One pass of the network at one noising step per sample; the error is in float32.
        step = (time[:, 0] * config.num_train_timesteps).long()
        condition = self.diffusion.condition(batch, place)
        given = self.diffusion.unet(self.process.add(action, noise, step), step, condition).float()
        error = self.counted((given - self.process.target(action, noise)).square(), batch)
        return Loss(
            {"denoising_loss": Term(error.sum())}, {"denoising_loss": error.detach().sum((1, 2))}
        )

    def condition(self, batch: Batch) -> Tensor:
        """Return the encoded observations; see `DenoisedChunkPolicy.condition`."""
        return self.diffusion.condition(batch, None)

    def denoised(self, condition: Tensor, noise: Tensor, later: Tensor | None) -> Tensor:
        """Return the chunk that noise becomes; see `DenoisedChunkPolicy.denoised`."""
        config = self.diffusion.config
        return self.process.sample(
            lambda x, step: self.diffusion.unet(x, step, condition).float(),
            noise,
            config.inference_steps,
            ddim=config.noise_scheduler_type == "DDIM",
            later=later,
        )

    def param_groups(self) -> list[ParamGroup]:
        """Return one group of all trained parameters."""
        return [ParamGroup("main", [p for p in self.parameters() if p.requires_grad])]

    def shard_units(self) -> list[nn.Module]:
        """Return the U-Net's blocks and the image encoders."""
        encoders = [module for module in self.modules() if isinstance(module, KeypointEncoder)]
        return [*self.diffusion.unet.blocks(), *encoders]

    def recompute_units(self) -> list[nn.Module]:
        """Return the U-Net's blocks, unless they are recomputed already.

        The image encoders are left out, since batch norm must not see its input twice.
        """
        return [] if self.diffusion.config.gradient_checkpointing else self.diffusion.unet.blocks()

    def key_map(self) -> KeyMap:
        """Return an adapter for compiled modules; every other name is LeRobot's."""
        return COMPILED if self.diffusion.config.compile_model else PLAIN


def _encoder(config: Config) -> KeypointEncoder:
    first = next(iter(config.cameras.values()))
    height, width = config.crop_shape or config.resize_shape or first.shape[1:]
    return KeypointEncoder(
        config.vision_backbone,
        config.pretrained_backbone_weights,
        (height, width),
        config.spatial_softmax_num_keypoints,
        group_norm=config.use_group_norm,
    )
