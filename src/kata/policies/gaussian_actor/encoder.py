"""The encoder of observations, and layers. Module names are LeRobot's."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from kata.policies.gaussian_actor.config import CONVOLUTIONS, Config
from kata.spec import ENV_STATE, STATE

Dropout = Callable[[Tensor], Tensor]
"""Return the numbers with some of them zero and the others scaled up."""

Maps = Mapping[str, Tensor]
"""Feature maps (B, C, H, W) by camera."""


class Layers(nn.Module):
    """Linear layers, each with a layer norm and an activation."""

    def __init__(
        self,
        width: int,
        hidden_dims: list[int],
        *,
        activate_final: bool = True,
        final_activation: str | None = None,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for number, hidden in enumerate(hidden_dims):
            is_last = number == len(hidden_dims) - 1
            layers.append(nn.Linear(width, hidden))
            if not is_last or activate_final:
                named = final_activation if is_last and final_activation else "SiLU"
                layers += [nn.LayerNorm(hidden), vars(nn)[named]()]
            width = hidden
        self.net = nn.Sequential(*layers)
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        """Return hidden numbers (..., width)."""
        return self.net(x)


class ImageEncoder(nn.Module):
    """Four convolutions that all cameras share."""

    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for kernel in CONVOLUTIONS:
            layers += [nn.Conv2d(channels, hidden, kernel, stride=2), nn.ReLU()]
            channels = hidden
        self.image_enc_layers = nn.Sequential(*layers)

    def forward(self, frames: Tensor) -> Tensor:
        """Return feature maps of frames (B, 3, H, W)."""
        return self.image_enc_layers(frames)


class SpatialEmbedding(nn.Module):
    """Weighted sums over the pixels of each channel."""

    def __init__(self, channels: int, size: tuple[int, int], sums: int) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.empty(channels, *size, sums))
        nn.init.kaiming_normal_(self.kernel, mode="fan_in", nonlinearity="linear")

    def forward(self, maps: Tensor) -> Tensor:
        """Return (B, C * sums) for feature maps (B, C, H, W)."""
        weights = self.kernel.flatten(1, 2)
        # One product per channel: (C, B, HW) x (C, HW, sums).
        sums = torch.bmm(maps.flatten(2).transpose(0, 1), weights)
        return sums.transpose(0, 1).flatten(1)


class InputEncoder(nn.Module):
    """Encodes cameras, environment state and state, each to `latent_dim` numbers."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.cameras = list(config.cameras)
        self.is_frozen = config.freeze_vision_encoder or not self.cameras
        self.vectors = {ENV_STATE: config.env_state, STATE: config.state}
        latent = config.latent_dim
        if self.cameras:
            self._add_cameras(config)
        if config.env_state:
            self.env_encoder = _vector_encoder(config.env_state.shape[0], latent)
        if config.state:
            self.state_encoder = _vector_encoder(config.state.shape[0], latent)
        inputs = len(self.cameras) + (config.env_state is not None) + (config.state is not None)
        self.width = latent * inputs

    def _add_cameras(self, config: Config) -> None:
        channels, height, width = next(iter(config.cameras.values())).shape
        hidden = config.image_encoder_hidden_dim
        self.image_encoder = ImageEncoder(channels, hidden)
        if config.freeze_vision_encoder:
            self.image_encoder.requires_grad_(False)
        for kernel in CONVOLUTIONS:
            height, width = (height - kernel) // 2 + 1, (width - kernel) // 2 + 1
        sums = config.image_embedding_pooling_dim
        embeddings: dict[str, nn.Module] = {}
        post: dict[str, nn.Module] = {}
        for name in map(_module_name, self.cameras):
            embeddings[name] = SpatialEmbedding(hidden, (height, width), sums)
            linear = nn.Linear(hidden * sums, config.latent_dim)
            norm = nn.LayerNorm(config.latent_dim)
            # The first is LeRobot's dropout, which callers apply here; its place keeps the names.
            post[name] = nn.Sequential(nn.Identity(), linear, norm, nn.Tanh())
        self.spatial_embeddings = nn.ModuleDict(embeddings)
        self.post_encoders = nn.ModuleDict(post)

    def maps(self, seen: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return feature maps by camera; empty without cameras."""
        if not self.cameras:
            return {}
        found = self.image_encoder(torch.cat([seen[key] for key in self.cameras]))
        return dict(zip(self.cameras, found.chunk(len(self.cameras)), strict=True))

    def forward(
        self,
        seen: Mapping[str, Tensor],
        maps: Maps | None = None,
        *,
        dropout: Dropout | None = None,
        detach: bool = False,
    ) -> Tensor:
        """Encode observations.

        Args:
            seen: normalized observations by key, (B, ...).
            maps: from `maps`; None computes them.
            dropout: applied to pooled image features, camera by camera; None for acting.
            detach: True lets no gradient through to cameras.

        Returns:
            (B, width): cameras, environment state, state.
        """
        parts: list[Tensor] = []
        maps = self.maps(seen) if maps is None else maps
        for camera in self.cameras:
            name = _module_name(camera)
            pooled = self.spatial_embeddings[name](maps[camera])
            if dropout is not None:
                pooled = dropout(pooled)
            encoded = self.post_encoders[name](pooled)
            parts.append(encoded.detach() if detach else encoded)
        if self.vectors[ENV_STATE]:
            parts.append(self.env_encoder(seen[ENV_STATE]))
        if self.vectors[STATE]:
            parts.append(self.state_encoder(seen[STATE]))
        return torch.cat(parts, -1)


def _module_name(key: str) -> str:
    return key.replace(".", "_")


def _vector_encoder(size: int, latent: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(size, latent), nn.LayerNorm(latent), nn.Tanh())
