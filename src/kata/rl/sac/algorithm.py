"""Soft actor-critic: losses and one update, in LeRobot's order of steps."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Adam

from kata.errors import CheckpointError
from kata.policies.gaussian_actor.encoder import Dropout, InputEncoder, Maps
from kata.policies.gaussian_actor.model import Policy, squashed
from kata.rl.sac.config import SacConfig
from kata.rl.sac.critics import Critics

Tensors = dict[str, Tensor]


class Transitions(NamedTuple):
    """A batch of transitions, normalized and on the device.

    Attributes:
        seen: observations by key, (B, ...).
        action: (B, A); a discrete action is the last number, and not normalized.
        reward: (B,).
        done: (B,), 1 where the task ended, so that nothing follows. 0 where only the time was up.
        seen_next: the observations after the action.
        penalty: (B,), added to the reward of the discrete action.
        shown: (B,), 1 where behavior cloning follows the action, such as a human's.
    """

    seen: Mapping[str, Tensor]
    action: Tensor
    reward: Tensor
    done: Tensor
    seen_next: Mapping[str, Tensor]
    penalty: Tensor
    shown: Tensor


class Draws(Protocol):
    """Random numbers of one update, in the order in which it asks for them."""

    def normal(self, shape: tuple[int, ...]) -> Tensor:
        """Return standard normal numbers."""
        ...

    def dropout(self, values: Tensor) -> Tensor:
        """Return the values with some of them zero and the others scaled up."""
        ...

    def some_critics(self, count: int, of: int) -> Tensor:
        """Return numbers of different critics, (count,)."""
        ...


class _Seen:
    """Observations, with what many steps share: the feature maps of frozen encoders, and vectors
    as encoded since the encoder last learned.
    """

    def __init__(self, values: Mapping[str, Tensor]) -> None:
        self.values = values
        self._frozen: dict[int, Tensors] = {}
        self._encoded: dict[int, Tensor] = {}

    def encoded_by(self, encoder: InputEncoder, maps: Maps, dropout: Dropout) -> Tensor:
        """Return encoded observations, for steps without a gradient. Without cameras there is no
        dropout, so that all of them see the same numbers.
        """
        if encoder.cameras:
            return encoder(self.values, maps, dropout=dropout)
        if id(encoder) not in self._encoded:
            self._encoded[id(encoder)] = encoder(self.values, maps)
        return self._encoded[id(encoder)]

    def forget(self) -> None:
        """Note that an encoder has learned."""
        self._encoded.clear()

    def maps_of(self, encoder: InputEncoder) -> Maps:
        """Return feature maps; those of a frozen encoder are computed once."""
        if not encoder.is_frozen:
            return encoder.maps(self.values)
        if id(encoder) not in self._frozen:
            with torch.no_grad():
                self._frozen[id(encoder)] = encoder.maps(self.values)
        return self._frozen[id(encoder)]


class Sac:
    """A policy with its critics, their targets, the temperature, and one Adam for each network.

    Attributes:
        policy: learns in place.
        updates: done so far.
        optimizers: by network.
    """

    def __init__(self, policy: Policy, config: SacConfig) -> None:
        options = policy.config
        self.policy = policy
        self.config = config
        self.updates = 0
        self._size = options.action.shape[0]
        self._has_discrete = "discrete_critic" in dict(policy.named_children())
        device = next(policy.parameters()).device
        width = policy.encoder_critic.width + self._size
        self.critics = Critics(config, width).to(device)
        self.targets = copy.deepcopy(self.critics).requires_grad_(False)
        self.target_encoder = policy.encoder_critic
        if config.target_encoder == "own":
            self.target_encoder = copy.deepcopy(policy.encoder_critic).requires_grad_(False)
        if self._has_discrete:
            self.discrete_target = copy.deepcopy(policy.discrete_critic).requires_grad_(False)
        self.log_alpha = nn.Parameter(torch.tensor([math.log(config.temperature_init)]).to(device))
        self._goal = config.goal_entropy(self._size + self._has_discrete)
        self._trained = self._networks()
        rates = {"actor": config.actor_lr, "temperature": config.temperature_lr}
        self._rates = {name: rates.get(name, config.critic_lr) for name in self._trained}
        self.optimizers = {
            name: Adam(params, lr=self._rates[name], fused=True)
            for name, params in self._trained.items()
        }

    def _networks(self) -> dict[str, list[nn.Parameter]]:
        """Return the parameters of each optimizer. The encoder has two: LeRobot's Adam of the
        critics and of the discrete critic both step it.
        """
        policy = self.policy
        shared = list(policy.encoder_critic.parameters())
        own = [] if policy.acting_encoder is policy.encoder_critic else [policy.acting_encoder]
        found = {
            "critic": [*shared, *self.critics.parameters()],
            "actor": [*_parameters(own), *policy.actor.parameters()],
            "temperature": [self.log_alpha],
        }
        if self._has_discrete:
            found["discrete_critic"] = [*shared, *policy.discrete_critic.parameters()]
        for name, every in found.items():
            found[name] = [p for p in every if p.requires_grad]
        return found

    def update(self, batches: Sequence[Transitions], draws: Draws) -> Tensors:
        """Learn from `utd_ratio` batches: critics from each, actor and temperature from the last.

        Args:
            batches: `utd_ratio` of them.
            draws: the random numbers.

        Returns:
            Device scalars for the log, by name.
        """
        config, found = self.config, Tensors()
        last = len(batches) - 1
        for number, batch in enumerate(batches):
            seen, after = _Seen(batch.seen), _Seen(batch.seen_next)
            loss, values = self._critic_loss(batch, seen, after, draws)
            found |= self._step("critic", loss) | {"q_mean": values.mean().detach()}
            seen.forget()
            after.forget()
            if self._has_discrete:
                is_read = config.discrete_penalty == "all" or number < last
                loss = self._discrete_loss(batch, seen, after, draws, penalized=is_read)
                found |= self._step("discrete_critic", loss)
                seen.forget()
            if number == last and self.updates % config.policy_update_freq == 0:
                for _ in range(config.policy_update_freq):
                    found |= self._improve_actor(batch, seen, draws)
            self._follow()
        self.updates += 1
        return found

    def clone(self, batch: Transitions) -> Tensors:
        """Update the actor and its encoder by behavior cloning alone: the mean squared distance of
        its modes to the actions of the steps that are shown.

        Args:
            batch: what to clone.

        Returns:
            Device scalars for the log, by name.
        """
        encoder = self.policy.acting_encoder
        mode = self.policy.actor(encoder(batch.seen))[0].tanh()
        # Adam remembers how large gradients were: they keep their scale in the updates to come.
        loss = (self.config.bc_weight or 1.0) * self._cloning_loss(batch, mode)
        loss.backward()
        found = {"loss_actor": loss.detach(), "grad_norm_actor": self._descend("actor")}
        if encoder is self.policy.encoder_critic:
            self._descend("critic")  # its optimizer has the shared encoder
            self._follow()
        self.updates += 1
        return found

    # --- losses -------------------------------------------------------------------------------

    def _critic_loss(
        self, batch: Transitions, seen: _Seen, after: _Seen, draws: Draws
    ) -> tuple[Tensor, Tensor]:
        """Return the sum over critics of the mean squared error, and their values (critics, B)."""
        config, dropout = self.config, draws.dropout
        with torch.no_grad():
            maps = after.maps_of(self.target_encoder)
            is_one = self.policy.acting_encoder is self.target_encoder
            mean, variance = self._distribution(after, maps if is_one else None, dropout)
            action, density = squashed(mean, variance, draws.normal(tuple(mean.shape)))
            encoded = after.encoded_by(self.target_encoder, maps, dropout)
            values = self.targets(encoded, action)
            if config.num_subsample_critics is not None:
                picked = draws.some_critics(config.num_subsample_critics, config.num_critics)
                values = values[picked]
            value = values.amin(0)
            if config.use_backup_entropy:
                value = value - self.log_alpha.exp() * density
            target = batch.reward + (1 - batch.done) * config.discount * value
            if config.target_range is not None:
                target = target.clamp(*config.target_range)
        encoder = self.policy.encoder_critic
        encoded = encoder(seen.values, seen.maps_of(encoder), dropout=dropout)
        values = self.critics(encoded, batch.action[:, : self._size])
        loss = (values - target).square().mean(1).sum()
        if config.bc_weight and self.policy.acting_encoder is encoder:
            # The actor's step reaches no shared encoder, which learns what humans do here.
            mode = self.policy.actor(encoded)[0].tanh()
            loss = loss + config.bc_weight * self._cloning_loss(batch, mode)
        return loss, values

    def _cloning_loss(self, batch: Transitions, mode: Tensor) -> Tensor:
        """Return the mean squared distance of modes (B, A) to the actions that are shown."""
        distance = (mode - batch.action[:, : self._size]).square().sum(-1)
        return (distance * batch.shown).sum() / batch.shown.sum().clamp(min=1)

    def _discrete_loss(
        self, batch: Transitions, seen: _Seen, after: _Seen, draws: Draws, *, penalized: bool
    ) -> Tensor:
        """Return the mean squared error of double Q-learning for the discrete action."""
        encoder, target_encoder = self.policy.encoder_critic, self.target_encoder
        dropout = draws.dropout
        with torch.no_grad():
            maps = after.maps_of(encoder)
            online = self.policy.discrete_critic(after.encoded_by(encoder, maps, dropout))
            if target_encoder is not encoder:
                maps = after.maps_of(target_encoder)
            encoded = after.encoded_by(target_encoder, maps, dropout)
            best = online.argmax(-1, keepdim=True)
            value = self.discrete_target(encoded).gather(1, best).squeeze(1)
            reward = batch.reward + batch.penalty if penalized else batch.reward
            target = reward + (1 - batch.done) * self.config.discount * value
        encoded = encoder(seen.values, seen.maps_of(encoder), dropout=dropout)
        chosen = batch.action[:, -1:].round().long()
        value = self.policy.discrete_critic(encoded).gather(1, chosen).squeeze(1)
        return (value - target).square().mean()

    def _improve_actor(self, batch: Transitions, seen: _Seen, draws: Draws) -> Tensors:
        """Step the actor, then the temperature."""
        policy, dropout = self.policy, draws.dropout
        encoder = policy.encoder_critic
        is_shared = policy.acting_encoder is encoder
        # 1. The actor climbs the critics' value. A shared encoder learns from critics alone.
        with torch.no_grad():
            maps = seen.maps_of(encoder)
        mean, variance = self._distribution(seen, maps if is_shared else None, dropout)
        action, density = squashed(mean, variance, draws.normal(tuple(mean.shape)))
        with torch.no_grad():
            encoded = seen.encoded_by(encoder, maps, dropout)
        values = self.critics(encoded, action)
        value = values.amin(0) if self.config.actor_q == "min" else values.mean(0)
        loss = (self.log_alpha.exp().detach() * density - value).mean()
        if self.config.bc_weight:
            loss = loss + self.config.bc_weight * self._cloning_loss(batch, mean.tanh())
        found = self._step("actor", loss)
        # 2. The temperature follows the entropy of the new actor.
        with torch.no_grad():
            mean, variance = self._distribution(seen, maps if is_shared else None, dropout)
            _, density = squashed(mean, variance, draws.normal(tuple(mean.shape)))
        loss = (-self.log_alpha.exp() * (density + self._goal)).mean()
        found |= self._step("temperature", loss)
        return found | {"alpha": self.log_alpha.detach().exp()[0], "entropy": -density.mean()}

    def _distribution(
        self, seen: _Seen, maps: Maps | None, dropout: Dropout
    ) -> tuple[Tensor, Tensor]:
        """Return mean and variance of the actor; no gradient reaches a shared encoder.

        maps: feature maps of the actor's encoder, where they are known.
        """
        encoder = self.policy.acting_encoder
        maps = seen.maps_of(encoder) if maps is None else maps
        if encoder is self.policy.encoder_critic:
            with torch.no_grad():
                encoded = seen.encoded_by(encoder, maps, dropout)
        else:
            encoded = encoder(seen.values, maps, dropout=dropout)
        return self.policy.actor(encoded)

    # --- steps --------------------------------------------------------------------------------

    def _step(self, name: str, loss: Tensor) -> Tensors:
        """Take one step of a network's optimizer down a loss."""
        params = self._trained[name]
        # Gradients of this network alone: backward() would compute those of the critics, too.
        for param, gradient in zip(params, torch.autograd.grad(loss, params), strict=True):
            param.grad = gradient
        norm = self._descend(name)
        return {f"loss_{name}": loss.detach(), f"grad_norm_{name}": norm}

    def _descend(self, name: str) -> Tensor:
        """Step a network along the gradients it has, and return their norm."""
        norm = nn.utils.clip_grad_norm_(self._trained[name], self.config.grad_clip_norm)
        optimizer = self.optimizers[name]
        for group in optimizer.param_groups:
            group["lr"] = self._rates[name] * self.config.lr_factor(self.updates)
        optimizer.step()
        optimizer.zero_grad()
        return norm

    @torch.no_grad()
    def _follow(self) -> None:
        """Move targets towards what they follow. A shared encoder stays as it is: LeRobot mixes it
        with itself, which rounds frozen weights.
        """
        pairs: list[tuple[nn.Module, nn.Module]] = [(self.targets, self.critics)]
        if self._has_discrete:
            pairs.append((self.discrete_target, self.policy.discrete_critic))
        if self.target_encoder is not self.policy.encoder_critic:
            pairs.append((self.target_encoder, self.policy.encoder_critic))
        for target, source in pairs:
            for mine, followed in zip(target.parameters(), source.parameters(), strict=True):
                mine.lerp_(followed, self.config.critic_target_update_weight)

    # --- state --------------------------------------------------------------------------------

    def actor_weights(self) -> Tensors:
        """Return the tensors that acting needs, by the policy's names."""
        return dict(self.policy.state_dict())

    def _parts(self) -> dict[str, nn.Module]:
        parts: dict[str, nn.Module] = {
            "critic_ensemble": self.critics,
            "critic_target": self.targets,
        }
        if self._has_discrete:
            parts["discrete_critic_target"] = self.discrete_target
        if self.target_encoder is not self.policy.encoder_critic:
            parts["target_encoder"] = self.target_encoder
        return parts

    def state_dict(self) -> Tensors:
        """Return the critics, their targets and the temperature by LeRobot's names."""
        found: Tensors = {"log_alpha": self.log_alpha.detach()}
        for part, module in self._parts().items():
            for name, tensor in module.state_dict().items():
                found[f"{part}.{name}"] = tensor
        return found

    def load_state_dict(self, found: Mapping[str, Tensor]) -> None:
        """Take over what `state_dict` returned, of this class or of LeRobot's.

        Raises:
            CheckpointError: a tensor is absent, unknown, or of another shape.
        """
        own = self.state_dict()
        absent = sorted(own.keys() - found.keys())
        unknown = sorted(found.keys() - own.keys())
        misfits = [
            f"{name} {tuple(found[name].shape)} for {tuple(own[name].shape)}"
            for name in sorted(own.keys() & found.keys())
            if found[name].shape != own[name].shape
        ]
        if absent or unknown or misfits:
            problems = {"missing": absent, "unexpected": unknown, "of another shape": misfits}
            said = [
                f"{len(names)} {kind} ({', '.join(names[:3])})"
                for kind, names in problems.items()
                if names
            ]
            raise CheckpointError(
                f"the state of SAC: {'; '.join(said)}",
                rule=f"{len(own)} tensors, which follow from the options of policy and algorithm",
                remedy="give the options with which it was saved",
            )
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(found[name])


def _parameters(modules: Iterable[nn.Module]) -> list[nn.Parameter]:
    found: list[nn.Parameter] = []
    for module in modules:
        found += module.parameters()
    return found
