"""The Gaussian actor: encoder, actor, and the critic of a discrete last action."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kata.errors import PolicyError
from kata.policies.base import ActState, KeyMap, Loss, ParamGroup
from kata.policies.base import Policy as BasePolicy
from kata.policies.gaussian_actor.config import SAMPLE, Config
from kata.policies.gaussian_actor.encoder import InputEncoder, Layers
from kata.spec import Batch, Draw

OLD_CRITICS = 10
"""Critics of an old `sac` file that are recognized and left out."""


class Actor(nn.Module):
    """Network from encoded observations to mean and variance of an action before squashing."""

    def __init__(self, config: Config, width: int) -> None:
        super().__init__()
        options = config.actor_network_kwargs
        self.network = Layers(width, options.hidden_dims, activate_final=options.activate_final)
        size = config.action.shape[0]
        self.mean_layer = nn.Linear(self.network.width, size)
        self.std_layer = nn.Linear(self.network.width, size)
        self.spread = config.policy_kwargs
        self.is_std = config.actor_std == "std"
        for layer in (self.mean_layer, self.std_layer):
            nn.init.uniform_(layer.weight, -self.spread.init_final, self.spread.init_final)
            nn.init.uniform_(layer.bias, -self.spread.init_final, self.spread.init_final)

    def forward(self, encoded: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance, each (B, A)."""
        hidden = self.network(encoded)
        spread = self.std_layer(hidden).exp().clamp(self.spread.std_min, self.spread.std_max)
        return self.mean_layer(hidden), spread.square() if self.is_std else spread


