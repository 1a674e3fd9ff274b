"""Multi-Task DiT: a transformer predicts a chunk of actions from noise.

Cameras, state and a task sentence condition it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from kata.nn.denoising import NoiseProcess
from kata.nn.flow import beta_quantile, between, integrate, velocity
from kata.nn.images import resize_and_crop
from kata.policies.base import DenoisedChunkPolicy, KeyMap, Loss, ParamGroup, Term
from kata.policies.multi_task_dit.config import Config
from kata.policies.multi_task_dit.encoders import TextEncoder, VisionEncoder
from kata.policies.multi_task_dit.transformer import ActionTransformer
from kata.spec import ACTION, LANGUAGE_MASK, LANGUAGE_TOKENS, STATE, Batch


class ObservationEncoder(nn.Module):
    """State, cameras and sentence as one vector."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        if config.use_separate_rgb_encoder_per_camera:
            self.vision_encoders = nn.ModuleList(VisionEncoder(config) for _ in config.cameras)
        else:
            self.vision_encoder = VisionEncoder(config)
        self.text_encoder = TextEncoder(config)
        assert config.state is not None
        seen = len(config.cameras) * self.cameras()[0].width
        self.width = config.n_obs_steps * (config.state.shape[0] + seen + config.hidden_dim)

    def cameras(self) -> list[VisionEncoder]:
        """Return the image encoders."""
        return [module for module in self.modules() if isinstance(module, VisionEncoder)]

    def forward(self, batch: Batch, place: Tensor | None) -> Tensor:
        """Map observations (B, n_obs_steps, ...) and tokens (B, L) to (B, width).

        The vector holds state, cameras and sentence step by step.

        Args:
            batch: The observations and tokens.
            place: The places of crops (B, cameras, 2), or None for the center.
        """
        # 1. Without an encoder or a crop per camera, all cameras are cropped at one place.
        config = self.config
        frames = torch.stack([batch[key] for key in config.cameras], dim=2)
        if (
            place is not None
            and not config.use_separate_rgb_encoder_per_camera
            and not config.crop_per_sample
        ):
            place = place[:, :1].expand_as(place)
        frames = resize_and_crop(frames, config.image_resize_shape, config.image_crop_shape, place)
        # 2. A shared encoder takes all cameras in one pass, which keeps the GPU busier.
        steps = frames.shape[:2]
        encoders = self.cameras()
        if config.use_separate_rgb_encoder_per_camera:
            each = zip(encoders, frames.unbind(2), strict=True)
            seen = torch.cat(
                [encoder(one.flatten(0, 1)).unflatten(0, steps) for encoder, one in each], dim=-1
            )
        else:
            seen = encoders[0](frames.flatten(0, 2)).reshape(*steps, -1)
        # 3. The sentence is encoded once per sample, and repeated for every step.
        task = self.text_encoder(batch[LANGUAGE_TOKENS], batch[LANGUAGE_MASK])[:, None].expand(
            -1, steps[1], -1
        )
        return torch.cat([part.float() for part in (batch[STATE], seen, task)], dim=-1).flatten(1)


class Policy(DenoisedChunkPolicy):
    """Multi-Task DiT with both objectives, and acting from a history of observations."""

    condition_keys = (LANGUAGE_TOKENS, LANGUAGE_MASK)

    def __init__(self, config: Config) -> None:
        super().__init__()
        config.validate_features()
        self.config = config
        self.options = config
        self.observation_encoder = ObservationEncoder(config)
        self.noise_predictor = ActionTransformer(config, self.observation_encoder.width)
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
        """Compute the sum of squared errors of the objective's prediction.

        Args:
            batch: Observations, tokens, and actions (B, horizon, A).
            noise: (B, horizon, A), standard normal; None draws it.
            time: (B, 1), uniform in [0, 1); None draws it.
            crop: (B, cameras, 2) in [0, 1), used in training alone; None draws it.
            draws: Ignored.
        """
        # 1. The random numbers, drawn here only if the caller gives none.
        del draws
        action, config = batch[ACTION], self.options
        noise, time = self.drawn(action, noise, time)
        place = self.crop_place(crop, action, is_random=config.image_crop_is_random)
        # 2. One pass of the transformer at one time per sample; the error is in float32.
        noisy, at, target = self._task(action, noise, time[:, 0])
        given = self.noise_predictor(noisy, at, self.observation_encoder(batch, place)).float()
        error = self.counted((given - target).square(), batch)
        return Loss({f"{config.objective}_loss": Term(error.sum())}, {})

    def _task(self, action: Tensor, noise: Tensor, share: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the transformer's input, its time (B,), and its target; `share` is uniform."""
        config = self.options
        if config.objective == "diffusion":
            step = (share * config.num_train_timesteps).long()
            return self.process.add(action, noise, step), step, self.process.target(action, noise)
        # Beta times are most often near the noise, and never nearer the data than s.
        if config.timestep_sampling_strategy == "beta":
            drawn = beta_quantile(
                share, config.timestep_sampling_alpha, config.timestep_sampling_beta
            )
            share = config.timestep_sampling_s * (1 - drawn)
        spread = config.sigma_min
        return between(action, noise, share, spread), share, velocity(action, noise, spread)

    def condition(self, batch: Batch) -> Tensor:
        """Return the encoded observations; see `DenoisedChunkPolicy.condition`."""
        return self.observation_encoder(batch, None)

    def denoised(self, condition: Tensor, noise: Tensor, later: Tensor | None) -> Tensor:
        """Return the chunk that noise becomes; see `DenoisedChunkPolicy.denoised`."""
        config = self.options

        def network(x: Tensor, at: Tensor) -> Tensor:
            return self.noise_predictor(x, at, condition).float()

        if config.objective == "diffusion":
            ddim = config.noise_scheduler_type == "DDIM"
            return self.process.sample(
                network, noise, config.inference_steps, ddim=ddim, later=later
            )
        return integrate(network, noise, config.num_integration_steps, config.integration_method)

    def param_groups(self) -> list[ParamGroup]:
        """Return the image encoders, which have another learning rate, and the other parameters."""
        vision: list[nn.Parameter] = []
        for encoder in self.observation_encoder.cameras():
            vision += [p for p in encoder.parameters() if p.requires_grad]
        known = {id(p) for p in vision}
        main = [p for p in self.parameters() if p.requires_grad and id(p) not in known]
        rate = self.options.optimizer_lr * self.options.vision_encoder_lr_multiplier
        return [ParamGroup("main", main), ParamGroup("vision", vision, lr=rate)]

    def shard_units(self) -> list[nn.Module]:
        """Return the transformer's blocks and the encoders."""
        encoder = self.observation_encoder
        return [*self.noise_predictor.transformer_blocks, *encoder.cameras(), encoder.text_encoder]

    def key_map(self) -> KeyMap:
        """Return an adapter without changes: every name is LeRobot's."""
        return KeyMap()
