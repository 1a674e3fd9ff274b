"""The critics of SAC. Module names are LeRobot's."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from kata.policies.gaussian_actor.encoder import Layers
from kata.rl.sac.config import SacConfig


class Critic(nn.Module):
    """Value of an action."""

    def __init__(self, config: SacConfig, width: int) -> None:
        super().__init__()
        options = config.critic_network_kwargs
        self.net = Layers(
            width,
            options.hidden_dims,
            activate_final=options.activate_final,
            final_activation=options.final_activation,
        )
        self.output_layer = nn.Linear(self.net.width, 1)
        nn.init.orthogonal_(self.output_layer.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Return values (B,) for encoded observations with the action behind them."""
        return self.output_layer(self.net(x)).squeeze(-1)


class Critics(nn.Module):
    """An ensemble of critics, which all read the same encoded observation."""

    def __init__(self, config: SacConfig, width: int) -> None:
        super().__init__()
        self.critics = nn.ModuleList(Critic(config, width) for _ in range(config.num_critics))

    def forward(self, encoded: Tensor, action: Tensor) -> Tensor:
        """Return values (critics, B)."""
        x = torch.cat((encoded, action), -1)
        return torch.stack([critic(x) for critic in self.critics])
