"""π0.5: the time of the noise steers the norms of the action expert, which reads actions alone."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn
from torch.nn import functional as F

from kata.nn.flow import time_sinusoid
from kata.nn.gemma import AdaptiveLayer, GemmaLayer
from kata.policies.pi05.config import Config
from kata.policies.pi_policy import Observed, PiPolicy, Suffix


class Policy(PiPolicy):
    """π0.5 with its loss and acting."""

    expert_layer: ClassVar[type[GemmaLayer]] = AdaptiveLayer
    old_names: ClassVar[tuple[tuple[str, str], ...]] = (
        ("action_time_mlp_", "model.time_mlp_"),
        ("action_", "model.action_"),
        ("time_mlp_", "model.time_mlp_"),
    )

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        width = self.sizes.width
        self.time_mlp_in = nn.Linear(width, width)
        self.time_mlp_out = nn.Linear(width, width)

    def suffix(self, observed: Observed, noisy: Tensor, time: Tensor) -> Suffix:
        """Return a token for each action; they see each other."""
        del observed
        config, action = self.options, self.action_in_proj(noisy)
        at = time_sinusoid(time, self.sizes.width, config.min_period, config.max_period)
        hidden = F.silu(self.time_mlp_in(at.to(action.dtype)))
        return Suffix(action, (action.shape[1],), F.silu(self.time_mlp_out(hidden)))

    def last_norm(self, x: Tensor, suffix: Suffix) -> Tensor:
        """Return the expert's tokens after its last norm, whose gate nothing uses."""
        assert suffix.condition is not None
        return self.expert.norm(x, suffix.condition)[0]
