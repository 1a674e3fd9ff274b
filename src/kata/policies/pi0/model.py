"""π0: the state and the time of the noise are part of the tokens that the action expert reads."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kata.nn.flow import time_sinusoid
from kata.policies.pi0.config import Config
from kata.policies.pi_policy import Observed, PiPolicy, Suffix
from kata.policies.vla_policy import padded


class Policy(PiPolicy):
    """π0 with its loss and acting."""

    old_names = (
        ("action_", "model.action_"),
        ("state_proj.", "model.state_proj."),
        ("time_mlp_", "model.action_time_mlp_"),
    )

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        width = self.sizes.width
        self.state_proj = nn.Linear(config.max_state_dim, width)
        self.action_time_mlp_in = nn.Linear(2 * width, width)
        self.action_time_mlp_out = nn.Linear(width, width)

    def suffix(self, observed: Observed, noisy: Tensor, time: Tensor) -> Suffix:
        """Return a token of the state, which sees no action, and one for each action."""
        config = self.options
        state = self.state_proj(padded(observed.state, config.max_state_dim))
        action = self.action_in_proj(noisy)
        at = time_sinusoid(time, self.sizes.width, config.min_period, config.max_period)
        at = at.to(action.dtype)[:, None].expand_as(action)
        hidden = F.silu(self.action_time_mlp_in(torch.cat((action, at), dim=2)))
        tokens = torch.cat((state[:, None], self.action_time_mlp_out(hidden)), dim=1)
        return Suffix(tokens, (1, action.shape[1]))