def squashed(mean: Tensor, variance: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return an action tanh(u) of a Gaussian, (B, A) in [-1, 1], and its log density, (B,).

    Args:
        mean: (B, A) of u.
        variance: (B, A) of u.
        noise: (B, A), standard normal.
    """
    u = mean + variance.sqrt() * noise
    density = -0.5 * (noise.square() + variance.log() + math.log(2 * math.pi))
    # log(1 - tanh(u)^2), written so that it does not lose its digits for large u.
    slope = 2 * (math.log(2) - u - F.softplus(-2 * u))
    return u.tanh(), (density - slope).sum(-1)


class DiscreteCritic(nn.Module):
    """Values of the discrete last action."""

    def __init__(self, config: Config, width: int) -> None:
        super().__init__()
        assert config.num_discrete_actions is not None
        options = config.discrete_critic_network_kwargs
        self.net = Layers(
            width,
            options.hidden_dims,
            activate_final=options.activate_final,
            final_activation=options.final_activation,
        )
        self.output_layer = nn.Linear(self.net.width, config.num_discrete_actions)
        nn.init.orthogonal_(self.output_layer.weight)

    def forward(self, encoded: Tensor) -> Tensor:
        """Return values (B, choices)."""
        return self.output_layer(self.net(encoded))


class Policy(BasePolicy):
    """The part of SAC that acts. The critics' encoder is a part of it, as in LeRobot."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        config.validate_features()
        self.config = self._options = config
        self.encoder_critic = InputEncoder(config)
        if not config.shared_encoder:
            self.encoder_actor = InputEncoder(config)
        self.actor = Actor(config, self.encoder_critic.width)
        if config.num_discrete_actions is not None:
            self.discrete_critic = DiscreteCritic(config, self.encoder_critic.width)

    @property
    def acting_encoder(self) -> InputEncoder:
        """Return the encoder of the actor, which may be the critics'."""
        return self.encoder_critic if self._options.shared_encoder else self.encoder_actor

    def forward(self, batch: Batch, **draws: Tensor) -> Loss:
        """Raise PolicyError: recordings give no loss."""
        raise PolicyError(
            "policy.type=gaussian_actor: has no loss over recordings",
            rule="it learns by acting",
            remedy="kata rl train",
        )

    def init_state(self, batch_size: int) -> ActState:
        """Return a state that acts as `act_by` says."""
        del batch_size
        return ActState(memory={"by": self._options.act_by})

    def sampling_state(self) -> ActState:
        """Return a state that draws actions, whatever `act_by` says."""
        return ActState(memory={"by": SAMPLE})

    @torch.no_grad()
    def predict_chunk(
        self, batch: Batch, *, noise: Tensor | None = None, **draws: Tensor
    ) -> Tensor:
        """Return one action, (B, 1, A).

        Args:
            batch: Observations (B, T, ...), of which the last step is read.
            noise: (B, A), standard normal; None takes the mode of the distribution.
            draws: Ignored.
        """
        del draws
        seen = {key: batch[key][:, -1] for key in self._options.input_features}
        return self._action(seen, noise)[:, None]

    @torch.no_grad()
    def act(self, batch: Batch, state: ActState) -> tuple[Tensor, ActState]:
        """Return an action (B, A), with the number of the best discrete action behind it."""
        noise = None
        if state.memory["by"] == SAMPLE:
            wanted = Draw("normal", (self._options.action.shape[0],))
            noise = state.drawn({"noise": wanted}).get("noise")
            if noise is None:
                first: Tensor = batch[next(iter(self._options.input_features))]
                noise = torch.randn(len(first), *wanted.shape, device=first.device)
        return self._action(batch, noise), ActState(memory=state.memory)

    def _action(self, seen: Batch, noise: Tensor | None) -> Tensor:
        maps = self.acting_encoder.maps(seen)
        encoded = self.acting_encoder(seen, maps)
        mean, variance = self.actor(encoded)
        action = mean.tanh() if noise is None else squashed(mean, variance, noise.to(mean))[0]
        if self._options.num_discrete_actions is None:
            return action
        if not self._options.shared_encoder:
            encoded = self.encoder_critic(seen)
        best = self.discrete_critic(encoded).argmax(-1, keepdim=True)
        return torch.cat((action, best.to(action.dtype)), -1)

    def param_groups(self) -> list[ParamGroup]:
        """Return all parameters that are not frozen."""
        return [ParamGroup("main", [p for p in self.parameters() if p.requires_grad])]

    def shard_units(self) -> list[nn.Module]:
        """Return the encoders and networks."""
        return list(self.children())

    def key_map(self) -> KeyMap:
        """Return LeRobot's names.

        LeRobot stores an encoder once, under the name that comes first in the alphabet. Files of
        `sac` hold the critics, too, which are left out.
        """
        options = self._options
        encoder = self.encoder_critic.state_dict()
        has_discrete = options.num_discrete_actions is not None
        of_critic = "encoder_critic."
        if options.shared_encoder:
            of_critic = "actor.encoder."
        elif has_discrete:
            of_critic = "discrete_critic.encoder."
        aliases: dict[str, str] = {}
        for name in encoder:
            aliases[f"encoder_critic.{name}"] = f"{of_critic}{name}"
            aliases[f"encoder_actor.{name}"] = f"actor.encoder.{name}"
            if has_discrete:
                aliases[f"discrete_critic.encoder.{name}"] = f"{of_critic}{name}"
        old = tuple(
            (f"{critic}.encoder.", of_critic)
            for critic in ("critic_ensemble", "critic_target", "discrete_critic_target")
        )
        return KeyMap(aliases=aliases, passthrough=_old_tensors(), old_names=old)


def _old_tensors() -> tuple[str, ...]:
    """Return names of tensors beside the policy's in files of `sac`."""
    nets = [f"discrete_critic_target.{part}" for part in ("net", "output_layer")]
    for number in range(OLD_CRITICS):
        for ensemble in ("critic_ensemble", "critic_target"):
            nets += [f"{ensemble}.critics.{number}.{part}" for part in ("net", "output_layer")]
    found = ["log_alpha"]
    for net in nets:
        layers = [f".net.{n}" for n in range(12)] if net.endswith(".net") else [""]
        for layer in layers:
            found += [f"{net}{layer}.weight", f"{net}{layer}.bias"]
    return tuple(found)
