"""The world model: observations to latents, and what actions do to them. Module names are
LeRobot's.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from kata.policies.tdmpc.config import CONVOLUTIONS, Config
from kata.spec import ENV_STATE, STATE


class LatentEncoder(nn.Module):
    """Observations to latents: the mean of what camera, environment state and state give."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        if config.cameras:
            self.image_enc_layers = _image_encoder(config)
        if config.env_state:
            self.env_state_enc_layers = _vector_encoder(config, config.env_state.shape[0])
        if config.state:
            self.state_enc_layers = _vector_encoder(config, config.state.shape[0])

    def forward(self, seen: Mapping[str, Tensor]) -> Tensor:
        """Observations with any leading axes (..., D) and (..., C, H, W) to (..., latent_dim)."""
        found: list[Tensor] = []
        for key in self.config.cameras:
            frames = seen[key]
            found.append(
                self.image_enc_layers(frames.flatten(0, -4)).unflatten(0, frames.shape[:-3])
            )
        if self.config.env_state:
            found.append(self.env_state_enc_layers(seen[ENV_STATE]))
        if self.config.state:
            found.append(self.state_enc_layers(seen[STATE]))
        return torch.stack(found).mean(0).float()


class WorldModel(nn.Module):
    """Encoder, dynamics, reward, policy, Q ensemble and V. Every method takes any leading axes."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        latent = config.latent_dim
        action = config.action.shape[0]
        width = config.mlp_dim
        self._encoder = LatentEncoder(config)
        self._dynamics = nn.Sequential(
            *_trunk(latent + action, width, latent), nn.LayerNorm(latent), nn.Sigmoid()
        )
        self._reward = nn.Sequential(*_trunk(latent + action, width, 1))
        self._pi = nn.Sequential(*_trunk(latent, width, action))
        self._Qs = nn.ModuleList(
            _critic(latent + action, width) for _ in range(config.q_ensemble_size)
        )
        self._V = _critic(latent, width)
        self.apply(_start)
        for net in (self._reward, *self._Qs):
            nn.init.zeros_(net[-1].weight)  # pyright: ignore[reportIndexIssue, reportArgumentType, reportUnknownMemberType]

    def encode(self, seen: Mapping[str, Tensor]) -> Tensor:
        """Observations to latents (..., latent_dim)."""
        return self._encoder(seen)

    def step(self, z: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """The latent after an action (..., latent_dim), and its reward (...)."""
        x = torch.cat((z, action), -1)
        return self._dynamics(x).float(), self._reward(x).squeeze(-1).float()

    def pi(self, z: Tensor) -> Tensor:
        """The learnt policy's action (..., A) in [-1, 1]."""
        return self._pi(z).float().tanh()

    def q_values(self, z: Tensor, action: Tensor) -> Tensor:
        """Return the value of an action by each Q function, (..., ensemble)."""
        x = torch.cat((z, action), -1)
        return torch.cat([q(x) for q in self._Qs], -1).float()

    def value(self, z: Tensor) -> Tensor:
        """V, (...)."""
        return self._V(z).squeeze(-1).float()

    def units(self) -> list[nn.Module]:
        """The networks, each called as a whole."""
        return [self._encoder, self._dynamics, self._reward, self._pi, *self._Qs, self._V]


def _image_encoder(config: Config) -> nn.Sequential:
    channels, height, width = next(iter(config.cameras.values())).shape
    layers: list[nn.Module] = []
    for kernel in CONVOLUTIONS:
        layers += [
            nn.Conv2d(channels, config.image_encoder_hidden_dim, kernel, stride=2),
            nn.ReLU(),
        ]
        channels = config.image_encoder_hidden_dim
        height, width = (height - kernel) // 2 + 1, (width - kernel) // 2 + 1
    numbers = channels * height * width
    return nn.Sequential(*layers, nn.Flatten(), *_latent(numbers, config.latent_dim))


def _vector_encoder(config: Config, width: int) -> nn.Sequential:
    hidden = config.state_encoder_hidden_dim
    return nn.Sequential(nn.Linear(width, hidden), nn.ELU(), *_latent(hidden, config.latent_dim))


def _latent(given: int, made: int) -> list[nn.Module]:
    return [nn.Linear(given, made), nn.LayerNorm(made), nn.Sigmoid()]


def _trunk(given: int, width: int, made: int) -> list[nn.Module]:
    first, second = (
        [nn.Linear(into, width), nn.LayerNorm(width), nn.Mish()] for into in (given, width)
    )
    return [*first, *second, nn.Linear(width, made)]


def _critic(given: int, width: int) -> nn.Sequential:
    return nn.Sequential(
        *(nn.Linear(given, width), nn.LayerNorm(width), nn.Tanh()),
        *(nn.Linear(width, width), nn.ELU(), nn.Linear(width, 1)),
    )


def _start(module: nn.Module) -> None:
    """Orthogonal weights, biases of zero."""
    if isinstance(module, nn.Linear | nn.Conv2d):
        nn.init.orthogonal_(
            module.weight,
            nn.init.calculate_gain("relu" if isinstance(module, nn.Conv2d) else "linear"),
        )
        assert module.bias is not None
        nn.init.zeros_(module.bias)
